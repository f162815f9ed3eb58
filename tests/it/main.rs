//! Black-box tests of the two binaries, written against the contract and not against the code.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod bad_children;
mod cli_idle;
mod conventions;
mod cron_live;
mod hostile;
mod http_contract;
mod leftovers;
mod parity;
mod pool;
mod pool_due;
mod pool_faults;
mod pool_heirs;
mod questions;
mod retire;
mod retire_faults;
mod seed_live;
mod startup;
mod support;
mod turns;
mod vectors;
