//! The model's own acceptance cases 12 to 15: three real children at the pool's cap.

use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::{Child, Home, Opts, TOKEN, busy, curl, gone, hermesctl, home_with_waiting_job, idle};

const JOB: &str = "live-idle-proof-job";
const IDLE_BODY: &str = r#"{"ok":true,"idle":true,"reason":null}"#;
const BUSY_BODY: &str = r#"{"ok":true,"idle":false,"reason":"turn_in_flight","detail":"cron:live-idle-proof-job"}"#;

struct Three {
    homes: [Home; 3],
    children: [Child; 3],
}

/// Two residents with nothing to do, and one whose job is due when it starts.
fn three() -> Three {
    let homes = [Home::new(), Home::new(), home_with_waiting_job(JOB)];
    let children = [0, 1, 2].map(|n| Child::spawn(&homes[n], &Opts::desktop()));
    Three { homes, children }
}

/// Status and body by the real curl.
fn by_http(child: &Child) -> (u16, String) {
    let header = format!("X-Hermes-Session-Token: {TOKEN}");
    let reply = curl(child, "/api/health/idle", &["-H", &header]);
    (reply.status, reply.text())
}

/// Exit code and verdict by `hermesctl` over the socket, with what it adds checked and taken away.
fn by_socket(home: &Home, child: &Child) -> (i32, serde_json::Value) {
    let output = hermesctl(home, &["idle", "--json", "--via", "socket", "--pid", &child.pid_arg()]);
    let mut value = output.json();
    let keys = value.as_object_mut().expect("one object");
    assert_eq!(keys.remove("pid"), Some(child.pid.into()), "{output:?}");
    assert_eq!(keys.remove("profile"), Some(serde_json::Value::Null), "{output:?}");
    assert!(keys.remove("generation").is_some_and(|generation| generation.is_string()), "{output:?}");
    (output.code, value)
}

#[test]
fn residents_settle_on_idle_and_the_child_with_a_job_is_never_idle_over_both_doors() {
    let Three { homes, mut children } = three();
    let [first, second, third] = &children;

    // From READY on: one thread asks by curl, another over the socket, and neither ever hears idle.
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let http = scope.spawn(|| {
            let mut samples = Vec::new();
            while samples.is_empty() || !stop.load(Ordering::Acquire) {
                samples.push(by_http(third));
            }
            samples
        });
        let socket = scope.spawn(|| {
            let mut samples = Vec::new();
            while samples.is_empty() || !stop.load(Ordering::Acquire) {
                samples.push(by_socket(&homes[2], third));
            }
            samples
        });
        // Everything that may fail in here is looked at after the samplers are told to stop.
        let residents = thread::scope(|inner| {
            inner
                .spawn(|| {
                    for (home, child) in [(&homes[0], first), (&homes[1], second)] {
                        child.wait_idle();
                        for _ in 0..5 {
                            assert_eq!(by_http(child), (200, IDLE_BODY.to_owned()));
                            assert_eq!(by_socket(home, child), (0, idle()));
                        }
                    }
                    third.wait_busy(&format!("cron:{JOB}"));
                    for _ in 0..5 {
                        assert_eq!(by_http(third), (200, BUSY_BODY.to_owned()));
                        assert_eq!(by_socket(&homes[2], third), (1, busy(&format!("cron:{JOB}"))));
                    }
                })
                .join()
        });
        stop.store(true, Ordering::Release);
        for (status, body) in http.join().expect("the sampler by curl") {
            assert_eq!(status, 200);
            assert!(!body.contains(r#""idle":true"#), "once idle: {body}");
        }
        for (code, verdict) in socket.join().expect("the sampler over the socket") {
            assert!(code != 0 && verdict["idle"] != true, "once idle: {code} {verdict}");
        }
        residents.expect("the residents are idle and the third is busy");
    });

    // Case 14, of each of them.
    for child in &children {
        let reply = curl(child, "/api/health/idle", &[]);
        assert_eq!(reply.status, 401);
        assert!(reply.json().get("idle").is_none(), "{reply:?}");
    }

    // Case 15, with the job still running.
    let job = homes[2].pid_in("pid");
    let asked = Instant::now();
    for child in &children {
        child.signal(Signal::SIGTERM);
    }
    for child in &mut children {
        let status = child.wait_exit(Duration::from_secs(30));
        assert_eq!(status.code(), Some(0), "{}", child.logs());
    }
    assert!(asked.elapsed() < Duration::from_secs(30), "all three within 30 s: {:?}", asked.elapsed());
    assert!(gone(job), "the job outlived its child");
    for home in &homes {
        home.assert_no_endpoint_left();
    }
}

#[test]
fn a_child_becomes_idle_when_its_job_has_ended() {
    let home = home_with_waiting_job(JOB);
    let child = Child::spawn(&home, &Opts::desktop());
    assert_eq!(child.verdict()["idle"], false, "a due job is in the ledger before READY");
    child.wait_busy(&format!("cron:{JOB}"));
    home.touch("release");
    child.wait_idle();
    assert_eq!(home.job_on_disk(JOB)["last_status"], "ok", "the result is on disk before the entry goes");
    assert_eq!(by_socket(&home, &child), (0, idle()));
}

#[test]
fn a_due_job_is_in_the_ledger_before_ready() {
    // The first probe that can be made at all, of several children.
    for _ in 0..5 {
        let home = home_with_waiting_job(JOB);
        let child = Child::spawn(&home, &Opts::desktop());
        let first = child.verdict();
        assert_eq!(first["idle"], false, "{first}");
    }
}

#[test]
fn a_fresh_child_with_nothing_due_is_idle() {
    let home = Home::new();
    let child = Child::spawn(&home, &Opts::desktop());
    child.wait_idle();
    child.holds("nothing is due", 30, |verdict| *verdict == idle());
}

#[test]
fn a_child_outside_the_desktop_runs_no_jobs() {
    let home = home_with_waiting_job(JOB);
    let child = Child::spawn(&home, &Opts::plain());
    child.wait_idle();
    child.holds("no ticker without HERMES_DESKTOP", 30, |verdict| *verdict == idle());
    assert_eq!(home.read("started"), "");
}

#[test]
fn a_child_started_the_desktops_way_is_ready_and_answers() {
    let home = Home::new();
    let me = std::process::id();
    let opts = Opts::desktop()
        .profile("p")
        .env("HERMES_SERVE_HEADLESS", "1")
        .env("HERMES_PARENT_PID", me.to_string())
        .env("HERMES_PARENT_START_MARKER", crate::support::start_marker(me))
        .env("HERMES_PARENT_NONCE", "a-nonce")
        .env("HERMES_SPAWN", format!("v1:-:serve:{me}:-"))
        .env("TERMINAL_CWD", "/")
        .env("HERMES_WEB_DIST", "/nonexistent")
        .env("PYTHONPATH", "")
        .env("PYTHONHOME", "")
        .env("PYTHONUTF8", "1");
    let mut command = opts.command(&home);
    assert!(command.stdin(Stdio::null()).get_args().eq([
        "--profile",
        "p",
        "serve",
        "--host",
        "127.0.0.1",
        "--port",
        "0"
    ]));
    let child = Child::spawn(&home, &opts);
    child.wait_idle();
    assert_eq!(child.record().1["profile"], "p");
    assert_eq!(hermesctl(&home, &["idle", "p"]).code, 0);
}
