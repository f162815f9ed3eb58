//! The pool behind its control socket: the same frames, tokens and policy as a backend's, other verbs.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use super::child;
use super::service::Command;
use super::waiter::{self, Waiter};
use crate::door;
use crate::door::auth::{Caller, TiedPermit};
use crate::handler::{Handler, Identity, Outcome, Place, authorize, place};
use crate::protocol::{Class, Event, Fault, FaultKind, Health, PoolReport, Reply, Request};
use crate::stream::{Source, Stream};

/// So long somebody in the background waits, if it does not say.
const BACKGROUND_WAIT: Duration = Duration::from_secs(30);

/// What requests can ask about.
pub struct Pool {
    /// Who it is.
    pub identity: Identity,
    /// Where requests go.
    pub commands: mpsc::Sender<Command>,
    /// The pool as it is.
    pub report: watch::Receiver<PoolReport>,
    /// So many requests at a time may last as long as their connection.
    pub places: Arc<Semaphore>,
}

impl Handler for Pool {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    async fn handle(&self, caller: &mut Caller, request: Request) -> Result<Outcome, Fault> {
        let verb = request.verb();
        authorize(caller, verb)?;
        let place = place(&self.places, verb)?;
        let outcome = self.answer(request, place).await;
        if verb.logged {
            let fault = outcome.as_ref().err().map(|fault| fault.kind);
            tracing::info!(verb = verb.name, peer = caller.pid, ?fault, "handled");
        }
        outcome
    }

    fn lease(&self, _: &Event) -> Option<TiedPermit> {
        // A pool gives no permits: it asks for them.
        None
    }
}

impl Pool {
    async fn answer(&self, request: Request, place: Option<Place>) -> Result<Outcome, Fault> {
        let reply = match request {
            Request::Health => Reply::Health(Health { version: crate::VERSION.to_owned() }),
            Request::Pool => {
                let (done, now) = oneshot::channel();
                self.tell(Command::Report { done }).await?;
                Reply::Pool(now.await.map_err(|_| over())?)
            }
            Request::WatchPool => {
                let (told, feed) = mpsc::channel(1);
                tokio::spawn(waiter::watch(told, self.report.clone()));
                return Ok(Outcome::Stream(Stream::new(Source::Feed(feed), place)));
            }
            Request::Open { profile, background, timeout_ms } => {
                let (told, feed) = mpsc::channel(2);
                let class = if background { Class::Background } else { Class::Foreground };
                // Those whom nobody waits for leave room for those who do.
                if background && self.places.available_permits() < door::lasting() / 4 {
                    return Err(Fault::new(FaultKind::TooMany, "too many wait in the background: try again later"));
                }
                let timeout = timeout_ms.map(Duration::from_millis).or(background.then_some(BACKGROUND_WAIT));
                let (profile, waiter) = (named(&profile)?, Waiter::Stream(told));
                self.tell(Command::Open { profile, class, timeout, waiter }).await?;
                return Ok(Outcome::Stream(Stream::new(Source::Feed(feed), place)));
            }
            Request::Close { profile } => {
                let (told, end) = oneshot::channel();
                self.tell(Command::Close { profile: named(&profile)?, waiter: Waiter::Once(told) }).await?;
                end.await.map_err(|_| over())??;
                Reply::Closed
            }
            Request::PoolLimit { max, memory_budget } => {
                if max == Some(0) {
                    return Err(Fault::new(FaultKind::Invalid, "a pool has at least one slot"));
                }
                let max = max.and_then(|max| usize::try_from(max).ok());
                let (done, after) = oneshot::channel();
                self.tell(Command::Limit { max, budget: memory_budget, done }).await?;
                Reply::Pool(after.await.map_err(|_| over())?)
            }
            Request::Touch { profile } => {
                let (done, up) = oneshot::channel();
                self.tell(Command::Touch { profile: named(&profile)?, done }).await?;
                Reply::Touched { ok: up.await.map_err(|_| over())? }
            }
            Request::Hello { .. } => return Err(Fault::new(FaultKind::Invalid, "Hello is the first frame only")),
            Request::Idle
            | Request::Ledgers { .. }
            | Request::Prepare { .. }
            | Request::Commit { .. }
            | Request::Cancel { .. }
            | Request::Watch
            | Request::RetireWhenIdle { .. }
            | Request::Adopt { .. }
            | Request::Hold { .. }
            | Request::Release { .. }
            | Request::Ask { .. }
            | Request::Questions
            | Request::Answer { .. }
            | Request::ReleaseProcess { .. }
            | Request::Submit { .. }
            | Request::Turn { .. }
            | Request::Sessions
            | Request::Interrupt { .. }
            | Request::Log { .. }
            | Request::Delegate { .. } => {
                let message = "this is a pool and no backend: open a profile, and ask its backend";
                return Err(Fault::new(FaultKind::Invalid, message));
            }
        };
        Ok(Outcome::Reply(reply))
    }

    async fn tell(&self, command: Command) -> Result<(), Fault> {
        self.commands.send(command).await.map_err(|_| over())
    }
}

fn over() -> Fault {
    Fault::new(FaultKind::Retiring, "this pool has ended")
}

fn named(profile: &str) -> Result<Arc<str>, Fault> {
    child::plain(profile).map_err(|message| Fault::new(FaultKind::Invalid, message))?;
    Ok(Arc::from(profile))
}
