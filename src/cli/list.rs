//! `hermesctl list`: which children there are.

use clap::Args;
use serde_json::json;

use super::failure::Failure;
use super::render::{print, table};
use super::target::{Records, children};
use crate::error::Exit;

/// List the children that run, by their endpoint records. The records of the dead are swept.
#[derive(Debug, Args)]
pub struct List {
    /// Print a JSON array.
    #[arg(long)]
    json: bool,
}

impl List {
    /// Prints the list.
    ///
    /// # Errors
    /// The runtime directory cannot be used.
    pub fn run(self) -> Result<Exit, Failure> {
        let Records { live: children, bad } = children()?;
        bad.iter().for_each(|error| eprintln!("hermesctl: {error}"));
        if self.json {
            let children: Vec<_> = children
                .iter()
                .map(|child| {
                    json!({
                        "pid": child.pid,
                        "profile": child.profile,
                        "generation": child.generation,
                        "home": child.home,
                        "socket": child.socket.to_string_lossy(),
                        "port": child.port,
                        "version": child.version,
                    })
                })
                .collect();
            print(&format!("{}\n", json!(children)));
            return Ok(Exit::Idle);
        }
        if children.is_empty() {
            eprintln!("hermesctl: no backend runs; start one with hermes serve");
            return Ok(Exit::Idle);
        }
        let mut rows = vec![["PROFILE", "PID", "PORT", "HOME"].map(str::to_owned).to_vec()];
        rows.extend(children.iter().map(|child| {
            vec![
                child.profile.clone().unwrap_or_else(|| "default".to_owned()),
                child.pid.to_string(),
                child.port.map_or_else(|| "-".to_owned(), |port| port.to_string()),
                child.home.clone(),
            ]
        }));
        print(&table(&rows));
        Ok(Exit::Idle)
    }
}
