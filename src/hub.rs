//! One computation of the verdict a change, however many watch: changes come in, distinct verdicts go out.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::proof::Proof;
use crate::verdict::Verdict;

/// Changes closer together than this reach the watchers as one. The first of a burst is passed on at once.
pub const COALESCE: Duration = Duration::from_millis(20);

/// Publishes the verdict to those who watch.
#[derive(Clone)]
pub struct Hub {
    verdict: watch::Sender<Verdict>,
}

impl Hub {
    /// A hub that follows `proof` from now on, on the runtime of the caller.
    pub fn follow(proof: Arc<Proof>) -> Self {
        let mut changes = proof.ledgers().changes();
        changes.mark_unchanged();
        let verdict = watch::Sender::new(proof.verdict());
        let hub = Self { verdict };
        let publisher = hub.verdict.clone();
        tokio::spawn(async move {
            while changes.changed().await.is_ok() {
                let now = proof.verdict();
                publisher.send_if_modified(|verdict| {
                    let differs = *verdict != now;
                    *verdict = now;
                    differs
                });
                tokio::time::sleep(COALESCE).await;
            }
        });
        hub
    }

    /// Sees the verdict now and every later one; a slow reader sees the latest.
    pub fn watch(&self) -> watch::Receiver<Verdict> {
        let mut receiver = self.verdict.subscribe();
        receiver.mark_changed();
        receiver
    }
}
