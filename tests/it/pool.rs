//! A pool of real backends: making room by proof, waiting, jobs of retired profiles, and what its own death leaves.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child as Process, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::support::{
    Home, Output, SOON, WAITING_SCRIPT, gone, hermesctl, iso_from_now, job, kill_pid, wait_until, write_jobs_in,
    write_script_in,
};

/// A running `hermes pool`.
pub(crate) struct Pool {
    home: Home,
    process: Process,
}

impl Pool {
    pub(crate) fn start(home: &Home, args: &[&str]) -> Self {
        Self::start_with(home, args, &[])
    }

    pub(crate) fn start_with(home: &Home, args: &[&str], env: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hermes"));
        command.arg("pool").args(args);
        home.environment(&mut command);
        let log = fs::OpenOptions::new().append(true).create(true).open(home.root().join("pool.log")).unwrap();
        command.envs(env.iter().copied()).stdout(Stdio::piped()).stderr(log).process_group(0);
        let mut process = command.spawn().unwrap();
        let mut line = String::new();
        let mut stdout = std::io::BufReader::new(process.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
        assert!(line.starts_with("HERMES_POOL_READY socket=/"), "{line:?}\n{}", log_of(home));
        Self { home: home.clone(), process }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.process.id().cast_signed())
    }

    pub(crate) fn ctl(&self, args: &[&str]) -> Output {
        hermesctl(&self.home, args)
    }

    pub(crate) fn report(&self) -> Value {
        let out = self.ctl(&["pool", "--json"]);
        assert_eq!(out.code, 0, "{out:?}\n{}", log_of(&self.home));
        out.json()
    }

    pub(crate) fn slot(&self, profile: &str) -> Value {
        let report = self.report();
        let slots = report["slots"].as_array().unwrap();
        slots.iter().find(|slot| slot["profile"] == profile).cloned().unwrap_or(Value::Null)
    }

    pub(crate) fn open(&self, profile: &str) -> u32 {
        let out = self.ctl(&["open", profile, "--json", "--timeout", "20s"]);
        assert_eq!(out.code, 0, "{out:?}\n{}", log_of(&self.home));
        u32::try_from(out.json()["pid"].as_u64().unwrap()).unwrap()
    }

    /// Opens, and waits until the pool has heard that it is idle.
    pub(crate) fn open_idle(&self, profile: &str) -> u32 {
        let pid = self.open(profile);
        wait_until("an idle resident", SOON, || self.slot(profile)["idle"] == true);
        pid
    }

    /// Opens a profile whose job runs until it is [released](release).
    pub(crate) fn open_busy(&self, profile: &str) -> u32 {
        with_waiting_job(&self.home, profile);
        let pid = self.open(profile);
        let started = self.home.file(&format!("profiles/{profile}/started"));
        wait_until("the job to run", SOON, || started.exists());
        pid
    }

    fn wait_for(&self, what: &str, holds: impl Fn(&Value) -> bool) {
        wait_until(&format!("the pool: {what}"), SOON, || holds(&self.report()));
    }

    pub(crate) fn opening(&self, args: &[&str]) -> Process {
        self.home.ctl(&[&["open"], args].concat()).spawn().unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    pub(crate) fn wait_exit(&mut self) -> Option<i32> {
        let mut code = None;
        wait_until("the pool to leave", SOON, || {
            code = self.process.try_wait().unwrap();
            code.is_some()
        });
        code.and_then(|code| code.code())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) fn log_of(home: &Home) -> String {
    fs::read_to_string(home.root().join("pool.log")).unwrap_or_default()
}

/// A profile whose job, due at once, runs until the file `release` appears in its home.
pub(crate) fn with_waiting_job(home: &Home, profile: &str) {
    let own = home.file(&format!("profiles/{profile}"));
    fs::create_dir_all(&own).unwrap();
    write_script_in(&own, "wait.sh", WAITING_SCRIPT);
    let due = job("nightly", 60, "wait.sh", &iso_from_now(-5));
    write_jobs_in(&own, &json!({"jobs": [due], "updated_at": iso_from_now(0)}).to_string());
}

pub(crate) fn release(home: &Home, profile: &str) {
    home.touch(&format!("profiles/{profile}/release"));
}

/// Counts the living children of a pool every 5 ms.
struct Census {
    most: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Census {
    fn of(pool: &Pool) -> Self {
        let (most, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (parent, seen, stop) = (pool.process.id(), Arc::clone(&most), Arc::clone(&over));
        let thread = std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let living = hermes::work::group::processes()
                    .unwrap()
                    .all
                    .into_iter()
                    .filter(|process| process.parent == parent && !process.zombie);
                seen.fetch_max(living.count(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        Self { most, over, thread: Some(thread) }
    }

    fn most(mut self) -> usize {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        self.most.load(Ordering::Relaxed)
    }
}

#[test]
fn a_full_house_of_idle_residents_makes_room_for_the_one_that_is_opened() {
    let home = Home::new();
    let pool = Pool::start(&home, &["--max", "3"]);
    let census = Census::of(&pool);
    let first = pool.open_idle("a");
    let others = [pool.open_idle("b"), pool.open_idle("c")];
    assert_eq!(pool.open("a"), first, "who is up is not started again");
    let fourth = pool.open("d");
    assert!(gone(others[0]), "the one that was used least recently went");
    assert!(!gone(first) && !gone(others[1]) && !gone(fourth));
    for round in 0..6 {
        pool.open(["a", "b", "c", "d"][round % 4]);
    }
    assert_eq!(census.most(), 3, "never more than the cap");
    let shown = pool.ctl(&["pool"]).stdout;
    assert!(shown.starts_with("3 of 3 slots taken\n") && shown.contains("PROFILE"), "{shown}");
}

#[test]
fn a_full_house_of_busy_residents_says_who_is_in_the_way_and_serves_when_the_first_is_idle() {
    let home = Home::new();
    let pool = Pool::start_with(&home, &["--max", "3"], &[("HERMES_AGENT_COMMAND", "sleep 300")]);
    with_waiting_job(&home, "cronic");
    let residents = [pool.open("cronic"), pool.open("asker"), pool.open("turner")];
    let mut asker = home.ctl(&["ask", "--profile", "asker", "--kind", "approval", "May I?"]).spawn().unwrap();
    assert_eq!(pool.ctl(&["submit", "--profile", "turner", "s", "think"]).code, 0);
    for profile in ["cronic", "asker", "turner"] {
        wait_until("a busy resident", SOON, || pool.slot(profile)["idle"] == false);
    }
    let mut waiting = pool.opening(&["fourth", "--json"]);
    pool.wait_for("somebody waits", |report| report["queue"][0]["profile"] == "fourth");
    let refused = pool.ctl(&["open", "fifth", "--timeout", "300ms"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    for way in [
        "cronic: cron nightly",
        "asker waits for your answer",
        "hermesctl --profile asker answer srq-",
        "turner: session s",
    ] {
        assert!(refused.stderr.contains(way), "{way}: {refused:?}");
    }
    let shown = pool.ctl(&["pool"]).stdout;
    assert!(shown.contains("waits for your answer") && shown.contains("fourth"), "{shown}");
    assert!(residents.iter().all(|pid| !gone(*pid)), "nobody is stopped for anybody");
    release(&home, "cronic");
    let begun = Instant::now();
    wait_until("the opening to be served", SOON, || waiting.try_wait().unwrap().is_some());
    let took = begun.elapsed();
    let out = waiting.wait_with_output().unwrap();
    assert!(out.status.success());
    let told = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(told.contains("waiting for fourth: place 1 of ") && told.contains("cronic: cron nightly"), "{told}");
    // The script looks for its release every 50 ms; that nothing here takes whole seconds is all that is said.
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(gone(residents[0]) && !gone(residents[1]) && !gone(residents[2]));
    let history = home.read("profiles/cronic/cron/output/nightly");
    assert!(history.is_empty());
    let jobs: Value = serde_json::from_str(&home.read("profiles/cronic/cron/jobs.json")).unwrap();
    assert_eq!(jobs["jobs"][0]["last_status"], "ok", "its job was done before it went");
    let _ = asker.kill();
    let _ = asker.wait();
}

#[test]
fn a_retired_profiles_job_still_runs_once_in_a_child_that_the_pool_opens() {
    let home = Home::new();
    let own = home.file("profiles/early");
    fs::create_dir_all(&own).unwrap();
    write_script_in(&own, "mark.sh", "date +%s.%N >> \"$HERMES_HOME/ran\"");
    let pool = Pool::start(&home, &["--max", "1", "--idle-stop", "2s"]);
    pool.open_idle("early");
    let at = iso_from_now(4);
    write_jobs_in(
        &own,
        &json!({"jobs": [job("soon", 600, "mark.sh", &at)], "updated_at": iso_from_now(0)}).to_string(),
    );
    let ticker = || hermesctl(&home, &["ledger", "early", "--json"]).json()["ticker"]["next_due"].clone();
    wait_until("the job to be seen", SOON, || ticker().is_string());
    wait_until("an idle resident", SOON, || pool.slot("early")["idle"] == true);
    pool.open("other");
    assert_eq!(pool.slot("early"), Value::Null, "it made room");
    pool.wait_for("the job is planned", |report| report["due"][0]["profile"] == "early");
    assert_eq!(pool.ctl(&["open", "early", "--background"]).code, 1, "a retired profile comes back by a person only");
    wait_until("the job to run", SOON, || home.read("profiles/early/ran").ends_with('\n'));
    let ran: f64 = home.read("profiles/early/ran").lines().next().unwrap().parse().unwrap();
    let due = crate::support::instant(&json!(at)).as_millisecond() as f64 / 1000.0;
    assert!((0.0..1.0).contains(&(ran - due)), "ran {} s after it was due", ran - due);
    wait_until("its child to go by idle stop", SOON, || pool.slot("early") == Value::Null);
    assert_eq!(home.read("profiles/early/ran").lines().count(), 1, "once");
}

#[test]
fn a_resident_that_is_stopped_delays_nobody_and_is_never_retired() {
    let home = Home::new();
    let pool = Pool::start(&home, &["--max", "2"]);
    let hung = pool.open_idle("hung");
    let other = pool.open_idle("other");
    kill(Pid::from_raw(hung.cast_signed()), Signal::SIGSTOP).unwrap();
    pool.open("third");
    assert!(!gone(hung) && gone(other), "the one that proved it went");
    assert_eq!(pool.slot("hung")["reason"], "turn_probe_unavailable");
    assert!(pool.ctl(&["pool"]).stdout.contains("unknown"));
    let closed = pool.ctl(&["close", "hung"]);
    assert!(closed.code == 1 && closed.stderr.contains("nothing was stopped"), "{closed:?}");
    kill(Pid::from_raw(hung.cast_signed()), Signal::SIGCONT).unwrap();
    wait_until("it to be heard again", SOON, || pool.slot("hung")["idle"] == true);
    assert_eq!(pool.ctl(&["close", "hung"]).code, 0);
    assert!(gone(hung));
}

#[test]
fn a_pool_that_is_told_to_stop_retires_the_idle_and_waits_for_the_busy() {
    let home = Home::new();
    let mut pool = Pool::start(&home, &["--max", "2"]);
    let (idle, busy) = (pool.open_idle("idle"), pool.open_busy("busy"));
    pool.signal(Signal::SIGTERM);
    wait_until("the idle one to go", SOON, || gone(idle));
    pool.wait_for("it drains", |report| report["draining"] == true);
    assert_eq!(pool.ctl(&["open", "new"]).code, 1);
    assert!(!gone(busy));
    release(&home, "busy");
    assert_eq!(pool.wait_exit(), Some(0));
    assert!(gone(busy));
    let jobs: Value = serde_json::from_str(&home.read("profiles/busy/cron/jobs.json")).unwrap();
    assert_eq!(jobs["jobs"][0]["last_status"], "ok");
    home.assert_no_endpoint_left();
}

#[test]
fn a_pool_whose_patience_ends_stops_the_busy_in_order() {
    let home = Home::new();
    let mut pool = Pool::start(&home, &["--drain", "200ms"]);
    let busy = pool.open_busy("busy");
    pool.signal(Signal::SIGTERM);
    assert_eq!(pool.wait_exit(), Some(0));
    assert!(gone(busy));
    let jobs: Value = serde_json::from_str(&home.read("profiles/busy/cron/jobs.json")).unwrap();
    assert_eq!(jobs["jobs"][0]["last_status"], "interrupted", "what was cut off is on record");
}

#[test]
fn a_pool_that_is_killed_leaves_no_idle_child_and_the_next_adopts_the_busy_one() {
    let home = Home::new();
    let mut pool = Pool::start(&home, &["--max", "3"]);
    let (idle, busy) = (pool.open_idle("idle"), pool.open_busy("busy"));
    pool.signal(Signal::SIGKILL);
    pool.process.wait().unwrap();
    wait_until("the idle one to go by itself", SOON, || gone(idle));
    let next = Pool::start(&home, &["--max", "3"]);
    assert_eq!(next.slot("busy")["pid"], busy, "adopted");
    assert_eq!(next.open("busy"), busy);
    release(&home, "busy");
    wait_until("its job to end", SOON, || next.slot("busy")["idle"] == true);
    assert_eq!(next.ctl(&["close", "busy"]).code, 0);
    assert!(gone(busy));
}

#[test]
fn a_pool_touches_no_backend_of_another_owner() {
    let home = Home::new();
    let child = crate::support::Child::spawn(&home, &crate::support::Opts::desktop().profile("mine"));
    let mut pool = Pool::start(&home, &[]);
    let refused = pool.ctl(&["open", "mine"]);
    assert!(refused.code == 3 && refused.stderr.contains("already served"), "{refused:?}");
    assert_eq!(pool.ctl(&["close", "mine"]).code, 4);
    pool.signal(Signal::SIGTERM);
    assert_eq!(pool.wait_exit(), Some(0));
    assert_eq!(child.verdict()["idle"], true, "it lives on");
}

#[test]
fn a_child_that_crashes_comes_back_and_one_that_always_does_is_left() {
    let home = Home::new();
    let pool = Pool::start(&home, &[]);
    let first = pool.open("p");
    kill_pid(first);
    wait_until("it to be restarted", SOON, || {
        pool.slot("p")["pid"].as_u64().is_some_and(|pid| pid != u64::from(first))
    });
    let broken = home.file("profiles/broken");
    fs::create_dir_all(broken.parent().unwrap()).unwrap();
    fs::write(&broken, "a file").unwrap();
    let refused = pool.ctl(&["open", "broken"]);
    assert!(
        refused.code == 3 && refused.stderr.contains("broken did not start") && refused.stderr.contains("home"),
        "{refused:?}"
    );
    assert_eq!(pool.slot("broken"), Value::Null, "its slot is free");
}

#[test]
fn limits_change_and_nobody_is_stopped_without_proof_for_that() {
    let home = Home::new();
    let pool = Pool::start(&home, &["--max", "3"]);
    let busy = pool.open_busy("busy");
    let (a, b) = (pool.open_idle("a"), pool.open_idle("b"));
    assert_eq!(pool.ctl(&["pool", "limit", "1"]).code, 0);
    wait_until("the idle ones to go", SOON, || gone(a) && gone(b));
    assert!(!gone(busy));
    assert_eq!(pool.ctl(&["pool", "limit", "0"]).code, 2);
    assert_eq!(pool.ctl(&["pool", "limit", "2", "--memory-budget", "1"]).code, 0);
    pool.wait_for("the budget is known", |report| report["memory_budget"] == 1);
    assert_eq!(pool.ctl(&["open", "a", "--timeout", "200ms"]).code, 1, "no memory is left for it");
    release(&home, "busy");
    pool.open("a");
    assert!(gone(busy), "the one over the budget made room");
}

#[test]
fn a_look_is_of_now_and_tells_nobody_else() {
    let home = Home::new();
    let pool = Pool::start(&home, &[]);
    pool.open_idle("p");
    wait_until("its memory to be measured", SOON, || pool.slot("p")["memory"].is_u64());
    let told = fs::File::create(home.root().join("told")).unwrap();
    let mut watch = home.ctl(&["pool", "--watch", "--json"]).stdout(told).spawn().unwrap();
    let lines = || fs::read_to_string(home.root().join("told")).unwrap().lines().count();
    wait_until("the first report", SOON, || lines() == 1);
    let age = || pool.slot("p")["age_ms"].as_u64().unwrap();
    let first = age();
    for _ in 0..20 {
        age();
    }
    assert!(age() > first, "it grows older while nothing happens");
    assert_eq!(lines(), 1, "nothing has changed");
    watch.kill().unwrap();
    watch.wait().unwrap();
}

#[test]
fn mistakes_are_told_apart() {
    let home = Home::new();
    let none = hermesctl(&home, &["open", "p"]);
    assert!(none.code == 4 && none.stderr.contains("hermes pool"), "{none:?}");
    let pool = Pool::start(&home, &[]);
    let second = home_command(&home, &["pool"]).output().unwrap();
    assert_eq!(second.status.code(), Some(76), "{second:?}");
    for (args, code) in [
        (&["open"][..], 2),
        (&["open", "../x"], 2),
        (&["open", "a", "--profile", "b"], 2),
        (&["close", "nobody"], 4),
        (&["idle", "nobody"], 4),
        (&["pool", "limit"], 2),
        (&["pool", "limit", "many"], 2),
    ] {
        let out = pool.ctl(args);
        assert_eq!(out.code, code, "{args:?}: {out:?}");
        assert!(!out.stderr.is_empty());
    }
    let record: Value = serde_json::from_str(&fs::read_to_string(&home.records()[0]).unwrap()).unwrap();
    assert_eq!((&record["kind"], record.get("port")), (&json!("pool"), None));
    assert_eq!(pool.ctl(&["list", "--json"]).json(), json!([]), "a pool is no backend");
    for odd in ["-x", "a b", "ü", "default"] {
        assert_eq!(pool.ctl(&["open", "--", odd]).code, 0, "{odd}");
    }
}

fn home_command(home: &Home, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hermes"));
    command.args(args);
    home.environment(&mut command);
    command
}

#[test]
fn a_waiter_that_goes_away_is_forgotten_and_a_background_one_is_promoted() {
    let home = Home::new();
    let pool = Pool::start(&home, &["--max", "1"]);
    pool.open_busy("busy");
    let mut background = pool.opening(&["p", "--background", "--json"]);
    pool.wait_for("one waits", |report| report["queue"][0]["class"] == "background");
    let mut foreground = pool.opening(&["p", "--json"]);
    pool.wait_for("both are foreground", |report| {
        let queue = report["queue"].as_array().unwrap();
        queue.len() == 2 && queue.iter().all(|waiter| waiter["class"] == "foreground")
    });
    foreground.kill().unwrap();
    foreground.wait().unwrap();
    pool.wait_for("one has gone", |report| report["queue"].as_array().unwrap().len() == 1);
    release(&home, "busy");
    wait_until("the other to be served", SOON, || background.try_wait().unwrap().is_some());
    assert!(background.wait().unwrap().success());
}

#[test]
fn with_a_control_token_only_its_bearer_closes_and_limits() {
    let home = Home::new();
    let pool = Pool::start_with(&home, &["--max", "1"], &[("HERMES_CONTROL_TOKEN", "the-control-token")]);
    let first = pool.open_idle("a");
    for args in [&["close", "a"][..], &["pool", "limit", "2"]] {
        let refused = pool.ctl(args);
        assert!(refused.code == 5 && refused.stderr.contains("HERMES_CONTROL_TOKEN"), "{refused:?}");
    }
    pool.open("b");
    assert!(gone(first), "the pool itself shows its children the control token");
    let closed = home.ctl(&["close", "b"]).env("HERMES_CONTROL_TOKEN", "the-control-token").output().unwrap();
    assert!(closed.status.success(), "{closed:?}");
}
