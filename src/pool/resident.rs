//! One resident as the service knows it: its process, where it answers, what it last said. Its tasks end with it.

use std::convert::Infallible;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::sleep;

use super::child::{self, Nursery};
use super::contact::{self, Prepared, Word};
use super::memory;
use super::roster::Member;
use super::{Lease, Standing};
use crate::backoff::doubled;
use crate::clock::Moment;
use crate::protocol::{LedgerEntry, LedgerKind, Opened};
use crate::runtime::Endpoint;
use crate::serve::ServeError;

/// An idle orphan is gone within a second; a little more is given.
const ORPHAN_LEAVES: Duration = Duration::from_millis(1500);

/// Between two tries to adopt a child.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The try, a third of a second after the first, that says why: so long an orphan may need to see that it is one.
const SAY_SO: u32 = 6;

/// What its tasks tell of a resident.
pub enum News {
    /// There is no process, and why.
    Unborn(String),
    /// There is one.
    Born {
        /// Its id.
        pid: u32,
        /// Its start marker.
        start_marker: String,
    },
    /// It serves.
    Up(Box<Endpoint>),
    /// It cannot be taken over yet, and why.
    Untaken(String),
    /// It does not come up, and why; its exit is still to come.
    Lost(String),
    /// It has exited, and how.
    Exited(String),
    /// It said how it stands, by itself.
    Said(Word),
    /// It said how it stands, when asked.
    Answered(Word),
    /// It gave a permit, or none.
    Prepared(Result<Box<Prepared>, Word>),
    /// The permit is final, or not.
    Committed(Result<(), Word>),
    /// What its process tree takes, in bytes.
    Measured(Option<u64>),
}

/// Where a resident's tasks tell their news.
pub type Teller = mpsc::Sender<(Lease, News)>;

/// One child's lifetime.
pub struct Resident {
    lease: Lease,
    teller: Teller,
    /// Its profile.
    pub profile: Arc<str>,
    /// Its process, once there is one.
    pub process: Option<(u32, String)>,
    /// Where it answers, once it does.
    pub endpoint: Option<Endpoint>,
    /// The permit that it gave.
    pub permit: Option<Box<Prepared>>,
    /// Why it did not come up.
    pub lost: Option<String>,
    /// Why it is not taken over yet.
    pub untaken: Option<String>,
    found: bool,
    word: Word,
    heard: Option<Moment>,
    measuring: bool,
    ear: Option<JoinHandle<()>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Resident {
    fn drop(&mut self) {
        self.tasks.iter().chain(&self.ear).for_each(JoinHandle::abort);
    }
}

impl Resident {
    /// Starts a child.
    pub fn spawn(lease: Lease, profile: Arc<str>, nursery: &Nursery, teller: &Teller) -> Self {
        let resident = Self::new(lease, profile, teller);
        let (nursery, teller, profile) = (nursery.clone(), teller.clone(), Arc::clone(&resident.profile));
        // Not among the tasks that end with the resident: the exit is what ends it.
        tokio::spawn(async move { live(lease, &profile, &nursery, &teller).await });
        resident
    }

    /// A living child of a dead pool.
    pub fn found(lease: Lease, profile: Arc<str>, member: Member, nursery: &Nursery, teller: &Teller) -> Self {
        let mut resident = Self::new(lease, profile, teller);
        let (pid, start_marker) = (member.pid, member.start_marker.clone());
        resident.process = Some((pid, start_marker.clone()));
        resident.found = true;
        let (telling, nursery) = (teller.clone(), nursery.clone());
        tokio::spawn(async move {
            child::gone(pid, &start_marker).await;
            tell(&telling, lease, News::Exited("it has left".to_owned())).await;
        });
        let telling = teller.clone();
        resident.keep(tokio::spawn(async move {
            let endpoint = take_over(lease, &nursery, &member, &telling).await;
            tell(&telling, lease, News::Up(Box::new(endpoint))).await;
        }));
        resident
    }

    /// As the roster has it, once there is a process.
    pub fn member(&self) -> Option<Member> {
        let (pid, start_marker) = self.process.clone()?;
        let generation = self.endpoint.as_ref().map(|endpoint| endpoint.generation.clone()).unwrap_or_default();
        Some(Member { profile: self.profile.to_string(), pid, start_marker, generation })
    }

    /// Whether a pool before us started it and it is not taken over yet.
    pub fn is_left(&self) -> bool {
        self.found && self.endpoint.is_none()
    }

    fn new(lease: Lease, profile: Arc<str>, teller: &Teller) -> Self {
        Self {
            lease,
            teller: teller.clone(),
            profile,
            process: None,
            endpoint: None,
            permit: None,
            lost: None,
            untaken: None,
            found: false,
            word: Word::unknown(),
            heard: None,
            measuring: false,
            ear: None,
            tasks: Vec::new(),
        }
    }

    /// It serves: from now on it is listened to.
    pub fn up(&mut self, endpoint: Endpoint) {
        self.endpoint = Some(endpoint);
        self.listen();
    }

    /// Listens on a new connection. One that said nothing when asked may have nothing new to say on the old one.
    fn listen(&mut self) {
        let Some(endpoint) = self.endpoint.clone() else { return };
        let (lease, teller) = (self.lease, self.teller.clone());
        let (said, mut words) = mpsc::channel(1);
        let listening = contact::listen(endpoint, said);
        let ear = tokio::spawn(async move {
            let pass_on = async {
                while let Some(word) = words.recv().await {
                    if teller.send((lease, News::Said(word))).await.is_err() {
                        return;
                    }
                }
            };
            tokio::join!(listening, pass_on);
        });
        if let Some(old) = self.ear.replace(ear) {
            old.abort();
        }
    }

    /// Remembers how it answered when it was asked.
    pub fn hear_answer(&mut self, word: Word, now: Moment) -> Standing {
        if word.verdict.idle().is_none() {
            self.listen();
        }
        self.hear(word, now)
    }

    /// Remembers how it stands.
    pub fn hear(&mut self, word: Word, now: Moment) -> Standing {
        let standing = Standing::from(word.verdict.clone());
        self.word = word;
        self.heard = Some(now);
        standing
    }

    /// Whether it has said anything yet.
    pub fn is_heard(&self) -> bool {
        self.heard.is_some()
    }

    /// Who holds it, as old as they are by now, and how many more.
    pub fn holders(&self, now: Moment) -> (Vec<LedgerEntry>, u64) {
        if let (Some(why), Some((pid, _)), None) = (&self.untaken, &self.process, &self.endpoint) {
            let why = format!("outlived the pool before this one, and is not adopted yet: {why}");
            let (ledger, id) = (LedgerKind::Process, pid.to_string());
            return (vec![LedgerEntry { number: 0, ledger, id, why, age_ms: 0 }], 0);
        }
        let since = self.heard.map_or(0, |heard| crate::handler::millis(now.since(heard)));
        let mut holders = self.word.holders.clone();
        holders.iter_mut().for_each(|entry| entry.age_ms = entry.age_ms.saturating_add(since));
        (holders, self.word.more)
    }

    /// Asks it how it stands.
    pub fn probe(&mut self) {
        self.ask(|endpoint| async move { News::Answered(contact::probe(&endpoint).await) });
    }

    /// Asks it for a permit.
    pub fn prepare(&mut self) {
        self.ask(|endpoint| async move { News::Prepared(contact::prepare(&endpoint).await.map(Box::new)) });
    }

    /// Makes its permit final.
    pub fn commit(&mut self) {
        let Some(prepared) = self.permit.take() else {
            return self.ask(|_| async { News::Committed(Err(Word::unknown())) });
        };
        self.ask(|endpoint| async move { News::Committed(contact::commit(&endpoint, *prepared).await) });
    }

    /// Measures what it takes, unless that is under way.
    pub fn measure(&mut self) {
        let Some((pid, _)) = self.process else { return };
        if std::mem::replace(&mut self.measuring, true) {
            return;
        }
        let (lease, teller) = (self.lease, self.teller.clone());
        self.keep(tokio::spawn(async move {
            let bytes = spawn_blocking(move || memory::of_tree(pid)).await.ok().flatten();
            let _ = teller.send((lease, News::Measured(bytes))).await;
        }));
    }

    /// It was measured.
    pub fn measured(&mut self) {
        self.measuring = false;
    }

    /// Tells it to end. Only for one that was committed, or by a person's order.
    pub fn end(&self) {
        if let Some((pid, start_marker)) = self.process.clone() {
            tokio::spawn(async move { child::end(pid, &start_marker).await });
        }
    }

    fn ask<F: Future<Output = News> + Send + 'static>(&mut self, what: impl FnOnce(Endpoint) -> F) {
        let Some(endpoint) = self.endpoint.clone() else { return };
        let (lease, teller, answer) = (self.lease, self.teller.clone(), what(endpoint));
        self.keep(tokio::spawn(async move {
            let _ = teller.send((lease, answer.await)).await;
        }));
    }

    fn keep(&mut self, task: JoinHandle<()>) {
        self.tasks.retain(|task| !task.is_finished());
        self.tasks.push(task);
    }

    /// Its endpoint record without the token.
    pub fn opened(&self) -> Option<Opened> {
        self.endpoint.clone().map(|endpoint| Opened {
            pid: endpoint.pid,
            start_marker: endpoint.start_marker,
            generation: endpoint.generation,
            profile: endpoint.profile,
            home: endpoint.home,
            socket: endpoint.socket,
            port: endpoint.port,
            version: endpoint.version,
        })
    }
}

/// Becomes the owner of a child that a pool before us started, as soon as it can be: it may not have come up yet, may not have
/// seen its owner's death, may be stopped. Whatever happens, its exit is seen.
async fn take_over(lease: Lease, nursery: &Nursery, member: &Member, teller: &Teller) -> Endpoint {
    let mut failures = 0;
    loop {
        let why = match nursery.find(member) {
            None => "it has no endpoint record".to_owned(),
            Some(endpoint) => match contact::adopt(&endpoint, nursery.pid, &nursery.start_marker).await {
                Ok(()) => return endpoint,
                Err(why) => why,
            },
        };
        failures += 1;
        if failures == SAY_SO {
            tracing::warn!(profile = member.profile, pid = member.pid, why, "a backend cannot be adopted yet");
            tell(teller, lease, News::Untaken(why)).await;
        }
        sleep(doubled(FIRST_PAUSE, failures, LONGEST_PAUSE)).await;
    }
}

/// A child from its start to its exit.
async fn live(lease: Lease, profile: &str, nursery: &Nursery, teller: &Teller) {
    let mut status = match once(lease, profile, nursery, teller).await {
        Ok(how) => how,
        Err(why) => return tell(teller, lease, News::Unborn(why)).await,
    };
    // Whoever serves the home may be an orphan of a pool before us, which leaves by itself when it is idle.
    if status.0 == Some(ServeError::ALREADY_SERVED) && nursery.is_left(profile, ORPHAN_LEAVES).await {
        status = match once(lease, profile, nursery, teller).await {
            Ok(how) => how,
            Err(why) => return tell(teller, lease, News::Unborn(why)).await,
        };
    }
    tell(teller, lease, News::Exited(status.1)).await;
}

/// One process; its exit code, and how it ended in words.
async fn once(
    lease: Lease,
    profile: &str,
    nursery: &Nursery,
    teller: &Teller,
) -> Result<(Option<i32>, String), String> {
    let born = nursery.start(profile)?;
    tell(teller, lease, News::Born { pid: born.pid, start_marker: born.start_marker.clone() }).await;
    let (mut process, stdout, expected, log) = born.split();
    let exit = async {
        let status = process.wait().await;
        (status.as_ref().ok().and_then(ExitStatus::code), child::how(status, &log.last_words().await))
    };
    let coming_up = async {
        match nursery.ready(profile, &expected, stdout).await {
            Ok(endpoint) => tell(teller, lease, News::Up(Box::new(endpoint))).await,
            // Its exit says more.
            Err(None) => {}
            Err(Some(why)) => tell(teller, lease, News::Lost(why)).await,
        }
        std::future::pending::<Infallible>().await
    };
    tokio::select! {
        how = exit => Ok(how),
        never = coming_up => match never {},
    }
}

async fn tell(teller: &Teller, lease: Lease, news: News) {
    let _ = teller.send((lease, news)).await;
}
