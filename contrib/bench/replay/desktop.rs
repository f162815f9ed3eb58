//! Three policies that desktops have had: by freshness alone; ask, and then stop; ask one after the other for a permit.

use std::collections::{BTreeMap, BTreeSet};

use crate::script::{Child, EXIT, PATIENCE, PINNED, SECOND, START, Script, Time, What};
use crate::tally::{Chance, Tally};

/// A resident that nobody used for so long is stale.
const STALE: Time = 240 * SECOND;

/// Between the word that a child is idle and its end, where nothing holds it still.
const RACE: Time = 50;

/// A child that does not answer is waited for so long, before the next is asked.
const HUNG: Time = 3 * SECOND;

/// While somebody waits everybody is looked at this often.
const AGAIN: Time = SECOND;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    /// The one unused for longest goes, whatever it does.
    Freshness,
    /// One that says idle is stopped a moment later.
    ProbeThenStop,
    /// One after the other is asked for a permit.
    SerialPrepare,
}

impl Policy {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Freshness => "freshness only",
            Self::ProbeThenStop => "probe, then stop",
            Self::SerialPrepare => "serial prepare",
        }
    }
}

struct Resident {
    child: Child,
    up: bool,
    used: Time,
}

struct Waiter {
    profile: usize,
    since: Time,
    turn: Time,
    foreground: bool,
    chance: Chance,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Later {
    Up(usize),
    Stop(usize),
    Gone(usize),
    Reclaim,
    GiveUp,
}

pub(crate) struct Desktop<'a> {
    policy: Policy,
    cap: usize,
    script: &'a Script,
    residents: BTreeMap<usize, Resident>,
    leaving: BTreeSet<usize>,
    waiters: Vec<Waiter>,
    later: BTreeSet<(Time, Later)>,
    tally: Tally,
}

impl<'a> Desktop<'a> {
    pub(crate) fn new(policy: Policy, cap: usize, script: &'a Script) -> Self {
        Self {
            policy,
            cap,
            script,
            residents: BTreeMap::new(),
            leaving: BTreeSet::new(),
            waiters: Vec::new(),
            later: BTreeSet::new(),
            tally: Tally::default(),
        }
    }

    pub(crate) fn run(mut self) -> Tally {
        for (at, profile, what) in &self.script.events {
            while let Some((due, later)) = self.later.first().copied().filter(|(due, _)| due <= at) {
                self.later.remove(&(due, later));
                self.come(due, later);
                self.settle(due);
            }
            self.happen(*at, *profile, *what);
            self.settle(*at);
        }
        self.tally
    }

    fn happen(&mut self, now: Time, profile: usize, what: What) {
        match what {
            What::Open { turn } => self.open(now, profile, turn, true),
            What::Dial => self.open(now, profile, 0, false),
            What::Job { takes } => match self.residents.get_mut(&profile).filter(|resident| resident.up) {
                Some(resident) => resident.child.work.push(now + takes),
                None => self.tally.missed += 1,
            },
            What::Hang { lasts } => {
                if let Some(resident) = self.residents.get_mut(&profile) {
                    resident.child.hung_until = now + lasts;
                }
            }
        }
    }

    fn open(&mut self, now: Time, profile: usize, turn: Time, foreground: bool) {
        self.waiters.push(Waiter { profile, since: now, turn, foreground, chance: Chance::default() });
        self.later.insert((now + PATIENCE, Later::GiveUp));
        self.later.insert((now, Later::Reclaim));
    }

    fn come(&mut self, now: Time, later: Later) {
        match later {
            Later::Up(profile) => {
                if let Some(resident) = self.residents.get_mut(&profile) {
                    resident.up = true;
                }
            }
            Later::Stop(profile) => self.stop(now, profile),
            Later::Gone(profile) => {
                self.leaving.remove(&profile);
            }
            Later::Reclaim => self.reclaim(now),
            Later::GiveUp => {
                let (late, rest) = std::mem::take(&mut self.waiters)
                    .into_iter()
                    .partition(|waiter: &Waiter| waiter.since + PATIENCE <= now);
                self.waiters = rest;
                for waiter in late {
                    match waiter.foreground {
                        true => {
                            self.tally.timed_out += 1;
                            self.tally.avoidable += usize::from(waiter.chance.was_had());
                        }
                        false => self.tally.refused += 1,
                    }
                }
            }
        }
    }

    /// Serves whoever can be served, and looks at who could have been.
    fn settle(&mut self, now: Time) {
        self.waiters.sort_by_key(|waiter| (!waiter.foreground, waiter.since));
        let mut rest = Vec::new();
        for waiter in std::mem::take(&mut self.waiters) {
            match self.residents.get_mut(&waiter.profile) {
                Some(resident) if resident.up => {
                    resident.used = now;
                    if waiter.turn > 0 {
                        resident.child.work.push(now + waiter.turn);
                    }
                    if waiter.foreground {
                        self.tally.served(now - waiter.since);
                    }
                    continue;
                }
                Some(_) => {}
                None => {
                    let reserve = usize::from(!waiter.foreground && self.cap > 1);
                    if self.residents.len() + self.leaving.len() + reserve < self.cap
                        && !self.leaving.contains(&waiter.profile)
                    {
                        let resident = Resident { child: Child::default(), up: false, used: now };
                        self.residents.insert(waiter.profile, resident);
                        self.later.insert((now + START, Later::Up(waiter.profile)));
                    }
                }
            }
            rest.push(waiter);
        }
        self.waiters = rest;
        let idle = self.residents.values().filter(|r| r.up && !r.child.is_busy(now) && !r.child.is_hung(now)).count();
        let free = self.cap.saturating_sub(self.residents.len() + self.leaving.len());
        for (ahead, waiter) in self.waiters.iter_mut().filter(|waiter| waiter.foreground).enumerate() {
            waiter.chance.look(now, idle + free > ahead);
        }
    }

    /// One attempt to make room, if a person waits for it.
    fn reclaim(&mut self, now: Time) {
        let waits = |waiter: &&Waiter| waiter.foreground && !self.residents.contains_key(&waiter.profile);
        if self.waiters.iter().filter(waits).count() <= self.leaving.len() || self.residents.len() < self.cap {
            return;
        }
        self.later.insert((now + AGAIN, Later::Reclaim));
        let mut order: Vec<usize> = self.residents.iter().filter(|(_, r)| r.up).map(|(profile, _)| *profile).collect();
        order.sort_by_key(|profile| (self.is_fresh(now, *profile), self.residents[profile].used));
        let mut spent = 0;
        for profile in order {
            let resident = &self.residents[&profile];
            let idle = !resident.child.is_busy(now) && !resident.child.is_hung(now);
            match self.policy {
                Policy::Freshness if !self.is_fresh(now, profile) => return self.stop(now, profile),
                Policy::Freshness => {}
                Policy::ProbeThenStop if idle => {
                    self.later.insert((now + RACE, Later::Stop(profile)));
                    return;
                }
                Policy::SerialPrepare if idle => {
                    self.later.insert((now + spent, Later::Stop(profile)));
                    return;
                }
                Policy::ProbeThenStop | Policy::SerialPrepare if resident.child.is_hung(now) => spent += HUNG,
                Policy::ProbeThenStop | Policy::SerialPrepare => {}
            }
        }
    }

    /// A pinned tile's socket says that it is in use, for ever.
    fn is_fresh(&self, now: Time, profile: usize) -> bool {
        profile < PINNED || now - self.residents[&profile].used <= STALE
    }

    fn stop(&mut self, now: Time, profile: usize) {
        // A permit is asked for again by whoever had to wait for others first.
        let busy = |resident: &Resident| resident.child.is_busy(now);
        if self.policy == Policy::SerialPrepare && self.residents.get(&profile).is_some_and(busy) {
            return;
        }
        if let Some(resident) = self.residents.remove(&profile) {
            self.tally.killed += resident.child.work.iter().filter(|end| **end > now).count();
            self.leaving.insert(profile);
            self.later.insert((now + EXIT, Later::Gone(profile)));
        }
    }
}
