//! The pool's own policy: the real coordinator, given what a driver would give it, when a driver would.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use hermes::clock::Moment;
use hermes::pool::{Class, Coordinator, Denial, Effect, Event, Lease, Settings, Ticket};
use hermes::verdict::Verdict;

use crate::script::{Child, EXIT, PATIENCE, PINNED, START, Script, Time, What};
use crate::tally::{Chance, Tally};

/// A question and its answer.
const ANSWER: Time = 1;

/// Who does not answer is taken for unknown after this.
const PROBE: Time = 250;

/// So much before its job is due a profile is opened.
const LEAD: Time = 500;

/// The pinned tiles say that they are in use this often.
const TOUCH: Time = 60_000;

struct Resident {
    profile: usize,
    child: Child,
    up: bool,
    /// Its permit was given: it starts nothing.
    frozen: bool,
    committed: bool,
}

struct Waiter {
    since: Time,
    profile: usize,
    turn: Time,
    class: Class,
    chance: Chance,
}

/// What comes later, as the driver would hear it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Later {
    Up(Lease),
    Probed(Lease, bool),
    Prepare(Lease),
    Commit(Lease),
    Gone(Lease),
    /// Its work may be over.
    Look(Lease),
    Job(usize, Time),
    Touch,
}

pub(crate) struct Pool<'a> {
    script: &'a Script,
    cap: usize,
    coordinator: Coordinator,
    residents: BTreeMap<Lease, Resident>,
    waiters: BTreeMap<Ticket, Waiter>,
    /// Jobs that wait for their profile to be up.
    jobs: BTreeMap<usize, Vec<Time>>,
    later: BTreeSet<(Time, Later)>,
    tickets: u64,
    tally: Tally,
}

impl<'a> Pool<'a> {
    pub(crate) fn new(cap: usize, script: &'a Script) -> Self {
        let coordinator = Coordinator::new(Settings { max: cap, ..Settings::default() });
        Self {
            script,
            cap,
            coordinator,
            residents: BTreeMap::new(),
            waiters: BTreeMap::new(),
            jobs: BTreeMap::new(),
            later: BTreeSet::from([(TOUCH, Later::Touch)]),
            tickets: 0,
            tally: Tally::default(),
        }
    }

    pub(crate) fn run(mut self) -> Tally {
        for (at, profile, what) in &self.script.events {
            // A job is known beforehand, as it is from the file.
            let at = if matches!(what, What::Job { .. }) { at.saturating_sub(LEAD) } else { *at };
            self.until(at);
            self.happen(at, *profile, *what);
            self.look(at);
        }
        self.tally
    }

    /// Everything that comes before `until`, in order.
    fn until(&mut self, until: Time) {
        loop {
            let wake = self.coordinator.wake_at().map(time_of);
            let next = self.later.first().copied();
            match (wake, next) {
                (Some(wake), _) if wake <= until && next.is_none_or(|(due, _)| wake < due) => {
                    self.on(wake, Event::Wake);
                    self.look(wake);
                }
                (_, Some((due, later))) if due <= until => {
                    self.later.remove(&(due, later));
                    self.come(due, later);
                    self.look(due);
                }
                _ => return,
            }
        }
    }

    fn happen(&mut self, now: Time, profile: usize, what: What) {
        match what {
            What::Open { turn } => self.open(now, profile, turn, Class::Foreground),
            What::Dial => self.open(now, profile, 0, Class::Background),
            What::Job { takes } => {
                self.jobs.entry(profile).or_default().push(takes);
                self.later.insert((now + LEAD, Later::Job(profile, takes)));
                if self.resident(profile).is_none() {
                    self.open(now, profile, 0, Class::Due);
                }
            }
            What::Hang { lasts } => {
                if let Some((_, resident)) = self.resident(profile) {
                    resident.child.hung_until = now + lasts;
                }
            }
        }
    }

    fn open(&mut self, now: Time, profile: usize, turn: Time, class: Class) {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.waiters.insert(ticket, Waiter { since: now, profile, turn, class, chance: Chance::default() });
        // A job waits for as long as it takes.
        let deadline = (class != Class::Due).then_some(Duration::from_millis(PATIENCE));
        self.on(now, Event::Open { ticket, profile: name(profile), class, deadline });
    }

    fn resident(&mut self, profile: usize) -> Option<(Lease, &mut Resident)> {
        let found = self.residents.iter_mut().find(|(_, resident)| resident.profile == profile);
        found.map(|(lease, resident)| (*lease, resident))
    }

    fn come(&mut self, now: Time, later: Later) {
        match later {
            Later::Up(lease) => {
                if let Some(resident) = self.residents.get_mut(&lease) {
                    resident.up = true;
                    let profile = resident.profile;
                    self.on(now, Event::Ready { lease });
                    self.begin(now, profile);
                    self.tell(now, lease);
                }
            }
            Later::Probed(lease, answers) => {
                let Some(resident) = self.residents.get(&lease) else { return };
                let standing = if answers { standing(resident, now) } else { Verdict::TurnProbeUnavailable };
                self.on(now, Event::Probed { lease, standing: standing.into() });
            }
            Later::Prepare(lease) => {
                let Some(resident) = self.residents.get_mut(&lease) else { return };
                let verdict = standing(resident, now);
                resident.frozen = verdict == Verdict::Idle;
                self.on(
                    now,
                    match verdict {
                        Verdict::Idle => Event::Prepared { lease },
                        verdict => Event::Refused { lease, standing: verdict.into() },
                    },
                );
            }
            Later::Commit(lease) => {
                if let Some(resident) = self.residents.get_mut(&lease) {
                    resident.committed = true;
                    self.on(now, Event::Committed { lease });
                }
            }
            Later::Gone(lease) => {
                if let Some(resident) = self.residents.remove(&lease) {
                    self.tally.killed += resident.child.work.iter().filter(|end| **end > now).count();
                    self.on(now, Event::Exited { lease, how: "exit 0".to_owned() });
                    // What came due while it was frozen is opened for again.
                    if self.jobs.get(&resident.profile).is_some_and(|jobs| !jobs.is_empty()) {
                        self.open(now, resident.profile, 0, Class::Due);
                    }
                }
            }
            Later::Look(lease) => self.tell(now, lease),
            Later::Job(profile, _) => self.begin(now, profile),
            Later::Touch => {
                for profile in 0..PINNED {
                    if self.resident(profile).is_some() {
                        self.on(now, Event::Touch { profile: name(profile) });
                    }
                }
                self.later.insert((now + TOUCH, Later::Touch));
            }
        }
    }

    /// Begins the jobs of a profile that are due, if its child is up and may begin anything.
    fn begin(&mut self, now: Time, profile: usize) {
        let Some(jobs) = self.jobs.get_mut(&profile) else { return };
        let found = self.residents.iter_mut().find(|(_, resident)| resident.profile == profile);
        let Some((lease, resident)) = found.filter(|(_, resident)| resident.up && !resident.frozen) else { return };
        let lease = *lease;
        let ends: Vec<Time> = jobs.drain(..).map(|takes| now + takes).collect();
        resident.child.work.extend(&ends);
        self.later.extend(ends.iter().map(|end| (*end, Later::Look(lease))));
        self.tell(now, lease);
    }

    /// The stream of verdicts.
    fn tell(&mut self, now: Time, lease: Lease) {
        let Some(resident) = self.residents.get(&lease).filter(|resident| resident.up) else { return };
        if resident.child.is_hung(now) {
            self.later.insert((resident.child.hung_until, Later::Look(lease)));
            return;
        }
        let standing = standing(resident, now).into();
        self.on(now, Event::Heard { lease, standing });
    }

    fn on(&mut self, now: Time, event: Event) {
        for effect in self.coordinator.handle(moment(now), event) {
            self.carry_out(now, effect);
        }
    }

    fn carry_out(&mut self, now: Time, effect: Effect) {
        match effect {
            Effect::Spawn { lease, profile } => {
                let profile = profile.parse().unwrap();
                let child = Child::default();
                self.residents.insert(lease, Resident { profile, child, up: false, frozen: false, committed: false });
                assert!(self.residents.len() <= self.cap, "more children than slots");
                self.later.insert((now + START, Later::Up(lease)));
            }
            Effect::Probe { lease } => {
                let hung = self.residents.get(&lease).is_some_and(|resident| resident.child.is_hung(now));
                let after = if hung { PROBE } else { ANSWER };
                self.later.insert((now + after, Later::Probed(lease, !hung)));
            }
            Effect::Prepare { lease } => {
                self.later.insert((now + ANSWER, Later::Prepare(lease)));
            }
            Effect::Commit { lease } => {
                self.later.insert((now + ANSWER, Later::Commit(lease)));
            }
            Effect::Cancel { lease } => {
                if let Some(resident) = self.residents.get_mut(&lease) {
                    resident.frozen = false;
                    let profile = resident.profile;
                    self.begin(now, profile);
                }
            }
            Effect::Stop { lease } => {
                assert!(self.residents[&lease].committed, "stopped without a committed permit");
                self.later.insert((now + EXIT, Later::Gone(lease)));
            }
            Effect::Granted { ticket, lease } => {
                let waiter = self.waiters.remove(&ticket).unwrap();
                if waiter.class == Class::Foreground {
                    self.tally.served(now - waiter.since);
                }
                if waiter.turn > 0 {
                    let end = now + waiter.turn;
                    self.residents.get_mut(&lease).unwrap().child.work.push(end);
                    self.later.insert((end, Later::Look(lease)));
                    self.later.insert((now, Later::Look(lease)));
                }
            }
            Effect::Denied { ticket, denial } => {
                let waiter = self.waiters.remove(&ticket).unwrap();
                match waiter.class {
                    Class::Foreground => {
                        assert!(matches!(denial, Denial::TimedOut { .. }), "{denial:?}");
                        self.tally.timed_out += 1;
                        self.tally.avoidable += usize::from(waiter.chance.was_had());
                    }
                    Class::Due => self.tally.missed += self.jobs.remove(&waiter.profile).map_or(0, |jobs| jobs.len()),
                    Class::Background => self.tally.refused += 1,
                }
            }
            Effect::Closed { .. } => {}
        }
    }

    /// Whoever waits while somebody could go, and nobody does, has been let down.
    fn look(&mut self, now: Time) {
        let leaving = self.residents.values().filter(|resident| resident.frozen || resident.committed).count();
        let idle = self.residents.values().filter(|r| r.up && !r.frozen && standing(r, now) == Verdict::Idle).count();
        let free = self.cap - self.residents.len();
        let waiting = self.waiters.values_mut().filter(|waiter| waiter.class == Class::Foreground);
        for (ahead, waiter) in waiting.enumerate() {
            waiter.chance.look(now, idle + free + leaving > ahead);
        }
    }
}

fn standing(resident: &Resident, now: Time) -> Verdict {
    match (resident.child.is_hung(now), resident.child.is_busy(now)) {
        (true, _) => Verdict::TurnProbeUnavailable,
        (false, true) => Verdict::TurnInFlight { detail: None },
        (false, false) => Verdict::Idle,
    }
}

fn name(profile: usize) -> Arc<str> {
    Arc::from(profile.to_string())
}

fn moment(now: Time) -> Moment {
    // A little late, as a timer is: what is due by then has come.
    Moment::from_nanos(0).plus(Duration::from_millis(now))
}

fn time_of(moment: Moment) -> Time {
    u64::try_from(moment.since(Moment::from_nanos(0)).as_nanos().div_ceil(1_000_000)).unwrap()
}
