//! Starting a program behind the gate.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin, Command};

use super::capture::Capture;
use super::group::{self, Group};
use super::shim;
use crate::process;

/// A program to run.
#[derive(Debug, Clone)]
pub struct Program {
    /// The executable.
    pub path: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Where it runs.
    pub folder: PathBuf,
    /// Its whole environment.
    pub env: Vec<(OsString, OsString)>,
}

/// A program that waits at the gate.
pub struct Gated {
    child: Child,
    gate: ChildStdin,
    /// Its pid, and its group's.
    pub pid: u32,
    /// Its start marker.
    pub start_marker: String,
    stdout: Capture,
    stderr: Capture,
}

/// A program that runs.
pub struct Running {
    /// The process.
    pub child: Child,
    /// Its group.
    pub group: Group,
    /// What it writes.
    pub stdout: Capture,
    /// What it complains of.
    pub stderr: Capture,
}

/// Starts the shim for `program`; nothing of it runs before [`Gated::open`].
///
/// # Errors
/// No process could be made.
pub fn gated(program: &Program) -> io::Result<Gated> {
    let mut command = Command::new(own_executable()?);
    command.arg(shim::VERB).arg(&program.path).args(&program.args).current_dir(&program.folder);
    command.env_clear().envs(program.env.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let pid = child.id().ok_or_else(group::no_pid)?;
    let start_marker = process::start_marker(pid).ok_or_else(group::no_pid)?;
    let (gate, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    match (gate, stdout, stderr) {
        (Some(gate), Some(stdout), Some(stderr)) => {
            Ok(Gated { child, gate, pid, start_marker, stdout: Capture::new(stdout), stderr: Capture::new(stderr) })
        }
        _ => Err(group::no_pid()),
    }
}

pub(crate) fn own_executable() -> io::Result<PathBuf> {
    // An update may have replaced the file: the link still leads to what runs.
    let link = PathBuf::from("/proc/self/exe");
    if link.exists() { Ok(link) } else { std::env::current_exe() }
}

impl Gated {
    /// Lets the program begin, with the file `input` as its standard input, or with nothing to read.
    ///
    /// # Errors
    /// The shim is gone.
    pub async fn open(mut self, input: Option<&Path>) -> io::Result<Running> {
        let mut word = input.map_or_else(Vec::new, |path| path.as_os_str().as_encoded_bytes().to_vec());
        word.push(shim::END_OF_WORD);
        self.gate.write_all(&word).await?;
        let group = Group::of(self.pid).ok_or_else(group::no_pid)?;
        Ok(Running { child: self.child, group, stdout: self.stdout, stderr: self.stderr })
    }

    /// Never lets it begin, and sees it go.
    pub async fn abandon(self) {
        let Self { mut child, gate, .. } = self;
        drop(gate);
        let _ = child.wait().await;
    }
}
