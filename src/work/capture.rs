//! What a program writes, kept up to a limit.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// So much of each stream is kept; the rest is read and dropped, so that the program never blocks on us.
pub const KEPT: usize = 1024 * 1024;

/// A program that has ended may have left the pipe to others; what is in it by then is taken, and no more.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Reads a stream in the background.
pub struct Capture {
    kept: Arc<Mutex<Kept>>,
    reader: JoinHandle<()>,
}

#[derive(Default)]
struct Kept {
    bytes: Vec<u8>,
    dropped: u64,
}

impl Capture {
    /// Starts to read.
    pub fn new(stream: impl AsyncRead + Unpin + Send + 'static) -> Self {
        let kept = Arc::new(Mutex::new(Kept::default()));
        let reader = tokio::spawn(read(stream, Arc::clone(&kept)));
        Self { kept, reader }
    }

    /// What was written, with a mark where it was cut; bytes that are no UTF-8 are replaced.
    pub async fn finish(mut self) -> String {
        self.settled().await
    }

    /// What was written by now, once the writer has ended; whoever shares the pipe may still write, and is not heard.
    pub async fn settled(&mut self) -> String {
        if !self.reader.is_finished() && timeout(LAST_WORDS, &mut self.reader).await.is_err() {
            self.reader.abort();
        }
        let kept = std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner));
        let mut text = String::from_utf8_lossy(&kept.bytes).into_owned();
        if kept.dropped > 0 {
            text.push_str(&format!("\n[… {} bytes cut …]", kept.dropped));
        }
        text
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

async fn read(mut stream: impl AsyncRead + Unpin, kept: Arc<Mutex<Kept>>) {
    let mut chunk = vec![0; 8 * 1024];
    while let Ok(count @ 1..) = stream.read(&mut chunk).await {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        let room = KEPT.saturating_sub(kept.bytes.len()).min(count);
        kept.bytes.extend_from_slice(chunk.get(..room).unwrap_or_default());
        kept.dropped += (count - room) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn a_long_stream_is_cut_with_a_mark() {
        let text = vec![b'x'; KEPT + 7];
        let capture = Capture::new(std::io::Cursor::new(text));
        let kept = capture.finish().await;
        assert!(kept.ends_with("\n[… 7 bytes cut …]"));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_pipe_that_somebody_else_holds_open_does_not_hold_us() {
        let (mut ours, theirs) = tokio::io::duplex(64);
        tokio::io::AsyncWriteExt::write_all(&mut ours, b"said\xff").await.unwrap();
        assert_eq!(Capture::new(theirs).finish().await, "said\u{fffd}");
    }
}
