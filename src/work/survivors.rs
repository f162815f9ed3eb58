//! Runs that outlive the child that started them: whoever serves the home next counts them as work until they end.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::group;
use super::record::{Left, Run, Runs};
use crate::cron::run::Runner;
use crate::fence::Admission;
use crate::ledger::{Guard, Ledgers};
use crate::protocol::LedgerKind;

/// What could not be told is looked at again after this.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// What a predecessor left running.
pub struct Survivors {
    runs: Runs,
    /// The jobs whose next run is held back.
    held: Arc<Mutex<BTreeSet<String>>>,
    /// Rung when one has ended.
    ended: Arc<Notify>,
    /// Lives while a record cannot be read.
    doubt: Mutex<Option<Guard>>,
}

impl Survivors {
    /// Nothing is looked at yet.
    pub fn new(runs: Runs, ended: Arc<Notify>) -> Self {
        Self { runs, held: Arc::default(), ended, doubt: Mutex::default() }
    }

    fn be_in_doubt(&self, ledgers: &Ledgers, error: &std::io::Error) {
        let mut doubt = self.doubt.lock().unwrap_or_else(PoisonError::into_inner);
        if doubt.is_none()
            && let Ok(admission) = ledgers.admit()
        {
            tracing::error!(%error, "a run on record cannot be read: the verdict is unknown until it can, or is removed");
            let why = format!("a run on record cannot be read: {error}");
            *doubt = Some(ledgers.doubt(&admission, LedgerKind::Process, "runs", &why));
        }
        let ended = Arc::clone(&self.ended);
        tokio::spawn(async move {
            sleep(LOOK_AGAIN).await;
            ended.notify_one();
        });
    }

    /// Whether a run of this job still lives from before.
    pub fn hold_back(&self, job: &str) -> bool {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).contains(job)
    }

    /// Enters every survivor as `process:<pid>`, and has every run that did not survive written down. Looks again at what
    /// could not be written down before. If that cannot be told the ledger is in doubt until it can; false then.
    pub async fn enter(&self, ledgers: &Ledgers, runner: &Runner) -> bool {
        let left = match self.runs.left() {
            Ok(left) => {
                self.doubt.lock().unwrap_or_else(PoisonError::into_inner).take();
                left
            }
            Err(error) => {
                self.be_in_doubt(ledgers, &error);
                return false;
            }
        };
        for left in left {
            let why = format!("{} {} of a backend that died", left.run.kind, left.run.id);
            let watch = Watch { runs: self.runs.clone(), ledgers: ledgers.clone(), runner: runner.clone(), why };
            let guards = watch.surely_entered(&left.run, || ledgers.admit().ok()).await;
            if !guards.is_empty() {
                tracing::warn!(
                    job = left.run.id,
                    processes = guards.len(),
                    "a run outlived the backend that started it"
                );
            }
            let held = Arc::clone(&self.held);
            held.lock().unwrap_or_else(PoisonError::into_inner).insert(left.run.id.clone());
            let ended = Arc::clone(&self.ended);
            tokio::spawn(async move {
                let id = left.run.id.clone();
                let guards = watch.to_the_end(&left.run, guards).await;
                let settled = spawn_blocking(move || settle(&watch.runner, left)).await.unwrap_or(false);
                held.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
                drop(guards);
                if settled {
                    ended.notify_one();
                }
            });
        }
        true
    }
}

/// Follows one run's processes, which may still start others.
struct Watch {
    runs: Runs,
    ledgers: Ledgers,
    runner: Runner,
    why: String,
}

impl Watch {
    fn entered(&self, run: &Run, admission: &Admission) -> std::io::Result<Vec<(u32, Guard)>> {
        let enter = |pid: u32| {
            self.runner.strays.hold(pid);
            (pid, self.ledgers.enter(admission, LedgerKind::Process, &pid.to_string(), &self.why))
        };
        let counts = |pid: &u32| !self.runner.strays.is_released(*pid);
        Ok(run.survivors(self.runs.home())?.into_iter().filter(counts).map(enter).collect())
    }

    /// As [`Watch::entered`]; while that cannot be told, the run itself counts.
    async fn surely_entered(&self, run: &Run, under: impl Fn() -> Option<Admission>) -> Vec<(u32, Guard)> {
        let mut doubt = None;
        loop {
            let Some(admission) = under() else { return Vec::new() };
            match self.entered(run, &admission) {
                Ok(guards) => return guards,
                Err(_) => {
                    doubt.get_or_insert_with(|| {
                        self.ledgers.doubt(&admission, LedgerKind::Process, &run.pid.to_string(), &self.why)
                    });
                }
            }
            drop(admission);
            sleep(LOOK_AGAIN).await;
        }
    }

    /// Until a look finds nobody. What is new is entered before what has ended is let go.
    async fn to_the_end(&self, run: &Run, mut guards: Vec<(u32, Guard)>) -> Vec<(u32, Guard)> {
        while let Some((pid, guard)) = guards.first() {
            self.runner.strays.over(*pid).await;
            let now = self.surely_entered(run, || guard.admit()).await;
            if now.is_empty() {
                break;
            }
            for (pid, _) in std::mem::replace(&mut guards, now) {
                if group::look_up(pid).is_none_or(|process| process.zombie) {
                    self.runner.strays.let_go(pid);
                }
            }
        }
        guards.iter().for_each(|(pid, _)| self.runner.strays.let_go(*pid));
        guards
    }
}

/// Writes down what came of the run; if nobody knows, that it was cut off. It is never run again. False if that failed and
/// must be tried again.
fn settle(runner: &Runner, left: Left) -> bool {
    let done = left.run.kind != "cron" || runner.settle(&left.run);
    if done {
        left.record.remove();
    }
    done
}
