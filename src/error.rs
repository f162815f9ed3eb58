//! What each way of failing means at the edges: one table for exit codes, one for HTTP statuses.

use crate::protocol::{FaultKind, Verdict};

/// The exit codes of `hermesctl`. With several children the worst counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Proved idle, or done.
    Idle,
    /// Busy, refused or timed out.
    Busy,
    /// The command line cannot be used.
    Usage,
    /// Cannot be told, which counts as busy.
    Indeterminate,
    /// No such child, or it does not answer.
    Unreachable,
    /// The token was not taken.
    Unauthorized,
}

impl Exit {
    /// The number.
    pub const fn code(self) -> u8 {
        match self {
            Self::Idle => 0,
            Self::Busy => 1,
            Self::Usage => 2,
            Self::Indeterminate => 3,
            Self::Unreachable => 4,
            Self::Unauthorized => 5,
        }
    }

    /// The worse of two: 5 > 4 > 3 > 1 > 0 (a bad command line is found before anybody is asked).
    pub fn worse(self, other: Self) -> Self {
        if other.code() > self.code() { other } else { self }
    }
}

impl From<&Verdict> for Exit {
    fn from(verdict: &Verdict) -> Self {
        match verdict.idle() {
            Some(true) => Self::Idle,
            Some(false) => Self::Busy,
            None => Self::Indeterminate,
        }
    }
}

/// The HTTP status of a fault.
pub const fn http_status(kind: FaultKind) -> u16 {
    match kind {
        FaultKind::Unauthorized => 401,
        FaultKind::Forbidden => 403,
        FaultKind::NotFound => 404,
        FaultKind::Conflict => 409,
        FaultKind::Invalid | FaultKind::UnknownRequest | FaultKind::ProtocolMismatch => 400,
        FaultKind::Retiring | FaultKind::TooMany | FaultKind::Unavailable => 503,
        FaultKind::TimedOut => 504,
    }
}

/// The exit code of a fault.
pub const fn exit(kind: FaultKind) -> Exit {
    match kind {
        FaultKind::Unauthorized | FaultKind::Forbidden => Exit::Unauthorized,
        FaultKind::NotFound => Exit::Unreachable,
        FaultKind::Invalid => Exit::Usage,
        FaultKind::Conflict | FaultKind::Retiring | FaultKind::TooMany | FaultKind::TimedOut => Exit::Busy,
        FaultKind::ProtocolMismatch | FaultKind::UnknownRequest | FaultKind::Unavailable => Exit::Indeterminate,
    }
}
