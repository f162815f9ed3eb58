//! `hermesctl pool`: who has the slots and why, who waits, and the limits.

use std::io::{self, IsTerminal};

use clap::{Args, Subcommand};

use super::failure::Failure;
use super::render::{name_peer, print, state_of, table, wire};
use super::size;
use super::target::{Peer, Target};
use crate::client::{Client, unexpected};
use crate::error::Exit;
use crate::protocol::{Event, PoolReport, PoolSlot, Reply, Request, SlotState, Verdict};
use crate::span;

/// Show the pool: every slot, who holds it and why, and who waits.
#[derive(Debug, Args)]
pub struct Pool {
    /// Show it again at every change.
    #[arg(long)]
    watch: bool,
    /// Print one JSON object; with --watch one a line.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    change: Option<Change>,
}

#[derive(Debug, Subcommand)]
enum Change {
    /// Change the limits. Nobody is stopped without proof for that.
    Limit {
        /// So many children at most.
        #[arg(required_unless_present = "memory_budget", value_parser = clap::value_parser!(u32).range(1..=1024))]
        max: Option<u32>,
        /// So much memory at most (512M, 2G); 0 is no limit.
        #[arg(long, value_name = "SIZE", value_parser = size::parse)]
        memory_budget: Option<u64>,
    },
}

impl Pool {
    /// Shows or changes it.
    ///
    /// # Errors
    /// There is no pool, or it does not answer.
    pub async fn run(self, target: &Target) -> Result<Exit, Failure> {
        let (peer, _) = target.pool(None)?;
        let mut client = peer.connect().await?;
        if self.watch && self.change.is_none() {
            return watch(&peer, client, self.json).await;
        }
        let request = match self.change {
            Some(Change::Limit { max, memory_budget }) => Request::PoolLimit { max, memory_budget },
            None => Request::Pool,
        };
        match client.call(&request).await? {
            Reply::Pool(report) => show(&peer, &client, report, self.json),
            other => return Err(unexpected(&other).into()),
        }
        Ok(Exit::Idle)
    }
}

async fn watch(peer: &Peer, mut client: Client, json: bool) -> Result<Exit, Failure> {
    client.subscribe(&Request::WatchPool).await?;
    loop {
        match client.event().await? {
            Event::Pool(report) => {
                if !json && io::stdout().is_terminal() {
                    print("\x1b[H\x1b[2J");
                }
                show(peer, &client, report, json);
            }
            other => return Err(unexpected(&Reply::Event(other)).into()),
        }
    }
}

fn show(peer: &Peer, client: &Client, report: PoolReport, json: bool) {
    if !json {
        return print(&text(&report));
    }
    let mut object = wire(&Reply::Pool(report));
    name_peer(&mut object, peer, Some(client.generation().to_owned()));
    print(&format!("{object}\n"));
}

fn text(report: &PoolReport) -> String {
    let budget = report.memory_budget.map_or_else(String::new, |bytes| format!(", {} at most", size::shown(bytes)));
    let stops = if report.draining { "; it stops: nothing more is opened" } else { "" };
    let surplus = report.slots.len().saturating_sub(usize::try_from(report.max).unwrap_or(usize::MAX));
    let surplus =
        if surplus > 0 { format!("; {surplus} too many, which go as they prove idle") } else { String::new() };
    let mut text = format!("{} of {} slots taken{budget}{surplus}{stops}\n", report.slots.len(), report.max);
    if !report.slots.is_empty() {
        let mut rows =
            vec![["STATE", "SLOT", "PROFILE", "PID", "AGE", "UNUSED", "MEMORY", "WHY"].map(str::to_owned).to_vec()];
        rows.extend(report.slots.iter().enumerate().map(|(place, slot)| row(place + 1, slot)));
        text.push('\n');
        text.push_str(&table(&rows));
    }
    if !report.queue.is_empty() {
        let mut rows = vec![["PLACE", "PROFILE", "CLASS", "WAITED"].map(str::to_owned).to_vec()];
        rows.extend(report.queue.iter().enumerate().map(|(place, waiter)| {
            let class = waiter.class.name().to_owned();
            vec![(place + 1).to_string(), waiter.profile.clone(), class, span::shown(waiter.waited_ms)]
        }));
        text.push('\n');
        text.push_str(&table(&rows));
    }
    for due in &report.due {
        text.push_str(&format!("due    {} is opened for what is due there at {}\n", due.profile, due.at));
    }
    text
}

fn row(place: usize, slot: &PoolSlot) -> Vec<String> {
    let state = match slot.state {
        SlotState::Ready => match slot.verdict {
            Verdict::AwaitingHumanInput => "waiting",
            _ => state_of(Exit::from(&slot.verdict)),
        },
        state => state.name(),
    };
    vec![
        state.to_owned(),
        place.to_string(),
        slot.profile.clone(),
        slot.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
        span::shown(slot.age_ms),
        span::shown(slot.unused_ms),
        slot.memory.map_or_else(|| "-".to_owned(), size::shown),
        why(slot),
    ]
}

fn why(slot: &PoolSlot) -> String {
    match (slot.state, slot.verdict.idle()) {
        (SlotState::Ready, Some(true)) | (SlotState::Retiring | SlotState::Stopping, _) => String::new(),
        (SlotState::Starting, _) if slot.holders.is_empty() => String::new(),
        (SlotState::Ready | SlotState::Starting, _) => {
            let whole = crate::pool::in_the_way_of(slot);
            whole.strip_prefix(&slot.profile).unwrap_or(&whole).trim_start_matches([':', ' ']).to_owned()
        }
    }
}
