//! `hermesctl answer`: answer a question. The first answer wins.

use std::io::{self, Read};

use clap::Args;

use super::failure::Failure;
use super::target::Target;
use crate::client::unexpected;
use crate::error::Exit;
use crate::protocol::{AnswerText, Reply, Request};

/// Answer a question of a child.
#[derive(Debug, Args)]
pub struct Answer {
    /// The question's id, as hermesctl prompts shows it.
    id: String,
    /// The answer; - reads it from standard input, so that a secret is in no command line.
    #[arg(required_unless_present = "decline")]
    text: Option<String>,
    /// Decline to answer.
    #[arg(long, conflicts_with = "text")]
    decline: bool,
}

impl Answer {
    /// Answers.
    ///
    /// # Errors
    /// There is no such question, it was answered already, or it takes other answers.
    pub async fn run(self, target: &Target) -> Result<Exit, Failure> {
        let mut client = target.one(None)?.connect().await?;
        let answer = match self.text.as_deref() {
            Some("-") => Some(AnswerText::new(from_stdin()?)),
            Some(text) => Some(AnswerText::new(text)),
            None => None,
        };
        match client.call(&Request::Answer { id: self.id, answer }).await? {
            Reply::Answered => Ok(Exit::Idle),
            other => Err(unexpected(&other).into()),
        }
    }
}

fn from_stdin() -> Result<String, Failure> {
    let limit = crate::work::question::MAX_TEXT as u64 + 1;
    let mut text = String::new();
    let read = io::stdin().lock().take(limit).read_to_string(&mut text);
    read.map_err(|error| Failure::usage(format!("the answer cannot be read from standard input: {error}")))?;
    text.truncate(text.trim_end_matches('\n').len());
    Ok(text)
}
