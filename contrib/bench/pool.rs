//! What opening a profile in a full pool of idle residents takes: `cargo bench --bench pool`.
//!
//! The whole of it: from the first byte of `hermesctl open` to its exit, with three residents that were all touched a moment
//! ago. The yardstick is opening one that is up already, measured in turn with it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ROUNDS: usize = 20;

fn main() {
    let home = tempfile::tempdir().unwrap();
    let mut pool = start(home.path());
    let profiles = ["a", "b", "c", "d"];
    profiles.iter().take(3).for_each(|profile| open(home.path(), profile));
    let (mut fourth, mut resident) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        wait_until_idle(home.path());
        // Round and round: always the one that went last time.
        fourth.push(timed(|| open(home.path(), profiles[(round + 3) % 4])));
        resident.push(timed(|| open(home.path(), profiles[(round + 3) % 4])));
    }
    let (fourth, resident) = (median(fourth), median(resident));
    println!("open a fourth in a full idle pool of three   {fourth:6.1} ms  (median of {ROUNDS}; target under 60)");
    println!("open one that is up already                  {resident:6.1} ms  ratio {:.1}", fourth / resident);
    let _ =
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pool.id().cast_signed()), nix::sys::signal::Signal::SIGTERM);
    pool.wait().unwrap();
}

fn command(program: &str, home: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).stdin(Stdio::null()).stderr(Stdio::null());
    command.env("HERMES_HOME", home.join("h")).env("HERMES_RUNTIME_DIR", home.join("r")).stdout(Stdio::piped());
    command
}

fn start(home: &Path) -> Child {
    let mut pool = command(env!("CARGO_BIN_EXE_hermes"), home).args(["pool", "--max", "3"]).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(pool.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("HERMES_POOL_READY"), "{line}");
    pool
}

fn ctl(home: &Path, args: &[&str]) -> Vec<u8> {
    let out = command(env!("CARGO_BIN_EXE_hermesctl"), home).args(args).output().unwrap();
    assert!(out.status.success(), "{args:?}");
    out.stdout
}

fn open(home: &Path, profile: &str) {
    ctl(home, &["open", profile]);
}

fn wait_until_idle(home: &Path) {
    loop {
        let report: serde_json::Value = serde_json::from_slice(&ctl(home, &["pool", "--json"])).unwrap();
        if report["slots"].as_array().unwrap().iter().all(|slot| slot["idle"] == true) {
            return;
        }
        std::thread::yield_now();
    }
}

fn timed(run: impl FnOnce()) -> Duration {
    let begin = Instant::now();
    run();
    begin.elapsed()
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e3
}
