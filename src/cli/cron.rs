//! `hermesctl cron`: the jobs of a home, whether or not a backend runs there.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use super::failure::Failure;
use super::render::{print, table};
use super::target::{Target, children, records};
use crate::clock::Clock;
use crate::cron::edit::{Change, EditError, NewJob};
use crate::cron::store::Store;
use crate::cron::zone::configured_zone;
use crate::error::Exit;
use crate::runtime::Endpoint;

/// So much of the history's end is read.
const HISTORY: u64 = 256 * 1024;

/// List, add, pause, resume, run and remove cron jobs. The home is that of --profile, else $HERMES_HOME.
#[derive(Debug, Args)]
pub struct Cron {
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the jobs.
    List {
        /// Those that are over or disabled too.
        #[arg(long)]
        all: bool,
        /// Print a JSON array of the records as they are.
        #[arg(long)]
        json: bool,
    },
    /// Add a job.
    #[command(visible_alias = "create")]
    Add(Add),
    /// Run a job now, as soon as a backend of this home can.
    Run {
        /// Its id or name.
        job: String,
    },
    /// Let a job rest.
    Pause {
        /// Its id or name.
        job: String,
        /// Why.
        #[arg(long)]
        reason: Option<String>,
    },
    /// Let it run again.
    Resume {
        /// Its id or name.
        job: String,
    },
    /// Remove a job and what it printed.
    #[command(visible_aliases = ["rm", "delete"])]
    Remove {
        /// Its id or name.
        job: String,
    },
    /// Show the last runs.
    #[command(visible_alias = "runs")]
    History {
        /// Of this job alone.
        job: Option<String>,
        /// At most so many.
        #[arg(long, default_value_t = 20)]
        limit: usize,
        /// Print one JSON object a line.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
struct Add {
    /// 30m, every 2h, in 30m, daily at noon, weekdays at 9:30, "0 9 * * 1-5", 2027-02-03T14:00.
    schedule: String,
    /// What an agent is told.
    #[arg(default_value = "")]
    prompt: String,
    /// What you call it.
    #[arg(long)]
    name: Option<String>,
    /// A script in the home's scripts/ folder; without a prompt it is the whole job.
    #[arg(long)]
    script: Option<String>,
    /// The script is the whole job.
    #[arg(long)]
    no_agent: bool,
    /// Run it so often.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    repeat: Option<u64>,
    /// Where it runs.
    #[arg(long, value_name = "DIR")]
    workdir: Option<String>,
    /// What runs the script (an absolute path); python3 by default, bash for .sh.
    #[arg(long, value_name = "PATH")]
    interpreter: Option<String>,
    /// Do not run it before it is resumed.
    #[arg(long)]
    paused: bool,
}

/// The jobs of one home.
struct Home {
    store: Store,
    zone: TimeZone,
    folder: PathBuf,
}

impl Cron {
    /// Does it, and shows what is on disk afterwards.
    ///
    /// # Errors
    /// The file cannot be used, or there is no such job.
    pub fn run(self, target: &Target) -> Result<Exit, Failure> {
        let home = Home::of(target)?;
        let now = Clock::system().wall();
        let change = |job: &str, change: Change| home.store.change(job, &change, now, &home.zone).map_err(failure);
        match self.verb.unwrap_or(Verb::List { all: false, json: false }) {
            Verb::List { all, json } => return home.list(all, json),
            Verb::History { job, limit, json } => return home.history(job.as_deref(), limit, json),
            Verb::Add(add) => {
                let no_agent = add.no_agent || (add.script.is_some() && add.prompt.trim().is_empty());
                let job = NewJob {
                    schedule: add.schedule,
                    name: add.name,
                    prompt: add.prompt,
                    script: add.script,
                    no_agent,
                    repeat: add.repeat,
                    workdir: add.workdir,
                    interpreter: add.interpreter,
                    paused: add.paused,
                };
                home.show(&home.store.add(&job, now, &home.zone).map_err(failure)?)?;
                home.say_what_is_missing(job.script.as_deref());
            }
            Verb::Run { job } => {
                home.show(&change(&job, Change::Trigger)?)?;
                home.say_what_is_missing(None);
            }
            Verb::Pause { job, reason } => home.show(&change(&job, Change::Pause { reason })?)?,
            Verb::Resume { job } => home.show(&change(&job, Change::Resume)?)?,
            Verb::Remove { job } => print(&format!("removed  {}\n", change(&job, Change::Remove)?)),
        }
        Ok(Exit::Idle)
    }
}

fn failure(error: EditError) -> Failure {
    let exit = match &error {
        EditError::NoJob(_) => Exit::Unreachable,
        EditError::Store(_) => Exit::Indeterminate,
        _ => Exit::Usage,
    };
    Failure::new(exit, error.to_string())
}

impl Home {
    /// Of the backend that was named, if it runs; else by the environment.
    fn of(target: &Target) -> Result<Self, Failure> {
        let folder = match (&target.named, target.pid) {
            (_, Some(_)) => {
                PathBuf::from(target.one(None)?.endpoint.map_or_else(String::new, |endpoint| endpoint.home))
            }
            (Some(profile), None) => {
                let living = children()?.live.into_iter().find(|child| child.profile.as_deref() == Some(profile));
                living.map_or_else(
                    || root().map(|root| root.join("profiles").join(profile)),
                    |child| Ok(child.home.into()),
                )?
            }
            (None, None) => root()?,
        };
        if !folder.is_dir() {
            let message = format!("there is no home {}: set HERMES_HOME, or name a profile", folder.display());
            return Err(Failure::new(Exit::Unreachable, message));
        }
        let (zone, _) = configured_zone(&folder, std::env::var("HERMES_TIMEZONE").ok().as_deref());
        Ok(Self { store: Store::new(folder.join("cron")), zone, folder })
    }

    fn records(&self) -> Result<Vec<Value>, Failure> {
        let text = self.store.text().map_err(|error| failure(error.into()))?;
        let file: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        let held = file.get("jobs").unwrap_or(&file);
        Ok(match held {
            Value::Array(jobs) => jobs.clone(),
            Value::Object(jobs) => jobs.values().filter(|job| job.is_object()).cloned().collect(),
            _ => Vec::new(),
        })
    }

    fn list(&self, all: bool, as_json: bool) -> Result<Exit, Failure> {
        let over = |job: &Value| job["state"] == "completed" || (job["enabled"] == false && job["state"] != "paused");
        let jobs: Vec<Value> = self.records()?.into_iter().filter(|job| all || !over(job)).collect();
        if as_json {
            print(&format!("{}\n", json!(jobs)));
            return Ok(Exit::Idle);
        }
        if jobs.is_empty() {
            eprintln!("hermesctl: no jobs in {}; add one with hermesctl cron add", self.folder.display());
            return Ok(Exit::Idle);
        }
        let mut rows = vec![["STATE", "ID", "NAME", "SCHEDULE", "NEXT", "LAST"].map(str::to_owned).to_vec()];
        rows.extend(jobs.iter().map(row));
        print(&table(&rows));
        Ok(Exit::Idle)
    }

    /// What is on disk now: what was asked for is not proof of what is.
    fn show(&self, id: &str) -> Result<(), Failure> {
        match self.records()?.iter().find(|job| job["id"] == id) {
            Some(job) => print(&table(&[row(job)])),
            None => eprintln!("hermesctl: {id} is not in the file any more: somebody else has removed it"),
        }
        Ok(())
    }

    /// What is on disk may still not run.
    fn say_what_is_missing(&self, script: Option<&str>) {
        if let Some(script) =
            script.map(|script| self.folder.join("scripts").join(script)).filter(|path| !path.exists())
        {
            eprintln!("hermesctl: there is no {} yet: the job needs it", script.display());
        }
        let home = self.folder.canonicalize().unwrap_or_else(|_| self.folder.clone());
        let served = |record: &Endpoint| {
            let own = Path::new(&record.home);
            // A pool opens the homes of its profiles in time.
            own == home || (record.kind.is_some() && home.parent() == Some(&own.join("profiles")))
        };
        if records().is_ok_and(|records| !records.live.iter().any(served)) {
            eprintln!(
                "hermesctl: nobody serves {} now: its jobs run once a pool or a backend does; another home has its own (--profile)",
                self.folder.display()
            );
        }
    }

    fn history(&self, job: Option<&str>, limit: usize, as_json: bool) -> Result<Exit, Failure> {
        let mut text = String::new();
        if let Ok(mut file) = File::open(self.folder.join("cron/history.jsonl")) {
            let end = file.metadata().map_or(0, |meta| meta.len());
            let _ = file.seek(SeekFrom::Start(end.saturating_sub(HISTORY)));
            let _ = file.take(HISTORY).read_to_string(&mut text);
        }
        let runs: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let runs: Vec<Value> = runs.into_iter().filter(|run: &Value| job.is_none_or(|job| run["id"] == job)).collect();
        let runs = runs.get(runs.len().saturating_sub(limit)..).unwrap_or_default();
        if as_json {
            runs.iter().for_each(|run| print(&format!("{run}\n")));
            return Ok(Exit::Idle);
        }
        let mut rows = vec![["STATUS", "ID", "STARTED", "ENDED", "EXIT"].map(str::to_owned).to_vec()];
        rows.extend(runs.iter().map(|run| {
            vec![
                word(&run["status"]),
                word(&run["id"]),
                word(&run["started_at"]),
                word(&run["ended_at"]),
                word(&run["exit_code"]),
            ]
        }));
        print(&table(&rows));
        Ok(Exit::Idle)
    }
}

fn root() -> Result<PathBuf, Failure> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("HERMES_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".hermes")))
        .ok_or_else(|| Failure::usage("neither HERMES_HOME nor HOME is set: set HERMES_HOME"))
}

fn word(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn row(job: &Value) -> Vec<String> {
    let state = match (&job["enabled"], job["state"].as_str()) {
        (Value::Bool(false), Some("scheduled") | None) => "disabled".to_owned(),
        _ => word(&job["state"]),
    };
    let display = [&job["schedule_display"], &job["schedule"]["display"], &job["schedule"]["expr"]];
    let display = display.into_iter().find(|shown| shown.is_string()).map_or_else(|| "-".to_owned(), word);
    vec![state, word(&job["id"]), word(&job["name"]), display, word(&job["next_run_at"]), word(&job["last_status"])]
}
