//! Those who wait, in the order in which they are served.

use std::sync::Arc;
use std::time::Duration;

use super::event::Ticket;
use crate::clock::Moment;
use crate::protocol::Class;

#[derive(Debug)]
pub(super) struct Waiter {
    /// None for the pool's own restart of a crashed child: nobody is told.
    pub(super) ticket: Option<Ticket>,
    pub(super) profile: Arc<str>,
    pub(super) class: Class,
    pub(super) since: Moment,
    pub(super) deadline: Option<Moment>,
    turn: u64,
}

/// Sorted by class, then by turn.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiters: Vec<Waiter>,
    next_turn: u64,
}

impl Queue {
    pub(super) fn push(
        &mut self,
        now: Moment,
        ticket: Option<Ticket>,
        profile: Arc<str>,
        class: Class,
        deadline: Option<Duration>,
    ) {
        let deadline = deadline.map(|span| now.plus(span));
        self.insert(Waiter { ticket, profile, class, since: now, deadline, turn: 0 });
    }

    fn insert(&mut self, mut waiter: Waiter) {
        waiter.turn = self.next_turn;
        self.next_turn += 1;
        let place = self.waiters.partition_point(|other| (other.class, other.turn) < (waiter.class, waiter.turn));
        self.waiters.insert(place, waiter);
    }

    /// The waiter's profile, if it still waits. It goes behind those who waited in the foreground before it did.
    pub(super) fn promote(&mut self, now: Moment, ticket: Ticket, deadline: Option<Duration>) -> Option<Arc<str>> {
        let mut waiter = self.remove(ticket)?;
        waiter.deadline = deadline.map(|span| now.plus(span));
        let profile = waiter.profile.clone();
        if waiter.class == Class::Foreground {
            let place = self.waiters.partition_point(|other| (other.class, other.turn) < (waiter.class, waiter.turn));
            self.waiters.insert(place, waiter);
        } else {
            waiter.class = Class::Foreground;
            self.insert(waiter);
        }
        Some(profile)
    }

    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<Waiter> {
        let place = self.waiters.iter().position(|waiter| waiter.ticket == Some(ticket))?;
        Some(self.waiters.remove(place))
    }

    /// Takes out every waiter that `leaves` names, in order.
    pub(super) fn take(&mut self, leaves: impl Fn(&Waiter) -> bool) -> Vec<Waiter> {
        self.waiters.extract_if(.., |waiter| leaves(waiter)).collect()
    }

    /// Takes out the last one if it waits in the background.
    pub(super) fn pop_background(&mut self) -> Option<Waiter> {
        self.waiters.pop_if(|last| last.class == Class::Background)
    }

    pub(super) fn wants(&self, profile: &str) -> bool {
        self.iter().any(|waiter| *waiter.profile == *profile)
    }

    /// Each profile once, with the most urgent class that waits for it.
    pub(super) fn profiles(&self) -> Vec<(Arc<str>, Class)> {
        let mut profiles: Vec<(Arc<str>, Class)> = Vec::new();
        for waiter in &self.waiters {
            if profiles.iter().all(|(profile, _)| *profile != waiter.profile) {
                profiles.push((waiter.profile.clone(), waiter.class));
            }
        }
        profiles
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiter> {
        self.waiters.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(super) fn next_deadline(&self) -> Option<Moment> {
        self.iter().filter_map(|waiter| waiter.deadline).min()
    }
}
