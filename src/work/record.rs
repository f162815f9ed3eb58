//! Runs on record: one small file a piece of work, locked by the child that runs it.
//!
//! 1. [`Runs::reserve`] takes the lock: whoever holds it runs that work, and no second process of the same home does.
//! 2. The program waits at the gate ([`super::shim`]) while its pid, group and start marker are written and synced.
//! 3. When the work has ended and its result is stored the file is removed.
//! 4. A file whose lock is free belongs to a child that died. If the program still lives it is a survivor, which counts as
//!    work of whoever finds it; else it was interrupted.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::Flock;
use serde::{Deserialize, Serialize};

use super::group::{self, Process};
use crate::process;
use crate::runtime::{LockError, lock_file};

/// A record is a few hundred bytes; a longer file is none of ours.
const MAX_RECORD: u64 = 64 * 1024;

/// What is known of a run before it begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// `cron` or `turn`.
    pub kind: String,
    /// The job or session.
    pub id: String,
    /// The program's process id, which is its group's and session's too.
    pub pid: u32,
    /// Its start marker, against a recycled pid.
    pub start_marker: String,
    /// When the run was due (ISO 8601), for a job.
    pub scheduled_for: Option<String>,
    /// When it began (ISO 8601).
    pub started_at: String,
    /// What came of it, once it has ended and as long as that is not written where it belongs.
    #[serde(default)]
    pub result: Option<Ending>,
}

/// What came of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// `ok`, `error` or `interrupted`.
    pub status: String,
    /// What went wrong.
    pub error: Option<String>,
    /// When it ended (ISO 8601).
    pub ended_at: String,
}

/// So many looks at all processes may be needed until two in a row agree.
const LOOKS: usize = 20;

/// The kind of a record that names a process left running, and not a run.
pub const STRAY: &str = "stray";

impl Run {
    /// The processes of this run that still live: its group, its session, and what bears its mark in the environment.
    ///
    /// # Errors
    /// They cannot be told.
    pub fn survivors(&self, home: &Path) -> io::Result<Vec<u32>> {
        let leader = process::start_marker(self.pid);
        // If the pid is somebody else's now, nobody of our group is left: a group bears its number as long as it lives.
        let ours = leader.is_none() || leader.as_deref() == Some(self.start_marker.as_str());
        let own = i32::try_from(self.pid).unwrap_or(0);
        let home = format!("HERMES_HOME={}", home.display());
        let marks =
            ["HERMES_CRON_JOB_ID", "HERMES_SESSION_ID"].map(|name| [format!("{name}={}", self.id), home.clone()]);
        let belongs = |process: &Process| {
            let by_number = match self.kind.as_str() {
                // A record of a result names no process any more.
                _ if own == 0 => false,
                _ => process.group == own || process.session == own,
            };
            !process.zombie && ((ours && by_number) || marks.iter().any(|mark| group::bears(process.pid, mark)))
        };
        let mut last = None;
        // One that starts another and ends while we look would hide it.
        for _ in 0..LOOKS {
            let snapshot = group::processes()?;
            let now: Vec<u32> =
                snapshot.all.iter().filter(|process| belongs(process)).map(|process| process.pid).collect();
            if !now.is_empty() || (!snapshot.moved && last.as_ref() == Some(&now)) {
                return Ok(now);
            }
            last = Some(now);
        }
        Err(io::Error::other("the processes of this machine do not come to rest"))
    }
}

/// The folder of the records of one home.
#[derive(Debug, Clone)]
pub struct Runs {
    home: PathBuf,
    folder: PathBuf,
}

/// A run of a child that died.
#[derive(Debug)]
pub struct Left {
    /// What was on record.
    pub run: Run,
    /// Its lock, now ours.
    pub record: Record,
}

impl Runs {
    /// The records below `home`.
    pub fn of(home: &Path) -> Self {
        Self { home: home.to_owned(), folder: home.join("runs") }
    }

    /// Takes the record of this work; `None` if another process, or a survivor, has it.
    ///
    /// # Errors
    /// The folder or file cannot be written: then the work must not begin.
    pub fn reserve(&self, kind: &str, id: &str) -> io::Result<Option<Record>> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let Some(mut record) = Record::lock(&self.folder.join(format!("{kind}-{id}.json")))? else { return Ok(None) };
        let survives = match record.read()? {
            // What cannot be told may live.
            Some(run) => run.survivors(&self.home).map_or(true, |survivors| !survivors.is_empty()),
            None => false,
        };
        Ok((!survives).then_some(record))
    }

    /// The home that these are the runs of.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Every record whose child has died. Costs one failed `open` where there is no folder.
    ///
    /// # Errors
    /// A record cannot be read: what it is about may live.
    pub fn left(&self) -> io::Result<Vec<Left>> {
        let mut left = Vec::new();
        let files = match fs::read_dir(&self.folder) {
            Ok(files) => files,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(left),
            Err(error) => return Err(error),
        };
        for file in files {
            let path = file?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                left.extend(Self::look(&path).map_err(|error| named(&path, &error))?);
            }
        }
        Ok(left)
    }

    fn look(path: &Path) -> io::Result<Option<Left>> {
        let Some(mut record) = Record::lock(path)? else { return Ok(None) };
        match record.read()? {
            Some(run) => Ok(Some(Left { run, record })),
            None => {
                // Nothing was written: the gate was never opened, so nothing ran.
                record.remove();
                Ok(None)
            }
        }
    }
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// The locked record of one run. Dropped without [`Record::remove`], the file stays for whoever comes after.
#[derive(Debug)]
pub struct Record {
    file: Flock<File>,
    path: PathBuf,
}

impl Record {
    fn lock(path: &Path) -> io::Result<Option<Self>> {
        match lock_file(path) {
            Ok(file) => Ok(Some(Self { file, path: path.to_owned() })),
            Err(LockError::Held) => Ok(None),
            Err(LockError::Io(error)) => Err(error),
        }
    }

    /// `None` if nothing was written.
    fn read(&mut self) -> io::Result<Option<Run>> {
        let mut text = String::new();
        self.file.rewind()?;
        Read::by_ref(&mut *self.file).take(MAX_RECORD).read_to_string(&mut text)?;
        if text.is_empty() {
            return Ok(None);
        }
        Ok(Some(serde_json::from_str(&text)?))
    }

    /// Puts the run on disk. Only then may the gate open.
    ///
    /// # Errors
    /// It could not be written: the run must not begin.
    pub fn write(&mut self, run: &Run) -> io::Result<()> {
        let text = serde_json::to_vec(run)?;
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(&text)?;
        self.file.sync_data()
    }

    /// Puts what the program reads beside the run: a file, so that the program has all of it whatever becomes of us. It
    /// goes when the program opens it.
    ///
    /// # Errors
    /// It could not be written: the run must not begin.
    pub fn write_input(&self, input: &str) -> io::Result<PathBuf> {
        let path = self.path.with_extension("input");
        let _ = fs::remove_file(&path);
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?.write_all(input.as_bytes())?;
        Ok(path)
    }

    /// The run is over and its result is stored.
    pub fn remove(self) {
        // There is none, but for a run that was stopped at the gate.
        let _ = fs::remove_file(self.path.with_extension("input"));
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "a run's record cannot be removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(pid: u32, marker: &str) -> Run {
        Run {
            kind: "cron".into(),
            id: "j".into(),
            pid,
            start_marker: marker.into(),
            scheduled_for: None,
            started_at: "2026-12-01T00:00:00+00:00".into(),
            result: None,
        }
    }

    #[test]
    fn one_run_an_id_and_home() {
        let home = tempfile::tempdir().unwrap();
        let runs = Runs::of(home.path());
        let first = runs.reserve("cron", "j").unwrap().unwrap();
        assert!(runs.reserve("cron", "j").unwrap().is_none());
        assert!(runs.left().unwrap().is_empty(), "its child lives");
        first.remove();
        assert!(runs.reserve("cron", "j").unwrap().is_some());
    }

    #[test]
    fn a_record_of_a_dead_child_is_found_with_or_without_a_survivor() {
        let home = tempfile::tempdir().unwrap();
        let runs = Runs::of(home.path());
        let mut record = runs.reserve("cron", "j").unwrap().unwrap();
        record.write(&run(4_000_000, "linux:1")).unwrap();
        drop(record);
        let left = runs.left().unwrap();
        assert_eq!(left.len(), 1);
        assert!(left[0].run.survivors(home.path()).unwrap().is_empty());
    }

    #[test]
    fn a_record_that_cannot_be_read_is_an_error_and_stays() {
        let home = tempfile::tempdir().unwrap();
        let runs = Runs::of(home.path());
        drop(runs.reserve("cron", "j").unwrap().unwrap());
        let path = home.path().join("runs/cron-j.json");
        fs::write(&path, r#"{"kind":"cron","id":"j","pi"#).unwrap();
        assert!(runs.left().is_err() && runs.reserve("cron", "j").is_err());
        assert!(path.exists());
    }

    #[test]
    fn a_record_without_a_word_never_ran() {
        let home = tempfile::tempdir().unwrap();
        let runs = Runs::of(home.path());
        drop(runs.reserve("cron", "j").unwrap().unwrap());
        assert!(runs.left().unwrap().is_empty());
        assert!(fs::read_dir(home.path().join("runs")).unwrap().next().is_none());
    }

    #[test]
    fn a_recycled_pid_is_no_survivor() {
        let own = std::process::id();
        assert!(run(own, "linux:0").survivors(Path::new("/nowhere")).unwrap().is_empty());
    }
}
