//! Questions to a person: asked in one terminal, answered in another, and what holds a child while they are open.

use std::io::Write;
use std::process::{Child as Process, Stdio};

use serde_json::json;

use hermes::client::ClientError;
use hermes::protocol::{Event, FaultKind, QuestionKind, Request};

use crate::retire::Peer;
use crate::support::{Child, Home, Opts, SOON, TOKEN, curl, hermesctl, wait_until};

fn ask(home: &Home, args: &[&str]) -> Process {
    home.ctl(&[&["ask"], args].concat()).spawn().unwrap()
}

fn open_id(home: &Home) -> String {
    let mut id = String::new();
    wait_until("a question to be open", SOON, || {
        let prompts = hermesctl(home, &["prompts", "--json"]).json();
        id = prompts["prompts"][0]["id"].as_str().unwrap_or_default().to_owned();
        !id.is_empty()
    });
    id
}

#[test]
fn a_question_awaits_a_human_until_another_terminal_answers_it() {
    let home = Home::new();
    let child = Child::spawn(&home, &Opts::desktop());
    let asker = ask(&home, &["--kind", "approval", "--choices", "yes,no", "May I?"]);
    let id = open_id(&home);
    child.wait_verdict("a person to be asked", |verdict| verdict["reason"] == "awaiting_human_input");
    assert_eq!(child.verdict(), json!({"ok": true, "idle": false, "reason": "awaiting_human_input"}), "and no detail");
    assert_eq!(hermesctl(&home, &["idle"]).code, 1);
    assert_eq!(hermesctl(&home, &["retire"]).code, 1);
    let shown = hermesctl(&home, &["prompts"]);
    assert!(shown.stdout.contains(&id) && shown.stdout.contains("May I?  [yes, no]"), "{shown:?}");
    assert_eq!(hermesctl(&home, &["answer", &id, "maybe"]).code, 2, "none of the choices");
    assert_eq!(hermesctl(&home, &["answer", &id, "yes"]).code, 0);
    let second = hermesctl(&home, &["answer", &id, "no"]);
    assert!(second.code == 1 && second.stderr.contains("already"), "{second:?}");
    let out = asker.wait_with_output().unwrap();
    assert_eq!((out.status.code(), out.stdout.as_slice()), (Some(0), &b"yes\n"[..]));
    child.wait_idle();
}

#[test]
fn declined_timed_out_and_withdrawn_are_three_endings() {
    let home = Home::new();
    let child = Child::spawn(&home, &Opts::desktop());
    let asker = ask(&home, &["Really?"]);
    assert_eq!(hermesctl(&home, &["answer", &open_id(&home), "--decline"]).code, 0);
    assert_eq!(asker.wait_with_output().unwrap().status.code(), Some(1));
    assert_eq!(hermesctl(&home, &["ask", "--timeout", "50ms", "Quick?"]).code, 124);
    let mut asker = ask(&home, &["Still there?"]);
    let id = open_id(&home);
    asker.kill().unwrap();
    asker.wait().unwrap();
    child.wait_idle();
    assert_eq!(hermesctl(&home, &["answer", &id, "yes"]).code, 4, "an asker that dies withdraws its question");
}

#[test]
fn a_secret_is_answered_from_standard_input_and_never_written_down() {
    let home = Home::new();
    let child = Child::spawn(&home, &Opts::desktop().env("HERMES_LOG", "trace"));
    let asker = ask(&home, &["--kind", "secret", "Password?"]);
    let id = open_id(&home);
    let mut answer = home.ctl(&["answer", &id, "-"]);
    let mut answer = answer.stdin(Stdio::piped()).spawn().unwrap();
    answer.stdin.take().unwrap().write_all(b"hunter2-xyzzy\n").unwrap();
    assert!(answer.wait().unwrap().success());
    assert_eq!(asker.wait_with_output().unwrap().stdout, b"hunter2-xyzzy\n");
    assert!(!child.logs().contains("hunter2-xyzzy"));
    let found = std::process::Command::new("grep").args(["-rl", "hunter2-xyzzy"]).arg(home.root()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "");
}

#[test]
fn questions_are_listed_and_answered_over_http_too() {
    let home = Home::new();
    let child = Child::spawn(&home, &Opts::desktop());
    let asker = ask(&home, &["Which?"]);
    let id = open_id(&home);
    let header = format!("X-Hermes-Session-Token: {TOKEN}");
    let list = curl(&child, "/api/prompts", &["-H", &header]).json();
    assert_eq!((&list["prompts"][0]["id"], &list["prompts"][0]["kind"]), (&json!(id), &json!("clarify")));
    let path = format!("/api/prompts/{id}");
    assert_eq!(curl(&child, &path, &["-H", &header, "-d", "{}"]).status, 400);
    let first = curl(&child, &path, &["-H", &header, "-d", r#"{"answer":"this"}"#]);
    assert_eq!((first.status, first.text().as_str()), (200, r#"{"ok":true}"#));
    assert_eq!(curl(&child, &path, &["-H", &header, "-d", r#"{"answer":"that"}"#]).status, 409);
    assert_eq!(curl(&child, "/api/prompts/srq-none", &["-H", &header, "-d", r#"{"decline":true}"#]).status, 404);
    assert_eq!(asker.wait_with_output().unwrap().stdout, b"this\n");
}

#[test]
fn a_released_process_lives_on_and_counts_no_more() {
    let home = Home::new();
    home.script(
        "stray.sh",
        "setsid sleep 300 </dev/null >/dev/null 2>&1 &\necho $! > \"$HERMES_HOME/stray\"\nsleep 0.2\n",
    );
    home.write_jobs(&[crate::support::due("leaver", "stray.sh")]);
    let mut child = Child::spawn(&home, &Opts::desktop());
    let stray = home.pid_in("stray");
    child.wait_busy(&format!("process:{stray}"));
    let held = hermesctl(&home, &["retire"]);
    assert!(held.code == 1 && held.stdout.contains(&format!("process {stray}")), "{held:?}");
    assert_eq!(hermesctl(&home, &["release", &stray.to_string()]).code, 2, "not without --yes");
    let released = hermesctl(&home, &["release", &stray.to_string(), "--yes"]);
    assert!(released.code == 0 && released.stdout.contains("sleep 300"), "{released:?}");
    child.wait_idle();
    assert_eq!(hermesctl(&home, &["release", "1", "--yes"]).code, 4);
    assert_eq!(child.terminate().code(), Some(0));
    assert!(!crate::support::gone(stray), "it was let go on purpose");
    crate::support::kill_pid(stray);
}

#[test]
fn however_many_questions_are_open_one_can_be_answered_over_the_socket() {
    let home = Home::new();
    let child = Child::spawn(&home, &Opts::desktop());
    let mut askers = Vec::new();
    let refused = loop {
        let mut peer = Peer::connect(&child);
        let text = format!("Question {}?", askers.len());
        peer.subscribe(Request::Ask { kind: QuestionKind::Clarify, text, choices: Vec::new(), timeout_ms: None });
        match peer.event() {
            Ok(Event::Asked { id }) => askers.push((peer, id)),
            other => break other,
        }
        assert!(askers.len() < 256, "a door has no more connections than that");
    };
    assert!(matches!(&refused, Err(ClientError::Fault(fault)) if fault.kind == FaultKind::TooMany), "{refused:?}");
    let (asker, id) = askers.last_mut().unwrap();
    assert_eq!(hermesctl(&home, &["idle"]).code, 1);
    assert_eq!(hermesctl(&home, &["answer", id, "this"]).code, 0);
    assert!(matches!(asker.event(), Ok(Event::Answered { answer: Some(_) })));
    drop(askers);
    child.wait_idle();
}
