//! One child process of a pool: started with a token of its own, known by its READY line and its endpoint record, watched to
//! its very exit.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::{Child as Process, ChildStdout, Command};
use tokio::time::timeout;

use super::log::Log;
use super::roster::Member;
use crate::process;
use crate::runtime::{Endpoint, Role, RuntimeDir};
use crate::secret::{Token, random_hex};
use crate::work::group::{self, Group};
use crate::work::spawn::own_executable;

/// A child that has not said READY within this is ended.
pub const READY_DEADLINE: Duration = Duration::from_secs(30);

/// After TERM a child has so long; it ends its own work in order within 4.5 s.
const TERM_GRACE: Duration = Duration::from_secs(5);

/// A line of output is at most so long.
const MAX_LINE: u64 = 16 * 1024;

/// The profile whose home is the pool's own.
pub const DEFAULT: &str = "default";

/// What children are started from.
#[derive(Debug, Clone)]
pub struct Nursery {
    /// The home of the pool; profiles live below it.
    pub root: PathBuf,
    /// Where endpoint records are.
    pub runtime: RuntimeDir,
    /// The agent that every child is given, as on a command line.
    pub agent_command: Option<String>,
    /// What children want to be shown before they retire, if the environment that they inherit says so.
    pub control: Option<Token>,
    /// The pool itself, as its children's owner.
    pub pid: u32,
    /// Its start marker.
    pub start_marker: String,
}

/// A process that was started and may come up.
pub struct Born {
    /// Its process.
    pub process: Process,
    /// Its id.
    pub pid: u32,
    /// Its start marker.
    pub start_marker: String,
    /// The token that it was given.
    token: Token,
    stdout: ChildStdout,
    /// What it complains of.
    pub log: Log,
}

impl Nursery {
    /// Whether children are given an agent.
    pub fn has_agent(&self) -> bool {
        self.agent_command.is_some() || std::env::var_os("HERMES_AGENT_COMMAND").is_some_and(|agent| !agent.is_empty())
    }

    /// A profile's home.
    pub fn home(&self, profile: &str) -> PathBuf {
        match profile {
            DEFAULT => self.root.clone(),
            profile => self.root.join("profiles").join(profile),
        }
    }

    /// Where the child of a profile puts its endpoint record.
    fn record(&self, profile: &str) -> Result<PathBuf, String> {
        let names = self.runtime.names(&self.home(profile), Role::Backend).map_err(|error| error.to_string())?;
        Ok(names.record)
    }

    /// Starts a child.
    ///
    /// # Errors
    /// No process was made; why.
    pub fn start(&self, profile: &str) -> Result<Born, String> {
        let failed = |error: &dyn std::fmt::Display| format!("the backend cannot be started: {error}");
        let token = Token::random().map_err(|error| failed(&error))?;
        let nonce = random_hex::<16>().map_err(|error| failed(&error))?;
        let mut command = Command::new(own_executable().map_err(|error| failed(&error))?);
        command.arg0("hermes");
        if profile != DEFAULT {
            // In one word: a name may begin with a dash.
            command.arg(format!("--profile={profile}"));
        }
        command.args(["serve", "--host", "127.0.0.1", "--port", "0"]);
        if let Some(agent) = &self.agent_command {
            command.args(["--agent-command", agent]);
        }
        command
            .env("HERMES_HOME", &self.root)
            .env("HERMES_RUNTIME_DIR", self.runtime.path())
            .env("HERMES_DASHBOARD_SESSION_TOKEN", token.expose())
            .env("HERMES_DESKTOP", "1")
            .env("HERMES_SERVE_HEADLESS", "1")
            .env("HERMES_PARENT_PID", self.pid.to_string())
            .env("HERMES_PARENT_START_MARKER", &self.start_marker)
            .env("HERMES_PARENT_NONCE", nonce)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = command.spawn().map_err(|error| failed(&error))?;
        let (stdout, stderr) = (process.stdout.take(), process.stderr.take());
        let (Some(pid), Some(stdout), Some(stderr)) = (process.id(), stdout, stderr) else {
            return Err(failed(&"it ended before it could be watched"));
        };
        // A process that we have not waited for keeps its pid, dead or alive.
        let start_marker = process::start_marker(pid).ok_or_else(|| failed(&"its start cannot be read"))?;
        let log = Log::of(&self.root, profile);
        log.follow(stderr);
        Ok(Born { process, pid, start_marker, token, stdout, log })
    }

    /// Waits for READY, and finds the child's record.
    ///
    /// # Errors
    /// It said something else, or nothing in time; `None` if it ended, since its exit says why.
    pub async fn ready(
        &self,
        profile: &str,
        expected: &Expected,
        stdout: ChildStdout,
    ) -> Result<Endpoint, Option<String>> {
        let mut lines = BufReader::new(stdout);
        let said = timeout(READY_DEADLINE, until_ready(&mut lines)).await;
        said.map_err(|_| format!("it was not ready within {} s", READY_DEADLINE.as_secs())).map_err(Some)??;
        // What it still writes there is read and dropped, so that it never blocks on us.
        tokio::spawn(drain(lines));
        let endpoint = Endpoint::read(&self.record(profile).map_err(Some)?).map_err(|error| Some(error.to_string()))?;
        match expected.is(&endpoint) {
            true => Ok(self.in_control(endpoint)),
            false => Err(Some("its endpoint record names another process".to_owned())),
        }
    }

    /// Whether the process that serves a profile now is gone within `patience`.
    pub async fn is_left(&self, profile: &str, patience: Duration) -> bool {
        let Some(endpoint) = self.record(profile).ok().and_then(|record| Endpoint::read(&record).ok()) else {
            return true;
        };
        timeout(patience, gone(endpoint.pid, &endpoint.start_marker)).await.is_ok()
    }

    /// The record of a child that a pool before us started, if it is still that child.
    pub fn find(&self, member: &Member) -> Option<Endpoint> {
        let endpoint = Endpoint::read(&self.record(&member.profile).ok()?).ok()?;
        // A pool that died early did not learn the generation: pid and start marker name one process and no other.
        let known = member.generation.is_empty() || endpoint.generation == member.generation;
        let same = endpoint.pid == member.pid && endpoint.start_marker == member.start_marker && known;
        (same && endpoint.is_live()).then(|| self.in_control(endpoint))
    }

    /// With the token that may do everything in the place of the one that may not.
    fn in_control(&self, mut endpoint: Endpoint) -> Endpoint {
        endpoint.token = self.control.clone().unwrap_or(endpoint.token);
        endpoint
    }
}

/// What the record of a child must say.
pub struct Expected {
    pid: u32,
    start_marker: String,
    token: Token,
}

impl Expected {
    fn is(&self, endpoint: &Endpoint) -> bool {
        endpoint.pid == self.pid && endpoint.start_marker == self.start_marker && endpoint.token == self.token
    }
}

impl Born {
    /// What it needs to come up, apart from what its exit needs.
    pub fn split(self) -> (Process, ChildStdout, Expected, Log) {
        let expected = Expected { pid: self.pid, start_marker: self.start_marker, token: self.token };
        (self.process, self.stdout, expected, self.log)
    }
}

async fn until_ready(lines: &mut BufReader<ChildStdout>) -> Result<(), Option<String>> {
    loop {
        let mut line = Vec::new();
        let read = lines.take(MAX_LINE).read_until(b'\n', &mut line).await;
        match read {
            Ok(0) => return Err(None),
            Ok(_) => {}
            Err(error) => return Err(Some(format!("its output cannot be read: {error}"))),
        }
        let line = String::from_utf8_lossy(&line);
        let ready = ["HERMES_BACKEND_READY port=", "HERMES_DASHBOARD_READY port="].iter();
        if ready.filter_map(|start| line.trim_end().strip_prefix(start)).any(|port| port.parse::<u16>().is_ok()) {
            return Ok(());
        }
    }
}

async fn drain(mut stream: impl AsyncRead + Unpin) {
    let mut chunk = [0; 1024];
    while matches!(stream.read(&mut chunk).await, Ok(1..)) {}
}

/// How a process ended, with its last words.
pub fn how(status: std::io::Result<ExitStatus>, last_words: &str) -> String {
    let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
    match last_words.is_empty() {
        true => status,
        false => format!("{status}: {last_words}"),
    }
}

/// Tells a child to end, and ends it if it does not. Only for one that was committed, or by a person's order.
pub async fn end(pid: u32, start_marker: &str) {
    let Some(started) = group::look_up(pid).filter(|_| process::alive(pid, start_marker)) else { return };
    group::signal_one(pid, started.started, Signal::SIGTERM);
    if timeout(TERM_GRACE, group::exited(pid)).await.is_err() && process::alive(pid, start_marker) {
        tracing::warn!(pid, "a backend does not leave: it is killed");
        if let Some(group) = Group::of(pid) {
            group.signal(Signal::SIGKILL);
        }
    }
}

/// Resolves when a child that is not ours to wait for has exited.
pub async fn gone(pid: u32, start_marker: &str) {
    while process::alive(pid, start_marker) {
        group::exited(pid).await;
    }
}

/// A profile's name is one plain part of a path.
///
/// # Errors
/// It is not, and why.
pub fn plain(profile: &str) -> Result<(), String> {
    let plain = crate::cron::job::is_plain(profile);
    plain.then_some(()).ok_or_else(|| format!("{profile:?} is no profile: a profile is a plain name"))
}

/// The profiles that have a home below `root`.
pub fn profiles(root: &Path) -> Vec<String> {
    let folders = std::fs::read_dir(root.join("profiles")).into_iter().flatten().flatten();
    let mut names: Vec<String> = folders
        // Through a symbolic link too, as a child takes it.
        .filter(|entry| entry.path().is_dir())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| plain(name).is_ok() && name != DEFAULT)
        .collect();
    names.push(DEFAULT.to_owned());
    names
}
