//! hermes: a control plane that makes backend children prove they are idle.

pub mod clock;
pub mod fence;
pub mod ledger;
pub mod proof;
pub mod protocol;
pub mod secret;
pub mod verdict;

// Beside fence.rs and not inside it, since its loom test compiles that file with other locks.
#[cfg(test)]
#[path = "fence/tests.rs"]
mod fence_tests;

/// The locks that `fence.rs` is built on; its loom test compiles the same file against others.
mod sync {
    pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};
}
