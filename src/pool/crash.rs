//! Children that crash, and starts that fail: when to try again, and when to stop trying.

use std::sync::Arc;
use std::time::Duration;

use super::event::Denial;
use super::marks::Marks;
use crate::backoff::doubled;
use crate::clock::Moment;
use crate::protocol::Class;

/// So many crashes within [`CRASH_WINDOW`] are a crash loop.
pub const CRASH_LOOP: usize = 3;

/// See [`CRASH_LOOP`].
pub const CRASH_WINDOW: Duration = Duration::from_secs(120);

/// A crashed child is restarted after a second, then two, then four, and so on up to this.
pub const MAX_RESTART_DELAY: Duration = Duration::from_secs(60);

/// A profile that does not start in the background is left alone for a minute, then two, and so on up to this.
pub const MAX_BACKOFF: Duration = Duration::from_secs(15 * 60);

const FIRST_RESTART_DELAY: Duration = Duration::from_secs(1);
const FIRST_BACKOFF: Duration = Duration::from_secs(60);

/// A crash so long after the one before is a first one again.
const FORGOTTEN: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
struct Trouble {
    /// The last crashes, at most [`CRASH_LOOP`].
    crashes: Vec<Moment>,
    /// Crashes in a row.
    row: u32,
    looping: bool,
    restart: Option<Moment>,
    failures: u32,
    backoff: Option<Backoff>,
}

#[derive(Debug, Clone, Copy)]
struct Backoff {
    until: Moment,
    /// It only found no slot, so there is nothing wrong with it.
    starved: bool,
}

/// What went wrong with which profile.
#[derive(Debug, Default)]
pub(super) struct Troubles(Marks<Trouble>);

impl Troubles {
    /// A ready child crashed: notes when to restart it, unless it is looping.
    pub(super) fn crashed(&mut self, now: Moment, profile: &Arc<str>) {
        let trouble = self.0.write(profile);
        let last = trouble.crashes.last();
        trouble.row = if last.is_some_and(|last| now.since(*last) < FORGOTTEN) { trouble.row + 1 } else { 1 };
        if trouble.crashes.len() == CRASH_LOOP {
            trouble.crashes.remove(0);
        }
        trouble.crashes.push(now);
        let oldest = trouble.crashes.first().filter(|_| trouble.crashes.len() == CRASH_LOOP);
        trouble.looping |= oldest.is_some_and(|oldest| now.since(*oldest) <= CRASH_WINDOW);
        let delay = doubled(FIRST_RESTART_DELAY, trouble.row, MAX_RESTART_DELAY);
        trouble.restart = (!trouble.looping).then(|| now.plus(delay));
    }

    /// A start in the background failed, or found no slot in time. What fails while it backs off is the same failure.
    pub(super) fn failed(&mut self, now: Moment, profile: &Arc<str>, starved: bool) {
        let trouble = self.0.write(profile);
        if trouble.backoff.is_some_and(|backoff| now < backoff.until) {
            return;
        }
        trouble.failures += 1;
        let until = now.plus(doubled(FIRST_BACKOFF, trouble.failures, MAX_BACKOFF));
        trouble.backoff = Some(Backoff { until, starved });
    }

    /// The profile's child became ready.
    pub(super) fn started(&mut self, profile: &str) {
        if let Some(trouble) = self.0.get_mut(profile) {
            (trouble.failures, trouble.backoff, trouble.restart) = (0, None, None);
        }
    }

    /// A person opens the profile: a loop is over, and whoever waits in the foreground needs no restart.
    pub(super) fn opened(&mut self, profile: &str) {
        if let Some(trouble) = self.0.get_mut(profile) {
            trouble.restart = None;
            if std::mem::take(&mut trouble.looping) {
                (trouble.crashes, trouble.row) = (Vec::new(), 0);
            }
        }
    }

    /// Why the profile may not be opened now, on whose behalf ever but a person's.
    pub(super) fn denial(&self, now: Moment, profile: &str, class: Class) -> Option<Denial> {
        let trouble = self.0.get(profile).filter(|_| class != Class::Foreground)?;
        if trouble.looping {
            return Some(Denial::CrashLoop);
        }
        let backoff = trouble.backoff.filter(|backoff| class == Class::Background || !backoff.starved);
        let until = trouble.restart.max(backoff.map(|backoff| backoff.until)).filter(|until| now < *until)?;
        Some(Denial::BackingOff { remaining: until.since(now) })
    }

    /// Takes out the profiles whose restart has come.
    pub(super) fn take_restarts(&mut self, now: Moment) -> Vec<Arc<str>> {
        let due = self.0.values_mut().filter(|(_, trouble)| trouble.restart.is_some_and(|at| at <= now));
        due.map(|(profile, trouble)| {
            trouble.restart = None;
            profile.clone()
        })
        .collect()
    }

    pub(super) fn forget_restarts(&mut self) {
        self.0.values_mut().for_each(|(_, trouble)| trouble.restart = None);
    }

    pub(super) fn next_restart(&self) -> Option<Moment> {
        self.0.iter().filter_map(|(_, trouble)| trouble.restart).min()
    }
}
