//! A randomised run against a real child: clients that lose replies, die between steps and repeat steps, while jobs and
//! holds come and go. No work is ever ended by a commit, and no child stays alive and closed.
//!
//! `HERMES_FAULT_ROUNDS=2000 cargo test --release --test it retire_faults` is the full run; the seed is in the message of
//! every failure, and `HERMES_FAULT_SEED` sets it.

use std::time::{Duration, Instant};

use hermes::protocol::{Permit, Reply, Request};

use crate::retire::Peer;
use crate::support::{Child, Home, Opts, SOON, gone, wait_until};

/// xorshift: the run must be the same for the same seed on every machine.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

pub(crate) fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A script that says when it begins and, only if nobody ends it, when it has ended.
const SCRIPT: &str =
    "echo begun >> \"$HERMES_HOME/runs\"\nsleep 0.0$((RANDOM % 9))\necho ended >> \"$HERMES_HOME/runs\"\n";

struct World {
    home: Home,
    child: Child,
    dice: Dice,
    holds: Vec<Peer>,
    /// A permit that somebody asked for and nobody has: its request id brings it back.
    lost: Option<String>,
    commits: u64,
    refused: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let home = Home::new();
        home.script("work.sh", SCRIPT);
        let child = Child::spawn(&home, &Opts::desktop());
        Self { home, child, dice: Dice(seed | 1), holds: Vec::new(), lost: None, commits: 0, refused: 0 }
    }

    fn round(&mut self, round: u64) {
        match self.dice.roll(12) {
            0 | 1 => self.take_hold(),
            2 | 3 => self.holds.clear(),
            4 => self.due_job(round),
            // Rounds are short and jobs are long: now and then the work is seen to its end.
            5 | 6 => {
                self.holds.clear();
                self.child.wait_idle();
            }
            _ => self.retirement(round),
        }
    }

    fn take_hold(&mut self) {
        let Ok(mut peer) = Peer::try_connect(&self.child.socket()) else { return };
        match peer.hold("me") {
            Ok(_) if self.holds.len() < 4 => self.holds.push(peer),
            Ok(_) => {}
            Err(_) => self.refused += 1,
        }
    }

    fn due_job(&self, round: u64) {
        self.home.write_jobs(&[crate::support::due(&format!("job{round}"), "work.sh")]);
    }

    /// One client's attempt, which may lose any reply, die after any step, or repeat it.
    fn retirement(&mut self, round: u64) {
        let Ok(mut peer) = Peer::try_connect(&self.child.socket()) else { return };
        let id = self.lost.clone().unwrap_or_else(|| format!("r{round}"));
        let tied = self.dice.roll(2) == 0;
        let prepare = || Request::Prepare { request_id: Some(id.clone()), tied };
        if self.dice.roll(4) == 0 {
            // The reply is lost: asked, and gone before the answer is read.
            peer.subscribe(prepare());
            self.lost = Some(id);
            return;
        }
        let permit = match peer.call(prepare()) {
            Ok(Reply::Prepared { permit, .. }) => permit,
            // Held by work: then no permit lives, and nothing is lost any more.
            Ok(Reply::Refused(refusal)) if !refusal.retiring => return self.lost = None,
            _ => return,
        };
        assert!(self.holds.is_empty(), "a permit while {} holds live", self.holds.len());
        if self.dice.roll(2) == 0 {
            self.take_hold();
            assert!(self.holds.is_empty(), "work began under a permit");
        }
        self.lost = None;
        match self.dice.roll(8) {
            0 => self.lost = Some(id),
            1 => {
                assert!(matches!(peer.call(prepare()), Ok(Reply::Prepared { permit: again, .. }) if again == permit));
                self.lost = Some(id);
            }
            2 => self.commit(&mut peer, permit, true),
            3 => self.commit(&mut peer, permit, false),
            _ => drop(peer.call(Request::Cancel { permit })),
        }
    }

    fn commit(&mut self, peer: &mut Peer, permit: Permit, read: bool) {
        let request = Request::Commit { permit };
        if read {
            match peer.call(request) {
                Ok(Reply::Committed { ok: true, .. }) => {}
                _ => return,
            }
        } else {
            peer.subscribe(request);
        }
        self.commits += 1;
        // Whether or not the reply came, the child leaves by itself.
        let begun = Instant::now();
        assert_eq!(self.child.wait_exit(SOON).code(), Some(0));
        assert!(begun.elapsed() < Duration::from_secs(3), "alive and closed for {:?}", begun.elapsed());
        assert!(gone(self.child.pid));
        self.no_run_was_cut_off();
        self.lost = None;
        self.child = Child::spawn(&self.home, &Opts::desktop());
    }

    fn no_run_was_cut_off(&self) {
        let runs = self.home.read("runs");
        let count = |word: &str| runs.lines().filter(|line| *line == word).count();
        assert_eq!(count("begun"), count("ended"), "a commit ended a run");
        assert!(!self.home.jobs_path().exists() || !self.home.jobs_text().contains("interrupted"));
    }
}

#[test]
fn no_lost_message_and_no_dead_client_loses_work_or_strands_a_child() {
    let (seed, rounds) = (number("HERMES_FAULT_SEED", 0x5eed), number("HERMES_FAULT_ROUNDS", 200));
    println!("seed {seed}, {rounds} rounds");
    let mut world = World::new(seed);
    for round in 0..rounds {
        world.round(round);
    }
    world.holds.clear();
    // Whatever permit was lost on the way is over in 30 s; then the child is as open as ever.
    wait_until("the fence to be open", Duration::from_secs(35), || {
        Peer::try_connect(&world.child.socket()).is_ok_and(|mut peer| peer.hold("end").is_ok())
    });
    world.child.wait_idle();
    world.no_run_was_cut_off();
    println!("{} commits, {} refusals", world.commits, world.refused);
    assert!(world.commits > 0 && world.refused > 0, "the run met nothing: seed {seed}");
}
