//! What decides how long a child lives: its owner, and a committed permit. Set by the handler, acted on by `serve.rs`.

use tokio::sync::watch;

/// Who owns this child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// Nobody was named: it lives until it is told to go.
    Nobody,
    /// It goes when this process goes.
    Process {
        /// The owner's process id.
        pid: u32,
        /// Its start marker, against a recycled pid; `None` if the parent could not read its own.
        marker: Option<String>,
    },
    /// The owner died; a new one may adopt the child until it leaves.
    Lost,
}

/// A committed permit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The request id that its `prepare` came with, for the log.
    pub request_id: Option<String>,
}

/// The switchboard between the handler and the process's main loop.
#[derive(Debug)]
pub struct Lifecycle {
    owner: watch::Sender<Owner>,
    committed: watch::Sender<Option<Committed>>,
}

impl Lifecycle {
    /// A child that `owner` owns.
    pub fn new(owner: Owner) -> Self {
        Self { owner: watch::Sender::new(owner), committed: watch::Sender::new(None) }
    }

    /// The owner now.
    pub fn owner(&self) -> Owner {
        self.owner.borrow().clone()
    }

    /// Sees every change of owner.
    pub fn owners(&self) -> watch::Receiver<Owner> {
        self.owner.subscribe()
    }

    /// Puts the child under `owner`.
    pub fn set_owner(&self, owner: Owner) {
        self.owner.send_replace(owner);
    }

    /// Tells the main loop to leave; only the first time counts.
    pub fn commit(&self, committed: Committed) {
        self.committed.send_if_modified(|slot| {
            let first = slot.is_none();
            slot.get_or_insert(committed);
            first
        });
    }

    /// Resolves once a permit was committed.
    pub async fn committed(&self) -> Committed {
        let mut changes = self.committed.subscribe();
        loop {
            if let Some(committed) = changes.borrow_and_update().clone() {
                return committed;
            }
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}
