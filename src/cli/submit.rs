//! `hermesctl submit` and `hermesctl delegate`: give the agent something to do.

use std::io::{self, Read};

use clap::Args;

use super::failure::Failure;
use super::render::print;
use super::target::Target;
use crate::client::{Client, unexpected};
use crate::door::http::view;
use crate::error::Exit;
use crate::protocol::{Reply, Request, TurnState};
use crate::work::turn::MAX_PROMPT;

/// Give a session a prompt. It is on disk when this returns; with --wait the reply is printed.
#[derive(Debug, Args)]
pub struct Submit {
    /// The session, a plain name.
    session: String,
    /// The prompt; - or nothing reads it from standard input.
    #[arg(default_value = "-")]
    prompt: String,
    /// Wait for the reply. Exit code: 0 done, 1 failed or interrupted.
    #[arg(long)]
    wait: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// From within a turn: start a turn of its own, counted as a delegation, and print its reply.
#[derive(Debug, Args)]
pub struct Delegate {
    /// The prompt; - or nothing reads it from standard input.
    #[arg(default_value = "-")]
    prompt: String,
    /// The session whose turn asks; $HERMES_SESSION_ID by default.
    #[arg(long)]
    session: Option<String>,
    /// Do not wait, and let it go on when the asking turn ends.
    #[arg(long)]
    detach: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl Submit {
    /// Submits, and waits if that is wanted.
    ///
    /// # Errors
    /// The prompt was not accepted.
    pub async fn run(self, target: &Target) -> Result<Exit, Failure> {
        let request = Request::Submit { session: self.session, prompt: read(&self.prompt)? };
        run(target, request, self.wait, self.json).await
    }
}

impl Delegate {
    /// Delegates, and waits unless it is detached.
    ///
    /// # Errors
    /// The task was not accepted.
    pub async fn run(self, target: &Target) -> Result<Exit, Failure> {
        let session = self.session.or_else(|| std::env::var("HERMES_SESSION_ID").ok());
        let session = session.ok_or_else(|| {
            Failure::usage("only a turn delegates: HERMES_SESSION_ID is not set; name its session with --session")
        })?;
        let request = Request::Delegate { session, prompt: read(&self.prompt)?, detached: self.detach };
        run(&within_a_turn(target), request, !self.detach, self.json).await
    }
}

/// A turn is told where its backend is.
fn within_a_turn(target: &Target) -> Target {
    let mut target = target.clone();
    let named = target.named.is_some() || target.pid.is_some() || target.socket.is_some() || target.url.is_some();
    if !named {
        target.socket = std::env::var_os("HERMES_CONTROL_SOCKET").map(Into::into);
    }
    target
}

async fn run(target: &Target, request: Request, wait: bool, json: bool) -> Result<Exit, Failure> {
    let mut client = target.one(None)?.connect().await?;
    let reply = client.call(&request).await?;
    let Reply::Submitted { turn, ahead } = reply else { return Err(unexpected(&reply).into()) };
    if wait {
        return see(&mut client, turn, json).await;
    }
    match json {
        true => print(&format!("{}\n", view::reply(&reply, client.generation()).1)),
        false if ahead > 0 => print(&format!("turn {turn} accepted  {ahead} of its session come first\n")),
        false => print(&format!("turn {turn} accepted\n")),
    }
    Ok(Exit::Idle)
}

async fn see(client: &mut Client, turn: u64, json: bool) -> Result<Exit, Failure> {
    let reply = client.call_patiently(&Request::Turn { turn, wait: true }).await?;
    let Reply::Turn(report) = &reply else { return Err(unexpected(&reply).into()) };
    if json {
        print(&format!("{}\n", view::reply(&reply, client.generation()).1));
    } else {
        if let Some(text) = &report.reply {
            print(&format!("{text}\n"));
        }
        if let Some(error) = &report.error {
            eprintln!("hermesctl: turn {turn} {}: {error}", report.state.name());
        }
    }
    Ok(if report.state == TurnState::Done { Exit::Idle } else { Exit::Busy })
}

fn read(prompt: &str) -> Result<String, Failure> {
    if prompt != "-" {
        return Ok(prompt.to_owned());
    }
    let mut text = String::new();
    let read = io::stdin().lock().take(MAX_PROMPT as u64 + 1).read_to_string(&mut text);
    read.map_err(|error| Failure::usage(format!("the prompt cannot be read from standard input: {error}")))?;
    Ok(text)
}
