//! The changes that running a job makes to its record: claimed before, finished after, repaired in between.
//!
//! At most once: a recurring job's next time is on disk before it runs, and a one-shot is counted before it runs. A crash
//! in the middle skips, it never repeats.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use super::document::{Document, laid_out, pairs, quoted};
use super::job::{Job, Schedules};
use super::plan::{Alive, Due, Plan, Repair};
use super::record::record;
use super::schedule::{Schedule, iso};
use super::store::{ChangeSet, Locked, StoreError};
use crate::process;
use crate::secret::random_hex;

/// A claimed job: all that is needed to run it.
#[derive(Debug, Clone)]
pub struct Claimed {
    /// Its id.
    pub id: String,
    /// What a person calls it.
    pub name: String,
    /// When it was due.
    pub scheduled_for: Timestamp,
    /// A script is the whole job.
    pub no_agent: bool,
    /// The script.
    pub script: Option<String>,
    /// Where it runs.
    pub workdir: Option<String>,
    /// What runs it.
    pub interpreter: Option<String>,
    /// What an agent is told.
    pub prompt: Option<String>,
}

/// What a run came to.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// `ok`, `error` or `interrupted`.
    pub status: String,
    /// What went wrong.
    pub error: Option<String>,
    /// When it ended.
    pub ended_at: Timestamp,
}

/// This host's name in claims.
pub fn host() -> String {
    nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_else(|| "localhost".to_owned())
}

/// Whether the process that made a claim may live: another host's cannot be known to be dead.
pub fn may_live(by: &str) -> bool {
    let mut parts = by.rsplitn(3, ':');
    let (_random, pid, claimant) = (parts.next(), parts.next(), parts.next());
    let pid: Option<u32> = pid.and_then(|pid| pid.parse().ok());
    match (claimant, pid) {
        (Some(claimant), Some(pid)) if claimant == host() => {
            process::start_marker(pid).is_some_and(|marker| process::alive(pid, &marker))
        }
        _ => true,
    }
}

fn owner() -> String {
    format!("{}:{}:{}", host(), std::process::id(), random_hex::<16>().unwrap_or_default())
}

impl Locked<'_> {
    /// Claims those of `ids` that are still due, all in one write. Nothing may run before this has returned.
    ///
    /// # Errors
    /// The file cannot be read or written: nothing is claimed.
    pub fn claim(&self, ids: &[&str], now: Timestamp, zone: &TimeZone) -> Result<Vec<Claimed>, StoreError> {
        self.update(&iso(now, zone), |document, changes| {
            let plan = Plan::of(document.text(), now, zone, &may_live).unwrap_or_default();
            let due = plan.due.iter().filter(|due| ids.contains(&due.id.as_str()));
            due.filter_map(|due| claim_one(document, changes, due, now, zone)).collect()
        })
    }

    /// Writes a run's result into its job, and into no other. A job that was deleted meanwhile stays deleted.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn finish(&self, id: &str, outcome: &Outcome, zone: &TimeZone) -> Result<(), StoreError> {
        self.update(&iso(outcome.ended_at, zone), |document, changes| {
            // Found written already after a crash between writing and forgetting: then once is enough.
            let again = |job: &Job<'_>| job.last_run_at == Some(outcome.ended_at);
            if let Some((place, job)) = find(document, id, zone).filter(|(_, job)| !again(job)) {
                changes.set(place, &finished(&job, outcome, zone));
            }
        })
    }

    /// Puts right what a plan says must be. Returns what was retired, with the reason, for its output folder.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn repair(&self, now: Timestamp, zone: &TimeZone) -> Result<Vec<(String, String, String)>, StoreError> {
        self.update(&iso(now, zone), |document, changes| {
            // Planned again under the lock: others may have put it right already.
            let plan = Plan::of(document.text(), now, zone, &may_live).unwrap_or_default();
            plan.repairs.iter().filter_map(|repair| repair_one(document, changes, repair, now, zone)).collect()
        })
    }
}

/// The first job of an id; what is not first is unusable.
pub fn find<'a>(document: &Document<'a>, id: &str, zone: &TimeZone) -> Option<(usize, Job<'a>)> {
    let mut schedules = Schedules::default();
    document.jobs().iter().enumerate().find_map(|(place, (key, text))| {
        // Most are told apart by their text alone.
        if !text.contains(id) && key.as_deref() != Some(id) {
            return None;
        }
        let job = Job::read(key.as_deref(), place, record(text).ok()?, zone, &mut schedules).ok()?;
        (job.id == id).then_some((place, job))
    })
}

fn claim_one(
    document: &Document<'_>,
    changes: &mut ChangeSet<'_>,
    due: &Due,
    now: Timestamp,
    zone: &TimeZone,
) -> Option<Claimed> {
    let (place, job) = find(document, &due.id, zone)?;
    let claim = laid_out(&json!({"at": iso(now, zone), "by": owner()}));
    let mut keys = vec![("fire_claim", claim.clone())];
    if job.schedule.recurs() {
        let next = job.schedule.next_after(now, zone).ok().flatten()?;
        let lateness = now.duration_since(due.scheduled_for).as_secs_f64().max(0.0);
        keys.push(("next_run_at", quoted(&iso(next, zone))));
        keys.push((
            "last_dispatch",
            // In the model's order of keys, which json! would sort.
            format!(
                "{{\n        \"scheduled_at\": {},\n        \"dispatched_at\": {},\n        \"lateness_seconds\": {lateness:.1},\n        \"kind\": {}\n      }}",
                quoted(&iso(due.scheduled_for, zone)),
                quoted(&iso(now, zone)),
                quoted(due.kind)
            ),
        ));
    } else {
        keys.push(("run_claim", claim));
        keys.push(("repeat", counted(&job)));
    }
    if job.has("pending_slot") {
        keys.push(("pending_slot", "null".to_owned()));
    }
    changes.set(place, &keys);
    Some(Claimed {
        id: job.id.clone(),
        name: job.name(),
        scheduled_for: due.scheduled_for,
        no_agent: job.no_agent(),
        script: job.script(),
        workdir: job.workdir(),
        interpreter: job.interpreter(),
        prompt: job.prompt(),
    })
}

/// `repeat` with one more run; keys in it that we do not know stay.
fn counted(job: &Job<'_>) -> String {
    let completed = job.repeat.completed.saturating_add(1);
    let times = if job.schedule.recurs() { Value::Null } else { json!(1) };
    let fresh = || {
        laid_out(
            &json!({"times": job.repeat.times.map_or(times.clone(), |times| json!(times)), "completed": completed}),
        )
    };
    let Some(text) = job.repeat_text().filter(|text| text.starts_with('{')) else { return fresh() };
    let Ok(pairs) = pairs(text) else { return fresh() };
    match pairs.iter().find(|(key, _)| key == "completed") {
        Some((_, old)) => {
            let start = old.as_ptr() as usize - text.as_ptr() as usize;
            let (head, tail) =
                (text.get(..start).unwrap_or_default(), text.get(start + old.len()..).unwrap_or_default());
            format!("{head}{completed}{tail}")
        }
        None => fresh(),
    }
}

fn finished(job: &Job<'_>, outcome: &Outcome, zone: &TimeZone) -> Vec<(&'static str, String)> {
    let ended = quoted(&iso(outcome.ended_at, zone));
    let error = outcome.error.as_deref().map_or_else(|| "null".to_owned(), quoted);
    let mut keys = vec![
        ("last_run_at", ended.clone()),
        ("last_status", quoted(&outcome.status)),
        ("last_error", error.clone()),
        ("last_delivery_error", "null".to_owned()),
        ("fire_claim", "null".to_owned()),
    ];
    match outcome.error {
        // A success ends the streak; what failed last stays on record.
        None => keys.push(("failure_streak", "0".to_owned())),
        Some(_) => {
            keys.push(("failure_streak", job.failure_streak().saturating_add(1).to_string()));
            keys.push(("last_failure", format!("{{\n        \"at\": {ended},\n        \"detail\": {error}\n      }}")));
        }
    }
    // A job that was asked for by hand while it ran is still due by hand.
    let cleared: &[&'static str] = if job.manual { &["run_claim"] } else { &["run_claim", "manual_run_at"] };
    keys.extend(cleared.iter().filter(|key| job.has(key)).map(|key| (*key, "null".to_owned())));
    keys.extend(what_next(job, outcome, zone));
    keys
}

/// The next run, or that there is none.
fn what_next(job: &Job<'_>, outcome: &Outcome, zone: &TimeZone) -> Vec<(&'static str, String)> {
    let over =
        || vec![("enabled", "false".to_owned()), ("state", quoted("completed")), ("next_run_at", "null".to_owned())];
    if matches!(job.schedule, Schedule::Once { .. }) {
        return over();
    }
    let completed = job.repeat.completed.saturating_add(1);
    let mut keys = vec![("repeat", counted(job))];
    if job.repeat.times.is_some_and(|times| completed >= times) {
        keys.extend(over());
        return keys;
    }
    // Paused or disabled meanwhile: whoever did that has said when it goes on. Interrupted: it stays as it was advanced.
    if job.runnable && outcome.status != "interrupted" && !job.manual {
        match job.schedule.next_after(outcome.ended_at, zone) {
            Ok(Some(next)) => keys.push(("next_run_at", quoted(&iso(next, zone)))),
            _ => keys.push(("state", quoted("error"))),
        }
    }
    keys
}

fn repair_one(
    document: &Document<'_>,
    changes: &mut ChangeSet<'_>,
    repair: &Repair,
    now: Timestamp,
    zone: &TimeZone,
) -> Option<(String, String, String)> {
    let (Repair::Reschedule { id, .. } | Repair::Pause { id, .. } | Repair::Retire { id, .. } | Repair::Prune { id }) =
        repair;
    let (place, job) = find(document, id, zone)?;
    let now = quoted(&iso(now, zone));
    match repair {
        Repair::Reschedule { next, .. } => changes.set(place, &[("next_run_at", quoted(&iso(*next, zone)))]),
        Repair::Prune { .. } => changes.remove(place),
        Repair::Pause { reason, .. } => {
            let keys = [
                ("enabled", "false".to_owned()),
                ("state", quoted("paused")),
                ("paused_at", now),
                ("paused_reason", quoted(reason)),
            ];
            changes.set(place, &keys);
        }
        Repair::Retire { reason, .. } => {
            let keys = [
                ("enabled", "false".to_owned()),
                ("state", quoted("error")),
                ("next_run_at", "null".to_owned()),
                ("last_status", quoted("error")),
                ("last_error", quoted(reason)),
                (
                    "last_failure",
                    format!("{{\n        \"at\": {now},\n        \"detail\": {}\n      }}", quoted(reason)),
                ),
            ];
            changes.set(place, &keys);
            return Some((id.clone(), job.name(), reason.clone()));
        }
    }
    None
}

/// Whether a claim's process may live, for plans outside this module.
pub const ALIVE: Alive<'static> = &may_live;
