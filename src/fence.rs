//! Admission and retirement: one lock, four states, no clock and no I/O of its own.
//!
//! 1. Work starts with [`Fence::admit`]; the [`Admission`] counts itself until it is dropped.
//! 2. [`Admission::enter`] turns it into a [`Presence`], which a ledger's guard carries for as long as the work lives.
//! 3. [`Fence::prepare`] refuses while admissions are in flight; else it freezes admission *first*, reads the ledgers
//!    without holding the lock, and issues a permit only on a literal [`Verdict::Idle`]. Anything else, a panic included,
//!    reopens.
//! 4. Meanwhile `admit` *waits* (the ledgers are in memory: microseconds) instead of refusing, so that a prepare that
//!    fails never costs anybody a start.
//! 5. A permit lives [`PERMIT_LIFE`]; [`Fence::commit`] makes it final, [`Fence::cancel`] gives it back.
//! 6. A [`Claim`] stands in line for the moment in which the last holder goes, and gets the permit in that very step.
//!
//! `tests/fence_loom.rs` compiles this file against loom's locks and tries every interleaving.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Moment;
use crate::secret::Permit;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard};
use crate::verdict::Verdict;

/// How long an uncommitted permit lives.
pub const PERMIT_LIFE: Duration = Duration::from_secs(30);

/// So many claims may stand in line.
pub const MAX_CLAIMS: usize = 64;

/// What a caller is told whose work is refused.
pub const RETIRING: &str = "backend is retiring; reconnect to continue";

/// The backend takes no new work; another one must.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("backend is retiring; reconnect to continue")]
pub struct Retiring;

/// The fence cannot be read: a thread died while it held the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the admission count cannot be read")]
pub struct Poisoned;

/// Decides what may begin, and when a process may be stopped. Clones are handles to the one fence of a process.
#[derive(Clone, Default)]
pub struct Fence {
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    state: Mutex<State>,
    /// Signalled whenever `Preparing` ends.
    resolved: Condvar,
    /// Called outside the lock after every change, so that a watcher of the verdict never misses one.
    observer: Option<Observer>,
}

/// See [`Fence::observed`].
pub type Observer = Box<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct State {
    phase: Phase,
    /// Work on its way into a ledger.
    admissions: usize,
    /// Work that a ledger's guard stands for. Counted here too, so that the step in which the last one goes is one step.
    entries: usize,
    /// How many admissions there ever were: tells a reader that something began while it read.
    granted: u64,
    /// Draining: nothing new begins, though no permit was given.
    closed: bool,
    line: VecDeque<Waiting>,
    next_claim: u64,
    /// Set by whatever the observer must hear of; a mere look must not, or a watcher would wake itself for ever.
    changed: bool,
}

#[derive(Default)]
enum Phase {
    #[default]
    Open,
    Preparing,
    Permit {
        permit: Permit,
        request_id: Option<String>,
        hold: Hold,
    },
    Committed {
        permit: Permit,
        request_id: Option<String>,
    },
}

/// What keeps an uncommitted permit alive.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hold {
    Until(Moment),
    /// Given to a claim that has not looked at the ledgers yet; nobody else knows it.
    Claim(u64),
}

struct Waiting {
    claim: u64,
    permit: Permit,
    request_id: Option<String>,
    wake: Wake,
}

/// Called once, outside the lock, when a claim has been given its permit.
pub type Wake = Box<dyn FnOnce() + Send>;

/// Why `prepare` gave no permit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Denied {
    /// Work is on its way into a ledger, or the ledgers said so.
    Busy(Verdict),
    /// Another retirement is under way.
    Retiring,
}

/// A permit, and how long it lives; `None` once it is committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Granted {
    /// The right to commit.
    pub permit: Permit,
    /// The rest of its life.
    pub expires_in: Option<Duration>,
}

/// The verdict while work is between admission and ledger.
pub fn admission_verdict() -> Verdict {
    Verdict::TurnInFlight { detail: Some("retirement_admission".to_owned()) }
}

impl Fence {
    /// A fence that calls `observer` after every change of what lives or of the permit.
    pub fn observed(observer: Observer) -> Self {
        Self { gate: Arc::new(Gate { observer: Some(observer), ..Gate::default() }) }
    }

    /// Unlocks, then wakes and tells.
    fn release(&self, mut state: MutexGuard<'_, State>, wake: Option<Wake>) {
        let changed = std::mem::take(&mut state.changed);
        drop(state);
        if let Some(wake) = wake {
            wake();
        }
        if let Some(observer) = self.gate.observer.as_ref().filter(|_| changed) {
            observer();
        }
    }

    /// Lets a piece of work begin.
    ///
    /// # Errors
    /// A permit lives or was committed, or the process is draining.
    pub fn admit(&self, now: Moment) -> Result<Admission, Retiring> {
        let mut state = self.settled();
        let wake = state.expire(now);
        let open = matches!(state.phase, Phase::Open) && !state.closed;
        let admission = open.then(|| self.count_admission(&mut state));
        self.release(state, wake);
        admission.ok_or(Retiring)
    }

    /// Waits out `Preparing`. Whoever prepares holds no other lock and does no I/O, so this is microseconds.
    fn settled(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        while matches!(state.phase, Phase::Preparing) {
            state = self.gate.resolved.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        state
    }

    fn count_admission(&self, state: &mut State) -> Admission {
        state.changed = true;
        state.admissions += 1;
        state.granted += 1;
        Admission { fence: self.clone() }
    }

    /// Freezes admission, asks `read` for the verdict, and issues `fresh` if it is idle.
    ///
    /// # Errors
    /// See [`Denied`]; admission is open again then.
    pub fn prepare(
        &self,
        now: impl Fn() -> Moment,
        request_id: Option<&str>,
        fresh: Permit,
        read: impl FnOnce() -> Verdict,
    ) -> Result<Granted, Denied> {
        if let Some(early) = self.begin_prepare(now(), request_id) {
            return early;
        }
        let mut frozen = Frozen { fence: self, then: Phase::Open };
        let verdict = read();
        if verdict != Verdict::Idle {
            return Err(Denied::Busy(verdict));
        }
        if self.lock().lives() {
            // The ledgers are empty, yet a guard is still on its way out: it will be gone at the next try.
            return Err(Denied::Busy(admission_verdict()));
        }
        let request_id = request_id.map(str::to_owned);
        let hold = Hold::Until(now().plus(PERMIT_LIFE));
        frozen.then = Phase::Permit { permit: fresh.clone(), request_id, hold };
        Ok(Granted { permit: fresh, expires_in: Some(PERMIT_LIFE) })
    }

    /// Either freezes and returns `None`, or has the answer already.
    fn begin_prepare(&self, now: Moment, request_id: Option<&str>) -> Option<Result<Granted, Denied>> {
        let mut state = self.lock();
        let wake = state.expire(now);
        let early = match &state.phase {
            Phase::Committed { permit, .. } => Some(Ok(Granted { permit: permit.clone(), expires_in: None })),
            Phase::Permit { permit, request_id: theirs, hold: Hold::Until(until) }
                if request_id.is_some() && theirs.as_deref() == request_id =>
            {
                Some(Ok(Granted { permit: permit.clone(), expires_in: Some(until.since(now)) }))
            }
            Phase::Permit { .. } | Phase::Preparing => Some(Err(Denied::Retiring)),
            Phase::Open if state.admissions > 0 => Some(Err(Denied::Busy(admission_verdict()))),
            Phase::Open => None,
        };
        if early.is_none() {
            state.turn(Phase::Preparing);
        }
        self.release(state, wake);
        early
    }

    /// Makes a permit final. `Some(request id)` if it was good, also when it was committed before.
    pub fn commit(&self, now: Moment, permit: &Permit) -> Option<Option<String>> {
        let mut state = self.lock();
        let wake = state.expire(now);
        let committed = match &state.phase {
            Phase::Permit { permit: ours, request_id, hold: Hold::Until(_) }
            | Phase::Committed { permit: ours, request_id }
                if ours == permit =>
            {
                Some(request_id.clone())
            }
            _ => None,
        };
        if let Some(request_id) = &committed {
            state.turn(Phase::Committed { permit: permit.clone(), request_id: request_id.clone() });
        }
        self.release(state, wake);
        committed
    }

    /// Gives an uncommitted permit back and reopens; false if it was not the live one.
    pub fn cancel(&self, now: Moment, permit: &Permit) -> bool {
        let mut state = self.lock();
        let mut wake = state.expire(now);
        let ours = matches!(&state.phase,
            Phase::Permit { permit: ours, hold: Hold::Until(_), .. } if ours == permit);
        if ours {
            state.turn(Phase::Open);
            wake = wake.or(state.hand_over());
        }
        self.release(state, wake);
        ours
    }

    /// Stands in line for the step in which the last holder goes. `wake` is called when [`Claim::granted`] has become true.
    ///
    /// # Errors
    /// [`MAX_CLAIMS`] stand there already, or the process is committed to another permit.
    pub fn claim(
        &self,
        now: Moment,
        permit: Permit,
        request_id: Option<String>,
        wake: Wake,
    ) -> Result<Claim, Retiring> {
        let mut state = self.lock();
        let expired = state.expire(now);
        if state.line.len() >= MAX_CLAIMS || matches!(state.phase, Phase::Committed { .. }) {
            self.release(state, expired);
            return Err(Retiring);
        }
        let claim = state.next_claim;
        state.next_claim += 1;
        state.line.push_back(Waiting { claim, permit, request_id, wake });
        let woken = state.hand_over();
        self.release(state, expired.or(woken));
        Ok(Claim { fence: self.clone(), claim })
    }

    /// Begins draining: nothing new is admitted, except under what lives.
    pub fn close(&self) {
        self.lock().closed = true;
    }

    /// Ends draining.
    pub fn reopen(&self) {
        let mut state = self.lock();
        state.closed = false;
        state.changed = true;
        self.release(state, None);
    }

    /// Drops a permit whose time is over. Returns when the present one expires, if one lives.
    pub fn expire(&self, now: Moment) -> Option<Moment> {
        let mut state = self.lock();
        let wake = state.expire(now);
        let until = match state.phase {
            Phase::Permit { hold: Hold::Until(until), .. } => Some(until),
            _ => None,
        };
        self.release(state, wake);
        until
    }

    /// Admissions in flight now, and how many there ever were.
    ///
    /// # Errors
    /// A thread died while it held the fence's lock.
    pub fn admissions(&self) -> Result<(usize, u64), Poisoned> {
        let state = self.gate.state.lock().map_err(|_| Poisoned)?;
        Ok((state.admissions, state.granted))
    }

    /// Whether new work would be refused at `now`.
    pub fn refuses(&self, now: Moment) -> bool {
        let mut state = self.lock();
        let wake = state.expire(now);
        let refuses = state.closed || matches!(state.phase, Phase::Permit { .. } | Phase::Committed { .. });
        self.release(state, wake);
        refuses
    }

    /// Whether a permit was committed.
    pub fn committed(&self) -> bool {
        matches!(self.lock().phase, Phase::Committed { .. })
    }

    /// Nothing under this lock can panic half-way, so a poisoned state is still a whole one: a guard must always be able to
    /// count itself out. Readers of the verdict use [`Fence::admissions`], which does report it.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.gate.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl State {
    fn lives(&self) -> bool {
        self.admissions > 0 || self.entries > 0
    }

    fn turn(&mut self, phase: Phase) {
        self.phase = phase;
        self.changed = true;
    }

    fn expire(&mut self, now: Moment) -> Option<Wake> {
        if matches!(self.phase, Phase::Permit { hold: Hold::Until(until), .. } if now >= until) {
            self.turn(Phase::Open);
            return self.hand_over();
        }
        None
    }

    /// The step in which the last holder goes: if somebody stands in line, the permit is theirs before anything can begin.
    fn hand_over(&mut self) -> Option<Wake> {
        if self.lives() || !matches!(self.phase, Phase::Open) {
            return None;
        }
        let next = self.line.pop_front()?;
        self.turn(Phase::Permit { permit: next.permit, request_id: next.request_id, hold: Hold::Claim(next.claim) });
        Some(next.wake)
    }
}

/// Ends `Preparing` whatever happens: by a permit, by a refusal, by a panic in the reader.
struct Frozen<'a> {
    fence: &'a Fence,
    then: Phase,
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let mut state = self.fence.lock();
        state.turn(std::mem::take(&mut self.then));
        let wake = state.hand_over();
        self.fence.release(state, wake);
        self.fence.gate.resolved.notify_all();
    }
}

/// Work that may begin and is not yet in a ledger. Counts itself; leaves by being dropped.
#[must_use = "an admission that is dropped at once admits nothing"]
pub struct Admission {
    fence: Fence,
}

impl Admission {
    /// Counts one entry of a ledger. The admission itself stays until it is dropped.
    pub fn enter(&self) -> Presence {
        self.fence.lock().entries += 1;
        Presence { fence: self.fence.clone() }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let mut state = self.fence.lock();
        state.admissions -= 1;
        state.changed = true;
        let wake = state.hand_over();
        self.fence.release(state, wake);
    }
}

/// Work that a ledger's guard stands for.
#[must_use = "work that is dropped at once is over"]
pub struct Presence {
    fence: Fence,
}

impl Presence {
    /// Admits more work under this one. Never refused: while this lives no permit can be issued.
    pub fn admit(&self) -> Admission {
        let mut state = self.fence.settled();
        self.fence.count_admission(&mut state)
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        let mut state = self.fence.lock();
        state.entries -= 1;
        state.changed = true;
        let wake = state.hand_over();
        self.fence.release(state, wake);
    }
}

/// A place in line for the permit. Dropped, it leaves the line, or gives back a permit that was not confirmed.
#[must_use = "a claim that is dropped leaves the line"]
pub struct Claim {
    fence: Fence,
    claim: u64,
}

impl Claim {
    /// Whether the last holder has gone and the permit is reserved for this claim.
    pub fn granted(&self) -> bool {
        self.is_mine(&self.fence.lock())
    }

    fn is_mine(&self, state: &State) -> bool {
        matches!(state.phase, Phase::Permit { hold: Hold::Claim(claim), .. } if claim == self.claim)
    }

    /// Looks at the ledgers and starts the permit's life.
    ///
    /// # Errors
    /// The ledgers do not say idle; admission is open again. [`Denied::Retiring`]: the claim was not granted.
    pub fn confirm(self, now: Moment, read: impl FnOnce() -> Verdict) -> Result<Granted, Denied> {
        let verdict = read();
        let mut state = self.fence.lock();
        if !self.is_mine(&state) {
            return Err(Denied::Retiring);
        }
        if verdict != Verdict::Idle {
            return Err(Denied::Busy(verdict));
        }
        match &mut state.phase {
            Phase::Permit { permit, hold, .. } => {
                *hold = Hold::Until(now.plus(PERMIT_LIFE));
                Ok(Granted { permit: permit.clone(), expires_in: Some(PERMIT_LIFE) })
            }
            _ => Err(Denied::Retiring),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut state = self.fence.lock();
        state.line.retain(|waiting| waiting.claim != self.claim);
        let mut wake = None;
        if self.is_mine(&state) {
            state.turn(Phase::Open);
            wake = state.hand_over();
        }
        self.fence.release(state, wake);
    }
}
