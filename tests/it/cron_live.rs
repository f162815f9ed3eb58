//! Script jobs really run, and what a run leaves on disk is what the contract says.

use std::fs;
use std::os::unix::fs::symlink;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{
    Child, Home, NeverIdle, Opts, SOON, TOKEN, WAITING_SCRIPT, busy, due, files_ending, gone, home_with_waiting_job,
    idle, instant, iso_from_now, job, kill_pid, locked, mode, private_dir, wait_until,
};

fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}

/// A home with one due job that runs this script.
fn home_running(id: &str, script: &str) -> Home {
    let home = Home::new();
    home.script("job.sh", script);
    home.write_jobs(&[due(id, "job.sh")]);
    home
}

fn text<'a>(job: &'a Value, key: &str) -> &'a str {
    job[key].as_str().unwrap_or_else(|| panic!("{key} is no text in {job}"))
}

#[test]
fn a_successful_run_is_written_back() {
    let home = home_running("good-job", "echo hello from the job\n");
    let before = now();
    let child = Child::spawn(&home, &Opts::desktop());
    let job = home.wait_status("good-job", "ok");
    assert_eq!(job["last_error"], Value::Null);
    assert_eq!(job["failure_streak"], 0);
    assert_eq!((&job["enabled"], &job["state"]), (&json!(true), &json!("scheduled")));
    let ran = instant(&job["last_run_at"]);
    assert!(ran.as_second() >= before.as_second() - 1 && ran <= now(), "last_run_at {ran}");
    let next = instant(&job["next_run_at"]).as_second() - ran.as_second();
    assert!((3590..=3610).contains(&next), "an hour after the run's end, not {next} s");
    assert_eq!(mode(&home.jobs_path()), 0o600);
    child.wait_idle();
}

#[test]
fn the_output_of_a_run_is_kept_in_a_private_file() {
    let home = home_running("good-job", "echo hello from the job\n");
    let child = Child::spawn(&home, &Opts::desktop());
    home.wait_status("good-job", "ok");
    child.wait_idle();
    let folder = home.path().join("cron/output/good-job");
    let files = files_ending(&folder, ".md");
    assert_eq!(files.len(), 1, "{files:?}");
    let name = files[0].file_stem().unwrap().to_str().unwrap();
    let shape: String = name.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    assert_eq!(shape, "0000-00-00_00-00-00", "{name}");
    assert_eq!((mode(&files[0]), mode(&folder)), (0o600, 0o700));
    let output = fs::read_to_string(&files[0]).unwrap();
    assert!(output.starts_with("# Cron Job: good-job\n"), "{output}");
    assert!(output.contains("**Job ID:** good-job"), "{output}");
    assert!(output.contains("hello from the job"), "{output}");
}

#[test]
fn the_next_run_is_on_disk_before_the_job_starts() {
    // The job itself copies the file, first thing.
    let script = format!("cp \"$HERMES_HOME/cron/jobs.json\" \"$HERMES_HOME/seen.json\"\n{WAITING_SCRIPT}");
    let home = home_running("advance", &script);
    let start = now();
    let child = Child::spawn(&home, &Opts::desktop());
    home.pid_in("pid");
    let seen: Value = serde_json::from_str(&home.read("seen.json")).expect("the copy is JSON");
    assert!(instant(&seen["jobs"][0]["next_run_at"]) > start, "{seen}");
    assert!(instant(&home.job_on_disk("advance")["next_run_at"]) > start);
    assert_eq!(child.verdict(), busy("cron:advance"));
    home.touch("release");
    home.wait_status("advance", "ok");
}

#[test]
fn a_job_sees_its_id_and_home_but_no_secret() {
    let script = r#"
env > "$HERMES_HOME/env.tmp"
echo "$(cut -d' ' -f5 /proc/$$/stat) $$" > "$HERMES_HOME/ids"
pwd -P > "$HERMES_HOME/cwd"
cat > "$HERMES_HOME/stdin" 2>/dev/null
mv "$HERMES_HOME/env.tmp" "$HERMES_HOME/env.txt"
"#;
    let home = home_running("environment", script);
    let opts = Opts::desktop().env("HERMES_CONTROL_TOKEN", "the-control-token").env("AN_ORDINARY_NAME", "kept");
    let _child = Child::spawn(&home, &opts);
    home.wait_status("environment", "ok");
    let environment = home.read("env.txt");
    let has = |line: &str| environment.lines().any(|entry| entry == line);
    assert!(has("HERMES_CRON_JOB_ID=environment"), "{environment}");
    assert!(has(&format!("HERMES_HOME={}", home.path().display())), "{environment}");
    assert!(has("AN_ORDINARY_NAME=kept"), "{environment}");
    assert!(!environment.contains(TOKEN) && !environment.contains("the-control-token"), "{environment}");
    let ids = home.read("ids");
    let ids: Vec<&str> = ids.split_whitespace().collect();
    assert_eq!(ids[0], ids[1], "a process group of its own");
    assert_eq!(home.read("cwd").trim(), home.path().join("scripts").to_str().unwrap());
    assert_eq!(home.read("stdin"), "", "nothing to read");
}

#[test]
fn a_failing_job_keeps_its_code_and_output_in_last_error() {
    let home = home_running("bad-exit", "echo said on stdout\necho the real problem >&2\nexit 3\n");
    let child = Child::spawn(&home, &Opts::desktop());
    let job = home.wait_status("bad-exit", "error");
    let error = text(&job, "last_error");
    assert!(error.contains('3') && error.contains("the real problem") && error.contains("said on stdout"), "{error}");
    assert_eq!(job["failure_streak"], 1);
    assert_eq!(job["enabled"], true);
    assert!(job["last_failure"]["detail"].as_str().is_some_and(|detail| detail.contains("the real problem")), "{job}");
    instant(&job["last_failure"]["at"]);
    assert!(instant(&job["next_run_at"]) > now());
    child.wait_idle();
}

#[test]
fn a_job_that_runs_too_long_is_ended_with_its_whole_group() {
    let script = r#"
sleep 300 & echo $! > "$HERMES_HOME/background"
echo $$ > "$HERMES_HOME/pid"
sleep 300
"#;
    let home = home_running("too-long", script);
    let child = Child::spawn(&home, &Opts::desktop().env("HERMES_CRON_SCRIPT_TIMEOUT", "1"));
    let job = home.wait_status("too-long", "error");
    assert!(text(&job, "last_error").contains("timed out"), "{job}");
    let (leader, background) = (home.pid_in("pid"), home.pid_in("background"));
    wait_until("the end of the group", SOON, || gone(leader) && gone(background));
    child.wait_idle();
}

#[test]
fn a_group_that_ignores_sigterm_is_killed() {
    let script = r#"
trap '' TERM
echo $$ > "$HERMES_HOME/pid"
while true; do sleep 0.1; done
"#;
    let home = home_running("stubborn", script);
    let child = Child::spawn(&home, &Opts::desktop().env("HERMES_CRON_SCRIPT_TIMEOUT", "1"));
    let job = home.wait_status("stubborn", "error");
    assert!(text(&job, "last_error").contains("timed out"), "{job}");
    let pid = home.pid_in("pid");
    wait_until("the end of a job that ignores SIGTERM", SOON, || gone(pid));
    child.wait_idle();
}

#[test]
fn a_background_process_of_the_group_keeps_the_run_going() {
    let script = r#"
sleep 300 >/dev/null 2>&1 </dev/null & echo $! > "$HERMES_HOME/background"
echo $$ > "$HERMES_HOME/pid"
"#;
    let home = home_running("group", script);
    let child = Child::spawn(&home, &Opts::desktop());
    let (leader, background) = (home.pid_in("pid"), home.pid_in("background"));
    wait_until("the leader's end", SOON, || gone(leader));
    child.holds("its group lives", 30, |verdict| *verdict == busy("cron:group"));
    kill_pid(background);
    child.wait_idle();
    assert!(!home.job_on_disk("group")["last_status"].is_null(), "the result is on disk before the entry goes");
}

#[test]
fn a_process_that_left_the_group_is_held_as_a_stray_without_a_gap() {
    let script = r#"
setsid sleep 300 >/dev/null 2>&1 </dev/null &
stray=$!
while [ "$(cut -d' ' -f6 /proc/$stray/stat)" = "$(cut -d' ' -f6 /proc/$$/stat)" ]; do sleep 0.01; done
echo $stray > "$HERMES_HOME/stray"
"#;
    let home = home_running("leaver", script);
    let child = Child::spawn(&home, &Opts::desktop());
    let never = NeverIdle::watch(&child);
    let stray = home.pid_in("stray");
    child.wait_busy(&format!("process:{stray}"));
    child.holds("the stray lives", 30, |verdict| *verdict == busy(&format!("process:{stray}")));
    never.finish();
    assert_eq!(home.job_on_disk("leaver")["last_status"], "ok", "the run itself is over");
    kill_pid(stray);
    child.wait_idle();
}

#[test]
fn a_stray_is_ended_with_the_child() {
    let script = r#"
setsid sleep 300 >/dev/null 2>&1 </dev/null &
stray=$!
while [ "$(cut -d' ' -f6 /proc/$stray/stat)" = "$(cut -d' ' -f6 /proc/$$/stat)" ]; do sleep 0.01; done
echo $stray > "$HERMES_HOME/stray"
"#;
    let home = home_running("leaver", script);
    let mut child = Child::spawn(&home, &Opts::desktop());
    let stray = home.pid_in("stray");
    child.wait_busy(&format!("process:{stray}"));
    assert_eq!(child.terminate().code(), Some(0), "{}", child.logs());
    wait_until("the stray's end", SOON, || gone(stray));
}

#[test]
fn unknown_fields_are_kept_byte_for_byte() {
    let home = Home::new();
    home.script("ok.sh", "true\n");
    let unknown = r#"{"z":1.50,"a":[1e2,"é\u00e9\/"],"big":123456789012345678901234567890,"n":null}"#;
    let record = serde_json::to_string(&due("keeper", "ok.sh")).unwrap();
    let record = record.strip_prefix('{').unwrap().strip_suffix('}').unwrap();
    let file = format!(
        "{{\"x_top\":{unknown},\"jobs\":[{{\"x_first\":{unknown},{record},\"x_last\":{unknown}}}],\"x_end\":{unknown}}}"
    );
    home.write_jobs_text(&file);
    let _child = Child::spawn(&home, &Opts::desktop());
    home.wait_status("keeper", "ok");
    let after = home.jobs_text();
    assert_eq!(after.matches(unknown).count(), 4, "{after}");
    let at = |key: &str| after.find(&format!("\"{key}\"")).unwrap_or_else(|| panic!("{key} is gone: {after}"));
    let order = ["x_top", "jobs", "x_first", "created_at", "workdir", "x_last", "x_end"].map(at);
    assert!(order.is_sorted(), "the order of the fields changed: {after}");
}

#[test]
fn a_file_that_is_not_json_is_never_written_and_costs_nothing() {
    for garbage in ["{\"jobs\": [", "not json at all\n", "", "7", "\0\0\0"] {
        let home = Home::new();
        home.script("wait.sh", WAITING_SCRIPT);
        home.write_jobs_text(garbage);
        let mut child = Child::spawn(&home, &Opts::desktop());
        child.wait_idle();
        child.holds("garbage is no work", 10, |verdict| *verdict == idle());
        assert_eq!(home.jobs_text(), garbage);
        // Put right, it is read again.
        home.write_jobs(&[due("repaired", "wait.sh")]);
        child.wait_busy("cron:repaired");
        home.write_jobs_text(garbage);
        home.touch("release");
        child.wait_idle();
        assert_eq!(home.jobs_text(), garbage, "the result of a run did not overwrite it either");
        assert_eq!(child.terminate().code(), Some(0));
        assert_eq!(home.jobs_text(), garbage);
    }
}

#[test]
fn a_bad_job_costs_no_other_job_and_stays_as_it_is() {
    let home = Home::new();
    home.script("ok.sh", "echo \"$HERMES_CRON_JOB_ID\" >> \"$HERMES_HOME/ran\"\n");
    let bad = [
        r#"{"id":"bad-one","script":"ok.sh","no_agent":true,"enabled":true,"schedule":{"kind":"interval","minutes":"many"},"next_run_at":"2020-01-01T00:00:00+00:00"}"#,
        r#"{"id":"../evil","script":"ok.sh","no_agent":true,"enabled":true,"schedule":{"kind":"interval","minutes":60},"next_run_at":"2020-01-01T00:00:00+00:00"}"#,
        r#"{"id":7,"script":["ok.sh"],"no_agent":"perhaps","schedule":"hourly"}"#,
        "42",
        "null",
    ];
    let good = serde_json::to_string(&due("good-one", "ok.sh")).unwrap();
    home.write_jobs_text(&format!("{{\"jobs\":[{},{good}]}}", bad.join(",")));
    let child = Child::spawn(&home, &Opts::desktop());
    home.wait_status("good-one", "ok");
    child.wait_idle();
    let after = home.jobs_text();
    for record in bad {
        assert!(after.contains(record), "{record} was changed: {after}");
    }
    assert_eq!(home.read("ran"), "good-one\n");
    wait_until("a report of the bad job", SOON, || child.stderr().contains("bad-one"));
    assert!(!home.path().join("cron/evil").exists());
}

#[test]
fn an_agent_job_is_recorded_as_failed_and_never_silently_skipped() {
    let home = Home::new();
    let mut agent = due("agent-job", "");
    agent["script"] = Value::Null;
    agent["no_agent"] = json!(false);
    agent["prompt"] = json!("summarise the news");
    home.write_jobs(&[agent]);
    let child = Child::spawn(&home, &Opts::desktop());
    let job = home.wait_status("agent-job", "error");
    assert!(text(&job, "last_error").to_lowercase().contains("agent"), "{job}");
    assert!(instant(&job["next_run_at"]) > now());
    child.wait_idle();
}

#[test]
fn a_script_outside_the_scripts_folder_is_blocked() {
    let home = Home::new();
    let evil = home.path().join("evil.sh");
    fs::write(&evil, "touch \"$HERMES_HOME/escaped\"\n").unwrap();
    private_dir(&home.path().join("scripts"));
    symlink(&evil, home.path().join("scripts/link.sh")).unwrap();
    home.write_jobs(&[due("dots", "../evil.sh"), due("absolute", evil.to_str().unwrap()), due("link", "link.sh")]);
    let child = Child::spawn(&home, &Opts::desktop());
    for id in ["dots", "absolute", "link"] {
        let job = home.wait_status(id, "error");
        assert!(text(&job, "last_error").starts_with("Blocked: "), "{job}");
    }
    child.wait_idle();
    assert!(!home.file("escaped").exists());
}

#[test]
fn a_missing_script_is_an_error_that_names_it() {
    let home = Home::new();
    private_dir(&home.path().join("scripts"));
    home.write_jobs(&[due("missing", "not-there.sh")]);
    let child = Child::spawn(&home, &Opts::desktop());
    let job = home.wait_status("missing", "error");
    assert!(text(&job, "last_error").contains("not-there.sh"), "{job}");
    child.wait_idle();
}

#[test]
fn a_script_job_without_a_script_is_paused_with_a_reason() {
    let home = Home::new();
    let mut none = due("none", "");
    none["script"] = Value::Null;
    home.write_jobs(&[none, due("empty", "")]);
    let child = Child::spawn(&home, &Opts::desktop());
    for id in ["none", "empty"] {
        wait_until("the job is paused", SOON, || home.job_on_disk(id)["state"] == "paused");
        let job = home.job_on_disk(id);
        assert_eq!(job["enabled"], false, "{job}");
        assert!(!text(&job, "paused_reason").is_empty(), "{job}");
        instant(&job["paused_at"]);
    }
    child.wait_idle();
}

#[test]
fn a_change_of_the_file_is_picked_up_while_running() {
    let home = Home::new();
    home.script("ok.sh", "true\n");
    let child = Child::spawn(&home, &Opts::desktop());
    child.wait_idle();
    // The folder did not exist when the child started.
    home.write_jobs(&[due("by-rename", "ok.sh")]);
    home.wait_status("by-rename", "ok");
    child.wait_idle();
    // By rename again, now that the folder is there.
    home.write_jobs(&[due("again", "ok.sh")]);
    home.wait_status("again", "ok");
    child.wait_idle();
    // And in place.
    fs::write(home.jobs_path(), serde_json::to_vec(&json!({"jobs": [due("in-place", "ok.sh")]})).unwrap()).unwrap();
    home.wait_status("in-place", "ok");
    child.wait_idle();
}

#[test]
fn a_job_due_in_two_seconds_runs_by_itself() {
    let home = Home::new();
    home.script("ok.sh", "true\n");
    home.write_jobs(&[job("soon", 60, "ok.sh", &iso_from_now(2))]);
    let child = Child::spawn(&home, &Opts::desktop());
    let job = home.wait_status("soon", "ok");
    assert!(instant(&job["last_run_at"]) <= now());
    child.wait_idle();
}

#[test]
fn a_job_that_is_overdue_beyond_grace_runs_once() {
    let home = Home::new();
    home.script("ok.sh", "echo x >> \"$HERMES_HOME/ran\"\n");
    home.write_jobs(&[job("overdue", 10, "ok.sh", &iso_from_now(-86_400))]);
    let child = Child::spawn(&home, &Opts::desktop());
    let job = home.wait_status("overdue", "ok");
    child.wait_idle();
    assert!(instant(&job["next_run_at"]) > now(), "{job}");
    assert_eq!(home.read("ran"), "x\n", "missed runs are not replayed");
}

#[test]
fn jobs_that_may_not_run_do_not_run() {
    let home = Home::new();
    home.script("no.sh", "echo \"$HERMES_CRON_JOB_ID\" >> \"$HERMES_HOME/ran\"\n");
    home.script("ok.sh", "true\n");
    let mut disabled = due("disabled", "no.sh");
    disabled["enabled"] = json!(false);
    let mut paused = due("paused", "no.sh");
    paused["state"] = json!("paused");
    paused["paused_at"] = json!(iso_from_now(-60));
    let mut completed = due("completed", "no.sh");
    completed["state"] = json!("completed");
    let mut late = due("late-one-shot", "no.sh");
    let run_at = iso_from_now(-600);
    late["schedule"] = json!({"kind": "once", "run_at": run_at, "display": "once"});
    late["repeat"] = json!({"times": 1, "completed": 0});
    late["next_run_at"] = json!(run_at);
    let mut missing = due("no-next-run", "no.sh");
    missing["next_run_at"] = Value::Null;
    home.write_jobs(&[disabled, paused, completed, late, missing, due("good", "ok.sh")]);
    let child = Child::spawn(&home, &Opts::desktop());
    home.wait_status("good", "ok");
    child.wait_idle();
    assert_eq!(home.read("ran"), "");
    assert!(instant(&home.job_on_disk("no-next-run")["next_run_at"]) > now(), "computed, not fired");
}

#[test]
fn a_one_shot_runs_once_and_is_completed() {
    let home = Home::new();
    home.script("ok.sh", "echo x >> \"$HERMES_HOME/ran\"\n");
    let run_at = iso_from_now(-5);
    let mut once = due("once", "ok.sh");
    once["schedule"] = json!({"kind": "once", "run_at": run_at, "display": "once"});
    once["repeat"] = json!({"times": 1, "completed": 0});
    once["next_run_at"] = json!(run_at);
    home.write_jobs(&[once]);
    let child = Child::spawn(&home, &Opts::desktop());
    let job = home.wait_status("once", "ok");
    assert_eq!(
        (&job["enabled"], &job["state"], &job["next_run_at"]),
        (&json!(false), &json!("completed"), &Value::Null)
    );
    assert_eq!(job["repeat"]["completed"], 1);
    child.wait_idle();
    assert_eq!(home.read("ran"), "x\n");
}

#[test]
fn a_job_deleted_while_it_runs_stays_deleted_and_an_edit_of_another_is_kept() {
    let home = home_with_waiting_job("deleted");
    let child = Child::spawn(&home, &Opts::desktop());
    home.pid_in("pid");
    let mut other = job("other", 60, "wait.sh", &iso_from_now(3600));
    other["name"] = json!("edited meanwhile");
    home.write_jobs(&[other]);
    home.touch("release");
    child.wait_idle();
    assert_eq!(home.job_on_disk("deleted"), Value::Null);
    assert_eq!(home.job_on_disk("other")["name"], "edited meanwhile");
}

#[test]
fn a_running_job_is_not_started_again() {
    let home = home_with_waiting_job("once-at-a-time");
    let child = Child::spawn(&home, &Opts::desktop());
    home.pid_in("pid");
    home.write_jobs(&[due("once-at-a-time", "wait.sh")]);
    child.holds("one run", 30, |verdict| *verdict == busy("cron:once-at-a-time"));
    assert_eq!(home.read("started").lines().count(), 1);
}

#[test]
fn a_job_due_under_a_permit_starts_only_after_cancel() {
    let home = Home::new();
    home.script("wait.sh", WAITING_SCRIPT);
    let child = Child::spawn(&home, &Opts::desktop());
    child.wait_idle();
    let permit = child.retirement(r#"{"action":"prepare"}"#).json()["token"].as_str().expect("a permit").to_owned();
    home.write_jobs(&[due("held-back", "wait.sh")]);
    child.holds("nothing starts under a permit", 50, |verdict| *verdict == idle());
    assert!(!home.file("started").exists());
    let cancel = format!(r#"{{"action":"cancel","token":"{permit}"}}"#);
    assert_eq!(child.retirement(&cancel).json()["ok"], true);
    child.wait_busy("cron:held-back");
}

#[test]
fn after_kill_nine_in_mid_job_the_survivor_keeps_the_new_child_busy() {
    let script = "echo x >> \"$HERMES_HOME/started\"\necho $$ > \"$HERMES_HOME/pid\"\nexec sleep 300\n";
    let home = home_running("survivor", script);
    let mut first = Child::spawn(&home, &Opts::desktop());
    first.wait_busy("cron:survivor");
    let survivor = home.pid_in("pid");
    first.kill_hard();
    assert!(!gone(survivor), "nobody took it along");
    let second = Child::spawn(&home, &Opts::desktop());
    assert_eq!(second.verdict(), busy(&format!("process:{survivor}")), "the first probe after READY");
    // It holds back the next run of its job.
    home.write_jobs(&[due("survivor", "job.sh")]);
    second.holds("the survivor lives", 30, |verdict| *verdict == busy(&format!("process:{survivor}")));
    assert_eq!(home.read("started"), "x\n");
    home.write_jobs(&[job("survivor", 60, "job.sh", &iso_from_now(3600))]);
    kill_pid(survivor);
    second.wait_idle();
    assert_eq!(home.read("started"), "x\n", "a crash skips, it does not repeat");
}

#[test]
fn sigterm_records_a_running_job_as_interrupted() {
    let home = home_with_waiting_job("cut-short");
    let mut child = Child::spawn(&home, &Opts::desktop());
    let pid = home.pid_in("pid");
    assert_eq!(child.terminate().code(), Some(0), "{}", child.logs());
    assert!(gone(pid), "the job outlived its child");
    let job = home.job_on_disk("cut-short");
    assert_eq!(job["last_status"], "interrupted", "{job}");
    assert_eq!(job["last_error"], "Interrupted by shutdown before terminal completion.");
    assert!(instant(&job["next_run_at"]) > now(), "its next run stays as advanced");
    home.assert_no_endpoint_left();
}

#[test]
fn a_job_that_ends_within_the_grace_is_not_interrupted() {
    let home = home_with_waiting_job("in-time");
    let mut child = Child::spawn(&home, &Opts::desktop().env("HERMES_SHUTDOWN_GRACE", "15"));
    home.pid_in("pid");
    child.signal(Signal::SIGTERM);
    home.touch("release");
    assert_eq!(child.wait_exit(Duration::from_secs(30)).code(), Some(0));
    assert_eq!(home.job_on_disk("in-time")["last_status"], "ok");
}

#[test]
fn two_children_on_one_home_run_a_due_job_exactly_once() {
    let home = Home::new();
    home.script("count.sh", "echo x >> \"$HERMES_HOME/ran-$HERMES_CRON_JOB_ID\"\n");
    let ids = ["j1", "j2", "j3", "j4", "j5"];
    home.write_jobs(&ids.map(|id| due(id, "count.sh")));
    let other_runtime = home.root().join("r2");
    private_dir(&other_runtime);
    // They run here: the second runtime directory keeps them from seeing each other.
    let (one, two) = thread::scope(|scope| {
        let one = scope.spawn(|| Child::spawn(&home, &Opts::desktop()));
        let two = scope.spawn(|| Child::spawn(&home, &Opts::desktop().env("HERMES_RUNTIME_DIR", &other_runtime)));
        (one.join().expect("the first"), two.join().expect("the second"))
    });
    for id in ids {
        home.wait_status(id, "ok");
    }
    one.wait_idle();
    two.wait_idle();
    // And once more, while both are up and both see the change of the file.
    home.write_jobs(&ids.map(|id| due(id, "count.sh")));
    for id in ids {
        wait_until("the second run", SOON, || home.read(&format!("ran-{id}")).lines().count() >= 2);
        home.wait_status(id, "ok");
    }
    one.wait_idle();
    two.wait_idle();
    for id in ids {
        assert_eq!(home.read(&format!("ran-{id}")), "x\nx\n", "{id}");
    }
}

#[test]
fn a_flood_of_output_is_bounded() {
    let home = home_running("flood", "head -c 20000000 /dev/zero | tr '\\0' 'a'\n");
    let child = Child::spawn(&home, &Opts::desktop());
    home.wait_status("flood", "ok");
    child.wait_idle();
    let files = files_ending(&home.path().join("cron/output/flood"), ".md");
    assert_eq!(files.len(), 1);
    let kept = fs::metadata(&files[0]).unwrap().len();
    assert!((1_000_000..2_200_000).contains(&kept), "1 MiB is kept, not {kept}");
}

#[test]
fn jobs_by_python_and_of_an_own_work_folder_run() {
    let home = Home::new();
    home.script("where.py", "import os\nopen(os.environ['HERMES_HOME'] + '/where', 'w').write(os.getcwd())\n");
    let mut python = due("python", "where.py");
    let folder = home.root().join("work");
    private_dir(&folder);
    python["workdir"] = json!(folder);
    home.write_jobs(&[python]);
    let _child = Child::spawn(&home, &Opts::desktop());
    home.wait_status("python", "ok");
    assert_eq!(home.read("where"), folder.to_str().unwrap());
}

#[test]
fn a_stray_is_still_work_for_whoever_comes_after_a_kill() {
    let home = Home::new();
    home.script(
        "stray.sh",
        "setsid sleep 300 </dev/null >/dev/null 2>&1 &\necho $! > \"$HERMES_HOME/stray\"\nsleep 0.2\n",
    );
    home.write_jobs(&[due("leaver", "stray.sh")]);
    let mut child = Child::spawn(&home, &Opts::desktop());
    let stray = home.pid_in("stray");
    home.wait_status("leaver", "ok");
    child.wait_busy(&format!("process:{stray}"));
    child.kill_hard();
    let mut next = Child::spawn(&home, &Opts::desktop());
    next.wait_busy(&format!("process:{stray}"));
    assert_eq!(next.terminate().code(), Some(0));
    wait_until("the stray to be ended with it", SOON, || gone(stray));
}

#[test]
fn what_a_survivor_starts_later_is_work_too() {
    for (name, line) in [("group", "sleep 300 &"), ("session", "setsid sleep 300 </dev/null >/dev/null 2>&1 &")] {
        let home = Home::new();
        let script = format!(
            "echo $$ > \"$HERMES_HOME/pid\"\nwhile [ ! -e \"$HERMES_HOME/go\" ]; do sleep 0.05; done\n\
             {line}\necho $! > \"$HERMES_HOME/later\"\nsleep 0.3\n"
        );
        home.script("later.sh", &script);
        home.write_jobs(&[due("job", "later.sh")]);
        let mut child = Child::spawn(&home, &Opts::desktop());
        let leader = home.pid_in("pid");
        child.kill_hard();
        let next = Child::spawn(&home, &Opts::desktop());
        let watch = crate::support::NeverIdle::watch(&next);
        home.touch("go");
        let later = home.pid_in("later");
        wait_until("the leader to end", SOON, || gone(leader));
        next.wait_verdict(name, |verdict| verdict["detail"].as_str().is_some_and(|d| d.contains(&later.to_string())));
        watch.finish();
        crate::support::kill_pid(later);
        next.wait_idle();
        home.wait_status("job", "interrupted");
    }
}

#[test]
fn a_result_that_cannot_be_written_is_kept_and_written_later() {
    let home = home_with_waiting_job("job");
    let mut child = Child::spawn(&home, &Opts::desktop());
    child.wait_busy("cron:job");
    let good = home.jobs_text();
    home.write_jobs_text("garbage");
    home.touch("release");
    // Shutting down does not wait for the file to be mended.
    wait_until("the script to end", SOON, || gone(home.pid_in("pid")));
    assert_eq!(child.terminate().code(), Some(0));
    home.write_jobs_text(&good);
    let _next = Child::spawn(&home, &Opts::desktop());
    let job = home.wait_status("job", "ok");
    assert_eq!(job["fire_claim"], serde_json::Value::Null);
}

#[test]
fn a_lock_that_somebody_else_holds_does_not_hold_up_the_exit() {
    let home = home_with_waiting_job("job");
    let mut child = Child::spawn(&home, &Opts::desktop());
    child.wait_busy("cron:job");
    let lock = locked(&home.file("cron/.jobs.lock"));
    home.touch("release");
    wait_until("the script to end", SOON, || gone(home.pid_in("pid")));
    let begun = std::time::Instant::now();
    assert_eq!(child.terminate().code(), Some(0));
    assert!(begun.elapsed() < Duration::from_millis(4900), "{:?}", begun.elapsed());
    drop(lock);
    let _next = Child::spawn(&home, &Opts::desktop());
    home.wait_status("job", "ok");
}

#[test]
fn a_script_that_runs_out_of_time_is_ended_with_its_whole_tree() {
    let home = Home::new();
    let script = "setsid sleep 300 </dev/null >/dev/null 2>&1 &\necho $! > \"$HERMES_HOME/stray\"\nsleep 300\n";
    home.script("slow.sh", script);
    home.write_jobs(&[due("slow", "slow.sh")]);
    let child = Child::spawn(&home, &Opts::desktop().env("HERMES_CRON_SCRIPT_TIMEOUT", "1"));
    let stray = home.pid_in("stray");
    let job = home.wait_status("slow", "error");
    assert!(job["last_error"].as_str().unwrap().contains("timed out"), "{job}");
    wait_until("the whole tree to be gone", SOON, || gone(stray));
    child.wait_idle();
}

#[test]
fn a_person_adds_runs_pauses_resumes_and_removes_a_job() {
    let home = Home::new();
    home.script("tick.sh", "echo ran >> \"$HERMES_HOME/ran\"\n");
    let _child = Child::spawn(&home, &Opts::desktop());
    let ctl = |args: &[&str]| crate::support::hermesctl(&home, &[&["cron"], args].concat());
    let added = ctl(&["add", "every 2h", "--script", "tick.sh", "--name", "tick"]);
    assert!(added.code == 0 && added.stdout.starts_with("scheduled"), "{added:?}");
    let id = ctl(&["list", "--json"]).json()[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(ctl(&["run", "TICK"]).code, 0);
    home.wait_status(&id, "ok");
    assert_eq!(home.read("ran"), "ran\n");
    let paused = ctl(&["pause", &id, "--reason", "away"]);
    assert!(paused.stdout.starts_with("paused"), "{paused:?}");
    assert_eq!(home.job_on_disk(&id)["paused_reason"], "away");
    assert!(ctl(&["resume", &id]).stdout.starts_with("scheduled"));
    let history = ctl(&["history", &id]);
    assert!(history.stdout.contains("ok") && history.stdout.contains(&id), "{history:?}");
    assert_eq!(ctl(&["remove", &id]).code, 0);
    assert_eq!(home.job_on_disk(&id), Value::Null);
    assert!(!home.file(&format!("cron/output/{id}")).exists());
    let bad = ctl(&["add", "90s", "--script", "tick.sh"]);
    assert!(bad.code == 2 && bad.stderr.contains("30m"), "{bad:?}");
    assert_eq!(ctl(&["run", "none"]).code, 4);
}

#[test]
fn what_is_no_shell_script_is_run_by_python_or_by_the_jobs_interpreter() {
    let home = Home::new();
    home.script("hello.py", "import os\nprint('python', os.environ['HERMES_CRON_JOB_ID'])\n");
    home.script("words", "#!/bin/false\nprintf 'the job said %s\\n' interpreter\n");
    let mut chosen = due("chosen", "words");
    chosen["interpreter"] = json!("/bin/sh");
    home.write_jobs(&[due("snake", "hello.py"), chosen]);
    let _child = Child::spawn(&home, &Opts::desktop());
    for (id, said) in [("snake", "python snake"), ("chosen", "the job said interpreter")] {
        home.wait_status(id, "ok");
        let output = crate::support::files_ending(&home.file(&format!("cron/output/{id}")), ".md");
        let text = fs::read_to_string(&output[0]).unwrap();
        assert!(text.contains(said), "{text}");
    }
}
