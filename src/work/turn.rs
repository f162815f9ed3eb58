//! Turns: an agent command, run once a prompt, one at a time a session.
//!
//! 1. A prompt is admitted, entered in the session ledger as queued, and written to the journal; only then acknowledged.
//! 2. The session's own task takes the next one. From its `begin` in the journal on it is never run again.
//! 3. The agent runs behind the gate, the prompt on its standard input, its group on record.
//! 4. When the agent has exited its reply is in the journal; while its group lives the session unwinds, and is busy.
//! 5. After a crash, what ran is interrupted and what waited runs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::Stop;
use super::agent::Agent;
use super::journal::{Journal, JournalError, Waiting};
use super::record::{Record, Run, Runs};
use super::spawn;
use super::strays::{Leader, Strays};
use super::supervise::{Cut, until};
use crate::cron::job::is_plain;
use crate::cron::schedule::iso;
use crate::cron::zone::Zone;
use crate::fence::Admission;
use crate::ledger::{Guard, Ledgers};
use crate::protocol::{Fault, FaultKind, LedgerKind, Reply, SessionReport, TurnReport, TurnState};

/// A prompt is at most so long.
pub const MAX_PROMPT: usize = 256 * 1024;

/// So much of a reply is kept.
const MAX_REPLY: usize = 256 * 1024;

/// So many prompts wait in a session, and in all of them.
pub const MAX_QUEUED: usize = 64;
const MAX_QUEUED_IN_ALL: usize = 1024;

/// Between TERM and KILL of an interrupted turn.
const INTERRUPT_GRACE: Duration = Duration::from_secs(2);

/// A session whose last agent outlived an earlier backend is looked at this often.
const HELD_BACK: Duration = Duration::from_millis(200);

/// What a turn is recorded with that a dead backend had begun.
const LOST: &str = "Interrupted: the backend died while this turn was under way; it is not run again.";

/// What a turn is recorded with that was told to end.
const INTERRUPTED: &str = "Interrupted before the agent had answered.";

/// The turns of a child. Clones are handles to the same ones.
#[derive(Clone)]
pub struct Turns {
    shared: Arc<Shared>,
}

struct Shared {
    agent: Agent,
    ledgers: Ledgers,
    journal: Journal,
    runs: Runs,
    strays: Strays,
    zone: Zone,
    stop: watch::Receiver<Stop>,
    sessions: Mutex<BTreeMap<String, Session>>,
    /// Counts endings, for those who wait for one.
    ended: watch::Sender<u64>,
}

#[derive(Default)]
struct Session {
    queue: VecDeque<Queued>,
    /// The turn that runs, and how to end it.
    running: Option<(u64, watch::Sender<Stop>)>,
    /// A task of this session takes from the queue.
    served: bool,
}

struct Queued {
    turn: u64,
    prompt: String,
    guard: Guard,
}

impl Turns {
    /// No turn yet.
    pub fn new(agent: Agent, ledgers: Ledgers, strays: Strays, zone: Zone, stop: watch::Receiver<Stop>) -> Self {
        let (journal, runs) = (Journal::of(&agent.home), Runs::of(&agent.home));
        let shared = Shared {
            agent,
            ledgers,
            journal,
            runs,
            strays,
            zone,
            stop,
            sessions: Mutex::default(),
            ended: watch::Sender::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    fn sessions_now(&self) -> MutexGuard<'_, BTreeMap<String, Session>> {
        self.shared.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> String {
        iso(self.shared.ledgers.clock().wall(), self.shared.zone.get())
    }

    /// Runs journal work where blocking is allowed.
    async fn journal<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Journal) -> Result<T, JournalError> + Send + 'static,
    ) -> Result<T, Fault> {
        let shared = Arc::clone(&self.shared);
        let done = spawn_blocking(move || work(&shared.journal)).await;
        let unavailable = |message: String| Fault::new(FaultKind::Unavailable, message);
        done.map_err(|error| unavailable(error.to_string()))?.map_err(|error| unavailable(error.to_string()))
    }

    /// Takes up what an earlier backend of this home had accepted. Before READY; costs nothing if there is no journal.
    pub async fn recover(&self) {
        if !self.shared.journal.exists() {
            return;
        }
        let at = self.now();
        let waiting = match self.journal(move |journal| journal.recover(LOST, &at)).await {
            Ok(waiting) => waiting,
            Err(fault) => return tracing::error!(%fault, "accepted prompts cannot be taken up"),
        };
        if !waiting.is_empty() && self.shared.agent.command.is_empty() {
            let prompts = waiting.len();
            return tracing::warn!(prompts, "accepted prompts wait for an agent: start with --agent-command");
        }
        for Waiting { turn, session, prompt } in waiting {
            let Ok(admission) = self.shared.ledgers.admit() else { return };
            let guard = self.shared.ledgers.enter(&admission, LedgerKind::Session, &session, "continuation scheduled");
            self.enqueue(&session, Queued { turn, prompt, guard });
        }
    }

    /// Accepts a prompt.
    ///
    /// # Errors
    /// Nothing was accepted.
    pub async fn submit(&self, session: &str, prompt: String, admission: &Admission) -> Result<Reply, Fault> {
        self.check(session, &prompt)?;
        {
            let sessions = self.sessions_now();
            let queued = sessions.get(session).map_or(0, |session| session.queue.len());
            let in_all: usize = sessions.values().map(|session| session.queue.len()).sum();
            if queued >= MAX_QUEUED || in_all >= MAX_QUEUED_IN_ALL {
                let message = format!("{queued} prompts wait in {session} already: wait for some of them");
                return Err(Fault::new(FaultKind::TooMany, message));
            }
        }
        let guard = self.shared.ledgers.enter(admission, LedgerKind::Session, session, "prompt queued");
        let (turns, session) = (self.clone(), session.to_owned());
        // A caller that goes away meanwhile takes nothing with it: what is on disk is queued.
        let accepted = tokio::spawn(async move {
            let (at, name, text) = (turns.now(), session.clone(), prompt.clone());
            let turn = turns.journal(move |journal| journal.accept(&name, &text, &at)).await?;
            let ahead = turns.enqueue(&session, Queued { turn, prompt, guard });
            Ok(Reply::Submitted { turn, ahead })
        });
        accepted.await.unwrap_or_else(|error| Err(Fault::new(FaultKind::Unavailable, error.to_string())))
    }

    /// Starts a turn of its own for one that runs; it ends with that one unless it is detached.
    ///
    /// # Errors
    /// Nothing was started.
    pub async fn delegate(
        &self,
        session: &str,
        prompt: String,
        detached: bool,
        admission: &Admission,
    ) -> Result<Reply, Fault> {
        self.check(session, &prompt)?;
        let parent = self
            .sessions_now()
            .get(session)
            .and_then(|session| session.running.as_ref().map(|(_, stop)| stop.subscribe()));
        let Some(parent) = parent else {
            return Err(Fault::new(
                FaultKind::Conflict,
                format!("no turn runs in {session}: only a running one delegates"),
            ));
        };
        let guard = self.shared.ledgers.enter(admission, LedgerKind::Delegation, session, "delegated task");
        let (turns, session) = (self.clone(), format!("{session}.delegated"));
        let accepted = tokio::spawn(async move {
            let (at, name, text) = (turns.now(), session.clone(), prompt.clone());
            let turn = turns.journal(move |journal| journal.accept(&name, &text, &at)).await?;
            let stop = watch::Sender::new(Stop::Run);
            let runner = turns.clone();
            tokio::spawn(async move {
                let follow = (!detached).then(|| tokio::spawn(end_with(parent, stop.clone())));
                runner.run(&format!("{session}-{turn}"), Queued { turn, prompt, guard }, stop).await;
                if let Some(follow) = follow {
                    follow.abort();
                }
            });
            Ok(Reply::Submitted { turn, ahead: 0 })
        });
        accepted.await.unwrap_or_else(|error| Err(Fault::new(FaultKind::Unavailable, error.to_string())))
    }

    /// Runs one prompt in a session of its own and waits for its end, as work of whoever holds `under`.
    ///
    /// # Errors
    /// It was not accepted, or its end cannot be read.
    pub async fn run_under(&self, session: &str, prompt: String, under: &Guard) -> Result<TurnReport, Fault> {
        self.check(session, &prompt)?;
        let gone = || Fault::new(FaultKind::Unavailable, "the work that this belongs to is over");
        let admission = under.admit().ok_or_else(gone)?;
        let guard = self.shared.ledgers.enter(&admission, LedgerKind::Session, session, "prompt queued");
        drop(admission);
        let (at, name, text) = (self.now(), session.to_owned(), prompt.clone());
        let turn = self.journal(move |journal| journal.accept(&name, &text, &at)).await?;
        let stop = watch::Sender::new(Stop::Run);
        let ladder = tokio::spawn(end_with(self.shared.stop.clone(), stop.clone()));
        self.run(session, Queued { turn, prompt, guard }, stop).await;
        ladder.abort();
        self.turn(turn, false).await
    }

    fn check(&self, session: &str, prompt: &str) -> Result<(), Fault> {
        let invalid = |message: String| Err(Fault::new(FaultKind::Invalid, message));
        if self.shared.agent.command.is_empty() {
            let message = "this backend has no agent: start it with --agent-command or HERMES_AGENT_COMMAND";
            return Err(Fault::new(FaultKind::Unavailable, message));
        }
        if !is_plain(session) {
            return invalid(format!("the session {session:?} is no plain name"));
        }
        match prompt.len() {
            _ if prompt.trim().is_empty() => invalid("the prompt is empty".to_owned()),
            size if size > MAX_PROMPT => {
                invalid(format!("the prompt has {size} bytes; at most {MAX_PROMPT} are taken"))
            }
            _ => Ok(()),
        }
    }

    /// How many come first.
    fn enqueue(&self, name: &str, queued: Queued) -> u32 {
        let mut sessions = self.sessions_now();
        let session = sessions.entry(name.to_owned()).or_default();
        let ahead = session.queue.len() + usize::from(session.running.is_some());
        session.queue.push_back(queued);
        if !std::mem::replace(&mut session.served, true) {
            let (turns, name) = (self.clone(), name.to_owned());
            tokio::spawn(async move { turns.serve(&name).await });
        }
        u32::try_from(ahead).unwrap_or(u32::MAX)
    }

    /// Takes one prompt after the other, until there is none or the backend leaves.
    async fn serve(&self, name: &str) {
        while let Some((queued, stop)) = self.next(name) {
            let ladder = tokio::spawn(end_with(self.shared.stop.clone(), stop.clone()));
            self.run(name, queued, stop).await;
            ladder.abort();
        }
    }

    fn next(&self, name: &str) -> Option<(Queued, watch::Sender<Stop>)> {
        let mut sessions = self.sessions_now();
        let session = sessions.get_mut(name)?;
        session.running = None;
        // What waits while the backend leaves is on disk, and runs in the next one.
        let leaving = *self.shared.stop.borrow() > Stop::Run;
        let Some(queued) = session.queue.pop_front().filter(|_| !leaving) else {
            sessions.remove(name);
            return None;
        };
        let stop = watch::Sender::new(Stop::Run);
        session.running = Some((queued.turn, stop.clone()));
        Some((queued, stop))
    }

    /// One turn from begin to end. The guard goes last.
    async fn run(&self, name: &str, queued: Queued, stop: watch::Sender<Stop>) {
        let Queued { turn, prompt, guard } = queued;
        let ended = match self.start(name, turn, &prompt).await {
            Ok(started) => {
                guard.set_why("turn running");
                self.see_to_its_end(turn, started, &guard, stop.subscribe()).await
            }
            Err(error) => {
                self.end(turn, TurnState::Failed, None, Some(error)).await;
                None
            }
        };
        self.shared.strays.enter_orphans(&guard, name);
        if let Some(record) = ended {
            record.remove();
        }
        drop(guard);
    }

    async fn start(&self, name: &str, turn: u64, prompt: &str) -> Result<Started, String> {
        let program = self.shared.agent.program(name, turn)?;
        let mut record = self.reserve(name).await?;
        let at = self.now();
        let begun = at.clone();
        self.journal(move |journal| journal.begin(turn, &begun)).await.map_err(|fault| fault.message)?;
        let gated = spawn::gated(&program).map_err(|error| format!("the agent cannot be started: {error}"))?;
        let leader = self.shared.strays.lead(gated.pid);
        let run = Run {
            kind: "turn".to_owned(),
            id: name.to_owned(),
            pid: gated.pid,
            start_marker: gated.start_marker.clone(),
            scheduled_for: None,
            started_at: at,
            result: None,
        };
        let written = spawn_blocking(move || record.write(&run).map(|()| record)).await;
        let record = written.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        let running =
            gated.open(prompt.as_bytes()).await.map_err(|error| format!("the agent cannot be started: {error}"))?;
        Ok(Started { running, leader, record })
    }

    /// The record of the session; an agent that outlived an earlier backend is waited for.
    async fn reserve(&self, name: &str) -> Result<Record, String> {
        loop {
            match self.shared.runs.reserve("turn", name) {
                Ok(Some(record)) => return Ok(record),
                Ok(None) => sleep(HELD_BACK).await,
                Err(error) => return Err(format!("the turn cannot be put on record: {error}")),
            }
        }
    }

    async fn see_to_its_end(
        &self,
        turn: u64,
        started: Started,
        guard: &Guard,
        stop: watch::Receiver<Stop>,
    ) -> Option<Record> {
        let Started { running, leader, record } = started;
        let spawn::Running { mut child, group, mut stdout, mut stderr } = running;
        let limit = self.shared.agent.limit.unwrap_or(FOR_EVER);
        let (status, cut) = until(group, limit, stop.clone(), async { child.wait().await.ok() }).await;
        let mut reply = stdout.settled().await;
        let complaints = stderr.settled().await;
        if !complaints.trim().is_empty() {
            tracing::info!(turn, stderr = complaints.trim(), "the agent says");
        }
        if reply.len() > MAX_REPLY {
            let end = (0..=MAX_REPLY).rev().find(|end| reply.is_char_boundary(*end)).unwrap_or(0);
            let cut = reply.len() - end;
            reply.truncate(end);
            reply.push_str(&format!("\n[… {cut} bytes cut …]"));
        }
        let reply = Some(reply.trim_end().to_owned()).filter(|reply| !reply.is_empty());
        let (state, error) = match (cut, status) {
            (Some(Cut::Interrupted), _) => (TurnState::Interrupted, Some(INTERRUPTED.to_owned())),
            (Some(Cut::TimedOut), _) => {
                (TurnState::Failed, Some(format!("the agent took longer than {} s", limit.as_secs())))
            }
            (None, Some(status)) if status.success() => (TurnState::Done, None),
            (None, status) => {
                let how = status.map_or("in an unknown way".to_owned(), |status| status.to_string());
                (
                    TurnState::Failed,
                    Some(format!("the agent ended with {how}\n{}", complaints.trim()).trim().to_owned()),
                )
            }
        };
        self.end(turn, state, reply, error).await;
        guard.set_why("unwinding");
        until(group, FOR_EVER, stop, group.gone()).await;
        drop(leader);
        Some(record)
    }

    async fn end(&self, turn: u64, state: TurnState, reply: Option<String>, error: Option<String>) {
        let at = self.now();
        let written =
            self.journal(move |journal| journal.end(turn, state, reply.as_deref(), error.as_deref(), &at)).await;
        if let Err(fault) = written {
            tracing::error!(turn, %fault, "the end of a turn cannot be written; the next start records it as interrupted");
        }
        self.shared.ended.send_modify(|count| *count += 1);
    }

    /// Tells the turn of a session to end; which that is.
    ///
    /// # Errors
    /// None runs.
    pub fn interrupt(&self, name: &str) -> Result<u64, Fault> {
        let sessions = self.sessions_now();
        let Some((turn, stop)) = sessions.get(name).and_then(|session| session.running.clone()) else {
            return Err(Fault::new(FaultKind::Conflict, format!("no turn runs in {name}: see hermesctl sessions")));
        };
        stop.send_replace(Stop::Term);
        tokio::spawn(async move {
            sleep(INTERRUPT_GRACE).await;
            stop.send_replace(Stop::Kill);
        });
        Ok(turn)
    }

    /// One turn, now or when it has ended.
    ///
    /// # Errors
    /// There is no such turn.
    pub async fn turn(&self, turn: u64, wait: bool) -> Result<TurnReport, Fault> {
        let mut endings = self.shared.ended.subscribe();
        loop {
            endings.mark_unchanged();
            let report = match self.shared.journal.exists() {
                true => self.journal(move |journal| journal.turn(turn)).await?,
                false => None,
            };
            match report {
                None => return Err(Fault::new(FaultKind::NotFound, format!("there is no turn {turn}"))),
                Some(report) if report.state.ended() || !wait => return Ok(report),
                Some(_) => {
                    let _ = endings.changed().await;
                }
            }
        }
    }

    /// The sessions whose turns came last.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn sessions(&self) -> Result<Vec<SessionReport>, Fault> {
        if !self.shared.journal.exists() {
            return Ok(Vec::new());
        }
        let mut reports = self.journal(|journal| journal.sessions(1000)).await?;
        let sessions = self.sessions_now();
        for report in &mut reports {
            // A session that unwinds has nothing running in the journal any more.
            if let Some((turn, _)) = sessions.get(&report.session).and_then(|session| session.running.as_ref()) {
                report.running = Some(*turn);
            }
        }
        Ok(reports)
    }

    /// The turns of a session.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn log(&self, session: String, after: u64, limit: u32) -> Result<Vec<TurnReport>, Fault> {
        if !self.shared.journal.exists() {
            return Ok(Vec::new());
        }
        self.journal(move |journal| journal.log(&session, after, limit)).await
    }
}

/// Longer than any turn.
const FOR_EVER: Duration = Duration::from_secs(60 * 60 * 24 * 365);

struct Started {
    running: spawn::Running,
    leader: Leader,
    record: Record,
}

/// Passes the order to end on; a sender that is gone has nothing more to say, but that its work is over.
async fn end_with(mut from: watch::Receiver<Stop>, to: watch::Sender<Stop>) {
    loop {
        let stage = *from.borrow_and_update();
        if stage >= Stop::Term {
            to.send_replace(stage);
        }
        if from.changed().await.is_err() {
            to.send_replace(Stop::Term);
            sleep(INTERRUPT_GRACE).await;
            to.send_replace(Stop::Kill);
            return;
        }
    }
}
