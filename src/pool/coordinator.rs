//! The machine itself: one event in, and then everything that follows from how things stand, in a fixed order.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::crash::Troubles;
use super::event::{Denial, Effect, Event, Lease, Settings, Standing, Ticket};
use super::marks::Marks;
use super::queue::Queue;
use super::slot::{Slot, State};
use crate::clock::Moment;
use crate::protocol::Class;

/// So many may wait. A foreground waiter takes the place of the last background one.
pub const MAX_WAITERS: usize = 256;

/// The pool's decisions.
#[derive(Debug)]
pub struct Coordinator {
    pub(super) settings: Settings,
    pub(super) slots: BTreeMap<Lease, Slot>,
    pub(super) queue: Queue,
    /// Those who wait for an exit.
    pub(super) closers: Vec<(Ticket, Lease)>,
    /// Who was retired and not opened by a person since.
    pub(super) retired: Marks<()>,
    pub(super) troubles: Troubles,
    pub(super) draining: bool,
    last_lease: u64,
    /// Demand has changed so often: every resident is asked once for each.
    pub(super) round: u64,
    /// The time of the last event.
    pub(super) seen: Moment,
}

impl Coordinator {
    /// A pool without children.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings: Settings { max: settings.max.max(1), ..settings },
            slots: BTreeMap::new(),
            queue: Queue::default(),
            closers: Vec::new(),
            retired: Marks::default(),
            troubles: Troubles::default(),
            draining: false,
            last_lease: 0,
            round: 0,
            seen: Moment::from_nanos(0),
        }
    }

    /// A lease for [`Event::Found`].
    pub fn fresh_lease(&mut self) -> Lease {
        self.last_lease += 1;
        Lease(self.last_lease)
    }

    /// Whether everybody has left after [`Event::Drain`].
    pub fn is_drained(&self) -> bool {
        self.draining && self.slots.is_empty()
    }

    /// Takes in what happened; what the driver is to do, in this order.
    pub fn handle(&mut self, now: Moment, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.seen = now;
        self.take_in(now, event, &mut effects);
        self.time_out(now, &mut effects);
        self.restart(now);
        self.grant(now, &mut effects);
        self.make_room(now, &mut effects);
        effects
    }

    /// When [`Event::Wake`] is wanted; nothing else depends on time.
    pub fn wake_at(&self) -> Option<Moment> {
        let waits = [self.queue.next_deadline(), self.troubles.next_restart(), self.next_idle_stop(), self.next_look()];
        waits.into_iter().flatten().min()
    }

    pub(super) fn slot_of(&self, profile: &str) -> Option<(Lease, &Slot)> {
        self.slots.iter().find(|(_, slot)| &*slot.profile == profile).map(|(lease, slot)| (*lease, slot))
    }

    fn slot_of_mut(&mut self, profile: &str) -> Option<&mut Slot> {
        self.slots.values_mut().find(|slot| &*slot.profile == profile)
    }

    fn take_in(&mut self, now: Moment, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Open { ticket, profile, class, deadline } => {
                self.open(now, ticket, profile, class, deadline, effects)
            }
            Event::Cancel { ticket } => self.cancel(ticket, effects),
            Event::Promote { ticket, deadline } => {
                if let Some(profile) = self.queue.promote(now, ticket, deadline) {
                    self.opened_by_a_person(&profile);
                }
            }
            Event::Touch { profile } => {
                if let Some(slot) = self.slot_of_mut(&profile) {
                    slot.use_now(now);
                }
            }
            Event::Ready { lease } => {
                if let Some(slot) = self.slots.get_mut(&lease).filter(|slot| slot.state == State::Starting) {
                    slot.become_ready(now);
                    let profile = slot.profile.clone();
                    self.troubles.started(&profile);
                }
            }
            Event::SpawnFailed { lease, why } => self.unborn(now, lease, why, effects),
            Event::Exited { lease, how } => self.exited(now, lease, how, effects),
            Event::Heard { lease, standing } => self.learn(now, lease, standing),
            Event::Probed { lease, standing } => {
                if let Some(slot) = self.slots.get_mut(&lease) {
                    slot.probing = false;
                }
                self.learn(now, lease, standing);
            }
            Event::Prepared { lease } => self.prepared(now, lease, effects),
            Event::Refused { lease, standing } => self.refused(now, lease, standing, State::Preparing, effects),
            Event::Committed { lease } => self.committed(lease, effects),
            Event::Uncommitted { lease, standing } => {
                if let Some(slot) = self.slots.get_mut(&lease) {
                    slot.doubt = Some(now);
                }
                self.refused(now, lease, standing, State::Committing, effects);
            }
            Event::Measured { lease, bytes } => {
                if let Some(slot) = self.slots.get_mut(&lease) {
                    slot.bytes = Some(bytes);
                }
            }
            Event::Limit { max, budget } => {
                (self.settings.max, self.settings.budget) = (max.max(1), budget);
                self.round += 1;
            }
            Event::Close { ticket, profile } => self.close(ticket, &profile, effects),
            Event::Found { lease, profile } => {
                self.last_lease = self.last_lease.max(lease.0);
                // On whose behalf it was started nobody knows: it takes nothing from what is kept for jobs.
                let slot = Slot { found: true, ..Slot::new(profile, Class::Foreground, State::Starting, now) };
                self.slots.insert(lease, slot);
            }
            Event::Drain => self.drain(effects),
            Event::Wake => {}
        }
    }

    fn open(
        &mut self,
        now: Moment,
        ticket: Ticket,
        profile: Arc<str>,
        class: Class,
        deadline: Option<Duration>,
        effects: &mut Vec<Effect>,
    ) {
        let mut deny = |denial| effects.push(Effect::Denied { ticket, denial });
        if self.draining {
            return deny(Denial::Draining);
        }
        if class == Class::Foreground {
            self.opened_by_a_person(&profile);
        }
        if class == Class::Background && self.retired.get(&profile).is_some() {
            return deny(Denial::Retired);
        }
        match self.slot_of_mut(&profile) {
            Some(slot) => slot.use_now(now),
            None => {
                if let Some(denial) = self.troubles.denial(now, &profile, class) {
                    return deny(denial);
                }
            }
        }
        if self.queue.len() >= MAX_WAITERS {
            let last = (class != Class::Background).then(|| self.queue.pop_background()).flatten();
            match last {
                None => return deny(Denial::TooMany),
                Some(last) => {
                    effects.extend(last.ticket.map(|ticket| Effect::Denied { ticket, denial: Denial::TooMany }))
                }
            }
        }
        self.queue.push(now, Some(ticket), profile, class, deadline);
        self.round += 1;
    }

    fn opened_by_a_person(&mut self, profile: &str) {
        self.retired.forget(profile);
        self.troubles.opened(profile);
        self.round += 1;
    }

    fn cancel(&mut self, ticket: Ticket, effects: &mut Vec<Effect>) {
        let closing = self.closers.len();
        self.closers.retain(|(closer, _)| *closer != ticket);
        if self.queue.remove(ticket).is_some() || self.closers.len() < closing {
            effects.push(Effect::Denied { ticket, denial: Denial::Cancelled });
        }
    }

    fn learn(&mut self, now: Moment, lease: Lease, standing: Standing) {
        if let Some(slot) = self.slots.get_mut(&lease) {
            slot.learn(now, standing);
        }
    }

    /// A child did not come up: whoever waited for it is told.
    fn unborn(&mut self, now: Moment, lease: Lease, why: String, effects: &mut Vec<Effect>) {
        let Some(slot) = self.slots.remove(&lease) else { return };
        if slot.class != Class::Foreground {
            self.troubles.failed(now, &slot.profile, false);
        }
        for waiter in self.queue.take(|waiter| waiter.profile == slot.profile) {
            let denial = Denial::SpawnFailed { why: why.clone() };
            effects.extend(waiter.ticket.map(|ticket| Effect::Denied { ticket, denial }));
        }
        self.seen_off(lease, effects);
    }

    fn exited(&mut self, now: Moment, lease: Lease, how: String, effects: &mut Vec<Effect>) {
        if self.slots.get(&lease).is_some_and(|slot| slot.state == State::Starting && !slot.found) {
            return self.unborn(now, lease, how, effects);
        }
        let Some(slot) = self.slots.remove(&lease) else { return };
        match slot.state {
            // It left before it was taken over, as an orphan does that has nothing more to do.
            State::Starting => {}
            // It was told to go, or may have been: the reply is what was lost.
            State::Stopping | State::Committing => self.retire(&slot.profile, effects),
            _ if slot.in_doubt(now) => self.retire(&slot.profile, effects),
            _ if self.draining => {}
            _ => self.troubles.crashed(now, &slot.profile),
        }
        // Whoever wants it up by now brings it back by waiting.
        if self.queue.iter().any(|waiter| waiter.profile == slot.profile && waiter.class == Class::Foreground) {
            self.opened_by_a_person(&slot.profile);
        }
        self.round += 1;
        self.seen_off(lease, effects);
    }

    fn seen_off(&mut self, lease: Lease, effects: &mut Vec<Effect>) {
        let gone = self.closers.extract_if(.., |(_, closing)| *closing == lease);
        effects.extend(gone.map(|(ticket, _)| Effect::Closed { ticket }));
    }

    fn prepared(&mut self, now: Moment, lease: Lease, effects: &mut Vec<Effect>) {
        let wanted = self.must_go(now, lease);
        let Some(slot) = self.slots.get_mut(&lease).filter(|slot| slot.state == State::Preparing) else {
            return effects.push(Effect::Cancel { lease });
        };
        if wanted {
            slot.state = State::Committing;
            return effects.push(Effect::Commit { lease });
        }
        slot.state = State::Ready;
        effects.push(Effect::Cancel { lease });
        self.keep_open(lease, effects);
    }

    fn refused(&mut self, now: Moment, lease: Lease, standing: Standing, state: State, effects: &mut Vec<Effect>) {
        let Some(slot) = self.slots.get_mut(&lease).filter(|slot| slot.state == state) else { return };
        slot.learn_refusal(now, standing);
        self.keep_open(lease, effects);
    }

    /// Whoever wanted it closed is told why it is not.
    fn keep_open(&mut self, lease: Lease, effects: &mut Vec<Effect>) {
        let Some(slot) = self.slots.get(&lease) else { return };
        let refused = self.closers.extract_if(.., |(_, closing)| *closing == lease);
        effects.extend(refused.map(|(ticket, _)| Effect::Denied {
            ticket,
            denial: Denial::Busy { state: slot.state, standing: slot.standing.clone() },
        }));
    }

    /// From here on nothing aborts it. The mark comes before the signal.
    fn committed(&mut self, lease: Lease, effects: &mut Vec<Effect>) {
        let Some(slot) = self.slots.get_mut(&lease).filter(|slot| slot.state == State::Committing) else { return };
        slot.state = State::Stopping;
        let profile = slot.profile.clone();
        self.retire(&profile, effects);
        effects.push(Effect::Stop { lease });
    }

    /// From now on only a person, or a job, brings the profile back; who waits for it in the background does not.
    fn retire(&mut self, profile: &Arc<str>, effects: &mut Vec<Effect>) {
        *self.retired.write(profile) = ();
        let redials = self.queue.take(|waiter| waiter.profile == *profile && waiter.class == Class::Background);
        let denial = |ticket| Effect::Denied { ticket, denial: Denial::Retired };
        effects.extend(redials.into_iter().filter_map(|waiter| waiter.ticket).map(denial));
    }

    fn close(&mut self, ticket: Ticket, profile: &str, effects: &mut Vec<Effect>) {
        let Some((lease, slot)) = self.slot_of(profile) else {
            return effects.push(Effect::Denied { ticket, denial: Denial::NotOpen });
        };
        match slot.state {
            State::Starting => {
                let denial = Denial::Busy { state: slot.state, standing: slot.standing.clone() };
                effects.push(Effect::Denied { ticket, denial });
            }
            State::Ready => {
                self.closers.push((ticket, lease));
                self.prepare(lease, effects);
            }
            State::Preparing | State::Committing | State::Stopping => self.closers.push((ticket, lease)),
        }
    }

    fn drain(&mut self, effects: &mut Vec<Effect>) {
        self.draining = true;
        self.troubles.forget_restarts();
        for waiter in self.queue.take(|_| true) {
            effects.extend(waiter.ticket.map(|ticket| Effect::Denied { ticket, denial: Denial::Draining }));
        }
    }

    fn time_out(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        for waiter in self.queue.take(|waiter| waiter.deadline.is_some_and(|deadline| deadline <= now)) {
            if waiter.class == Class::Background {
                self.troubles.failed(now, &waiter.profile, true);
            }
            let denial = Denial::TimedOut { in_the_way: self.in_the_way(now, &waiter.profile) };
            effects.extend(waiter.ticket.map(|ticket| Effect::Denied { ticket, denial }));
        }
    }

    /// A crashed child is wanted again by nobody but us.
    fn restart(&mut self, now: Moment) {
        for profile in self.troubles.take_restarts(now) {
            // One that was up for a job alone comes back for the next.
            let wanted = self.retired.get(&profile).is_none() && !self.queue.wants(&profile);
            if wanted && self.slot_of(&profile).is_none() && self.queue.len() < MAX_WAITERS {
                self.queue.push(now, None, profile, Class::Background, None);
                self.round += 1;
            }
        }
    }

    /// Serves, in order, everybody who can be served.
    fn grant(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        for (profile, class) in self.queue.profiles() {
            match self.slot_of(&profile).map(|(lease, slot)| (lease, slot.state)) {
                Some((lease, State::Ready)) => {
                    if let Some(slot) = self.slots.get_mut(&lease) {
                        slot.use_now(now);
                    }
                    for waiter in self.queue.take(|waiter| waiter.profile == profile) {
                        effects.extend(waiter.ticket.map(|ticket| Effect::Granted { ticket, lease }));
                    }
                }
                // It comes up, or it must be gone first: two children never share a profile.
                Some(_) => {}
                None if self.may_take(class) => {
                    let lease = self.fresh_lease();
                    self.slots.insert(lease, Slot::new(profile.clone(), class, State::Starting, now));
                    effects.push(Effect::Spawn { lease, profile });
                }
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
