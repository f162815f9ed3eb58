//! `hermesctl idle`: its exit codes, its targets, and what it prints.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use crate::support::{
    Capture, Child, Home, Opts, Output, SOON, TOKEN, WAITING_SCRIPT, due, hermesctl, home_with_waiting_job, run,
    wait_until, write_jobs_in, write_script_in,
};

fn idle_child() -> (Home, Child) {
    let home = Home::new();
    let child = Child::spawn(&home, &Opts::desktop());
    child.wait_idle();
    (home, child)
}

fn busy_child() -> (Home, Child) {
    let home = home_with_waiting_job("long-job");
    let child = Child::spawn(&home, &Opts::desktop());
    child.wait_busy("cron:long-job");
    (home, child)
}

/// Two profiles of one home, so two children of one runtime directory; `b` runs a job.
fn idle_a_and_busy_b() -> (Home, Child, Child) {
    let home = Home::new();
    let profile = home.path().join("profiles/b");
    write_script_in(&profile, "wait.sh", WAITING_SCRIPT);
    let jobs = json!({"jobs": [due("b-job", "wait.sh")]});
    write_jobs_in(&profile, &jobs.to_string());
    let a = Child::spawn(&home, &Opts::desktop().profile("a"));
    let b = Child::spawn(&home, &Opts::desktop().profile("b"));
    a.wait_idle();
    b.wait_busy("cron:b-job");
    (home, a, b)
}

fn token_file(home: &Home, token: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = home.root().join("token");
    fs::write(&path, format!("{token}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path.to_str().unwrap().to_owned()
}

fn with_env(home: &Home, args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = home.ctl(args);
    command.envs(env.iter().copied());
    run(command, &format!("hermesctl {args:?}"))
}

/// A server that speaks HTTP and answers every request with this body; dies with the test binary.
fn server(status: &'static str, body: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
                head.push(byte[0]);
            }
            let reply = format!(
                "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
            let _ = stream.write_all(reply.as_bytes());
        }
    });
    url
}

#[test]
fn an_idle_child_exits_0() {
    let (home, child) = idle_child();
    let pid = child.pid_arg();
    let socket = child.socket();
    for target in [&["idle"][..], &["idle", "--pid", &pid], &["idle", "--socket", socket.to_str().unwrap()]] {
        let output = hermesctl(&home, target);
        assert_eq!(output.code, 0, "{target:?}: {output:?}");
        assert!(output.stdout.contains("idle"), "people get an answer: {output:?}");
        assert_eq!(output.stderr, "");
        assert!(!output.stdout.contains('\u{1b}'), "no colour where there is no terminal");
    }
}

#[test]
fn a_busy_child_exits_1_and_says_with_what() {
    let (home, _child) = busy_child();
    let output = hermesctl(&home, &["idle"]);
    assert_eq!(output.code, 1, "{output:?}");
    assert!(output.stdout.contains("cron:long-job"), "{output:?}");
}

#[test]
fn a_wrong_command_line_exits_2() {
    let (home, _child) = idle_child();
    for args in [
        &["idle", "--no-such-option"][..],
        &["no-such-verb"],
        &["idle", "--pid", "many"],
        &["idle", "--via", "pigeon"],
        &["idle", "--wait", "--timeout", "soon"],
        &[],
    ] {
        let output = hermesctl(&home, args);
        assert_eq!(output.code, 2, "{args:?}: {output:?}");
        assert_eq!(output.stdout, "", "{args:?}");
        assert!(!output.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn an_ambiguous_target_exits_2_and_lists_the_pids() {
    let (home, a, b) = idle_a_and_busy_b();
    let output = hermesctl(&home, &["idle"]);
    assert_eq!(output.code, 2, "{output:?}");
    assert_eq!(output.stdout, "");
    assert!(output.stderr.contains(&a.pid_arg()) && output.stderr.contains(&b.pid_arg()), "{output:?}");
}

#[test]
fn a_child_is_found_by_its_profile() {
    let (home, a, b) = idle_a_and_busy_b();
    assert_eq!(hermesctl(&home, &["idle", "a"]).code, 0);
    assert_eq!(hermesctl(&home, &["idle", "b"]).code, 1);
    assert_eq!(hermesctl(&home, &["idle", "--profile", "a"]).code, 0);
    let found = hermesctl(&home, &["idle", "--profile", "b", "--json"]).json();
    assert_eq!((&found["pid"], &found["profile"]), (&json!(b.pid), &json!("b")));
    assert_eq!(hermesctl(&home, &["idle", "--json", "a"]).json()["pid"], a.pid);
}

#[test]
fn an_unreadable_ledger_exits_3() {
    let home = Home::new();
    let env = [("HERMES_DASHBOARD_SESSION_TOKEN", TOKEN)];
    for body in [
        r#"{"ok":true,"idle":null,"reason":"turn_probe_unavailable"}"#,
        r#"{"ok":true,"idle":null,"reason":"input_probe_unavailable"}"#,
    ] {
        let url = server("200 OK", body);
        let output = with_env(&home, &["idle", "--url", &url, "--json"], &env);
        assert_eq!(output.code, 3, "{output:?}");
        assert_eq!(output.json()["idle"], Value::Null);
    }
}

#[test]
fn an_answer_that_is_no_verdict_is_never_idle() {
    let home = Home::new();
    let env = [("HERMES_DASHBOARD_SESSION_TOKEN", TOKEN)];
    for (status, body) in [
        ("200 OK", r#"{"ok":false,"idle":true,"reason":null}"#),
        ("200 OK", r#"{"idle":true}"#),
        ("200 OK", r#"{"ok":true,"idle":"true"}"#),
        ("200 OK", r#"{"ok":true,"idle":1}"#),
        ("200 OK", "idle"),
        ("200 OK", ""),
        ("404 Not Found", r#"{"ok":true,"idle":true,"reason":null}"#),
        ("500 Internal Server Error", r#"{"ok":true,"idle":true,"reason":null}"#),
    ] {
        let url = server(status, body);
        let output = with_env(&home, &["idle", "--url", &url], &env);
        assert!(matches!(output.code, 1 | 3 | 4), "{status} {body}: {output:?}");
    }
    let url = server("401 Unauthorized", r#"{"detail":"Unauthorized"}"#);
    assert_eq!(with_env(&home, &["idle", "--url", &url], &env).code, 5);
}

#[test]
fn no_such_child_exits_4() {
    let home = Home::new();
    let nobody = home.root().join("nobody.sock");
    let nobody = nobody.to_str().unwrap();
    for args in [
        &["idle"][..],
        &["idle", "nosuch"],
        &["idle", "--profile", "nosuch"],
        &["idle", "--pid", "4194303"],
        &["idle", "--socket", nobody],
    ] {
        let output = hermesctl(&home, args);
        assert_eq!(output.code, 4, "{args:?}: {output:?}");
        assert!(!output.stderr.is_empty() && output.stdout.is_empty(), "{args:?}: {output:?}");
    }
    // A port that nobody listens on any more.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}");
    let output = with_env(&home, &["idle", "--url", &url], &[("HERMES_DASHBOARD_SESSION_TOKEN", TOKEN)]);
    assert_eq!(output.code, 4, "{output:?}");
}

#[test]
fn a_wrong_token_file_exits_5_over_both_doors() {
    let (home, _child) = idle_child();
    let wrong = token_file(&home, "not-the-token");
    for via in ["socket", "http"] {
        let output = hermesctl(&home, &["idle", "--via", via, "--token-file", &wrong]);
        assert_eq!(output.code, 5, "{via}: {output:?}");
        assert_eq!(output.stdout, "", "{via}");
    }
    let right = token_file(&home, TOKEN);
    for via in ["socket", "http"] {
        let env = [("HERMES_DASHBOARD_SESSION_TOKEN", "ignored: the file comes first")];
        assert_eq!(with_env(&home, &["idle", "--via", via, "--token-file", &right], &env).code, 0, "{via}");
    }
}

#[test]
fn the_record_comes_before_the_environment() {
    let (home, _child) = idle_child();
    assert_eq!(with_env(&home, &["idle"], &[("HERMES_DASHBOARD_SESSION_TOKEN", "wrong")]).code, 0);
}

#[test]
fn a_url_uses_the_environments_token_and_never_a_record() {
    let (home, child) = idle_child();
    let url = child.url();
    let args = ["idle", "--url", url.as_str()];
    assert_eq!(with_env(&home, &args, &[("HERMES_DASHBOARD_SESSION_TOKEN", TOKEN)]).code, 0);
    assert_eq!(with_env(&home, &args, &[("HERMES_DASHBOARD_SESSION_TOKEN", "wrong")]).code, 5);
    assert_eq!(hermesctl(&home, &args).code, 5, "the record has the token, but a URL never gets it");
    let file = token_file(&home, TOKEN);
    assert_eq!(hermesctl(&home, &["idle", "--url", &url, "--token-file", &file]).code, 0);
}

#[test]
fn json_of_one_target_is_one_object() {
    let (home, child) = idle_child();
    let generation = child.record().1["generation"].clone();
    let value = hermesctl(&home, &["idle", "--json"]).json();
    let expected =
        json!({"ok": true, "idle": true, "reason": null, "profile": null, "pid": child.pid, "generation": generation});
    assert_eq!(value, expected);

    let (home, child) = busy_child();
    let generation = child.record().1["generation"].clone();
    let output = hermesctl(&home, &["idle", "--json"]);
    assert_eq!(output.code, 1);
    let expected = json!({
        "ok": true, "idle": false, "reason": "turn_in_flight", "detail": "cron:long-job",
        "profile": null, "pid": child.pid, "generation": generation
    });
    assert_eq!(output.json(), expected);
}

#[test]
fn all_asks_every_child_and_exits_with_the_worst() {
    let (home, a, b) = idle_a_and_busy_b();
    let output = hermesctl(&home, &["idle", "--all", "--json"]);
    assert_eq!(output.code, 1, "{output:?}");
    let value = output.json();
    let all = value.as_array().expect("an array");
    assert_eq!(all.len(), 2, "{output:?}");
    let of = |pid: u32| all.iter().find(|one| one["pid"] == pid).expect("its object");
    assert_eq!((&of(a.pid)["idle"], &of(a.pid)["profile"]), (&json!(true), &json!("a")));
    assert_eq!((&of(b.pid)["idle"], &of(b.pid)["detail"]), (&json!(false), &json!("cron:b-job")));
    let table = hermesctl(&home, &["idle", "--all"]);
    assert_eq!(table.code, 1);
    assert!(table.stdout.contains(&a.pid_arg()) && table.stdout.contains(&b.pid_arg()), "{table:?}");
    drop(b);
    // The dead one is no ghost, and the array stays an array.
    let output = hermesctl(&home, &["idle", "--all", "--json"]);
    assert_eq!(output.code, 0, "{output:?}");
    assert_eq!(output.json().as_array().map(Vec::len), Some(1), "{output:?}");
}

#[test]
fn both_doors_say_the_same() {
    for (home, _child) in [idle_child(), busy_child()] {
        let socket = hermesctl(&home, &["idle", "--json", "--via", "socket"]);
        let http = hermesctl(&home, &["idle", "--json", "--via", "http"]);
        assert_eq!((socket.code, socket.json()), (http.code, http.json()));
        let default = hermesctl(&home, &["idle", "--json"]);
        assert_eq!((default.code, default.stdout), (socket.code, socket.stdout));
    }
}

#[test]
fn quiet_prints_nothing_at_all() {
    let quiet = |home: &Home, args: &[&str], code: i32| {
        let output = hermesctl(home, args);
        assert_eq!((output.code, output.stdout.as_str(), output.stderr.as_str()), (code, "", ""), "{args:?}");
    };
    let (idle, _one) = idle_child();
    quiet(&idle, &["idle", "-q"], 0);
    quiet(&idle, &["idle", "-q", "--token-file", &token_file(&idle, "wrong")], 5);
    let (busy, _two) = busy_child();
    quiet(&busy, &["idle", "-q"], 1);
    quiet(&Home::new(), &["idle", "-q"], 4);
}

#[test]
fn wait_returns_when_the_job_has_ended() {
    let home = Home::new();
    home.script("three.sh", "echo $$ > \"$HERMES_HOME/pid\"\nsleep 3\ntouch \"$HERMES_HOME/ended\"\n");
    home.write_jobs(&[due("three-seconds", "three.sh")]);
    let child = Child::spawn(&home, &Opts::desktop());
    child.wait_busy("cron:three-seconds");
    let output = hermesctl(&home, &["idle", "--wait"]);
    let returned = SystemTime::now();
    assert_eq!(output.code, 0, "{output:?}");
    let ended = fs::metadata(home.file("ended")).expect("not before the job's end").modified().unwrap();
    let late = returned.duration_since(ended).unwrap_or_default();
    assert!(late < Duration::from_secs(1), "100 ms are the contract, {late:?} was it");
    assert_eq!(home.job_on_disk("three-seconds")["last_status"], "ok");
}

#[test]
fn wait_on_an_idle_child_returns_at_once() {
    let (home, _child) = idle_child();
    for via in ["socket", "http"] {
        assert_eq!(hermesctl(&home, &["idle", "--wait", "--via", via]).code, 0, "{via}");
    }
}

#[test]
fn wait_that_times_out_exits_1() {
    let (home, _child) = busy_child();
    let asked = Instant::now();
    let output = hermesctl(&home, &["idle", "--wait", "--timeout", "200ms"]);
    assert_eq!(output.code, 1, "{output:?}");
    assert!(asked.elapsed() >= Duration::from_millis(200));
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
}

#[test]
fn wait_on_a_child_that_dies_exits_4() {
    let (home, mut child) = busy_child();
    let sockets = || {
        let fds = fs::read_dir(format!("/proc/{}/fd", child.pid)).unwrap().filter_map(Result::ok);
        fds.filter(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))).count()
    };
    let (mut before, mut same) = (usize::MAX, 0);
    wait_until("a steady number of sockets", SOON, || {
        let now = sockets();
        same = if now == before { same + 1 } else { 0 };
        before = now;
        same >= 10
    });
    let waiting = {
        let home = home.clone();
        thread::spawn(move || hermesctl(&home, &["idle", "--wait"]))
    };
    wait_until("the waiting client's connection", SOON, || sockets() > before);
    child.kill_hard();
    let output = waiting.join().expect("hermesctl ran");
    assert_eq!(output.code, 4, "{output:?}");
}

#[test]
fn watch_prints_every_change() {
    let (home, _child) = busy_child();
    let mut process = home.ctl(&["idle", "--watch", "--json"]).spawn().unwrap();
    let stdout = Capture::start(process.stdout.take().unwrap());
    let says = |what: &str| stdout.text().replace(' ', "").contains(what);
    wait_until("the first verdict of a watch", SOON, || says(r#""idle":false"#));
    home.touch("release");
    wait_until("the change to idle", SOON, || says(r#""idle":true"#));
    process.kill().unwrap();
    process.wait().unwrap();
}

#[test]
fn list_names_every_child_without_its_token() {
    let (home, a, b) = idle_a_and_busy_b();
    let output = hermesctl(&home, &["list", "--json"]);
    assert_eq!(output.code, 0, "{output:?}");
    let value = output.json();
    let mut pids: Vec<u64> = value.as_array().expect("an array").iter().filter_map(|one| one["pid"].as_u64()).collect();
    pids.sort_unstable();
    let mut expected = [u64::from(a.pid), u64::from(b.pid)];
    expected.sort_unstable();
    assert_eq!(pids, expected);
    assert!(!output.stdout.contains(TOKEN));
    let table = hermesctl(&home, &["list"]);
    assert!(table.stdout.contains(&a.pid_arg()) && table.stdout.contains(&b.pid_arg()), "{table:?}");
}

#[test]
fn ledger_names_the_running_job() {
    let (home, child) = busy_child();
    for args in [&["ledger"][..], &["ledger", "--json", "--pid", &child.pid_arg()]] {
        let output = hermesctl(&home, args);
        assert!(output.stdout.contains("long-job"), "{args:?}: {output:?}");
    }
    hermesctl(&home, &["ledger", "--json"]).json();
}

#[test]
fn a_record_of_a_reused_pid_is_no_child() {
    // A record that names a living process (ourselves) which started at another time.
    let home = Home::new();
    let path: PathBuf = home.runtime().join("0123456789ab.json");
    let record = json!({
        "pid": std::process::id(), "start_marker": "linux:1", "generation": "g", "profile": null,
        "home": home.path(), "socket": home.runtime().join("0123456789ab.sock"), "port": 1, "token": TOKEN,
        "version": "0.0.0"
    });
    fs::write(&path, record.to_string()).unwrap();
    assert_eq!(hermesctl(&home, &["list", "--json"]).json(), json!([]));
    assert_eq!(hermesctl(&home, &["idle"]).code, 4);
}

#[test]
fn a_record_that_is_garbage_costs_no_other_child() {
    let (home, child) = idle_child();
    let garbage = home.runtime().join("ffffffffffff.json");
    fs::write(&garbage, b"{\"pid\": ").unwrap();
    // As it is, no child can have written it.
    assert_eq!(hermesctl(&home, &["idle", "--all"]).code, 0);
    fs::set_permissions(&garbage, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(hermesctl(&home, &["idle"]).code, 0);
    let list = hermesctl(&home, &["list", "--json"]);
    assert_eq!(list.json()[0]["pid"], child.pid);
    assert!(list.stderr.contains("ffffffffffff.json"), "{list:?}");
    // But nobody can say that everybody is idle, or that there is no such child.
    for args in [&["idle", "--all"][..], &["idle", "nobody"]] {
        let told = hermesctl(&home, args);
        assert_eq!(told.code, 3, "{told:?}");
        assert!(told.stderr.contains("ffffffffffff.json"), "{told:?}");
    }
    let quiet = hermesctl(&home, &["idle", "--all", "-q"]);
    assert_eq!((quiet.code, quiet.stdout.as_str(), quiet.stderr.as_str()), (3, "", ""));
}
