//! Which children a pool has, on disk, so that the next one can adopt those that outlive it. Nothing in it is believed by
//! itself: a child must have the same pid, start marker and generation in its own record, and take its own token.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};

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

/// The file. Written only under the pool's lock.
#[derive(Debug)]
pub struct Roster {
    path: PathBuf,
    written: Vec<Member>,
}

impl Roster {
    /// The roster beside a pool's endpoint record.
    pub fn beside(record: &Path) -> Self {
        Self { path: record.with_extension("roster"), written: Vec::new() }
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
        if members == self.written {
            return;
        }
        if let Err(error) = self.replace(&members) {
            tracing::warn!(path = %self.path.display(), %error, "the roster cannot be written: who outlives this pool is not adopted");
        }
        self.written = members;
    }

    fn replace(&self, members: &[Member]) -> io::Result<()> {
        let temporary = self.path.with_extension("roster.tmp");
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
        let mut roster = Roster::beside(&folder.path().join("x.json"));
        assert_eq!(roster.read(), []);
        let member = Member { profile: "p".into(), pid: 7, start_marker: "linux:1".into(), generation: "g".into() };
        roster.write(vec![member.clone()]);
        assert_eq!(roster.read(), [member]);
        fs::write(folder.path().join("x.roster"), "[{").unwrap();
        assert_eq!(roster.read(), []);
    }
}
