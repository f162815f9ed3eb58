//! Ending what runs, in order: let it end, TERM, KILL; each is recorded by whoever runs it.

use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::handler::Backend;
use crate::protocol::LedgerKind;
use crate::work::Stop;
use crate::work::strays::Strays;

/// Between TERM and KILL: with the grace before it all is over within 4.5 s, since a desktop kills after 5.
const TERM_GRACE: Duration = Duration::from_secs(1);

/// After KILL the results still have to be written.
const RECORD_GRACE: Duration = Duration::from_millis(400);

/// What is left of the time for strays once work had to be killed.
const SHORT_GRACE: Duration = Duration::from_millis(500);

/// What a shutdown waits for. Holds and questions are other people's: they end with the doors.
const RUNNING: [LedgerKind; 3] = [LedgerKind::Session, LedgerKind::Delegation, LedgerKind::Cron];

/// Waits for running work, and ends what does not end; what it left running goes last, by the same ladder.
pub(super) async fn drain(backend: &Backend, stop: &watch::Sender<Stop>, strays: &Strays, grace: Duration) {
    let stages = [(Stop::Drain, grace), (Stop::Term, TERM_GRACE), (Stop::Kill, RECORD_GRACE)];
    let mut late = false;
    for (stage, patience) in stages {
        stop.send_replace(stage);
        if timeout(patience, none_of(backend, &RUNNING)).await.is_ok() {
            break;
        }
        late = stage == Stop::Kill;
    }
    if late {
        tracing::error!("work is still on record as running; its record is left for the next start");
    }
    if strays.signal(Signal::SIGTERM) > 0 {
        let patience = if *stop.borrow() == Stop::Kill { SHORT_GRACE } else { TERM_GRACE };
        let _ = timeout(patience, none_of(backend, &[LedgerKind::Process])).await;
        strays.signal(Signal::SIGKILL);
    }
}

async fn none_of(backend: &Backend, kinds: &[LedgerKind]) {
    let ledgers = backend.proof.ledgers();
    let mut changes = ledgers.changes();
    // A ledger that cannot be read is waited for as long as a busy one.
    while kinds.iter().any(|kind| ledgers.count(*kind) != Ok(0)) {
        if changes.changed().await.is_err() {
            return;
        }
    }
}
