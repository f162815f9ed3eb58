//! What work leaves behind, in every way that hides it: it counts, and it ends with its backend.

use std::fs;
use std::process::Command;

use hermes::protocol::{Reply, Request, TurnState};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::retire::Peer;
use crate::support::{Child, Home, Opts, SOON, busy, gone, hermesctl, kill_pid, wait_until};

/// The agent runs the shell line that it is told.
fn opts() -> Opts {
    Opts::desktop().env("HERMES_AGENT_COMMAND", "bash").env("HERMES_SHUTDOWN_GRACE", "0.1")
}

fn told(home: &Home, line: &str) {
    let out = hermesctl(home, &["submit", "s", line, "--wait"]);
    assert_eq!(out.code, 0, "{out:?}");
}

/// Python makes a daemon by the book: fork, leader of a session, fork, and the parents leave at once.
const DAEMON: &str = "import os,sys,time\n\
    if os.fork(): os._exit(0)\n\
    os.setsid()\n\
    time.sleep(float(sys.argv[1]))\n\
    if os.fork(): os._exit(0)\n\
    os.close(1); os.close(2)\n\
    open(sys.argv[2], 'w').write(f'{os.getpid()}\\n')\n\
    time.sleep(300)";

#[test]
fn a_daemon_that_forks_while_it_is_looked_for_is_found() {
    let home = Home::new();
    fs::write(home.file("daemon.py"), DAEMON).unwrap();
    let mut child = Child::spawn(&home, &opts());
    let mut pids = Vec::new();
    for millis in [0, 1, 3, 8, 15] {
        let file = home.file(&format!("pid{millis}"));
        let script = home.file("daemon.py");
        told(&home, &format!("exec python3 {} 0.{millis:03} {}", script.display(), file.display()));
        let pid = home.pid_in(&format!("pid{millis}"));
        let entry = format!("process:{pid}");
        child.holds("a daemon lives", 3, |verdict| verdict["idle"] != true);
        child.wait_verdict("it to be named", |verdict| {
            verdict["detail"].as_str().is_some_and(|detail| detail.contains(&entry[8..]))
        });
        assert_eq!(hermesctl(&home, &["retire"]).code, 1);
        pids.push(pid);
    }
    child.signal(Signal::SIGTERM);
    assert_eq!(child.wait_exit(SOON).code(), Some(0));
    assert!(pids.into_iter().all(gone), "they end with their backend");
}

/// So many descriptors, from now on.
fn limit(child: &Child, soft: u64) {
    let range = format!("--nofile={soft}:");
    let done = Command::new("prlimit").args(["--pid", &child.pid.to_string(), &range]).status();
    assert!(done.unwrap().success());
}

#[test]
fn a_prompt_waits_while_nothing_can_be_started() {
    let home = Home::new();
    let child = Child::spawn(&home, &opts());
    assert_eq!(hermesctl(&home, &["submit", "s", "true", "--wait"]).code, 0);
    let mut peer = Peer::connect(&child);
    let open = fs::read_dir(format!("/proc/{}/fd", child.pid)).unwrap();
    let open: Vec<u64> = open.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok()).collect();
    // Enough to write with, too few to start anything.
    let third_free = (0..).filter(|number| !open.contains(number)).nth(2).unwrap();
    limit(&child, third_free + 1);
    let submit = Request::Submit { session: "s".to_owned(), prompt: "echo at last".to_owned() };
    let reply = peer.call(submit).unwrap();
    assert!(matches!(reply, Reply::Submitted { turn: 2, .. }), "{reply:?}");
    wait_until("the turn to wait", SOON, || child.logs().contains("a turn waits to be started"));
    limit(&child, 4096);
    let Reply::Turn(report) = peer.call(Request::Turn { turn: 2, wait: true }).unwrap() else { panic!("no turn") };
    assert_eq!((report.state, report.reply.as_deref()), (TurnState::Done, Some("at last")));
    child.wait_idle();
}

#[test]
fn processes_that_cannot_be_read_are_never_idle() {
    let home = Home::new();
    let child = Child::spawn(&home, &opts());
    let line = "echo $$ > $HERMES_HOME/agent.pid; sleep 300 >/dev/null 2>&1 & echo $! > $HERMES_HOME/member; \
        while [ ! -e $HERMES_HOME/go ]; do sleep 0.02; done";
    assert_eq!(hermesctl(&home, &["submit", "s", line]).code, 0);
    let (agent, member) = (home.pid_in("agent.pid"), home.pid_in("member"));
    limit(&child, 5);
    home.touch("go");
    wait_until("the agent to end", SOON, || gone(agent));
    limit(&child, 4096);
    child.holds("a member of its group lives", 20, |verdict| verdict["idle"] != true);
    kill_pid(member);
    child.wait_idle();
}

#[test]
fn a_survivor_is_found_however_the_home_is_spelled() {
    let home = Home::new();
    let mut child = Child::spawn(&home, &opts());
    let line = "setsid sh -c 'echo $$ > $HERMES_HOME/far; exec sleep 300' & \
        echo $$ > $HERMES_HOME/agent.pid; exec sleep 300";
    assert_eq!(hermesctl(&home, &["submit", "s", line]).code, 0);
    let (agent, far) = (home.pid_in("agent.pid"), home.pid_in("far"));
    child.kill_hard();
    kill_pid(agent);
    let link = home.root().join("another-name");
    std::os::unix::fs::symlink(home.path(), &link).unwrap();
    let next = Child::spawn(&home, &opts().env("HERMES_HOME", link.into_os_string()));
    next.wait_busy(&format!("process:{far}"));
    kill_pid(far);
    next.wait_idle();
}

#[test]
fn a_run_record_that_cannot_be_read_is_in_doubt_until_somebody_looks_after_it() {
    let home = Home::new();
    crate::support::private_dir(&home.file("runs"));
    fs::write(home.file("runs/turn-s.json"), r#"{"kind":"turn","id":"s","pi"#).unwrap();
    for options in [opts(), Opts::plain()] {
        let mut child = Child::spawn(&home, &options);
        child.wait_verdict("the doubt", |verdict| verdict["reason"] == "turn_probe_unavailable");
        assert!(home.file("runs/turn-s.json").exists());
        assert!(hermesctl(&home, &["ledger"]).stdout.contains("runs/turn-s.json"));
        child.terminate();
    }
    let child = Child::spawn(&home, &opts());
    child.wait_verdict("the doubt", |verdict| verdict["idle"].is_null());
    fs::remove_file(home.file("runs/turn-s.json")).unwrap();
    child.wait_idle();
}

#[test]
fn accepted_prompts_keep_a_backend_without_an_agent_busy() {
    let home = Home::new();
    let mut child = Child::spawn(&home, &opts());
    assert_eq!(hermesctl(&home, &["submit", "s", "echo $$ > $HERMES_HOME/agent.pid; exec sleep 300"]).code, 0);
    let agent = home.pid_in("agent.pid");
    assert_eq!(hermesctl(&home, &["submit", "s", "echo later"]).code, 0);
    child.kill_hard();
    kill_pid(agent);
    let mut bare = Child::spawn(&home, &Opts::desktop());
    bare.wait_busy("session:s");
    assert!(hermesctl(&home, &["ledger"]).stdout.contains("waits for a backend with an agent"));
    assert_eq!(hermesctl(&home, &["retire"]).code, 1);
    bare.terminate();
    let able = Child::spawn(&home, &opts());
    able.wait_idle();
    let log = hermesctl(&home, &["log", "s", "--json"]).json();
    assert_eq!(log["turns"][1]["reply"], "later");
}

#[test]
fn a_turn_that_ran_out_of_time_is_ended_with_its_whole_group() {
    let home = Home::new();
    let child = Child::spawn(&home, &opts().env("HERMES_LOG", "info"));
    child.wait_idle();
    drop(child);
    let mut command = opts().command(&home);
    command.args(["--turn-timeout", "300ms"]);
    let mut process = command.spawn().unwrap();
    wait_until("the child to serve", SOON, || hermesctl(&home, &["idle"]).code == 0);
    let line = "sh -c 'trap \"\" TERM; echo $$ > $HERMES_HOME/stubborn; while :; do sleep 1; done' >/dev/null 2>&1 & \
        exec sleep 300";
    let out = hermesctl(&home, &["submit", "s", line, "--wait"]);
    assert!(out.code == 1 && out.stderr.contains("took longer than 300 ms"), "{out:?}");
    let stubborn = home.pid_in("stubborn");
    wait_until("its group to be gone", SOON, || gone(stubborn));
    wait_until("it to be idle", SOON, || hermesctl(&home, &["idle"]).code == 0);
    process.kill().unwrap();
    process.wait().unwrap();
}

#[test]
fn a_delegated_task_can_be_interrupted_by_its_name() {
    let home = Home::new();
    let child = Child::spawn(&home, &opts().env("CTL", env!("CARGO_BIN_EXE_hermesctl")));
    told(&home, "\"$CTL\" delegate --detach 'echo $HERMES_SESSION_ID > $HERMES_HOME/name; exec sleep 300'");
    wait_until("the task to run", SOON, || home.read("name").ends_with('\n'));
    let name = home.read("name").trim().to_owned();
    let sessions = hermesctl(&home, &["sessions", "--json"]).json();
    assert!(
        sessions["sessions"].as_array().unwrap().iter().any(|session| session["session"] == json!(name)),
        "{sessions}"
    );
    assert_eq!(hermesctl(&home, &["interrupt", &name]).code, 0);
    child.wait_idle();
}

#[test]
fn a_server_that_leaves_its_group_does_not_hold_up_its_session() {
    let home = Home::new();
    let child = Child::spawn(&home, &opts());
    told(&home, "setsid sleep 300 >/dev/null 2>&1 & echo $! > $HERMES_HOME/server; echo started");
    told(&home, "echo next");
    let server = home.pid_in("server");
    child.wait_busy(&format!("process:{server}"));
    kill_pid(server);
    child.wait_idle();
}

#[test]
fn a_process_whose_name_is_cut_in_the_middle_of_a_letter_hides_nobody() {
    let home = Home::new();
    let child = Child::spawn(&home, &opts());
    let program = home.root().join("12345678901234ö");
    fs::copy("/bin/sleep", &program).unwrap();
    let mut named = Command::new(&program).arg("300").spawn().unwrap();
    told(&home, "sleep 300 >/dev/null 2>&1 & echo $! > $HERMES_HOME/member; exit");
    let member = home.pid_in("member");
    child.holds("a member of its group lives", 5, |verdict| verdict["detail"] == "session:s");
    assert_eq!(hermesctl(&home, &["interrupt", "s"]).code, 0);
    wait_until("it to be ended", SOON, || gone(member));
    child.wait_idle();
    named.kill().unwrap();
    named.wait().unwrap();
}

/// The first thread exits, and with it what `ps` shows; the other goes on.
const HEADLESS: &str = "import ctypes,os,platform,sys,threading,time\n\
    threading.Thread(target=lambda: time.sleep(300)).start()\n\
    open(sys.argv[1], 'w').write(f'{os.getpid()}\\n')\n\
    ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[platform.machine()], 0)";

#[test]
fn a_process_whose_first_thread_has_exited_counts() {
    let home = Home::new();
    fs::write(home.file("headless.py"), HEADLESS).unwrap();
    let child = Child::spawn(&home, &opts());
    told(&home, "cd $HERMES_HOME; setsid python3 headless.py headless >/dev/null 2>&1 & echo started");
    let headless = home.pid_in("headless");
    child.wait_busy(&format!("process:{headless}"));
    let state = || fs::read_to_string(format!("/proc/{headless}/stat")).unwrap();
    wait_until("its first thread to exit", SOON, || state().contains(") Z "));
    child.holds("its other thread lives", 20, |verdict| *verdict == busy(&format!("process:{headless}")));
    assert_eq!(hermesctl(&home, &["retire"]).code, 1);
    kill_pid(headless);
    child.wait_idle();
}
