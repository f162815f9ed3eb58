//! What the coordinator hears, and what it says: data only.

use std::sync::Arc;
use std::time::Duration;

use super::view::SlotView;
use crate::pool::State;
use crate::protocol::Class;
use crate::verdict::Verdict;

/// One child's lifetime. The number is never given again, so that news of an old child never touches a newer one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease(pub u64);

/// Somebody who waits; the driver chooses the number, one for every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// The pool's limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// So many children at once; at least one.
    pub max: usize,
    /// So many bytes of memory at once, as far as measured.
    pub budget: Option<u64>,
    /// A resident that is idle and unused for so long is retired.
    pub idle_stop: Duration,
    /// A background opening leaves a resident alone that was used within so long.
    pub fresh: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { max: 3, budget: None, idle_stop: Duration::from_secs(600), fresh: Duration::from_secs(240) }
    }
}

/// What was last learnt of a resident.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Its verdict.
    pub verdict: Verdict,
}

impl Standing {
    /// Nothing was heard, or nothing that can be understood.
    pub fn unknown() -> Self {
        Verdict::TurnProbeUnavailable.into()
    }

    /// Only a literal idle.
    pub fn is_idle(&self) -> bool {
        self.verdict.idle() == Some(true)
    }

    /// Cannot tell: neither idle nor busy.
    pub fn is_unknown(&self) -> bool {
        self.verdict.idle().is_none()
    }
}

impl From<Verdict> for Standing {
    fn from(verdict: Verdict) -> Self {
        Self { verdict }
    }
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Somebody wants the child of a profile. Answered by [`Effect::Granted`] or [`Effect::Denied`], once.
    Open {
        /// Who.
        ticket: Ticket,
        /// Which profile.
        profile: Arc<str>,
        /// On whose behalf.
        class: Class,
        /// Give up after so long.
        deadline: Option<Duration>,
    },
    /// A waiter does not want it any more.
    Cancel {
        /// From [`Event::Open`] or [`Event::Close`].
        ticket: Ticket,
    },
    /// A person now waits for what was wanted in the background.
    Promote {
        /// From [`Event::Open`].
        ticket: Ticket,
        /// Counted from now: whoever clicks at second 29 is not turned away at second 30.
        deadline: Option<Duration>,
    },
    /// Somebody uses the child of a profile.
    Touch {
        /// Which profile.
        profile: Arc<str>,
    },
    /// A child answers.
    Ready {
        /// From [`Effect::Spawn`].
        lease: Lease,
    },
    /// There is no process: the slot is free.
    SpawnFailed {
        /// From [`Effect::Spawn`].
        lease: Lease,
        /// For people.
        why: String,
    },
    /// A child's exit was observed: the slot is free.
    Exited {
        /// Which child.
        lease: Lease,
        /// Its code or signal, and its last words.
        how: String,
    },
    /// The child's stream of verdicts said something; unknown when the stream broke.
    Heard {
        /// Which child.
        lease: Lease,
        /// What it said.
        standing: Standing,
    },
    /// Answer to [`Effect::Probe`]; unknown if its short deadline passed.
    Probed {
        /// Which child.
        lease: Lease,
        /// What it said.
        standing: Standing,
    },
    /// Answer to [`Effect::Prepare`]: the child proved idle and is frozen.
    Prepared {
        /// Which child.
        lease: Lease,
    },
    /// Answer to [`Effect::Prepare`]: no permit.
    Refused {
        /// Which child.
        lease: Lease,
        /// Why; unknown if no reply came.
        standing: Standing,
    },
    /// Answer to [`Effect::Commit`]: the child is closed for ever and leaves.
    Committed {
        /// Which child.
        lease: Lease,
    },
    /// Answer to [`Effect::Commit`]: refused, or lost in spite of retries.
    Uncommitted {
        /// Which child.
        lease: Lease,
        /// Why; unknown if no reply came.
        standing: Standing,
    },
    /// A child's memory was measured.
    Measured {
        /// Which child.
        lease: Lease,
        /// Its own bytes.
        bytes: u64,
    },
    /// The limits changed. Nobody is stopped for it but by proof.
    Limit {
        /// As in [`Settings`].
        max: usize,
        /// As in [`Settings`].
        budget: Option<u64>,
    },
    /// Retire the child of a profile now, if it proves idle. Answered by [`Effect::Closed`] or [`Effect::Denied`], once.
    Close {
        /// Who.
        ticket: Ticket,
        /// Which profile.
        profile: Arc<str>,
    },
    /// A living child of a dead pool was found: it has a slot, even beyond the limit, until its exit. [`Event::Ready`] follows
    /// when it is taken over.
    Found {
        /// From [`super::Coordinator::fresh_lease`].
        lease: Lease,
        /// Which profile.
        profile: Arc<str>,
    },
    /// Retire everybody by proof, as they become idle, and open nothing any more.
    Drain,
    /// The moment of [`super::Coordinator::wake_at`] has come.
    Wake,
}

/// What the driver is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Start a child; answer [`Event::Ready`], [`Event::SpawnFailed`] or [`Event::Exited`].
    Spawn {
        /// The new child.
        lease: Lease,
        /// Which profile.
        profile: Arc<str>,
    },
    /// Ask for the verdict, with a short deadline; answer [`Event::Probed`].
    Probe {
        /// Whom.
        lease: Lease,
    },
    /// Ask for a permit; answer [`Event::Prepared`] or [`Event::Refused`].
    Prepare {
        /// Whom.
        lease: Lease,
    },
    /// Make the permit final, with retries; answer [`Event::Committed`] or [`Event::Uncommitted`].
    Commit {
        /// Whom.
        lease: Lease,
    },
    /// Give the permit back.
    Cancel {
        /// Whom.
        lease: Lease,
    },
    /// End a child that has committed; answer [`Event::Exited`].
    Stop {
        /// Whom.
        lease: Lease,
    },
    /// The profile's child is ready.
    Granted {
        /// Who waited.
        ticket: Ticket,
        /// The child.
        lease: Lease,
    },
    /// The profile's child is gone.
    Closed {
        /// Who waited.
        ticket: Ticket,
    },
    /// It will not be.
    Denied {
        /// Who waited.
        ticket: Ticket,
        /// Why.
        denial: Denial,
    },
}

/// Why somebody does not get what they asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Denial {
    /// The deadline passed.
    TimedOut {
        /// The residents that kept their slots, as they stood.
        in_the_way: Vec<SlotView>,
    },
    /// [`Event::Cancel`] came first.
    Cancelled,
    /// The profile was retired: only a foreground opening brings it back.
    Retired,
    /// The profile's last start failed, or its child crashed a moment ago.
    BackingOff {
        /// Try again then.
        remaining: Duration,
    },
    /// The profile's child crashed again and again: only a foreground opening tries once more.
    CrashLoop,
    /// The child did not become ready.
    SpawnFailed {
        /// For people.
        why: String,
    },
    /// A child that is to be closed does not prove idle.
    Busy {
        /// What it is doing.
        state: State,
        /// Who holds it.
        standing: Standing,
    },
    /// A profile that is to be closed has no child.
    NotOpen,
    /// The pool is being emptied.
    Draining,
    /// Too many wait already.
    TooMany,
}
