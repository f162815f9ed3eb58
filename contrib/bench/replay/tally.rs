//! What came of it.

use crate::script::Time;

pub(crate) const HEAD: &str =
    "policy               waits  time-outs  avoidable  work killed  jobs missed  dials refused      p50      p99";

/// So long somebody could have been served before that counts as avoidable: less than this is the service itself.
const NOTICED: Time = 500;

#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Of everybody who was served in the foreground.
    waits: Vec<Time>,
    pub(crate) timed_out: usize,
    pub(crate) avoidable: usize,
    pub(crate) killed: usize,
    pub(crate) missed: usize,
    pub(crate) refused: usize,
}

impl Tally {
    pub(crate) fn served(&mut self, waited: Time) {
        self.waits.push(waited);
    }

    pub(crate) fn is_sound(&self) -> bool {
        self.killed == 0 && self.avoidable == 0
    }

    pub(crate) fn row(mut self, name: &str) -> String {
        self.waits.sort_unstable();
        let at = |share: usize| self.waits.get((self.waits.len() * share / 100).min(self.waits.len() - 1)).unwrap();
        // Who is up, or comes up by itself, waits for nobody.
        let waited = self.waits.iter().filter(|wait| **wait > 2 * crate::script::START).count();
        format!(
            "{name:<18} {:>7}  {:>9}  {:>9}  {:>11}  {:>11}  {:>13}  {:>7.3}  {:>7.3}",
            waited + self.timed_out,
            self.timed_out,
            self.avoidable,
            self.killed,
            self.missed,
            self.refused,
            *at(50) as f64 / 1000.0,
            *at(99) as f64 / 1000.0
        )
    }
}

/// Whether somebody who waits could have been served all the while.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Chance {
    since: Option<Time>,
    had: bool,
}

impl Chance {
    pub(crate) fn look(&mut self, now: Time, could_be_served: bool) {
        match (could_be_served, self.since) {
            (true, None) => self.since = Some(now),
            (true, Some(since)) => self.had |= now - since >= NOTICED,
            (false, Some(since)) => {
                self.had |= now - since >= NOTICED;
                self.since = None;
            }
            (false, None) => {}
        }
    }

    pub(crate) fn was_had(self) -> bool {
        self.had
    }
}
