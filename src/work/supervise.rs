//! Seeing a program to its end: its whole group, a time-out, a shutdown.

use std::process::ExitStatus;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::sync::watch;
use tokio::time::sleep;

use super::Stop;
use super::group::Group;
use super::spawn::Running;

/// Between TERM and KILL of a program that ran out of time.
pub const KILL_AFTER: Duration = Duration::from_secs(5);

/// How a program ended.
#[derive(Debug)]
pub struct Ended {
    /// The leader's status, if it could be had.
    pub status: Option<ExitStatus>,
    /// Why it was told to end, if it was.
    pub cut: Option<Cut>,
    /// What it wrote.
    pub stdout: String,
    /// What it complained of.
    pub stderr: String,
}

/// Why a program was told to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// It ran out of time.
    TimedOut,
    /// The child shuts down.
    Interrupted,
}

/// Waits until the leader has exited and nobody of its group is left.
pub async fn to_the_end(running: Running, limit: Duration, stop: watch::Receiver<Stop>) -> Ended {
    let Running { mut child, group, stdout, stderr } = running;
    let over = async {
        let status = child.wait().await.ok();
        group.gone().await;
        status
    };
    let (status, cut) = until(group, limit, stop, over).await;
    Ended { status, cut, stdout: stdout.finish().await, stderr: stderr.finish().await }
}

/// Waits for `over`, and meanwhile tells the group to end: when the limit has passed, or when we are told to stop.
pub async fn until<T>(
    group: Group,
    limit: Duration,
    mut stop: watch::Receiver<Stop>,
    over: impl Future<Output = T>,
) -> (T, Option<Cut>) {
    // With the sender gone nobody is left to shut us down.
    let mut abandoned = false;
    let (mut cut, mut deadline) = (None, Box::pin(sleep(limit)));
    let mut over = std::pin::pin!(over);
    loop {
        let stage = *stop.borrow_and_update();
        if stage >= Stop::Term {
            cut.get_or_insert(Cut::Interrupted);
            group.signal(if stage == Stop::Term { Signal::SIGTERM } else { Signal::SIGKILL });
        }
        tokio::select! {
            value = &mut over => return (value, cut),
            () = &mut deadline => {
                let signal = if cut.replace(Cut::TimedOut).is_none() { Signal::SIGTERM } else { Signal::SIGKILL };
                group.signal(signal);
                deadline.set(sleep(KILL_AFTER));
            }
            changed = stop.changed(), if !abandoned => abandoned = changed.is_err(),
        }
    }
}
