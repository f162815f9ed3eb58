//! The one clock. Durations are measured on a clock that goes on while the machine sleeps; the wall clock is only for
//! what people and cron files write down.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;

/// An instant on the monotonic clock that counts suspend time (`CLOCK_BOOTTIME` on Linux), in nanoseconds since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

impl Moment {
    /// The instant `nanos` nanoseconds after boot.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The time from `earlier` to `self`; zero if `earlier` is later.
    pub const fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The instant `span` later, at most the end of the clock.
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Where every other module gets its time from.
#[derive(Debug, Clone, Default)]
pub struct Clock(Source);

#[derive(Debug, Clone, Default)]
enum Source {
    #[default]
    System,
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The machine's clock.
    pub fn system() -> Self {
        Self(Source::System)
    }

    /// A clock that stands still until [`Clock::advance`] moves it, for tests.
    pub fn manual() -> Self {
        Self(Source::Manual(Arc::new(AtomicU64::new(1_000_000_000))))
    }

    /// Moves a manual clock on; the system's clock does not listen.
    pub fn advance(&self, span: Duration) {
        if let Source::Manual(nanos) = &self.0 {
            nanos.fetch_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX), Ordering::SeqCst);
        }
    }

    /// Now, for durations.
    pub fn now(&self) -> Moment {
        match &self.0 {
            Source::System => boot_time(),
            Source::Manual(nanos) => Moment(nanos.load(Ordering::SeqCst)),
        }
    }

    /// Now, as people write it down.
    pub fn wall(&self) -> Timestamp {
        match &self.0 {
            Source::System => Timestamp::now(),
            Source::Manual(nanos) => {
                let nanos = i128::from(nanos.load(Ordering::SeqCst));
                Timestamp::from_nanosecond(nanos).unwrap_or(Timestamp::UNIX_EPOCH)
            }
        }
    }
}

fn boot_time() -> Moment {
    use nix::time::{ClockId, clock_gettime};
    // A kernel without CLOCK_BOOTTIME still has the monotonic clock; that one merely stops in suspend.
    #[cfg(target_os = "linux")]
    const BOOT: ClockId = ClockId::CLOCK_BOOTTIME;
    #[cfg(not(target_os = "linux"))]
    const BOOT: ClockId = ClockId::CLOCK_MONOTONIC;
    let spec = clock_gettime(BOOT).or_else(|_| clock_gettime(ClockId::CLOCK_MONOTONIC));
    spec.map_or(Moment(0), |spec| {
        let seconds = u64::try_from(spec.tv_sec()).unwrap_or(0);
        let nanos = u64::try_from(spec.tv_nsec()).unwrap_or(0);
        Moment(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_when_told() {
        let clock = Clock::manual();
        let before = clock.now();
        assert_eq!(clock.now(), before);
        clock.advance(Duration::from_millis(5));
        assert_eq!(clock.now().since(before), Duration::from_millis(5));
        assert_eq!(before.since(clock.now()), Duration::ZERO);
    }

    #[test]
    fn the_system_clock_does_not_go_back() {
        let clock = Clock::system();
        let first = clock.now();
        assert!(clock.now() >= first);
    }
}
