//! What `hermesctl` makes of a child that misbehaves: never idle, and a reason.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Once;

use crate::support::{Home, TOKEN, hermesctl};

/// `cargo test` builds it as an example, beside the binaries and one folder down; `cargo test --test it` does not.
fn program() -> PathBuf {
    static BUILT: Once = Once::new();
    let folder = PathBuf::from(env!("CARGO_BIN_EXE_hermes")).parent().unwrap().to_owned();
    let program = folder.join("examples/bad_child");
    BUILT.call_once(|| {
        if !program.exists() {
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["build", "--quiet", "--locked", "--example", "bad_child", "--target-dir"]);
            cargo.arg(folder.parent().unwrap());
            if folder.ends_with("release") {
                cargo.arg("--release");
            }
            assert!(cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success());
        }
    });
    program
}

/// A running `bad_child`, ended with the test, and the pipe that it prints to.
struct Bad {
    child: Child,
    _stdout: BufReader<ChildStdout>,
}

impl Bad {
    fn start(home: &Home, how: &str) -> Self {
        let mut command = Command::new(program());
        command.arg(how);
        home.environment(&mut command);
        command.env("HERMES_DASHBOARD_SESSION_TOKEN", TOKEN).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        assert!(line.starts_with("HERMES_BACKEND_READY"), "{line:?}");
        Self { child, _stdout: stdout }
    }
}

impl Drop for Bad {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn asked(how: &str) -> crate::support::Output {
    let home = Home::new();
    let _bad = Bad::start(&home, how);
    hermesctl(&home, &["idle", "--json"])
}

#[test]
fn a_ledger_that_cannot_be_read_is_exit_3_and_null_on_the_wire() {
    for (how, reason) in [("unknown", "turn_probe_unavailable"), ("unknown-input", "input_probe_unavailable")] {
        let seen = asked(how);
        assert_eq!(seen.code, 3, "{seen:?}");
        let json = seen.json();
        assert_eq!((&json["ok"], &json["idle"], &json["reason"]), (&true.into(), &().into(), &reason.into()));
        assert_eq!(json["generation"], "bad");
    }
}

#[test]
fn half_a_frame_garbage_and_a_huge_length_are_never_idle() {
    for how in ["half-a-frame", "garbage", "huge"] {
        let seen = asked(how);
        assert_eq!(seen.code, 3, "{how}: {seen:?}");
        let json = seen.json();
        assert_eq!((&json["ok"], &json["idle"]), (&false.into(), &().into()), "{how}");
        assert!(json["error"].as_str().is_some_and(|error| !error.is_empty()), "{how}");
    }
}

#[test]
fn a_child_that_never_answers_is_unknown_within_the_deadline() {
    let seen = asked("never-answers");
    assert_eq!(seen.code, 3, "{seen:?}");
    assert!(seen.json()["error"].as_str().unwrap().contains("did not answer"));
}
