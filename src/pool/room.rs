//! Making room: who must go, who may, and in which order they are asked.

use std::time::Duration;

use super::coordinator::Coordinator;
use super::event::{Effect, Lease};
use super::slot::{Slot, State};
use crate::backoff::doubled;
use crate::clock::Moment;
use crate::protocol::Class;

/// What a child is taken to need before any was measured.
pub const DEFAULT_BYTES: u64 = 8 * 1024 * 1024;

/// A resident that does not say how it stands is asked again after a second, then two, and so on up to this, and only as long
/// as somebody waits.
pub const MAX_PAUSE: Duration = Duration::from_secs(30);

const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// A resident that was opened for its job is no idle one so soon.
pub(super) const DUE_STAY: Duration = Duration::from_secs(3);

impl Coordinator {
    /// Whether a waiter of this class may take a slot now.
    pub(super) fn may_take(&self, class: Class) -> bool {
        self.slots.len() < self.settings.max && self.below_reserve(class) && self.fits(None)
    }

    /// One slot is kept from all but the foreground, if there are two or more.
    fn below_reserve(&self, class: Class) -> bool {
        let behind = self.slots.values().filter(|slot| slot.class != Class::Foreground).count();
        class == Class::Foreground || self.settings.max < 2 || behind < self.settings.max - 1
    }

    /// Whether one more child fits into the budget, with `without` gone. The first always does.
    fn fits(&self, without: Option<Lease>) -> bool {
        let Some(budget) = self.settings.budget else { return true };
        let rest = || self.slots.iter().filter(|(lease, _)| Some(**lease) != without).map(|(_, slot)| slot);
        let measured: Vec<u64> = rest().filter_map(|slot| slot.bytes).collect();
        let sum = measured.iter().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        let mean = sum.checked_div(measured.len() as u64).unwrap_or(DEFAULT_BYTES);
        let unmeasured = (rest().count() - measured.len()) as u64;
        let all = sum.saturating_add(mean.saturating_mul(unmeasured)).saturating_add(mean);
        rest().next().is_none() || all <= budget
    }

    /// Those who wait for a slot that is not theirs yet, most urgent first.
    fn blocked(&self) -> Vec<Class> {
        let needs = |profile: &str| match self.slot_of(profile) {
            None => true,
            // It gives its own slot back first, and then wants one again.
            Some((_, slot)) => matches!(slot.state, State::Committing | State::Stopping),
        };
        self.queue.profiles().into_iter().filter(|(profile, _)| needs(profile)).map(|(_, class)| class).collect()
    }

    /// How many more slots must come free than are on their way, with `without` counted as staying.
    fn missing(&self, without: Option<Lease>) -> usize {
        let leaving = self.slots.iter().filter(|(lease, slot)| slot.leaves() && Some(**lease) != without).count();
        self.blocked().len().saturating_sub(leaving)
    }

    /// How many there are beyond the limit, not counting those on their way out, with `without` counted as staying.
    fn surplus(&self, without: Option<Lease>) -> usize {
        let staying = self.slots.iter().filter(|(lease, slot)| !slot.leaves() || Some(**lease) == without).count();
        staying.saturating_sub(self.settings.max)
    }

    /// Whether what stays takes more memory than there may be; a last one is left in peace.
    fn over_budget(&self, without: Option<Lease>) -> bool {
        let Some(budget) = self.settings.budget else { return false };
        let staying = self.slots.iter().filter(|(lease, slot)| !slot.leaves() || Some(**lease) == without);
        let (count, sum) = staying
            .fold((0, 0_u64), |(count, sum), (_, slot)| (count + 1, sum.saturating_add(slot.bytes.unwrap_or(0))));
        count > 1 && sum > budget
    }

    /// From when on the exit of this resident helps a waiter of that class, if ever.
    fn helps_from(&self, slot: &Slot, class: Class) -> Option<Moment> {
        let reserve = slot.class != Class::Foreground || self.below_reserve(class);
        // A nanosecond later it is no longer fresh.
        let stale = slot.used.plus(self.settings.fresh).plus(Duration::from_nanos(1));
        reserve.then_some(if class == Class::Background { stale } else { slot.used })
    }

    fn helps_one_of(&self, slot: &Slot, blocked: &[Class]) -> Option<Moment> {
        blocked.iter().filter_map(|class| self.helps_from(slot, *class)).min()
    }

    /// Whether a resident that has given its permit is still to go.
    pub(super) fn must_go(&self, now: Moment, lease: Lease) -> bool {
        let Some(slot) = self.slots.get(&lease) else { return false };
        let closing = self.closers.iter().any(|(_, closing)| *closing == lease);
        if self.queue.wants(&slot.profile) || (slot.touched && !closing && !self.draining) {
            return false;
        }
        let blocked = self.blocked();
        let helps = self.helps_one_of(slot, &blocked).is_some_and(|from| from <= now);
        let needed = helps && self.missing(Some(lease)) > 0;
        closing
            || self.draining
            || needed
            || self.surplus(Some(lease)) > 0
            || self.over_budget(Some(lease))
            || self.idle_stop_of(slot) <= now
    }

    fn idle_stop_of(&self, slot: &Slot) -> Moment {
        let quiet = slot.quiet.plus(self.settings.idle_stop);
        // Up before its job is due, and idle until then.
        if slot.class == Class::Due { quiet.max(slot.born.plus(DUE_STAY)) } else { quiet }
    }

    /// When the next resident has been idle long enough.
    pub(super) fn next_idle_stop(&self) -> Option<Moment> {
        let idle = self.slots.values().filter(|slot| slot.may_prepare());
        idle.map(|slot| self.idle_stop_of(slot)).min()
    }

    /// While somebody waits: when a resident that said nothing is asked again, or may make room at all.
    pub(super) fn next_look(&self) -> Option<Moment> {
        if self.missing(None) == 0 {
            return None;
        }
        let blocked = self.blocked();
        let ready = self.slots.values().filter(|slot| slot.is_ready() && !slot.probing);
        let looks = ready.filter_map(|slot| {
            let from = self.helps_one_of(slot, &blocked)?;
            Some(if is_silent(slot) { from.max(ask_again(slot)) } else { from })
        });
        // Who could be looked at already was.
        looks.filter(|at| *at > self.seen).min()
    }

    /// Asks residents how they stand, and those that may go for their permit.
    pub(super) fn make_room(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        self.stop_the_idle(now, effects);
        let blocked = self.blocked();
        let missing = self.missing(None);
        if missing == 0 {
            return;
        }
        let mut candidates: Vec<(Lease, Moment)> = self
            .slots
            .iter()
            .filter(|(_, slot)| slot.is_ready() && self.helps_one_of(slot, &blocked).is_some_and(|from| from <= now))
            .map(|(lease, slot)| (*lease, slot.used))
            .collect();
        candidates.sort_by_key(|(_, used)| *used);
        for (lease, _) in &candidates {
            self.ask(now, *lease, effects);
        }
        let mut missing = missing;
        for (lease, _) in candidates {
            match self.slots.get(&lease) {
                // Whoever was used less recently goes first, so it is heard first.
                Some(slot) if slot.awaited => return,
                Some(slot) if slot.may_prepare() && missing > 0 => {
                    self.prepare(lease, effects);
                    missing -= 1;
                }
                _ => {}
            }
        }
    }

    /// Once a round; who has said nothing before, again after a pause, and nobody waits for its answer.
    fn ask(&mut self, now: Moment, lease: Lease, effects: &mut Vec<Effect>) {
        let round = self.round;
        let Some(slot) = self.slots.get_mut(&lease) else { return };
        let silent = is_silent(slot);
        let again = silent && ask_again(slot) <= now;
        if slot.probing || (slot.asked >= round && !again) {
            return;
        }
        (slot.asked, slot.probing, slot.awaited) = (round, true, !silent);
        effects.push(Effect::Probe { lease });
    }

    pub(super) fn prepare(&mut self, lease: Lease, effects: &mut Vec<Effect>) {
        if let Some(slot) = self.slots.get_mut(&lease) {
            (slot.state, slot.touched) = (State::Preparing, false);
            effects.push(Effect::Prepare { lease });
        }
    }

    /// Those that go without anybody waiting: all of a pool that is emptied, who was unused for long, who is too much.
    fn stop_the_idle(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        let mut idle: Vec<(Lease, Moment)> = self
            .slots
            .iter()
            .filter(|(_, slot)| slot.may_prepare() && !self.queue.wants(&slot.profile))
            .map(|(lease, slot)| (*lease, slot.used))
            .collect();
        idle.sort_by_key(|(_, used)| *used);
        for (lease, _) in idle {
            let unused = self.slots.get(&lease).is_some_and(|slot| self.idle_stop_of(slot) <= now);
            if self.draining || unused || self.surplus(None) > 0 || self.over_budget(None) {
                self.prepare(lease, effects);
            }
        }
    }
}

/// It was asked, and said nothing.
fn is_silent(slot: &Slot) -> bool {
    slot.standing.is_unknown() && slot.misses > 0
}

fn ask_again(slot: &Slot) -> Moment {
    slot.answered.plus(doubled(FIRST_PAUSE, slot.misses, MAX_PAUSE))
}
