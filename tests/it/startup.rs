//! Starting, refusing to start, being found, and leaving nothing behind.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{
    Capture, Child, Home, Opts, SOON, TOKEN, assert_clear_refusal, curl, gone, hermesctl, home_with_waiting_job, idle,
    kill_pid, mode, private_dir, ready_lines, refused, start_marker, wait_until,
};

#[test]
fn a_taken_port_is_said_on_stdout_and_exits_75() {
    let home = Home::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let output = refused(&home, &Opts::plain().port(port));
    assert_eq!(output.code, 75, "{output:?}");
    assert_eq!(output.stdout, format!("BACKEND_PORT_IN_USE port={port}\n"));
    home.assert_no_endpoint_left();
}

#[test]
fn a_named_port_is_the_one_that_is_used() {
    let home = Home::new();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let child = Child::spawn(&home, &Opts::plain().port(port));
    assert_eq!(child.port, port);
    child.wait_idle();
}

#[test]
fn a_second_child_on_a_live_home_exits_76_and_the_first_is_untouched() {
    let home = Home::new();
    let first = Child::spawn(&home, &Opts::desktop());
    first.wait_idle();
    let before = first.record();
    let second = refused(&home, &Opts::desktop());
    assert_eq!(second.code, 76, "{second:?}");
    assert_clear_refusal(&second, "");
    assert!(!second.stderr.trim().is_empty(), "a clear error");
    assert_eq!(first.record(), before);
    assert_eq!(first.verdict(), idle());
    assert_eq!(hermesctl(&home, &["idle"]).code, 0, "its socket still answers");
}

#[test]
fn a_home_named_by_a_symlink_is_the_same_home() {
    let home = Home::new();
    let _first = Child::spawn(&home, &Opts::plain());
    let link = home.root().join("l");
    symlink(home.path(), &link).unwrap();
    assert_eq!(refused(&home, &Opts::plain().env("HERMES_HOME", &link)).code, 76);
}

#[test]
fn after_kill_nine_there_is_no_ghost_and_a_new_child_starts() {
    let home = Home::new();
    let mut first = Child::spawn(&home, &Opts::desktop());
    let (record, _) = first.record();
    let socket = first.socket();
    first.kill_hard();
    assert!(record.exists() && socket.exists(), "a kill leaves them");
    let list = hermesctl(&home, &["list", "--json"]);
    assert_eq!(list.json(), json!([]), "{list:?}");
    assert!(!record.exists(), "the record of a dead process is swept");
    assert_eq!(hermesctl(&home, &["idle", "--pid", &first.pid_arg()]).code, 4);
    let second = Child::spawn(&home, &Opts::desktop());
    second.wait_idle();
    assert_eq!(second.socket(), socket);
    let list = hermesctl(&home, &["list", "--json"]).json();
    assert_eq!(list.as_array().map(Vec::len), Some(1), "{list}");
    assert_eq!(list[0]["pid"], second.pid);
}

#[test]
fn a_new_child_replaces_the_stale_socket_without_any_help() {
    let home = Home::new();
    let mut first = Child::spawn(&home, &Opts::desktop());
    first.kill_hard();
    let second = Child::spawn(&home, &Opts::desktop());
    assert_eq!(hermesctl(&home, &["idle", "--via", "socket"]).code, 0);
    assert_eq!(second.record().1["pid"], second.pid);
}

#[test]
fn a_regular_file_in_the_sockets_place_is_never_deleted() {
    let home = Home::new();
    let mut first = Child::spawn(&home, &Opts::plain());
    let socket = first.socket();
    assert_eq!(first.terminate().code(), Some(0));
    fs::write(&socket, b"somebody's letters").unwrap();
    let output = refused(&home, &Opts::plain());
    assert_clear_refusal(&output, socket.to_str().unwrap());
    assert_eq!(fs::read(&socket).unwrap(), b"somebody's letters");
}

#[test]
fn a_runtime_directory_that_is_a_symlink_is_refused() {
    let home = Home::new();
    let link = home.root().join("link");
    symlink(home.runtime(), &link).unwrap();
    let output = refused(&home, &Opts::plain().env("HERMES_RUNTIME_DIR", &link));
    assert_clear_refusal(&output, link.to_str().unwrap());
    home.assert_no_endpoint_left();
}

#[test]
fn a_runtime_directory_that_others_may_use_is_refused() {
    for wide in [0o770, 0o720, 0o707, 0o777, 0o755] {
        let home = Home::new();
        fs::set_permissions(home.runtime(), fs::Permissions::from_mode(wide)).unwrap();
        let output = refused(&home, &Opts::plain());
        assert_clear_refusal(&output, home.runtime().to_str().unwrap());
        assert_eq!(mode(&home.runtime()), wide, "it is not ours to repair");
    }
}

#[test]
fn a_runtime_directory_that_is_a_file_is_refused() {
    let home = Home::new();
    let file = home.root().join("file");
    fs::write(&file, b"kept").unwrap();
    assert_clear_refusal(&refused(&home, &Opts::plain().env("HERMES_RUNTIME_DIR", &file)), file.to_str().unwrap());
    assert_eq!(fs::read(&file).unwrap(), b"kept");
}

#[test]
fn a_socket_path_that_is_too_long_is_a_clear_error() {
    let home = Home::new();
    let long = home.root().join("d".repeat(100));
    private_dir(&long);
    let output = refused(&home, &Opts::plain().env("HERMES_RUNTIME_DIR", &long));
    assert_clear_refusal(&output, long.to_str().unwrap());
}

#[test]
fn a_host_that_is_not_loopback_is_refused() {
    for host in ["0.0.0.0", "::", "192.0.2.1", "evil.example"] {
        let home = Home::new();
        let output = refused(&home, &Opts::plain().host(host));
        assert_clear_refusal(&output, host);
        home.assert_no_endpoint_left();
    }
}

#[test]
fn a_home_that_cannot_be_made_is_a_clear_error() {
    // Below a regular file, so that it holds for root too.
    let home = Home::new();
    let file = home.root().join("file");
    fs::write(&file, b"kept").unwrap();
    let below = file.join("home");
    let output = refused(&home, &Opts::desktop().env("HERMES_HOME", &below));
    assert_clear_refusal(&output, below.to_str().unwrap());
    assert_eq!(fs::read(&file).unwrap(), b"kept");
    home.assert_no_endpoint_left();
}

#[test]
fn a_profile_name_that_leaves_the_home_is_refused() {
    for name in ["../evil", "a/b", ".."] {
        let home = Home::new();
        let output = refused(&home, &Opts::plain().profile(name));
        assert!(output.code != 0 && output.code != 101 && output.stdout.is_empty(), "{name:?}: {output:?}");
        assert!(!home.root().join("evil").exists() && !home.path().join("evil").exists());
    }
}

#[test]
fn nothing_but_the_two_lines_goes_to_stdout() {
    let home = home_with_waiting_job("noisy");
    let mut child = Child::spawn(&home, &Opts::desktop());
    child.wait_busy("cron:noisy");
    hermesctl(&home, &["idle"]);
    home.touch("release");
    child.wait_idle();
    assert_eq!(child.terminate().code(), Some(0));
    assert_eq!(child.stdout(), ready_lines(child.port));
}

#[test]
fn the_endpoint_record_says_where_and_who() {
    let home = Home::new();
    let child = Child::spawn(&home, &Opts::desktop());
    let (path, record) = child.record();
    let mut keys: Vec<&str> = record.as_object().expect("an object").keys().map(String::as_str).collect();
    keys.sort_unstable();
    let expected = ["generation", "home", "pid", "port", "profile", "socket", "start_marker", "token", "version"];
    assert_eq!(keys, expected);
    assert_eq!(record["pid"], child.pid);
    assert_eq!(record["port"], child.port);
    assert_eq!(record["token"], TOKEN);
    assert_eq!(record["profile"], Value::Null);
    let started = start_marker(child.pid).replace("linux:", "");
    assert!(record["start_marker"].to_string().contains(&started), "{record}");
    assert_eq!(record["home"], home.path().to_str().unwrap());
    assert!(record["version"].as_str().is_some_and(|version| !version.is_empty()));
    assert!(record["generation"].as_str().is_some_and(|generation| !generation.is_empty()));

    let socket = child.socket();
    assert!(socket.is_absolute() && fs::symlink_metadata(&socket).unwrap().file_type().is_socket());
    assert_eq!((mode(&path), mode(&socket), mode(&home.runtime())), (0o600, 0o600, 0o700));
    assert_eq!(path.parent(), Some(home.runtime().as_path()));
    assert_eq!(path.with_extension("sock"), socket);
    let stem = path.file_stem().unwrap().to_str().unwrap();
    assert!(stem.len() == 12 && stem.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f')), "{stem}");
}

#[test]
fn record_and_socket_are_gone_after_sigterm_and_sigint() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let home = Home::new();
        let mut child = Child::spawn(&home, &Opts::desktop());
        assert_eq!((home.records().len(), home.sockets().len()), (1, 1));
        child.signal(signal);
        assert_eq!(child.wait_exit(Duration::from_secs(10)).code(), Some(0), "{signal}: {}", child.logs());
        home.assert_no_endpoint_left();
    }
}

#[test]
fn only_our_own_socket_is_removed_at_exit() {
    let home = Home::new();
    let mut child = Child::spawn(&home, &Opts::plain());
    let socket = child.socket();
    // By rename, so that the child never sees the name free and binds it again.
    let other = home.root().join("other");
    fs::write(&other, b"another's").unwrap();
    fs::rename(&other, &socket).unwrap();
    assert_eq!(child.terminate().code(), Some(0));
    assert_eq!(fs::read(&socket).unwrap(), b"another's");
}

#[test]
fn a_profile_has_a_home_of_its_own() {
    let home = Home::new();
    let child = Child::spawn(&home, &Opts::desktop().profile("p"));
    let profile = home.path().join("profiles/p");
    assert_eq!(mode(&profile), 0o700);
    let (_, record) = child.record();
    assert_eq!(record["profile"], "p");
    assert_eq!(record["home"], profile.to_str().unwrap());
    // Another profile of the same home is another child.
    let other = Child::spawn(&home, &Opts::desktop().profile("q"));
    assert_ne!(other.socket(), child.socket());
}

#[test]
fn without_a_token_in_the_environment_a_child_makes_its_own() {
    for given in [None, Some("")] {
        let home = Home::new();
        let mut command = Opts::plain().command(&home);
        command.env_remove("HERMES_DASHBOARD_SESSION_TOKEN");
        if let Some(given) = given {
            command.env("HERMES_DASHBOARD_SESSION_TOKEN", given);
        }
        let mut process = command.spawn().unwrap();
        let stdout = Capture::start(process.stdout.take().unwrap());
        wait_until("READY", SOON, || stdout.text().matches('\n').count() == 2);
        let record: Value = serde_json::from_slice(&fs::read(&home.records()[0]).unwrap()).unwrap();
        let token = record["token"].as_str().expect("a token").to_owned();
        assert!(token.len() >= 43, "256 bits: {token:?}");
        assert_eq!(hermesctl(&home, &["idle"]).code, 0, "the record's token works");
        process.kill().unwrap();
        process.wait().unwrap();
    }
}

#[test]
fn the_token_is_nowhere_to_be_read() {
    let home = home_with_waiting_job("quiet");
    let mut child = Child::spawn(&home, &Opts::desktop().env("RUST_LOG", "trace"));
    let header = format!("X-Hermes-Session-Token: {TOKEN}");
    for path in ["/", "/api/health", "/api/health/idle", "/nope"] {
        let reply = curl(&child, path, &["-H", &header]);
        assert!(!format!("{:?}{}", reply.headers, String::from_utf8_lossy(&reply.body)).contains(TOKEN), "{path}");
    }
    curl(&child, &format!("/api/health/idle?token={TOKEN}"), &[]);
    for args in [&["idle", "--json"][..], &["list", "--json"], &["list"], &["ledger"], &["idle", "--via", "http"]] {
        let output = hermesctl(&home, args);
        assert!(!output.stdout.contains(TOKEN) && !output.stderr.contains(TOKEN), "{args:?}: {output:?}");
    }
    let arguments = fs::read(format!("/proc/{}/cmdline", child.pid)).unwrap();
    assert!(!String::from_utf8_lossy(&arguments).contains(TOKEN));
    home.touch("release");
    child.wait_idle();
    assert_eq!(child.terminate().code(), Some(0));
    assert!(!child.logs().contains(TOKEN), "{}", child.logs());
}

// ---------------------------------------------------------------- the parent's death

/// A child whose parent is a process that we may kill.
struct Orphan {
    parent: std::process::Child,
    pid: u32,
    home: Home,
    _stdout: Capture,
    _stderr: Capture,
}

impl Orphan {
    fn spawn(home: &Home, env: &[(&str, &str)]) -> Self {
        let script = r#"
export HERMES_PARENT_PID=$$
export HERMES_PARENT_START_MARKER="linux:$(cut -d' ' -f22 /proc/$$/stat)"
export HERMES_PARENT_NONCE=a-nonce
"$0" serve --host 127.0.0.1 --port 0 &
exec sleep 300
"#;
        let mut command = Command::new("bash");
        command.args(["-c", script, env!("CARGO_BIN_EXE_hermes")]);
        home.environment(&mut command);
        command.env("HERMES_DASHBOARD_SESSION_TOKEN", TOKEN).env("HERMES_DESKTOP", "1").envs(env.iter().copied());
        let mut parent = command.process_group(0).spawn().unwrap();
        let stdout = Capture::start(parent.stdout.take().unwrap());
        let stderr = Capture::start(parent.stderr.take().unwrap());
        wait_until("READY under another parent", SOON, || stdout.text().contains("HERMES_DASHBOARD_READY port="));
        let record: Value = serde_json::from_slice(&fs::read(&home.records()[0]).unwrap()).unwrap();
        let pid = u32::try_from(record["pid"].as_u64().expect("a pid")).unwrap();
        Self { parent, pid, home: home.clone(), _stdout: stdout, _stderr: stderr }
    }

    /// Kills the parent alone.
    fn bereave(&mut self) {
        self.parent.kill().unwrap();
        self.parent.wait().unwrap();
    }

    fn idle_code(&self) -> i32 {
        hermesctl(&self.home, &["idle", "--pid", &self.pid.to_string()]).code
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        let _ = self.parent.kill();
        let _ = self.parent.wait();
        kill_pid(self.pid);
    }
}

#[test]
fn an_idle_child_leaves_soon_after_its_parent_died() {
    let home = Home::new();
    let mut orphan = Orphan::spawn(&home, &[]);
    for _ in 0..10 {
        assert_eq!(orphan.idle_code(), 0, "while the parent lives the child stays");
    }
    orphan.bereave();
    let died = Instant::now();
    wait_until("the orphan's end", SOON, || gone(orphan.pid));
    assert!(died.elapsed() < Duration::from_secs(3), "within 1 s, with slack: {:?}", died.elapsed());
    home.assert_no_endpoint_left();
}

#[test]
fn a_busy_orphan_lets_its_job_end_and_then_leaves() {
    let home = home_with_waiting_job("last-work");
    let mut orphan = Orphan::spawn(&home, &[]);
    home.pid_in("pid");
    orphan.bereave();
    for _ in 0..30 {
        assert_eq!(orphan.idle_code(), 1, "busy, and still there");
    }
    home.touch("release");
    wait_until("the orphan's end", SOON, || gone(orphan.pid));
    assert_eq!(home.job_on_disk("last-work")["last_status"], "ok");
    home.assert_no_endpoint_left();
}

#[test]
fn a_busy_orphan_without_grace_interrupts_its_job_and_records_it() {
    let home = home_with_waiting_job("cut-short");
    let mut orphan = Orphan::spawn(&home, &[("HERMES_ORPHAN_GRACE", "0")]);
    let job = home.pid_in("pid");
    orphan.bereave();
    wait_until("the orphan's end", SOON, || gone(orphan.pid));
    assert!(gone(job), "the job outlived its child");
    assert_eq!(home.job_on_disk("cut-short")["last_status"], "interrupted");
    home.assert_no_endpoint_left();
}

#[test]
fn a_wrong_start_marker_means_that_the_parent_is_dead() {
    let home = Home::new();
    // Our own pid, but a process that started at another time: the number was reused.
    let opts = Opts::desktop()
        .env("HERMES_PARENT_PID", std::process::id().to_string())
        .env("HERMES_PARENT_START_MARKER", "linux:1")
        .env("HERMES_PARENT_NONCE", "a-nonce");
    let mut command = opts.command(&home);
    let mut process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("the end of a child whose parent is not the one it was told of", SOON, || {
        process.try_wait().unwrap().is_some()
    });
    home.assert_no_endpoint_left();
}

#[test]
fn the_death_of_a_parent_that_was_not_named_changes_nothing() {
    let home = Home::new();
    let mut command = Command::new("bash");
    command.args(["-c", "\"$0\" serve --host 127.0.0.1 --port 0 & exec sleep 300", env!("CARGO_BIN_EXE_hermes")]);
    home.environment(&mut command);
    let mut parent = command.process_group(0).spawn().unwrap();
    let stdout = Capture::start(parent.stdout.take().unwrap());
    wait_until("READY", SOON, || stdout.text().contains("HERMES_DASHBOARD_READY port="));
    parent.kill().unwrap();
    parent.wait().unwrap();
    for _ in 0..30 {
        assert_eq!(hermesctl(&home, &["idle"]).code, 0);
    }
}

#[test]
fn a_busy_orphan_is_adopted_by_a_new_owner_and_works_on() {
    use hermes::client::ClientError;
    use hermes::protocol::{FaultKind, Reply, Request};

    let home = home_with_waiting_job("last-work");
    let mut orphan = Orphan::spawn(&home, &[]);
    home.pid_in("pid");
    let socket = home.sockets()[0].clone();
    let adopt = |pid: u32, marker: &str| Request::Adopt { pid, start_marker: marker.to_owned() };
    let (own, marker) = (std::process::id(), crate::support::start_marker(std::process::id()));
    let mut peer = crate::retire::Peer::try_connect(&socket).unwrap();
    let kind = |answer: Result<Reply, ClientError>| match answer {
        Err(ClientError::Fault(fault)) => fault.kind,
        other => panic!("{other:?}"),
    };
    assert_eq!(kind(peer.call(adopt(own, &marker))), FaultKind::Conflict, "its owner lives");
    orphan.bereave();
    wait_until("admission to close", SOON, || peer.hold("probe").is_err());
    assert_eq!(kind(peer.call(adopt(1, &marker))), FaultKind::Forbidden, "not the peer's own pid");
    assert_eq!(kind(peer.call(adopt(own, "linux:1"))), FaultKind::Invalid);
    assert_eq!(peer.call(adopt(own, &marker)).unwrap(), Reply::Adopted);
    let number = peer.hold("new owner").unwrap();
    home.touch("release");
    home.wait_status("last-work", "ok");
    peer.call(Request::Release { number }).unwrap();
    for _ in 0..20 {
        assert_eq!(orphan.idle_code(), 0, "it has an owner again, and stays");
    }
}

#[test]
fn a_child_starts_straight_after_its_predecessor_was_killed() {
    let home = Home::new();
    let mut child = Child::spawn(&home, &Opts::desktop());
    for _ in 0..10 {
        // Not waited for: the kernel is still taking the old one apart when the new one asks for the lock.
        child.signal(Signal::SIGKILL);
        child = Child::spawn(&home, &Opts::desktop());
    }
    child.wait_idle();
}

#[test]
fn a_child_whose_log_nobody_reads_any_more_goes_on() {
    let home = Home::new();
    let mut command = Opts::desktop().env("HERMES_LOG", "debug").command(&home);
    let mut process = command.spawn().unwrap();
    drop(process.stderr.take());
    wait_until("the child to serve", SOON, || hermesctl(&home, &["idle"]).code == 0);
    assert_eq!(hermesctl(&home, &["hold", "--why", "logged", "--", "true"]).code, 0);
    assert!(process.try_wait().unwrap().is_none(), "it lives");
    assert_eq!(hermesctl(&home, &["retire"]).code, 0);
    process.wait().unwrap();
}
