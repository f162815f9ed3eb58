//! The pool's one task: news come in, the coordinator decides, and what it decides is done. It decides nothing itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep;

use super::attempts::Attempts;
use super::child::Nursery;
use super::due::{self, NextDue};
use super::resident::{News, Resident, Teller};
use super::roster::{Member, Roster};
use super::waiter::{Outcome, Waiter};
use super::{Coordinator, Denial, Effect, Event, Lease, Settings, Ticket};
use crate::clock::{Clock, Moment};
use crate::cron::alarm;
use crate::process;
use crate::protocol::{Class, Fault, FaultKind, PoolReport};

/// So much before its job is due a profile is opened.
pub(super) const LEAD: Duration = Duration::from_millis(500);

/// With a budget, memory is measured this often: it grows without telling anybody.
const MEASURE_AGAIN: Duration = Duration::from_secs(5);

/// What people ask of the pool.
pub enum Command {
    /// Have a profile's child up.
    Open {
        /// The profile.
        profile: Arc<str>,
        /// On whose behalf.
        class: Class,
        /// Give up after so long.
        timeout: Option<Duration>,
        /// Whoever waits.
        waiter: Waiter,
    },
    /// Retire a profile's child by proof.
    Close {
        /// The profile.
        profile: Arc<str>,
        /// Whoever waits.
        waiter: Waiter,
    },
    /// Change the limits.
    Limit {
        /// So many children.
        max: Option<usize>,
        /// So many bytes; 0 for no limit.
        budget: Option<u64>,
        /// The pool after that.
        done: oneshot::Sender<PoolReport>,
    },
    /// Tell the pool as it is now.
    Report {
        /// Whoever asks.
        done: oneshot::Sender<PoolReport>,
    },
    /// A profile is in use.
    Touch {
        /// The profile.
        profile: Arc<str>,
        /// Whether it is up.
        done: oneshot::Sender<bool>,
    },
    /// Retire everybody by proof, and open nothing more.
    Drain,
    /// End whoever is left, proof or not.
    EndAll,
}

/// The service.
pub struct Service {
    pub(super) clock: Clock,
    nursery: Nursery,
    pub(super) coordinator: Coordinator,
    limits: Settings,
    pub(super) residents: BTreeMap<Lease, Resident>,
    pub(super) waiters: BTreeMap<Ticket, Waiting>,
    last_ticket: u64,
    teller: Teller,
    pub(super) up: watch::Sender<BTreeSet<Arc<str>>>,
    pub(super) next_due: NextDue,
    /// What was opened for its job and is not up yet, by its ticket.
    pub(super) opening: BTreeMap<Ticket, Arc<str>>,
    pub(super) attempts: Attempts,
    pub(super) roster: Roster,
    /// Whom a pool that stops leaves alone.
    pub(super) left: Vec<Member>,
    pub(super) report: watch::Sender<PoolReport>,
    measure_at: Moment,
}

pub(super) struct Waiting {
    pub(super) profile: Arc<str>,
    class: Option<Class>,
    timeout: Option<Duration>,
    outcome: oneshot::Sender<Outcome>,
}

/// Where the news of a service come from.
pub struct Inbox {
    commands: mpsc::Receiver<Command>,
    withdrawn: mpsc::Receiver<Ticket>,
    withdraw: mpsc::Sender<Ticket>,
    news: mpsc::Receiver<(Lease, News)>,
    due: mpsc::Receiver<NextDue>,
}

impl Service {
    /// A pool without children, and what it listens to.
    pub fn new(
        clock: Clock,
        nursery: Nursery,
        limits: Settings,
        roster: Roster,
        commands: mpsc::Receiver<Command>,
        report: watch::Sender<PoolReport>,
    ) -> (Self, Inbox) {
        let (teller, news) = mpsc::channel(64);
        let (withdraw, withdrawn) = mpsc::channel(64);
        let (told, due) = mpsc::channel(1);
        let up = watch::Sender::new(BTreeSet::new());
        tokio::spawn(due::follow(nursery.clone(), up.subscribe(), told));
        let service = Self {
            measure_at: clock.now(),
            clock,
            nursery,
            coordinator: Coordinator::new(limits),
            limits,
            residents: BTreeMap::new(),
            waiters: BTreeMap::new(),
            last_ticket: 0,
            teller,
            up,
            next_due: NextDue::new(),
            opening: BTreeMap::new(),
            attempts: Attempts::default(),
            roster,
            left: Vec::new(),
            report,
        };
        (service, Inbox { commands, withdrawn, withdraw, news, due })
    }

    /// A child of the pool before us: it has a slot from now on, and is ours as soon as it can be taken over.
    pub fn find(&mut self, member: Member) {
        if !process::alive(member.pid, &member.start_marker) {
            return;
        }
        let (lease, profile) = (self.coordinator.fresh_lease(), Arc::from(member.profile.as_str()));
        tracing::info!(profile = &*profile, pid = member.pid, "a backend of the pool before this one lives");
        let resident = Resident::found(lease, Arc::clone(&profile), member, &self.nursery, &self.teller);
        self.residents.insert(lease, resident);
        self.happen(Event::Found { lease, profile });
    }

    /// Runs until there is nobody left after [`Command::Drain`].
    pub async fn run(mut self, mut inbox: Inbox) {
        self.settle();
        loop {
            tokio::select! {
                command = inbox.commands.recv() => match command {
                    Some(command) => self.obey(command, &inbox.withdraw),
                    None => return,
                },
                Some(ticket) = inbox.withdrawn.recv() => self.happen(Event::Cancel { ticket }),
                Some((lease, news)) = inbox.news.recv() => self.learn(lease, news),
                Some(next) = inbox.due.recv() => self.know_what_is_due(next),
                () = self.until_wake() => self.happen(Event::Wake),
                () = alarm::ring(&self.clock, self.next_alarm()) => {}
                () = self.until_measure() => self.measure_all(),
            }
            self.open_what_is_due();
            self.settle();
            if self.coordinator.is_drained() {
                return if self.left.is_empty() {
                    self.roster.remove()
                };
            }
        }
    }

    async fn until_wake(&self) {
        match self.coordinator.wake_at() {
            Some(at) => sleep(at.since(self.clock.now())).await,
            None => std::future::pending().await,
        }
    }

    async fn until_measure(&self) {
        match self.limits.budget {
            Some(_) if !self.residents.is_empty() => sleep(self.measure_at.since(self.clock.now())).await,
            _ => std::future::pending().await,
        }
    }

    fn measure_all(&mut self) {
        self.measure_at = self.clock.now().plus(MEASURE_AGAIN);
        self.residents.values_mut().for_each(Resident::measure);
    }

    fn obey(&mut self, command: Command, withdraw: &mpsc::Sender<Ticket>) {
        match command {
            Command::Open { profile, class, timeout, waiter } => {
                if class == Class::Foreground {
                    self.promote(&profile);
                }
                let ticket = self.wait(waiter, &profile, Some(class), timeout, withdraw);
                self.happen(Event::Open { ticket, profile, class, deadline: timeout });
            }
            Command::Close { profile, waiter } => {
                let ticket = self.wait(waiter, &profile, None, None, withdraw);
                self.happen(Event::Close { ticket, profile });
            }
            Command::Limit { max, budget, done } => {
                self.limits.max = max.unwrap_or(self.limits.max);
                self.limits.budget = budget.map_or(self.limits.budget, |bytes| (bytes > 0).then_some(bytes));
                self.happen(Event::Limit { max: self.limits.max, budget: self.limits.budget });
                let _ = done.send(self.told());
            }
            Command::Report { done } => {
                let _ = done.send(self.told());
                // For the next look.
                self.measure_all();
            }
            Command::Touch { profile, done } => {
                let up = self.residents.values().any(|resident| resident.profile == profile);
                self.happen(Event::Touch { profile });
                let _ = done.send(up);
            }
            Command::Drain => {
                self.happen(Event::Drain);
                self.leave_alone();
            }
            Command::EndAll => {
                self.happen(Event::Drain);
                for resident in self.residents.values() {
                    tracing::warn!(profile = &*resident.profile, "a backend is ended without proof: its time is over");
                    resident.end();
                }
            }
        }
    }

    /// Who could not be taken over yet is none of ours: it finishes, and leaves by itself.
    fn leave_alone(&mut self) {
        let left: Vec<Lease> =
            self.residents.iter().filter(|(_, resident)| resident.is_left()).map(|(lease, _)| *lease).collect();
        for lease in left {
            // The next pool finds it where this one did.
            self.left.extend(self.residents.get(&lease).and_then(Resident::member));
            self.residents.remove(&lease);
            self.happen(Event::Exited { lease, how: "it was left alone".to_owned() });
        }
    }

    /// Whoever waits for this profile in the background has company now.
    fn promote(&mut self, profile: &str) {
        let behind = |waiting: &&mut Waiting| {
            &*waiting.profile == profile && waiting.class.is_some_and(|class| class != Class::Foreground)
        };
        let mut promoted = Vec::new();
        for (ticket, waiting) in &mut self.waiters {
            if Some(waiting).as_ref().is_some_and(behind) {
                promoted.push(*ticket);
            }
        }
        for ticket in promoted {
            let Some(waiting) = self.waiters.get_mut(&ticket) else { continue };
            waiting.class = Some(Class::Foreground);
            let deadline = waiting.timeout;
            self.happen(Event::Promote { ticket, deadline });
        }
    }

    fn wait(
        &mut self,
        waiter: Waiter,
        profile: &Arc<str>,
        class: Option<Class>,
        timeout: Option<Duration>,
        withdraw: &mpsc::Sender<Ticket>,
    ) -> Ticket {
        let ticket = self.ticket();
        let (outcome, comes) = oneshot::channel();
        self.waiters.insert(ticket, Waiting { profile: Arc::clone(profile), class, timeout, outcome });
        tokio::spawn(waiter.wait(ticket, comes, self.report.subscribe(), withdraw.clone()));
        ticket
    }

    pub(super) fn ticket(&mut self) -> Ticket {
        self.last_ticket += 1;
        Ticket(self.last_ticket)
    }

    /// What a resident's tasks tell, as the coordinator hears it.
    fn learn(&mut self, lease: Lease, news: News) {
        let now = self.clock.now();
        let Some(resident) = self.residents.get_mut(&lease) else { return };
        let event = match news {
            News::Unborn(why) => {
                self.residents.remove(&lease);
                Event::SpawnFailed { lease, why }
            }
            News::Born { pid, start_marker } => {
                resident.process = Some((pid, start_marker));
                return;
            }
            News::Up(endpoint) => {
                tracing::info!(
                    profile = &*resident.profile,
                    pid = endpoint.pid,
                    generation = endpoint.generation,
                    "up"
                );
                // Ready is whoever has been heard: the first word is on its way.
                resident.up(*endpoint);
                return;
            }
            News::Untaken(why) => {
                resident.untaken = Some(why);
                return;
            }
            News::Lost(why) => {
                resident.lost = Some(why);
                // It never served anybody, so it does nothing for anybody.
                resident.end();
                return;
            }
            News::Exited(how) => {
                let how = resident.lost.take().map_or(how.clone(), |why| format!("{why} ({how})"));
                tracing::info!(profile = &*resident.profile, how, "gone");
                self.attempts.over(self.clock.wall(), &resident.profile);
                self.residents.remove(&lease);
                Event::Exited { lease, how }
            }
            News::Said(word) => {
                let first = !resident.is_heard();
                let standing = resident.hear(word, now);
                resident.measure();
                if first {
                    self.happen(Event::Ready { lease });
                }
                Event::Heard { lease, standing }
            }
            News::Answered(word) => Event::Probed { lease, standing: resident.hear_answer(word, now) },
            News::Prepared(Ok(prepared)) => {
                resident.permit = Some(prepared);
                Event::Prepared { lease }
            }
            News::Prepared(Err(word)) => Event::Refused { lease, standing: resident.hear_answer(word, now) },
            News::Committed(Ok(())) => Event::Committed { lease },
            News::Committed(Err(word)) => Event::Uncommitted { lease, standing: resident.hear_answer(word, now) },
            News::Measured(bytes) => {
                resident.measured();
                match bytes {
                    Some(bytes) => Event::Measured { lease, bytes },
                    None => return,
                }
            }
        };
        self.happen(event);
    }

    pub(super) fn happen(&mut self, event: Event) {
        for effect in self.coordinator.handle(self.clock.now(), event) {
            self.carry_out(effect);
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        let mut of = |lease: &Lease, act: fn(&mut Resident)| self.residents.get_mut(lease).map_or((), act);
        match effect {
            Effect::Spawn { lease, profile } => {
                self.residents.insert(lease, Resident::spawn(lease, profile, &self.nursery, &self.teller));
            }
            Effect::Probe { lease } => of(&lease, Resident::probe),
            Effect::Prepare { lease } => of(&lease, Resident::prepare),
            Effect::Commit { lease } => of(&lease, Resident::commit),
            // The permit goes with its connection.
            Effect::Cancel { lease } => of(&lease, |resident| resident.permit = None),
            Effect::Stop { lease } => of(&lease, |resident| resident.end()),
            Effect::Granted { ticket, lease } => {
                let opened = self.residents.get(&lease).and_then(Resident::opened);
                let gone = || Fault::new(FaultKind::Unavailable, "the backend left before anybody could use it");
                self.answer(ticket, opened.map(|opened| Outcome::Opened(Box::new(opened))).ok_or_else(gone));
            }
            Effect::Closed { ticket } => self.answer(ticket, Ok(Outcome::Closed)),
            Effect::Denied { ticket, denial } => {
                if let Some(profile) = self.opening.get(&ticket) {
                    tracing::warn!(profile = &**profile, ?denial, "a profile cannot be opened for its job");
                    let now = self.clock.wall();
                    match denial {
                        // It crashed just now.
                        Denial::BackingOff { remaining } => self.attempts.hold_off(now + remaining, profile),
                        _ => self.attempts.failed(now, profile),
                    }
                }
                let fault = self.fault(ticket, denial);
                self.answer(ticket, Err(fault));
            }
        }
    }

    fn answer(&mut self, ticket: Ticket, outcome: Result<Outcome, Fault>) {
        self.opening.remove(&ticket);
        if let Some(waiting) = self.waiters.remove(&ticket) {
            let _ = waiting.outcome.send(outcome.unwrap_or_else(Outcome::Denied));
        }
    }
}
