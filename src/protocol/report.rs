//! What answers carry: ledgers, questions, turns. Data only, as everything in `protocol.rs`.

use serde::{Deserialize, Serialize};

use super::LedgerKind;
use crate::verdict::Verdict;

/// How far a turn is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TurnState {
    /// Accepted and on disk.
    Queued,
    /// The agent runs.
    Running,
    /// The agent has answered.
    Done,
    /// The agent failed.
    Failed,
    /// It was ended before it was done, and is not run again.
    Interrupted,
}

impl TurnState {
    /// Every state.
    pub const ALL: [Self; 5] = [Self::Queued, Self::Running, Self::Done, Self::Failed, Self::Interrupted];

    /// The name in JSON, on screen and on disk.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Interrupted => "interrupted",
        }
    }

    /// Whether nothing will change any more.
    pub const fn ended(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Interrupted)
    }
}

/// One turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnReport {
    /// Its number, for the home's whole life.
    pub turn: u64,
    /// Its session.
    pub session: String,
    /// How far it is.
    pub state: TurnState,
    /// What the agent was told.
    pub prompt: String,
    /// What it answered.
    pub reply: Option<String>,
    /// What went wrong.
    pub error: Option<String>,
    /// When it was accepted (ISO 8601).
    pub queued_at: String,
    /// When it began.
    pub started_at: Option<String>,
    /// When it ended.
    pub ended_at: Option<String>,
}

/// One session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionReport {
    /// Its name.
    pub session: String,
    /// The turn that runs, or unwinds.
    pub running: Option<u64>,
    /// How many prompts wait.
    pub queued: u32,
    /// The number of its last turn.
    pub last: u64,
}

/// What a person is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum QuestionKind {
    /// May this be done?
    Approval,
    /// What is meant?
    Clarify,
    /// A password for one command.
    Sudo,
    /// Something that must not be written down.
    Secret,
}

impl QuestionKind {
    /// The name in JSON, on screen and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Approval => "approval",
            Self::Clarify => "clarify",
            Self::Sudo => "sudo",
            Self::Secret => "secret",
        }
    }
}

/// An open question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// `srq-` and 12 hex digits.
    pub id: String,
    /// What kind of answer is wanted.
    pub kind: QuestionKind,
    /// The question.
    pub text: String,
    /// The answers that are possible; none means any text.
    pub choices: Vec<String>,
    /// How long it has been open, in milliseconds.
    pub age_ms: u64,
}

/// Answer to [`super::Request::Ledgers`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerReport {
    /// The verdict of the same moment.
    pub verdict: Verdict,
    /// A line a ledger, in the order in which they are asked.
    pub ledgers: Vec<LedgerSummary>,
    /// The entries of this page, oldest first.
    pub entries: Vec<LedgerEntry>,
    /// Pass it as `after` for the next page; `None` on the last.
    pub next: Option<u64>,
    /// What the cron ticker is about.
    pub ticker: TickerReport,
}

/// One ledger in a [`LedgerReport`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerSummary {
    /// Which one.
    pub ledger: LedgerKind,
    /// How many entries it holds; `None` if it cannot be read.
    pub entries: Option<u64>,
}

/// One entry in a [`LedgerReport`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerEntry {
    /// Grows with every entry of this process.
    pub number: u64,
    /// Which ledger it is in.
    pub ledger: LedgerKind,
    /// Its id there: a session, a job, a pid.
    pub id: String,
    /// What it is doing, for people.
    pub why: String,
    /// How long it has been there, in milliseconds.
    pub age_ms: u64,
}

/// The cron ticker, as seen from outside.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TickerReport {
    /// Whether this child runs jobs at all (`HERMES_DESKTOP=1`).
    pub running: bool,
    /// When it looks next (ISO 8601); `None` if no job is scheduled.
    pub next_due: Option<String>,
    /// What went wrong last, until a scan goes well.
    pub last_error: Option<String>,
    /// Records of jobs.json that cannot be used, and why: `id: reason`.
    pub bad_jobs: Vec<String>,
}
