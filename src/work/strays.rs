//! Processes that outlive the work that started them, in sessions of their own: a server that a job put in the background.
//!
//! On Linux the child is a subreaper: whatever loses its parent becomes our own child, so that nothing gets away. What is
//! found when a run ends is entered as `process:<pid>` before the run's guard is dropped, and watched until it exits. Where
//! there is no subreaper the process group of the run is all that is seen.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::group::{self, Process};
use super::record::{Record, Run, Runs, STRAY};
use crate::ledger::{Guard, Ledgers};
use crate::protocol::LedgerKind;

/// So many looks may be needed until two in a row agree.
const LOOKS: usize = 20;

/// What could not be put on record is tried again after this.
const RECORD_AGAIN: Duration = Duration::from_secs(1);

/// What could not be told is looked at again after this.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What this process has inherited.
#[derive(Clone)]
pub struct Strays {
    shared: Arc<Shared>,
}

struct Shared {
    ledgers: Ledgers,
    /// Where strays are on record, so that a later child knows of them if this one dies.
    runs: Runs,
    /// Told when a process is released.
    released: Notify,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Programs that a run supervises, which are not strays; nor is anybody in their groups.
    leaders: BTreeSet<u32>,
    /// Strays and survivors that are watched, each with its start time against a recycled pid.
    held: BTreeMap<u32, u64>,
    /// Those that were handed over on purpose and may still be our children, each with its start time.
    released: BTreeMap<u32, u64>,
}

impl Strays {
    /// Makes this process the one that orphans of its descendants come to, and reaps them.
    pub fn new(ledgers: Ledgers, home: &Path) -> Self {
        let runs = Runs::of(home);
        let strays =
            Self { shared: Arc::new(Shared { ledgers, runs, released: Notify::new(), state: Mutex::default() }) };
        #[cfg(target_os = "linux")]
        match (nix::sys::prctl::set_child_subreaper(true), signal(SignalKind::child())) {
            (Ok(()), Ok(mut exits)) => {
                let strays = strays.clone();
                tokio::spawn(async move {
                    while exits.recv().await.is_some() {
                        strays.reap();
                    }
                });
            }
            _ => tracing::warn!("orphans of jobs cannot be seen here: only process groups count"),
        }
        strays
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that a run supervises this process. Call it before anything else can happen: a child that nobody claims is
    /// reaped.
    pub fn lead(&self, pid: u32) -> Leader {
        self.state().leaders.insert(pid);
        Leader { strays: self.clone(), pid }
    }

    /// Our children that nobody supervises, once two looks in a row have seen the same: one that starts another and ends
    /// while we look would hide it. `None` if they do not come to rest, or cannot be seen at all.
    fn orphans(&self) -> Option<Vec<Process>> {
        let mut before = None;
        for _ in 0..LOOKS {
            let (now, moved) = self.look().ok()?;
            let same = before.as_ref() == Some(&now);
            if same && !moved {
                return Some(now);
            }
            before = Some(now);
        }
        None
    }

    /// Our children that nobody supervises, and whether anybody went meanwhile.
    fn look(&self) -> io::Result<(Vec<Process>, bool)> {
        let own = std::process::id();
        let leaders = self.state().leaders.clone();
        let snapshot = group::processes()?;
        let led = |process: &Process| {
            let group = u32::try_from(process.group).unwrap_or(0);
            let released = self.state().released.get(&process.pid) == Some(&process.started);
            leaders.contains(&process.pid) || leaders.contains(&group) || released
        };
        let orphans = snapshot.all.into_iter().filter(|process| process.parent == own && !led(process));
        Ok((orphans.collect(), snapshot.moved))
    }

    /// Takes the exit status of orphans that have ended, so that none stays a zombie. Those in the group of a run are
    /// orphans too; only the leaders themselves are waited for elsewhere.
    fn reap(&self) {
        let own = std::process::id();
        let leaders = self.state().leaders.clone();
        let ended = |process: &Process| process.parent == own && process.zombie && !leaders.contains(&process.pid);
        for process in group::processes().unwrap_or_default().all.into_iter().filter(ended) {
            self.state().released.remove(&process.pid);
            if let Ok(pid) = i32::try_from(process.pid) {
                let _ = waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG));
            }
        }
    }

    /// Enters every orphan that is not held yet, under the work that is about to end. `whose` is the job. If they cannot be
    /// told the ledger is in doubt until they can.
    pub fn enter_orphans(&self, under: &Guard, whose: &str) {
        if self.try_enter(under, whose) {
            return;
        }
        let Some(admission) = under.admit() else { return };
        let why = format!("what {whose} left running cannot be told yet");
        tracing::warn!(whose, "what was left running cannot be told: the verdict is unknown until it can");
        let doubt = self.shared.ledgers.doubt(&admission, LedgerKind::Process, whose, &why);
        let (strays, whose) = (self.clone(), whose.to_owned());
        tokio::spawn(async move {
            while !strays.try_enter(&doubt, &whose) {
                sleep(LOOK_AGAIN).await;
            }
        });
    }

    fn try_enter(&self, under: &Guard, whose: &str) -> bool {
        let Some(orphans) = self.orphans() else { return false };
        for process in orphans.into_iter().filter(|process| !process.zombie) {
            if self.state().held.contains_key(&process.pid) {
                continue;
            }
            let Some(admission) = under.admit() else { return true };
            let why = format!("{} left running by {whose}", command(process.pid));
            let guard = self.shared.ledgers.enter(&admission, LedgerKind::Process, &process.pid.to_string(), &why);
            tracing::warn!(pid = process.pid, whose, "a process outlives what started it");
            self.watch(process, guard, whose.to_owned());
        }
        true
    }

    /// Ends the orphans that nobody holds, as a run that ran out of time has its whole tree ended: TERM, a while, KILL.
    pub async fn end_orphans(&self, patience: Duration) {
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            let living = |process: &Process| !process.zombie && !self.state().held.contains_key(&process.pid);
            let orphans: Vec<Process> = self.orphans().unwrap_or_default().into_iter().filter(living).collect();
            orphans.iter().for_each(|process| group::signal_one(process.pid, process.started, signal));
            let gone = async {
                for process in &orphans {
                    group::exited(process.pid).await;
                }
            };
            if timeout(patience, gone).await.is_ok() {
                return;
            }
        }
    }

    /// Holds a process until it exits; what it leaves behind is entered before its own guard goes.
    fn watch(&self, process: Process, guard: Guard, whose: String) {
        self.hold(process.pid);
        let mut record = self.put_on_record(process, &whose);
        if let Err(error) = &record {
            tracing::error!(pid = process.pid, %error, "a process left running cannot be put on record yet");
        }
        let strays = self.clone();
        tokio::spawn(async move {
            let recorded = async {
                while record.is_err() {
                    sleep(RECORD_AGAIN).await;
                    record = strays.put_on_record(process, &whose);
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = strays.over(process.pid) => {}
                () = recorded => {}
            }
            strays.let_go(process.pid);
            if !strays.is_released(process.pid) {
                strays.enter_orphans(&guard, &whose);
                strays.reap();
            }
            if let Ok(Some(record)) = record {
                record.remove();
            }
            drop(guard);
        });
    }

    /// `None` if there is nothing to be put there, or somebody else has done so.
    fn put_on_record(&self, process: Process, whose: &str) -> io::Result<Option<Record>> {
        let Some(start_marker) = crate::process::start_marker(process.pid) else { return Ok(None) };
        let run = Run {
            kind: STRAY.to_owned(),
            id: whose.to_owned(),
            pid: process.pid,
            start_marker,
            scheduled_for: None,
            started_at: String::new(),
            result: None,
        };
        let Some(mut record) = self.shared.runs.reserve(STRAY, &process.pid.to_string())? else { return Ok(None) };
        match record.write(&run) {
            Ok(()) => Ok(Some(record)),
            Err(error) => {
                record.remove();
                Err(error)
            }
        }
    }

    /// Counts a process among those that are ended with us.
    pub fn hold(&self, pid: u32) {
        if let Some(process) = group::look_up(pid) {
            let mut state = self.state();
            state.held.insert(pid, process.started);
            // Of an earlier process with this pid.
            state.released.remove(&pid);
        }
    }

    /// It is gone.
    pub fn let_go(&self, pid: u32) {
        self.state().held.remove(&pid);
    }

    /// Lets a held process go on purpose: it lives on, no longer counts, and is not ended with us. What it runs, if it was
    /// held.
    pub fn release(&self, pid: u32) -> Option<String> {
        let mut state = self.state();
        let started = *state.held.get(&pid)?;
        state.released.insert(pid, started);
        self.shared.released.notify_waiters();
        Some(command(pid))
    }

    /// Resolves when the process has ended or was released.
    pub async fn over(&self, pid: u32) {
        let released = async {
            loop {
                let told = self.shared.released.notified();
                if self.is_released(pid) {
                    return;
                }
                told.await;
            }
        };
        tokio::select! {
            () = group::exited(pid) => {}
            () = released => {}
        }
    }

    /// Whether somebody said that this process does not count.
    pub fn is_released(&self, pid: u32) -> bool {
        let released = self.state().released.get(&pid).copied();
        released.is_some_and(|started| group::look_up(pid).is_none_or(|process| process.started == started))
    }

    /// Signals everything that is held. Returns how many there were.
    pub fn signal(&self, signal: Signal) -> usize {
        let held: Vec<(u32, u64)> = self.state().held.iter().map(|(pid, started)| (*pid, *started)).collect();
        for (pid, started) in &held {
            // Not what it runs: a command line may hold what no log should.
            tracing::warn!(pid, %signal, "ending a process that was left running");
            group::signal_one(*pid, *started, signal);
        }
        held.len()
    }
}

/// A supervised process; dropped when its run has ended.
pub struct Leader {
    strays: Strays,
    pid: u32,
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.strays.state().leaders.remove(&self.pid);
    }
}

/// What a process runs, shortened, for people.
fn command(pid: u32) -> String {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    let line: String = line.trim().chars().take(80).collect();
    if line.is_empty() { format!("process {pid}") } else { line }
}
