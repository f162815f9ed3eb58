//! One record of jobs.json, read leniently: what matters must be of its type, everything else may be anything.

use std::collections::HashMap;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::record::{Fields, Record};
use super::schedule::{Schedule, ScheduleError, parse_iso};

/// The longest id: it is a file's name.
const MAX_ID: usize = 128;

/// A record that cannot be used, and why. It is left in the file as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadJob {
    /// Its id, if it has one, else its place in the file.
    pub name: String,
    /// What is wrong.
    pub reason: String,
}

/// How often a job runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Repeat {
    /// `None`: for ever.
    pub times: Option<u64>,
    /// How often it has.
    pub completed: u64,
}

/// A claim of a process on a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// When it was made or renewed.
    pub at: Timestamp,
    /// `<host>:<pid>:<random>`.
    pub by: String,
}

/// What matters of a record.
#[derive(Debug, Clone)]
pub struct Job<'a> {
    /// Its id, a plain file name.
    pub id: String,
    /// Whether it may run at all: enabled, not paused, not over.
    pub runnable: bool,
    /// It has run its last time.
    pub completed: bool,
    /// When it runs.
    pub schedule: Schedule,
    /// When it is due, as written and as an instant.
    pub next: Option<(String, Timestamp)>,
    /// When it last ended.
    pub last_run_at: Option<Timestamp>,
    /// How often it runs.
    pub repeat: Repeat,
    /// It was asked for by hand, for this very instant.
    pub manual: bool,
    /// Who runs it.
    pub fire_claim: Option<Claim>,
    /// Who has taken this one-shot.
    pub run_claim: Option<Claim>,
    fields: Box<Fields<'a>>,
}

/// A value of a type that can be told in words.
fn value<'a, T: Deserialize<'a>>(raw: Option<&'a RawValue>, key: &str, form: &str) -> Result<Option<T>, String> {
    match raw.map(RawValue::get) {
        None | Some("null") => Ok(None),
        Some(text) => serde_json::from_str(text).map(Some).map_err(|_| format!("{key} must be {form}")),
    }
}

fn text(raw: Option<&RawValue>, key: &str) -> Result<Option<String>, String> {
    value(raw, key, "a string or null")
}

impl<'a> Job<'a> {
    /// Reads a record. `key` is the id that its place in a map gives it, `place` its number in the file.
    ///
    /// # Errors
    /// What makes it unusable.
    pub fn read(
        key: Option<&str>,
        place: usize,
        record: Record<'a>,
        zone: &TimeZone,
        schedules: &mut Schedules,
    ) -> Result<Self, BadJob> {
        let nameless = |reason: String| BadJob {
            name: key.map_or_else(|| format!("record {}", place + 1), str::to_owned),
            reason,
        };
        let Record::Object(fields) = record else { return Err(nameless("it must be an object".to_owned())) };
        let id = identify(key, &fields).map_err(nameless)?;
        Self::interpret(id.clone(), fields, zone, schedules).map_err(|reason| BadJob { name: id, reason })
    }

    fn interpret(
        id: String,
        fields: Box<Fields<'a>>,
        zone: &TimeZone,
        schedules: &mut Schedules,
    ) -> Result<Self, String> {
        let schedule = schedules.read(fields.schedule, zone)?;
        let state = text(fields.state, "state")?.unwrap_or_default();
        let enabled: bool = value(fields.enabled, "enabled", "true or false")?.unwrap_or(true);
        let paused = state == "paused" || fields.paused_at.is_some_and(|at| at.get() != "null");
        let over = state == "completed" || (state == "error" && !schedule.recurs());
        let next = text(fields.next_run_at, "next_run_at")?;
        let next = next.map(|text| read_time(&text, "next_run_at", zone).map(|at| (text, at))).transpose()?;
        let manual_at = text(fields.manual_run_at, "manual_run_at")?;
        let last_run_at = text(fields.last_run_at, "last_run_at")?;
        // A record of our own past is no reason to refuse a job.
        let last_run_at = last_run_at.and_then(|text| read_time(&text, "last_run_at", zone).ok());
        let _: Option<bool> = value(fields.no_agent, "no_agent", "true or false")?;
        let _ = (text(fields.script, "script")?, text(fields.workdir, "workdir")?);
        Ok(Self {
            id,
            runnable: enabled && !paused && !over,
            completed: state == "completed",
            manual: manual_at.is_some() && manual_at.as_deref() == next.as_ref().map(|(text, _)| text.as_str()),
            schedule,
            next,
            last_run_at,
            repeat: read_repeat(fields.repeat)?,
            fire_claim: read_claim(fields.fire_claim, zone),
            run_claim: read_claim(fields.run_claim, zone),
            fields,
        })
    }

    /// What a person calls it.
    pub fn name(&self) -> String {
        let name = text(self.fields.name, "name").ok().flatten().filter(|name| !name.trim().is_empty());
        name.unwrap_or_else(|| self.id.clone())
    }

    /// Whether a script is the whole job.
    pub fn no_agent(&self) -> bool {
        matches!(value(self.fields.no_agent, "", ""), Ok(Some(true)))
    }

    /// The script, if one is named.
    pub fn script(&self) -> Option<String> {
        text(self.fields.script, "script").ok().flatten().filter(|script| !script.trim().is_empty())
    }

    /// The working folder.
    pub fn workdir(&self) -> Option<String> {
        text(self.fields.workdir, "workdir").ok().flatten().filter(|folder| !folder.is_empty())
    }

    /// What runs the script.
    pub fn interpreter(&self) -> Option<String> {
        text(self.fields.interpreter, "interpreter").ok().flatten()
    }

    /// What an agent is told.
    pub fn prompt(&self) -> Option<String> {
        text(self.fields.prompt, "prompt").ok().flatten()
    }

    /// Failures in a row.
    pub fn failure_streak(&self) -> u64 {
        value(self.fields.failure_streak, "", "").ok().flatten().unwrap_or(0)
    }

    /// Whether a key that only some records have is there.
    pub fn has(&self, key: &str) -> bool {
        match key {
            "run_claim" => self.fields.run_claim.is_some(),
            "pending_slot" => self.fields.pending_slot.is_some(),
            "manual_run_at" => self.fields.manual_run_at.is_some(),
            _ => false,
        }
    }

    /// The `repeat` value as it is written.
    pub fn repeat_text(&self) -> Option<&'a str> {
        self.fields.repeat.map(RawValue::get)
    }
}

fn identify(key: Option<&str>, fields: &Fields<'_>) -> Result<String, String> {
    let own: Option<String> = value(fields.id.or(fields.job_id), "id", "a string")?;
    let id = own.or_else(|| key.map(str::to_owned)).ok_or("it has no id")?;
    match is_plain(&id) {
        true => Ok(id),
        false => Err(format!("its id {id:?} is no plain file name of at most {MAX_ID} bytes")),
    }
}

/// Ids are used as file names: nothing that leads anywhere else.
pub fn is_plain(id: &str) -> bool {
    !id.is_empty()
        && id.len() <= MAX_ID
        && id != "."
        && id != ".."
        && !id.chars().any(|letter| matches!(letter, '/' | '\\') || letter.is_control())
}

/// Schedules by their text: many jobs share a few, and an expression costs more to read than all the rest of a record.
#[derive(Debug, Default)]
pub struct Schedules(HashMap<String, Result<Schedule, String>>);

impl Schedules {
    fn read(&mut self, raw: Option<&RawValue>, zone: &TimeZone) -> Result<Schedule, String> {
        let text = raw.map_or("", RawValue::get);
        if let Some(known) = self.0.get(text) {
            return known.clone();
        }
        let schedule = read_schedule(raw, zone);
        self.0.insert(text.to_owned(), schedule.clone());
        schedule
    }
}

fn read_schedule(raw: Option<&RawValue>, zone: &TimeZone) -> Result<Schedule, String> {
    #[derive(Deserialize)]
    struct Written<'a> {
        kind: Option<String>,
        #[serde(borrow, default)]
        minutes: Option<&'a RawValue>,
        #[serde(borrow, default)]
        expr: Option<&'a RawValue>,
        #[serde(borrow, default)]
        run_at: Option<&'a RawValue>,
    }
    let written: Written<'_> = value(raw, "schedule", "an object with a kind")?.ok_or("it has no schedule")?;
    let shown = |error: ScheduleError| error.to_string();
    match written.kind.as_deref() {
        Some("interval") => {
            let minutes: f64 = value(written.minutes, "schedule.minutes", "a number")?.unwrap_or(0.0);
            // The model writes whole minutes; a float that is one is one.
            let whole = minutes.fract() == 0.0 && (0.0..1e12).contains(&minutes);
            if !whole {
                return Err(format!("schedule.minutes must be a whole number; it is {minutes}"));
            }
            Schedule::interval(minutes as u64).map_err(shown)
        }
        Some("cron") => {
            let expr = text(written.expr, "schedule.expr")?.ok_or("schedule.expr is missing")?;
            Schedule::cron(&expr).map_err(shown)
        }
        Some("once") => {
            let run_at = text(written.run_at, "schedule.run_at")?.ok_or("schedule.run_at is missing")?;
            Ok(Schedule::Once { run_at: read_time(&run_at, "schedule.run_at", zone)? })
        }
        Some(other) => Err(format!("schedule.kind {other:?} is none of interval, cron, once")),
        None => Err("schedule.kind is missing".to_owned()),
    }
}

fn read_time(text: &str, key: &str, zone: &TimeZone) -> Result<Timestamp, String> {
    parse_iso(text, zone).map_err(|error| format!("{key}: {error}"))
}

fn read_repeat(raw: Option<&RawValue>) -> Result<Repeat, String> {
    #[derive(Deserialize)]
    struct Written {
        times: Option<i64>,
        completed: Option<serde_json::Value>,
    }
    let written: Option<Written> = value(raw, "repeat", "an object with times and completed")?;
    Ok(written.map_or(Repeat::default(), |written| Repeat {
        times: written.times.and_then(|times| u64::try_from(times).ok()).filter(|times| *times > 0),
        // A count that is none is taken as zero, as the model does.
        completed: written.completed.and_then(|value| value.as_u64()).unwrap_or(0),
    }))
}

/// A claim that cannot be read claims nothing.
fn read_claim(raw: Option<&RawValue>, zone: &TimeZone) -> Option<Claim> {
    #[derive(Deserialize)]
    struct Written {
        at: String,
        by: String,
    }
    let written: Written = serde_json::from_str(raw?.get()).ok()?;
    Some(Claim { at: parse_iso(&written.at, zone).ok()?, by: written.by })
}
