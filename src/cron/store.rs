//! jobs.json as a file: read without a lock, changed only under it, replaced whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use nix::fcntl::Flock;

use super::document::{Changes, Document, DocumentError, readable, without_control_characters};
use super::plan::{Alive, Plan};
use crate::clock::Clock;
use crate::folder_watch::Names;
use crate::runtime::{LockError, lock_file};
use crate::secret::random_hex;

/// A longer file is none of ours.
const MAX_FILE: u64 = 64 * 1024 * 1024;

/// A lock that another process has is tried again this often.
const TRY_AGAIN: Duration = Duration::from_millis(25);

/// A file that cannot be read may be in the middle of being written by somebody who does not rename.
const TORN: u32 = 3;

/// Why the jobs cannot be read or changed. The file is as it was.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It is there and cannot be read.
    #[error("{path} cannot be read: {why}; it is left as it is")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Another process has the lock.
    #[error("{0} is locked by another process; trying again")]
    Locked(PathBuf),
    /// It cannot be written.
    #[error("{path} cannot be written: {error}; nothing was run")]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
}

/// Tells one state of the file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    modified: (i64, i64),
    size: u64,
    inode: u64,
}

/// The jobs of one home.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
}

/// A look at the file.
#[derive(Debug)]
pub struct Look {
    /// What it says.
    pub plan: Plan,
    /// Which state of the file that was; `None` if there is none.
    pub stamp: Option<Stamp>,
}

impl Store {
    /// The jobs in `<home>/cron`.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// The file.
    pub fn path(&self) -> PathBuf {
        self.folder.join("jobs.json")
    }

    /// The folder of everything about cron.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file as it is, made readable.
    ///
    /// # Errors
    /// [`StoreError::Unreadable`].
    pub fn text(&self) -> Result<String, StoreError> {
        self.patiently(|text| Document::parse(text).map(drop)).map(|((), text, _)| text)
    }

    /// What must be watched for changes of the file: its name in the folder, and where a symbolic link leads.
    pub fn watched(&self) -> Vec<(PathBuf, Names)> {
        let mut folders = vec![(self.folder.clone(), Names::of(&[&self.path()]))];
        let target = self.path().canonicalize().ok().filter(|_| self.path().is_symlink());
        if let Some((folder, target)) = target.as_deref().and_then(|target| Some((target.parent()?, target))) {
            folders.push((folder.to_owned(), Names::of(&[target])));
        }
        folders
    }

    /// Which state the file is in now.
    pub fn stamp(&self) -> Option<Stamp> {
        fs::metadata(self.path()).ok().map(|meta| stamp(&meta))
    }

    /// Looks at the jobs, without a lock. No file is no jobs.
    ///
    /// # Errors
    /// [`StoreError::Unreadable`].
    pub fn look(&self, now: Timestamp, zone: &TimeZone, alive: Alive<'_>) -> Result<Look, StoreError> {
        self.patiently(|text| Plan::of(text, now, zone, alive)).map(|(plan, _, stamp)| Look { plan, stamp })
    }

    /// Reads until the text makes sense to `parse`: somebody who does not rename may be in the middle of writing it.
    fn patiently<T>(
        &self,
        parse: impl Fn(&str) -> Result<T, DocumentError>,
    ) -> Result<(T, String, Option<Stamp>), StoreError> {
        let mut tries = 0;
        loop {
            let read = self.read().and_then(|(text, stamp)| match parse(&text) {
                Ok(parsed) => Ok((parsed, text, stamp)),
                Err(_) => {
                    let text = without_control_characters(&text);
                    let parsed = parse(&text).map_err(|error| error.to_string())?;
                    Ok((parsed, text, stamp))
                }
            });
            match read {
                Ok(read) => return Ok(read),
                Err(_) if tries < TORN && self.path().is_file() => std::thread::sleep(TRY_AGAIN),
                Err(why) => return Err(StoreError::Unreadable { path: self.path(), why }),
            }
            tries += 1;
        }
    }

    fn read(&self) -> Result<(String, Option<Stamp>), String> {
        let path = self.path();
        // Not to be held up by a pipe of that name.
        let flags = nix::fcntl::OFlag::O_NONBLOCK.bits();
        let file = match OpenOptions::new().read(true).custom_flags(flags).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(("{}".to_owned(), None));
            }
            Err(error) => return Err(error.to_string()),
        };
        let meta = file.metadata().map_err(|error| error.to_string())?;
        match (meta.is_file(), meta.len() > MAX_FILE) {
            (false, _) => return Err("it is no regular file".to_owned()),
            (_, true) => return Err(format!("it has {} bytes; at most {MAX_FILE} are read", meta.len())),
            _ => {}
        }
        let mut bytes = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or(0));
        file.take(MAX_FILE).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        let text = readable(bytes).map_err(|error| error.to_string())?;
        Ok((text, Some(stamp(&meta))))
    }

    /// The lock of one scan; `None` if another process scans.
    ///
    /// # Errors
    /// The lock file cannot be used.
    pub fn try_tick_lock(&self) -> Result<Option<Flock<File>>, StoreError> {
        self.try_lock(&self.folder.join(".tick.lock"))
    }

    /// The lock around every change; waits for at most `patience`.
    ///
    /// # Errors
    /// [`StoreError::Locked`] when the time is over.
    pub fn lock(&self, patience: Duration) -> Result<Locked<'_>, StoreError> {
        let path = self.folder.join(".jobs.lock");
        let clock = Clock::system();
        let begun = clock.now();
        loop {
            if let Some(lock) = self.try_lock(&path)? {
                return Ok(Locked { store: self, _lock: lock });
            }
            if clock.now().since(begun) >= patience {
                return Err(StoreError::Locked(path));
            }
            std::thread::sleep(TRY_AGAIN);
        }
    }

    fn try_lock(&self, path: &Path) -> Result<Option<Flock<File>>, StoreError> {
        let unwritable = |error: io::Error| StoreError::Unwritable { path: path.to_owned(), error };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder).map_err(unwritable)?;
        match lock_file(path) {
            Ok(lock) => Ok(Some(lock)),
            Err(LockError::Held) => Ok(None),
            Err(LockError::Io(error)) => Err(unwritable(error)),
        }
    }
}

fn stamp(meta: &fs::Metadata) -> Stamp {
    Stamp { modified: (meta.mtime(), meta.mtime_nsec()), size: meta.len(), inode: meta.ino() }
}

/// The right to change the file.
#[derive(Debug)]
pub struct Locked<'a> {
    store: &'a Store,
    _lock: Flock<File>,
}

impl Locked<'_> {
    /// Reads the file again, lets `change` say what changes, and replaces it if anything does. On disk when it returns.
    ///
    /// # Errors
    /// It cannot be read or written: then nothing has changed.
    pub fn update<T>(
        &self,
        now: &str,
        change: impl FnOnce(&Document<'_>, &mut ChangeSet<'_>) -> T,
    ) -> Result<T, StoreError> {
        let ((), text, _) = self.store.patiently(|text| Document::parse(text).map(drop))?;
        let unreadable =
            |error: DocumentError| StoreError::Unreadable { path: self.store.path(), why: error.to_string() };
        let document = Document::parse(&text).map_err(unreadable)?;
        let mut changes = ChangeSet { document: &document, changes: document.changes() };
        let said = change(&document, &mut changes);
        let mut changes = changes.changes;
        if !changes.is_empty() {
            document.touch(&mut changes, now);
            self.replace(changes.apply().as_bytes())?;
        }
        Ok(said)
    }

    fn replace(&self, bytes: &[u8]) -> Result<(), StoreError> {
        let path = self.store.path();
        let unwritable = |error: io::Error| StoreError::Unwritable { path: path.clone(), error };
        // Through a symbolic link, which stays one.
        let target = path.canonicalize().unwrap_or_else(|_| path.clone());
        let folder = target.parent().unwrap_or(&self.store.folder).to_owned();
        let name = format!(".jobs_{}.tmp", random_hex::<8>().map_err(unwritable)?);
        let temporary = folder.join(name);
        let written = write_synced(&temporary, bytes).and_then(|()| fs::rename(&temporary, &target));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written.map_err(unwritable)?;
        // The name, too, must survive a crash.
        File::open(&folder).and_then(|folder| folder.sync_all()).map_err(unwritable)
    }
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    file.sync_all()
}

/// What one update changes.
pub struct ChangeSet<'a> {
    document: &'a Document<'a>,
    changes: Changes<'a>,
}

impl ChangeSet<'_> {
    /// Sets keys of the job at a place.
    pub fn set(&mut self, place: usize, keys: &[(&str, String)]) {
        if let Some((_, job)) = self.document.jobs().get(place) {
            // A record that is no object was never found by its id.
            let _ = self.changes.set(job, keys);
        }
    }

    /// Takes the job at a place out.
    pub fn remove(&mut self, place: usize) {
        self.document.remove(&mut self.changes, place);
    }

    /// Appends a job.
    pub fn append(&mut self, id: &str, job: &str) {
        self.document.append(&mut self.changes, id, job);
    }
}

#[cfg(test)]
mod tests;
