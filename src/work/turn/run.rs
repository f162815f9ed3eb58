//! One turn, from its begin to its end.
//!
//! 1. Its session's record is reserved; an agent that outlived an earlier backend is waited for.
//! 2. The agent stands at the gate, its group on record, the prompt in the file that will be its standard input.
//! 3. It is begun in the journal: from here on it is never run again. Then the gate opens.
//! 4. When the agent has exited its reply goes into the journal; while its group lives the session unwinds, and is busy.
//!
//! What fails for want of something (disk, descriptors, processes, the journal) is tried again, and the turn stays in its ledger
//! as long: nothing that was accepted or answered is given up before the backend itself is.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::{FIRST_PAUSE, LONGEST_PAUSE, Queued, Turns};
use crate::backoff::doubled;
use crate::handler::millis;
use crate::ledger::Guard;
use crate::protocol::TurnState;
use crate::span;
use crate::work::Stop;
use crate::work::journal::{Journal, JournalError};
use crate::work::record::{Record, Run};
use crate::work::spawn;
use crate::work::strays::Leader;
use crate::work::supervise::{Cut, until};

/// So much of a reply is kept.
const MAX_REPLY: usize = 256 * 1024;

/// A session whose last agent outlived an earlier backend is looked at this often.
const HELD_BACK: Duration = Duration::from_millis(200);

/// Longer than any turn.
const FOR_EVER: Duration = Duration::from_secs(60 * 60 * 24 * 365);

/// What a turn is recorded with that was told to end.
const INTERRUPTED: &str = "Interrupted before the agent had answered.";

struct Started {
    running: spawn::Running,
    leader: Leader,
    record: Record,
}

/// An agent at the gate, its run on record.
struct Ready {
    gated: spawn::Gated,
    leader: Leader,
    record: Record,
    input: PathBuf,
}

impl Ready {
    async fn open(self) -> Result<Started, NotStarted> {
        let Self { gated, leader, record, input } = self;
        match gated.open(Some(&input)).await {
            Ok(running) => Ok(Started { running, leader, record }),
            Err(error) => {
                record.remove();
                Err(NotStarted::Failed(format!("the agent cannot be started: {error}")))
            }
        }
    }

    /// Nothing has run, and nothing will.
    async fn abandon(self) {
        self.gated.abandon().await;
        self.record.remove();
    }
}

/// Why a turn did not start.
enum NotStarted {
    /// It is not begun, and runs in the next backend.
    Left,
    /// It was told to end before it began.
    Interrupted,
    /// It has failed.
    Failed(String),
}

/// How a turn ended.
#[derive(Clone)]
struct Ending {
    state: TurnState,
    reply: Option<String>,
    error: Option<String>,
}

impl Ending {
    fn without_reply(state: TurnState, error: impl Into<String>) -> Self {
        Self { state, reply: None, error: Some(error.into()) }
    }
}

impl Turns {
    /// One turn from begin to end. The guard goes last.
    pub(super) async fn run(&self, name: &str, queued: Queued, stop: &watch::Sender<Stop>) {
        let Queued { turn, prompt, guard } = queued;
        let record = match self.start(name, turn, &prompt, &guard, stop).await {
            Ok(started) => {
                guard.set_why("turn running");
                Some(self.see_to_its_end(name, turn, started, &guard, stop.subscribe()).await)
            }
            Err(NotStarted::Left) => None,
            Err(NotStarted::Interrupted) => {
                self.end(turn, &guard, Ending::without_reply(TurnState::Interrupted, INTERRUPTED)).await;
                None
            }
            Err(NotStarted::Failed(error)) => {
                self.end(turn, &guard, Ending::without_reply(TurnState::Failed, error)).await;
                None
            }
        };
        self.shared.strays.enter_orphans(&guard, name);
        if let Some(record) = record {
            record.remove();
        }
        drop(guard);
    }

    async fn start(
        &self,
        name: &str,
        turn: u64,
        prompt: &str,
        guard: &Guard,
        stop: &watch::Sender<Stop>,
    ) -> Result<Started, NotStarted> {
        let program = self.shared.agent.program(name, turn).map_err(NotStarted::Failed)?;
        let ready = self.ready(name, &program, prompt, guard, stop).await?;
        let at = self.now();
        let told_to_end = || self.must_not_start(stop);
        match self.insist(guard, told_to_end, move |journal| journal.begin(turn, &at)).await {
            Some(true) => ready.open().await,
            // It waits no more: whoever began or ended it sees to it.
            Some(false) => {
                ready.abandon().await;
                Err(NotStarted::Left)
            }
            None => {
                ready.abandon().await;
                Err(self.not_started())
            }
        }
    }

    /// Stands at the gate. What can fail for want of something does so here, where nothing has begun yet, and is tried again;
    /// an agent that outlived an earlier backend is waited for.
    async fn ready(
        &self,
        name: &str,
        program: &spawn::Program,
        prompt: &str,
        guard: &Guard,
        stop: &watch::Sender<Stop>,
    ) -> Result<Ready, NotStarted> {
        let mut failures = 0;
        loop {
            match self.try_ready(name, program, prompt).await {
                Ok(Some(ready)) => return Ok(ready),
                _ if self.must_not_start(stop) => return Err(self.not_started()),
                Ok(None) => sleep(HELD_BACK).await,
                Err(error) => {
                    failures += 1;
                    wait_out(guard, failures, "to be started", &error).await;
                }
            }
        }
    }

    /// `None` if an agent of this session lives that an earlier backend had started.
    async fn try_ready(&self, name: &str, program: &spawn::Program, prompt: &str) -> io::Result<Option<Ready>> {
        let Some(mut record) = self.shared.runs.reserve("turn", name)? else { return Ok(None) };
        let gated = spawn::gated(program)?;
        let leader = self.shared.strays.lead(gated.pid);
        let run = Run {
            kind: "turn".to_owned(),
            id: name.to_owned(),
            pid: gated.pid,
            start_marker: gated.start_marker.clone(),
            scheduled_for: None,
            started_at: self.now(),
            result: None,
        };
        let prompt = prompt.to_owned();
        let written = spawn_blocking(move || match record.write(&run).and_then(|()| record.write_input(&prompt)) {
            Ok(input) => Ok((record, input)),
            Err(error) => {
                record.remove();
                Err(error)
            }
        });
        match written.await.unwrap_or_else(|error| Err(error.into())) {
            Ok((record, input)) => Ok(Some(Ready { gated, leader, record, input })),
            Err(error) => {
                gated.abandon().await;
                Err(error)
            }
        }
    }

    fn must_not_start(&self, stop: &watch::Sender<Stop>) -> bool {
        self.leaving() || *stop.borrow() >= Stop::Term
    }

    fn not_started(&self) -> NotStarted {
        if self.leaving() { NotStarted::Left } else { NotStarted::Interrupted }
    }

    async fn see_to_its_end(
        &self,
        name: &str,
        turn: u64,
        started: Started,
        guard: &Guard,
        stop: watch::Receiver<Stop>,
    ) -> Record {
        let Started { running, leader, record } = started;
        let spawn::Running { mut child, group, mut stdout, mut stderr } = running;
        let limit = self.shared.agent.limit.unwrap_or(FOR_EVER);
        let (status, cut) = until(group, limit, stop.clone(), async { child.wait().await.ok() }).await;
        let reply = Some(shortened(stdout.settled().await)).filter(|reply| !reply.is_empty());
        let complaints = stderr.settled().await;
        let complaints = complaints.trim();
        if !complaints.is_empty() {
            tracing::info!(turn, stderr = complaints, "the agent says");
        }
        let (state, error) = match (cut, status) {
            (Some(Cut::Interrupted), _) => (TurnState::Interrupted, Some(INTERRUPTED.to_owned())),
            (Some(Cut::TimedOut), _) => {
                (TurnState::Failed, Some(format!("the agent took longer than {}", span::shown(millis(limit)))))
            }
            (None, Some(status)) if status.success() => (TurnState::Done, None),
            (None, status) => {
                let how = status.map_or("in an unknown way".to_owned(), |status| status.to_string());
                (TurnState::Failed, Some(format!("the agent ended with {how}\n{complaints}").trim().to_owned()))
            }
        };
        // One that was told to end is, with its whole group.
        let patience = if cut == Some(Cut::TimedOut) { Duration::ZERO } else { FOR_EVER };
        let written = async {
            self.end(turn, guard, Ending { state, reply, error }).await;
            guard.set_why("unwinding");
        };
        // Both at once: a journal that cannot be written keeps nobody alive who was told to end.
        let unwound = async {
            until(group, patience, stop, group.gone()).await;
            drop(leader);
            self.shared.strays.enter_orphans(guard, name);
        };
        tokio::join!(written, unwound);
        record
    }

    async fn end(&self, turn: u64, guard: &Guard, ending: Ending) {
        let at = self.now();
        let too_late = || *self.shared.stop.borrow() >= Stop::Kill;
        let write = move |journal: &Journal| {
            journal.end(turn, ending.state, ending.reply.as_deref(), ending.error.as_deref(), &at)
        };
        if self.insist(guard, too_late, write).await.is_none() {
            tracing::error!(turn, "the end of a turn cannot be written: the next start records it as interrupted");
        }
        self.shared.ended.send_modify(|count| *count += 1);
    }

    /// Writes into the journal, again and again; `None` once it is given up.
    async fn insist<T: Send + 'static>(
        &self,
        guard: &Guard,
        give_up: impl Fn() -> bool,
        write: impl Fn(&Journal) -> Result<T, JournalError> + Clone + Send + 'static,
    ) -> Option<T> {
        let mut failures = 0;
        loop {
            let fault = match self.journal(write.clone()).await {
                Ok(written) => return Some(written),
                Err(fault) => fault,
            };
            if give_up() {
                return None;
            }
            failures += 1;
            wait_out(guard, failures, "for its journal", &fault).await;
        }
    }
}

/// A turn waits for something that failed: the first time it says so, and every time it waits longer.
async fn wait_out(guard: &Guard, failures: u32, what: &str, error: &(dyn Display + Sync)) {
    if failures == 1 {
        tracing::warn!(%error, "a turn waits {what}");
        guard.set_why(&format!("waiting {what}: {error}"));
    }
    sleep(doubled(FIRST_PAUSE, failures, LONGEST_PAUSE)).await;
}

/// As much of a reply as is kept, with a mark where it was cut.
fn shortened(mut reply: String) -> String {
    if reply.len() > MAX_REPLY {
        let end = (0..=MAX_REPLY).rev().find(|end| reply.is_char_boundary(*end)).unwrap_or(0);
        let cut = reply.len() - end;
        reply.truncate(end);
        reply.push_str(&format!("\n[… {cut} bytes cut …]"));
    }
    reply.truncate(reply.trim_end().len());
    reply
}
