//! The ticker: sleeps until the next job is due or jobs.json changes, and lets due jobs begin.
//!
//! 1. Looking is no work: jobs.json is read without an admission and without a lock.
//! 2. If something is due, an admission comes first; a retiring child starts nothing, and the job stays due.
//! 3. Under the locks the job is claimed: what was advanced is on disk before anything runs.
//! 4. The run enters the cron ledger, and only then is the admission dropped.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{Notify, Semaphore, oneshot, watch};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use super::alarm;
use super::claim::{ALIVE, Claimed};
use super::plan::Plan;
use super::run::Runner;
use super::schedule::iso;
use super::store::{Stamp, Store};
use super::zone::Zone;
use crate::clock::Clock;
use crate::fence::Admission;
use crate::folder_watch::FolderWatch;
use crate::ledger::Ledgers;
use crate::protocol::{LedgerKind, TickerReport};
use crate::work::Stop;
use crate::work::record::{Record, Runs};
use crate::work::strays::Strays;
use crate::work::survivors::Survivors;
use crate::work::turn::Turns;

/// READY waits for the first scan so long and no longer.
const FIRST_SCAN: Duration = Duration::from_secs(1);

/// How long a scan waits for the lock of jobs.json before it says so and tries again later.
const LOCK_WAIT: Duration = Duration::from_secs(30);

/// After a scan that could not do its work: try again.
const RETRY: Duration = Duration::from_secs(5);

/// A script's time-out, in seconds, unless `HERMES_CRON_SCRIPT_TIMEOUT` says otherwise.
const SCRIPT_LIMIT: u64 = 3600;

/// The handle of a child's ticker.
pub struct Ticker {
    task: JoinHandle<()>,
    first: Mutex<Option<oneshot::Receiver<()>>>,
}

impl Ticker {
    /// Starts it. Survivors of a dead predecessor are entered in any case; jobs run only if `enabled`.
    pub fn start(
        home: &Path,
        enabled: bool,
        ledgers: Ledgers,
        report: Arc<Mutex<TickerReport>>,
        stop: watch::Receiver<Stop>,
        strays: Strays,
        turns: Turns,
    ) -> Self {
        let (done, first) = oneshot::channel();
        let home = home.to_owned();
        let task = tokio::spawn(async move {
            let ticking = Ticking::new(home, ledgers, report, stop, strays, turns);
            match enabled {
                true => ticking.tick(done).await,
                // Nothing is run, and yet what an earlier backend left running counts.
                false => {
                    while !ticking.survivors.enter(&ticking.ledgers, &ticking.runner).await {
                        ticking.ended.notified().await;
                    }
                }
            }
        });
        Self { task, first: Mutex::new(Some(first)) }
    }

    /// Waits until the first scan is over, or for a second: its admission is held by then.
    pub async fn first_scan(&self) {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(first) = first else { return };
        if timeout(FIRST_SCAN, first).await.is_err() {
            tracing::warn!("the first scan of the jobs is not over yet: ready all the same, and busy until it is");
        }
    }

    /// Starts no more jobs. What runs goes on.
    pub fn stop(&self) {
        self.task.abort();
    }
}

struct Ticking {
    runner: Runner,
    runs: Runs,
    ledgers: Ledgers,
    clock: Clock,
    report: Arc<Mutex<TickerReport>>,
    /// Rung when a run has ended.
    ended: Arc<Notify>,
    survivors: Survivors,
    /// What was said of bad jobs already, so that it is said once.
    told: Mutex<BTreeSet<String>>,
}

/// When to look again.
struct Next {
    at: Option<Timestamp>,
    /// The file as it was looked at.
    stamp: Option<Stamp>,
    /// A job is due and the fence is closed.
    held_back: bool,
}

impl Ticking {
    fn new(
        home: PathBuf,
        ledgers: Ledgers,
        report: Arc<Mutex<TickerReport>>,
        stop: watch::Receiver<Stop>,
        strays: Strays,
        turns: Turns,
    ) -> Self {
        let clock = ledgers.clock().clone();
        let places = number("HERMES_CRON_MAX_PARALLEL").filter(|places| *places > 0);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let places = places.and_then(|places| usize::try_from(places).ok()).unwrap_or(cores.max(4));
        let limit = number("HERMES_CRON_SCRIPT_TIMEOUT").filter(|limit| *limit > 0).unwrap_or(SCRIPT_LIMIT);
        let runner = Runner {
            store: Store::new(home.join("cron")),
            zone: Zone::of(&home),
            clock: clock.clone(),
            places: Arc::new(Semaphore::new(places.min(Semaphore::MAX_PERMITS))),
            limit: Duration::from_secs(limit),
            stop,
            strays,
            turns,
            home: home.clone(),
        };
        let ended = Arc::new(Notify::new());
        let survivors = Survivors::new(Runs::of(&home), Arc::clone(&ended));
        Self { runner, runs: Runs::of(&home), ledgers, clock, report, ended, survivors, told: Mutex::default() }
    }

    async fn tick(self, done: oneshot::Sender<()>) {
        let mut done = Some(done);
        loop {
            let mut folder = self.watch();
            self.survivors.enter(&self.ledgers, &self.runner).await;
            let next = self.scan().await;
            if let Some(done) = done.take() {
                let _ = done.send(());
            }
            self.until(next, folder.as_mut()).await;
        }
    }

    /// Watches the folder of jobs.json; while that is absent, the home, for the folder.
    fn watch(&self) -> Option<FolderWatch> {
        let (home, cron) = (&self.runner.home, self.runner.home.join("cron"));
        FolderWatch::over(&self.runner.store.watched()).or_else(|_| FolderWatch::new(home, &[&cron])).ok()
    }

    /// In a while, or at `sooner`.
    fn again(&self, sooner: Option<Timestamp>) -> Timestamp {
        let now = self.clock.wall();
        let retry = now + RETRY;
        sooner.filter(|sooner| *sooner > now).map_or(retry, |sooner| sooner.min(retry))
    }

    /// Looks once, and starts what is due.
    async fn scan(&self) -> Next {
        if self.runner.store.stamp().is_none() && !self.runner.store.path().is_symlink() {
            // No file is no jobs: nothing is read, and no thread is started for it.
            self.tell(&Plan::default());
            return Next { at: None, stamp: None, held_back: false };
        }
        let (store, clock, zone) = (self.runner.store.clone(), self.clock.clone(), self.runner.zone.clone());
        let look = spawn_blocking(move || store.look(clock.wall(), zone.get(), ALIVE));
        let (plan, stamp) = match look.await {
            Ok(Ok(look)) => (look.plan, look.stamp),
            Ok(Err(error)) => return self.failed(&error.to_string(), None),
            Err(_) => return self.failed("the scan of jobs.json was cut off", Some(self.clock.wall() + RETRY)),
        };
        self.tell(&plan);
        let due: Vec<String> = plan.due.iter().map(|due| due.id.clone()).filter(|id| self.may_run(id)).collect();
        if due.is_empty() && plan.repairs.is_empty() {
            return Next { at: plan.next_wake, stamp, held_back: false };
        }
        let Ok(admission) = self.ledgers.admit() else {
            return Next { at: plan.next_wake, stamp, held_back: true };
        };
        match self.dispatch(admission, due).await {
            // What was claimed or put right changed the file: look again for what comes next.
            Ok(()) if self.runner.store.stamp() != stamp => {
                Next { at: Some(self.clock.wall()), stamp: None, held_back: false }
            }
            // Another process scans, or runs it. What is due before that is not held up by it.
            Ok(()) => Next { at: Some(self.again(plan.next_wake)), stamp, held_back: false },
            Err(error) => self.failed(&error, Some(self.again(plan.next_wake))),
        }
    }

    fn may_run(&self, id: &str) -> bool {
        !self.ledgers.holds(LedgerKind::Cron, id) && !self.survivors.hold_back(id)
    }

    /// Claims under the locks, and enters what was claimed before the admission goes.
    async fn dispatch(&self, admission: Admission, due: Vec<String>) -> Result<(), String> {
        let (runner, runs) = (self.runner.clone(), self.runs.clone());
        let claimed = spawn_blocking(move || claim(&runner, &runs, &due)).await;
        let claimed = claimed.map_err(|_| "claiming due jobs was cut off".to_owned())??;
        let Some(claimed) = claimed else { return Ok(()) };
        for (job, record) in claimed {
            let guard =
                self.ledgers.enter(&admission, LedgerKind::Cron, &job.id, &format!("waiting to run {}", job.name));
            let (runner, ended) = (self.runner.clone(), Arc::clone(&self.ended));
            tokio::spawn(async move {
                runner.run(job, record, guard).await;
                ended.notify_one();
            });
        }
        drop(admission);
        Ok(())
    }

    fn failed(&self, error: &str, at: Option<Timestamp>) -> Next {
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        if report.last_error.as_deref() != Some(error) {
            tracing::error!(error, "the jobs cannot be scanned");
        }
        report.running = true;
        report.last_error = Some(error.to_owned());
        report.next_due = at.map(|at| iso(at, self.runner.zone.get()));
        Next { at, stamp: None, held_back: false }
    }

    fn tell(&self, plan: &Plan) {
        let bad: Vec<String> = plan.bad.iter().map(|bad| format!("{}: {}", bad.name, bad.reason)).collect();
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        for bad in bad.iter().filter(|bad| !told.contains(*bad)) {
            tracing::warn!(bad, "a job cannot be used and is left as it is");
        }
        *told = bad.iter().cloned().collect();
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        *report = TickerReport {
            running: true,
            next_due: plan.soonest().map(|at| iso(at, self.runner.zone.get())),
            last_error: None,
            bad_jobs: bad,
        };
    }

    /// Waits for whatever comes first: the instant, a change of the file, the end of a run, the fence's opening.
    async fn until(&self, next: Next, folder: Option<&mut FolderWatch>) {
        let changed = async {
            let Some(folder) = folder else { return std::future::pending().await };
            loop {
                folder.changed().await;
                // Our own writes come back as events too; the file is then as we last saw it.
                if next.stamp.is_none() || self.runner.store.stamp() != next.stamp {
                    return;
                }
            }
        };
        tokio::select! {
            () = alarm::ring(&self.clock, next.at) => {}
            () = changed => {}
            () = self.ended.notified() => {}
            () = self.reopened(), if next.held_back => {}
        }
    }

    /// A permit's end is an event: a due job must not wait for anything else.
    async fn reopened(&self) {
        let (fence, mut changes) = (self.ledgers.fence(), self.ledgers.changes());
        loop {
            changes.mark_unchanged();
            let now = self.clock.now();
            let expiry = fence.expire(now);
            if !fence.refuses(now) {
                return;
            }
            let expired = async {
                match expiry {
                    Some(until) => tokio::time::sleep(until.since(now)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = changes.changed() => {}
                () = expired => {}
            }
        }
    }
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    let number = text.trim().parse();
    if number.is_err() {
        tracing::warn!(name, text, "is no whole number: the default is used");
    }
    number.ok()
}

type Taken = Vec<(Claimed, Record)>;

/// Under both locks: `None` if another process scans this home just now.
fn claim(runner: &Runner, runs: &Runs, due: &[String]) -> Result<Option<Taken>, String> {
    let Some(_tick) = runner.store.try_tick_lock().map_err(|error| error.to_string())? else { return Ok(None) };
    let mut records = Vec::new();
    for id in due {
        // Whoever has the record runs this job, in whatever process of this home.
        match runs.reserve("cron", id) {
            Ok(Some(record)) => records.push((id, record)),
            Ok(None) => tracing::info!(job = id, "runs in another process already"),
            Err(error) => return Err(format!("a run of {id} cannot be put on record: {error}")),
        }
    }
    let lock = runner.store.lock(LOCK_WAIT).map_err(|error| error.to_string())?;
    let retired = lock.repair(runner.clock.wall(), runner.zone.get()).map_err(|error| error.to_string())?;
    retired.iter().for_each(|(id, name, reason)| runner.diagnose(id, name, reason));
    let ids: Vec<&str> = records.iter().map(|(id, _)| id.as_str()).collect();
    let mut claimed = lock.claim(&ids, runner.clock.wall(), runner.zone.get()).map_err(|error| error.to_string())?;
    let mut taken = Taken::new();
    for (id, record) in records {
        match claimed.iter().position(|job| job.id == *id) {
            Some(place) => taken.push((claimed.swap_remove(place), record)),
            None => record.remove(),
        }
    }
    Ok(Some(taken))
}
