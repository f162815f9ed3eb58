//! The pool as it is shown to people.

use std::sync::Arc;
use std::time::Duration;

use super::coordinator::Coordinator;
use super::event::{Lease, Standing, Ticket};
use super::slot::{Slot, State};
use crate::clock::Moment;
use crate::protocol::Class;

/// The whole pool at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolView {
    /// So many children at once.
    pub max: usize,
    /// So many bytes at once.
    pub budget: Option<u64>,
    /// It is being emptied.
    pub draining: bool,
    /// Every lease, oldest first.
    pub slots: Vec<SlotView>,
    /// Everybody who waits, in the order in which they are served.
    pub queue: Vec<WaiterView>,
}

/// One lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotView {
    /// Its number.
    pub lease: Lease,
    /// Whose child it is.
    pub profile: Arc<str>,
    /// The class it was granted with.
    pub class: Class,
    /// Where the child is in its life.
    pub state: State,
    /// What was last learnt of it.
    pub standing: Standing,
    /// Since the lease was taken.
    pub age: Duration,
    /// Since somebody used it.
    pub idle_for: Duration,
    /// Its memory, if it was measured.
    pub bytes: Option<u64>,
}

/// One who waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaiterView {
    /// None for the pool's own restart of a crashed child.
    pub ticket: Option<Ticket>,
    /// Which profile is wanted.
    pub profile: Arc<str>,
    /// On whose behalf.
    pub class: Class,
    /// For how long already.
    pub waited: Duration,
    /// From 1.
    pub place: usize,
}

impl Coordinator {
    /// The pool as it is.
    pub fn view(&self, now: Moment) -> PoolView {
        let queue = self.queue.iter().enumerate().map(|(ahead, waiter)| WaiterView {
            ticket: waiter.ticket,
            profile: waiter.profile.clone(),
            class: waiter.class,
            waited: now.since(waiter.since),
            place: ahead + 1,
        });
        PoolView {
            max: self.settings.max,
            budget: self.settings.budget,
            draining: self.draining,
            slots: self.slots.iter().map(|(lease, slot)| slot.view(*lease, now)).collect(),
            queue: queue.collect(),
        }
    }

    /// What keeps a waiter for `profile` waiting: its own child, else all of them.
    pub(super) fn in_the_way(&self, now: Moment, profile: &str) -> Vec<SlotView> {
        let own = self.slot_of(profile).map(|(lease, slot)| vec![slot.view(lease, now)]);
        own.unwrap_or_else(|| self.slots.iter().map(|(lease, slot)| slot.view(*lease, now)).collect())
    }
}

impl Slot {
    pub(super) fn view(&self, lease: Lease, now: Moment) -> SlotView {
        SlotView {
            lease,
            profile: self.profile.clone(),
            class: self.class,
            state: self.state,
            standing: self.standing.clone(),
            age: now.since(self.born),
            idle_for: now.since(self.used),
            bytes: self.bytes,
        }
    }
}
