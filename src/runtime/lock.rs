//! Locked files: rights that the kernel takes back with their holder.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};

/// See [`Lock::take_soon`].
const TRIES: u32 = 40;
const PAUSE: Duration = Duration::from_millis(5);

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

/// The lock of one child a home, held until dropped.
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
        // The runtime dir may lie where others can put something: a symbolic link there is none of ours.
        lock(path, OFlag::O_NOFOLLOW).map(|file| Self { _file: file })
    }

    /// As [`Lock::take`], tried again for 200 ms: a client that sweeps holds the lock for a moment, and so does a killed
    /// process that the kernel still takes apart; one that lives holds it for good.
    ///
    /// # Errors
    /// As [`Lock::take`].
    pub fn take_soon(path: &Path) -> Result<Self, LockError> {
        soon(|| Self::take(path))
    }
}

/// Locks a file of a home, made if it is not there, without waiting. Dropped, the file is free.
///
/// # Errors
/// [`LockError::Held`] if another has it.
pub fn lock_file(path: &Path) -> Result<Flock<File>, LockError> {
    lock(path, OFlag::empty())
}

/// As [`lock_file`], tried again as [`Lock::take_soon`] does.
///
/// # Errors
/// As [`lock_file`].
pub fn lock_soon(path: &Path) -> Result<Flock<File>, LockError> {
    soon(|| lock_file(path))
}

fn soon<T>(take: impl Fn() -> Result<T, LockError>) -> Result<T, LockError> {
    for _ in 0..TRIES {
        match take() {
            Err(LockError::Held) => std::thread::sleep(PAUSE),
            taken => return taken,
        }
    }
    take()
}

fn lock(path: &Path, flags: OFlag) -> Result<Flock<File>, LockError> {
    loop {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags.bits());
        let file = match Flock::lock(options.open(path)?, FlockArg::LockExclusiveNonblock) {
            Ok(file) => file,
            Err((_, Errno::EWOULDBLOCK)) => return Err(LockError::Held),
            Err((_, error)) => return Err(io::Error::from(error).into()),
        };
        // The name may have been removed between open and lock: a lock without a name locks nobody out.
        let named = if flags.contains(OFlag::O_NOFOLLOW) { fs::symlink_metadata(path) } else { fs::metadata(path) };
        match named {
            Ok(named) if named.ino() == file.metadata()?.ino() => return Ok(file),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
}
