//! A process group that belongs to one piece of work: who is in it, telling it something, seeing it go.

use std::io;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, getpgid};
use tokio::time::{sleep, timeout};

/// Where there is no pidfd, a group is looked at this often while somebody waits for it to go.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A member that is waited for may have left the group: that is looked at so often.
const LEFT_IT: Duration = Duration::from_millis(500);

/// The group that `leader` leads or led.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    leader: i32,
}

impl Group {
    /// The group of a leader, by pid.
    pub fn of(leader: u32) -> Option<Self> {
        i32::try_from(leader).ok().filter(|leader| *leader > 1).map(|leader| Self { leader })
    }

    /// Signals every member.
    pub fn signal(self, signal: Signal) {
        let leader = Pid::from_raw(self.leader);
        match getpgid(Some(leader)) {
            Ok(group) if group == leader => {
                let _ = killpg(leader, signal);
            }
            // Not yet its own leader: the shim has not come so far.
            Ok(_) => {
                let _ = kill(leader, signal);
            }
            // The leader is gone. A number alone may be somebody else's by now, so each member is told by itself.
            Err(_) => self.members().unwrap_or_default().into_iter().for_each(|member| {
                signal_held(member, signal, |process| process.group == self.leader);
            }),
        }
    }

    /// Whether nobody is left but zombies.
    pub fn is_empty(self) -> bool {
        match killpg(Pid::from_raw(self.leader), None) {
            Err(Errno::ESRCH) => true,
            // What cannot be read may hold somebody, and so may what moved while it was read.
            _ => {
                processes().is_ok_and(|seen| {
                    !seen.moved && !seen.all.iter().any(|process| process.group == self.leader && !process.zombie)
                }) && cfg!(target_os = "linux")
            }
        }
    }

    /// Resolves when nobody is left but zombies.
    pub async fn gone(self) {
        while !self.is_empty() {
            match self.members().unwrap_or_default().first() {
                // One that does not exit may still leave the group, and nothing tells of that.
                Some(member) => {
                    let _ = timeout(LEFT_IT, exited(*member)).await;
                }
                None => sleep(LOOK_AGAIN).await,
            }
        }
    }

    /// The living members, by /proc; none can be named elsewhere.
    ///
    /// # Errors
    /// /proc cannot be read.
    pub fn members(self) -> io::Result<Vec<u32>> {
        let ours = |process: &Process| process.group == self.leader && !process.zombie;
        Ok(processes()?.all.into_iter().filter(ours).map(|process| process.pid).collect())
    }
}

/// What /proc/PID/stat says that matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Its parent's id.
    pub parent: u32,
    /// Its process group.
    pub group: i32,
    /// Its session.
    pub session: i32,
    /// It has exited, with all its threads, and nobody has asked for its status yet.
    pub zombie: bool,
    /// When it started, in clock ticks since boot.
    pub started: u64,
}

/// One look at all processes of this machine.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Who was there.
    pub all: Vec<Process>,
    /// Somebody went while we looked, and may have left somebody whom we did not see.
    pub moved: bool,
}

/// All processes of this machine (Linux; elsewhere none).
///
/// # Errors
/// /proc cannot be read, out of descriptors mostly: nothing follows from that.
pub fn processes() -> io::Result<Snapshot> {
    let mut snapshot = Snapshot::default();
    if !cfg!(target_os = "linux") {
        return Ok(snapshot);
    }
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        match std::fs::read(format!("/proc/{pid}/stat")) {
            Ok(stat) => snapshot.all.extend(parse(pid, &stat)),
            // Gone between its name and its state.
            Err(error) if is_gone(&error) => {
                snapshot.moved = true;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(snapshot)
}

fn is_gone(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw);
    matches!(code, Some(Errno::ENOENT | Errno::ESRCH))
}

/// One process (Linux; elsewhere `None`).
pub fn look_up(pid: u32) -> Option<Process> {
    parse(pid, &std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

fn parse(pid: u32, stat: &[u8]) -> Option<Process> {
    // The name stands in parentheses and may hold anything, no UTF-8 too: the last one ends it.
    let stat = String::from_utf8_lossy(stat);
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let session = fields.next()?.parse().ok()?;
    let threads: u32 = fields.nth(13)?.parse().ok()?;
    let started = fields.nth(1)?.parse().ok()?;
    // One whose first thread has exited is shown as a zombie, and lives on in the others.
    let zombie = matches!(state, "Z" | "X") && threads <= 1;
    Some(Process { pid, parent, group, session, zombie, started })
}

/// Whether a process was started with all of these `NAME=value` in its environment.
pub fn bears(pid: u32, mark: &[String]) -> bool {
    let Ok(environment) = std::fs::read(format!("/proc/{pid}/environ")) else { return false };
    mark.iter().all(|entry| environment.split(|byte| *byte == 0).any(|other| other == entry.as_bytes()))
}

/// Resolves when the process is gone; a zombie is gone.
pub async fn exited(pid: u32) {
    #[cfg(target_os = "linux")]
    if let Some(watched) = pidfd(pid).and_then(|held| crate::readiness::watch(held).ok()) {
        // Readable once it has exited, whoever reaps it.
        let _ = watched.readable().await;
        return;
    }
    while look_up(pid).is_some_and(|process| !process.zombie)
        || (!cfg!(target_os = "linux") && i32::try_from(pid).is_ok_and(|pid| kill(Pid::from_raw(pid), None).is_ok()))
    {
        sleep(LOOK_AGAIN).await;
    }
}

#[cfg(target_os = "linux")]
fn pidfd(pid: u32) -> Option<std::os::fd::OwnedFd> {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).ok()?)?;
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
}

/// Signals one process, if `still` holds once we hold on to it.
fn signal_held(pid: u32, signal: Signal, still: impl Fn(&Process) -> bool) {
    let still = || look_up(pid).is_some_and(|process| still(&process));
    #[cfg(target_os = "linux")]
    {
        let Some(held) = pidfd(pid) else { return };
        if let (true, Some(signal)) = (still(), rustix::process::Signal::from_named_raw(signal as i32)) {
            let _ = rustix::process::pidfd_send_signal(held, signal);
        }
    }
    #[cfg(not(target_os = "linux"))]
    if let (true, Ok(pid)) = (still(), i32::try_from(pid)) {
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

/// Signals the process that had this pid at that start time, and no later one.
pub fn signal_one(pid: u32, started: u64, signal: Signal) {
    signal_held(pid, signal, |process| process.started == started);
}

/// A short error for a spawn that cannot be supervised.
pub fn no_pid() -> io::Error {
    io::Error::other("the program ended before it could be supervised")
}
