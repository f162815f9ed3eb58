//! Prompts on disk: accepted only when they are there, and each ended exactly once as done, failed or interrupted.
//!
//! `$HERMES_HOME/control.db`, SQLite in WAL mode with every commit synced. Opened by the first prompt, or at start if it is
//! there, so that an idle child stays small. One process a home has it, by a lock beside it.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::fcntl::Flock;
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::protocol::{SessionReport, TurnReport, TurnState};
use crate::runtime::{LockError, lock_file};

/// So many ended turns are kept.
const KEPT: i64 = 10_000;

/// A page of turns holds at most so many bytes of text, so that it fits into a frame.
const MAX_PAGE_BYTES: usize = 512 * 1024;

/// Why the journal cannot be used. What was to be written is not.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// SQLite says why.
    #[error("{path} cannot be used: {error}")]
    Database {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: rusqlite::Error,
    },
    /// Another process has it.
    #[error("another backend of this home keeps {0}")]
    Held(PathBuf),
    /// The lock cannot be had at all.
    #[error("{path} cannot be locked: {error}")]
    Lock {
        /// The lock file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
}

/// A prompt that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Its turn.
    pub turn: u64,
    /// Its session.
    pub session: String,
    /// What the agent will be told.
    pub prompt: String,
}

/// The journal of one home. Every call blocks.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    open: Mutex<Option<Open>>,
}

#[derive(Debug)]
struct Open {
    connection: Connection,
    _lock: Flock<File>,
}

impl Journal {
    /// The journal of a home; nothing is opened.
    pub fn of(home: &Path) -> Self {
        Self { path: home.join("control.db"), open: Mutex::new(None) }
    }

    /// Whether there is one.
    pub fn exists(&self) -> bool {
        self.path.exists()
    }

    fn with<T>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, JournalError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.is_none() {
            *open = Some(self.open()?);
        }
        let database = |error| JournalError::Database { path: self.path.clone(), error };
        match open.as_ref() {
            Some(open) => work(&open.connection).map_err(database),
            None => Err(database(rusqlite::Error::InvalidQuery)),
        }
    }

    fn open(&self) -> Result<Open, JournalError> {
        let path = self.path.with_extension("lock");
        let lock = lock_file(&path).map_err(|error| match error {
            LockError::Held => JournalError::Held(self.path.clone()),
            LockError::Io(error) => JournalError::Lock { path, error },
        })?;
        let database = |error| JournalError::Database { path: self.path.clone(), error };
        // Made by us first, so that it is ours alone from its first byte on.
        let made = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path);
        made.map_err(|error| JournalError::Lock { path: self.path.clone(), error })?;
        let connection = Connection::open(&self.path).map_err(database)?;
        prepare(&connection).map_err(database)?;
        Ok(Open { connection, _lock: lock })
    }

    /// Accepts a prompt: on disk when this returns.
    ///
    /// # Errors
    /// It is not accepted.
    pub fn accept(&self, session: &str, prompt: &str, at: &str) -> Result<u64, JournalError> {
        self.with(|db| {
            db.execute(
                "INSERT INTO turns (session, prompt, state, queued_at) VALUES (?1, ?2, 'queued', ?3)",
                params![session, prompt, at],
            )?;
            Ok(db.last_insert_rowid().unsigned_abs())
        })
    }

    /// The turn begins: from here on it is never run again.
    ///
    /// # Errors
    /// It must not begin.
    pub fn begin(&self, turn: u64, at: &str) -> Result<(), JournalError> {
        self.with(|db| {
            db.execute(
                "UPDATE turns SET state = 'running', started_at = ?2 WHERE id = ?1 AND state = 'queued'",
                params![turn.cast_signed(), at],
            )
        })
        .map(drop)
    }

    /// The turn has ended; only the first ending counts.
    ///
    /// # Errors
    /// It is not written down.
    pub fn end(
        &self,
        turn: u64,
        state: TurnState,
        reply: Option<&str>,
        error: Option<&str>,
        at: &str,
    ) -> Result<(), JournalError> {
        self.with(|db| {
            db.execute(
                "UPDATE turns SET state = ?2, reply = ?3, error = ?4, ended_at = ?5 WHERE id = ?1 AND ended_at IS NULL",
                params![turn.cast_signed(), state.name(), reply, error, at],
            )?;
            db.execute(
                "DELETE FROM turns WHERE ended_at IS NOT NULL AND id <= (SELECT max(id) FROM turns) - ?1",
                params![KEPT],
            )
        })
        .map(drop)
    }

    /// After a start: what ran is interrupted, what waited waits.
    ///
    /// # Errors
    /// The journal cannot be used.
    pub fn recover(&self, why: &str, at: &str) -> Result<Vec<Waiting>, JournalError> {
        self.with(|db| {
            db.execute(
                "UPDATE turns SET state = 'interrupted', error = ?1, ended_at = ?2 WHERE state = 'running'",
                params![why, at],
            )?;
            let mut query = db.prepare("SELECT id, session, prompt FROM turns WHERE state = 'queued' ORDER BY id")?;
            let rows = query.query_map([], |row| {
                Ok(Waiting { turn: row.get::<_, i64>(0)?.unsigned_abs(), session: row.get(1)?, prompt: row.get(2)? })
            })?;
            rows.collect()
        })
    }

    /// One turn.
    ///
    /// # Errors
    /// The journal cannot be used.
    pub fn turn(&self, turn: u64) -> Result<Option<TurnReport>, JournalError> {
        self.with(|db| {
            let query = format!("SELECT {COLUMNS} FROM turns WHERE id = ?1");
            db.query_row(&query, params![turn.cast_signed()], report).optional()
        })
    }

    /// The turns of a session behind `after`, oldest first, as many as fit into a frame.
    ///
    /// # Errors
    /// The journal cannot be used.
    pub fn log(&self, session: &str, after: u64, limit: u32) -> Result<Vec<TurnReport>, JournalError> {
        self.with(|db| {
            let query = format!("SELECT {COLUMNS} FROM turns WHERE session = ?1 AND id > ?2 ORDER BY id LIMIT ?3");
            let mut query = db.prepare(&query)?;
            let rows = query.query_map(params![session, after.cast_signed(), limit], report)?;
            let (mut page, mut bytes) = (Vec::new(), 0);
            for row in rows {
                let row = row?;
                bytes += row.prompt.len() + row.reply.as_ref().map_or(0, String::len) + 512;
                if bytes > MAX_PAGE_BYTES && !page.is_empty() {
                    break;
                }
                page.push(row);
            }
            Ok(page)
        })
    }

    /// The sessions whose turns came last.
    ///
    /// # Errors
    /// The journal cannot be used.
    pub fn sessions(&self, limit: u32) -> Result<Vec<SessionReport>, JournalError> {
        self.with(|db| {
            let mut query = db.prepare(
                "SELECT session, max(id), count(CASE state WHEN 'queued' THEN 1 END), \
                 max(CASE state WHEN 'running' THEN id END) FROM turns GROUP BY session ORDER BY max(id) DESC LIMIT ?1",
            )?;
            let rows = query.query_map(params![limit], |row| {
                Ok(SessionReport {
                    session: row.get(0)?,
                    last: row.get::<_, i64>(1)?.unsigned_abs(),
                    queued: row.get(2)?,
                    running: row.get::<_, Option<i64>>(3)?.map(i64::unsigned_abs),
                })
            })?;
            rows.collect()
        })
    }
}

const COLUMNS: &str = "id, session, state, prompt, reply, error, queued_at, started_at, ended_at";

fn report(row: &Row<'_>) -> rusqlite::Result<TurnReport> {
    let state: String = row.get(2)?;
    let known = TurnState::ALL.into_iter().find(|known| known.name() == state);
    Ok(TurnReport {
        turn: row.get::<_, i64>(0)?.unsigned_abs(),
        session: row.get(1)?,
        // A state of a later version has ended for all that we know.
        state: known.unwrap_or(TurnState::Failed),
        prompt: row.get(3)?,
        reply: row.get(4)?,
        error: row.get(5)?,
        queued_at: row.get(6)?,
        started_at: row.get(7)?,
        ended_at: row.get(8)?,
    })
}

fn prepare(db: &Connection) -> rusqlite::Result<()> {
    db.busy_timeout(Duration::from_secs(2))?;
    db.pragma_update(None, "journal_mode", "WAL")?;
    // An acknowledged prompt survives a power cut.
    db.pragma_update(None, "synchronous", "FULL")?;
    db.execute_batch(
        "CREATE TABLE IF NOT EXISTS turns (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            session TEXT NOT NULL,
            prompt TEXT NOT NULL,
            state TEXT NOT NULL,
            reply TEXT,
            error TEXT,
            queued_at TEXT NOT NULL,
            started_at TEXT,
            ended_at TEXT
        );
        CREATE INDEX IF NOT EXISTS turns_by_session ON turns (session, id);
        CREATE INDEX IF NOT EXISTS turns_by_state ON turns (state) WHERE ended_at IS NULL;",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_survives_and_a_turn_ends_once() {
        let home = tempfile::tempdir().unwrap();
        let first = {
            let journal = Journal::of(home.path());
            assert!(!journal.exists());
            let first = journal.accept("s", "one", "t0").unwrap();
            journal.accept("s", "two", "t0").unwrap();
            journal.begin(first, "t1").unwrap();
            first
        };
        let journal = Journal::of(home.path());
        let waiting = journal.recover("died", "t2").unwrap();
        assert_eq!(waiting.iter().map(|w| w.prompt.as_str()).collect::<Vec<_>>(), ["two"]);
        journal.end(first, TurnState::Done, Some("late"), None, "t3").unwrap();
        let turn = journal.turn(first).unwrap().unwrap();
        assert_eq!((turn.state, turn.reply), (TurnState::Interrupted, None), "the first ending counts");
        assert_eq!(journal.sessions(10).unwrap()[0].queued, 1);
        assert_eq!(journal.log("s", first, 10).unwrap().len(), 1);
    }

    #[test]
    fn one_process_keeps_the_journal() {
        let home = tempfile::tempdir().unwrap();
        let journal = Journal::of(home.path());
        journal.accept("s", "p", "t").unwrap();
        assert!(matches!(Journal::of(home.path()).accept("s", "p", "t"), Err(JournalError::Held(_))));
    }
}
