//! A randomised run against a real pool and real children: profiles are opened and closed, children crash and hang, jobs come
//! and go, the pool itself is killed and started again. No work is ended by the pool or by its death, no idle child outlives
//! its owner, no slot is lost, and a backend of somebody else is never touched.
//!
//! `HERMES_FAULT_ROUNDS=1000 cargo test --release --test it pool_faults` is the full run; the seed is in the message of
//! every failure, and `HERMES_FAULT_SEED` sets it.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::pool::{Pool, log_of};
use crate::retire_faults::{Dice, number};
use crate::support::{
    Child, Home, Opts, SOON, due, gone, hermesctl, start_marker, wait_until, write_jobs_in, write_script_in,
};

const PROFILES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// Says when it begins and, only if nobody ends it, when it has ended.
const SCRIPT: &str =
    "echo begun >> \"$HERMES_HOME/runs.log\"\nsleep 0.$((RANDOM % 4))\necho ended >> \"$HERMES_HOME/runs.log\"\n";

struct World {
    home: Home,
    pool: Option<Pool>,
    dice: Dice,
    foreign: Child,
    /// Runs that a crash of their own child cut off: no fault of the pool.
    crashed: u64,
    kills: u64,
    /// How long the slowest idle orphan was there.
    longest: Duration,
}

impl World {
    fn new(seed: u64) -> Self {
        let home = Home::new();
        for profile in PROFILES {
            let own = home.file(&format!("profiles/{profile}"));
            fs::create_dir_all(&own).unwrap();
            write_script_in(&own, "work.sh", SCRIPT);
        }
        let foreign = Child::spawn(&home, &Opts::desktop().profile("foreign"));
        let pool = Some(Pool::start(&home, &["--max", "3"]));
        Self { home, pool, dice: Dice(seed | 1), foreign, crashed: 0, kills: 0, longest: Duration::ZERO }
    }

    fn pool(&self) -> &Pool {
        self.pool.as_ref().unwrap()
    }

    fn profile(&mut self) -> &'static str {
        PROFILES[usize::try_from(self.dice.roll(6)).unwrap()]
    }

    fn resident(&mut self) -> Option<(String, u32)> {
        let slots = self.pool().report()["slots"].as_array().unwrap().clone();
        let ready: Vec<&Value> = slots.iter().filter(|slot| slot["state"] == "ready").collect();
        let place = usize::try_from(self.dice.roll(ready.len().max(1) as u64)).unwrap();
        let slot = ready.get(place)?;
        Some((slot["profile"].as_str()?.to_owned(), u32::try_from(slot["pid"].as_u64()?).ok()?))
    }

    fn round(&mut self, round: u64) {
        let profile = self.profile();
        match self.dice.roll(16) {
            0..=5 => self.open(profile),
            6 => {
                hermesctl(&self.home, &["close", profile]);
            }
            7 | 8 => self.job(profile, round),
            9 => self.crash(),
            10 => self.hang(),
            11 => {
                let max = 1 + self.dice.roll(4);
                assert_eq!(self.pool().ctl(&["pool", "limit", &max.to_string()]).code, 0);
            }
            12 => self.give_up(profile),
            13 => self.kill_pool(),
            14 => assert!(self.pool().ctl(&["open", "foreign", "--timeout", "1s"]).code != 0),
            _ => {
                let out = self.pool().ctl(&["open", profile, "--background", "--timeout", "50ms"]);
                assert!([0, 1, 3].contains(&out.code), "{out:?}");
            }
        }
    }

    fn open(&mut self, profile: &str) {
        let out = self.pool().ctl(&["open", profile, "--json", "--timeout", "20s"]);
        // One that hangs and others that work may fill the house for a while; all of it ends.
        assert!(
            out.code == 0 || (out.code == 1 && out.stderr.contains("in the way")),
            "{out:?}\n{}",
            log_of(&self.home)
        );
    }

    fn job(&self, profile: &str, round: u64) {
        let file = json!({"jobs": [due(&format!("job{round}"), "work.sh")], "updated_at": "x"});
        write_jobs_in(&self.home.file(&format!("profiles/{profile}")), &file.to_string());
    }

    /// A child dies by itself. What it ran is cut off, and on record as such.
    fn crash(&mut self) {
        let Some((profile, pid)) = self.resident() else { return };
        self.crashed += self.unfinished(&profile);
        let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
        wait_until("the crash to be seen", SOON, || self.pool().slot(&profile)["pid"] != pid);
    }

    fn hang(&mut self) {
        let Some((_, pid)) = self.resident() else { return };
        let pid = Pid::from_raw(pid.cast_signed());
        let marker = start_marker(pid.as_raw().unsigned_abs());
        if kill(pid, Signal::SIGSTOP).is_ok() {
            let profile = self.profile();
            let _ = self.pool().ctl(&["open", profile, "--timeout", "500ms"]);
            assert_eq!(start_marker(pid.as_raw().unsigned_abs()), marker, "one that cannot answer is never ended");
            let _ = kill(pid, Signal::SIGCONT);
        }
    }

    fn give_up(&mut self, profile: &str) {
        let mut opening = self.pool().opening(&[profile]);
        std::thread::sleep(Duration::from_millis(self.dice.roll(12)));
        let _ = opening.kill();
        let _ = opening.wait();
    }

    fn kill_pool(&mut self) {
        let pool = self.pool.take().unwrap();
        let slots = pool.report()["slots"].as_array().unwrap().clone();
        let pids = |idle: bool| -> Vec<u32> {
            let of = slots.iter().filter(|slot| (slot["idle"] == true) == idle);
            of.filter_map(|slot| u32::try_from(slot["pid"].as_u64()?).ok()).collect()
        };
        drop(pool);
        self.kills += 1;
        if self.dice.roll(2) == 0 {
            // Who is not adopted leaves as soon as it is idle.
            let begun = Instant::now();
            wait_until("the idle orphans to go", SOON, || pids(true).into_iter().all(gone));
            self.longest = self.longest.max(begun.elapsed());
            wait_until("the busy orphans to go", SOON, || pids(false).into_iter().all(gone));
        }
        self.pool = Some(Pool::start(&self.home, &["--max", "3"]));
    }

    /// How many runs of a profile have begun and not ended.
    fn unfinished(&self, profile: &str) -> u64 {
        let log = self.home.read(&format!("profiles/{profile}/runs.log"));
        let count = |word: &str| log.lines().filter(|line| *line == word).count() as u64;
        count("begun") - count("ended")
    }
}

#[test]
fn no_work_is_ended_and_no_slot_is_lost_whatever_happens() {
    let rounds = number("HERMES_FAULT_ROUNDS", 60);
    let seed = number("HERMES_FAULT_SEED", 0x5eed);
    println!("seed {seed}, {rounds} rounds");
    let mut world = World::new(seed);
    for round in 0..rounds {
        world.round(round);
    }
    assert_eq!(world.pool().ctl(&["pool", "limit", "3"]).code, 0);
    let ended = || PROFILES.iter().map(|profile| world.unfinished(profile)).sum::<u64>();
    // A run whose child crashed goes on behind the gate, or died with it: at most so many lack their end.
    wait_until("all work to end", SOON, || ended() <= world.crashed);
    // Every slot still works.
    for profile in PROFILES {
        let out = world.pool().ctl(&["open", profile, "--timeout", "20s"]);
        assert_eq!(out.code, 0, "seed {seed}: {out:?}\n{}", log_of(&world.home));
    }
    assert_eq!(world.foreign.verdict()["idle"], true, "seed {seed}: the backend of another owner was touched");
    println!(
        "{} kills of the pool, {} runs cut off by crashes of their own child, no idle orphan longer than {:?}",
        world.kills, world.crashed, world.longest
    );
}
