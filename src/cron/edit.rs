//! What a person changes in jobs.json: adding, pausing, resuming, triggering and removing jobs. One locked write each; what
//! is not changed stays as it is.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::claim::find;
use super::document::quoted;
use super::job::Job;
use super::schedule::{ONE_SHOT_GRACE, Parsed, Schedule, ScheduleError, iso, parse};
use super::store::{Store, StoreError};
use crate::secret::random_hex;

/// How long an edit waits for the lock.
const LOCK_WAIT: Duration = Duration::from_secs(10);

/// Why an edit was not made; the file is as it was.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// The file.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The schedule.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// No such job.
    #[error("no job has the id or name {0:?}: see hermesctl cron list --all, with --profile for those of another home")]
    NoJob(String),
    /// Several jobs of one name.
    #[error("several jobs are called {0:?}: name one by its id ({1})")]
    Ambiguous(String, String),
    /// What was asked for makes no job.
    #[error("{0}")]
    Invalid(String),
}

/// A job to be added.
#[derive(Debug, Clone, Default)]
pub struct NewJob {
    /// When it runs, as a person writes it.
    pub schedule: String,
    /// What a person calls it.
    pub name: Option<String>,
    /// What an agent is told.
    pub prompt: String,
    /// The script.
    pub script: Option<String>,
    /// A script is the whole job.
    pub no_agent: bool,
    /// How often it runs.
    pub repeat: Option<u64>,
    /// Where it runs.
    pub workdir: Option<String>,
    /// What runs the script.
    pub interpreter: Option<String>,
    /// It does not run before it is resumed.
    pub paused: bool,
}

/// Whether a path climbs, which no run of it would be allowed.
fn leads_out(script: &str) -> bool {
    std::path::Path::new(script).components().any(|part| part == std::path::Component::ParentDir)
}

impl NewJob {
    /// The record, laid out as the model writes it.
    fn record(&self, id: &str, now: Timestamp, zone: &TimeZone) -> Result<String, EditError> {
        let invalid = |message: &str| EditError::Invalid(message.to_owned());
        let Parsed { schedule, display } = parse(&self.schedule, now, zone)?;
        if self.no_agent && self.script.is_none() {
            return Err(invalid("--no-agent needs --script: the script is the whole job then"));
        }
        if self.script.as_deref().is_some_and(leads_out) {
            return Err(invalid("--script must lie in the home's scripts/ folder: no \"..\" in its path"));
        }
        if self.script.is_none() && self.prompt.trim().is_empty() {
            return Err(invalid("there is nothing to run: give a prompt, or --script"));
        }
        let base = if schedule.recurs() { now } else { now.checked_sub(ONE_SHOT_GRACE).unwrap_or(now) };
        let next = schedule
            .next_after(base, zone)?
            .ok_or_else(|| invalid("that time is past: a one-shot needs a later one"))?;
        let text = |value: Option<&str>| value.map_or_else(|| "null".to_owned(), quoted);
        let first: String = self.prompt.trim().chars().take(50).collect();
        let named = self.name.as_deref().or(Some(first.as_str()).filter(|first| !first.is_empty()));
        let name = named.or(self.script.as_deref()).unwrap_or("cron job");
        let times = self.repeat.or((!schedule.recurs()).then_some(1));
        let stamp = quoted(&iso(now, zone));
        let (state, paused_at, reason, next) = match self.paused {
            true => ("paused", stamp.clone(), quoted("Created paused."), "null".to_owned()),
            false => ("scheduled", "null".to_owned(), "null".to_owned(), quoted(&iso(next, zone))),
        };
        let mut fields = vec![
            ("id", quoted(id)),
            ("name", quoted(name)),
            ("prompt", quoted(self.prompt.trim())),
            ("skills", "[]".to_owned()),
        ];
        fields.extend(["skill", "model", "provider", "base_url"].map(|key| (key, "null".to_owned())));
        fields.push(("script", text(self.script.as_deref())));
        fields.push(("no_agent", self.no_agent.to_string()));
        fields.extend(
            ["monitor_script", "monitor_url", "monitor_state", "context_from"].map(|key| (key, "null".to_owned())),
        );
        fields.push(("schedule", written(&schedule, &display, zone)));
        fields.push(("schedule_display", quoted(&display)));
        let times = times.map_or_else(|| "null".to_owned(), |times| times.to_string());
        fields.push(("repeat", format!("{{\n        \"times\": {times},\n        \"completed\": 0\n      }}")));
        fields.push(("enabled", (!self.paused).to_string()));
        fields.push(("state", quoted(state)));
        fields.push(("paused_at", paused_at));
        fields.push(("paused_reason", reason));
        fields.push(("created_at", stamp));
        fields.push(("next_run_at", next));
        let empty = [
            "last_run_at",
            "last_status",
            "last_error",
            "last_delivery_error",
            "last_delivery_unverified",
            "last_failure",
        ];
        fields.extend(empty.map(|key| (key, "null".to_owned())));
        fields.push(("failure_streak", "0".to_owned()));
        fields.push(("deliver", quoted("local")));
        fields.extend(["origin", "enabled_toolsets"].map(|key| (key, "null".to_owned())));
        fields.push(("workdir", text(self.workdir.as_deref())));
        if let Some(interpreter) = &self.interpreter {
            fields.push(("interpreter", quoted(interpreter)));
        }
        let lines: Vec<String> = fields.iter().map(|(key, value)| format!("      \"{key}\": {value}")).collect();
        Ok(format!("{{\n{}\n    }}", lines.join(",\n")))
    }
}

fn written(schedule: &Schedule, display: &str, zone: &TimeZone) -> String {
    let (kind, key, value) = match schedule {
        Schedule::Interval { minutes } => ("interval", "minutes", minutes.to_string()),
        Schedule::Cron(expression) => ("cron", "expr", quoted(expression.text())),
        Schedule::Once { run_at } => ("once", "run_at", quoted(&iso(*run_at, zone))),
    };
    format!(
        "{{\n        \"kind\": \"{kind}\",\n        \"{key}\": {value},\n        \"display\": {}\n      }}",
        quoted(display)
    )
}

/// A change of one job.
#[derive(Debug, Clone)]
pub enum Change {
    /// It does not run until it is resumed.
    Pause {
        /// Why.
        reason: Option<String>,
    },
    /// It runs again.
    Resume,
    /// It is due now.
    Trigger,
    /// It is gone, with its output.
    Remove,
}

impl Store {
    /// Adds a job; its id.
    ///
    /// # Errors
    /// See [`EditError`].
    pub fn add(&self, job: &NewJob, now: Timestamp, zone: &TimeZone) -> Result<String, EditError> {
        let id = random_hex::<6>().map_err(|error| EditError::Invalid(error.to_string()))?;
        let record = job.record(&id, now, zone)?;
        self.lock(LOCK_WAIT)?.update(&iso(now, zone), |_, changes| changes.append(&id, &record))?;
        Ok(id)
    }

    /// Changes one job, named by its id or by a name that is the only one; its id.
    ///
    /// # Errors
    /// See [`EditError`].
    pub fn change(&self, named: &str, change: &Change, now: Timestamp, zone: &TimeZone) -> Result<String, EditError> {
        let lock = self.lock(LOCK_WAIT)?;
        let id = lock.update(&iso(now, zone), |document, changes| {
            let id = identify(document, named, zone)?;
            let Some((place, job)) = find(document, &id, zone) else { return Err(EditError::NoJob(named.to_owned())) };
            match change {
                Change::Remove => changes.remove(place),
                other => changes.set(place, &other.keys(&job, now, zone)?),
            }
            Ok(id)
        })??;
        if matches!(change, Change::Remove) {
            // The record is gone; what it printed goes with it.
            let _ = std::fs::remove_dir_all(self.folder().join("output").join(&id));
        }
        Ok(id)
    }
}

impl Change {
    fn keys(&self, job: &Job<'_>, now: Timestamp, zone: &TimeZone) -> Result<Vec<(&'static str, String)>, EditError> {
        let stamp = quoted(&iso(now, zone));
        let runs = || {
            vec![
                ("enabled", "true".to_owned()),
                ("state", quoted("scheduled")),
                ("paused_at", "null".to_owned()),
                ("paused_reason", "null".to_owned()),
            ]
        };
        Ok(match self {
            Self::Pause { reason } => vec![
                ("enabled", "false".to_owned()),
                ("state", quoted("paused")),
                ("paused_at", stamp),
                ("paused_reason", reason.as_deref().map_or_else(|| "null".to_owned(), quoted)),
            ],
            Self::Resume => {
                let past = matches!(job.schedule, Schedule::Once { run_at } if run_at < now.checked_sub(ONE_SHOT_GRACE).unwrap_or(now));
                if past || job.completed {
                    return Err(EditError::Invalid(format!(
                        "{} is over and cannot be resumed: run it by hand (hermesctl cron run {}), or add it anew",
                        job.id, job.id
                    )));
                }
                runs()
            }
            Self::Trigger => {
                let mut keys = runs();
                // The same text in both places is what marks a run by hand.
                keys.push(("next_run_at", stamp.clone()));
                keys.push(("manual_run_at", stamp));
                if !job.schedule.recurs() && job.repeat.times.is_some_and(|times| job.repeat.completed >= times) {
                    let again = job.repeat.completed + 1;
                    keys.push(("repeat", format!("{{\"times\": {again}, \"completed\": {}}}", job.repeat.completed)));
                }
                keys
            }
            Self::Remove => Vec::new(),
        })
    }
}

fn identify(document: &super::document::Document<'_>, named: &str, zone: &TimeZone) -> Result<String, EditError> {
    if find(document, named, zone).is_some() {
        return Ok(named.to_owned());
    }
    let mut schedules = super::job::Schedules::default();
    let mut ids: Vec<String> = Vec::new();
    for (place, (key, text)) in document.jobs().iter().enumerate() {
        let Ok(record) = super::record::record(text) else { continue };
        match Job::read(key.as_deref(), place, record, zone, &mut schedules) {
            Ok(job) if job.name().eq_ignore_ascii_case(named) => ids.push(job.id),
            _ => {}
        }
    }
    match ids.as_slice() {
        [] => Err(EditError::NoJob(named.to_owned())),
        [id] => Ok(id.clone()),
        _ => Err(EditError::Ambiguous(named.to_owned(), ids.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn jobs(store: &Store) -> Vec<Value> {
        let file: Value = serde_json::from_str(&std::fs::read_to_string(store.path()).unwrap()).unwrap();
        file["jobs"].as_array().unwrap().clone()
    }

    #[test]
    fn a_new_job_has_every_field_of_the_models_and_in_its_order() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::new(home.path().join("cron"));
        let job =
            NewJob { schedule: "every 30m".into(), script: Some("a.sh".into()), no_agent: true, ..NewJob::default() };
        let id = store.add(&job, at("2026-12-01T00:00:00Z"), &TimeZone::UTC).unwrap();
        let again = store.add(&job, at("2026-12-01T00:00:01Z"), &TimeZone::UTC).unwrap();
        assert!(id.len() == 12 && id != again);
        assert_eq!(jobs(&store).len(), 2);
        let example = include_str!("../../tests/golden/jobs.example.json");
        let keys = |text: &str| -> Vec<String> {
            let job =
                text.lines().skip_while(|line| !line.starts_with("      \"id\"")).take_while(|line| *line != "    },");
            job.filter(|line| line.starts_with("      \""))
                .map(|line| line.split('"').nth(1).unwrap().to_owned())
                .collect()
        };
        let ours = std::fs::read_to_string(store.path()).unwrap();
        assert_eq!(keys(&ours), keys(example));
        assert_eq!(jobs(&store)[0]["next_run_at"], "2026-12-01T00:30:00+00:00");
    }

    #[test]
    fn a_job_is_paused_resumed_triggered_and_removed_by_id_or_name() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::new(home.path().join("cron"));
        let job = NewJob {
            schedule: "daily at noon".into(),
            name: Some("Lunch".into()),
            prompt: "eat".into(),
            ..NewJob::default()
        };
        let (now, zone) = (at("2026-12-01T00:00:00Z"), TimeZone::UTC);
        let id = store.add(&job, now, &zone).unwrap();
        store.change("lunch", &Change::Pause { reason: Some("away".into()) }, now, &zone).unwrap();
        let paused = &jobs(&store)[0];
        assert_eq!(
            (&paused["enabled"], &paused["state"], &paused["paused_reason"]),
            (&false.into(), &"paused".into(), &"away".into())
        );
        assert_eq!(paused["next_run_at"], "2026-12-01T12:00:00+00:00", "kept");
        store.change(&id, &Change::Resume, now, &zone).unwrap();
        store.change(&id, &Change::Trigger, now, &zone).unwrap();
        let due = store.look(now, &zone, crate::cron::claim::ALIVE).unwrap().plan.due;
        assert_eq!(due.len(), 1, "noon is far, and it is due by hand");
        assert!(matches!(store.change("dinner", &Change::Remove, now, &zone), Err(EditError::NoJob(_))));
        store.change(&id, &Change::Remove, now, &zone).unwrap();
        assert!(jobs(&store).is_empty());
    }

    #[test]
    fn a_job_that_is_triggered_while_it_runs_runs_again() {
        use crate::cron::claim::{ALIVE, Outcome};
        let home = tempfile::tempdir().unwrap();
        let store = Store::new(home.path().join("cron"));
        let (now, zone) = (at("2026-12-01T00:00:00Z"), TimeZone::UTC);
        let job = NewJob { schedule: "2h".into(), prompt: "p".into(), ..NewJob::default() };
        let id = store.add(&job, now, &zone).unwrap();
        store.change(&id, &Change::Trigger, now, &zone).unwrap();
        let lock = || store.lock(LOCK_WAIT).unwrap();
        assert_eq!(lock().claim(&[&id], now, &zone).unwrap().len(), 1);
        let later = at("2026-12-01T00:00:05Z");
        store.change(&id, &Change::Trigger, later, &zone).unwrap();
        let outcome = Outcome { status: "ok".into(), error: None, ended_at: at("2026-12-01T00:00:09Z") };
        lock().finish(&id, &outcome, &zone).unwrap();
        let due = store.look(at("2026-12-01T00:00:10Z"), &zone, ALIVE).unwrap().plan.due;
        assert_eq!(due.iter().map(|due| due.scheduled_for).collect::<Vec<_>>(), [later]);
    }

    #[test]
    fn what_makes_no_job_is_told_and_changes_nothing() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::new(home.path().join("cron"));
        let (now, zone) = (at("2026-12-01T00:00:00Z"), TimeZone::UTC);
        let prompt = || "p".to_owned();
        for job in [
            NewJob { schedule: "90s".into(), prompt: prompt(), ..NewJob::default() },
            NewJob { schedule: "30m".into(), ..NewJob::default() },
            NewJob { schedule: "30m".into(), no_agent: true, prompt: prompt(), ..NewJob::default() },
            NewJob { schedule: "2020-01-01".into(), prompt: prompt(), ..NewJob::default() },
        ] {
            assert!(store.add(&job, now, &zone).is_err(), "{job:?}");
        }
        assert!(!store.path().exists());
    }
}
