//! What a child writes to stderr, kept in a file of bounded size: `$HERMES_HOME/logs/<profile>.log`, with one older one
//! beside it. A pool that dies takes nothing with it: its children go on, and are not heard until they are adopted.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::fcntl::OFlag;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::watch;
use tokio::time::timeout;

/// A file grows so far, then it becomes the older one.
const MAX_FILE: u64 = 1024 * 1024;

/// So much is kept in memory, for the message of a child that died.
const TAIL: usize = 8 * 1024;

/// A child that is gone may have left its stderr to others.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// The log of one child. Clones are handles to the same one.
#[derive(Clone)]
pub struct Log {
    path: PathBuf,
    tail: Arc<Mutex<VecDeque<u8>>>,
    over: watch::Sender<bool>,
}

impl Log {
    /// The log of a profile; nothing is opened yet.
    pub fn of(root: &Path, profile: &str) -> Self {
        let path = root.join("logs").join(format!("{profile}.log"));
        Self { path, tail: Arc::default(), over: watch::Sender::new(false) }
    }

    /// Writes down all that comes.
    pub fn follow(&self, mut stream: impl AsyncRead + Unpin + Send + 'static) {
        let log = self.clone();
        tokio::spawn(async move {
            let (mut chunk, mut file, mut failed) = (vec![0; 8 * 1024], None, false);
            while let Ok(count @ 1..) = stream.read(&mut chunk).await {
                let bytes = chunk.get(..count).unwrap_or_default();
                log.remember(bytes);
                // Small and rare: a backend that is well says a few lines in its life.
                if let Err(error) = log.write(&mut file, bytes)
                    && !std::mem::replace(&mut failed, true)
                {
                    tracing::warn!(path = %log.path.display(), %error, "a backend's log cannot be written");
                }
            }
            log.over.send_replace(true);
        });
    }

    fn remember(&self, bytes: &[u8]) {
        let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.extend(bytes);
        let surplus = tail.len().saturating_sub(TAIL);
        tail.drain(..surplus);
    }

    fn write(&self, slot: &mut Option<File>, bytes: &[u8]) -> io::Result<()> {
        let mut file = match slot.take() {
            Some(file) => file,
            None => self.open()?,
        };
        if file.metadata()?.len() >= MAX_FILE {
            fs::rename(&self.path, self.path.with_extension("log.1"))?;
            file = self.open()?;
        }
        file.write_all(bytes)?;
        *slot = Some(file);
        Ok(())
    }

    fn open(&self) -> io::Result<File> {
        if let Some(folder) = self.path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        // What is no plain file may never take anything: it must not hold up whoever writes.
        let flags = OFlag::O_NONBLOCK.bits();
        let file = OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(&self.path)?;
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::Error::other("it is no plain file")),
        }
    }

    /// The last line that a child wrote before it died.
    pub async fn last_words(&self) -> String {
        let mut over = self.over.subscribe();
        let _ = timeout(LAST_WORDS, over.wait_for(|over| *over)).await;
        let tail: Vec<u8> = self.tail.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect();
        let text = String::from_utf8_lossy(&tail);
        text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn a_log_is_bounded_and_its_last_line_is_known() {
        let root = tempfile::tempdir().unwrap();
        let log = Log::of(root.path(), "p");
        let mut text = vec![b'x'; 3 * 1024 * 1024];
        text.extend_from_slice(b"\nhermes: the end\n");
        log.follow(io::Cursor::new(text));
        while !*log.over.borrow() {
            tokio::task::yield_now().await;
        }
        assert_eq!(log.last_words().await, "hermes: the end");
        let size = |name: &str| fs::metadata(root.path().join("logs").join(name)).unwrap().len();
        assert!(size("p.log") <= MAX_FILE + 8192 && size("p.log.1") <= MAX_FILE + 8192);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_pipe_in_the_place_of_a_log_holds_up_nobody() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("logs")).unwrap();
        nix::unistd::mkfifo(&root.path().join("logs/p.log"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let log = Log::of(root.path(), "p");
        log.follow(io::Cursor::new(b"hermes: the end\n"));
        assert_eq!(log.last_words().await, "hermes: the end");
    }
}
