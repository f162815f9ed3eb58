//! What the service tells of itself: the report, the reasons of a refusal, and when it must look at a job again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::due::NextDue;
use super::resident::Resident;
use super::service::{LEAD, Service};
use super::{Denial, Event, SlotView, State, Ticket};
use crate::cron::schedule::iso;
use crate::handler::millis;
use crate::protocol::{Class, Fault, FaultKind, PoolDue, PoolReport, PoolSlot, PoolWaiter, SlotState, Verdict};

/// So many jobs that are to come are told of, the soonest: a report must fit into a frame.
const MAX_DUE: usize = 256;

impl Service {
    /// The pool as it is now.
    pub(super) fn told(&self) -> PoolReport {
        let view = self.coordinator.view(self.clock.now());
        let queue = view.queue.iter().map(|waiter| PoolWaiter {
            ticket: waiter.ticket.map(|ticket| ticket.0),
            profile: waiter.profile.to_string(),
            class: waiter.class,
            waited_ms: millis(waiter.waited),
        });
        let asleep = self.next_due.iter().filter(|(profile, _)| !self.is_up(profile));
        let mut due: Vec<_> = asleep.filter_map(|(profile, instants)| Some((profile, instants.first()?))).collect();
        due.sort_by_key(|(_, at)| **at);
        due.truncate(MAX_DUE);
        let due =
            due.into_iter().map(|(profile, at)| PoolDue { profile: profile.to_string(), at: iso(*at, &TimeZone::UTC) });
        PoolReport {
            max: u32::try_from(view.max).unwrap_or(u32::MAX),
            memory_budget: view.budget,
            draining: view.draining,
            slots: view.slots.iter().map(|slot| self.slot(slot)).collect(),
            queue: queue.collect(),
            due: due.collect(),
        }
    }

    fn slot(&self, slot: &SlotView) -> PoolSlot {
        let resident = self.residents.get(&slot.lease);
        let (holders, more) = match slot.standing.verdict {
            Verdict::Idle => (Vec::new(), 0),
            _ => resident.map(|resident| resident.holders(self.clock.now())).unwrap_or_default(),
        };
        PoolSlot {
            profile: slot.profile.to_string(),
            class: slot.class,
            state: match slot.state {
                State::Starting => SlotState::Starting,
                State::Ready => SlotState::Ready,
                State::Preparing | State::Committing => SlotState::Retiring,
                State::Stopping => SlotState::Stopping,
            },
            pid: resident.and_then(|resident| resident.process.as_ref()).map(|(pid, _)| *pid),
            verdict: slot.standing.verdict.clone(),
            holders,
            more,
            age_ms: millis(slot.age),
            unused_ms: millis(slot.idle_for),
            memory: slot.bytes,
        }
    }

    /// Makes known what has changed.
    pub(super) fn settle(&mut self) {
        let up: BTreeSet<Arc<str>> = self.residents.values().map(|resident| Arc::clone(&resident.profile)).collect();
        self.up.send_if_modified(|before| {
            let differs = *before != up;
            *before = up;
            differs
        });
        let members = self.residents.values().filter_map(Resident::member);
        self.roster.write(members.chain(self.left.iter().cloned()).collect());
        let now = self.told();
        self.report.send_if_modified(|before| {
            let differs = timeless(before) != timeless(&now);
            *before = now;
            differs
        });
    }

    fn is_up(&self, profile: &str) -> bool {
        self.residents.values().any(|resident| &*resident.profile == profile)
    }

    /// The profiles whose jobs the pool sees to, and when it must open each.
    fn to_open(&self) -> impl Iterator<Item = (&Arc<str>, Timestamp)> {
        let asleep = self
            .next_due
            .iter()
            .filter(|(profile, _)| !self.is_up(profile) && !self.opening.values().any(|opening| opening == *profile));
        asleep.filter_map(|(profile, instants)| {
            let at = |due: &Timestamp| {
                let lead = due.checked_sub(LEAD).unwrap_or(*due);
                self.attempts.not_before(profile, *due).map_or(lead, |until| lead.max(until))
            };
            Some((profile, instants.iter().map(at).min()?))
        })
    }

    /// The files were read again.
    pub(super) fn know_what_is_due(&mut self, next: NextDue) {
        self.next_due = next;
        let up: BTreeSet<&str> = self.residents.values().map(|resident| &*resident.profile).collect();
        let (next_due, attempts) = (&self.next_due, &mut self.attempts);
        attempts.keep(|profile| next_due.contains_key(profile) || up.contains(profile));
    }

    pub(super) fn next_alarm(&self) -> Option<Timestamp> {
        self.to_open().map(|(_, at)| at).min()
    }

    /// Opens, once, every profile that has a job to run soon.
    pub(super) fn open_what_is_due(&mut self) {
        let now = self.clock.wall();
        let due: Vec<Arc<str>> =
            self.to_open().filter(|(_, at)| *at <= now).map(|(profile, _)| Arc::clone(profile)).collect();
        for profile in due {
            tracing::info!(profile = &*profile, "a job is due: the profile is opened for it");
            let ticket = self.ticket();
            let instants = self.next_due.get(&profile);
            if let Some(due) = instants.and_then(|instants| instants.range(..=now + LEAD).next_back()) {
                self.attempts.begin(&profile, *due);
            }
            self.opening.insert(ticket, Arc::clone(&profile));
            self.happen(Event::Open { ticket, profile, class: Class::Due, deadline: None });
        }
    }

    /// What a denial means, and what to do.
    pub(super) fn fault(&self, ticket: Ticket, denial: Denial) -> Fault {
        let name = self.waiters.get(&ticket).map_or("it", |waiting| &*waiting.profile);
        match denial {
            Denial::TimedOut { in_the_way } => {
                let ways: Vec<String> = in_the_way.iter().map(|slot| in_the_way_of(&self.slot(slot))).collect();
                Fault::new(FaultKind::TimedOut, format!("{name} got no slot in time; in the way: {}", ways.join("; ")))
            }
            Denial::Cancelled => Fault::new(FaultKind::Conflict, format!("the wait for {name} was given up")),
            Denial::Retired => Fault::new(
                FaultKind::Conflict,
                format!("{name} was retired: only a foreground opening brings it back (hermesctl open {name})"),
            ),
            Denial::BackingOff { remaining } => Fault::new(
                FaultKind::Unavailable,
                format!(
                    "{name} did not start the last time: it is tried again in {} s; hermesctl open {name} tries at once",
                    whole(remaining)
                ),
            ),
            Denial::CrashLoop => Fault::new(
                FaultKind::Unavailable,
                format!(
                    "{name} crashed again and again: see its log in logs/{name}.log; hermesctl open {name} tries once more"
                ),
            ),
            Denial::SpawnFailed { why } => Fault::new(FaultKind::Unavailable, format!("{name} did not start: {why}")),
            Denial::Busy { standing, .. } => {
                let slot =
                    self.coordinator.view(self.clock.now()).slots.into_iter().find(|slot| &*slot.profile == name);
                let way = slot.map_or_else(
                    || standing.verdict.reason().unwrap_or("busy").to_owned(),
                    |slot| in_the_way_of(&self.slot(&slot)),
                );
                Fault::new(FaultKind::Conflict, format!("{way}; nothing was stopped"))
            }
            Denial::NotOpen => Fault::new(FaultKind::NotFound, format!("{name} is not open: see hermesctl pool")),
            Denial::Draining => Fault::new(FaultKind::Retiring, "this pool stops: nothing more is opened"),
            Denial::TooMany => Fault::new(FaultKind::TooMany, "too many wait for this pool already: try again later"),
        }
    }
}

/// What makes a report another one: not that time has passed, nor that memory is a little more or less.
fn timeless(report: &PoolReport) -> PoolReport {
    let mut report = report.clone();
    for slot in &mut report.slots {
        (slot.age_ms, slot.unused_ms, slot.memory) = (0, 0, slot.memory.map(|_| 0));
        slot.holders.iter_mut().for_each(|holder| holder.age_ms = 0);
    }
    report.queue.iter_mut().for_each(|waiter| waiter.waited_ms = 0);
    report
}

fn whole(span: Duration) -> u64 {
    span.as_secs().max(1)
}

/// One resident as a waiter is told of it: who, what, since when, and for a question what answers it.
pub fn in_the_way_of(slot: &PoolSlot) -> String {
    let name = &slot.profile;
    let oldest = slot.holders.first().map(|entry| {
        let age = crate::span::shown(entry.age_ms);
        let more = if slot.holders.len() > 1 || slot.more > 0 {
            format!(" and {} more", slot.holders.len() as u64 - 1 + slot.more)
        } else {
            String::new()
        };
        match entry.ledger {
            crate::protocol::LedgerKind::HumanInput => {
                let answer = match name.as_str() {
                    super::child::DEFAULT => format!("hermesctl answer {}", entry.id),
                    name => format!("hermesctl --profile {name} answer {}", entry.id),
                };
                format!("{name} waits for your answer for {age}{more} ({answer})")
            }
            ledger => format!("{name}: {} {}, {age} ({}){more}", ledger.name(), entry.id, entry.why),
        }
    });
    oldest.unwrap_or_else(|| match (slot.state, slot.verdict.idle()) {
        (SlotState::Ready, Some(true)) => format!("{name} is idle"),
        (SlotState::Ready, None) => format!("{name} does not say how it stands: unknown, which counts as busy"),
        (SlotState::Ready, Some(false)) => format!("{name} is busy"),
        (state, _) => format!("{name} is {}", state.name()),
    })
}
