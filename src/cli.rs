//! The command lines: one file a verb, what they share beside them.

pub mod answer;
pub mod ask;
pub mod cron;
pub mod demo;
pub mod failure;
pub mod hermes;
pub mod hermesctl;
pub mod hold;
pub mod idle;
pub mod ledger;
pub mod list;
pub mod log;
pub mod open;
pub mod pool;
pub mod prompts;
pub mod release;
pub mod render;
pub mod retire;
pub mod sessions;
pub mod size;
pub mod submit;
pub mod target;
