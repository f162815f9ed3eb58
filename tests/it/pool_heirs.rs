//! What a pool's death leaves to the next one: every child that lives has its slot, whatever it was about, and every prompt
//! that was accepted is run.

use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::pool::{Pool, release, with_waiting_job};
use crate::support::{Home, SOON, gone, hermesctl, kill_pid, locked, wait_until};

fn kill_pool(mut pool: Pool) {
    pool.signal(Signal::SIGKILL);
    pool.wait_exit();
}

/// Nobody else gets in as long as the heir lives.
fn is_full(pool: &Pool) {
    let refused = pool.ctl(&["open", "other", "--timeout", "300ms"]);
    assert!(refused.code == 1 && refused.stderr.contains("no slot in time"), "{refused:?}");
}

#[test]
fn a_child_that_comes_up_while_its_pool_is_killed_has_its_slot_in_the_next() {
    let home = Home::new();
    let pool = Pool::start(&home, &["--max", "1"]);
    with_waiting_job(&home, "early");
    let lock = locked(&home.file("profiles/early/cron/.jobs.lock"));
    let mut opening = pool.opening(&["early"]);
    wait_until("a process", SOON, || pool.slot("early")["pid"].is_u64());
    let early = u32::try_from(pool.slot("early")["pid"].as_u64().unwrap()).unwrap();
    kill_pool(pool);
    opening.wait().unwrap();
    let next = Pool::start(&home, &["--max", "1"]);
    assert_eq!(next.slot("early")["pid"], early);
    is_full(&next);
    drop(lock);
    assert_eq!(next.open("early"), early, "adopted as soon as it was up");
    wait_until("its job to run", SOON, || home.file("profiles/early/started").exists());
    release(&home, "early");
    wait_until("its job to end", SOON, || next.slot("early")["idle"] == true);
}

#[test]
fn a_child_that_is_stopped_outlives_its_pool_and_is_adopted_when_it_goes_on() {
    let home = Home::new();
    let pool = Pool::start(&home, &["--max", "1"]);
    let busy = pool.open_busy("busy");
    let signal = |signal| kill(Pid::from_raw(busy.cast_signed()), signal).unwrap();
    signal(Signal::SIGSTOP);
    kill_pool(pool);
    let next = Pool::start(&home, &["--max", "1"]);
    assert_eq!(next.slot("busy")["pid"], busy);
    is_full(&next);
    assert!(!gone(busy), "the hangup that the kernel sends it says nothing");
    signal(Signal::SIGCONT);
    wait_until("it to be adopted", SOON, || next.slot("busy")["idle"] == false);
    release(&home, "busy");
    wait_until("its job to end", SOON, || next.slot("busy")["idle"] == true);
}

#[test]
fn an_orphan_that_does_not_take_our_token_has_its_slot_and_is_left_alone() {
    let home = Home::new();
    let pool = Pool::start_with(&home, &["--max", "1"], &[("HERMES_CONTROL_TOKEN", "one")]);
    let busy = pool.open_busy("busy");
    kill_pool(pool);
    let mut next = Pool::start_with(&home, &["--max", "1"], &[("HERMES_CONTROL_TOKEN", "another")]);
    assert_eq!(next.slot("busy")["pid"], busy);
    wait_until("it to say why", SOON, || next.ctl(&["pool"]).stdout.contains("outlived the pool before this one"));
    next.signal(Signal::SIGTERM);
    assert_eq!(next.wait_exit(), Some(0), "it waits for none that is not its own");
    assert!(!gone(busy));
    let third = Pool::start_with(&home, &["--max", "1"], &[("HERMES_CONTROL_TOKEN", "one")]);
    assert_eq!(third.slot("busy")["pid"], busy, "it is not forgotten");
    assert_eq!(third.open("busy"), busy);
    drop(third);
    release(&home, "busy");
    wait_until("it to end its job and leave", SOON, || gone(busy));
}

#[test]
fn a_runtime_directory_that_was_emptied_hides_nobody_from_the_next_pool() {
    let home = Home::new();
    let pool = Pool::start(&home, &["--max", "1"]);
    let busy = pool.open_busy("busy");
    for file in fs::read_dir(home.runtime()).unwrap() {
        fs::remove_file(file.unwrap().path()).unwrap();
    }
    kill_pool(pool);
    let next = Pool::start(&home, &["--max", "1"]);
    wait_until("it to be adopted", SOON, || next.slot("busy")["idle"] == false);
    assert_eq!(next.slot("busy")["pid"], busy);
    release(&home, "busy");
    wait_until("its job to end", SOON, || next.slot("busy")["idle"] == true);
}

#[test]
fn one_home_has_one_pool_whatever_its_runtime_directory() {
    let home = Home::new();
    let _pool = Pool::start(&home, &[]);
    let other = tempfile::tempdir().unwrap();
    let mut second = std::process::Command::new(env!("CARGO_BIN_EXE_hermes"));
    home.environment(&mut second);
    let second = second.arg("pool").env("HERMES_RUNTIME_DIR", other.path().join("run")).output().unwrap();
    assert_eq!(second.status.code(), Some(76), "{second:?}");
    assert!(String::from_utf8_lossy(&second.stderr).contains("has a pool already"), "{second:?}");
}

#[test]
fn a_pool_whose_terminal_goes_leaves_in_order() {
    let home = Home::new();
    let mut pool = Pool::start(&home, &[]);
    let (idle, busy) = (pool.open_idle("idle"), pool.open_busy("busy"));
    pool.signal(Signal::SIGHUP);
    wait_until("the idle one to go", SOON, || gone(idle));
    // Terminals say it twice.
    pool.signal(Signal::SIGHUP);
    assert_eq!(pool.ctl(&["open", "another"]).code, 1);
    assert!(!gone(busy));
    release(&home, "busy");
    assert_eq!(pool.wait_exit(), Some(0));
    let jobs: Value = serde_json::from_str(&home.read("profiles/busy/cron/jobs.json")).unwrap();
    assert_eq!(jobs["jobs"][0]["last_status"], "ok");
    home.assert_no_endpoint_left();
}

/// The agent runs the shell line that it is told.
const AGENT: [(&str, &str); 1] = [("HERMES_AGENT_COMMAND", "bash")];

fn ends(home: &Home, turns: usize) {
    let states = || {
        let log = hermesctl(home, &["log", "s", "--json", "--profile", "p"]);
        match log.code {
            0 => log.json()["turns"].as_array().unwrap().iter().map(|turn| turn["state"].clone()).collect(),
            _ => Vec::<Value>::new(),
        }
    };
    wait_until("every accepted prompt to end", SOON, || {
        let states = states();
        states.len() == turns && states.iter().all(|state| ["done", "interrupted"].contains(&state.as_str().unwrap()))
    });
}

fn submit(home: &Home, line: &str) {
    let done = hermesctl(home, &["submit", "s", line, "--profile", "p"]);
    assert_eq!(done.code, 0, "{done:?}");
}

#[test]
fn prompts_that_a_killed_pool_and_a_killed_child_had_accepted_are_run_by_the_next() {
    let home = Home::new();
    let pool = Pool::start_with(&home, &[], &AGENT);
    let child = pool.open("p");
    submit(&home, "echo $$ > $HERMES_HOME/agent; exec sleep 300");
    submit(&home, "true");
    let agent = home.pid_in("profiles/p/agent");
    kill_pool(pool);
    [child, agent].into_iter().for_each(kill_pid);
    let _next = Pool::start_with(&home, &[], &AGENT);
    ends(&home, 2);
}

#[test]
fn prompts_of_a_killed_child_are_run_though_its_profile_was_retired_before() {
    let home = Home::new();
    let pool = Pool::start_with(&home, &[], &AGENT);
    pool.open_idle("p");
    assert_eq!(pool.ctl(&["close", "p"]).code, 0);
    with_waiting_job(&home, "p");
    release(&home, "p");
    wait_until("the pool to open it for its job", SOON, || pool.slot("p")["idle"] == true);
    let child = u32::try_from(pool.slot("p")["pid"].as_u64().unwrap()).unwrap();
    submit(&home, "echo $$ > $HERMES_HOME/agent; exec sleep 300");
    submit(&home, "true");
    let agent = home.pid_in("profiles/p/agent");
    [child, agent].into_iter().for_each(kill_pid);
    ends(&home, 2);
}
