//! What went wrong, as a person reads it and as a script branches on it.

use crate::client::ClientError;
use crate::client::http::HttpError;
use crate::error::{self, Exit};

/// A failed command: its exit code and one line.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// One line: what is wrong and what to do.
    pub message: String,
    /// The connection ended in the middle: whoever was there may be about to go.
    pub broke_off: bool,
}

impl Failure {
    /// A failure.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), broke_off: false }
    }

    /// A command line that cannot be used.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let exit = match &error {
            ClientError::Unauthorized | ClientError::Impostor(..) => Exit::Unauthorized,
            ClientError::Missing(_) | ClientError::Refused(_) | ClientError::Denied(_) => Exit::Unreachable,
            ClientError::Fault(fault) => error::exit(fault.kind),
            // Somebody is there and gives no verdict: that is unknown, not absent.
            ClientError::ShortReply | ClientError::Garbage(_) | ClientError::TimedOut(_) | ClientError::Io(_) => {
                Exit::Indeterminate
            }
        };
        Self {
            broke_off: matches!(error, ClientError::ShortReply | ClientError::Io(_)),
            ..Self::new(exit, error.to_string())
        }
    }
}

impl From<HttpError> for Failure {
    fn from(error: HttpError) -> Self {
        let exit = match &error {
            HttpError::Address(_) => Exit::Usage,
            HttpError::Unreachable(..) => Exit::Unreachable,
            HttpError::Unauthorized => Exit::Unauthorized,
            HttpError::Indeterminate(_) => Exit::Indeterminate,
        };
        Self::new(exit, error.to_string())
    }
}
