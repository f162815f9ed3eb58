//! Cron: jobs.json on disk, what is due, and running it.

pub mod alarm;
pub mod claim;
pub mod document;
pub mod edit;
pub mod job;
pub mod output;
pub mod plan;
pub mod record;
pub mod run;
pub mod schedule;
pub mod script;
pub mod store;
pub mod ticker;
pub mod zone;
