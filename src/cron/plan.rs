//! What a look at the jobs says: which are due, what must be put right first, and when to look again.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};

use super::document::DocumentError;
use super::job::{BadJob, Claim, Job, Schedules};
use super::record::records;
use super::schedule::{ONE_SHOT_GRACE, Schedule};

/// A claim on a running job is live for so long.
const FIRE_CLAIM: Duration = Duration::from_secs(300);

/// A claim on a one-shot is live for so long.
const RUN_CLAIM: Duration = Duration::from_secs(1800);

/// A finished one-shot is kept for so long after its last run.
const KEEP_FINISHED: SignedDuration = SignedDuration::from_hours(7 * 24);

/// A later run than this is called late.
const LATE: Duration = Duration::from_secs(300);

/// Whether the process that made a claim may still live. Told from outside so that a plan is pure.
pub type Alive<'a> = &'a dyn Fn(&str) -> bool;

/// A job that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// The job.
    pub id: String,
    /// When it was due.
    pub scheduled_for: Timestamp,
    /// `on_time`, `late` or `catch_up`.
    pub kind: &'static str,
}

/// Something to put right in the file before anything runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Repair {
    /// A missing or outdated instant was computed anew.
    Reschedule {
        /// The job.
        id: String,
        /// When it runs.
        next: Timestamp,
    },
    /// It cannot run as it is.
    Pause {
        /// The job.
        id: String,
        /// Why.
        reason: String,
    },
    /// A one-shot that never ran, and never will.
    Retire {
        /// The job.
        id: String,
        /// Why.
        reason: String,
    },
    /// A one-shot that finished long ago.
    Prune {
        /// The job.
        id: String,
    },
}

/// What a look says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// What is due, in the order of the file.
    pub due: Vec<Due>,
    /// When to look again; `None` if nothing is scheduled.
    pub next_wake: Option<Timestamp>,
    /// Every instant at which a job is, was or may be due, by itself.
    pub instants: BTreeSet<Timestamp>,
    /// What must be put right.
    pub repairs: Vec<Repair>,
    /// What cannot be used.
    pub bad: Vec<BadJob>,
}

impl Plan {
    /// Looks at every job of a file.
    ///
    /// # Errors
    /// It is no list of jobs.
    pub fn of(text: &str, now: Timestamp, zone: &TimeZone, alive: Alive<'_>) -> Result<Self, DocumentError> {
        let (mut plan, mut seen, mut schedules) = (Self::default(), HashSet::new(), Schedules::default());
        for (place, (key, record)) in records(text)?.into_iter().enumerate() {
            match Job::read(key.as_deref(), place, record, zone, &mut schedules) {
                Ok(job) if seen.contains(&job.id) => {
                    plan.bad.push(BadJob { name: job.id, reason: "another job has the same id".to_owned() });
                }
                Ok(job) => {
                    plan.look(&job, now, zone, alive);
                    seen.insert(job.id);
                }
                Err(bad) => plan.bad.push(bad),
            }
        }
        Ok(plan)
    }

    /// When the first job of all is due, or was.
    pub fn soonest(&self) -> Option<Timestamp> {
        self.due.iter().map(|due| due.scheduled_for).chain(self.next_wake).min()
    }

    fn wake(&mut self, at: Timestamp) {
        self.instants.insert(at);
        self.next_wake = Some(self.next_wake.map_or(at, |sooner| sooner.min(at)));
    }

    fn look(&mut self, job: &Job<'_>, now: Timestamp, zone: &TimeZone, alive: Alive<'_>) {
        let id = job.id.clone();
        if !job.runnable {
            let old = job.last_run_at.is_some_and(|last| now.duration_since(last) > KEEP_FINISHED);
            if job.completed && !job.schedule.recurs() && old {
                self.repairs.push(Repair::Prune { id });
            }
            return;
        }
        for claim in [(&job.fire_claim, FIRE_CLAIM), (&job.run_claim, RUN_CLAIM)] {
            if let Some(ends) = live_until(claim.0.as_ref(), claim.1, now, alive) {
                return self.wake(ends);
            }
        }
        if job.no_agent() && job.script().is_none() {
            let reason = "Auto-paused by scheduler: no_agent is set and there is no script to run.".to_owned();
            return self.repairs.push(Repair::Pause { id, reason });
        }
        match &job.next {
            None => self.compute(job, now, zone),
            Some((_, next)) if *next > now => self.wake(*next),
            Some((text, next)) => self.overdue(job, text, *next, now, zone),
        }
    }

    /// A missing instant is computed, not fired.
    fn compute(&mut self, job: &Job<'_>, now: Timestamp, zone: &TimeZone) {
        let id = job.id.clone();
        let base = if job.schedule.recurs() { now } else { before(now, ONE_SHOT_GRACE) };
        match job.schedule.next_after(base, zone) {
            Ok(Some(next)) => {
                self.wake(next.max(now));
                self.repairs.push(Repair::Reschedule { id, next });
            }
            Ok(None) => self.retire(id, now, &job.schedule),
            Err(error) => self.bad.push(BadJob { name: id, reason: error.to_string() }),
        }
    }

    fn overdue(&mut self, job: &Job<'_>, text: &str, due: Timestamp, now: Timestamp, zone: &TimeZone) {
        let id = job.id.clone();
        let lateness = Duration::try_from(now.duration_since(due)).unwrap_or_default();
        if !job.schedule.recurs() {
            let spent = job.repeat.times.is_some_and(|times| job.repeat.completed >= times);
            return match (spent, lateness > ONE_SHOT_GRACE && !job.manual) {
                (true, _) => self.repairs.push(Repair::Retire {
                    id,
                    reason: "It was dispatched and no result was ever recorded; it is not run again.".to_owned(),
                }),
                (false, true) => self.retire(id, now, &job.schedule),
                (false, false) => self.is_due(id, due, "on_time"),
            };
        }
        if !job.manual && !names(&job.schedule, text, due, zone) {
            // The expression was edited by hand: the old instant means nothing any more.
            return self.compute(job, now, zone);
        }
        let kind = match lateness {
            late if late > job.schedule.grace(due, zone) => "catch_up",
            late if late > LATE => "late",
            _ => "on_time",
        };
        self.is_due(id, due, kind);
    }

    fn is_due(&mut self, id: String, scheduled_for: Timestamp, kind: &'static str) {
        self.instants.insert(scheduled_for);
        self.due.push(Due { id, scheduled_for, kind });
    }

    fn retire(&mut self, id: String, now: Timestamp, schedule: &Schedule) {
        let run_at = match schedule {
            Schedule::Once { run_at } => *run_at,
            _ => now,
        };
        let late = now.duration_since(run_at).as_secs();
        let reason = format!(
            "It was due {late} s ago, more than {} s: a one-shot this late never runs.",
            ONE_SHOT_GRACE.as_secs()
        );
        self.repairs.push(Repair::Retire { id, reason });
    }
}

fn before(now: Timestamp, span: Duration) -> Timestamp {
    now.checked_sub(span).unwrap_or(Timestamp::MIN)
}

/// Named by the schedule in today's zone, or in the offset that it was written with (the zone may have moved since).
fn names(schedule: &Schedule, text: &str, due: Timestamp, zone: &TimeZone) -> bool {
    let own = jiff::fmt::temporal::Pieces::parse(text).ok().and_then(|pieces| pieces.to_numeric_offset());
    schedule.names(due, zone) || own.is_some_and(|offset: Offset| schedule.names(due, &offset.to_time_zone()))
}

/// When a claim ends, if it holds now. One of the future, or of a process that is gone, does not.
fn live_until(claim: Option<&Claim>, life: Duration, now: Timestamp, alive: Alive<'_>) -> Option<Timestamp> {
    let claim = claim?;
    let ends = claim.at.checked_add(life).ok()?;
    (claim.at <= now && now < ends && alive(&claim.by)).then_some(ends)
}
