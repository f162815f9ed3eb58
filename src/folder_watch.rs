//! Waking when certain names in a folder change, without polling.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::time::sleep;

/// Where the folder cannot be watched (no inotify, or none left), it is looked at this often.
pub const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// Watches a folder for changes of some names in it.
pub struct FolderWatch {
    names: Vec<OsString>,
    #[cfg(target_os = "linux")]
    inner: Option<linux::Watch>,
}

impl FolderWatch {
    /// Watches the folder for the file names of `paths`.
    ///
    /// # Errors
    /// The folder is not there.
    pub fn new(folder: &Path, paths: &[&Path]) -> io::Result<Self> {
        let names = paths.iter().filter_map(|path| path.file_name().map(OsString::from)).collect();
        Ok(Self {
            names,
            #[cfg(target_os = "linux")]
            inner: match linux::Watch::new(folder) {
                Ok(watch) => Some(watch),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(error),
                Err(error) => {
                    tracing::warn!(folder = %folder.display(), %error, "cannot watch; looking now and then instead");
                    None
                }
            },
        })
    }

    /// Resolves when one of the names may have changed, or the folder has gone. Changes since [`FolderWatch::new`] count.
    pub async fn changed(&mut self) {
        #[cfg(target_os = "linux")]
        if let Some(watch) = &mut self.inner {
            return watch.changed(&self.names).await;
        }
        let _ = &self.names;
        sleep(LOOK_AGAIN).await;
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::ffi::OsString;
    use std::io;
    use std::os::fd::{AsFd, OwnedFd};
    use std::path::Path;

    use nix::errno::Errno;
    use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
    use tokio::io::unix::AsyncFd;

    pub(super) struct Watch {
        inotify: Inotify,
        readable: AsyncFd<OwnedFd>,
    }

    impl Watch {
        pub(super) fn new(folder: &Path) -> io::Result<Self> {
            let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
            let flags = AddWatchFlags::IN_CLOSE_WRITE
                | AddWatchFlags::IN_CREATE
                | AddWatchFlags::IN_MOVED_TO
                | AddWatchFlags::IN_MOVED_FROM
                | AddWatchFlags::IN_DELETE
                | AddWatchFlags::IN_DELETE_SELF
                | AddWatchFlags::IN_MOVE_SELF
                | AddWatchFlags::IN_ATTRIB;
            inotify.add_watch(folder, flags)?;
            let readable = crate::readiness::watch(inotify.as_fd().try_clone_to_owned()?)?;
            Ok(Self { inotify, readable })
        }

        pub(super) async fn changed(&mut self, names: &[OsString]) {
            loop {
                // Events are read one buffer at a time until there are none: then the readiness is used up.
                match self.inotify.read_events() {
                    Ok(events) if events.iter().any(|event| concerns(event.mask, event.name.as_ref(), names)) => return,
                    Ok(_) => {}
                    Err(Errno::EAGAIN) => match self.readable.readable().await {
                        Ok(mut ready) => ready.clear_ready(),
                        Err(_) => return,
                    },
                    Err(Errno::EINTR) => {}
                    Err(_) => return,
                }
            }
        }
    }

    fn concerns(mask: AddWatchFlags, name: Option<&OsString>, names: &[OsString]) -> bool {
        let gone = AddWatchFlags::IN_DELETE_SELF | AddWatchFlags::IN_MOVE_SELF | AddWatchFlags::IN_IGNORED;
        // After an overflow nobody knows what was missed.
        mask.intersects(gone | AddWatchFlags::IN_Q_OVERFLOW) || name.is_some_and(|name| names.contains(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::timeout;

    #[tokio::test(flavor = "current_thread")]
    async fn only_the_named_files_wake() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jobs.json");
        let mut watch = FolderWatch::new(folder.path(), &[&path]).unwrap();
        std::fs::write(folder.path().join("other"), "x").unwrap();
        assert!(timeout(Duration::from_millis(50), watch.changed()).await.is_err());
        std::fs::write(&path, "x").unwrap();
        timeout(Duration::from_secs(5), watch.changed()).await.unwrap();
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_folder_that_goes_wakes() {
        let folder = tempfile::tempdir().unwrap();
        let mut watch = FolderWatch::new(folder.path(), &[]).unwrap();
        drop(folder);
        timeout(Duration::from_secs(5), watch.changed()).await.unwrap();
    }
}
