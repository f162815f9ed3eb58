//! `hermesctl release`: let go of a process that outlives its work, on purpose.

use clap::Args;

use super::failure::Failure;
use super::render::print;
use super::target::Target;
use crate::client::unexpected;
use crate::error::Exit;
use crate::protocol::{Reply, Request};

/// Hand a process over that a job or turn left running (`process:<pid>`): it lives on and no longer counts.
#[derive(Debug, Args)]
pub struct Release {
    /// The process, as the verdict names it.
    #[arg(value_name = "PID")]
    process: u32,
    /// Really do it.
    #[arg(long)]
    yes: bool,
}

impl Release {
    /// Releases it.
    ///
    /// # Errors
    /// It is not held, or nobody said --yes.
    pub async fn run(self, target: &Target) -> Result<Exit, Failure> {
        if !self.yes {
            return Err(Failure::usage(
                "a released process is ended by nobody and counts for nothing: add --yes if that is meant",
            ));
        }
        let mut client = target.one_to_control(None)?.connect().await?;
        match client.call(&Request::ReleaseProcess { pid: self.process }).await? {
            Reply::ProcessReleased { command } => {
                print(&format!("released  {}  {command}\n", self.process));
                Ok(Exit::Idle)
            }
            other => Err(unexpected(&other).into()),
        }
    }
}
