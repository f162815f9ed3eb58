//! The runtime directory: where sockets, endpoint records and locks are, and who may be trusted to have put them there.
//!
//! `$HERMES_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/hermes`, else `/tmp/hermes-<uid>`: one rule for every program, and no
//! silent fallback from one to the next. The directory is ours and 0700, judged by descriptor and not by path.

mod lock;
mod record;

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use sha2::{Digest, Sha256};

pub use lock::{Lock, LockError, lock_file, lock_soon};
pub use record::{Endpoint, Found, RecordError, is_socket};

use crate::secret::hex;

/// The longest path that `sun_path` takes on Linux, less its closing NUL.
pub const MAX_SOCKET_PATH: usize = 107;

/// Why the runtime directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirError {
    /// It is not there: no child was ever started.
    #[error("the runtime directory {0} does not exist: no backend runs")]
    Missing(PathBuf),
    /// It is there and we may not look.
    #[error("the runtime directory {0} cannot be opened: permission denied")]
    Denied(PathBuf),
    /// It is not safe.
    #[error("the runtime directory {path} is refused: {why}. Set that right, or name another in HERMES_RUNTIME_DIR")]
    Unsafe {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Anything else the system says.
    #[error("the runtime directory {path} cannot be used: {error}")]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// A socket in it would have too long a path.
    #[error(
        "the socket path {path} has {length} bytes and the limit is {limit}: set HERMES_RUNTIME_DIR to a shorter one"
    )]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
        /// [`MAX_SOCKET_PATH`].
        limit: usize,
    },
}

/// A runtime directory that was found safe.
#[derive(Debug, Clone)]
pub struct RuntimeDir {
    path: PathBuf,
}

/// The names of one home's files in it.
#[derive(Debug, Clone)]
pub struct Names {
    /// The control socket.
    pub socket: PathBuf,
    /// The endpoint record.
    pub record: PathBuf,
    /// The lock of whoever serves this home.
    pub lock: PathBuf,
}

/// What a process is to a home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It serves it.
    Backend,
    /// It keeps the backends of its profiles.
    Pool,
}

impl Role {
    /// How the endpoint record says it; a backend's says nothing.
    pub const fn kind(self) -> Option<&'static str> {
        match self {
            Self::Backend => None,
            Self::Pool => Some("pool"),
        }
    }
}

impl RuntimeDir {
    /// Where it is, by the environment; nothing is looked at.
    pub fn locate(env: &dyn Fn(&str) -> Option<OsString>) -> PathBuf {
        let set = |name: &str| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        set("HERMES_RUNTIME_DIR")
            .or_else(|| set("XDG_RUNTIME_DIR").map(|dir| dir.join("hermes")))
            .unwrap_or_else(|| PathBuf::from(format!("/tmp/hermes-{}", nix::unistd::geteuid())))
    }

    /// Opens it for a child, making it if it is not there.
    ///
    /// # Errors
    /// See [`DirError`].
    pub fn create(path: &Path) -> Result<Self, DirError> {
        let io = |error| DirError::Io { path: path.to_owned(), error };
        let path = itself(path).map_err(io)?;
        if fs::symlink_metadata(&path).is_err() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(io)?;
        }
        Self::open(&path)
    }

    /// Opens it for a client.
    ///
    /// # Errors
    /// See [`DirError`].
    pub fn open(path: &Path) -> Result<Self, DirError> {
        let path = itself(path).map_err(|error| DirError::Io { path: path.to_owned(), error })?;
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
        let dir = OpenOptions::new().read(true).custom_flags(flags.bits()).open(&path);
        let dir = dir.map_err(|error| Self::cannot_open(&path, error))?;
        Self::check(&path, &dir)?;
        Ok(Self { path })
    }

    fn cannot_open(path: &Path, error: io::Error) -> DirError {
        let path = path.to_owned();
        let link = || fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_symlink());
        match error.kind() {
            io::ErrorKind::NotFound => DirError::Missing(path),
            io::ErrorKind::PermissionDenied => DirError::Denied(path),
            _ if link() => DirError::Unsafe { path, why: "it is a symbolic link".to_owned() },
            io::ErrorKind::NotADirectory => DirError::Unsafe { path, why: "it is no directory".to_owned() },
            _ => DirError::Io { path, error },
        }
    }

    /// Ours alone, or refused: what others could write to may hold anything, and what they can read tells them where.
    fn check(path: &Path, dir: &File) -> Result<(), DirError> {
        let refuse = |why: String| Err(DirError::Unsafe { path: path.to_owned(), why });
        let meta = dir.metadata().map_err(|error| DirError::Io { path: path.to_owned(), error })?;
        let mode = meta.mode() & 0o7777;
        if meta.uid() != nix::unistd::geteuid().as_raw() {
            return refuse(format!("it belongs to user {}", meta.uid()));
        }
        if mode != 0o700 {
            return refuse(format!("its mode is {mode:04o} and must be 0700"));
        }
        Ok(())
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names for a home, by a hash of its canonical path: short whatever the home is called. A pool's are others than
    /// those of the backend that serves the same home.
    ///
    /// # Errors
    /// The socket's path would be too long, or the home cannot be resolved.
    pub fn names(&self, home: &Path, role: Role) -> Result<Names, DirError> {
        let home = home.canonicalize().map_err(|error| DirError::Io { path: home.to_owned(), error })?;
        let mut hash = Sha256::new_with_prefix(home.as_os_str().as_bytes());
        if let Some(kind) = role.kind() {
            // No path holds a zero byte.
            hash.update([0]);
            hash.update(kind);
        }
        let digest = hash.finalize();
        self.named(&hex(digest.get(..6).unwrap_or_default()))
    }

    fn named(&self, stem: &str) -> Result<Names, DirError> {
        let name = |extension: &str| self.path.join(format!("{stem}.{extension}"));
        let names = Names { socket: name("sock"), record: name("json"), lock: name("lock") };
        let length = names.socket.as_os_str().len();
        match length > MAX_SOCKET_PATH {
            true => Err(DirError::TooLong { path: names.socket, length, limit: MAX_SOCKET_PATH }),
            false => Ok(names),
        }
    }

    /// Every endpoint record of a living process, oldest name first. Those of the dead are swept.
    pub fn endpoints(&self) -> Vec<Found> {
        let mut stems: Vec<String> = fs::read_dir(&self.path)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".json").map(str::to_owned))
            .collect();
        stems.sort();
        stems.iter().filter_map(|stem| record::look(&self.named(stem).ok()?)).collect()
    }
}

/// An absolute path of the directory itself: a slash or a dot behind the name of a symbolic link would mean what it leads to.
fn itself(path: &Path) -> io::Result<PathBuf> {
    Ok(std::path::absolute(path)?.components().collect())
}

#[cfg(test)]
mod tests;
