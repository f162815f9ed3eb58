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

const PROFILES: [&str; 4] = ["a", "b", "c", "d"];

fn main() {
    let home = tempfile::tempdir().unwrap();
    let mut pool = start(home.path());
    PROFILES.iter().take(3).for_each(|profile| open(home.path(), profile));
    let (mut fourth, mut resident) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        wait_until_idle(home.path());
        // Round and round: always the one that went last time.
        fourth.push(timed(|| open(home.path(), PROFILES[(round + 3) % 4])));
        resident.push(timed(|| open(home.path(), PROFILES[(round + 3) % 4])));
    }
    let (fourth, resident) = (median(fourth), median(resident));
    println!("open a fourth in a full idle pool of three   {fourth:6.1} ms  (median of {ROUNDS}; target under 60)");
    println!("open one that is up already                  {resident:6.1} ms  ratio {:.1}", fourth / resident);
    let waiting = median((0..ROUNDS).map(|round| first_idle(home.path(), round)).collect());
    println!("from the first of three busy ones to idle    {waiting:6.1} ms  (median of {ROUNDS}; target under 100)");
    let hung = timed_beside_a_hung_one(home.path());
    println!("open beside one that is stopped              {hung:6.1} ms  (once; target under 300 more than without)");
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

fn report(home: &Path) -> serde_json::Value {
    serde_json::from_slice(&ctl(home, &["pool", "--json"])).unwrap()
}

fn wait_for(home: &Path, holds: impl Fn(&serde_json::Value) -> bool) {
    while !holds(&report(home)) {
        std::thread::yield_now();
    }
}

fn wait_until_idle(home: &Path) {
    wait_for(home, |report| report["slots"].as_array().unwrap().iter().all(|slot| slot["idle"] == true));
}

/// Three residents are held; the time from the end of one hold to the child that waited for it.
fn first_idle(home: &Path, round: usize) -> Duration {
    let report = report(home);
    let up: Vec<String> =
        report["slots"].as_array().unwrap().iter().map(|slot| slot["profile"].as_str().unwrap().to_owned()).collect();
    let mut holds: Vec<Child> = up.iter().map(|profile| hold(home, profile)).collect();
    wait_for(home, |report| report["slots"].as_array().unwrap().iter().all(|slot| slot["idle"] == false));
    let asleep = PROFILES.into_iter().find(|profile| !up.iter().any(|up| up == profile)).unwrap();
    let mut waiting = command(env!("CARGO_BIN_EXE_hermesctl"), home).args(["open", asleep]).spawn().unwrap();
    wait_for(home, |report| report["queue"].as_array().unwrap().len() == 1);
    let first = round % holds.len();
    let begin = Instant::now();
    drop(holds[first].stdin.take());
    assert!(waiting.wait().unwrap().success());
    let took = begin.elapsed();
    for mut hold in holds {
        drop(hold.stdin.take());
        hold.wait().unwrap();
    }
    took
}

fn hold(home: &Path, profile: &str) -> Child {
    let mut command = command(env!("CARGO_BIN_EXE_hermesctl"), home);
    command.args(["--profile", profile, "hold", "--why", "bench", "--until-eof"]);
    command.stdin(Stdio::piped()).spawn().unwrap()
}

/// The one that was used least recently does not answer.
fn timed_beside_a_hung_one(home: &Path) -> f64 {
    wait_until_idle(home);
    let slots = report(home)["slots"].as_array().unwrap().clone();
    let oldest = slots.iter().max_by_key(|slot| slot["unused_ms"].as_u64()).unwrap();
    let pid = nix::unistd::Pid::from_raw(i32::try_from(oldest["pid"].as_i64().unwrap()).unwrap());
    let asleep = PROFILES.into_iter().find(|profile| !slots.iter().any(|slot| slot["profile"] == *profile)).unwrap();
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
    let took = timed(|| open(home, asleep));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT).unwrap();
    took.as_secs_f64() * 1e3
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
