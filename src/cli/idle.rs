//! `hermesctl idle`: may this child be called idle?

use std::time::Duration;

use clap::{Args, ValueEnum};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::failure::Failure;
use super::render::{Observation, print, table};
use super::target::{Peer, Records, Target};
use crate::client::unexpected;
use crate::error::Exit;
use crate::process;
use crate::protocol::{Event, Reply, Request};
use crate::span;
use crate::verdict::Verdict;
use crate::work::group;

/// A server without events is asked this often.
const POLL: Duration = Duration::from_millis(500);

/// A process whose connection broke off is given so long to be gone.
const DYING: Duration = Duration::from_millis(500);

/// Over which door.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Via {
    /// The control socket.
    Socket,
    /// Loopback HTTP.
    Http,
}

/// Ask one child, or all, for its verdict. Exit code: 0 idle, 1 busy, 2 usage, 3 cannot tell, 4 unreachable, 5 unauthorized.
#[derive(Debug, Args)]
pub struct Idle {
    /// The profile whose child is asked; with none, the only child there is.
    #[arg(value_name = "PROFILE")]
    profile: Option<String>,
    /// Ask every child; the worst answer is the exit code.
    #[arg(long)]
    all: bool,
    /// Print JSON: one object, or an array with --all.
    #[arg(long)]
    json: bool,
    /// Wait until it is idle.
    #[arg(long, conflicts_with = "watch")]
    wait: bool,
    /// Wait at most so long (500ms, 3s, 2m); then exit 1.
    #[arg(long, value_name = "DUR", value_parser = span::parse, requires = "wait", conflicts_with = "watch")]
    timeout: Option<Duration>,
    /// Print the verdict now and at every change.
    #[arg(long)]
    watch: bool,
    /// The door to use; the socket where one is known.
    #[arg(long, value_enum)]
    via: Option<Via>,
    /// Print nothing: the exit code says it.
    #[arg(short, long)]
    quiet: bool,
}

impl Idle {
    /// Whether even failures are told by the exit code alone.
    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Asks, prints, and says how it went.
    ///
    /// # Errors
    /// No child can be named.
    pub async fn run(self, target: &Target) -> Result<Exit, Failure> {
        let argument = self.profile.as_deref();
        let (peers, bad) = match self.all {
            true => target.all(argument)?,
            false => (vec![target.one(argument)?], Vec::new()),
        };
        let untold = Records::untold(&bad).is_some();
        let none = peers.is_empty() && !untold;
        if none && !self.quiet && !self.json {
            eprintln!("hermesctl: no backend runs; start one with hermes serve");
        }
        for error in bad.iter().filter(|_| !self.quiet) {
            eprintln!("hermesctl: {error}");
        }
        let seen = self.ask_all(peers).await;
        if !self.watch {
            self.show(&seen);
        }
        // Nobody there is nobody proved idle.
        let worst = match (none, untold) {
            (true, _) => Exit::Unreachable,
            (_, true) => Exit::Indeterminate,
            (false, false) => Exit::Idle,
        };
        Ok(seen.iter().fold(worst, |worst, one| worst.worse(one.exit())))
    }

    /// All at the same time, each with a deadline of its own; in the order in which they were found.
    async fn ask_all(&self, peers: Vec<Peer>) -> Vec<Observation> {
        let mut asked = JoinSet::new();
        for (place, peer) in peers.into_iter().enumerate() {
            let ask = Ask { via: self.door(&peer), json: self.json, quiet: self.quiet };
            let (wait, watch, limit) = (self.wait, self.watch, self.timeout);
            asked.spawn(async move {
                let answer = match (watch, wait) {
                    (true, _) => ask.follow(&peer, |_| false).await,
                    (_, true) => ask.wait(&peer, limit).await,
                    _ => ask.once(&peer).await,
                };
                let answer = match answer {
                    Ok(seen) => Ok(seen),
                    Err(failure) => Err(settle(&peer, failure).await),
                };
                (place, Observation { answer, peer })
            });
        }
        let mut seen = asked.join_all().await;
        seen.sort_by_key(|(place, _)| *place);
        seen.into_iter().map(|(_, one)| one).collect()
    }

    fn door(&self, peer: &Peer) -> Via {
        self.via.unwrap_or(if peer.socket.is_some() { Via::Socket } else { Via::Http })
    }

    fn show(&self, seen: &[Observation]) {
        if self.quiet {
            return;
        }
        if self.json {
            let values: Vec<_> = seen.iter().map(Observation::json).collect();
            let value = match (self.all, values.as_slice()) {
                (false, [only]) => only.clone(),
                _ => serde_json::Value::Array(values),
            };
            return print(&format!("{value}\n"));
        }
        let (told, failed): (Vec<_>, Vec<_>) = seen.iter().partition(|one| self.all || one.answer.is_ok());
        print(&table(&told.iter().map(|one| one.row()).collect::<Vec<_>>()));
        for one in failed {
            if let Err(failure) = &one.answer {
                eprintln!("hermesctl: {}", failure.message);
            }
        }
    }
}

/// A verdict and the generation that gave it.
pub type Answer = Result<(Verdict, Option<String>), Failure>;

/// How one child is asked.
#[derive(Debug, Clone, Copy)]
pub struct Ask {
    /// Over which door.
    pub via: Via,
    /// Events are printed as JSON.
    pub json: bool,
    /// Events are not printed.
    pub quiet: bool,
}

impl Ask {
    /// The verdict now.
    ///
    /// # Errors
    /// There is none.
    pub async fn once(self, peer: &Peer) -> Answer {
        match self.via {
            Via::Http => Ok(peer.server()?.idle().await?),
            Via::Socket => {
                let (client, reply) = peer.ask(&Request::Idle).await?;
                match reply {
                    Reply::Verdict(verdict) => Ok((verdict, Some(client.generation().to_owned()))),
                    other => Err(unexpected(&other).into()),
                }
            }
        }
    }

    /// Subscribes, and returns the first verdict that says idle; the last one seen, if the time is over before.
    ///
    /// # Errors
    /// There is no verdict, or the time is over.
    pub async fn wait(self, peer: &Peer, limit: Option<Duration>) -> Answer {
        let quiet = Self { quiet: true, ..self };
        let idle = quiet.follow(peer, |verdict| *verdict == Verdict::Idle);
        match limit {
            None => idle.await,
            Some(limit) => match timeout(limit, idle).await {
                Ok(answer) => answer,
                // Timed out is busy (exit 1), whatever else cannot be told by now.
                Err(_) => match self.once(peer).await {
                    Ok(seen) if seen.0.idle().is_some() => Ok(seen),
                    Ok(_) => Err(Failure::new(Exit::Busy, format!("it was not idle within {limit:?}"))),
                    Err(failure) => Err(failure),
                },
            },
        }
    }

    /// Sees every verdict until one is `enough`.
    async fn follow(self, peer: &Peer, enough: impl Fn(&Verdict) -> bool) -> Answer {
        match self.via {
            Via::Socket => {
                let mut client = peer.connect().await?;
                client.subscribe(&Request::Watch).await?;
                loop {
                    if let Event::Verdict(verdict) = client.event().await? {
                        let seen = (verdict, Some(client.generation().to_owned()));
                        self.tell(peer, &seen);
                        if enough(&seen.0) {
                            return Ok(seen);
                        }
                    }
                }
            }
            Via::Http => self.follow_http(peer, enough).await,
        }
    }

    async fn follow_http(self, peer: &Peer, enough: impl Fn(&Verdict) -> bool) -> Answer {
        let server = peer.server()?;
        let (_, generation) = server.idle().await?;
        let Some(mut events) = server.events().await? else { return self.poll(peer, enough).await };
        loop {
            let Some(verdict) = events.next().await? else {
                return Err(Failure::new(Exit::Unreachable, "the server has ended the stream: it is gone"));
            };
            let seen = (verdict, generation.clone());
            self.tell(peer, &seen);
            if enough(&seen.0) {
                return Ok(seen);
            }
        }
    }

    /// For a server that speaks the contract and has no events.
    async fn poll(self, peer: &Peer, enough: impl Fn(&Verdict) -> bool) -> Answer {
        let server = peer.server()?;
        let mut last = None;
        loop {
            let seen = server.idle().await?;
            if last.as_ref() != Some(&seen) {
                self.tell(peer, &seen);
            }
            if enough(&seen.0) {
                return Ok(seen);
            }
            last = Some(seen);
            sleep(POLL).await;
        }
    }

    fn tell(self, peer: &Peer, seen: &(Verdict, Option<String>)) {
        if self.quiet {
            return;
        }
        let one = Observation { peer: peer.clone(), answer: Ok(seen.clone()) };
        match self.json {
            true => print(&format!("{}\n", one.json())),
            false => print(&table(&[one.row()])),
        }
    }
}

/// A child that broke off is gone if its process is, or will be in a moment; else it cannot be told.
async fn settle(peer: &Peer, failure: Failure) -> Failure {
    let Some(endpoint) = peer.endpoint.as_ref().filter(|_| failure.exit == Exit::Indeterminate) else { return failure };
    let alive = || process::alive(endpoint.pid, &endpoint.start_marker);
    if failure.broke_off && alive() {
        // Its sockets close before it has quite exited.
        let _ = timeout(DYING, group::exited(endpoint.pid)).await;
    }
    if alive() {
        return failure;
    }
    Failure::new(Exit::Unreachable, format!("the backend with pid {} is gone", endpoint.pid))
}
