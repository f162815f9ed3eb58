//! The endpoint record: how a client finds a child, and knows that it is still the same one.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};

use super::{Lock, Names};
use crate::process;
use crate::secret::Token;

/// A record is a few hundred bytes; a longer file is none of ours.
const MAX_RECORD: u64 = 64 * 1024;

/// What `<name>.json` holds. Unknown keys are passed over.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// The process.
    pub pid: u32,
    /// Its start marker, against a recycled pid.
    pub start_marker: String,
    /// Its generation, as in every reply.
    pub generation: String,
    /// The profile it serves.
    pub profile: Option<String>,
    /// Its home.
    pub home: String,
    /// The control socket.
    pub socket: PathBuf,
    /// The loopback port; a pool has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The session token.
    pub token: Token,
    /// The crate's version.
    pub version: String,
    /// `pool` for a pool; a child has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("pid", &self.pid)
            .field("generation", &self.generation)
            .field("profile", &self.profile)
            .field("socket", &self.socket)
            .finish_non_exhaustive()
    }
}

/// Why a record is not believed.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// It is not there.
    #[error("there is no endpoint record {0}")]
    Missing(PathBuf),
    /// It is not ours alone.
    #[error("the endpoint record {0} is not ours alone: it is ignored")]
    Unsafe(PathBuf),
    /// It cannot be read.
    #[error("the endpoint record {0} cannot be read: {1}")]
    Unreadable(PathBuf, String),
}

/// A record in the runtime directory.
#[derive(Debug)]
pub enum Found {
    /// Of a living process.
    Live(Box<Endpoint>),
    /// That cannot be believed; it is left where it is.
    Bad(RecordError),
}

impl Endpoint {
    /// Writes the record (0600): a reader sees the old one, the new one, or none.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        // Written under the lock of this name, so that nobody else writes here.
        let temporary = path.with_extension("json.tmp");
        let _ = fs::remove_file(&temporary);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        fs::rename(&temporary, path)
    }

    /// Reads a record that is ours alone.
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn read(path: &Path) -> Result<Self, RecordError> {
        let unreadable = |error: String| RecordError::Unreadable(path.to_owned(), error);
        let file =
            OpenOptions::new().read(true).custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits()).open(path);
        let file = file.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => RecordError::Missing(path.to_owned()),
            _ if error.raw_os_error() == Some(Errno::ELOOP as i32) => RecordError::Unsafe(path.to_owned()),
            _ => unreadable(error.to_string()),
        })?;
        let meta = file.metadata().map_err(|error| unreadable(error.to_string()))?;
        if meta.uid() != nix::unistd::geteuid().as_raw() || meta.mode() & 0o077 != 0 || !meta.is_file() {
            return Err(RecordError::Unsafe(path.to_owned()));
        }
        let text = read_limited(file).map_err(|error| unreadable(error.to_string()))?;
        serde_json::from_slice(&text).map_err(|error| unreadable(error.to_string()))
    }

    /// Whether the process that wrote it still lives.
    pub fn is_live(&self) -> bool {
        process::alive(self.pid, &self.start_marker)
    }
}

fn read_limited(file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(MAX_RECORD).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// One record, if its process lives. Of a dead one, record and socket are swept, unless somebody is about to take over.
pub(super) fn look(names: &Names) -> Option<Found> {
    let endpoint = match Endpoint::read(&names.record) {
        Ok(endpoint) => endpoint,
        Err(RecordError::Missing(_)) => return None,
        Err(error) => return Some(Found::Bad(error)),
    };
    if endpoint.is_live() {
        return Some(Found::Live(Box::new(endpoint)));
    }
    sweep(names, &endpoint);
    None
}

fn sweep(names: &Names, dead: &Endpoint) {
    let Ok(_lock) = Lock::take(&names.lock) else { return };
    // Read again under the lock: a new child may have come and gone meanwhile.
    if Endpoint::read(&names.record).is_ok_and(|now| now == *dead) {
        let _ = fs::remove_file(&names.record);
        if fs::symlink_metadata(&names.socket).is_ok_and(|meta| is_socket(&meta)) {
            let _ = fs::remove_file(&names.socket);
        }
    }
}

/// Whether what lies there is a socket; nothing else is ever removed.
pub fn is_socket(meta: &fs::Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt;
    meta.file_type().is_socket()
}
