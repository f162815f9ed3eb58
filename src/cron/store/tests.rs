use serde_json::json;

use super::*;
use crate::cron::claim::{ALIVE, Outcome};
use crate::cron::plan::Repair;

const EXAMPLE: &str = include_str!("../../../tests/golden/jobs.example.json");

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn store(text: &str) -> (tempfile::TempDir, Store) {
    let home = tempfile::tempdir().unwrap();
    let store = Store::new(home.path().join("cron"));
    fs::create_dir(home.path().join("cron")).unwrap();
    fs::write(store.path(), text).unwrap();
    (home, store)
}

fn lock(store: &Store) -> Locked<'_> {
    store.lock(Duration::from_secs(5)).unwrap()
}

fn plan(store: &Store, now: &str) -> Plan {
    store.look(at(now), &TimeZone::UTC, ALIVE).unwrap().plan
}

fn job(text: &str, id: &str) -> serde_json::Value {
    let file: serde_json::Value = serde_json::from_str(text).unwrap();
    file["jobs"].as_array().unwrap().iter().find(|job| job["id"] == id).unwrap().clone()
}

fn due(id: &str, schedule: serde_json::Value, next: &str) -> serde_json::Value {
    json!({"id": id, "schedule": schedule, "no_agent": true, "script": "a.sh", "next_run_at": next})
}

#[test]
fn the_models_own_file_is_read_and_only_what_is_due_is_due() {
    let (_home, store) = store(EXAMPLE);
    let plan = plan(&store, "2026-12-01T03:44:00Z");
    let ids: Vec<&str> = plan.due.iter().map(|due| due.id.as_str()).collect();
    assert_eq!(ids, ["18934fd56dbd", "536828b01993", "75d3b147a785"]);
    assert_eq!(plan.next_wake, Some(at("2026-12-01T09:00:00Z")));
    assert!(plan.bad.is_empty() && plan.repairs.is_empty());
}

#[test]
fn a_claim_and_a_result_change_one_job_and_nothing_else() {
    let (_home, store) = store(EXAMPLE);
    let (now, zone) = (at("2026-12-01T03:25:00Z"), TimeZone::UTC);
    let claimed = lock(&store).claim(&["75d3b147a785", "550109a3998e", "none"], now, &zone).unwrap();
    assert_eq!(claimed.len(), 1, "only what is due");
    let text = fs::read_to_string(store.path()).unwrap();
    let rep = job(&text, "75d3b147a785");
    assert_eq!(rep["next_run_at"], "2026-12-01T03:35:00+00:00");
    assert_eq!(rep["last_dispatch"]["kind"], "on_time");
    for (before, after) in EXAMPLE.lines().zip(text.lines()).take_while(|(before, _)| !before.contains("75d3b147a785"))
    {
        assert_eq!(before, after);
    }
    assert_eq!(store.path().metadata().unwrap().mode() & 0o777, 0o600);

    let outcome = Outcome { status: "error".into(), error: Some("no".into()), ended_at: at("2026-12-01T03:26:30Z") };
    lock(&store).finish("75d3b147a785", &outcome, &zone).unwrap();
    let rep = job(&fs::read_to_string(store.path()).unwrap(), "75d3b147a785");
    assert_eq!(rep["next_run_at"], "2026-12-01T03:36:30+00:00", "counted from the end of the run");
    assert_eq!((&rep["repeat"], &rep["failure_streak"]), (&json!({"times": 3, "completed": 1}), &json!(1)));
    assert_eq!((&rep["last_failure"]["detail"], &rep["fire_claim"]), (&json!("no"), &json!(null)));
}

#[test]
fn a_job_that_was_claimed_is_not_due_again() {
    let jobs = json!({"jobs": [due("a", json!({"kind": "interval", "minutes": 1}), "2026-12-01T00:00:00Z")]});
    let (_home, store) = store(&jobs.to_string());
    let now = at("2026-12-01T00:00:10Z");
    std::thread::scope(|scope| {
        let claims: Vec<_> =
            (0..8).map(|_| scope.spawn(|| lock(&store).claim(&["a"], now, &TimeZone::UTC).unwrap().len())).collect();
        let won: usize = claims.into_iter().map(|claim| claim.join().unwrap()).sum();
        assert_eq!(won, 1);
    });
}

#[test]
fn a_claim_of_a_dead_process_holds_nothing_back() {
    let mut record = due("a", json!({"kind": "interval", "minutes": 1}), "2026-12-01T00:00:00Z");
    let claim = |by: String| json!({"at": "2026-12-01T00:00:00Z", "by": by});
    let host = crate::cron::claim::host();
    for (by, count) in [
        (format!("{host}:{}:x", std::process::id()), 0),
        (format!("{host}:4000000:x"), 1),
        ("elsewhere:1:x".to_owned(), 0),
    ] {
        record["fire_claim"] = claim(by.clone());
        let (_home, store) = store(&json!([record]).to_string());
        assert_eq!(plan(&store, "2026-12-01T00:01:00Z").due.len(), count, "{by}");
        assert_eq!(plan(&store, "2026-12-01T00:06:00Z").due.len(), 1, "{by}: over after 300 s");
    }
}

#[test]
fn a_one_shot_runs_once_or_is_retired() {
    let once = |at: &str| json!({"kind": "once", "run_at": at});
    let jobs = json!([
        due("in-time", once("2026-12-01T00:00:00Z"), "2026-12-01T00:00:00Z"),
        due("late", once("2026-11-30T00:00:00Z"), "2026-11-30T00:00:00Z"),
    ]);
    let (_home, store) = store(&jobs.to_string());
    let (now, zone) = (at("2026-12-01T00:01:00Z"), TimeZone::UTC);
    let seen = plan(&store, "2026-12-01T00:01:00Z");
    assert_eq!(seen.due.len(), 1);
    assert!(matches!(seen.repairs.as_slice(), [Repair::Retire { id, .. }] if id == "late"));
    assert_eq!(lock(&store).repair(now, &zone).unwrap().len(), 1);
    assert_eq!(lock(&store).claim(&["in-time"], now, &zone).unwrap().len(), 1);
    let outcome = Outcome { status: "ok".into(), error: None, ended_at: now };
    lock(&store).finish("in-time", &outcome, &zone).unwrap();
    let text = fs::read_to_string(store.path()).unwrap();
    let jobs: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    assert_eq!((&jobs[0]["state"], &jobs[0]["repeat"]["completed"]), (&json!("completed"), &json!(1)));
    assert_eq!((&jobs[1]["state"], &jobs[1]["enabled"]), (&json!("error"), &json!(false)));
    let later = plan(&store, "2026-12-09T00:00:00Z");
    assert_eq!(later.repairs, [Repair::Prune { id: "in-time".into() }]);
    lock(&store).repair(at("2026-12-09T00:00:00Z"), &zone).unwrap();
    assert_eq!(
        serde_json::from_str::<Vec<serde_json::Value>>(&fs::read_to_string(store.path()).unwrap()).unwrap().len(),
        1
    );
}

#[test]
fn lateness_decides_how_a_run_is_called_and_an_edited_expression_is_not_fired() {
    let jobs = json!([
        due("catch-up", json!({"kind": "interval", "minutes": 10}), "2026-12-01T00:00:00Z"),
        due("edited", json!({"kind": "cron", "expr": "30 5 * * *"}), "2026-12-01T00:00:00Z"),
        due("moved-zone", json!({"kind": "cron", "expr": "0 1 * * *"}), "2026-12-01T01:00:00+01:00"),
    ]);
    let (_home, store) = store(&jobs.to_string());
    let seen = plan(&store, "2026-12-01T00:20:00Z");
    let kinds: Vec<_> = seen.due.iter().map(|due| (due.id.as_str(), due.kind)).collect();
    assert_eq!(kinds, [("catch-up", "catch_up"), ("moved-zone", "late")]);
    assert_eq!(seen.repairs, [Repair::Reschedule { id: "edited".into(), next: at("2026-12-01T05:30:00Z") }]);
}

#[test]
fn a_bad_record_costs_no_other_and_stays_as_it_is() {
    let good = due("good", json!({"kind": "interval", "minutes": 1}), "2026-12-01T00:00:00Z");
    let mut records = vec![json!(7), json!(null), json!("x"), json!([]), json!({"id": "../x"}), json!({"id": 5})];
    for (key, value) in [
        ("schedule", json!("daily")),
        ("schedule", json!({"kind": "interval", "minutes": 0})),
        ("schedule", json!({"kind": "cron", "expr": "x"})),
        ("next_run_at", json!(12)),
        ("next_run_at", json!("soon")),
        ("enabled", json!("yes")),
        ("no_agent", json!("true")),
        ("script", json!(["a"])),
        ("repeat", json!(3)),
    ] {
        let mut record =
            due(&format!("bad{}", records.len()), json!({"kind": "interval", "minutes": 1}), "2026-12-01T00:00:00Z");
        record[key] = value;
        records.push(record);
    }
    records.push(good.clone());
    records.push(good);
    let (_home, store) = store(&json!({"jobs": records}).to_string());
    let seen = plan(&store, "2026-12-01T00:00:10Z");
    assert_eq!(seen.due.len(), 1);
    assert_eq!(seen.bad.len(), records.len() - 1, "{:#?}", seen.bad);
    lock(&store).claim(&["good"], at("2026-12-01T00:00:10Z"), &TimeZone::UTC).unwrap();
    let after: serde_json::Value = serde_json::from_str(&fs::read_to_string(store.path()).unwrap()).unwrap();
    assert_eq!(after["jobs"].as_array().unwrap()[..15], records[..15]);
}

#[test]
fn what_is_no_list_of_jobs_is_an_error_and_never_written() {
    for bad in ["", "{", "7", "null", "\u{0}", "[1,"] {
        let (_home, store) = store(bad);
        assert!(store.look(at("2026-12-01T00:00:00Z"), &TimeZone::UTC, ALIVE).is_err(), "{bad:?}");
        assert!(lock(&store).repair(at("2026-12-01T00:00:00Z"), &TimeZone::UTC).is_err());
        assert_eq!(fs::read_to_string(store.path()).unwrap(), bad);
    }
    let home = tempfile::tempdir().unwrap();
    let store = Store::new(home.path().to_owned());
    fs::create_dir(store.path()).unwrap();
    let look = store.look(at("2026-12-01T00:00:00Z"), &TimeZone::UTC, ALIVE);
    assert!(look.unwrap_err().to_string().contains("no regular file"));
}

#[test]
fn a_symbolic_link_stays_one() {
    let (home, store) = store("[]");
    let real = home.path().join("real.json");
    fs::rename(store.path(), &real).unwrap();
    std::os::unix::fs::symlink(&real, store.path()).unwrap();
    lock(&store).update("now", |_, changes| changes.append("n", "{\"id\": \"n\"}")).unwrap();
    assert!(fs::symlink_metadata(store.path()).unwrap().is_symlink());
    assert!(fs::read_to_string(&real).unwrap().contains("\"n\""));
}

#[test]
fn a_lock_that_another_has_is_waited_for_and_named() {
    let (_home, store) = store("[]");
    let held = lock(&store);
    let error = store.lock(Duration::from_millis(60)).unwrap_err().to_string();
    assert!(error.contains(".jobs.lock"), "{error}");
    drop(held);
    assert!(store.try_tick_lock().unwrap().is_some());
}

/// `cargo test --release -- --ignored ten_thousand --nocapture` prints the time.
#[test]
#[ignore = "a measurement"]
fn a_scan_of_ten_thousand_jobs() {
    let file: serde_json::Value = serde_json::from_str(EXAMPLE).unwrap();
    let mut jobs = Vec::new();
    for n in 0..10_000 {
        let mut job = file["jobs"][n % 6].clone();
        job["id"] = json!(format!("{n:012x}"));
        jobs.push(job);
    }
    let (_home, store) = store(&serde_json::to_string_pretty(&json!({"jobs": jobs})).unwrap());
    let clock = Clock::system();
    for _ in 0..5 {
        let begin = clock.now();
        let plan = plan(&store, "2026-12-01T03:00:00Z");
        println!("{:?} for {} jobs", clock.now().since(begin), jobs.len());
        assert!(plan.due.is_empty());
    }
}
