//! Waking when certain names in some folders change, without polling.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::sleep;

/// Where the folder cannot be watched (no inotify, or none left), it is looked at this often.
pub const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// Which names in a folder matter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Names {
    /// All of them.
    All,
    /// These.
    These(Vec<OsString>),
}

impl Names {
    /// The file names of some paths.
    pub fn of(paths: &[&Path]) -> Self {
        Self::These(paths.iter().filter_map(|path| path.file_name().map(OsString::from)).collect())
    }

    #[cfg(target_os = "linux")]
    fn hold(&self, name: &OsString) -> bool {
        match self {
            Self::All => true,
            Self::These(names) => names.contains(name),
        }
    }
}

/// Watches folders for changes of some names in them.
pub struct FolderWatch {
    #[cfg(target_os = "linux")]
    inner: Option<linux::Watch>,
}

impl FolderWatch {
    /// Watches the folder for the file names of `paths`.
    ///
    /// # Errors
    /// The folder is not there.
    pub fn new(folder: &Path, paths: &[&Path]) -> io::Result<Self> {
        Self::over(&[(folder.to_owned(), Names::of(paths))])
    }

    /// Watches several folders, each for its names.
    ///
    /// # Errors
    /// One of them is not there.
    pub fn over(folders: &[(PathBuf, Names)]) -> io::Result<Self> {
        #[cfg(not(target_os = "linux"))]
        for (folder, _) in folders {
            std::fs::metadata(folder)?;
        }
        Ok(Self {
            #[cfg(target_os = "linux")]
            inner: match linux::Watch::new(folders) {
                Ok(watch) => Some(watch),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(error),
                Err(error) => {
                    tracing::warn!(?folders, %error, "cannot watch; looking now and then instead");
                    None
                }
            },
        })
    }

    /// Resolves when one of the names may have changed, or a folder has gone. Changes since [`FolderWatch::new`] count.
    pub async fn changed(&mut self) {
        #[cfg(target_os = "linux")]
        if let Some(watch) = &mut self.inner {
            return watch.changed().await;
        }
        sleep(LOOK_AGAIN).await;
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::io;
    use std::os::fd::{AsFd, OwnedFd};
    use std::path::PathBuf;

    use nix::errno::Errno;
    use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
    use tokio::io::unix::AsyncFd;

    use super::Names;

    pub(super) struct Watch {
        inotify: Inotify,
        readable: AsyncFd<OwnedFd>,
        watched: Vec<(WatchDescriptor, Names)>,
    }

    impl Watch {
        pub(super) fn new(folders: &[(PathBuf, Names)]) -> io::Result<Self> {
            let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
            let flags = AddWatchFlags::IN_CLOSE_WRITE
                | AddWatchFlags::IN_CREATE
                | AddWatchFlags::IN_MOVED_TO
                | AddWatchFlags::IN_MOVED_FROM
                | AddWatchFlags::IN_DELETE
                | AddWatchFlags::IN_DELETE_SELF
                | AddWatchFlags::IN_MOVE_SELF
                | AddWatchFlags::IN_ATTRIB;
            let watch = |(folder, names): &(PathBuf, Names)| {
                inotify.add_watch(folder, flags).map(|watched| (watched, names.clone()))
            };
            let watched = folders.iter().map(watch).collect::<Result<_, _>>()?;
            let readable = crate::readiness::watch(inotify.as_fd().try_clone_to_owned()?)?;
            Ok(Self { inotify, readable, watched })
        }

        pub(super) async fn changed(&mut self) {
            loop {
                // Events are read one buffer at a time until there are none: then the readiness is used up.
                match self.inotify.read_events() {
                    Ok(events) if events.iter().any(|event| self.concerns(event)) => return,
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

        fn concerns(&self, event: &InotifyEvent) -> bool {
            let gone = AddWatchFlags::IN_DELETE_SELF | AddWatchFlags::IN_MOVE_SELF | AddWatchFlags::IN_IGNORED;
            // After an overflow nobody knows what was missed.
            let lost = event.mask.intersects(gone | AddWatchFlags::IN_Q_OVERFLOW);
            // A folder that was named twice is one watch, and each of its names counts.
            let names = || self.watched.iter().filter(|(watched, _)| *watched == event.wd).map(|(_, names)| names);
            let matters = |name| names().any(|names| names.hold(name));
            lost || event.name.as_ref().is_some_and(matters)
        }
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
    async fn several_folders_are_watched_each_for_its_names() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folders = [(one.path().to_owned(), Names::All), (other.path().to_owned(), Names::of(&[Path::new("b")]))];
        let mut watch = FolderWatch::over(&folders).unwrap();
        std::fs::write(other.path().join("a"), "x").unwrap();
        assert!(timeout(Duration::from_millis(50), watch.changed()).await.is_err());
        std::fs::write(one.path().join("a"), "x").unwrap();
        timeout(Duration::from_secs(5), watch.changed()).await.unwrap();
        assert!(FolderWatch::over(&[(one.path().join("none"), Names::All)]).is_err());

        let twice = ["c", "d"].map(|name| (one.path().to_owned(), Names::of(&[Path::new(name)])));
        let mut watch = FolderWatch::over(&twice).unwrap();
        std::fs::write(one.path().join("d"), "x").unwrap();
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
