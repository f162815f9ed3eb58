//! One run of one job, from its claim to its stored result. The ledger entry goes only after that.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use tokio::sync::{Semaphore, watch};
use tokio::task::spawn_blocking;

use super::claim::{Claimed, Outcome};
use super::output::{self, Head, Line};
use super::schedule::iso;
use super::script::Script;
use super::store::{Store, StoreError};
use crate::clock::Clock;
use crate::ledger::Guard;
use crate::work::Stop;
use crate::work::record::{Record, Run};
use crate::work::spawn::{self, Running};
use crate::work::strays::{Leader, Strays};
use crate::work::supervise::{self, Cut, Ended};

/// What a job that was ended by a shutdown is recorded with.
pub const INTERRUPTED: &str = "Interrupted by shutdown before terminal completion.";

/// What a job is recorded with whose backend died while it ran.
pub const LOST: &str = "Interrupted: the backend died while this run was under way; what it did is not known.";

/// So long a result waits for the lock of jobs.json.
const LOCK_WAIT: Duration = Duration::from_secs(30);

/// What every run of one home shares.
#[derive(Clone)]
pub struct Runner {
    /// The profile's home.
    pub home: PathBuf,
    /// Its jobs.
    pub store: Store,
    /// The zone that times are written in.
    pub zone: TimeZone,
    /// Where times come from.
    pub clock: Clock,
    /// So many run at a time; the others wait, and count as running.
    pub places: Arc<Semaphore>,
    /// A script's time-out.
    pub limit: Duration,
    /// Tells when to end.
    pub stop: watch::Receiver<Stop>,
    /// Where processes go that outlive a run.
    pub strays: Strays,
}

/// What a run came to, before it is written down.
struct Result {
    status: &'static str,
    error: Option<String>,
    exit_code: Option<i32>,
    shown: output::Verdict,
}

impl Runner {
    /// Runs a claimed job and stores its result. `guard` is dropped last.
    pub async fn run(self, job: Claimed, record: Record, guard: Guard) {
        let started = self.clock.wall();
        let (result, record) = self.carry_out(&job, record, &guard, started).await;
        let ended = self.clock.wall();
        tracing::info!(job = job.id, status = result.status, "a job has ended");
        let (strays, whose) = (self.strays.clone(), format!("job {}", job.id));
        let _ = spawn_blocking(move || self.store_result(&job, &result, started, ended, record)).await;
        strays.enter_orphans(&guard, &whose);
        drop(guard);
    }

    async fn carry_out(
        &self,
        job: &Claimed,
        mut record: Record,
        guard: &Guard,
        started: Timestamp,
    ) -> (Result, Record) {
        let mut stop = self.stop.clone();
        let _place = tokio::select! {
            place = self.places.acquire() => place,
            _ = stop.wait_for(|stop| *stop > Stop::Run) => return (interrupted(), record),
        };
        guard.set_why(&format!("running {}", job.name));
        match self.start(job, &mut record, started).await {
            Ok((running, leader)) => {
                let ended = supervise::to_the_end(running, self.limit, self.stop.clone()).await;
                drop(leader);
                (self.judge(job, ended), record)
            }
            Err(error) => (failed(error, None), record),
        }
    }

    /// Starts the script behind the gate, puts it on record, and lets it through.
    async fn start(
        &self,
        job: &Claimed,
        record: &mut Record,
        started: Timestamp,
    ) -> std::result::Result<(Running, Leader), String> {
        if !job.no_agent {
            return Err("This job needs an agent, and this backend has none: set no_agent with a script, or run it \
                        where an agent command is configured."
                .to_owned());
        }
        let script = Script {
            job_id: &job.id,
            path: job.script.as_deref().unwrap_or_default(),
            workdir: job.workdir.as_deref(),
            interpreter: job.interpreter.as_deref(),
        };
        let program = script.program(&self.home)?;
        let gated = spawn::gated(&program).map_err(|error| format!("The script cannot be started: {error}"))?;
        let leader = self.strays.lead(gated.pid);
        let run = Run {
            kind: "cron".to_owned(),
            id: job.id.clone(),
            pid: gated.pid,
            start_marker: gated.start_marker.clone(),
            scheduled_for: Some(iso(job.scheduled_for, &self.zone)),
            started_at: iso(started, &self.zone),
        };
        record
            .write(&run)
            .map_err(|error| format!("The run cannot be put on record, so it was not started: {error}"))?;
        let running = gated.open(b"").await.map_err(|error| format!("The script cannot be started: {error}"))?;
        Ok((running, leader))
    }

    fn judge(&self, job: &Claimed, ended: Ended) -> Result {
        match (ended.cut, ended.status) {
            (Some(Cut::Interrupted), _) => interrupted(),
            (Some(Cut::TimedOut), _) => {
                let script = job.script.as_deref().unwrap_or_default();
                failed(format!("Script timed out after {}s: {script}", self.limit.as_secs()), None)
            }
            (None, Some(status)) if status.success() => {
                let stdout = ended.stdout.trim().to_owned();
                let shown = match stdout.as_str() {
                    "" => output::Verdict::Silent("empty output"),
                    _ if says_not_to_wake(&stdout) => output::Verdict::Silent("wakeAgent=false"),
                    _ => output::Verdict::Printed(stdout),
                };
                Result { status: "ok", error: None, exit_code: Some(0), shown }
            }
            (None, status) => failed(failure_text(status, &ended), status.and_then(|status| status.code())),
        }
    }

    fn store_result(&self, job: &Claimed, result: &Result, started: Timestamp, ended: Timestamp, record: Record) {
        let cron = self.home.join("cron");
        let head = Head { id: &job.id, name: &job.name, mode: "no_agent (script)", at: ended };
        if let Err(error) = output::write(&cron, &head, &self.zone, &result.shown) {
            tracing::error!(job = job.id, %error, "a run's output cannot be written");
        }
        let outcome = Outcome { status: result.status, error: result.error.clone(), ended_at: ended };
        if let Err(error) = self.finish(&job.id, &outcome) {
            tracing::error!(job = job.id, %error, "a run's result cannot be written to jobs.json");
        }
        self.remember(&cron, job, result, started, ended);
        record.remove();
    }

    /// Leaves the reason why a job will never run in its output folder. Blocking.
    pub fn diagnose(&self, id: &str, name: &str, reason: &str) {
        let head = Head { id, name, mode: "not run", at: self.clock.wall() };
        tracing::warn!(job = id, reason, "a job was retired without a run");
        let shown = output::Verdict::Failed(reason.to_owned());
        if let Err(error) = output::write(&self.home.join("cron"), &head, &self.zone, &shown) {
            tracing::error!(job = id, %error, "a diagnostic cannot be written");
        }
    }

    fn finish(&self, id: &str, outcome: &Outcome) -> std::result::Result<(), StoreError> {
        self.store.lock(LOCK_WAIT)?.finish(id, outcome, &self.zone)
    }

    /// Writes down that a run was cut off with the backend that had started it. Blocking.
    pub fn record_lost(&self, id: &str, scheduled_for: Option<&str>, started_at: &str) {
        let ended = self.clock.wall();
        let outcome = Outcome { status: "interrupted", error: Some(LOST.to_owned()), ended_at: ended };
        if let Err(error) = self.finish(id, &outcome) {
            tracing::error!(job = id, %error, "a lost run cannot be written to jobs.json");
        }
        let ended_at = iso(ended, &self.zone);
        let line = Line { id, scheduled_for, started_at, ended_at: &ended_at, status: "interrupted", exit_code: None };
        if let Err(error) = output::remember(&self.home.join("cron"), &line) {
            tracing::warn!(job = id, %error, "the history cannot be written");
        }
    }

    fn remember(&self, cron: &Path, job: &Claimed, result: &Result, started: Timestamp, ended: Timestamp) {
        let line = Line {
            id: &job.id,
            scheduled_for: Some(&iso(job.scheduled_for, &self.zone)),
            started_at: &iso(started, &self.zone),
            ended_at: &iso(ended, &self.zone),
            status: result.status,
            exit_code: result.exit_code,
        };
        if let Err(error) = output::remember(cron, &line) {
            tracing::warn!(job = job.id, %error, "the history cannot be written");
        }
    }
}

fn interrupted() -> Result {
    Result {
        status: "interrupted",
        error: Some(INTERRUPTED.to_owned()),
        exit_code: None,
        shown: output::Verdict::Failed(INTERRUPTED.to_owned()),
    }
}

fn failed(error: String, exit_code: Option<i32>) -> Result {
    Result { status: "error", error: Some(error.clone()), exit_code, shown: output::Verdict::Failed(error) }
}

fn failure_text(status: Option<std::process::ExitStatus>, ended: &Ended) -> String {
    use std::os::unix::process::ExitStatusExt;
    let mut text = match (status.and_then(|s| s.code()), status.and_then(|s| s.signal())) {
        (Some(code), _) => format!("Script exited with code {code}"),
        (None, Some(signal)) => format!("Script was ended by signal {signal}"),
        (None, None) => "Script ended and its status is not known".to_owned(),
    };
    for (name, stream) in [("stderr", ended.stderr.trim()), ("stdout", ended.stdout.trim())] {
        if !stream.is_empty() {
            text.push_str(&format!("\n{name}:\n{stream}"));
        }
    }
    text
}

/// The last line that a script prints may say that nobody need hear of it.
fn says_not_to_wake(stdout: &str) -> bool {
    let last = stdout.lines().rev().find(|line| !line.trim().is_empty());
    let json = last.and_then(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    json.is_some_and(|json| json.get("wakeAgent") == Some(&serde_json::Value::Bool(false)))
}
