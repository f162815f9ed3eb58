//! Which children a pool has, on disk, so that the next one can adopt those that outlive it. Nothing in it is believed by
//! itself: a child must have the same pid, start marker and generation in its own record, and take its own token.
//!
//! It lies in the home, where no cleaner of temporary files comes, and under a lock: one pool a home, whatever its runtime
//! directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, OFlag};
use serde::{Deserialize, Serialize};

use crate::doorway::DoorwayError;
use crate::runtime::{LockError, lock_soon};

/// A longer file is none of ours.
const MAX_FILE: u64 = 256 * 1024;

/// One child.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its profile.
    pub profile: String,
    /// Its process.
    pub pid: u32,
    /// Its start marker.
    pub start_marker: String,
    /// Its generation; empty as long as it has not come up.
    pub generation: String,
}

/// The file, and its lock.
#[derive(Debug)]
pub struct Roster {
    path: PathBuf,
    /// What is on disk, as far as known.
    written: Option<Vec<Member>>,
    failed: bool,
    _lock: Flock<File>,
}

impl Roster {
    /// The roster of a home, which no other pool has then.
    ///
    /// # Errors
    /// Another pool has it, or it cannot be had.
    pub fn claim(home: &Path) -> Result<Self, DoorwayError> {
        let path = home.join(".pool.lock");
        match lock_soon(&path) {
            Ok(lock) => Ok(Self { path: home.join(".pool.json"), written: None, failed: false, _lock: lock }),
            Err(LockError::Held) => {
                let home = home.display();
                Err(DoorwayError::Taken(format!(
                    "{home} has a pool already, with another runtime directory: use that one, or stop it first"
                )))
            }
            Err(LockError::Io(error)) => {
                Err(DoorwayError::Unusable(format!("{} cannot be locked: {error}", path.display())))
            }
        }
    }

    /// Whom the pool before us had. A file that cannot be used names nobody.
    pub fn read(&self) -> Vec<Member> {
        let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
        let Ok(file) = OpenOptions::new().read(true).custom_flags(flags).open(&self.path) else { return Vec::new() };
        let mut text = String::new();
        let read = file.take(MAX_FILE).read_to_string(&mut text).map_err(serde_json::Error::io);
        read.and_then(|_| serde_json::from_str(&text)).unwrap_or_else(|error| {
            tracing::warn!(path = %self.path.display(), %error, "the roster cannot be read: nobody is adopted");
            Vec::new()
        })
    }

    /// Writes who is up now, if that has changed.
    pub fn write(&mut self, members: Vec<Member>) {
        if self.written.as_ref() == Some(&members) {
            return;
        }
        match self.replace(&members) {
            Ok(()) => (self.written, self.failed) = (Some(members), false),
            Err(error) if !std::mem::replace(&mut self.failed, true) => {
                tracing::warn!(path = %self.path.display(), %error, "the roster cannot be written: who outlives this pool is not adopted");
            }
            Err(_) => {}
        }
    }

    fn replace(&self, members: &[Member]) -> io::Result<()> {
        let temporary = self.path.with_extension("json.tmp");
        let _ = fs::remove_file(&temporary);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(&serde_json::to_vec(members)?)?;
        fs::rename(&temporary, &self.path)
    }

    /// Nobody is left to adopt.
    pub fn remove(self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_garbage_names_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let mut roster = Roster::claim(folder.path()).unwrap();
        assert!(matches!(Roster::claim(folder.path()), Err(DoorwayError::Taken(_))));
        assert_eq!(roster.read(), []);
        let member = Member { profile: "p".into(), pid: 7, start_marker: "linux:1".into(), generation: "g".into() };
        roster.write(vec![member.clone()]);
        assert_eq!(roster.read(), [member]);
        fs::write(folder.path().join(".pool.json"), "[{").unwrap();
        assert_eq!(roster.read(), []);
    }
}
