//! Every row of the HTTP contract, asked with the real curl.

use std::fs;
use std::time::{Duration, Instant};

use crate::support::{Child, Home, Http, Opts, SOON, TOKEN, curl, curl_many, home_with_waiting_job, raw_http};

const IDLE: &str = "/api/health/idle";
const RETIREMENT: &str = "/api/health/retirement";
const IDLE_BODY: &str = r#"{"ok":true,"idle":true,"reason":null}"#;
const UNAUTHORIZED: &str = r#"{"detail":"Unauthorized"}"#;
const NOT_ALLOWED: &str = r#"{"detail":"Method Not Allowed"}"#;

fn token() -> String {
    format!("X-Hermes-Session-Token: {TOKEN}")
}

/// An idle child.
fn child() -> (Home, Child) {
    let home = Home::new();
    let child = Child::spawn(&home, &Opts::desktop());
    child.wait_idle();
    (home, child)
}

/// The same with an agent, so that it takes prompts.
fn child_with_agent() -> (Home, Child) {
    let home = Home::new();
    let child = Child::spawn(&home, &Opts::desktop().env("HERMES_AGENT_COMMAND", "true"));
    (home, child)
}

/// curl with the right token.
fn with_token(child: &Child, path: &str, args: &[&str]) -> Http {
    let token = token();
    let mut all = vec!["-H", token.as_str()];
    all.extend_from_slice(args);
    let reply = curl(child, path, &all);
    checked(reply)
}

fn without_token(child: &Child, path: &str, args: &[&str]) -> Http {
    checked(curl(child, path, args))
}

/// What every reply has: JSON, its length, the generation, the kind of fault if it is one, and never the token.
fn checked(reply: Http) -> Http {
    assert_eq!(reply.header("x-hermes-fault").is_none(), reply.status == 200, "{reply:?}");
    assert_eq!(reply.header("content-type"), Some("application/json"), "{reply:?}");
    let length: usize = reply.header("content-length").and_then(|length| length.parse().ok()).expect("a length");
    assert_eq!(length, reply.body.len(), "{reply:?}");
    assert_eq!(length, reply.text().len());
    reply.json();
    has_generation(&reply);
    reply
}

fn has_generation(reply: &Http) {
    let generation = reply.header("x-hermes-generation").unwrap_or_default();
    assert!(!generation.is_empty(), "no generation: {reply:?}");
    let text = String::from_utf8_lossy(&reply.body).into_owned();
    assert!(!text.contains(TOKEN), "the token is in a body: {text}");
    assert!(!reply.headers.iter().any(|(_, value)| value.contains(TOKEN)), "the token is in a header: {reply:?}");
}

#[track_caller]
fn is(reply: &Http, status: u16, body: &str) {
    assert_eq!((reply.status, reply.text().as_str()), (status, body), "{reply:?}");
}

#[track_caller]
fn starts(reply: &Http, status: u16, body: &str) {
    assert!(reply.status == status && reply.text().starts_with(body), "expected {status} {body}…, got {reply:?}");
}

#[track_caller]
fn unauthorized(reply: &Http) {
    is(reply, 401, UNAUTHORIZED);
}

fn retire(child: &Child, body: &str) -> Http {
    with_token(child, RETIREMENT, &["-H", "Content-Type: application/json", "--data-binary", body])
}

/// Prepares, and returns the permit.
#[track_caller]
fn prepare(child: &Child) -> String {
    let reply = retire(child, r#"{"action":"prepare"}"#);
    starts(&reply, 200, r#"{"ok":true,"idle":true,"token":""#);
    let permit = reply.json()["token"].as_str().expect("a permit").to_owned();
    assert!(permit.len() >= 43, "a permit has 256 bits: {permit:?}");
    assert_ne!(permit, TOKEN);
    permit
}

fn action(name: &str, permit: &str) -> String {
    format!(r#"{{"action":"{name}","token":"{permit}"}}"#)
}

// ---------------------------------------------------------------- the first table

#[test]
fn health_needs_no_token() {
    let (_home, child) = child();
    let reply = without_token(&child, "/api/health", &[]);
    starts(&reply, 200, r#"{"ok":true,"version":""#);
    let value = reply.json();
    assert!(!value["version"].as_str().expect("a version").is_empty());
    let version = value["version"].as_str().unwrap();
    starts(&reply, 200, &format!(r#"{{"ok":true,"version":"{version}","auth_required":false"#));
}

#[test]
fn idle_answers_a_verdict_to_the_session_token_header() {
    let (_home, child) = child();
    is(&with_token(&child, IDLE, &[]), 200, IDLE_BODY);
}

#[test]
fn idle_answers_a_verdict_to_a_bearer_token() {
    let (_home, child) = child();
    let bearer = format!("Authorization: Bearer {TOKEN}");
    is(&without_token(&child, IDLE, &["-H", &bearer]), 200, IDLE_BODY);
}

#[test]
fn idle_without_the_right_token_is_401_and_never_a_verdict() {
    let (_home, child) = child();
    unauthorized(&without_token(&child, IDLE, &[]));
    unauthorized(&without_token(&child, IDLE, &["-H", "X-Hermes-Session-Token: wrong"]));
    unauthorized(&without_token(&child, IDLE, &["-H", &format!("X-Hermes-Session-Token: {TOKEN}x")]));
    unauthorized(&without_token(&child, IDLE, &["-H", &format!("X-Hermes-Session-Token: {}", &TOKEN[1..])]));
    unauthorized(&without_token(&child, IDLE, &["-H", "X-Hermes-Session-Token;"]));
    unauthorized(&without_token(&child, IDLE, &["-H", "Authorization: Bearer wrong"]));
    unauthorized(&without_token(&child, IDLE, &["-H", "Authorization: Bearer "]));
    unauthorized(&without_token(&child, IDLE, &["-H", &format!("Authorization: bearer {TOKEN}")]));
    unauthorized(&without_token(&child, IDLE, &["-H", &format!("Authorization: {TOKEN}")]));
    unauthorized(&without_token(&child, &format!("{IDLE}?token={TOKEN}"), &[]));
}

#[test]
fn a_wrong_token_header_with_a_right_bearer_is_let_in() {
    let (_home, child) = child();
    let bearer = format!("Authorization: Bearer {TOKEN}");
    is(&without_token(&child, IDLE, &["-H", "X-Hermes-Session-Token: wrong", "-H", &bearer]), 200, IDLE_BODY);
}

#[test]
fn posting_to_idle_is_405_and_allow_names_get() {
    let (_home, child) = child();
    let reply = with_token(&child, IDLE, &["--data-binary", "{}"]);
    is(&reply, 405, NOT_ALLOWED);
    assert!(reply.header("allow").is_some_and(|allow| allow.contains("GET")), "{reply:?}");
}

#[test]
fn a_foreign_host_is_400_on_any_path() {
    let (_home, child) = child();
    for path in [IDLE, "/api/health", "/nope", "/"] {
        let reply = with_token(&child, path, &["-H", "Host: evil.example"]);
        assert_eq!(reply.status, 400, "{path}: {reply:?}");
        let detail = reply.json()["detail"].as_str().expect("a detail").to_owned();
        assert!(detail.contains("Host"), "{detail}");
        assert!(reply.json().get("idle").is_none(), "{reply:?}");
    }
    let reply =
        with_token(&child, RETIREMENT, &["-H", "Host: evil.example", "--data-binary", r#"{"action":"prepare"}"#]);
    assert_eq!(reply.status, 400, "{reply:?}");
    // And nothing was prepared by it.
    prepare(&child);
}

#[test]
fn loopback_hosts_are_let_in_and_near_misses_are_not() {
    let (_home, child) = child();
    let port = child.port;
    for host in ["localhost".to_owned(), format!("localhost:{port}"), "127.0.0.1".to_owned(), format!("[::1]:{port}")] {
        is(&with_token(&child, IDLE, &["-H", &format!("Host: {host}")]), 200, IDLE_BODY);
    }
    for host in ["localhost.", "127.0.0.2", "localhost.evil.example", "127.0.0.1.evil.example"] {
        assert_eq!(with_token(&child, IDLE, &["-H", &format!("Host: {host}")]).status, 400, "{host}");
    }
}

#[test]
fn a_foreign_origin_is_403_on_any_path_and_our_own_is_let_in() {
    let (_home, child) = child();
    for path in [IDLE, "/api/health"] {
        let reply = with_token(&child, path, &["-H", "Origin: https://evil.example"]);
        assert_eq!(reply.status, 403, "{path}: {reply:?}");
        assert!(reply.json()["detail"].is_string(), "{reply:?}");
        assert!(reply.json().get("idle").is_none(), "{reply:?}");
    }
    let reply = with_token(
        &child,
        RETIREMENT,
        &["-H", "Origin: https://evil.example", "--data-binary", r#"{"action":"prepare"}"#],
    );
    assert_eq!(reply.status, 403, "{reply:?}");
    let own = format!("Origin: {}", child.url());
    is(&with_token(&child, IDLE, &["-H", &own]), 200, IDLE_BODY);
}

#[test]
fn an_unknown_path_is_404_in_json() {
    let (_home, child) = child();
    let reply = with_token(&child, "/nope", &[]);
    assert_eq!(reply.status, 404, "{reply:?}");
    let value = reply.json();
    assert!(value["error"].is_string() || value["detail"].is_string(), "{reply:?}");
}

#[test]
fn the_root_serves_no_page() {
    let (_home, child) = child();
    assert_eq!(without_token(&child, "/", &[]).status, 404);
    assert_eq!(with_token(&child, "/", &[]).status, 404);
}

#[test]
fn retirement_without_a_token_is_401_before_the_body_is_read() {
    let (_home, child) = child();
    unauthorized(&without_token(&child, RETIREMENT, &["--data-binary", r#"{"action":"prepare"}"#]));
    unauthorized(&without_token(&child, RETIREMENT, &["--data-binary", "not json"]));
    // A body that never comes: the answer does not wait for it.
    let head =
        format!("POST {RETIREMENT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 20\r\nConnection: close\r\n\r\n");
    unauthorized(&raw_http(child.port, head.as_bytes()).expect("an answer without the body"));
}

#[test]
fn a_retirement_body_that_is_not_json_is_400() {
    let (_home, child) = child();
    for body in ["not json", "{", "", "{\"action\":\"prepare\"}}", "\u{1}"] {
        is(&retire(&child, body), 400, r#"{"detail":"JSON body required"}"#);
    }
    is(&with_token(&child, RETIREMENT, &["-X", "POST"]), 400, r#"{"detail":"JSON body required"}"#);
}

#[test]
fn json_without_a_known_action_is_400() {
    let (_home, child) = child();
    for body in [
        "[]",
        r#"{"action":"nope"}"#,
        "{}",
        "null",
        "7",
        r#""prepare""#,
        r#"{"action":7}"#,
        r#"{"action":null}"#,
        r#"{"action":"Prepare"}"#,
    ] {
        is(&retire(&child, body), 400, r#"{"detail":"action must be prepare, commit, or cancel"}"#);
    }
}

#[test]
fn commit_and_cancel_need_a_token() {
    let (_home, child) = child();
    for name in ["commit", "cancel"] {
        for rest in ["", r#","token":"""#, r#","token":7"#, r#","token":null"#, r#","token":["x"]"#] {
            let body = format!(r#"{{"action":"{name}"{rest}}}"#);
            is(&retire(&child, &body), 400, r#"{"detail":"token required"}"#);
        }
    }
}

#[test]
fn the_content_type_of_a_body_is_not_checked() {
    let (_home, child) = child();
    let reply =
        with_token(&child, RETIREMENT, &["-H", "Content-Type: text/plain", "--data-binary", r#"{"action":"prepare"}"#]);
    starts(&reply, 200, r#"{"ok":true,"idle":true,"token":""#);
}

#[test]
fn getting_retirement_is_405() {
    let (_home, child) = child();
    let reply = with_token(&child, RETIREMENT, &[]);
    is(&reply, 405, NOT_ALLOWED);
    assert!(reply.header("allow").is_some_and(|allow| !allow.is_empty()), "{reply:?}");
    unauthorized(&without_token(&child, RETIREMENT, &[]));
}

// ---------------------------------------------------------------- verdicts

#[test]
fn a_running_job_is_a_busy_verdict_byte_for_byte() {
    let home = home_with_waiting_job("live-idle-proof-job");
    let child = Child::spawn(&home, &Opts::desktop());
    child.wait_busy("cron:live-idle-proof-job");
    let body = r#"{"ok":true,"idle":false,"reason":"turn_in_flight","detail":"cron:live-idle-proof-job"}"#;
    is(&with_token(&child, IDLE, &[]), 200, body);
    home.touch("release");
    child.wait_idle();
    is(&with_token(&child, IDLE, &[]), 200, IDLE_BODY);
}

#[test]
fn two_running_jobs_are_named_sorted_with_a_comma() {
    let home = home_with_waiting_job("b-job");
    home.write_jobs(&[crate::support::due("b-job", "wait.sh"), crate::support::due("a-job", "wait.sh")]);
    let child = Child::spawn(&home, &Opts::desktop());
    child.wait_busy("cron:a-job,b-job");
}

// ---------------------------------------------------------------- retirement

#[test]
fn prepare_on_an_idle_child_gives_a_permit() {
    let (_home, child) = child();
    prepare(&child);
    is(&with_token(&child, IDLE, &[]), 200, IDLE_BODY);
}

#[test]
fn a_second_prepare_is_refused_while_a_permit_lives() {
    let (_home, child) = child();
    let permit = prepare(&child);
    let reply = retire(&child, r#"{"action":"prepare"}"#);
    starts(&reply, 200, r#"{"ok":false,"idle":false"#);
    assert!(!reply.text().contains(&permit), "the refusal leaks the permit");
}

#[test]
fn prepare_on_a_busy_child_says_why_not() {
    let home = home_with_waiting_job("long-job");
    let child = Child::spawn(&home, &Opts::desktop());
    child.wait_busy("cron:long-job");
    let reply = retire(&child, r#"{"action":"prepare"}"#);
    starts(&reply, 200, r#"{"ok":false,"idle":false,"reason":"turn_in_flight","detail":"cron:long-job""#);
    assert!(reply.json().get("token").is_none(), "{reply:?}");
    // The refusal reopened the fence: once the job is over, a permit is to be had.
    home.touch("release");
    child.wait_idle();
    prepare(&child);
}

#[test]
fn prepare_ignores_a_token_in_its_body() {
    let (_home, child) = child();
    let reply = retire(&child, &action("prepare", "x"));
    starts(&reply, 200, r#"{"ok":true,"idle":true,"token":""#);
    assert_ne!(reply.json()["token"], "x");
}

#[test]
fn commit_is_for_ever_idempotent_and_ends_the_child() {
    let (home, mut child) = child();
    let permit = prepare(&child);
    let committed = Instant::now();
    // By one curl, since the doors stay open for a second only.
    let token = token();
    let (commit, cancel) = (action("commit", &permit), action("cancel", &permit));
    let post = |body| ["-H", token.as_str(), "--data-binary", body];
    let replies = curl_many(
        &child,
        &[
            (RETIREMENT, &post(&commit)),
            (RETIREMENT, &post(&commit)),
            (RETIREMENT, &post(r#"{"action":"commit","token":"x"}"#)),
            (RETIREMENT, &post(&cancel)),
            (RETIREMENT, &post(r#"{"action":"prepare"}"#)),
            (IDLE, &["-H", &token]),
        ],
    );
    let replies: Vec<Http> = replies.into_iter().map(checked).collect();
    starts(&replies[0], 200, r#"{"ok":true,"next_due":null"#);
    starts(&replies[1], 200, r#"{"ok":true,"next_due":null"#);
    is(&replies[2], 200, r#"{"ok":false}"#);
    is(&replies[3], 200, r#"{"ok":false}"#);
    starts(&replies[4], 200, &format!(r#"{{"ok":true,"idle":true,"token":"{permit}""#));
    is(&replies[5], 200, IDLE_BODY);
    let status = child.wait_exit(SOON);
    let took = committed.elapsed();
    assert_eq!(status.code(), Some(0), "{}", child.logs());
    assert!(took < Duration::from_secs(3), "gone by 2 s, with a second of slack: {took:?}");
    home.assert_no_endpoint_left();
}

#[test]
fn after_commit_the_doors_stay_open_for_a_second() {
    let (_home, mut child) = child();
    let permit = prepare(&child);
    let asked = Instant::now();
    starts(&retire(&child, &action("commit", &permit)), 200, r#"{"ok":true"#);
    while asked.elapsed() < Duration::from_millis(700) {
        let answer = child.try_verdict();
        // A probe that was itself held up past the second proves nothing.
        assert!(answer.is_ok() || asked.elapsed() > Duration::from_secs(1), "{answer:?}");
    }
    assert_eq!(child.wait_exit(SOON).code(), Some(0));
}

#[test]
fn the_reply_to_commit_says_when_the_next_job_is_due() {
    let home = Home::new();
    home.script("ok.sh", "true\n");
    let next = crate::support::iso_from_now(3000);
    home.write_jobs(&[crate::support::job("later", 60, "ok.sh", &next)]);
    let child = Child::spawn(&home, &Opts::desktop());
    child.wait_idle();
    let reply = retire(&child, &action("commit", &prepare(&child)));
    starts(&reply, 200, r#"{"ok":true,"next_due":""#);
    let due = crate::support::instant(&reply.json()["next_due"]);
    let meant = crate::support::instant(&next.into());
    assert!((due.as_second() - meant.as_second()).abs() <= 1, "{due} is not {meant}");
}

#[test]
fn commit_with_a_foreign_permit_changes_nothing() {
    let (_home, child) = child();
    is(&retire(&child, &action("commit", "x")), 200, r#"{"ok":false}"#);
    let permit = prepare(&child);
    is(&retire(&child, &action("commit", "x")), 200, r#"{"ok":false}"#);
    is(&retire(&child, &action("commit", TOKEN)), 200, r#"{"ok":false}"#);
    is(&retire(&child, &action("cancel", &permit)), 200, r#"{"ok":true}"#);
}

#[test]
fn cancel_reopens_the_fence_once() {
    let (_home, child) = child();
    let permit = prepare(&child);
    is(&retire(&child, &action("cancel", "x")), 200, r#"{"ok":false}"#);
    is(&retire(&child, &action("cancel", &permit)), 200, r#"{"ok":true}"#);
    is(&retire(&child, &action("cancel", &permit)), 200, r#"{"ok":false}"#);
    is(&retire(&child, &action("commit", &permit)), 200, r#"{"ok":false}"#);
    assert_ne!(prepare(&child), permit, "a permit is never given twice");
}

#[test]
fn a_permit_expires_after_thirty_seconds() {
    let (_home, child) = child();
    let asked = Instant::now();
    let permit = prepare(&child);
    let fresh = loop {
        let reply = child.retirement(r#"{"action":"prepare"}"#).json();
        if reply["ok"] == true {
            break reply["token"].as_str().expect("a permit").to_owned();
        }
        assert!(asked.elapsed() < Duration::from_secs(40), "the permit never expired: {reply}");
        std::thread::sleep(Duration::from_millis(200));
    };
    assert!(asked.elapsed() >= Duration::from_secs(29), "expired after {:?}", asked.elapsed());
    assert_ne!(fresh, permit);
    is(&retire(&child, &action("commit", &permit)), 200, r#"{"ok":false}"#);
    is(&retire(&child, &action("cancel", &permit)), 200, r#"{"ok":false}"#);
    is(&retire(&child, &action("cancel", &fresh)), 200, r#"{"ok":true}"#);
}

#[test]
fn a_control_token_keeps_the_session_token_from_retiring() {
    let home = Home::new();
    let child = Child::spawn(&home, &Opts::desktop().env("HERMES_CONTROL_TOKEN", "the-control-token"));
    child.wait_idle();
    is(&with_token(&child, IDLE, &[]), 200, IDLE_BODY);
    let refused = retire(&child, r#"{"action":"prepare"}"#);
    assert_eq!(refused.status, 403, "{refused:?}");
    let control = "X-Hermes-Session-Token: the-control-token";
    is(&without_token(&child, IDLE, &["-H", control]), 200, IDLE_BODY);
    let args = ["-H", "Authorization: Bearer the-control-token", "--data-binary", r#"{"action":"prepare"}"#];
    starts(&without_token(&child, RETIREMENT, &args), 200, r#"{"ok":true,"idle":true,"token":""#);
    let (_, record) = child.record();
    assert!(!record.to_string().contains("the-control-token"), "{record}");
}

// ---------------------------------------------------------------- also seen

#[test]
fn of_two_token_headers_the_first_wins() {
    let (_home, child) = child();
    let right = token();
    is(&without_token(&child, IDLE, &["-H", &right, "-H", "X-Hermes-Session-Token: wrong"]), 200, IDLE_BODY);
    unauthorized(&without_token(&child, IDLE, &["-H", "X-Hermes-Session-Token: wrong", "-H", &right]));
}

#[test]
fn of_two_host_headers_the_first_wins() {
    // curl sends one Host header only, whatever it is told.
    let (_home, child) = child();
    let ask = |first: &str, second: &str| {
        let head = format!(
            "GET {IDLE} HTTP/1.1\r\nHost: {first}\r\nHost: {second}\r\n{}\r\nConnection: close\r\n\r\n",
            token()
        );
        raw_http(child.port, head.as_bytes()).expect("a reply")
    };
    is(&ask("127.0.0.1", "evil.example"), 200, IDLE_BODY);
    assert_eq!(ask("evil.example", "127.0.0.1").status, 400);
}

#[test]
fn other_methods_are_405_with_a_token_and_401_without() {
    let (_home, child) = child();
    for args in [&["-X", "PUT"][..], &["-X", "OPTIONS"], &["-X", "DELETE"], &["-X", "PATCH"]] {
        let reply = with_token(&child, IDLE, args);
        is(&reply, 405, NOT_ALLOWED);
        assert_eq!(reply.header("allow"), Some("GET"), "{args:?}");
        unauthorized(&without_token(&child, IDLE, args));
    }
    let token = token();
    let reply = curl(&child, IDLE, &["--head", "-H", &token]);
    assert_eq!((reply.status, reply.header("allow")), (405, Some("GET")), "{reply:?}");
    assert!(reply.body.is_empty(), "{reply:?}");
    has_generation(&reply);
    let reply = curl(&child, IDLE, &["--head"]);
    assert_eq!(reply.status, 401, "{reply:?}");
    has_generation(&reply);
}

#[test]
fn without_a_token_a_bad_method_or_host_is_401_all_the_same() {
    let (_home, child) = child();
    unauthorized(&without_token(&child, IDLE, &["--data-binary", "{}"]));
    unauthorized(&without_token(&child, IDLE, &["-H", "Host: evil.example"]));
    assert_eq!(without_token(&child, "/api/health", &["-H", "Host: evil.example"]).status, 400);
}

#[test]
fn a_refusal_says_which_kind_of_fault_it_is() {
    let (_home, child) = child();
    let fault = |path: &str, args: &[&str]| {
        let reply = with_token(&child, path, args);
        (reply.status, reply.header("x-hermes-fault").unwrap_or_default().to_owned())
    };
    let is = |status: u16, kind: &str| (status, kind.to_owned());
    let unauthorized = without_token(&child, IDLE, &[]);
    assert_eq!(unauthorized.header("x-hermes-fault"), Some("unauthorized"));
    assert_eq!(fault("/nope", &[]), is(404, "unknown_request"));
    assert_eq!(fault("/api/turns/99", &[]), is(404, "not_found"));
    assert_eq!(fault(IDLE, &["-d", "{}"]), is(405, "unknown_request"));
    assert_eq!(fault(IDLE, &["-H", "Origin: http://evil.example"]), is(403, "forbidden"));
    assert_eq!(fault("/api/sessions/s/interrupt", &["-d", "{}"]), is(409, "conflict"));
    assert_eq!(fault(RETIREMENT, &["-d", "{}"]), is(400, "invalid"));
    prepare(&child);
    assert_eq!(fault("/api/sessions/s/prompts", &["-d", r#"{"prompt":"p"}"#]), is(503, "retiring"));
}

#[test]
fn a_name_in_a_path_is_percent_decoded() {
    let (_home, child) = child_with_agent();
    let submit =
        |name: &str| with_token(&child, &format!("/api/sessions/{name}/prompts"), &["-d", r#"{"prompt":"p"}"#]);
    assert_eq!(submit("caf%C3%A9%20%2525").status, 200);
    let sessions = with_token(&child, "/api/sessions", &[]).json();
    assert_eq!(sessions["sessions"][0]["session"], "café %25");
    for bad in ["a%2Fb", "%00", "a%", "%zz", "%ff", "%2e%2e"] {
        let reply = submit(bad);
        assert_eq!((reply.status, reply.header("x-hermes-fault")), (400, Some("invalid")), "{bad}: {reply:?}");
    }
    assert_eq!(with_token(&child, "/api/he%61lth/idle", &[]).status, 404, "only names are decoded");
}

#[test]
fn numbers_that_no_turn_has_find_none() {
    let (_home, child) = child_with_agent();
    let prompt = ["-d", r#"{"prompt":"p"}"#];
    assert_eq!(with_token(&child, "/api/sessions/s/prompts", &prompt).status, 200);
    let turns = |after: &str| {
        let page = with_token(&child, &format!("/api/sessions/s?after={after}"), &[]).json();
        page["turns"].as_array().unwrap().len()
    };
    assert_eq!(turns("0"), 1);
    for number in ["9223372036854775807", "9223372036854775808", "18446744073709551615"] {
        assert_eq!(turns(number), 0, "{number}");
        assert_eq!(with_token(&child, &format!("/api/turns/{number}"), &[]).status, 404, "{number}");
    }
}

#[test]
fn deeply_nested_json_is_400_and_the_child_lives() {
    let (home, child) = child();
    let file = home.root().join("deep.json");
    let at = format!("@{}", file.display());
    // As deep as the body limit lets through, open and closed.
    for body in ["[".repeat(60_000), format!("{}{}", "[".repeat(30_000), "]".repeat(30_000)), "{\"a\":".repeat(13_000)]
    {
        fs::write(&file, body).unwrap();
        assert_eq!(with_token(&child, RETIREMENT, &["--data-binary", &at]).status, 400);
    }
    // 100,000 deep is also over 64 KiB: either refusal will do, a 500 or a dead child will not.
    fs::write(&file, "[".repeat(100_000)).unwrap();
    let reply = with_token(&child, RETIREMENT, &["--data-binary", &at]);
    assert!(matches!(reply.status, 400 | 413), "{reply:?}");
    is(&with_token(&child, IDLE, &[]), 200, IDLE_BODY);
}

#[test]
fn every_reply_of_one_child_carries_the_same_generation_and_another_child_has_another() {
    let ((_one, first), (_two, second)) = (child(), child());
    let generation =
        |child: &Child, path: &str| with_token(child, path, &[]).header("x-hermes-generation").map(str::to_owned);
    let ours = generation(&first, IDLE);
    assert_eq!(ours, generation(&first, "/nope"));
    assert_eq!(ours, generation(&first, "/api/health"));
    assert_eq!(ours.as_deref(), first.record().1["generation"].as_str());
    assert_ne!(ours, generation(&second, IDLE));
}

#[test]
fn one_connection_serves_many_requests() {
    let (_home, child) = child();
    let request = format!("GET {IDLE} HTTP/1.1\r\nHost: 127.0.0.1\r\n{}\r\n\r\n", token());
    let last = format!("GET {IDLE} HTTP/1.1\r\nHost: 127.0.0.1\r\n{}\r\nConnection: close\r\n\r\n", token());
    let pipelined = [request.repeat(3), last].concat();
    let replies = raw_http(child.port, pipelined.as_bytes()).expect("replies");
    // The first reply's "body" is all that followed its head.
    let all = replies.text();
    assert_eq!(all.matches(IDLE_BODY).count(), 4, "{all}");
}

#[test]
fn a_scan_of_ten_thousand_jobs_that_are_not_due_does_not_show() {
    let home = Home::new();
    home.script("ok.sh", "true\n");
    let next = crate::support::iso_from_now(86_400);
    let jobs: Vec<_> = (0..10_000).map(|n| crate::support::job(&format!("j{n}"), 2880, "ok.sh", &next)).collect();
    home.write_jobs(&jobs);
    let child = Child::spawn(&home, &Opts::desktop());
    child.wait_idle();
    // Every change of the file is a scan of all of it; no probe waits for it beyond its own deadline.
    for _ in 0..3 {
        home.write_jobs(&jobs);
        child.holds("a scan of jobs that are not due", 20, |verdict| verdict["ok"] == true);
    }
    child.wait_idle();
}
