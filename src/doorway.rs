//! A place in the runtime directory, of a child or a pool: lock, socket, endpoint record. Kept while it lives, given back
//! when it goes.
//!
//! 1. The lock comes first: whoever holds it may judge what else lies there.
//! 2. A socket that nobody listens on is replaced; a live one, or anything that is no socket, never is.
//! 3. The record is written after all doors listen.
//! 4. If a cleaner removes our socket or record, they are put back (the directory is watched, not polled).
//! 5. At the end only what is still ours is removed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use interprocess::local_socket::tokio::Listener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::door::auth::Tokens;
use crate::door::socket;
use crate::folder_watch::{FolderWatch, LOOK_AGAIN};
use crate::handler::Handler;
use crate::process;
use crate::runtime::{Endpoint, Lock, LockError, Names, Role, RuntimeDir, is_socket};

/// Why a place cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum DoorwayError {
    /// The runtime directory, the lock or the socket cannot be used.
    #[error("{0}")]
    Unusable(String),
    /// Another process has it.
    #[error("{0}")]
    Taken(String),
}

/// The claimed place, before the doors are open.
pub struct Doorway {
    dir: RuntimeDir,
    names: Names,
    role: Role,
    /// Held for life: the kernel drops it with us.
    _lock: Lock,
    home: PathBuf,
    /// The inode of the socket that we bound last; 0 before.
    bound: AtomicU64,
}

/// The place of a process whose doors are open.
pub struct OpenDoorway {
    place: Arc<Doorway>,
    endpoint: Endpoint,
    keeper: JoinHandle<()>,
}

impl Doorway {
    /// Takes the lock of what `role` is to this home, and clears away what a dead predecessor left.
    ///
    /// # Errors
    /// See [`DoorwayError`].
    pub fn claim(home: &Path, role: Role) -> Result<Self, DoorwayError> {
        let unusable = |error: &dyn std::fmt::Display| DoorwayError::Unusable(error.to_string());
        let dir = RuntimeDir::create(&RuntimeDir::locate(&|name| std::env::var_os(name))).map_err(|e| unusable(&e))?;
        let names = dir.names(home, role).map_err(|error| unusable(&error))?;
        let lock = match Lock::take_soon(&names.lock) {
            Ok(lock) => lock,
            Err(LockError::Held) => return Err(taken(home, role, &names)),
            Err(LockError::Io(error)) => {
                return Err(DoorwayError::Unusable(format!(
                    "the lock {} cannot be used: {error}",
                    names.lock.display()
                )));
            }
        };
        let home = home.canonicalize().map_err(|error| unusable(&error))?;
        let doorway = Self { dir, names, role, _lock: lock, home, bound: AtomicU64::new(0) };
        doorway.clear_stale_socket()?;
        Ok(doorway)
    }

    /// Only a refused connection proves that nobody listens; only a socket is ever removed.
    fn clear_stale_socket(&self) -> Result<(), DoorwayError> {
        let path = &self.names.socket;
        let Ok(meta) = std::fs::symlink_metadata(path) else { return Ok(()) };
        if !is_socket(&meta) {
            return Err(DoorwayError::Unusable(format!(
                "{} is in the way and is no socket: it is left alone; move it or set HERMES_RUNTIME_DIR",
                path.display()
            )));
        }
        match std::os::unix::net::UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).map_err(|error| {
                    DoorwayError::Unusable(format!("cannot remove the stale {}: {error}", path.display()))
                })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Ok(_) => Err(taken(&self.home, self.role, &self.names)),
            Err(error) => Err(DoorwayError::Unusable(format!(
                "whether anybody listens at {} cannot be told: {error}; it is left alone",
                path.display()
            ))),
        }
    }

    /// Listens on the control socket. Nobody is served before [`Doorway::open`].
    ///
    /// # Errors
    /// The system refuses.
    pub fn listen(&self) -> Result<Listener, DoorwayError> {
        let path = &self.names.socket;
        let listener = socket::listen(path)
            .map_err(|error| DoorwayError::Unusable(format!("cannot listen at {}: {error}", path.display())))?;
        self.bound.store(self.socket_inode().unwrap_or(0), Ordering::Relaxed);
        Ok(listener)
    }

    /// Whether the socket that has our name is the one that we bound.
    fn is_bound(&self) -> bool {
        self.socket_inode().is_some_and(|inode| inode == self.bound.load(Ordering::Relaxed))
    }

    /// Serves the socket, writes the record, and keeps both in place.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn open<H: Handler>(
        self,
        listener: Listener,
        handler: &Arc<H>,
        tokens: Arc<Tokens>,
        port: Option<u16>,
    ) -> Result<OpenDoorway, DoorwayError> {
        let pid = std::process::id();
        let endpoint = Endpoint {
            pid,
            start_marker: process::start_marker(pid).unwrap_or_default(),
            generation: handler.identity().generation.clone(),
            profile: handler.identity().profile.clone(),
            home: self.home.to_string_lossy().into_owned(),
            socket: self.names.socket.clone(),
            port,
            token: tokens.session().clone(),
            version: crate::VERSION.to_owned(),
            kind: self.role.kind().map(str::to_owned),
        };
        let (renew, renewed) = mpsc::channel(1);
        let door = socket::Door::new(Arc::clone(handler), tokens);
        tokio::spawn(door.serve(listener, renewed));
        endpoint.write(&self.names.record).map_err(|error| {
            DoorwayError::Unusable(format!("cannot write {}: {error}", self.names.record.display()))
        })?;
        let place = Arc::new(self);
        let keeper = tokio::spawn(keep(Arc::clone(&place), endpoint.clone(), renew));
        Ok(OpenDoorway { place, endpoint, keeper })
    }

    /// Where the control socket is.
    pub fn socket(&self) -> &Path {
        &self.names.socket
    }

    fn socket_inode(&self) -> Option<u64> {
        use std::os::unix::fs::MetadataExt;
        std::fs::symlink_metadata(&self.names.socket).ok().map(|meta| meta.ino())
    }
}

impl OpenDoorway {
    /// Removes what is still ours.
    pub fn close(self) {
        self.keeper.abort();
        let names = &self.place.names;
        if Endpoint::read(&names.record).is_ok_and(|found| found.generation == self.endpoint.generation) {
            let _ = std::fs::remove_file(&names.record);
        }
        if self.place.is_bound() {
            let _ = std::fs::remove_file(&names.socket);
        }
    }
}

fn taken(home: &Path, role: Role, names: &Names) -> DoorwayError {
    let by = Endpoint::read(&names.record).map_or_else(
        |_| format!(" by whoever listens at {}", names.socket.display()),
        |found| format!(" by pid {}", found.pid),
    );
    let home = home.display();
    DoorwayError::Taken(match role {
        Role::Backend => {
            format!("{home} is already served{by}: use that backend, or stop it first (hermesctl list)")
        }
        Role::Pool => format!("{home} has a pool already{by}: use that one (hermesctl pool), or stop it first"),
    })
}

/// Puts socket and record back when somebody removes them. Sleeps until the directory changes.
async fn keep(place: Arc<Doorway>, endpoint: Endpoint, renew: mpsc::Sender<Listener>) {
    loop {
        let made = RuntimeDir::create(place.dir.path()).is_ok();
        let Ok(mut watch) = FolderWatch::new(place.dir.path(), &[&place.names.socket, &place.names.record]) else {
            sleep(LOOK_AGAIN).await;
            continue;
        };
        // Looked at after the watch began, so that nothing is missed in between.
        if made && place.socket_inode().is_none() {
            match place.listen() {
                Ok(listener) => {
                    tracing::warn!(socket = %place.names.socket.display(), "the control socket was removed: bound again");
                    let _ = renew.send(listener).await;
                }
                Err(error) => tracing::warn!(%error, "the control socket was removed and cannot be bound again"),
            }
        }
        // Beside somebody else's socket our record would mislead.
        let bare = made && place.is_bound() && !place.names.record.exists();
        if let Some(Err(error)) = bare.then(|| endpoint.write(&place.names.record)) {
            tracing::warn!(%error, "the endpoint record was removed and cannot be written again");
        }
        watch.changed().await;
    }
}
