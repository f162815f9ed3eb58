//! What a pool tells. Data only, as everything in `protocol.rs`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::LedgerEntry;
use crate::verdict::Verdict;

/// How urgent an opening is. An earlier one goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Class {
    /// Somebody waits for it.
    Foreground,
    /// A cron job of a profile that is not up is due.
    Due,
    /// Nobody waits for it.
    Background,
}

impl Class {
    /// The name in JSON and on screen.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Foreground => "foreground",
            Self::Due => "due",
            Self::Background => "background",
        }
    }
}

/// How far the child in a slot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SlotState {
    /// It comes up.
    Starting,
    /// It serves.
    Ready,
    /// It is asked for a permit, or has given one.
    Retiring,
    /// It was committed and has not exited yet.
    Stopping,
}

impl SlotState {
    /// The name in JSON and on screen.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Retiring => "retiring",
            Self::Stopping => "stopping",
        }
    }
}

/// One child's lifetime in a pool, from before its start to its observed exit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolSlot {
    /// Its profile; `default` is the home without one.
    pub profile: String,
    /// What it was opened for.
    pub class: Class,
    /// How far it is.
    pub state: SlotState,
    /// Its process, once there is one.
    pub pid: Option<u32>,
    /// What it last said of itself.
    pub verdict: Verdict,
    /// Its oldest holders, while it is not idle.
    pub holders: Vec<LedgerEntry>,
    /// How many further holders there are.
    pub more: u64,
    /// How long the slot has been taken, in milliseconds.
    pub age_ms: u64,
    /// How long nobody has used it and nothing has run in it, in milliseconds.
    pub unused_ms: u64,
    /// The memory of its process tree in bytes, where that was measured.
    pub memory: Option<u64>,
}

/// Somebody who waits for a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolWaiter {
    /// Its number, for the pool's life; the pool's own restart of a crashed child has none.
    pub ticket: Option<u64>,
    /// What it wants opened.
    pub profile: String,
    /// How urgently.
    pub class: Class,
    /// How long it has waited, in milliseconds.
    pub waited_ms: u64,
}

/// A profile that is not up and has a job to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolDue {
    /// The profile.
    pub profile: String,
    /// When its next job is due (ISO 8601).
    pub at: String,
}

/// Everything about a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolReport {
    /// So many children at most.
    pub max: u32,
    /// So much memory at most, in bytes.
    pub memory_budget: Option<u64>,
    /// It stops: nothing more is opened.
    pub draining: bool,
    /// Every child.
    pub slots: Vec<PoolSlot>,
    /// Who waits, in the order in which they are served.
    pub queue: Vec<PoolWaiter>,
    /// What the pool opens by itself, soonest first.
    pub due: Vec<PoolDue>,
}

/// A child that is ready: its endpoint record without the token, which is in the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// Its process.
    pub pid: u32,
    /// Its start marker, against a recycled pid.
    pub start_marker: String,
    /// Its generation.
    pub generation: String,
    /// Its profile, if it has one.
    pub profile: Option<String>,
    /// Its home.
    pub home: String,
    /// Its control socket; the record lies beside it.
    pub socket: PathBuf,
    /// Its loopback port.
    pub port: Option<u16>,
    /// The crate's version.
    pub version: String,
}
