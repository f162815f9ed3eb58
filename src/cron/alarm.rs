//! An alarm on the wall clock: rings when an instant has come, and when somebody sets the clock.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::sleep;

use crate::clock::Clock;

/// Where the kernel does not tell that the clock was set, it is looked at this often while an alarm is set.
const LOOK_AGAIN: Duration = Duration::from_secs(600);

/// Resolves at `instant` or soon after, also if the machine slept or the clock was set meanwhile. Early rings happen: the
/// caller looks at the clock. `None` never rings.
pub async fn ring(clock: &Clock, instant: Option<Timestamp>) {
    let Some(instant) = instant else { return std::future::pending().await };
    if instant <= clock.wall() {
        return;
    }
    #[cfg(target_os = "linux")]
    if linux::ring(instant).await.is_ok() {
        return;
    }
    let span = instant.duration_since(clock.wall());
    sleep(Duration::try_from(span).unwrap_or_default().min(LOOK_AGAIN)).await;
}

#[cfg(target_os = "linux")]
mod linux {
    use std::io;
    use std::os::fd::OwnedFd;

    use jiff::Timestamp;
    use nix::sys::time::TimeSpec;
    use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

    pub(super) async fn ring(instant: Timestamp) -> io::Result<()> {
        let timer = TimerFd::new(ClockId::CLOCK_REALTIME, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?;
        // CANCEL_ON_SET: a clock that is set makes the timer readable at once.
        let flags = TimerSetTimeFlags::TFD_TIMER_ABSTIME | TimerSetTimeFlags::TFD_TIMER_CANCEL_ON_SET;
        let at = TimeSpec::new(instant.as_second(), i64::from(instant.subsec_nanosecond()));
        timer.set(Expiration::OneShot(at), flags)?;
        let readable = crate::readiness::watch(OwnedFd::from(timer))?;
        let _ = readable.readable().await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::timeout;

    #[tokio::test(flavor = "current_thread")]
    async fn it_rings_in_time_and_not_before() {
        let clock = Clock::system();
        let instant = clock.wall() + Duration::from_millis(60);
        ring(&clock, Some(instant)).await;
        assert!(clock.wall() >= instant);
        assert!(timeout(Duration::from_millis(30), ring(&clock, None)).await.is_err());
    }
}
