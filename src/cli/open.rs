//! `hermesctl open` and `hermesctl close`: have a profile's backend up, or gone, by way of the pool.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tokio::time::timeout;

use super::failure::Failure;
use super::render::{print, table};
use super::target::Target;
use crate::client::unexpected;
use crate::door::http::view;
use crate::error::Exit;
use crate::handler::millis;
use crate::pool::in_the_way_of;
use crate::protocol::{Event, Opened, PoolReport, Reply, Request};
use crate::span;

/// How long a child may take to leave once it has committed: it does so by itself within 2 s.
const LEAVE: Duration = Duration::from_secs(15);

/// A state of the pool that lasts so long is worth a word: a start or a handover in passing is not.
const SPOKEN_OF: Duration = Duration::from_millis(100);

/// Have a profile's backend up. A full pool makes room by proof, or says who is in the way and waits.
#[derive(Debug, Args)]
pub struct Open {
    /// The profile. The home itself goes by the name `default`.
    #[arg(value_name = "PROFILE")]
    profile: Option<String>,
    /// Nobody waits for it: whoever waits in the foreground goes first.
    #[arg(long)]
    background: bool,
    /// Give up after this (500ms, 3s, 2m): exit code 1. In the foreground there is no limit by default, else 30 s.
    #[arg(long, value_name = "DUR", value_parser = span::parse)]
    timeout: Option<Duration>,
    /// Print the endpoint record, without its token, as one JSON object.
    #[arg(long)]
    json: bool,
}

/// Retire a profile's backend, if it proves idle.
#[derive(Debug, Args)]
pub struct Close {
    /// The profile. The home itself goes by the name `default`.
    #[arg(value_name = "PROFILE")]
    profile: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl Open {
    /// Opens.
    ///
    /// # Errors
    /// There is no pool, or the profile cannot be opened in time.
    pub async fn run(self, target: &Target) -> Result<Exit, Failure> {
        let (peer, profile) = target.pool(self.profile.as_deref())?;
        let profile = profile.ok_or_else(|| Failure::usage("which profile? hermesctl open PROFILE"))?;
        let mut client = peer.connect().await?;
        let timeout_ms = self.timeout.map(millis);
        let request = Request::Open { profile: profile.clone(), background: self.background, timeout_ms };
        client.subscribe(&request).await?;
        let mut progress = Progress::new(&profile);
        let opened = loop {
            let event = match timeout(SPOKEN_OF, client.event()).await {
                Ok(event) => event,
                Err(_) => {
                    progress.show();
                    client.event().await
                }
            };
            if !matches!(event, Ok(Event::Pool(_))) {
                progress.clear();
            }
            match event? {
                Event::Pool(report) => progress.latest = Some(report),
                Event::Opened(opened) => break opened,
                other => return Err(unexpected(&Reply::Event(other)).into()),
            }
        };
        match self.json {
            true => print(&format!("{}\n", view::event(&Event::Opened(opened)))),
            false => print(&row(&profile, &opened)),
        }
        Ok(Exit::Idle)
    }
}

fn row(profile: &str, opened: &Opened) -> String {
    let url = opened.port.map_or_else(String::new, |port| format!("http://127.0.0.1:{port}"));
    let socket = opened.socket.display().to_string();
    table(&[vec!["ready".to_owned(), profile.to_owned(), format!("pid {}", opened.pid), url, socket]])
}

impl Close {
    /// Closes.
    ///
    /// # Errors
    /// There is no pool, or the profile is not open, or it does not prove idle.
    pub async fn run(self, target: &Target) -> Result<Exit, Failure> {
        let (peer, profile) = target.pool(self.profile.as_deref())?;
        let profile = profile.ok_or_else(|| Failure::usage("which profile? hermesctl close PROFILE"))?;
        let mut client = peer.connect_for(LEAVE).await?;
        match client.call(&Request::Close { profile: profile.clone() }).await? {
            Reply::Closed => {}
            other => return Err(unexpected(&other).into()),
        }
        match self.json {
            true => print(&format!("{}\n", json!({"ok": true, "closed": true, "profile": profile}))),
            false => print(&table(&[vec!["closed".to_owned(), profile, "it proved idle and has left".to_owned()]])),
        }
        Ok(Exit::Idle)
    }
}

/// What is said on stderr while somebody waits: one line on a terminal that is written over; elsewhere a line a change.
struct Progress<'a> {
    profile: &'a str,
    terminal: bool,
    latest: Option<PoolReport>,
    last: String,
}

impl<'a> Progress<'a> {
    fn new(profile: &'a str) -> Self {
        Self { profile, terminal: io::stderr().is_terminal(), latest: None, last: String::new() }
    }

    fn show(&mut self) {
        let Some(report) = &self.latest else { return };
        let place = report.queue.iter().position(|waiter| waiter.profile == self.profile).map_or(1, |ahead| ahead + 1);
        let ways: Vec<String> = report.slots.iter().map(in_the_way_of).collect();
        let line =
            format!("waiting for {}: place {place} of {}; {}", self.profile, report.queue.len(), ways.join("; "));
        if self.terminal {
            let mut err = io::stderr().lock();
            let _ = write!(err, "\r\x1b[K{line}").and_then(|()| err.flush());
            self.last = line;
            return;
        }
        // Ages go on by themselves: they are no news.
        let news: String = line.chars().filter(|c| !c.is_ascii_digit()).collect();
        if news != self.last {
            eprintln!("hermesctl: {line}");
            self.last = news;
        }
    }

    fn clear(&self) {
        if self.terminal && !self.last.is_empty() {
            let mut err = io::stderr().lock();
            let _ = write!(err, "\r\x1b[K").and_then(|()| err.flush());
        }
    }
}
