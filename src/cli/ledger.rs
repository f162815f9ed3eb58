//! `hermesctl ledger`: what work a child holds, and since when.

use clap::Args;

use super::failure::Failure;
use super::render::{Observation, name_peer, plain, print, table, wire};
use super::target::{Peer, Target};
use crate::client::unexpected;
use crate::error::Exit;
use crate::protocol::{LedgerReport, Reply, Request, TickerReport};
use crate::span::shown;

/// Show every ledger of a child, its entries with their ages, and what its cron ticker is about.
#[derive(Debug, Args)]
pub struct Ledger {
    /// The profile whose child is asked; with none, the only child there is.
    #[arg(value_name = "PROFILE")]
    profile: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Show at most so many entries.
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: u32,
    /// Continue behind the entry with this number (`next` of the page before).
    #[arg(long, value_name = "NUMBER")]
    after: Option<u64>,
}

impl Ledger {
    /// Prints the ledgers. The exit code is 0 whatever they hold.
    ///
    /// # Errors
    /// The child cannot be named or asked.
    pub async fn run(self, target: &Target) -> Result<Exit, Failure> {
        let peer = target.one(self.profile.as_deref())?;
        if peer.socket.is_none() {
            return self.over_http(&peer).await;
        }
        let mut client = peer.connect().await?;
        let request = Request::Ledgers { after: self.after, limit: self.limit };
        let reply = client.call(&request).await?;
        let generation = client.generation().to_owned();
        match (&reply, self.json) {
            (Reply::Ledgers(_), true) => {
                let mut object = wire(&reply);
                name_peer(&mut object, &peer, Some(generation));
                print(&format!("{object}\n"));
            }
            (Reply::Ledgers(report), false) => print(&text(&peer, report, &generation)),
            (other, _) => return Err(unexpected(other).into()),
        }
        Ok(Exit::Idle)
    }

    /// Another server has its own view: it is passed on as it is.
    async fn over_http(&self, peer: &Peer) -> Result<Exit, Failure> {
        let after = self.after.map_or(String::new(), |after| format!("&after={after}"));
        let path = format!("/api/health/ledgers?limit={}{after}", self.limit);
        let response = peer.server()?.get(&path).await?;
        match self.json {
            true => print(&format!("{}\n", response.body)),
            false => print(&format!("{:#}\n", response.body)),
        }
        Ok(Exit::Idle)
    }
}

fn text(peer: &Peer, report: &LedgerReport, generation: &str) -> String {
    let seen = Observation { peer: peer.clone(), answer: Ok((report.verdict.clone(), Some(generation.to_owned()))) };
    let mut text = table(&[seen.row()]);
    let lines = report.ledgers.iter().map(|line| {
        let state = match line.entries {
            Some(0) => "empty".to_owned(),
            Some(count) => format!("{count} held"),
            None => "cannot be read: counts as busy".to_owned(),
        };
        vec![String::new(), line.ledger.name().to_owned(), state]
    });
    text.push_str(&table(&lines.collect::<Vec<_>>()));
    if !report.entries.is_empty() {
        text.push('\n');
        let mut rows = vec![["LEDGER", "ID", "AGE", "WHY"].map(str::to_owned).to_vec()];
        rows.extend(report.entries.iter().map(|entry| {
            vec![entry.ledger.name().to_owned(), plain(&entry.id), shown(entry.age_ms), plain(&entry.why)]
        }));
        text.push_str(&table(&rows));
    }
    if let Some(next) = report.next {
        text.push_str(&format!("more: hermesctl ledger --after {next}\n"));
    }
    text.push('\n');
    text.push_str(&ticker(&report.ticker));
    text
}

fn ticker(ticker: &TickerReport) -> String {
    let mut text = match (ticker.running, &ticker.next_due) {
        (false, _) => "cron   off: this backend runs no jobs (HERMES_DESKTOP=1 turns it on)\n".to_owned(),
        (true, Some(at)) => format!("cron   next job at {at}\n"),
        (true, None) => "cron   no job is scheduled\n".to_owned(),
    };
    if let Some(error) = &ticker.last_error {
        text.push_str(&format!("cron   last error: {error}\n"));
    }
    for bad in &ticker.bad_jobs {
        text.push_str(&format!("cron   unusable job {bad}\n"));
    }
    text
}
