//! One child a home: a lock that the kernel drops with its holder.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};

/// Why the lock was not had.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has it.
    #[error("another process holds the lock")]
    Held,
    /// It cannot be had at all.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The lock, held until dropped.
#[derive(Debug)]
pub struct Lock {
    _file: Flock<File>,
}

impl Lock {
    /// Takes the lock at `path` without waiting.
    ///
    /// # Errors
    /// [`LockError::Held`] if another has it.
    pub fn take(path: &Path) -> Result<Self, LockError> {
        loop {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(OFlag::O_NOFOLLOW.bits())
                .open(path)?;
            let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(file) => file,
                Err((_, Errno::EWOULDBLOCK)) => return Err(LockError::Held),
                Err((_, error)) => return Err(io::Error::from(error).into()),
            };
            // A cleaner may have removed the name between open and lock: a lock without a name locks nobody out.
            let named = fs::symlink_metadata(path)?;
            if file.metadata()?.ino() == named.ino() {
                return Ok(Self { _file: file });
            }
        }
    }
}
