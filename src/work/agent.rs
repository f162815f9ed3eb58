//! The agent: a command that is run once a turn.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use super::spawn::Program;
use crate::cron::script::{environment, on_path};

/// How the agent is run.
#[derive(Debug, Clone, Default)]
pub struct Agent {
    /// The command, split; empty if there is none.
    pub command: Vec<OsString>,
    /// The longest that a turn may take.
    pub limit: Option<Duration>,
    /// The home that it works for.
    pub home: PathBuf,
    /// The control socket, so that it can ask and hold. The token is in the record beside it, which only we can read.
    pub socket: PathBuf,
}

impl Agent {
    /// The program of one turn; the token is in no argument and in no variable.
    ///
    /// # Errors
    /// There is no agent, or it is not on PATH.
    pub fn program(&self, name: &str, turn: u64) -> Result<Program, String> {
        let (program, args) = self.command.split_first().ok_or("there is no agent")?;
        let path = match program.to_str() {
            Some(plain) if !plain.contains('/') => on_path(plain).ok_or_else(|| format!("{plain} is not on PATH"))?,
            _ => PathBuf::from(program),
        };
        let mut env = environment(&self.home, "");
        env.retain(|(name, _)| name != "HERMES_CRON_JOB_ID");
        env.push(("HERMES_SESSION_ID".into(), name.into()));
        env.push(("HERMES_TURN_ID".into(), turn.to_string().into()));
        env.push(("HERMES_CONTROL_SOCKET".into(), self.socket.clone().into_os_string()));
        Ok(Program { path, args: args.to_vec(), folder: self.home.clone(), env })
    }
}
