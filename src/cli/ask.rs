//! `hermesctl ask`: ask a person, and wait for the answer.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::failure::Failure;
use super::render::print;
use super::target::Target;
use crate::client::ClientError;
use crate::error::Exit;
use crate::handler::millis;
use crate::protocol::{Event, FaultKind, QuestionKind, Request};
use crate::span;

/// As `timeout(1)` says that time ran out.
const TIMED_OUT: u8 = 124;

/// What kind of answer is wanted.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Kind {
    /// May this be done?
    Approval,
    /// What is meant?
    Clarify,
    /// A password for one command.
    Sudo,
    /// Something that must not be written down.
    Secret,
}

/// Ask a person and print the answer. Exit code: 0 answered, 1 declined, 124 not answered in time.
#[derive(Debug, Args)]
pub struct Ask {
    /// What kind of answer is wanted.
    #[arg(long, value_enum, default_value = "clarify")]
    kind: Kind,
    /// The answers that are possible, with commas between them.
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    choices: Vec<String>,
    /// Withdraw the question after so long (500ms, 3s, 2m).
    #[arg(long, value_name = "DUR", value_parser = span::parse)]
    timeout: Option<Duration>,
    /// The question.
    text: String,
}

impl Ask {
    /// Asks and waits.
    ///
    /// # Errors
    /// The child cannot be reached, or does not take the question.
    pub async fn run(self, target: &Target) -> Result<u8, Failure> {
        let mut client = target.one(None)?.connect().await?;
        let kind = match self.kind {
            Kind::Approval => QuestionKind::Approval,
            Kind::Clarify => QuestionKind::Clarify,
            Kind::Sudo => QuestionKind::Sudo,
            Kind::Secret => QuestionKind::Secret,
        };
        let timeout_ms = self.timeout.map(millis);
        client.subscribe(&Request::Ask { kind, text: self.text, choices: self.choices, timeout_ms }).await?;
        loop {
            match client.event().await {
                Ok(Event::Asked { id }) => {
                    eprintln!("hermesctl: asked as {id}; answer it with hermesctl answer {id} TEXT")
                }
                Ok(Event::Answered { answer: Some(answer) }) => {
                    print(&format!("{}\n", answer.expose()));
                    return Ok(Exit::Idle.code());
                }
                Ok(Event::Answered { answer: None }) => {
                    eprintln!("hermesctl: declined");
                    return Ok(Exit::Busy.code());
                }
                Ok(_) => {}
                Err(ClientError::Fault(fault)) if fault.kind == FaultKind::TimedOut => {
                    eprintln!("hermesctl: {fault}");
                    return Ok(TIMED_OUT);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}
