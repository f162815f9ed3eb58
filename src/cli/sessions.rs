//! `hermesctl sessions`, `log` and `interrupt`: what the agent does and did.

use clap::Args;

use super::failure::Failure;
use super::render::{print, table};
use super::target::Target;
use crate::client::unexpected;
use crate::door::http::view;
use crate::error::Exit;
use crate::protocol::{Reply, Request};

/// List the sessions, those with the latest turns first.
#[derive(Debug, Args)]
pub struct Sessions {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Show the turns of a session.
#[derive(Debug, Args)]
pub struct Log {
    /// The session.
    session: String,
    /// Behind this turn.
    #[arg(long, default_value_t = 0)]
    after: u64,
    /// At most so many.
    #[arg(long, default_value_t = 50)]
    limit: u32,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// End the turn that runs in a session.
#[derive(Debug, Args)]
pub struct Interrupt {
    /// The session.
    session: String,
}

impl Sessions {
    /// Prints them.
    ///
    /// # Errors
    /// The child cannot be asked.
    pub async fn run(self, target: &Target) -> Result<Exit, Failure> {
        let mut client = target.one(None)?.connect().await?;
        let reply = client.call(&Request::Sessions).await?;
        let Reply::Sessions(sessions) = &reply else { return Err(unexpected(&reply).into()) };
        if self.json {
            print(&format!("{}\n", view::reply(&reply, client.generation()).1));
            return Ok(Exit::Idle);
        }
        let mut rows = vec![["STATE", "SESSION", "QUEUED", "LAST TURN"].map(str::to_owned).to_vec()];
        rows.extend(sessions.iter().map(|session| {
            let state = session.running.map_or_else(|| "idle".to_owned(), |turn| format!("busy {turn}"));
            vec![state, session.session.clone(), session.queued.to_string(), session.last.to_string()]
        }));
        print(&table(&rows));
        Ok(Exit::Idle)
    }
}

impl Log {
    /// Prints the turns, oldest first.
    ///
    /// # Errors
    /// The child cannot be asked.
    pub async fn run(self, target: &Target) -> Result<Exit, Failure> {
        let mut client = target.one(None)?.connect().await?;
        let request = Request::Log { session: self.session, after: self.after, limit: self.limit };
        let reply = client.call(&request).await?;
        let Reply::Log(turns) = &reply else { return Err(unexpected(&reply).into()) };
        if self.json {
            print(&format!("{}\n", view::reply(&reply, client.generation()).1));
            return Ok(Exit::Idle);
        }
        if turns.is_empty() {
            eprintln!("hermesctl: no turns there: see hermesctl sessions");
        }
        for turn in turns {
            let when = turn.ended_at.as_ref().or(turn.started_at.as_ref()).unwrap_or(&turn.queued_at);
            print(&format!("turn {}  {}  {when}\n> {}\n", turn.turn, turn.state.name(), turn.prompt.trim()));
            for text in turn.reply.iter().chain(&turn.error) {
                print(&format!("{}\n", text.trim_end()));
            }
            print("\n");
        }
        Ok(Exit::Idle)
    }
}

impl Interrupt {
    /// Tells it to end.
    ///
    /// # Errors
    /// No turn runs there.
    pub async fn run(self, target: &Target) -> Result<Exit, Failure> {
        let mut client = target.one(None)?.connect().await?;
        match client.call(&Request::Interrupt { session: self.session }).await? {
            Reply::Interrupting { turn } => {
                print(&format!("turn {turn} was told to end\n"));
                Ok(Exit::Idle)
            }
            other => Err(unexpected(&other).into()),
        }
    }
}
