//! Cron: jobs.json on disk, what is due, and running it.

pub mod alarm;
pub mod output;
pub mod script;
pub mod ticker;
