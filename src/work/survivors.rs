//! Runs that outlive the child that started them: whoever serves the home next counts them as work until they end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use tokio::task::spawn_blocking;

use super::record::{Left, Runs, all_gone};
use crate::cron::run::Runner;
use crate::ledger::Ledgers;
use crate::protocol::LedgerKind;

/// What a predecessor left running.
pub struct Survivors {
    runs: Runs,
    /// The jobs whose next run is held back.
    held: Arc<Mutex<BTreeMap<String, u32>>>,
    /// Rung when one has ended.
    ended: Arc<Notify>,
}

impl Survivors {
    /// Nothing is looked at yet.
    pub fn new(runs: Runs, ended: Arc<Notify>) -> Self {
        Self { runs, held: Arc::default(), ended }
    }

    /// Whether a run of this job still lives from before.
    pub fn hold_back(&self, job: &str) -> bool {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).contains_key(job)
    }

    /// Enters every survivor as `process:<pid>`, and has every run that did not survive recorded as interrupted.
    pub async fn enter(&self, ledgers: &Ledgers, runner: &Runner) {
        for left in self.runs.left() {
            let pids = left.run.survivors();
            let Ok(admission) = ledgers.admit() else { return };
            let why = format!("{} {} of a backend that died", left.run.kind, left.run.id);
            let enter = |pid: &u32| ledgers.enter(&admission, LedgerKind::Process, &pid.to_string(), &why);
            let guards: Vec<_> = pids.iter().map(enter).collect();
            pids.iter().for_each(|pid| runner.strays.hold(*pid));
            drop(admission);
            if !guards.is_empty() {
                tracing::warn!(job = left.run.id, ?pids, "a run outlived the backend that started it");
            }
            self.held.lock().unwrap_or_else(PoisonError::into_inner).insert(left.run.id.clone(), left.run.pid);
            let (held, ended, runner) = (Arc::clone(&self.held), Arc::clone(&self.ended), runner.clone());
            tokio::spawn(async move {
                all_gone(&pids).await;
                pids.iter().for_each(|pid| runner.strays.let_go(*pid));
                let id = left.run.id.clone();
                let _ = spawn_blocking(move || settle(&runner, left)).await;
                held.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
                drop(guards);
                ended.notify_one();
            });
        }
    }
}

/// Writes down that the run was cut off: what it did is not known, and it is not run again.
fn settle(runner: &Runner, left: Left) {
    if left.run.kind == "cron" {
        runner.record_lost(&left.run.id, left.run.scheduled_for.as_deref(), &left.run.started_at);
    }
    left.record.remove();
}
