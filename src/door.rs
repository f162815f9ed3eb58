//! The doors: they turn bytes into a `Request`, call the one handler, and turn its answer into bytes. No rule lives here
//! but those of the transport itself.

pub mod auth;
pub mod deadline;
pub mod http;
pub mod socket;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

/// A peer that has begun to say something must finish within this.
pub const READ_DEADLINE: Duration = Duration::from_secs(5);

/// A peer that does not take what it asked for within this is dropped.
pub const WRITE_DEADLINE: Duration = Duration::from_secs(5);

/// So many connections a door holds; a further one is told so and closed.
pub const MAX_CONNECTIONS: usize = 256;

/// How many connections a door takes here: fewer than [`MAX_CONNECTIONS`] where descriptors are short, since jobs and the
/// other door need some too.
pub fn places() -> usize {
    let limit =
        nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
    usize::try_from(limit / 3).unwrap_or(MAX_CONNECTIONS).clamp(8, MAX_CONNECTIONS)
}

/// How many requests may last as long as their connection: some connections are always kept back for short ones.
pub fn lasting() -> usize {
    places() - (places() / 8).max(1)
}

/// How long a door waits after `accept` failed (out of descriptors, mostly) before it tries again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// So many peers are told at a time that there is no connection for them; a further one is cut off.
const TURNED_AWAY: usize = 32;

/// A peer that was turned away is listened to for so long, and for so many bytes.
const LINGER: Duration = Duration::from_secs(1);
const MAX_UNHEARD: u64 = 128 * 1024;

/// The connections of a door.
struct Places {
    free: Arc<Semaphore>,
    turned_away: Arc<Semaphore>,
}

/// What a peer gets: a connection, or a word, since there is none.
struct Place {
    turned_away: bool,
    _permit: OwnedSemaphorePermit,
}

impl Places {
    fn new() -> Self {
        Self { free: Arc::new(Semaphore::new(places())), turned_away: Arc::new(Semaphore::new(TURNED_AWAY)) }
    }

    fn take(&self) -> Option<Place> {
        let place = |turned_away, permit| Place { turned_away, _permit: permit };
        let free = Arc::clone(&self.free).try_acquire_owned().map(|permit| place(false, permit));
        free.or_else(|_| Arc::clone(&self.turned_away).try_acquire_owned().map(|permit| place(true, permit))).ok()
    }
}

/// Hears and drops what a peer says that was answered already: closed on unheard words, it would lose the answer.
async fn hear_out(stream: impl AsyncRead + Unpin) {
    let mut rest = stream.take(MAX_UNHEARD);
    let _ = timeout(LINGER, tokio::io::copy(&mut rest, &mut tokio::io::sink())).await;
}

/// Gets a door over failures to accept: it neither spins nor ends, and says so once however long they go on.
struct Acceptance {
    door: &'static str,
    failing: bool,
}

impl Acceptance {
    const fn at(door: &'static str) -> Self {
        Self { door, failing: false }
    }

    async fn take<S>(&mut self, accepted: io::Result<S>) -> Option<S> {
        match accepted {
            Ok(stream) => {
                self.failing = false;
                Some(stream)
            }
            Err(error) => {
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::warn!(%error, "cannot accept on the {}; trying again", self.door);
                }
                sleep(ACCEPT_PAUSE).await;
                None
            }
        }
    }
}
