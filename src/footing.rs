//! What a process that stays stands on: its home, its descriptors, and the signals that end it.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{AccessFlags, access};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// So many descriptors are wanted, if the system allows them.
const DESCRIPTORS: u64 = 4096;

/// Two doors full of connections must leave descriptors for the work itself.
pub fn raise_descriptor_limit() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let wanted = hard.min(DESCRIPTORS);
        if soft < wanted && setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).is_err() {
            tracing::warn!(soft, "the limit of descriptors cannot be raised");
        }
    }
}

/// Makes a home that is not there, and sees that it can be used.
///
/// # Errors
/// It cannot, and what to do.
pub fn prepare_home(home: &Path) -> Result<(), String> {
    let unusable =
        |error: io::Error| format!("the home {} cannot be used: {error}; set HERMES_HOME to another", home.display());
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(home).map_err(unusable)?;
    access(home, AccessFlags::W_OK | AccessFlags::X_OK).map_err(|error| unusable(error.into()))
}

/// The signals that tell a process to leave.
pub struct Signals {
    term: Signal,
    int: Signal,
    hangup: Option<Signal>,
    owned: bool,
    _file_limit: Signal,
}

impl Signals {
    /// From here on they end nobody by themselves. To a process that is `owned` a hangup says nothing: the kernel sends one to
    /// whoever is stopped when the owner dies, and what the owner's death means is decided elsewhere.
    ///
    /// # Errors
    /// The system refuses.
    pub fn new(owned: bool) -> io::Result<Self> {
        // A file that may grow no more is a write that fails, and no reason to die.
        let file_limit = signal(SignalKind::from_raw(nix::sys::signal::Signal::SIGXFSZ as i32))?;
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            hangup: (!ignores_hangups()).then(|| signal(SignalKind::hangup())).transpose()?,
            owned,
            _file_limit: file_limit,
        })
    }

    /// The next that somebody gave on purpose: a terminal that closes may send more than one hangup.
    pub async fn next_order(&mut self) -> &'static str {
        loop {
            match self.next().await {
                "SIGHUP" => {}
                order => return order,
            }
        }
    }

    /// The next one.
    pub async fn next(&mut self) -> &'static str {
        loop {
            let hangup = async {
                match &mut self.hangup {
                    Some(hangup) => hangup.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = self.term.recv() => return "SIGTERM",
                _ = self.int.recv() => return "SIGINT",
                _ = hangup => if !self.owned { return "SIGHUP" },
            }
        }
    }
}

/// Whoever started us under `nohup` wants us to outlive the terminal. Where that cannot be told, hangups are left as they are.
fn ignores_hangups() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_none_or(|mask| mask & 1 != 0)
}
