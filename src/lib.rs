//! hermes: a control plane that makes backend children prove they are idle.

pub mod cli;
pub mod client;
pub mod clock;
pub mod codec;
pub mod cron;
pub mod door;
pub mod error;
pub mod fence;
pub mod folder_watch;
pub mod handler;
pub mod hub;
pub mod ledger;
pub mod lifecycle;
pub mod process;
pub mod proof;
pub mod protocol;
pub mod readiness;
pub mod runtime;
pub mod secret;
pub mod serve;
pub mod stream;
pub mod verb;
pub mod verdict;
pub mod work;

/// The crate's version, for people; the protocol has a number of its own.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

// Beside fence.rs and not inside it, since its loom test compiles that file with other locks.
#[cfg(test)]
#[path = "fence/tests.rs"]
mod fence_tests;

/// The locks that `fence.rs` is built on; its loom test compiles the same file against others.
mod sync {
    pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};
}
