//! Retirement that cannot lose work, seen from outside: lost replies, dead clients, due jobs, forced ends.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hermes::client::{Client, ClientError};
use hermes::protocol::{Event, FaultKind, Permit, Refusal, Reply, Request, Token, Verdict};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::support::{
    Child, Home, Opts, SOON, TOKEN, busy, curl, due, gone, hermesctl, home_with_waiting_job, iso_from_now, wait_until,
};

/// A blocking face of the product's own client.
pub(crate) struct Peer {
    runtime: tokio::runtime::Runtime,
    client: Client,
}

impl Peer {
    pub(crate) fn try_connect(socket: &Path) -> Result<Self, ClientError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = runtime.block_on(Client::connect(socket, &Token::new(TOKEN), Duration::from_secs(5)))?;
        Ok(Self { runtime, client })
    }

    pub(crate) fn connect(child: &Child) -> Self {
        Self::try_connect(&child.socket()).unwrap()
    }

    pub(crate) fn call(&mut self, request: Request) -> Result<Reply, ClientError> {
        self.runtime.block_on(self.client.call(&request))
    }

    pub(crate) fn subscribe(&mut self, request: Request) {
        self.runtime.block_on(self.client.subscribe(&request)).unwrap();
    }

    pub(crate) fn event(&mut self) -> Result<Event, ClientError> {
        self.runtime.block_on(self.client.event())
    }

    fn prepare(&mut self, id: &str, tied: bool) -> Result<Permit, Refusal> {
        match self.call(Request::Prepare { request_id: Some(id.into()), tied }).unwrap() {
            Reply::Prepared { permit, .. } => Ok(permit),
            Reply::Refused(refusal) => Err(refusal),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn hold(&mut self, who: &str) -> Result<u64, ClientError> {
        match self.call(Request::Hold { who: who.into(), why: "a test".into() })? {
            Reply::Held { number } => Ok(number),
            other => panic!("{other:?}"),
        }
    }
}

/// Passes everything on to the child, and answers back until `swallow_after` frames have gone by.
fn swallowing_proxy(home: &Home, child: &Child, swallow_after: usize) -> PathBuf {
    let path = home.root().join("proxy");
    let _ = fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    let socket = child.socket();
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut child = UnixStream::connect(socket).unwrap();
        let (mut from_client, mut to_child) = (client.try_clone().unwrap(), child.try_clone().unwrap());
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut from_client, &mut to_child);
            let _ = to_child.shutdown(std::net::Shutdown::Write);
        });
        for _ in 0..swallow_after {
            let mut length = [0; 4];
            child.read_exact(&mut length).unwrap();
            let mut frame = vec![0; u32::from_be_bytes(length) as usize];
            child.read_exact(&mut frame).unwrap();
            client.write_all(&length).and_then(|()| client.write_all(&frame)).unwrap();
        }
        // The next answer is read, so that it was surely given, and never passed on.
        let _ = child.read(&mut [0; 1]);
        let _ = client.shutdown(std::net::Shutdown::Both);
    });
    path
}

#[test]
fn a_lost_prepare_reply_costs_nothing() {
    let home = Home::new();
    let child = Child::spawn(&home, &Opts::desktop());
    let mut through = Peer::try_connect(&swallowing_proxy(&home, &child, 1)).unwrap();
    let lost = through.call(Request::Prepare { request_id: Some("r".into()), tied: false });
    assert!(matches!(lost, Err(ClientError::ShortReply)), "{lost:?}");
    let mut direct = Peer::connect(&child);
    assert!(direct.prepare("other", false).unwrap_err().retiring, "the permit lives");
    let permit = direct.prepare("r", false).expect("the same id gets the permit");
    assert_eq!(direct.call(Request::Cancel { permit }).unwrap(), Reply::Cancelled { ok: true });
}

#[test]
fn a_lost_commit_reply_costs_nothing() {
    let home = Home::new();
    let mut child = Child::spawn(&home, &Opts::desktop());
    let mut through = Peer::try_connect(&swallowing_proxy(&home, &child, 2)).unwrap();
    let permit = through.prepare("r", false).unwrap();
    let begun = Instant::now();
    assert!(through.call(Request::Commit { permit: permit.clone() }).is_err());
    let again = Peer::connect(&child).call(Request::Commit { permit }).unwrap();
    assert!(matches!(again, Reply::Committed { ok: true, .. }), "asked again within the second: {again:?}");
    assert_eq!(child.wait_exit(Duration::from_secs(5)).code(), Some(0));
    assert!(begun.elapsed() < Duration::from_millis(2500), "{:?}", begun.elapsed());
    home.assert_no_endpoint_left();
    assert!(child.stderr().contains("\"r\""), "the exit is logged with the request id: {}", child.stderr());
}

#[test]
fn a_tied_permit_dies_with_its_connection() {
    let home = Home::new();
    let child = Child::spawn(&home, &Opts::desktop());
    let mut owner = Peer::connect(&child);
    owner.prepare("r", true).unwrap();
    let mut other = Peer::connect(&child);
    assert!(other.prepare("s", false).unwrap_err().retiring);
    drop(owner);
    wait_until("the fence to reopen", SOON, || other.prepare("s", false).is_ok());
}

#[test]
fn work_is_refused_with_the_typed_error_over_both_doors() {
    let home = Home::new();
    let child = Child::spawn(&home, &Opts::desktop());
    let mut peer = Peer::connect(&child);
    let permit = peer.prepare("r", false).unwrap();
    let Err(ClientError::Fault(fault)) = peer.hold("me") else { panic!("not refused") };
    assert_eq!(
        (fault.kind, fault.message.as_str()),
        (FaultKind::Retiring, "backend is retiring; reconnect to continue")
    );
    let header = format!("X-Hermes-Session-Token: {TOKEN}");
    let hold = ["-H", header.as_str(), "-X", "POST", "-d", r#"{"why":"a test"}"#];
    let reply = curl(&child, "/api/holds", &hold);
    assert_eq!(reply.status, 503);
    assert_eq!(reply.text(), r#"{"detail":"backend is retiring; reconnect to continue","retiring":true}"#);
    assert_eq!(peer.call(Request::Cancel { permit }).unwrap(), Reply::Cancelled { ok: true });
    let number = peer.hold("me").unwrap();
    child.wait_busy("hold:me");
    assert_eq!(peer.call(Request::Release { number }).unwrap(), Reply::Released { ok: true });
    child.wait_idle();
}

#[test]
fn a_hold_that_is_told_to_go_lasts_until_its_command_has_gone() {
    let home = Home::new();
    let child = Child::spawn(&home, &Opts::desktop());
    let go = home.root().join("go");
    let script = r#"trap 'until [ -e "$0" ]; do sleep 0.01; done; exit 9' TERM; echo up; while :; do sleep 0.01; done"#;
    let command = ["hold", "--why", "a test", "--", "sh", "-c", script, go.to_str().unwrap()];
    let mut ctl = home.ctl(&command).stdout(Stdio::piped()).spawn().unwrap();
    let mut up = [0; 3];
    ctl.stdout.as_mut().unwrap().read_exact(&mut up).unwrap();
    kill(Pid::from_raw(i32::try_from(ctl.id()).unwrap()), Signal::SIGTERM).unwrap();
    child.holds("the command is not done yet", 30, |verdict| *verdict == busy("hold:sh"));
    fs::write(&go, "").unwrap();
    assert_eq!(ctl.wait().unwrap().code(), Some(9));
    child.wait_idle();
}

#[test]
fn a_hold_ends_with_whoever_holds_it() {
    let home = Home::new();
    let child = Child::spawn(&home, &Opts::desktop());
    let mut peer = Peer::connect(&child);
    peer.hold("socket").unwrap();
    child.wait_busy("hold:socket");
    drop(peer);
    child.wait_idle();

    // `cat` outlives its killed parent, and ends with its input.
    let mut ctl = home.ctl(&["hold", "--why", "a test", "--", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
    child.wait_busy("hold:cat");
    let refused = hermesctl(&home, &["retire", "--pid", &child.pid_arg()]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stdout.contains("hold cat"), "{refused:?}");
    ctl.kill().unwrap();
    ctl.wait().unwrap();
    child.wait_idle();
    assert_eq!(hermesctl(&home, &["hold", "--why", "a test", "--", "sh", "-c", "exit 7"]).code, 7);

    let header = format!("X-Hermes-Session-Token: {TOKEN}");
    let url = format!("http://127.0.0.1:{}/api/holds", child.port);
    let mut curl = Command::new("curl");
    curl.args(["-sN", "-H", &header, "-d", r#"{"who":"web","why":"a test"}"#, &url]).stdout(Stdio::piped());
    let mut curl = curl.spawn().unwrap();
    child.wait_busy("hold:web");
    curl.kill().unwrap();
    curl.wait().unwrap();
    child.wait_idle();
}

#[test]
fn a_job_that_comes_due_under_a_permit_starts_when_it_is_given_back() {
    let home = Home::new();
    home.script("quick.sh", "echo ran >> \"$HERMES_HOME/ran\"\n");
    let child = Child::spawn(&home, &Opts::desktop());
    let mut peer = Peer::connect(&child);
    let permit = peer.prepare("r", false).unwrap();
    home.write_jobs(&[due("waiting", "quick.sh")]);
    child.holds("no job to start under a permit", 20, |verdict| verdict["idle"] == true);
    assert_eq!((home.read("ran"), home.job_on_disk("waiting")["last_run_at"].clone()), (String::new(), json!(null)));
    let cancelled = Instant::now();
    peer.call(Request::Cancel { permit }).unwrap();
    wait_until("the job to start", SOON, || !home.read("ran").is_empty());
    assert!(cancelled.elapsed() < Duration::from_secs(1), "{:?}", cancelled.elapsed());
    home.wait_status("waiting", "ok");
    assert_eq!(home.read("ran"), "ran\n");
}

#[test]
fn a_job_that_comes_due_after_a_commit_is_left_due() {
    let home = Home::new();
    home.script("quick.sh", "echo ran >> \"$HERMES_HOME/ran\"\n");
    let mut child = Child::spawn(&home, &Opts::desktop());
    let mut peer = Peer::connect(&child);
    let permit = peer.prepare("r", false).unwrap();
    peer.call(Request::Commit { permit }).unwrap();
    home.write_jobs(&[due("waiting", "quick.sh")]);
    let before = home.jobs_text();
    assert_eq!(child.wait_exit(Duration::from_secs(5)).code(), Some(0));
    assert_eq!((home.jobs_text(), home.read("ran")), (before, String::new()));
}

#[test]
fn when_idle_gets_the_permit_as_the_last_holder_goes() {
    let home = home_with_waiting_job("job");
    let mut child = Child::spawn(&home, &Opts::desktop());
    child.wait_busy("cron:job");
    let mut peer = Peer::connect(&child);
    peer.subscribe(Request::RetireWhenIdle { deadline_ms: None, request_id: Some("w".into()) });
    let Event::Waiting(refusal) = peer.event().unwrap() else { panic!("not waiting") };
    assert_eq!(refusal.holders[0].id, "job");
    // The child works on as usual meanwhile.
    let mut holder = Peer::connect(&child);
    holder.hold("late").unwrap();
    home.touch("release");
    loop {
        match peer.event().unwrap() {
            Event::Waiting(refusal) if refusal.holders.iter().all(|holder| holder.id == "late") => break,
            Event::Waiting(_) => {}
            other => panic!("{other:?}"),
        }
    }
    drop(holder);
    let permit = loop {
        match peer.event().unwrap() {
            Event::Prepared { permit, .. } => break permit,
            Event::Waiting(_) => {}
            other => panic!("{other:?}"),
        }
    };
    assert!(Peer::connect(&child).hold("too-late").is_err());
    assert!(matches!(peer.call(Request::Commit { permit }).unwrap(), Reply::Committed { ok: true, .. }));
    assert_eq!(child.wait_exit(Duration::from_secs(5)).code(), Some(0));
    assert_eq!(home.job_on_disk("job")["last_status"], "ok");
}

#[test]
fn when_idle_ends_with_its_connection_and_with_its_deadline() {
    let home = Home::new();
    let child = Child::spawn(&home, &Opts::desktop());
    let mut holder = Peer::connect(&child);
    let number = holder.hold("me").unwrap();
    let mut gone = Peer::connect(&child);
    gone.subscribe(Request::RetireWhenIdle { deadline_ms: None, request_id: None });
    gone.event().unwrap();
    drop(gone);
    let mut late = Peer::connect(&child);
    late.subscribe(Request::RetireWhenIdle { deadline_ms: Some(50), request_id: None });
    late.event().unwrap();
    let Err(ClientError::Fault(fault)) = late.event() else { panic!("no deadline") };
    assert_eq!(fault.kind, FaultKind::TimedOut);
    holder.call(Request::Release { number }).unwrap();
    wait_until("nobody to stand in line", SOON, || {
        let permit = holder.prepare("r", false);
        permit.is_ok_and(|permit| holder.call(Request::Cancel { permit }).unwrap() == Reply::Cancelled { ok: true })
    });
}

#[test]
fn hermesctl_retires_an_idle_child_and_says_when_its_next_job_is_due() {
    let home = Home::new();
    home.script("quick.sh", "true\n");
    home.write_jobs(&[crate::support::job("later", 60, "quick.sh", &iso_from_now(3600))]);
    let child = Child::spawn(&home, &Opts::desktop().profile("p"));
    let profile = home.path().join("profiles/p");
    crate::support::write_jobs_in(&profile, &home.jobs_text());
    wait_until("the job to be known", SOON, || {
        hermesctl(&home, &["ledger", "p", "--json"]).json()["ticker"]["next_due"].is_string()
    });
    let retired = hermesctl(&home, &["retire", "p", "--json"]);
    assert_eq!(retired.code, 0, "{retired:?}");
    let json = retired.json();
    assert_eq!((&json["ok"], &json["profile"], &json["pid"]), (&json!(true), &json!("p"), &json!(child.pid)));
    assert!(json["next_due"].is_string(), "{json}");
    assert!(gone(child.pid));
    home.assert_no_endpoint_left();
    assert_eq!(hermesctl(&home, &["retire", "p"]).code, 4);
}

#[test]
fn hermesctl_names_what_holds_a_busy_child_and_stops_nothing() {
    let home = home_with_waiting_job("job");
    let child = Child::spawn(&home, &Opts::desktop());
    child.wait_busy("cron:job");
    let refused = hermesctl(&home, &["retire", "--pid", &child.pid_arg()]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stdout.contains("cron job for"), "{refused:?}");
    let json = hermesctl(&home, &["retire", "--pid", &child.pid_arg(), "--json"]).json();
    assert_eq!(
        (&json["ok"], &json["reason"], &json["detail"]),
        (&json!(false), &json!("turn_in_flight"), &json!("cron:job"))
    );
    assert!(json["holders"][0]["age_ms"].is_u64() && json["since_ms"].is_u64() && json["more"] == 0, "{json}");
    home.touch("release");
    home.wait_status("job", "ok");
}

#[test]
fn hermesctl_waits_in_line_until_the_child_is_idle() {
    let home = home_with_waiting_job("job");
    let mut child = Child::spawn(&home, &Opts::desktop());
    child.wait_busy("cron:job");
    let args = ["retire", "--when-idle", "--timeout", "50ms", "--pid", &child.pid_arg()];
    assert_eq!(hermesctl(&home, &args).code, 1);
    let waiting = home.ctl(&["retire", "--when-idle", "--pid", &child.pid_arg()]).spawn().unwrap();
    home.touch("release");
    let out = waiting.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    assert_eq!(child.wait_exit(Duration::from_secs(5)).code(), Some(0));
    assert_eq!(home.job_on_disk("job")["last_status"], "ok");
}

#[test]
fn force_needs_a_word_and_records_what_it_cut_off() {
    let home = home_with_waiting_job("job");
    let mut child = Child::spawn(&home, &Opts::desktop().env("HERMES_SHUTDOWN_GRACE", "0.1"));
    child.wait_busy("cron:job");
    let silent = hermesctl(&home, &["retire", "--force"]);
    assert_eq!(silent.code, 2, "{silent:?}");
    assert!(silent.stderr.contains("--yes"), "{silent:?}");
    child.wait_busy("cron:job");
    let forced = hermesctl(&home, &["retire", "--force", "--yes"]);
    assert_eq!(forced.code, 0, "{forced:?}");
    assert_eq!(child.wait_exit(SOON).code(), Some(0));
    assert_eq!(home.job_on_disk("job")["last_status"], "interrupted");
}

#[test]
fn the_control_token_is_needed_to_retire_where_one_is_set() {
    let home = Home::new();
    let _child = Child::spawn(&home, &Opts::desktop().env("HERMES_CONTROL_TOKEN", "control"));
    assert_eq!(hermesctl(&home, &["idle"]).code, 0);
    let refused = hermesctl(&home, &["retire"]);
    assert_eq!(refused.code, 5, "{refused:?}");
    assert!(refused.stderr.contains("control token"), "{refused:?}");
    let file = home.root().join("token");
    fs::write(&file, "control\n").unwrap();
    assert_eq!(hermesctl(&home, &["retire", "--token-file", file.to_str().unwrap()]).code, 0);
}

#[test]
fn a_hundred_watchers_all_end_with_the_true_last_verdict() {
    let home = Home::new();
    let child = Child::spawn(&home, &Opts::desktop());
    let mut watchers: Vec<Peer> = (0..100).map(|_| Peer::connect(&child)).collect();
    for watcher in &mut watchers {
        watcher.subscribe(Request::Watch);
        assert_eq!(watcher.event().unwrap(), Event::Verdict(Verdict::Idle));
    }
    let mut flipper = Peer::connect(&child);
    for _ in 0..300 {
        let number = flipper.hold("flip").unwrap();
        flipper.call(Request::Release { number }).unwrap();
    }
    flipper.hold("last").unwrap();
    let last = Event::Verdict(Verdict::TurnInFlight { detail: Some("hold:last".into()) });
    for watcher in &mut watchers {
        while watcher.event().unwrap() != last {}
    }
}

#[test]
fn a_watcher_that_never_reads_harms_nobody() {
    let home = Home::new();
    let child = Child::spawn(&home, &Opts::desktop());
    let _stalled: Vec<Peer> = (0..20)
        .map(|_| {
            let mut peer = Peer::connect(&child);
            peer.subscribe(Request::Watch);
            peer
        })
        .collect();
    let mut reader = Peer::connect(&child);
    reader.subscribe(Request::Watch);
    let mut flipper = Peer::connect(&child);
    for _ in 0..200 {
        let number = flipper.hold("flip").unwrap();
        flipper.call(Request::Release { number }).unwrap();
    }
    flipper.hold("last").unwrap();
    let last = Event::Verdict(Verdict::TurnInFlight { detail: Some("hold:last".into()) });
    while reader.event().unwrap() != last {}
}

#[test]
fn a_hold_until_eof_lasts_as_long_as_its_standard_input() {
    let home = Home::new();
    let child = Child::spawn(&home, &Opts::desktop().profile("p"));
    let mut command = home.ctl(&["hold", "--why", "a test", "--who", "pipe", "--until-eof", "--profile", "p"]);
    let mut holder = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
    child.wait_busy("hold:pipe");
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
    child.wait_idle();
}
