//! `hermesctl prompts`: what waits for a person.

use clap::Args;

use super::failure::Failure;
use super::render::{plain, print, table};
use super::target::Target;
use crate::client::unexpected;
use crate::door::http::view;
use crate::error::Exit;
use crate::protocol::{Reply, Request};
use crate::span::shown;

/// List the questions that wait for a person.
#[derive(Debug, Args)]
pub struct Prompts {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl Prompts {
    /// Prints them, oldest first.
    ///
    /// # Errors
    /// The child cannot be reached.
    pub async fn run(self, target: &Target) -> Result<Exit, Failure> {
        let mut client = target.one(None)?.connect().await?;
        let reply = client.call(&Request::Questions).await?;
        let Reply::Questions(questions) = &reply else { return Err(unexpected(&reply).into()) };
        if self.json {
            print(&format!("{}\n", view::reply(&reply, client.generation()).1));
        } else if questions.is_empty() {
            eprintln!("hermesctl: nobody is asked anything");
        } else {
            let mut rows = vec![["ID", "KIND", "AGE", "QUESTION"].map(str::to_owned).to_vec()];
            rows.extend(questions.iter().map(|question| {
                let choices = match question.choices.is_empty() {
                    true => String::new(),
                    false => format!("  [{}]", question.choices.join(", ")),
                };
                let text = plain(&question.text);
                vec![question.id.clone(), question.kind.name().to_owned(), shown(question.age_ms), text + &choices]
            }));
            print(&table(&rows));
        }
        Ok(Exit::Idle)
    }
}
