//! Turns of a real agent: a program that reads its prompt and does what the first word says.

use std::fs;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{Child, Home, Opts, SOON, TOKEN, curl, gone, hermesctl, kill_pid, wait_until};

/// `say X`, `fail X`, `wait FILE` (until the file is there), `linger` (answers, and leaves a member of its group behind),
/// `ask Q`, `delegate P`, `late FILE` (reads the rest of its prompt when the file is there), `hang`.
const AGENT: &str = r#"
read -r verb rest
echo "$HERMES_TURN_ID $verb $rest" >> "$HERMES_HOME/agent.log"
case "$verb" in
say) echo "you said $rest" ;;
fail) echo "went wrong: $rest" >&2; exit 3 ;;
wait) echo $$ > "$HERMES_HOME/agent.pid"; while [ ! -e "$HERMES_HOME/$rest" ]; do sleep 0.02; done; echo waited ;;
linger) (while [ ! -e "$HERMES_HOME/$rest" ]; do sleep 0.02; done) >/dev/null 2>&1 & echo answered ;;
ask) "$CTL" ask --socket "$HERMES_CONTROL_SOCKET" "$rest" ;;
delegate) "$CTL" delegate "say $rest" ;;
delegate-long) "$CTL" delegate --detach "wait $rest"; echo started ;;
late) echo $$ > "$HERMES_HOME/agent.pid"; while [ ! -e "$HERMES_HOME/$rest" ]; do sleep 0.02; done; cat > "$HERMES_HOME/counted.part"; mv "$HERMES_HOME/counted.part" "$HERMES_HOME/counted" ;;
hang) trap '' TERM; echo $$ > "$HERMES_HOME/agent.pid"; sleep 300 & wait; sleep 300 ;;
esac
"#;

fn opts(home: &Home) -> Opts {
    let agent = home.root().join("agent.sh");
    fs::write(&agent, AGENT).unwrap();
    Opts::desktop()
        .env("HERMES_AGENT_COMMAND", format!("bash '{}'", agent.display()))
        .env("CTL", env!("CARGO_BIN_EXE_hermesctl"))
}

fn submit(home: &Home, session: &str, prompt: &str) -> u64 {
    let out = hermesctl(home, &["submit", session, prompt, "--json"]);
    assert_eq!(out.code, 0, "{out:?}");
    out.json()["turn"].as_u64().unwrap()
}

fn log(home: &Home, session: &str) -> Vec<Value> {
    let out = hermesctl(home, &["log", session, "--json"]);
    out.json()["turns"].as_array().unwrap().clone()
}

fn states(home: &Home, session: &str) -> Vec<String> {
    log(home, session).iter().map(|turn| turn["state"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_turn_answers_and_a_failed_one_says_why() {
    let home = Home::new();
    let child = Child::spawn(&home, &opts(&home));
    assert!(!home.file("control.db").exists(), "an idle child opens no journal");
    let done = hermesctl(&home, &["submit", "s", "say hello", "--wait"]);
    assert_eq!((done.code, done.stdout.as_str()), (0, "you said hello\n"));
    let failed = hermesctl(&home, &["submit", "s", "fail this", "--wait"]);
    assert!(failed.code == 1 && failed.stderr.contains("went wrong: this"), "{failed:?}");
    child.wait_idle();
    assert_eq!(states(&home, "s"), ["done", "failed"]);
    assert_eq!(crate::support::mode(&home.file("control.db")), 0o600);
}

#[test]
fn queued_prompts_keep_a_session_busy_and_run_one_after_the_other() {
    let home = Home::new();
    let child = Child::spawn(&home, &opts(&home));
    submit(&home, "s", "wait go");
    let ahead: Vec<u64> = (0..3)
        .map(|n| hermesctl(&home, &["submit", "s", &format!("say {n}"), "--json"]).json()["ahead"].as_u64().unwrap())
        .collect();
    assert_eq!(ahead, [1, 2, 3]);
    child.wait_busy("session:s");
    let ledger = hermesctl(&home, &["ledger", "--json"]).json();
    let whys: Vec<&str> = ledger["entries"].as_array().unwrap().iter().map(|e| e["why"].as_str().unwrap()).collect();
    assert_eq!(whys, ["turn running", "prompt queued", "prompt queued", "prompt queued"]);
    let seen = hermesctl(&home, &["idle", "--json"]).json();
    assert_eq!((&seen["reason"], &seen["detail"]), (&json!("turn_in_flight"), &json!("session:s")));
    home.touch("go");
    child.wait_idle();
    assert_eq!(states(&home, "s"), ["done"; 4]);
    let said: Vec<String> = home.read("agent.log").lines().map(|line| line[2..].to_owned()).collect();
    assert_eq!(said, ["wait go", "say 0", "say 1", "say 2"]);
}

#[test]
fn a_session_unwinds_until_its_group_is_gone() {
    let home = Home::new();
    let child = Child::spawn(&home, &opts(&home));
    let done = hermesctl(&home, &["submit", "s", "linger go", "--wait"]);
    assert_eq!(done.stdout, "answered\n", "the reply does not wait for what lingers");
    child.holds("its group lives", 20, |verdict| verdict["detail"] == "session:s");
    assert_eq!(hermesctl(&home, &["ledger", "--json"]).json()["entries"][0]["why"], "unwinding");
    home.touch("go");
    child.wait_idle();
}

#[test]
fn a_turn_is_interrupted_and_one_that_ignores_it_is_killed() {
    let home = Home::new();
    let child = Child::spawn(&home, &opts(&home));
    for prompt in ["wait never", "hang"] {
        let _ = fs::remove_file(home.file("agent.pid"));
        submit(&home, "s", prompt);
        let agent = home.pid_in("agent.pid");
        assert_eq!(hermesctl(&home, &["interrupt", "s"]).code, 0);
        child.wait_idle();
        assert!(gone(agent), "{prompt}");
    }
    assert_eq!(states(&home, "s"), ["interrupted", "interrupted"]);
    assert_eq!(hermesctl(&home, &["interrupt", "s"]).code, 1);
}

#[test]
fn an_agent_asks_a_person_and_delegates() {
    let home = Home::new();
    let child = Child::spawn(&home, &opts(&home));
    let turn = submit(&home, "s", "ask What now?");
    let mut id = String::new();
    wait_until("the agent to ask", SOON, || {
        let prompts = hermesctl(&home, &["prompts", "--json"]).json();
        id = prompts["prompts"][0]["id"].as_str().unwrap_or_default().to_owned();
        !id.is_empty()
    });
    assert_eq!(hermesctl(&home, &["answer", &id, "this"]).code, 0);
    let header = format!("X-Hermes-Session-Token: {TOKEN}");
    let ended = curl(&child, &format!("/api/turns/{turn}?wait=1"), &["-H", &header]).json();
    assert_eq!((&ended["turn"]["state"], &ended["turn"]["reply"]), (&json!("done"), &json!("this")));
    let delegated = hermesctl(&home, &["submit", "s", "delegate it", "--wait"]);
    assert_eq!((delegated.code, delegated.stdout.as_str()), (0, "you said it\n"));
    assert_eq!(hermesctl(&home, &["submit", "s", "delegate-long go", "--wait"]).code, 0);
    child.wait_busy("delegation");
    home.touch("go");
    child.wait_idle();
}

#[test]
fn accepted_prompts_survive_a_kill_and_a_begun_turn_is_not_run_twice() {
    let home = Home::new();
    let mut child = Child::spawn(&home, &opts(&home));
    submit(&home, "s", "wait go");
    let agent = home.pid_in("agent.pid");
    submit(&home, "s", "say later");
    submit(&home, "other", "wait go");
    child.kill_hard();
    let mut next = Child::spawn(&home, &opts(&home));
    assert_eq!(next.verdict()["idle"], false, "a continuation is in the ledger before READY");
    // The agent outlived its backend: its session waits for it.
    next.wait_verdict("the survivor to be seen", |verdict| {
        verdict["detail"].as_str().is_some_and(|d| d.contains("session"))
    });
    let ledger = hermesctl(&home, &["ledger", "--json"]).json();
    let entries = ledger["entries"].as_array().unwrap();
    let continues = |entry: &&Value| entry["id"] == "s" && entry["why"] == "continuation scheduled";
    assert_eq!(entries.iter().filter(continues).count(), 1, "{ledger}");
    assert_eq!(hermesctl(&home, &["idle", "--json"]).json()["idle"], false);
    kill_pid(agent);
    home.touch("go");
    next.wait_idle();
    assert_eq!(states(&home, "s"), ["interrupted", "done"]);
    assert!(states(&home, "other").iter().all(|state| state == "interrupted" || state == "done"));
    assert_eq!(next.terminate().code(), Some(0));
    let begun = home.read("agent.log");
    let mut turns: Vec<&str> = begun.lines().map(|line| line.split(' ').next().unwrap()).collect();
    let all = turns.len();
    turns.dedup();
    assert_eq!(turns.len(), all, "a turn was run twice: {begun}");
}

#[test]
fn every_acknowledged_prompt_ends_exactly_once_however_often_the_child_is_killed() {
    let home = Home::new();
    let options = opts(&home);
    let mut child = Child::spawn(&home, &options);
    let mut accepted = Vec::new();
    for round in 0..20_u64 {
        for n in 0..2 {
            let out = hermesctl(&home, &["submit", &format!("s{}", round % 3), &format!("say {round}.{n}"), "--json"]);
            if out.code == 0 {
                accepted.push(out.json()["turn"].as_u64().unwrap());
            }
        }
        // At a point that differs from round to round, by what the clock happens to say.
        std::thread::sleep(Duration::from_micros(700 * (round * 7 % 13)));
        child.kill_hard();
        child = Child::spawn(&home, &options);
    }
    child.wait_idle();
    assert!(accepted.len() >= 40, "every submit was acknowledged");
    let header = format!("X-Hermes-Session-Token: {TOKEN}");
    for turn in &accepted {
        let report = curl(&child, &format!("/api/turns/{turn}"), &["-H", &header]).json();
        let state = report["turn"]["state"].as_str().unwrap();
        assert!(["done", "failed", "interrupted"].contains(&state), "{report}");
    }
    let begun = home.read("agent.log");
    let mut turns: Vec<u64> = begun.lines().map(|line| line.split(' ').next().unwrap().parse().unwrap()).collect();
    let all = turns.len();
    turns.sort_unstable();
    turns.dedup();
    assert_eq!(turns.len(), all, "a turn was run twice");
}

#[test]
fn a_prompt_that_cannot_be_kept_is_refused() {
    let home = Home::new();
    let child = Child::spawn(&home, &opts(&home));
    for (session, prompt, code) in [("a/b", "say x", 2), ("s", " ", 2), ("..", "say x", 2)] {
        assert_eq!(hermesctl(&home, &["submit", session, prompt]).code, code, "{session} {prompt}");
    }
    fs::create_dir(home.file("control.db")).unwrap();
    let refused = hermesctl(&home, &["submit", "s", "say x"]);
    assert!(refused.code == 3 && refused.stderr.contains("control.db"), "{refused:?}");
    child.wait_idle();

    let bare = Home::new();
    let _child = Child::spawn(&bare, &Opts::desktop());
    let refused = hermesctl(&bare, &["submit", "s", "say x"]);
    assert!(refused.code == 3 && refused.stderr.contains("--agent-command"), "{refused:?}");
}

#[test]
fn a_prompt_that_no_file_may_grow_for_is_refused_and_the_next_is_taken() {
    let home = Home::new();
    let child = Child::spawn(&home, &opts(&home));
    let limit = |bytes: &str| {
        let range = format!("--fsize={bytes}:");
        let done = Command::new("prlimit").args(["--pid", &child.pid.to_string(), &range]).status();
        assert!(done.unwrap().success());
    };
    assert_eq!(hermesctl(&home, &["submit", "s", "say one", "--wait"]).code, 0);
    limit("4096");
    let refused = hermesctl(&home, &["submit", "s", "say two"]);
    assert!(refused.code == 3 && refused.stderr.contains("control.db"), "{refused:?}");
    limit("unlimited");
    assert_eq!(hermesctl(&home, &["submit", "s", "say three", "--wait"]).code, 0);
    assert_eq!(states(&home, "s"), ["done", "done"]);
}

#[test]
fn a_signal_interrupts_what_runs_and_keeps_what_waits() {
    let home = Home::new();
    let options = opts(&home).env("HERMES_SHUTDOWN_GRACE", "0.1");
    let mut child = Child::spawn(&home, &options);
    submit(&home, "s", "wait never");
    home.pid_in("agent.pid");
    submit(&home, "s", "say later");
    child.signal(Signal::SIGTERM);
    assert_eq!(child.wait_exit(SOON).code(), Some(0));
    let next = Child::spawn(&home, &options);
    next.wait_idle();
    assert_eq!(states(&home, "s"), ["interrupted", "done"]);
}

#[test]
fn a_job_that_needs_an_agent_is_a_turn_of_a_session_of_its_own() {
    let home = Home::new();
    let mut job = crate::support::due("wish", "");
    job["no_agent"] = json!(false);
    job["script"] = Value::Null;
    job["prompt"] = json!("say good morning");
    home.write_jobs(&[job]);
    let child = Child::spawn(&home, &opts(&home));
    let done = home.wait_status("wish", "ok");
    assert_eq!(done["last_error"], Value::Null);
    child.wait_idle();
    let sessions = hermesctl(&home, &["sessions", "--json"]).json();
    let session = sessions["sessions"][0]["session"].as_str().unwrap().to_owned();
    assert!(session.starts_with("cron_wish_"), "{sessions}");
    assert_eq!(log(&home, &session)[0]["reply"], "you said good morning");
    let output = crate::support::files_ending(&home.file("cron/output/wish"), ".md");
    let text = fs::read_to_string(&output[0]).unwrap();
    assert!(text.contains("**Mode:** agent") && text.ends_with("---\n\nyou said good morning\n"), "{text}");
}

#[test]
fn a_delegated_task_ends_with_the_turn_that_asked_for_it() {
    let home = Home::new();
    let child = Child::spawn(&home, &opts(&home));
    submit(&home, "s", "wait go");
    home.pid_in("agent.pid");
    let header = format!("X-Hermes-Session-Token: {TOKEN}");
    let body = ["-H", header.as_str(), "-d", r#"{"prompt":"wait never"}"#];
    let turn = curl(&child, "/api/sessions/s/delegations", &body).json()["turn"].as_u64().unwrap();
    wait_until("the task to run", SOON, || home.read("agent.log").contains("wait never"));
    home.touch("go");
    child.wait_idle();
    let ended = curl(&child, &format!("/api/turns/{turn}"), &["-H", &header]).json();
    assert_eq!(ended["turn"]["state"], "interrupted");
    assert_eq!(curl(&child, "/api/sessions/s/delegations", &body).status, 409);
}

#[test]
fn the_ledger_is_read_a_page_at_a_time() {
    let home = Home::new();
    let child = Child::spawn(&home, &Opts::desktop());
    let mut peer = crate::retire::Peer::connect(&child);
    for n in 0..5 {
        peer.hold(&format!("h{n}")).unwrap();
    }
    let first = hermesctl(&home, &["ledger", "--json", "--limit", "3"]).json();
    assert_eq!(first["entries"].as_array().unwrap().len(), 3);
    let next = first["next"].to_string();
    let second = hermesctl(&home, &["ledger", "--json", "--limit", "3", "--after", &next]).json();
    assert_eq!((second["entries"].as_array().unwrap().len(), &second["next"]), (2, &Value::Null));
    assert!(hermesctl(&home, &["ledger", "--limit", "3"]).stdout.contains(&format!("--after {next}")));
}

/// Keeps everybody else from control.db until it is dropped.
struct Locked(std::process::Child);

impl Locked {
    fn take(home: &Home) -> Self {
        let script = "import sqlite3, sys\n\
            db = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=20)\n\
            db.execute('BEGIN EXCLUSIVE')\nopen(sys.argv[2], 'w').close()\nsys.stdin.read()";
        let taken = home.root().join("taken");
        let _ = fs::remove_file(&taken);
        let mut command = std::process::Command::new("python3");
        command.args(["-c", script]).arg(home.file("control.db")).arg(&taken).stdin(std::process::Stdio::piped());
        let holder = Self(command.spawn().unwrap());
        wait_until("control.db to be locked", SOON, || taken.exists());
        holder
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const UNKNOWN: &str = "turn_probe_unavailable";

#[test]
fn prompts_that_cannot_be_read_at_start_make_the_verdict_unknown_until_they_can() {
    let home = Home::new();
    let mut child = Child::spawn(&home, &opts(&home));
    submit(&home, "s", "wait go");
    kill_pid(home.pid_in("agent.pid"));
    submit(&home, "t", "wait go");
    submit(&home, "t", "say later");
    home.pid_in("agent.pid");
    child.kill_hard();
    kill_pid(home.pid_in("agent.pid"));
    home.touch("go");
    let aside = home.root().join("aside.db");
    for file in ["control.db-wal", "control.db-shm"] {
        let _ = fs::copy(home.file(file), home.root().join(file));
    }
    fs::rename(home.file("control.db"), &aside).unwrap();
    fs::create_dir(home.file("control.db")).unwrap();
    let child = Child::spawn(&home, &opts(&home));
    child.wait_verdict("the doubt to be told", |verdict| verdict["reason"] == UNKNOWN);
    child.holds("nobody can know", 10, |verdict| verdict["idle"].is_null());
    assert_eq!(hermesctl(&home, &["retire"]).code, 1, "nothing authorises a stop");
    let ledger = hermesctl(&home, &["ledger", "--json"]).json();
    assert_eq!((&ledger["ledgers"][1]["entries"], &ledger["entries"][0]["id"]), (&Value::Null, &json!("control.db")));
    fs::remove_dir(home.file("control.db")).unwrap();
    for file in ["control.db-wal", "control.db-shm"] {
        let _ = fs::rename(home.root().join(file), home.file(file));
    }
    fs::rename(&aside, home.file("control.db")).unwrap();
    child.wait_idle();
    assert_eq!(states(&home, "t").last().map(String::as_str), Some("done"), "what waited was taken up");
}

#[test]
fn nothing_is_accepted_before_what_was_accepted_is_taken_up() {
    let home = Home::new();
    let mut child = Child::spawn(&home, &opts(&home));
    submit(&home, "s", "wait go");
    submit(&home, "s", "say before");
    let agent = home.pid_in("agent.pid");
    child.kill_hard();
    kill_pid(agent);
    let locked = Locked::take(&home);
    let child = Child::spawn(&home, &opts(&home));
    let refused = hermesctl(&home, &["submit", "s", "say too soon"]);
    assert!(refused.code == 3 && refused.stderr.contains("control.db"), "{refused:?}");
    drop(locked);
    // As soon as it can be, though the backend itself may not have looked again yet.
    wait_until("a prompt to be accepted", SOON, || hermesctl(&home, &["submit", "s", "say after"]).code == 0);
    child.wait_idle();
    assert_eq!(states(&home, "s"), ["interrupted", "done", "done"]);
    let ran = home.read("agent.log");
    assert_eq!(ran.lines().filter(|line| line.contains("say")).count(), 2, "{ran}");
}

#[test]
fn a_journal_that_is_locked_holds_turns_back_and_loses_none() {
    let home = Home::new();
    let child = Child::spawn(&home, &opts(&home));
    submit(&home, "s", "wait go");
    home.pid_in("agent.pid");
    submit(&home, "s", "say after");
    let locked = Locked::take(&home);
    home.touch("go");
    // The agent has ended, its reply cannot be written: the turn stays in its ledger, and so does what waits behind it.
    wait_until("the turn to wait for its journal", SOON, || {
        hermesctl(&home, &["ledger"]).stdout.contains("waiting for its journal")
    });
    assert_eq!(hermesctl(&home, &["retire"]).code, 1);
    child.holds("its end is not written", 10, |verdict| verdict["detail"] == "session:s");
    drop(locked);
    child.wait_idle();
    let turns = log(&home, "s");
    assert_eq!((&turns[0]["state"], &turns[0]["reply"]), (&json!("done"), &json!("waited")));
    assert_eq!((&turns[1]["state"], &turns[1]["reply"]), (&json!("done"), &json!("you said after")));
}

#[test]
fn a_journal_that_is_removed_loses_no_accepted_prompt() {
    let home = Home::new();
    let mut child = Child::spawn(&home, &opts(&home));
    let first = submit(&home, "s", "wait go");
    let agent = home.pid_in("agent.pid");
    fs::remove_file(home.file("control.db")).unwrap();
    assert!(submit(&home, "s", "say on") > first, "numbers go on");
    child.kill_hard();
    kill_pid(agent);
    let next = Child::spawn(&home, &opts(&home));
    next.wait_idle();
    assert_eq!(states(&home, "s"), ["interrupted", "done"]);
}

#[test]
fn an_agent_that_outlives_its_backend_reads_all_of_its_prompt() {
    let home = Home::new();
    let mut child = Child::spawn(&home, &opts(&home));
    let rest = "x".repeat(200_000);
    let prompt = home.root().join("prompt");
    fs::write(&prompt, format!("late go\n{rest}")).unwrap();
    let given = std::process::Stdio::from(fs::File::open(&prompt).unwrap());
    assert!(home.ctl(&["submit", "s", "-"]).stdin(given).output().unwrap().status.success());
    home.pid_in("agent.pid");
    child.kill_hard();
    home.touch("go");
    wait_until("the prompt to be read", SOON, || home.file("counted").exists());
    assert_eq!(home.read("counted").trim_end(), rest);
    assert!(crate::support::files_ending(&home.file("runs"), ".input").is_empty());
}

#[test]
fn a_detached_delegation_ends_with_the_backend() {
    let home = Home::new();
    let mut child = Child::spawn(&home, &opts(&home).env("HERMES_SHUTDOWN_GRACE", "0.1"));
    assert_eq!(hermesctl(&home, &["submit", "s", "delegate-long never", "--wait"]).code, 0);
    let agent = home.pid_in("agent.pid");
    child.signal(Signal::SIGTERM);
    assert_eq!(child.wait_exit(SOON).code(), Some(0));
    assert!(gone(agent), "nothing is left running");
}
