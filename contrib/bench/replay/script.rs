//! What happens, whatever the policy.

/// Milliseconds since the beginning.
pub(crate) type Time = u64;

pub(crate) const SECOND: Time = 1000;
const MINUTE: Time = 60 * SECOND;
const HOUR: Time = 60 * MINUTE;
const DAY: Time = 24 * HOUR;
const DAYS: Time = 10;

/// A waiter in the foreground, and one in the background, gives up after so long.
pub(crate) const PATIENCE: Time = 30 * SECOND;

/// A child is up so long after its start, and gone so long after it was told.
pub(crate) const START: Time = 10;
pub(crate) const EXIT: Time = 5;

/// The tiles that are always open: their sockets keep them fresh for ever.
pub(crate) const PINNED: usize = 5;

/// Something that happens to a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// A person opens it, and, unless it is 0, has it take a turn of so long.
    Open { turn: Time },
    /// A job of so long is due.
    Job { takes: Time },
    /// Something that nobody waits for dials it.
    Dial,
    /// Its child, if it is up, does not answer for so long.
    Hang { lasts: Time },
}

#[derive(Debug, Clone)]
pub(crate) struct Script {
    /// In order of time.
    pub(crate) events: Vec<(Time, usize, What)>,
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.roll(most - least + 1)
    }
}

impl Script {
    /// Profiles as in the reports: a few that are used all day, many that are used now and then, half of them with a job.
    pub(crate) fn draw(seed: u64, profiles: usize) -> Self {
        let mut dice = Dice(seed | 1);
        let mut events = Vec::new();
        for day in 0..DAYS {
            let morning = day * DAY + 8 * HOUR;
            // At launch everything that was open dials at once.
            events.extend((0..profiles).map(|profile| (morning + profile as u64 * 200, profile, What::Dial)));
            let mut at = morning + MINUTE;
            while at < morning + 10 * HOUR {
                let profile = if dice.roll(3) == 0 { dice.roll(PINNED as u64) } else { dice.roll(profiles as u64) };
                let turn = match dice.roll(20) {
                    0..8 => 0,
                    8..19 => dice.between(5 * SECOND, 120 * SECOND),
                    // A subagent that works for an hour.
                    _ => HOUR,
                };
                events.push((at, usize::try_from(profile).unwrap(), What::Open { turn }));
                at += dice.between(10 * SECOND, 6 * MINUTE);
            }
        }
        for profile in (0..profiles).step_by(2) {
            let (every, takes) = (dice.between(30, 240) * MINUTE, dice.between(4, 600) * SECOND);
            let times = (dice.roll(30) * MINUTE..DAYS * DAY).step_by(usize::try_from(every).unwrap());
            events.extend(times.map(|at| (at, profile, What::Job { takes })));
        }
        for profile in 0..profiles {
            let mut at = dice.roll(HOUR);
            while at < DAYS * DAY {
                events.push((at, profile, What::Dial));
                at += dice.between(10 * MINUTE, 3 * HOUR);
            }
            let mut at = dice.roll(2 * DAY);
            while at < DAYS * DAY {
                events.push((at, profile, What::Hang { lasts: dice.between(10 * SECOND, 10 * MINUTE) }));
                at += dice.between(6 * HOUR, 2 * DAY);
            }
        }
        events.sort_by_key(|(at, ..)| *at);
        Self { events }
    }

    pub(crate) fn opens(&self) -> usize {
        self.events.iter().filter(|(.., what)| matches!(what, What::Open { .. })).count()
    }

    pub(crate) fn jobs(&self) -> usize {
        self.events.iter().filter(|(.., what)| matches!(what, What::Job { .. })).count()
    }
}

/// A child as it really is, whatever anybody thinks of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Child {
    /// When each thing that it does ends.
    pub(crate) work: Vec<Time>,
    pub(crate) hung_until: Time,
}

impl Child {
    pub(crate) fn is_busy(&self, now: Time) -> bool {
        self.work.iter().any(|end| *end > now)
    }

    pub(crate) fn is_hung(&self, now: Time) -> bool {
        self.hung_until > now
    }
}
