//! The vocabulary of both doors: data only, no I/O, append-only.
//!
//! A conversation over the control socket, in steps:
//! 1. The client sends a frame with [`Request::Hello`], and may send its first request behind it at once.
//! 2. The child answers [`Reply::Welcome`], or one [`Fault`] and closes.
//! 3. Every further frame is one [`Request`]; its answer is one [`Answer`] frame, in order.
//! 4. [`Request::Watch`] and [`Request::RetireWhenIdle`] turn the connection into a stream of [`Event`]s.
//!
//! The rules of growth: a variant is only ever appended, a variant's fields never change (a new field means a new variant),
//! and every field is always written (the payload format has no optional keys). contrib/vectors.json pins all of it.
//! What JSON wants otherwise is a view, made at the HTTP door.

mod pool;
mod report;

use serde::{Deserialize, Serialize};

pub use pool::{Class, Opened, PoolDue, PoolReport, PoolSlot, PoolWaiter, SlotState};
pub use report::{
    LedgerEntry, LedgerReport, LedgerSummary, Question, QuestionKind, SessionReport, TickerReport, TurnReport,
    TurnState,
};

pub use crate::secret::{AnswerText, Permit, Token};
pub use crate::verdict::Verdict;

/// The number of this protocol. It changes only when a peer of the old number could not be served.
pub const PROTOCOL: u32 = 1;

/// What a client can ask of a child.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The first frame of a connection: which protocol the client speaks, and its token.
    Hello {
        /// [`PROTOCOL`] of the client.
        protocol: u32,
        /// The session token, or the control token in its place.
        token: Token,
    },
    /// Is the process there?
    Health,
    /// The verdict: a snapshot that never authorises a stop.
    Idle,
    /// Every ledger with its entries and their ages, a page at a time.
    Ledgers {
        /// Continue behind the entry with this number.
        after: Option<u64>,
        /// At most so many entries (the child has a limit of its own).
        limit: u32,
    },
    /// Freeze admission, read the ledgers, and issue a permit if they prove idle.
    Prepare {
        /// Chosen by the client; the same id again returns the same live permit, so that a lost reply costs nothing.
        request_id: Option<String>,
        /// The permit is cancelled when this connection ends.
        tied: bool,
    },
    /// Make the permit final: the child leaves by itself.
    Commit {
        /// From [`Reply::Prepared`].
        permit: Permit,
    },
    /// Give an uncommitted permit back.
    Cancel {
        /// From [`Reply::Prepared`].
        permit: Permit,
    },
    /// Stream the verdict now and every change of it.
    Watch,
    /// Wait until the last holder goes, and issue the permit in that very step; ends with the connection.
    RetireWhenIdle {
        /// Give up after so many milliseconds.
        deadline_ms: Option<u64>,
        /// As in [`Request::Prepare`].
        request_id: Option<String>,
    },
    /// Become the owner of a child whose parent died.
    Adopt {
        /// The new owner: must be the peer's own pid.
        pid: u32,
        /// The new owner's start marker (`linux:<field 22 of /proc/PID/stat>`).
        start_marker: String,
    },
    /// Keep the child busy until [`Request::Release`], or until this connection ends in whatever way.
    Hold {
        /// Who holds it: the name in the verdict's detail.
        who: String,
        /// What for, for people.
        why: String,
    },
    /// Give a hold of this connection back.
    Release {
        /// From [`Reply::Held`].
        number: u64,
    },
    /// Ask a person something; streams [`Event::Asked`] and then [`Event::Answered`]. Withdrawn when the connection ends.
    Ask {
        /// What kind of answer is wanted.
        kind: QuestionKind,
        /// The question.
        text: String,
        /// The answers that are possible; none means any text.
        choices: Vec<String>,
        /// Withdraw it after so many milliseconds.
        timeout_ms: Option<u64>,
    },
    /// Every open question.
    Questions,
    /// Answer a question; the first answer wins.
    Answer {
        /// Its id.
        id: String,
        /// The answer; `None` declines.
        answer: Option<AnswerText>,
    },
    /// Hand a process that outlives its work over on purpose: it no longer counts.
    ReleaseProcess {
        /// As in `process:<pid>`.
        pid: u32,
    },
    /// Give a session a prompt: it is acknowledged only when it is on disk.
    Submit {
        /// The session, a plain name.
        session: String,
        /// What the agent is told.
        prompt: String,
    },
    /// One turn as it is now, or once it has ended.
    Turn {
        /// From [`Reply::Submitted`].
        turn: u64,
        /// Answer when it has ended.
        wait: bool,
    },
    /// Every session that has work, and those that had some lately.
    Sessions,
    /// End the turn that runs in a session.
    Interrupt {
        /// The session.
        session: String,
    },
    /// The turns of a session, oldest first.
    Log {
        /// The session.
        session: String,
        /// Behind this turn.
        after: u64,
        /// At most so many.
        limit: u32,
    },
    /// Start a turn of its own for a running one: it counts as a delegation.
    Delegate {
        /// The session whose turn asks; it must have one running.
        session: String,
        /// What the agent is told.
        prompt: String,
        /// It goes on when the asking turn ends.
        detached: bool,
    },
    /// Of a pool: have a profile's child up. Streams [`Event::Pool`] while that must wait, and then [`Event::Opened`]; the
    /// wait ends with the connection.
    Open {
        /// The profile; `default` is the home without one.
        profile: String,
        /// Nobody waits for it: foreground openings go first, and no child that was used lately makes room for it.
        background: bool,
        /// Give up after so many milliseconds.
        timeout_ms: Option<u64>,
    },
    /// Of a pool: retire a profile's child by proof.
    Close {
        /// The profile.
        profile: String,
    },
    /// Of a pool: its slots, and who waits for one.
    Pool,
    /// Of a pool: stream [`Event::Pool`] now and at every change.
    WatchPool,
    /// Of a pool: change its limits. Nobody is stopped without proof for that.
    PoolLimit {
        /// So many children at most; as before if it is not given.
        max: Option<u32>,
        /// So many bytes at most; 0 is no limit, as before if it is not given.
        memory_budget: Option<u64>,
    },
    /// Of a pool: a profile is in use; its idle time begins anew.
    Touch {
        /// The profile.
        profile: String,
    },
}

/// One frame from the child: which process answers, and what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Random per process: a changed one means another process answers.
    pub generation: String,
    /// The answer itself.
    pub reply: Reply,
}

/// What a child answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The request was not carried out.
    Fault(Fault),
    /// The handshake held.
    Welcome(Welcome),
    /// Answer to [`Request::Health`].
    Health(Health),
    /// Answer to [`Request::Idle`].
    Verdict(Verdict),
    /// Answer to [`Request::Ledgers`].
    Ledgers(LedgerReport),
    /// Answer to [`Request::Prepare`]: the process is idle and frozen.
    Prepared {
        /// The right to commit.
        permit: Permit,
        /// Milliseconds until the permit expires; `None` once it is committed.
        expires_in_ms: Option<u64>,
    },
    /// Answer to [`Request::Prepare`]: no permit, and why.
    Refused(Refusal),
    /// Answer to [`Request::Commit`].
    Committed {
        /// Whether the permit was good.
        ok: bool,
        /// When this home's next cron job is due (ISO 8601), so that somebody can open it again in time.
        next_due: Option<String>,
    },
    /// Answer to [`Request::Cancel`].
    Cancelled {
        /// Whether an uncommitted permit was given back.
        ok: bool,
    },
    /// One element of a stream.
    Event(Event),
    /// Answer to [`Request::Adopt`].
    Adopted,
    /// Answer to [`Request::Hold`]: it holds.
    Held {
        /// Its number among the ledger entries, for [`Request::Release`].
        number: u64,
    },
    /// Answer to [`Request::Release`].
    Released {
        /// Whether there was such a hold on this connection.
        ok: bool,
    },
    /// Answer to [`Request::Questions`], oldest first.
    Questions(Vec<Question>),
    /// Answer to [`Request::Answer`]: it was the first.
    Answered,
    /// Answer to [`Request::ReleaseProcess`].
    ProcessReleased {
        /// What it runs.
        command: String,
    },
    /// Answer to [`Request::Submit`] and [`Request::Delegate`]: it is on disk.
    Submitted {
        /// Its number.
        turn: u64,
        /// How many of its session come first.
        ahead: u32,
    },
    /// Answer to [`Request::Turn`].
    Turn(TurnReport),
    /// Answer to [`Request::Sessions`].
    Sessions(Vec<SessionReport>),
    /// Answer to [`Request::Interrupt`]: it was told to end.
    Interrupting {
        /// The turn.
        turn: u64,
    },
    /// Answer to [`Request::Log`].
    Log(Vec<TurnReport>),
    /// Answer to [`Request::Close`]: it has left.
    Closed,
    /// Answer to [`Request::Pool`] and [`Request::PoolLimit`].
    Pool(PoolReport),
    /// Answer to [`Request::Touch`].
    Touched {
        /// Whether it is up.
        ok: bool,
    },
}

/// Who answered the handshake.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// [`PROTOCOL`] of the child.
    pub protocol: u32,
    /// The crate's version, for people.
    pub version: String,
    /// The child's process id.
    pub pid: u32,
    /// The profile it serves, if it was started with one.
    pub profile: Option<String>,
}

/// Answer to [`Request::Health`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// The crate's version.
    pub version: String,
}

/// An element of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// The verdict as it is now.
    Verdict(Verdict),
    /// [`Request::RetireWhenIdle`] still waits, for these.
    Waiting(Refusal),
    /// [`Request::RetireWhenIdle`] is served: the process is idle and frozen.
    Prepared {
        /// The right to commit.
        permit: Permit,
        /// Milliseconds until the permit expires.
        expires_in_ms: u64,
    },
    /// A hold that lasts as long as this stream.
    Held {
        /// Its number among the ledger entries.
        number: u64,
    },
    /// [`Request::Ask`] is open.
    Asked {
        /// Its id, for whoever answers.
        id: String,
    },
    /// [`Request::Ask`] was answered.
    Answered {
        /// The answer; `None` if it was declined.
        answer: Option<AnswerText>,
    },
    /// The pool as it is now.
    Pool(PoolReport),
    /// [`Request::Open`] is served.
    Opened(Opened),
}

/// Why `prepare` gave no permit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The verdict that stood in the way; [`Verdict::Idle`] if another retirement did.
    pub verdict: Verdict,
    /// Another permit lives, or another prepare runs.
    pub retiring: bool,
    /// How long the oldest holder has been there, in milliseconds.
    pub since_ms: Option<u64>,
    /// The oldest holders, at most [`Refusal::MAX_HOLDERS`].
    pub holders: Vec<Holder>,
    /// How many further holders there are.
    pub more: u64,
}

impl Refusal {
    /// So many holders are named; the rest is counted.
    pub const MAX_HOLDERS: usize = 16;
}

/// One piece of work that keeps a child from being idle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Which ledger names it.
    pub ledger: LedgerKind,
    /// Its id there.
    pub id: String,
    /// How long it has been there, in milliseconds.
    pub age_ms: u64,
}

/// The ledgers, in the order in which they are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LedgerKind {
    /// Work admitted and not yet entered anywhere.
    Admission,
    /// Turns: running, queued, scheduled, unwinding.
    Session,
    /// Delegated tasks.
    Delegation,
    /// Cron jobs that run.
    Cron,
    /// Leases of outside programs.
    Hold,
    /// Processes that outlive the turn or job that started them.
    Process,
    /// Approvals and questions that wait for a person.
    HumanInput,
}

impl LedgerKind {
    /// The ledgers that hold entries, in order.
    pub const ENTRIES: [Self; 6] =
        [Self::Session, Self::Delegation, Self::Cron, Self::Hold, Self::Process, Self::HumanInput];

    /// The name in JSON and on screen.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Admission => "admission",
            Self::Session => "session",
            Self::Delegation => "delegation",
            Self::Cron => "cron",
            Self::Hold => "hold",
            Self::Process => "process",
            Self::HumanInput => "human_input",
        }
    }
}

/// A request that was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// For programs.
    pub kind: FaultKind,
    /// For people: what was wrong and what to do.
    pub message: String,
}

impl Fault {
    /// A fault of `kind` that says `message`.
    pub fn new(kind: FaultKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

/// The kinds of fault; `error.rs` has what each means at the doors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FaultKind {
    /// No token, or a wrong one.
    Unauthorized,
    /// A right token that may not do this.
    Forbidden,
    /// The peer speaks another protocol.
    ProtocolMismatch,
    /// The frame's bytes are no request that this child knows.
    UnknownRequest,
    /// A known request with values that cannot be used.
    Invalid,
    /// The child is retiring; open it again.
    Retiring,
    /// Too many connections or waiting clients.
    TooMany,
    /// No such thing.
    NotFound,
    /// The thing is not in a state for this.
    Conflict,
    /// The child could not do it (disk full, …); nothing was accepted.
    Unavailable,
    /// A deadline passed.
    TimedOut,
}

impl FaultKind {
    /// The name over HTTP.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::ProtocolMismatch => "protocol_mismatch",
            Self::UnknownRequest => "unknown_request",
            Self::Invalid => "invalid",
            Self::Retiring => "retiring",
            Self::TooMany => "too_many",
            Self::NotFound => "not_found",
            Self::Conflict => "conflict",
            Self::Unavailable => "unavailable",
            Self::TimedOut => "timed_out",
        }
    }
}
