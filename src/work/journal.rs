//! Prompts on disk: accepted only when they are there, and each ended exactly once as done, failed or interrupted.
//!
//! `$HERMES_HOME/control.db`, SQLite in WAL mode with every commit synced. Opened by the first prompt, or at start if it is
//! there, so that an idle child stays small. One process a home has it, by a lock beside it.
//!
//! What was written counts only if the file still has its name. One that was removed under us is written back from what we
//! hold open; one that was replaced is left alone, and nothing is acknowledged.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use nix::fcntl::Flock;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, params};

use crate::protocol::{SessionReport, TurnReport, TurnState};
use crate::runtime::{LockError, lock_file};

/// Whoever only looks waits so long for whoever writes.
const PEEK: Duration = Duration::from_millis(200);

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
    /// A file cannot be used at all.
    #[error("{path} cannot be used: {error}")]
    File {
        /// The database, or the lock beside it.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// Another file has its name by now.
    #[error("{0} was replaced while it was in use: put it back, or restart this backend")]
    Replaced(PathBuf),
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
    /// It was opened once: from then on there is one, whatever became of its name.
    opened: AtomicBool,
}

#[derive(Debug)]
struct Open {
    connection: Connection,
    file: Inode,
    lock: Flock<File>,
}

/// Which file it is: device and number.
type Inode = (u64, u64);

impl Journal {
    /// The journal of a home; nothing is opened.
    pub fn of(home: &Path) -> Self {
        Self { path: home.join("control.db"), open: Mutex::new(None), opened: AtomicBool::new(false) }
    }

    /// Whether there is one; if that cannot be told there may be.
    pub fn exists(&self) -> bool {
        self.opened.load(Ordering::Relaxed) || self.path.try_exists().unwrap_or(true)
    }

    /// When it was written to last, if it is there. Opens nothing.
    pub fn changed(&self) -> Option<Timestamp> {
        let changed = |path: &Path| Timestamp::try_from(fs::metadata(path).ok()?.modified().ok()?).ok();
        changed(&self.path).max(changed(&self.path.with_extension("db-wal")))
    }

    /// Whether prompts wait in it, for one who has not opened it: nothing is made, written or locked. What cannot be read is
    /// the business of the backend, which says so when it is up.
    pub fn waits(&self) -> bool {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let asked = Connection::open_with_flags(&self.path, flags).and_then(|db| {
            db.busy_timeout(PEEK)?;
            db.query_row("SELECT EXISTS (SELECT 1 FROM turns WHERE state = 'queued')", [], |row| row.get(0))
        });
        asked.unwrap_or(false)
    }

    /// One transaction, which counts only if the file still has its name at its end.
    fn with<T>(&self, work: impl Fn(&Connection) -> rusqlite::Result<T>) -> Result<T, JournalError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.is_none() {
            *open = Some(self.open()?);
        }
        let Some(using) = open.as_mut() else { return Err(self.database(rusqlite::Error::InvalidQuery)) };
        if let Some(done) = self.transact(using, &work)? {
            return Ok(done);
        }
        tracing::warn!(path = %self.path.display(), "the journal was removed while it was in use: it is written back");
        // If that fails the connection still holds all of it.
        self.write_back(&using.connection)?;
        let Some(Open { connection, lock, .. }) = open.take() else {
            return Err(JournalError::Replaced(self.path.clone()));
        };
        drop(connection);
        let using = open.insert(self.use_file(lock)?);
        self.transact(using, &work)?.ok_or_else(|| JournalError::Replaced(self.path.clone()))
    }

    /// `None`, and nothing done, if the file or its log has lost its name.
    fn transact<T>(
        &self,
        using: &mut Open,
        work: impl Fn(&Connection) -> rusqlite::Result<T>,
    ) -> Result<Option<T>, JournalError> {
        let transaction = using.connection.transaction().map_err(|error| self.database(error))?;
        // Dropped without a commit, it is rolled back.
        let done = work(&transaction).map_err(|error| self.database(error))?;
        match self.inode() {
            Ok(now) if now == using.file && self.path.with_extension("db-wal").exists() => {
                transaction.commit().map_err(|error| self.database(error))?;
                Ok(Some(done))
            }
            Ok(now) if now != using.file => Err(JournalError::Replaced(self.path.clone())),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.file(error)),
            _ => Ok(None),
        }
    }

    fn database(&self, error: rusqlite::Error) -> JournalError {
        JournalError::Database { path: self.path.clone(), error }
    }

    fn file(&self, error: io::Error) -> JournalError {
        JournalError::File { path: self.path.clone(), error }
    }

    fn inode(&self) -> io::Result<Inode> {
        fs::metadata(&self.path).map(|meta| (meta.dev(), meta.ino()))
    }

    fn open(&self) -> Result<Open, JournalError> {
        let path = self.path.with_extension("lock");
        let lock = lock_file(&path).map_err(|error| match error {
            LockError::Held => JournalError::Held(self.path.clone()),
            LockError::Io(error) => JournalError::File { path, error },
        })?;
        self.use_file(lock)
    }

    fn use_file(&self, lock: Flock<File>) -> Result<Open, JournalError> {
        // Made by us first, so that it is ours alone from its first byte on.
        let made = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path);
        made.map_err(|error| self.file(error))?;
        let connection = Connection::open(&self.path).map_err(|error| self.database(error))?;
        prepare(&connection).map_err(|error| self.database(error))?;
        let file = self.inode().map_err(|error| self.file(error))?;
        self.opened.store(true, Ordering::Relaxed);
        Ok(Open { connection, file, lock })
    }

    /// Copies the database to the name that it has lost: all of it, or the name stays free.
    fn write_back(&self, connection: &Connection) -> Result<(), JournalError> {
        let copy = self.path.with_extension("db.tmp");
        let _ = fs::remove_file(&copy);
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&copy);
        let made = made.map_err(|error| self.file(error))?;
        connection.execute("VACUUM INTO ?1", params![copy.to_string_lossy()]).map_err(|error| self.database(error))?;
        // What is left of the lost file's log must not be taken for the new one's.
        for end in ["db-wal", "db-shm"] {
            let _ = fs::remove_file(self.path.with_extension(end));
        }
        made.sync_all().and_then(|()| fs::rename(&copy, &self.path)).map_err(|error| self.file(error))
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

    /// The turn begins: from here on it is never run again. False if it does not wait any more.
    ///
    /// # Errors
    /// It must not begin.
    pub fn begin(&self, turn: u64, at: &str) -> Result<bool, JournalError> {
        let begun = self.with(|db| {
            db.execute(
                "UPDATE turns SET state = 'running', started_at = ?2 WHERE id = ?1 AND state = 'queued'",
                params![turn.cast_signed(), at],
            )
        })?;
        Ok(begun == 1)
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
                // Not this one, however long it took: somebody may wait for its answer.
                "DELETE FROM turns WHERE ended_at IS NOT NULL AND id <> ?1 AND id <= (SELECT max(id) FROM turns) - ?2",
                params![turn.cast_signed(), KEPT],
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
        // No turn has a number that the database cannot have, and none wraps round to one.
        let Ok(turn) = i64::try_from(turn) else { return Ok(None) };
        self.with(|db| {
            let query = format!("SELECT {COLUMNS} FROM turns WHERE id = ?1");
            db.query_row(&query, params![turn], report).optional()
        })
    }

    /// The turns of a session behind `after`, oldest first, as many as fit into a frame.
    ///
    /// # Errors
    /// The journal cannot be used.
    pub fn log(&self, session: &str, after: u64, limit: u32) -> Result<Vec<TurnReport>, JournalError> {
        let Ok(after) = i64::try_from(after) else { return Ok(Vec::new()) };
        self.with(|db| {
            let query = format!("SELECT {COLUMNS} FROM turns WHERE session = ?1 AND id > ?2 ORDER BY id LIMIT ?3");
            let mut query = db.prepare(&query)?;
            let rows = query.query_map(params![session, after, limit], report)?;
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
    // Whoever waits for more than this tries again, and lets others have their turn.
    db.busy_timeout(Duration::from_millis(500))?;
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
        for none in [1 << 63, u64::MAX] {
            assert!(journal.log("s", none, 10).unwrap().is_empty() && journal.turn(none).unwrap().is_none());
        }
    }

    #[test]
    fn an_answer_that_took_ten_thousand_turns_is_not_deleted_as_it_comes() {
        let home = tempfile::tempdir().unwrap();
        let journal = Journal::of(home.path());
        let slow = journal.accept("s", "slow", "t0").unwrap();
        assert!(journal.begin(slow, "t1").unwrap() && !journal.begin(slow, "t1").unwrap());
        let many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i <= ?1) \
            INSERT INTO turns (session, prompt, state, queued_at, ended_at) SELECT 'q', 'p', 'done', 't', 't' FROM n";
        journal.with(|db| db.execute(many, params![KEPT])).unwrap();
        journal.end(slow, TurnState::Done, Some("precious"), None, "t2").unwrap();
        assert_eq!(journal.turn(slow).unwrap().unwrap().reply.as_deref(), Some("precious"));
    }

    #[test]
    fn a_journal_that_is_removed_in_use_is_written_back_and_loses_nothing() {
        let home = tempfile::tempdir().unwrap();
        let journal = Journal::of(home.path());
        let first = journal.accept("s", "one", "t0").unwrap();
        for files in [&["control.db"][..], &["control.db-wal"], &["control.db", "control.db-wal", "control.db-shm"]] {
            files.iter().for_each(|file| fs::remove_file(home.path().join(file)).unwrap());
            let turn = journal.accept("s", &files.join(" "), "t1").unwrap();
            assert!(journal.turn(turn).unwrap().is_some() && turn > first);
        }
        assert!(journal.exists());
        assert_eq!(fs::metadata(home.path().join("control.db")).unwrap().mode() & 0o777, 0o600);
        // As a kill would: nothing is written by closing.
        let copy = tempfile::tempdir().unwrap();
        for file in ["control.db", "control.db-wal"] {
            fs::copy(home.path().join(file), copy.path().join(file)).unwrap();
        }
        let again = Journal::of(copy.path());
        let prompts: Vec<String> = again.recover("died", "t2").unwrap().into_iter().map(|w| w.prompt).collect();
        assert_eq!(prompts, ["one", "control.db", "control.db-wal", "control.db control.db-wal control.db-shm"]);
    }

    #[test]
    fn a_journal_that_is_replaced_in_use_acknowledges_nothing() {
        let home = tempfile::tempdir().unwrap();
        let journal = Journal::of(home.path());
        journal.accept("s", "one", "t0").unwrap();
        fs::rename(home.path().join("control.db"), home.path().join("aside")).unwrap();
        fs::write(home.path().join("control.db"), b"somebody else's").unwrap();
        assert!(matches!(journal.accept("s", "two", "t1"), Err(JournalError::Replaced(_))));
        assert!(matches!(journal.begin(1, "t1"), Err(JournalError::Replaced(_))));
        assert_eq!(fs::read(home.path().join("control.db")).unwrap(), b"somebody else's");
        fs::rename(home.path().join("aside"), home.path().join("control.db")).unwrap();
        journal.accept("s", "three", "t2").unwrap();
        let waiting = journal.recover("died", "t3").unwrap();
        let prompts: Vec<&str> = waiting.iter().map(|waiting| waiting.prompt.as_str()).collect();
        assert_eq!(prompts, ["one", "three"], "what was refused is not there, and what did not begin has not");
    }

    #[test]
    fn one_process_keeps_the_journal() {
        let home = tempfile::tempdir().unwrap();
        let journal = Journal::of(home.path());
        journal.accept("s", "p", "t").unwrap();
        assert!(matches!(Journal::of(home.path()).accept("s", "p", "t"), Err(JournalError::Held(_))));
    }
}
