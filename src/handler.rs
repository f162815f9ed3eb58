//! The one place that answers. Both doors call [`Backend::handle`]; what a request may do is in its row of `verb.rs` and
//! enforced here, at the entry, and nowhere else.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::door::auth::{Caller, MAX_HOLDS, TiedPermit};
use crate::fence::{Admission, Denied, Granted, RETIRING};
use crate::hub::Hub;
use crate::lifecycle::{Committed, Lifecycle, Owner};
use crate::process;
use crate::proof::Proof;
use crate::protocol::{Event, Fault, FaultKind, Health, LedgerKind, Reply, Request, TickerReport};
use crate::secret::Permit;
use crate::stream::{Hold, Retirement, Source, Stream};
use crate::verb::{Authority, Verb};
use crate::verdict::Verdict;
use crate::work::question::Questions;
use crate::work::strays::Strays;
use crate::work::turn::Turns;

/// So many ledger entries go into one page.
pub const MAX_PAGE: u32 = 1000;

/// A request id is a name, not a store.
pub const MAX_REQUEST_ID: usize = 128;

/// Who holds and what for is a line, not a page.
pub const MAX_REASON: usize = 256;

/// Who this process is.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Random per process.
    pub generation: String,
    /// The profile it serves.
    pub profile: Option<String>,
}

/// What one child knows of itself: everything that a request can ask about.
pub struct Backend {
    /// Who it is.
    pub identity: Identity,
    /// What it proves its verdict from.
    pub proof: Arc<Proof>,
    /// Who watches the verdict.
    pub hub: Hub,
    /// What decides how long it lives.
    pub lifecycle: Lifecycle,
    /// What the cron ticker last said of itself.
    pub ticker: Arc<Mutex<TickerReport>>,
    /// What people are asked.
    pub questions: Questions,
    /// What was left running.
    pub strays: Strays,
    /// Turns of the agent.
    pub turns: Turns,
    /// So many requests at a time may last as long as their connection: fewer than a door has connections, so that the
    /// answer to a question always finds a way in.
    pub places: Arc<Semaphore>,
}

/// One of the places for what lasts as long as its connection.
pub type Place = OwnedSemaphorePermit;

/// An answer: one reply, or a stream of events.
pub enum Outcome {
    /// One reply.
    Reply(Reply),
    /// Events until it ends or the peer goes.
    Stream(Stream),
}

/// Whoever answers behind the control socket.
pub trait Handler: Send + Sync + 'static {
    /// Who it is.
    fn identity(&self) -> &Identity;

    /// Answers one request.
    ///
    /// # Errors
    /// The fault that the peer is told.
    fn handle(&self, caller: &mut Caller, request: Request) -> impl Future<Output = Result<Outcome, Fault>> + Send;

    /// What a connection that was sent this event holds from now on.
    fn lease(&self, event: &Event) -> Option<TiedPermit>;
}

impl Handler for Backend {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    async fn handle(&self, caller: &mut Caller, request: Request) -> Result<Outcome, Fault> {
        self.handle(caller, request).await
    }

    fn lease(&self, event: &Event) -> Option<TiedPermit> {
        let Event::Prepared { permit, .. } = event else { return None };
        Some(self.tied(permit))
    }
}

impl Backend {
    /// Answers one request.
    ///
    /// # Errors
    /// The fault that the peer is told.
    pub async fn handle(&self, caller: &mut Caller, request: Request) -> Result<Outcome, Fault> {
        let verb = request.verb();
        self.permit_entry(caller, verb)?;
        // Held to the end of the function: a request that is work shows as work while it is handled.
        let admission = match verb.work {
            true => Some(self.proof.ledgers().admit().map_err(|_| retiring())?),
            false => None,
        };
        let place = place(&self.places, verb)?;
        let outcome = self.answer(caller, request, admission.as_ref(), place).await;
        drop(admission);
        if verb.logged {
            let fault = outcome.as_ref().err().map(|fault| fault.kind);
            tracing::info!(verb = verb.name, peer = caller.pid, ?fault, "handled");
        }
        outcome
    }

    /// Whether the caller may ask this at all. Doors call it early where they can save reading a body.
    ///
    /// # Errors
    /// Unauthorized, forbidden or retiring.
    pub fn permit_entry(&self, caller: &Caller, verb: &Verb) -> Result<(), Fault> {
        authorize(caller, verb)?;
        let ledgers = self.proof.ledgers();
        if !verb.while_retiring && ledgers.fence().refuses(ledgers.clock().now()) {
            return Err(retiring());
        }
        Ok(())
    }

    async fn answer(
        &self,
        caller: &mut Caller,
        request: Request,
        admission: Option<&Admission>,
        place: Option<Place>,
    ) -> Result<Outcome, Fault> {
        let reply = match request {
            Request::Hello { .. } => return Err(Fault::new(FaultKind::Invalid, "Hello is the first frame only")),
            Request::Health => Reply::Health(Health { version: crate::VERSION.to_owned() }),
            Request::Idle => Reply::Verdict(self.proof.verdict()),
            Request::Ledgers { after, limit } => self.ledgers(after, limit),
            Request::Prepare { request_id, tied } => self.prepare(caller, request_id, tied)?,
            Request::Commit { permit } => self.commit(&permit),
            Request::Cancel { permit } => self.cancel(&permit),
            Request::Watch => return Ok(Outcome::Stream(Stream::new(Source::Watch(self.hub.watch()), place))),
            Request::RetireWhenIdle { deadline_ms, request_id } => {
                let request_id = checked(request_id)?;
                let deadline = deadline_ms.map(Duration::from_millis);
                let retirement = Retirement::new(Arc::clone(&self.proof), request_id, deadline);
                return Ok(Outcome::Stream(Stream::new(Source::Retire(retirement), place)));
            }
            Request::Adopt { pid, start_marker } => self.adopt(caller, pid, start_marker)?,
            Request::Hold { who, why } => return self.hold(caller, &who, &why, admission.ok_or_else(retiring)?, place),
            Request::Ask { kind, text, choices, timeout_ms } => {
                let admission = admission.ok_or_else(retiring)?;
                let limit = timeout_ms.map(Duration::from_millis);
                let asked = self.questions.ask(self.proof.ledgers(), admission, kind, text, choices, limit)?;
                return Ok(Outcome::Stream(Stream::new(Source::Ask(asked), place)));
            }
            Request::Questions => Reply::Questions(self.questions.open(self.proof.ledgers())),
            Request::Answer { id, answer } => {
                self.questions.answer(&id, answer)?;
                Reply::Answered
            }
            Request::ReleaseProcess { pid } => match self.strays.release(pid) {
                Some(command) => Reply::ProcessReleased { command },
                None => {
                    return Err(Fault::new(
                        FaultKind::NotFound,
                        format!("no process {pid} is held: see hermesctl ledger"),
                    ));
                }
            },
            Request::Submit { session, prompt } => {
                self.turns.submit(&session, prompt, admission.ok_or_else(retiring)?).await?
            }
            Request::Delegate { session, prompt, detached } => {
                self.turns.delegate(&session, prompt, detached, admission.ok_or_else(retiring)?).await?
            }
            Request::Turn { turn, wait } => Reply::Turn(self.turns.turn(turn, wait).await?),
            Request::Sessions => Reply::Sessions(self.turns.sessions().await?),
            Request::Interrupt { session } => Reply::Interrupting { turn: self.turns.interrupt(&session)? },
            Request::Log { session, after, limit } => {
                Reply::Log(self.turns.log(session, after, limit.clamp(1, MAX_PAGE)).await?)
            }
            Request::Release { number } => Reply::Released { ok: caller.release(number) },
            Request::Open { .. }
            | Request::Close { .. }
            | Request::Pool
            | Request::WatchPool
            | Request::PoolLimit { .. }
            | Request::Touch { .. } => {
                return Err(Fault::new(FaultKind::Invalid, "this is a backend and no pool: ask hermes pool for that"));
            }
        };
        Ok(Outcome::Reply(reply))
    }

    fn ledgers(&self, after: Option<u64>, limit: u32) -> Reply {
        let limit = limit.clamp(1, MAX_PAGE) as usize;
        let ticker = self.ticker.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Reply::Ledgers(self.proof.report(after, limit, ticker))
    }

    fn prepare(&self, caller: &mut Caller, request_id: Option<String>, tied: bool) -> Result<Reply, Fault> {
        let request_id = checked(request_id)?;
        if tied && !caller.connected {
            return Err(Fault::new(FaultKind::Invalid, "tied needs a connection that lasts: use the control socket"));
        }
        let fresh = Permit::random().map_err(|error| Fault::new(FaultKind::Unavailable, error.to_string()))?;
        let (ledgers, proof) = (self.proof.ledgers(), &self.proof);
        let outcome = ledgers.fence().prepare(|| ledgers.clock().now(), request_id.as_deref(), fresh, || proof.read());
        Ok(match outcome {
            Ok(Granted { permit, expires_in }) => {
                if tied && expires_in.is_some() {
                    caller.tie(self.tied(&permit));
                }
                Reply::Prepared { permit, expires_in_ms: expires_in.map(millis) }
            }
            Err(Denied::Busy(verdict)) => Reply::Refused(proof.refusal(verdict, false)),
            Err(Denied::Retiring) => Reply::Refused(proof.refusal(Verdict::Idle, true)),
        })
    }

    fn commit(&self, permit: &Permit) -> Reply {
        let ledgers = self.proof.ledgers();
        let Some(request_id) = ledgers.fence().commit(ledgers.clock().now(), permit) else {
            return Reply::Committed { ok: false, next_due: None };
        };
        self.lifecycle.commit(Committed { request_id });
        let next_due = self.ticker.lock().unwrap_or_else(PoisonError::into_inner).next_due.clone();
        Reply::Committed { ok: true, next_due }
    }

    fn cancel(&self, permit: &Permit) -> Reply {
        let ledgers = self.proof.ledgers();
        Reply::Cancelled { ok: ledgers.fence().cancel(ledgers.clock().now(), permit) }
    }

    fn tied(&self, permit: &Permit) -> TiedPermit {
        let ledgers = self.proof.ledgers();
        TiedPermit::new(ledgers.fence().clone(), ledgers.clock().clone(), permit.clone())
    }

    /// A hold lasts as long as its connection; a single HTTP request is made to last by a stream.
    fn hold(
        &self,
        caller: &mut Caller,
        who: &str,
        why: &str,
        admission: &Admission,
        place: Option<Place>,
    ) -> Result<Outcome, Fault> {
        for (name, text) in [("who", who), ("why", why)] {
            if text.trim().is_empty() || text.len() > MAX_REASON || text.contains(char::is_control) {
                let message = format!("{name} must be one line of 1 to {MAX_REASON} bytes");
                return Err(Fault::new(FaultKind::Invalid, message));
            }
        }
        let guard = self.proof.ledgers().enter(admission, LedgerKind::Hold, who, why);
        let number = guard.number();
        if !caller.connected {
            return Ok(Outcome::Stream(Stream::new(Source::Hold(Hold::new(guard)), place)));
        }
        match caller.hold(guard, place) {
            true => Ok(Outcome::Reply(Reply::Held { number })),
            false => Err(Fault::new(FaultKind::TooMany, format!("a connection has at most {MAX_HOLDS} holds"))),
        }
    }

    fn adopt(&self, caller: &Caller, pid: u32, start_marker: String) -> Result<Reply, Fault> {
        if caller.pid != Some(pid) {
            return Err(Fault::new(FaultKind::Forbidden, "only the new owner itself may adopt: pid is not the peer's"));
        }
        if process::start_marker(pid).as_deref() != Some(start_marker.as_str()) {
            return Err(Fault::new(FaultKind::Invalid, "start_marker is not that of the peer"));
        }
        let new = Owner::Process { pid, marker: Some(start_marker) };
        let owner = self.lifecycle.owner();
        if matches!(owner, Owner::Process { .. }) && owner != new {
            return Err(Fault::new(FaultKind::Conflict, "this backend has a living owner"));
        }
        if self.proof.ledgers().fence().committed() {
            return Err(retiring());
        }
        self.lifecycle.set_owner(new);
        self.proof.ledgers().fence().reopen();
        Ok(Reply::Adopted)
    }
}

/// Whether the caller has shown enough for this verb.
///
/// # Errors
/// Unauthorized or forbidden.
pub fn authorize(caller: &Caller, verb: &Verb) -> Result<(), Fault> {
    match caller.authority {
        authority if authority >= verb.authority => Ok(()),
        Authority::Public => Err(Fault::new(FaultKind::Unauthorized, "Unauthorized")),
        _ => Err(Fault::new(
            FaultKind::Forbidden,
            format!("{} needs the control token: HERMES_CONTROL_TOKEN is set for this backend", verb.name),
        )),
    }
}

/// Takes a place for a request that may last as long as its connection.
///
/// # Errors
/// There is none left.
pub fn place(places: &Arc<Semaphore>, verb: &Verb) -> Result<Option<Place>, Fault> {
    let message = "too many watch, hold or wait here already: end some of them and try again";
    let full = |_| Fault::new(FaultKind::TooMany, message);
    verb.lasts.then(|| Arc::clone(places).try_acquire_owned().map_err(full)).transpose()
}

fn retiring() -> Fault {
    Fault::new(FaultKind::Retiring, RETIRING)
}

/// A span in whole milliseconds.
pub fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn checked(request_id: Option<String>) -> Result<Option<String>, Fault> {
    match request_id {
        Some(id) if id.is_empty() || id.len() > MAX_REQUEST_ID => Err(Fault::new(
            FaultKind::Invalid,
            format!("request_id must have 1 to {MAX_REQUEST_ID} bytes; it has {}", id.len()),
        )),
        other => Ok(other),
    }
}
