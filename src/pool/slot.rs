//! One lease: a child from before its spawn until its exit.

use std::sync::Arc;
use std::time::Duration;

use super::event::Standing;
use crate::clock::Moment;
use crate::protocol::Class;

/// After a commit without an answer, an exit within so long is the child leaving as it was told, and no crash.
const DOUBT: Duration = Duration::from_secs(5);

/// Where a child is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Leased, not ready yet.
    Starting,
    /// Serves.
    Ready,
    /// Asked for a permit, no answer yet.
    Preparing,
    /// The permit is being made final.
    Committing,
    /// Committed and told to stop.
    Stopping,
}

impl State {
    /// The name on screen.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Preparing | Self::Committing => "retiring",
            Self::Stopping => "stopping",
        }
    }
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) profile: Arc<str>,
    /// The class it was granted with, for good: the reserve counts by it.
    pub(super) class: Class,
    pub(super) state: State,
    /// A pool before us started it.
    pub(super) found: bool,
    pub(super) born: Moment,
    /// The last grant or touch: the order of going.
    pub(super) used: Moment,
    /// Since when nothing speaks against the idle stop.
    pub(super) quiet: Moment,
    /// Touched while it was being prepared.
    pub(super) touched: bool,
    pub(super) standing: Standing,
    pub(super) bytes: Option<u64>,
    /// The round of demand that it was last probed in.
    pub(super) asked: u64,
    /// A probe is in flight.
    pub(super) probing: bool,
    /// Others wait for its answer. Not so if it did not answer the last time.
    pub(super) awaited: bool,
    /// Answers in a row that said nothing.
    pub(super) misses: u32,
    pub(super) answered: Moment,
    /// A commit got no answer then.
    pub(super) doubt: Option<Moment>,
}

impl Slot {
    pub(super) fn new(profile: Arc<str>, class: Class, state: State, now: Moment) -> Self {
        Self {
            profile,
            class,
            state,
            found: false,
            born: now,
            used: now,
            quiet: now,
            touched: false,
            standing: Standing::unknown(),
            bytes: None,
            asked: 0,
            probing: false,
            awaited: false,
            misses: 0,
            answered: now,
            doubt: None,
        }
    }

    /// Its slot is on the way to somebody else.
    pub(super) fn leaves(&self) -> bool {
        matches!(self.state, State::Preparing | State::Committing | State::Stopping)
    }

    pub(super) fn is_ready(&self) -> bool {
        self.state == State::Ready
    }

    /// Ready, and its last word, with no probe to be waited for, is idle.
    pub(super) fn may_prepare(&self) -> bool {
        self.is_ready() && !self.awaited && self.standing.is_idle()
    }

    pub(super) fn use_now(&mut self, now: Moment) {
        self.used = now;
        self.quiet = now;
        self.touched = true;
    }

    pub(super) fn become_ready(&mut self, now: Moment) {
        self.state = State::Ready;
        self.use_now(now);
        self.answered = now;
    }

    /// Takes in what the child said of itself.
    pub(super) fn learn(&mut self, now: Moment, standing: Standing) {
        let was_busy = self.standing.verdict.idle() == Some(false);
        if !standing.is_idle() || was_busy {
            self.quiet = now;
        }
        if standing.verdict.idle() == Some(false) {
            self.doubt = None;
        }
        self.misses = if standing.is_unknown() { self.misses.saturating_add(1) } else { 0 };
        self.awaited = false;
        self.answered = now;
        self.standing = standing;
    }

    /// Takes in a refusal. Whoever says idle and yet refuses has another retirement going on: that proves nothing.
    pub(super) fn learn_refusal(&mut self, now: Moment, standing: Standing) {
        let standing = if standing.is_idle() { Standing::unknown() } else { standing };
        self.state = State::Ready;
        self.quiet = now;
        self.learn(now, standing);
    }

    pub(super) fn in_doubt(&self, now: Moment) -> bool {
        self.doubt.is_some_and(|since| now.since(since) < DOUBT)
    }
}
