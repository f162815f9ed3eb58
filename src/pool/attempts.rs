//! What was opened because something was due there: once for each instant, and if nothing came of it not at once again. A
//! job that cannot be claimed must not throw residents out for ever.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::crash::MAX_BACKOFF;
use crate::backoff::doubled;

/// A child that is gone so long after its job was due had time enough to begin it.
const TIME_ENOUGH: Duration = Duration::from_secs(1);

const FIRST_PAUSE: Duration = Duration::from_secs(60);

/// The last opening of each profile.
#[derive(Debug, Default)]
pub(super) struct Attempts(BTreeMap<Arc<str>, Attempt>);

#[derive(Debug)]
struct Attempt {
    due: Timestamp,
    failures: u32,
    until: Option<Timestamp>,
}

impl Attempts {
    /// A profile is opened for what is due until then.
    pub(super) fn begin(&mut self, profile: &Arc<str>, due: Timestamp) {
        match self.0.get_mut(profile).filter(|attempt| due <= attempt.due) {
            Some(attempt) => attempt.until = None,
            None => {
                self.0.insert(Arc::clone(profile), Attempt { due, failures: 0, until: None });
            }
        }
    }

    /// It could not be opened.
    pub(super) fn failed(&mut self, now: Timestamp, profile: &str) {
        if let Some(attempt) = self.0.get_mut(profile) {
            attempt.failures += 1;
            attempt.until = Some(now + doubled(FIRST_PAUSE, attempt.failures, MAX_BACKOFF));
        }
    }

    /// It may not be opened before.
    pub(super) fn hold_off(&mut self, until: Timestamp, profile: &str) {
        if let Some(attempt) = self.0.get_mut(profile) {
            attempt.until = Some(until);
        }
    }

    /// Its child is gone. What is due at the same instant still was not done, if there was time for it.
    pub(super) fn over(&mut self, now: Timestamp, profile: &str) {
        if self.0.get(profile).is_some_and(|attempt| attempt.due + TIME_ENOUGH <= now) {
            self.failed(now, profile);
        }
    }

    /// Until when a profile is left alone, as far as this was due the last time already.
    pub(super) fn not_before(&self, profile: &str, due: Timestamp) -> Option<Timestamp> {
        self.0.get(profile).filter(|attempt| due <= attempt.due)?.until
    }

    /// Nothing is due any more for anybody else.
    pub(super) fn keep(&mut self, matters: impl Fn(&str) -> bool) {
        self.0.retain(|profile, _| matters(profile));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn what_nothing_came_of_is_tried_again_later_and_later() {
        let (mut attempts, p) = (Attempts::default(), Arc::from("p"));
        for (gone, until) in [(102, 162), (170, 290), (300, 540), (600, 1080), (1100, 2000), (2100, 3000)] {
            attempts.begin(&p, at(100));
            assert_eq!(attempts.not_before("p", at(100)), None);
            attempts.over(at(gone), "p");
            assert_eq!(attempts.not_before("p", at(100)), Some(at(until)));
        }
        assert_eq!(attempts.not_before("p", at(4000)), None, "it was done, and something else is due");
        attempts.begin(&p, at(4000));
        attempts.over(at(4002), "p");
        assert_eq!(attempts.not_before("p", at(4000)), Some(at(4062)));
    }

    #[test]
    fn one_that_had_to_go_before_its_time_is_opened_again_at_once() {
        let (mut attempts, p) = (Attempts::default(), Arc::from("p"));
        attempts.begin(&p, at(100));
        attempts.over(at(99), "p");
        assert_eq!(attempts.not_before("p", at(100)), None);
        attempts.failed(at(99), "p");
        assert_eq!(attempts.not_before("p", at(100)), Some(at(159)));
        attempts.keep(|profile| profile != "p");
        assert_eq!(attempts.not_before("p", at(100)), None);
    }
}
