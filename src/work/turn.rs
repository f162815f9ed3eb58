//! Turns: an agent command, run once a prompt, one at a time a session.
//!
//! 1. A prompt is admitted, entered in the session ledger as queued, and written to the journal; only then acknowledged.
//! 2. The session's own task takes the next one; `turn/run.rs` sees it to its end.
//! 3. After a crash, what ran is interrupted and what waited runs. Until that is known the session ledger is unreadable.

mod run;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OnceCell, watch};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::Stop;
use super::agent::Agent;
use super::journal::{Journal, JournalError, Waiting};
use super::record::Runs;
use super::strays::Strays;
use crate::backoff::doubled;
use crate::cron::job::is_plain;
use crate::cron::schedule::iso;
use crate::cron::zone::Zone;
use crate::fence::Admission;
use crate::ledger::{Guard, Ledgers};
use crate::protocol::{Fault, FaultKind, LedgerKind, Reply, SessionReport, TurnReport};
use crate::secret::random_hex;

/// A prompt is at most so long.
pub const MAX_PROMPT: usize = 256 * 1024;

/// So many prompts wait in a session, and in all of them.
pub const MAX_QUEUED: usize = 64;
const MAX_QUEUED_IN_ALL: usize = 1024;

/// So many delegated tasks live at a time: each has a process.
const MAX_DELEGATED: usize = 64;

/// So much of the name of the asking session goes into that of a delegated one, which must be a plain name too.
const MAX_STEM: usize = 24;

/// Between TERM and KILL of an interrupted turn.
const INTERRUPT_GRACE: Duration = Duration::from_secs(2);

/// How long a journal that cannot be used is left alone; longer from time to time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What a turn is recorded with that a dead backend had begun.
const LOST: &str = "Interrupted: the backend died while this turn was under way; it is not run again.";

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
    /// What waits for a backend with an agent.
    parked: Mutex<Vec<Guard>>,
    /// What an earlier backend had accepted was taken up.
    taken_up: OnceCell<()>,
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
            parked: Mutex::default(),
            taken_up: OnceCell::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    fn sessions_now(&self) -> MutexGuard<'_, BTreeMap<String, Session>> {
        self.shared.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What waits while the backend leaves is on disk, and runs in the next one.
    fn leaving(&self) -> bool {
        *self.shared.stop.borrow() > Stop::Run
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
        let Err(fault) = self.surely_taken_up(None).await else { return };
        tracing::error!(%fault, "accepted prompts cannot be taken up: the verdict is unknown until they are");
        let Ok(admission) = self.shared.ledgers.admit() else { return };
        let doubt = self.shared.ledgers.doubt(&admission, LedgerKind::Session, "control.db", &fault.message);
        let turns = self.clone();
        tokio::spawn(async move {
            let mut failures = 0;
            // A backend that leaves has nothing to take up any more.
            let mut stop = turns.shared.stop.clone();
            while !turns.leaving() && turns.surely_taken_up(Some(&doubt)).await.is_err() {
                failures += 1;
                let pause = doubled(FIRST_PAUSE, failures, LONGEST_PAUSE);
                let _ = timeout(pause, stop.wait_for(|stop| *stop > Stop::Run)).await;
            }
        });
    }

    /// What an earlier backend had accepted is taken up, once, before anything else is accepted: it would be taken up as well.
    async fn surely_taken_up(&self, doubt: Option<&Guard>) -> Result<(), Fault> {
        self.shared.taken_up.get_or_try_init(|| self.take_up(doubt)).await.copied()
    }

    async fn take_up(&self, doubt: Option<&Guard>) -> Result<(), Fault> {
        let at = self.now();
        let waiting = self.journal(move |journal| journal.recover(LOST, &at)).await?;
        let admission = match doubt {
            Some(doubt) => doubt.admit(),
            None => self.shared.ledgers.admit().ok(),
        };
        // They stay on disk, and are taken up at the next try.
        let closed = || Fault::new(FaultKind::Retiring, "earlier prompts are taken up when this backend is open again");
        let admission = admission.ok_or_else(closed)?;
        let agent = !self.shared.agent.command.is_empty();
        if !waiting.is_empty() && !agent {
            let prompts = waiting.len();
            tracing::warn!(prompts, "accepted prompts wait for an agent: start with --agent-command");
        }
        for Waiting { turn, session, prompt } in waiting {
            let why = if agent { "continuation scheduled" } else { "waits for a backend with an agent" };
            let guard = self.shared.ledgers.enter(&admission, LedgerKind::Session, &session, why);
            match agent {
                true => drop(self.enqueue(&session, Queued { turn, prompt, guard })),
                // Accepted is accepted: this backend is not idle as long as they wait.
                false => self.shared.parked.lock().unwrap_or_else(PoisonError::into_inner).push(guard),
            }
        }
        Ok(())
    }

    /// Accepts a prompt.
    ///
    /// # Errors
    /// Nothing was accepted.
    pub async fn submit(&self, session: &str, prompt: String, admission: &Admission) -> Result<Reply, Fault> {
        self.check(session, &prompt)?;
        self.surely_taken_up(None).await?;
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
        self.accept(session.to_owned(), prompt, guard, Self::enqueue).await
    }

    /// Puts a prompt on disk and then has it run; how many come first.
    async fn accept(
        &self,
        session: String,
        prompt: String,
        guard: Guard,
        run: impl FnOnce(&Self, &str, Queued) -> u32 + Send + 'static,
    ) -> Result<Reply, Fault> {
        let turns = self.clone();
        // A caller that goes away meanwhile takes nothing with it: what is on disk is run.
        let accepted = tokio::spawn(async move {
            let turn = turns.put_on_disk(&session, &prompt).await?;
            let ahead = run(&turns, &session, Queued { turn, prompt, guard });
            Ok(Reply::Submitted { turn, ahead })
        });
        accepted.await.unwrap_or_else(|error| Err(Fault::new(FaultKind::Unavailable, error.to_string())))
    }

    async fn put_on_disk(&self, session: &str, prompt: &str) -> Result<u64, Fault> {
        let (session, prompt, at) = (session.to_owned(), prompt.to_owned(), self.now());
        self.journal(move |journal| journal.accept(&session, &prompt, &at)).await
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
        if self.shared.ledgers.count(LedgerKind::Delegation).map_or(true, |live| live >= MAX_DELEGATED) {
            let message = format!("{MAX_DELEGATED} delegated tasks live already: wait for some of them");
            return Err(Fault::new(FaultKind::TooMany, message));
        }
        // A session of its own, so that it can be interrupted, and can delegate in its turn.
        let tag = random_hex::<3>().map_err(|error| Fault::new(FaultKind::Unavailable, error.to_string()))?;
        let name = format!("{}.{tag}", session.chars().take(MAX_STEM).collect::<String>());
        let guard = self.shared.ledgers.enter(admission, LedgerKind::Delegation, session, "delegated task");
        // The parent follows the backend; a detached one has to do that by itself.
        let leader = if detached { self.shared.stop.clone() } else { parent };
        let run = |turns: &Self, session: &str, queued: Queued| {
            let (turns, name, stop) = (turns.clone(), session.to_owned(), watch::Sender::new(Stop::Run));
            let running = Some((queued.turn, stop.clone()));
            turns.sessions_now().insert(name.clone(), Session { running, served: true, ..Session::default() });
            tokio::spawn(async move {
                turns.run_behind(leader, &name, queued, stop).await;
                // Whoever gave it a prompt meanwhile is served, too.
                turns.serve(&name).await;
            });
            0
        };
        self.accept(name, prompt, guard, run).await
    }

    /// Runs one prompt in a session of its own and waits for its end, as work of whoever holds `under`.
    ///
    /// # Errors
    /// It was not accepted, or its end cannot be read.
    pub async fn run_under(&self, session: &str, prompt: String, under: &Guard) -> Result<TurnReport, Fault> {
        self.check(session, &prompt)?;
        // A job is no person who could ask again.
        while let Err(fault) = self.surely_taken_up(Some(under)).await {
            if self.leaving() {
                return Err(fault);
            }
            sleep(LONGEST_PAUSE).await;
        }
        let gone = || Fault::new(FaultKind::Unavailable, "the work that this belongs to is over");
        let admission = under.admit().ok_or_else(gone)?;
        let guard = self.shared.ledgers.enter(&admission, LedgerKind::Session, session, "prompt queued");
        drop(admission);
        let turn = self.put_on_disk(session, &prompt).await?;
        let stop = watch::Sender::new(Stop::Run);
        self.run_behind(self.shared.stop.clone(), session, Queued { turn, prompt, guard }, stop).await;
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

    /// One turn, which ends when its leader does.
    async fn run_behind(&self, leader: watch::Receiver<Stop>, name: &str, queued: Queued, stop: watch::Sender<Stop>) {
        let follower = tokio::spawn(follow(leader, stop.clone()));
        self.run(name, queued, &stop).await;
        follower.abort();
    }

    /// Takes one prompt after the other, until there is none or the backend leaves.
    async fn serve(&self, name: &str) {
        while let Some((queued, stop)) = self.next(name) {
            self.run_behind(self.shared.stop.clone(), name, queued, stop).await;
        }
    }

    fn next(&self, name: &str) -> Option<(Queued, watch::Sender<Stop>)> {
        let mut sessions = self.sessions_now();
        let session = sessions.get_mut(name)?;
        session.running = None;
        let Some(queued) = session.queue.pop_front().filter(|_| !self.leaving()) else {
            sessions.remove(name);
            return None;
        };
        let stop = watch::Sender::new(Stop::Run);
        session.running = Some((queued.turn, stop.clone()));
        Some((queued, stop))
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
        tokio::spawn(async move { end(&stop).await });
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

/// Tells work to end, and then ends it.
async fn end(work: &watch::Sender<Stop>) {
    work.send_modify(|stop| *stop = (*stop).max(Stop::Term));
    sleep(INTERRUPT_GRACE).await;
    work.send_replace(Stop::Kill);
}

/// Passes the order to end on; a leader that is gone has nothing more to say, but that its work is over.
async fn follow(mut leader: watch::Receiver<Stop>, work: watch::Sender<Stop>) {
    loop {
        let stage = *leader.borrow_and_update();
        if stage >= Stop::Term {
            work.send_replace(stage);
        }
        if leader.changed().await.is_err() {
            return end(&work).await;
        }
    }
}
