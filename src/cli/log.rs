//! Logs on stderr. Whoever reads them may go away before us: that is no reason to stop, nor to say anything about it.

use std::io::{self, Write};

use tracing::level_filters::LevelFilter;

/// Everything but READY goes to stderr. `HERMES_LOG` is off, error, warn, info, debug or trace.
pub fn to_stderr() {
    let level = std::env::var("HERMES_LOG").ok().and_then(|level| level.parse().ok());
    tracing_subscriber::fmt()
        .with_writer(|| Undaunted)
        .with_ansi(false)
        .with_target(false)
        .with_max_level(level.unwrap_or(LevelFilter::INFO))
        .init();
}

/// Stderr that takes everything: an error would be reported on stderr itself, which panics.
struct Undaunted;

impl Write for Undaunted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = io::stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
