//! Streams of events that a connection can turn into.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{sleep, timeout};

use crate::clock::Moment;
use crate::fence::{Claim, Denied, Granted};
use crate::handler::{Place, millis};
use crate::hub::COALESCE;
use crate::ledger::Guard;
use crate::proof::Proof;
use crate::protocol::{Event, Fault, FaultKind};
use crate::secret::Permit;
use crate::verdict::Verdict;
use crate::work::question::Asked;

/// A stream: dropped, it gives back whatever it holds.
pub struct Stream {
    source: Source,
    _place: Option<Place>,
}

/// What a stream tells of.
pub enum Source {
    /// The verdict and its changes; ends with its connection.
    Watch(watch::Receiver<Verdict>),
    /// The line for a permit; ends with [`Event::Prepared`].
    Retire(Retirement),
    /// A hold: says that it holds, and lasts until it is dropped.
    Hold(Hold),
    /// What somebody else feeds; ends when they end it.
    Feed(mpsc::Receiver<Result<Event, Fault>>),
    /// A question; ends with [`Event::Answered`], and is withdrawn when it is dropped.
    Ask(Asked),
}

/// See [`Source::Hold`].
pub struct Hold {
    guard: Guard,
    told: bool,
}

impl Hold {
    /// Holds as long as it lives.
    pub fn new(guard: Guard) -> Self {
        Self { guard, told: false }
    }

    async fn next(&mut self) -> Event {
        if std::mem::replace(&mut self.told, true) {
            return std::future::pending().await;
        }
        Event::Held { number: self.guard.number() }
    }
}

impl Stream {
    /// A stream that keeps `place` as long as it lives.
    pub fn new(source: Source, place: Option<Place>) -> Self {
        Self { source, _place: place }
    }

    /// The next event; `None` when the stream has ended. Safe to drop while it waits.
    ///
    /// # Errors
    /// A fault that ends the stream.
    pub async fn next(&mut self) -> Result<Option<Event>, Fault> {
        match &mut self.source {
            Source::Watch(verdict) => match verdict.changed().await {
                Ok(()) => Ok(Some(Event::Verdict(verdict.borrow_and_update().clone()))),
                Err(_) => Ok(None),
            },
            Source::Retire(retirement) => retirement.next().await,
            Source::Hold(hold) => Ok(Some(hold.next().await)),
            Source::Feed(feed) => feed.recv().await.transpose(),
            Source::Ask(asked) => asked.next().await,
        }
    }
}

/// Waits for the step in which the last holder goes.
pub struct Retirement {
    proof: Arc<Proof>,
    request_id: Option<String>,
    deadline: Option<Moment>,
    claim: Option<Claim>,
    granted: Arc<Notify>,
    changes: watch::Receiver<u64>,
    told: Option<Verdict>,
    over: bool,
}

impl Retirement {
    /// Stands in line from the first [`Stream::next`] on, for at most `deadline`.
    pub fn new(proof: Arc<Proof>, request_id: Option<String>, deadline: Option<Duration>) -> Self {
        let changes = proof.ledgers().changes();
        let deadline = deadline.map(|span| proof.ledgers().clock().now().plus(span));
        Self {
            proof,
            request_id,
            deadline,
            claim: None,
            granted: Arc::new(Notify::new()),
            changes,
            told: None,
            over: false,
        }
    }

    async fn next(&mut self) -> Result<Option<Event>, Fault> {
        if self.over {
            return Ok(None);
        }
        loop {
            self.changes.mark_unchanged();
            if let Some(event) = self.step()? {
                return Ok(Some(event));
            }
            let now = self.now();
            let expiry = self.proof.ledgers().fence().expire(now).map(|until| until.since(now));
            let deadline = self.deadline.map(|deadline| deadline.since(now));
            let wait = async {
                tokio::select! {
                    () = self.granted.notified() => {}
                    _ = self.changes.changed() => {}
                    // A foreign permit's end is no event by itself: somebody must look.
                    () = sleep_for(expiry) => {}
                }
            };
            match deadline {
                None => wait.await,
                Some(deadline) => timeout(deadline, wait).await.map_err(|_| {
                    self.over = true;
                    Fault::new(FaultKind::TimedOut, "the deadline passed and the backend is still busy")
                })?,
            }
        }
    }

    fn now(&self) -> Moment {
        self.proof.ledgers().clock().now()
    }

    /// Takes the permit if it is ours, else says what is new about the wait.
    fn step(&mut self) -> Result<Option<Event>, Fault> {
        let (ledgers, proof) = (self.proof.ledgers(), &self.proof);
        if self.claim.is_none() {
            let fresh = Permit::random().map_err(|error| Fault::new(FaultKind::Unavailable, error.to_string()))?;
            let granted = Arc::clone(&self.granted);
            let wake = Box::new(move || granted.notify_one());
            let claim = ledgers.fence().claim(ledgers.clock().now(), fresh, self.request_id.clone(), wake);
            let full = |_| Fault::new(FaultKind::TooMany, "committed already, or too many wait for this backend");
            self.claim = Some(claim.map_err(full)?);
        }
        if let Some(claim) = self.claim.take_if(|claim| claim.granted()) {
            match claim.confirm(ledgers.clock().now(), || proof.read()) {
                Ok(Granted { permit, expires_in }) => {
                    self.over = true;
                    let expires_in_ms = expires_in.map_or(0, millis);
                    return Ok(Some(Event::Prepared { permit, expires_in_ms }));
                }
                // Nothing lives and yet it is not idle: a ledger cannot be read, and no wait will mend it.
                Err(Denied::Busy(_) | Denied::Retiring) => {
                    self.over = true;
                    let message = "a ledger of this backend cannot be read: it can never prove that it is idle";
                    return Err(Fault::new(FaultKind::Unavailable, message));
                }
            }
        }
        Ok(self.waiting(proof.verdict()))
    }

    fn waiting(&mut self, verdict: Verdict) -> Option<Event> {
        if self.told.as_ref() == Some(&verdict) {
            return None;
        }
        self.told = Some(verdict.clone());
        let retiring = verdict == Verdict::Idle;
        Some(Event::Waiting(self.proof.refusal(verdict, retiring)))
    }
}

async fn sleep_for(span: Option<Duration>) {
    match span {
        Some(span) => sleep(span.max(COALESCE)).await,
        None => std::future::pending().await,
    }
}
