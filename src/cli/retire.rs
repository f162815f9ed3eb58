//! `hermesctl retire`: stop a child that has proved itself idle.
//!
//! 1. `prepare` with an id of our own, tied to the connection: if we die, the child is open again at once.
//! 2. `commit`; a lost reply is asked for again, and a child that is gone by then has had it.
//! 3. The child leaves by itself; one that does not within the bound gets TERM, then KILL.

use std::io::{self, BufRead, IsTerminal};
use std::time::Duration;

use clap::Args;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::failure::Failure;
use super::render::{name_peer, print, table, wire};
use super::target::{Peer, Target};
use crate::client::{Client, ClientError, unexpected};
use crate::error::Exit;
use crate::process;
use crate::protocol::{Event, Permit, Refusal, Reply, Request};
use crate::secret::random_hex;
use crate::span;
use crate::work::group::{self, Group};

/// The child leaves by itself within this, and after TERM.
const LEAVE: Duration = Duration::from_secs(5);

/// After KILL.
const KILLED: Duration = Duration::from_secs(1);

/// Stop one child by proof. A busy child is not stopped: who holds it is printed, and the exit code is 1.
#[derive(Debug, Args)]
pub struct Retire {
    /// The profile whose child is retired; with none, the only child there is.
    #[arg(value_name = "PROFILE")]
    profile: Option<String>,
    /// Wait until it is idle; it works on meanwhile.
    #[arg(long, conflicts_with = "force")]
    when_idle: bool,
    /// With --when-idle: wait at most so long (500ms, 3s, 2m) for it to be idle; else: for one that is idle to leave.
    #[arg(long, value_name = "DUR", value_parser = span::parse)]
    timeout: Option<Duration>,
    /// End it with whatever it is doing. Asks for the profile's name on a terminal.
    #[arg(long)]
    force: bool,
    /// With --force: do not ask.
    #[arg(long, requires = "force")]
    yes: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// How it went.
enum Ending {
    Gone { how: &'static str, next_due: Option<String> },
    Refused(Refusal),
    StillThere,
}

impl Retire {
    /// Retires it.
    ///
    /// # Errors
    /// It cannot be named, asked, or told to go.
    pub async fn run(self, target: &Target) -> Result<Exit, Failure> {
        let peer = target.one_to_control(self.profile.as_deref())?;
        let (ending, generation) = match self.force {
            true => (self.force(&peer).await?, None),
            false => self.by_proof(&peer).await?,
        };
        let exit = if matches!(ending, Ending::Gone { .. }) { Exit::Idle } else { Exit::Busy };
        match self.json {
            true => print(&format!("{}\n", object(&peer, &ending, generation))),
            false => print(&told(&peer, &ending)),
        }
        Ok(exit)
    }

    async fn by_proof(&self, peer: &Peer) -> Result<(Ending, Option<String>), Failure> {
        let mut client = peer.connect().await?;
        let permit = match self.when_idle {
            true => self.wait_in_line(peer, &mut client).await?,
            false => match prepare(peer, &mut client).await? {
                Ok(permit) => permit,
                Err(refusal) => return Ok((Ending::Refused(refusal), Some(client.generation().to_owned()))),
            },
        };
        let generation = Some(client.generation().to_owned());
        let next_due = commit(peer, client, permit).await?;
        let leave = if self.when_idle { LEAVE } else { self.timeout.unwrap_or(LEAVE) };
        let how = see_it_go(peer, leave).await;
        Ok((how.map_or(Ending::StillThere, |how| Ending::Gone { how, next_due }), generation))
    }

    /// Stands in line and says who is still in the way, as that changes.
    async fn wait_in_line(&self, peer: &Peer, client: &mut Client) -> Result<Permit, Failure> {
        let deadline_ms = self.timeout.map(crate::handler::millis);
        client.subscribe(&Request::RetireWhenIdle { deadline_ms, request_id: None }).await?;
        loop {
            match client.event().await? {
                Event::Prepared { permit, .. } => return Ok(permit),
                Event::Waiting(refusal) => eprintln!("hermesctl: waiting for {}: {}", peer.name(), holders(&refusal)),
                // None of these comes in answer to what was asked.
                Event::Verdict(_)
                | Event::Held { .. }
                | Event::Asked { .. }
                | Event::Answered { .. }
                | Event::Pool(_)
                | Event::Opened(_) => {}
            }
        }
    }

    /// No proof: the person has said so. The child still ends its work in order and writes down what it cut off.
    async fn force(&self, peer: &Peer) -> Result<Ending, Failure> {
        let Some(pid) = peer.pid else {
            return Err(Failure::usage("--force needs a child of this machine: name it by profile or --pid"));
        };
        if !self.yes {
            confirm(&peer.name(), pid)?;
        }
        let how = end(peer, self.timeout.unwrap_or(LEAVE)).await;
        Ok(how.map_or(Ending::StillThere, |how| Ending::Gone { how, next_due: None }))
    }
}

/// Asked again, on a new connection, when the reply is lost: the same id gets the same permit.
async fn prepare(peer: &Peer, client: &mut Client) -> Result<Result<Permit, Refusal>, Failure> {
    let id = random_hex::<8>().map_err(|error| Failure::new(Exit::Indeterminate, error.to_string()))?;
    let request = Request::Prepare { request_id: Some(id), tied: true };
    let reply = match client.call(&request).await {
        Err(ClientError::ShortReply | ClientError::Io(_)) => {
            *client = peer.connect().await?;
            client.call(&request).await?
        }
        other => other?,
    };
    match reply {
        Reply::Prepared { permit, .. } => Ok(Ok(permit)),
        Reply::Refused(refusal) => Ok(Err(refusal)),
        other => Err(unexpected(&other).into()),
    }
}

/// A commit is for ever, so it can be asked for again until it is answered or the child is gone.
async fn commit(peer: &Peer, mut client: Client, permit: Permit) -> Result<Option<String>, Failure> {
    let request = Request::Commit { permit };
    let reply = match client.call(&request).await {
        Err(ClientError::ShortReply | ClientError::Io(_)) => match peer.connect().await {
            Ok(mut again) => again.call(&request).await,
            Err(_) => return Ok(None),
        },
        other => other,
    };
    match reply? {
        Reply::Committed { ok: true, next_due } => Ok(next_due),
        Reply::Committed { .. } => {
            Err(Failure::new(Exit::Busy, "the permit expired before it was committed; try again"))
        }
        other => Err(unexpected(&other).into()),
    }
}

/// Waits for the exit after a commit; what does not leave is ended.
async fn see_it_go(peer: &Peer, patience: Duration) -> Option<&'static str> {
    let pid = peer.pid?;
    if timeout(patience, group::exited(pid)).await.is_ok() || !lives(peer) {
        return Some("by itself");
    }
    end(peer, LEAVE).await
}

/// TERM to the child, KILL to its group; how it went, if it did.
async fn end(peer: &Peer, patience: Duration) -> Option<&'static str> {
    let pid = peer.pid?;
    let started = group::look_up(pid).filter(|_| lives(peer)).map(|process| process.started);
    let Some(started) = started else { return Some("by itself") };
    group::signal_one(pid, started, Signal::SIGTERM);
    if timeout(patience, group::exited(pid)).await.is_ok() {
        return Some("on SIGTERM");
    }
    if let Some(group) = Group::of(pid).filter(|_| lives(peer)) {
        group.signal(Signal::SIGKILL);
    }
    timeout(KILLED, group::exited(pid)).await.is_ok().then_some("on SIGKILL")
}

/// Whether the process is still the one that the record speaks of.
fn lives(peer: &Peer) -> bool {
    let marker = peer.endpoint.as_ref().map(|endpoint| endpoint.start_marker.clone());
    match (peer.pid, marker) {
        (Some(pid), Some(marker)) => process::alive(pid, &marker),
        _ => false,
    }
}

fn confirm(name: &str, pid: u32) -> Result<(), Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::usage("--force without a terminal needs --yes: it ends work that is under way"));
    }
    eprint!("This ends {name} (pid {pid}) with whatever it is doing. Type its name to go on: ");
    let mut typed = String::new();
    let _ = io::stdin().lock().read_line(&mut typed);
    match typed.trim() == name {
        true => Ok(()),
        false => Err(Failure::new(Exit::Busy, "the name was not typed: nothing was stopped")),
    }
}

fn holders(refusal: &Refusal) -> String {
    if refusal.retiring {
        return "another retirement, whose permit ends within 30 s unless it is committed".to_owned();
    }
    let each = refusal.holders.iter();
    let mut each: Vec<String> = each
        .map(|holder| format!("{} {} for {}", holder.ledger.name(), holder.id, span::shown(holder.age_ms)))
        .collect();
    if refusal.more > 0 {
        each.push(format!("{} more", refusal.more));
    }
    match each.is_empty() {
        false => each.join(", "),
        true => refusal.verdict.detail().or(refusal.verdict.reason()).unwrap_or("unknown").to_owned(),
    }
}

fn told(peer: &Peer, ending: &Ending) -> String {
    let pid = peer.pid.map_or(String::new(), |pid| format!("pid {pid}"));
    let (state, rest) = match ending {
        Ending::Gone { how, next_due: None } => ("retired", format!("left {how}")),
        Ending::Gone { how, next_due: Some(next) } => ("retired", format!("left {how}; its next job is due {next}")),
        Ending::Refused(refusal) => ("busy", format!("held by {}; nothing was stopped", holders(refusal))),
        Ending::StillThere => ("there", "it does not leave, not even on SIGKILL".to_owned()),
    };
    table(&[vec![state.to_owned(), peer.name(), pid, rest]])
}

fn object(peer: &Peer, ending: &Ending, generation: Option<String>) -> Value {
    let mut object = match ending {
        Ending::Gone { how, next_due } => json!({"ok": true, "retired": true, "left": how, "next_due": next_due}),
        Ending::Refused(refusal) => wire(&Reply::Refused(refusal.clone())),
        Ending::StillThere => json!({"ok": false, "retired": false, "reason": "still_there"}),
    };
    name_peer(&mut object, peer, generation);
    object
}
