//! One run of one job, from its claim to its stored result. The ledger entry goes only after that.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{Semaphore, watch};
use tokio::task::spawn_blocking;

use super::claim::{Claimed, Outcome};
use super::output::{self, Head, Line};
use super::schedule::{iso, parse_iso};
use super::script::Script;
use super::store::{Store, StoreError};
use super::zone::Zone;
use crate::clock::Clock;
use crate::ledger::Guard;
use crate::protocol::TurnState;
use crate::work::Stop;
use crate::work::record::{Ending, Record, Run};
use crate::work::spawn::{self, Program, Running};
use crate::work::strays::{Leader, Strays};
use crate::work::supervise::{self, Cut, Ended};
use crate::work::turn::Turns;

/// What a job that was ended by a shutdown is recorded with.
pub const INTERRUPTED: &str = "Interrupted by shutdown before terminal completion.";

/// What a job is recorded with whose backend died while it ran.
pub const LOST: &str = "Interrupted: the backend died while this run was under way; what it did is not known.";

/// So long one try waits for the lock of jobs.json.
const LOCK_WAIT: Duration = Duration::from_millis(500);

/// So long a result that cannot be written is tried again before it is left on record.
const INSIST: Duration = Duration::from_secs(10);
const INSIST_PAUSE: Duration = Duration::from_millis(100);

/// What every run of one home shares.
#[derive(Clone)]
pub struct Runner {
    /// The profile's home.
    pub home: PathBuf,
    /// Its jobs.
    pub store: Store,
    /// The zone that times are written in.
    pub zone: Zone,
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
    /// What runs the jobs that need an agent.
    pub turns: Turns,
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
        let (strays, whose) = (self.strays.clone(), job.id.clone());
        let _ = spawn_blocking(move || self.store_result(&job, &result, started, ended, record)).await;
        strays.enter_orphans(&guard, &whose);
        drop(guard);
    }

    async fn carry_out(
        &self,
        job: &Claimed,
        record: Record,
        guard: &Guard,
        started: Timestamp,
    ) -> (Result, Option<Record>) {
        let mut stop = self.stop.clone();
        let _place = tokio::select! {
            place = self.places.acquire() => place,
            _ = stop.wait_for(|stop| *stop > Stop::Run) => return (interrupted(), Some(record)),
        };
        guard.set_why(&format!("running {}", job.name));
        if !job.no_agent {
            return self.ask_the_agent(job, record, guard, started).await;
        }
        let (started, record) = self.start(job, record, started).await;
        match started {
            Ok((running, leader)) => {
                let ended = supervise::to_the_end(running, self.limit, self.stop.clone()).await;
                drop(leader);
                if ended.cut == Some(Cut::TimedOut) {
                    self.strays.end_orphans(supervise::KILL_AFTER).await;
                }
                (self.judge(job, ended), record)
            }
            Err(error) => (failed(error, None), record),
        }
    }

    /// A job that needs an agent is a turn of a fresh session of its own; that keeps a record of the agent's process.
    async fn ask_the_agent(
        &self,
        job: &Claimed,
        record: Record,
        guard: &Guard,
        started: Timestamp,
    ) -> (Result, Option<Record>) {
        let (written, record) = put_on_record(record, self.run_of(job, 0, String::new(), started)).await;
        if let Err(error) = written {
            return (failed(error, None), record);
        }
        let session =
            format!("cron_{}_{}", job.id, started.to_zoned(self.zone.get().clone()).strftime("%Y%m%d_%H%M%S"));
        let ended = self.turns.run_under(&session, job.prompt.clone().unwrap_or_default(), guard).await;
        let result = match ended {
            Ok(turn) if turn.state == TurnState::Interrupted => interrupted(),
            Ok(turn) if turn.state == TurnState::Done => match turn.reply {
                Some(reply) => {
                    Result { status: "ok", error: None, exit_code: Some(0), shown: output::Verdict::Printed(reply) }
                }
                None => failed("Agent completed but produced empty response".to_owned(), Some(0)),
            },
            Ok(turn) => failed(turn.error.unwrap_or_else(|| "the agent failed".to_owned()), None),
            Err(fault) => failed(format!("This job needs an agent: {fault}"), None),
        };
        (result, record)
    }

    fn run_of(&self, job: &Claimed, pid: u32, start_marker: String, started: Timestamp) -> Run {
        Run {
            kind: "cron".to_owned(),
            id: job.id.clone(),
            pid,
            start_marker,
            scheduled_for: Some(iso(job.scheduled_for, self.zone.get())),
            started_at: iso(started, self.zone.get()),
            result: None,
        }
    }

    /// Starts the script behind the gate, puts it on record, and lets it through. The record comes back in any case.
    async fn start(
        &self,
        job: &Claimed,
        record: Record,
        started: Timestamp,
    ) -> (std::result::Result<(Running, Leader), String>, Option<Record>) {
        let gated = match self.program(job).and_then(|program| {
            spawn::gated(&program).map_err(|error| format!("The script cannot be started: {error}"))
        }) {
            Ok(gated) => gated,
            Err(error) => return (Err(error), Some(record)),
        };
        let leader = self.strays.lead(gated.pid);
        let run = self.run_of(job, gated.pid, gated.start_marker.clone(), started);
        let (written, record) = put_on_record(record, run).await;
        if let Err(error) = written {
            return (Err(error), record);
        }
        let running = gated.open(None).await.map_err(|error| format!("The script cannot be started: {error}"));
        (running.map(|running| (running, leader)), record)
    }

    fn program(&self, job: &Claimed) -> std::result::Result<Program, String> {
        let script = Script {
            job_id: &job.id,
            path: job.script.as_deref().unwrap_or_default(),
            workdir: job.workdir.as_deref(),
            interpreter: job.interpreter.as_deref(),
        };
        script.program(&self.home)
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

    /// Blocking. A result that cannot be written to jobs.json now stays on record, and is written when that can be read.
    fn store_result(
        &self,
        job: &Claimed,
        result: &Result,
        started: Timestamp,
        ended: Timestamp,
        record: Option<Record>,
    ) {
        let ending = Ending {
            status: result.status.to_owned(),
            error: result.error.clone(),
            ended_at: iso(ended, self.zone.get()),
        };
        let run = Run { result: Some(ending), ..self.run_of(job, 0, String::new(), started) };
        let mut record = record;
        if let Some(Err(error)) = record.as_mut().map(|record| record.write(&run)) {
            tracing::warn!(job = job.id, %error, "a run's result cannot be put on record");
        }
        let mode = if job.no_agent { "no_agent (script)" } else { "agent" };
        let head = Head { id: &job.id, name: &job.name, mode, at: ended };
        self.insist("output", &job.id, || {
            output::write(&self.home.join("cron"), &head, self.zone.get(), &result.shown)
        });
        let stored = self.insist("result", &job.id, || self.finish(&run));
        self.remember(&run, result.exit_code);
        match record {
            Some(record) if stored => record.remove(),
            // Its lock goes with it: the next scan, or the next start, finds it.
            _ => {}
        }
    }

    /// Tries for a while: another program may be in the middle of writing, or descriptors may be short.
    fn insist<E: std::fmt::Display>(
        &self,
        what: &str,
        id: &str,
        write: impl Fn() -> std::result::Result<(), E>,
    ) -> bool {
        let begun = self.clock.now();
        loop {
            let Err(error) = write() else { return true };
            let over = self.clock.now().since(begun) >= INSIST || *self.stop.borrow() >= Stop::Term;
            if over {
                tracing::error!(job = id, what, %error, "cannot be written");
                return false;
            }
            std::thread::sleep(INSIST_PAUSE);
        }
    }

    /// Writes the result of a run that is on record into its job; false if that cannot be done now. Blocking.
    pub fn settle(&self, run: &Run) -> bool {
        let ended_at = iso(self.clock.wall(), self.zone.get());
        let lost = || Ending { status: "interrupted".to_owned(), error: Some(LOST.to_owned()), ended_at };
        let known = run.result.is_some();
        let run = Run { result: Some(run.result.clone().unwrap_or_else(lost)), ..run.clone() };
        match self.finish(&run) {
            Ok(()) => {
                if !known {
                    self.remember(&run, None);
                }
                true
            }
            Err(error) => {
                tracing::error!(job = run.id, %error, "the result of a run cannot be written yet");
                false
            }
        }
    }

    /// Leaves the reason why a job will never run in its output folder. Blocking.
    pub fn diagnose(&self, id: &str, name: &str, reason: &str) {
        let head = Head { id, name, mode: "not run", at: self.clock.wall() };
        tracing::warn!(job = id, reason, "a job was retired without a run");
        let shown = output::Verdict::Failed(reason.to_owned());
        if let Err(error) = output::write(&self.home.join("cron"), &head, self.zone.get(), &shown) {
            tracing::error!(job = id, %error, "a diagnostic cannot be written");
        }
    }

    fn finish(&self, run: &Run) -> std::result::Result<(), StoreError> {
        let Some(ending) = &run.result else { return Ok(()) };
        let ended_at = parse_iso(&ending.ended_at, self.zone.get()).unwrap_or_else(|_| self.clock.wall());
        let outcome = Outcome { status: ending.status.clone(), error: ending.error.clone(), ended_at };
        self.store.lock(LOCK_WAIT)?.finish(&run.id, &outcome, self.zone.get())
    }

    fn remember(&self, run: &Run, exit_code: Option<i32>) {
        let Some(ending) = &run.result else { return };
        let line = Line {
            id: &run.id,
            scheduled_for: run.scheduled_for.as_deref(),
            started_at: &run.started_at,
            ended_at: &ending.ended_at,
            status: &ending.status,
            exit_code,
        };
        self.insist("history", &run.id, || output::remember(&self.home.join("cron"), &line));
    }
}

/// Only what is on record may run. The record comes back, unless the very thread was lost.
async fn put_on_record(mut record: Record, run: Run) -> (std::result::Result<(), String>, Option<Record>) {
    let unrecorded = |error: std::io::Error| format!("The run cannot be put on record, so it was not started: {error}");
    match spawn_blocking(move || (record.write(&run), record)).await {
        Ok((written, record)) => (written.map_err(unrecorded), Some(record)),
        Err(error) => (Err(unrecorded(error.into())), None),
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
