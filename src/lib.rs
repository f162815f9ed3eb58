//! hermes: backend children that prove they are idle.
//!
//! The protocol, in steps:
//! 1. Work begins with an admission from the [`fence`], enters a [`ledger`] under it, and leaves by dropping a guard.
//! 2. Whoever asks gets a verdict from the [`proof`]: a snapshot, which authorises nothing.
//! 3. `prepare` freezes admission, reads every ledger, and issues a permit only on a literal idle.
//! 4. `commit` makes the permit final: the child closes to new work for ever and leaves by itself.
//! 5. Anything else (cancel, 30 s, a connection that a tied permit came over ends) reopens.
//!
//! The map, from the bottom up; imports run upward only:
//! - [`clock`], [`span`], [`secret`], [`verdict`], [`protocol`]: time, tokens, the tri-state verdict, every message. Data only.
//! - [`verb`]: one row a request, its policy as data. [`error`]: what each failure means at the edges.
//! - [`fence`], [`ledger`], [`proof`], [`hub`]: what may begin, what lives, what follows from it, who watches.
//! - [`lifecycle`], [`stream`], [`handler`]: the one place that answers.
//! - [`codec`], [`door`], [`doorway`], [`client`]: bytes. [`runtime`], [`process`], [`folder_watch`], [`readiness`],
//!   [`footing`]: the system.
//! - [`work`], [`cron`]: what is done for real.
//! - [`serve`], [`pool`], [`cli`]: a child's life, the pool of many, and the command lines.
//!
//! Invariants, each with the test that holds it:
//! - No permit while work lives, none started after one: `tests/fence_loom.rs`, every interleaving.
//! - Work leaves its ledger by panic and abort too: `work_leaves_by_panic_and_by_an_aborted_task_too`.
//! - What cannot be read is never idle: `an_unreadable_ledger_is_unknown_unless_a_busy_one_comes_first`.
//! - A due job is in its ledger before READY: tests/it/seed_live.rs.
//! - Both doors say the same: `every_verb_says_the_same_over_both_doors`.
//! - A message's bytes never change: `the_bytes_of_every_message_are_the_golden_ones`.
//! - A job runs at most once a due time: `two_children_on_one_home_run_a_due_job_exactly_once`.

mod backoff;
pub mod cli;
pub mod client;
pub mod clock;
pub mod codec;
pub mod cron;
pub mod door;
pub mod doorway;
pub mod error;
pub mod fence;
pub mod folder_watch;
pub mod footing;
pub mod handler;
pub mod hub;
pub mod ledger;
pub mod lifecycle;
pub mod pool;
pub mod process;
pub mod proof;
pub mod protocol;
pub mod readiness;
pub mod runtime;
pub mod secret;
pub mod serve;
pub mod span;
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
