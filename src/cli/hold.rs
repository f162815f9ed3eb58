//! `hermesctl hold`: keep a child busy while something else runs. The hold ends with this process, whatever way it ends.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use clap::Args;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};

use super::failure::Failure;
use super::target::Target;
use crate::client::unexpected;
use crate::error::Exit;
use crate::protocol::{Reply, Request};

/// Keep a child busy while a command runs, or while standard input is open. The exit code is the command's own.
#[derive(Debug, Args)]
pub struct Hold {
    /// What for, as others see it.
    #[arg(long, value_name = "TEXT")]
    why: String,
    /// Who, as others see it; the command's name by default.
    #[arg(long, value_name = "NAME")]
    who: Option<String>,
    /// Hold until standard input ends, instead of while a command runs.
    #[arg(long, conflicts_with = "command")]
    until_eof: bool,
    /// The command to run.
    #[arg(last = true, value_name = "CMD", required_unless_present = "until_eof")]
    command: Vec<OsString>,
}

/// How a hold ended.
pub enum Held {
    /// As the child or the person said.
    Exit(Exit),
    /// As the command did.
    Code(u8),
}

impl Hold {
    /// Holds, runs, and lets go.
    ///
    /// # Errors
    /// The child cannot be reached or is retiring; then nothing was run.
    pub async fn run(self, target: &Target) -> Result<Held, Failure> {
        let peer = target.one(None)?;
        let mut client = peer.connect().await?;
        let named = self
            .command
            .first()
            .map(|program| std::path::Path::new(program).file_name().unwrap_or(program).to_string_lossy().into_owned());
        let who = self.who.or(named).unwrap_or_else(|| "hermesctl".to_owned());
        match client.call(&Request::Hold { who, why: self.why }).await? {
            Reply::Held { .. } => {}
            other => return Err(unexpected(&other).into()),
        }
        let Some((program, args)) = self.command.split_first() else {
            let _ = io::copy(&mut io::stdin().lock().take(u64::MAX), &mut io::sink());
            return Ok(Held::Exit(Exit::Idle));
        };
        let status = run_to_its_end(program, args)
            .await
            .map_err(|error| Failure::usage(format!("{} cannot be run: {error}", program.to_string_lossy())))?;
        // As a shell says it.
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        drop(client);
        Ok(Held::Code(u8::try_from(code).unwrap_or(1)))
    }
}

/// The hold lasts as long as the command: whoever tells us to go, tells the command.
async fn run_to_its_end(program: &OsStr, args: &[OsString]) -> io::Result<ExitStatus> {
    let mut term = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    // A terminal sends these to the command as well.
    let _interrupt = signal(SignalKind::interrupt())?;
    let _quit = signal(SignalKind::quit())?;
    let mut child = tokio::process::Command::new(program).args(args).spawn()?;
    loop {
        let told = tokio::select! {
            status = child.wait() => return status,
            _ = term.recv() => Signal::SIGTERM,
            _ = hangup.recv() => Signal::SIGHUP,
        };
        if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
            let _ = kill(Pid::from_raw(pid), told);
        }
    }
}
