//! Somebody who waits for an outcome, and is told meanwhile how the pool stands.

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep;

use super::Ticket;
use crate::hub::COALESCE;
use crate::protocol::{Event, Fault, Opened, PoolReport};

/// What comes of waiting.
pub enum Outcome {
    /// The child is ready.
    Opened(Box<Opened>),
    /// The child has left.
    Closed,
    /// Neither.
    Denied(Fault),
}

/// Whoever waits.
pub enum Waiter {
    /// Is told every change.
    Stream(mpsc::Sender<Result<Event, Fault>>),
    /// Is told the end.
    Once(oneshot::Sender<Result<(), Fault>>),
}

impl Waiter {
    /// Waits. Who goes away before the end withdraws.
    pub async fn wait(
        self,
        ticket: Ticket,
        outcome: oneshot::Receiver<Outcome>,
        report: watch::Receiver<PoolReport>,
        withdraw: mpsc::Sender<Ticket>,
    ) {
        let left = match self {
            Self::Stream(told) => stream(told, ticket, outcome, report).await,
            Self::Once(told) => once(told, outcome).await,
        };
        if left {
            let _ = withdraw.send(ticket).await;
        }
    }
}

/// Whether it left before the end.
async fn stream(
    told: mpsc::Sender<Result<Event, Fault>>,
    ticket: Ticket,
    outcome: oneshot::Receiver<Outcome>,
    report: watch::Receiver<PoolReport>,
) -> bool {
    let end = tokio::select! {
        () = told.closed() => return true,
        outcome = outcome => match outcome {
            Ok(Outcome::Opened(opened)) => Ok(Event::Opened(*opened)),
            Ok(Outcome::Denied(fault)) => Err(fault),
            // Nobody closes what it wants opened, and a service that ends has said so to everybody.
            Ok(Outcome::Closed) | Err(_) => return false,
        },
        () = tell_the_place(&told, ticket, report) => return false,
    };
    let _ = told.send(end).await;
    false
}

async fn tell_the_place(
    told: &mpsc::Sender<Result<Event, Fault>>,
    ticket: Ticket,
    mut report: watch::Receiver<PoolReport>,
) {
    while report.changed().await.is_ok() {
        let now = report.borrow_and_update().clone();
        // A slow reader sees a later one, and holds up nobody.
        if now.queue.iter().any(|waiter| waiter.ticket == Some(ticket.0))
            && let Ok(place) = told.try_reserve()
        {
            place.send(Ok(Event::Pool(now)));
        }
        sleep(COALESCE).await;
    }
}

async fn once(mut told: oneshot::Sender<Result<(), Fault>>, outcome: oneshot::Receiver<Outcome>) -> bool {
    tokio::select! {
        () = told.closed() => true,
        outcome = outcome => {
            let _ = match outcome {
                Ok(Outcome::Denied(fault)) => told.send(Err(fault)),
                Ok(Outcome::Opened(_) | Outcome::Closed) => told.send(Ok(())),
                Err(_) => Ok(()),
            };
            false
        }
    }
}

/// Feeds every change of the pool to somebody who watches.
pub async fn watch(told: mpsc::Sender<Result<Event, Fault>>, mut report: watch::Receiver<PoolReport>) {
    report.mark_changed();
    while report.changed().await.is_ok() {
        let now = report.borrow_and_update().clone();
        if told.send(Ok(Event::Pool(now))).await.is_err() {
            return;
        }
        tokio::select! {
            () = sleep(COALESCE) => {}
            () = told.closed() => return,
        }
    }
}
