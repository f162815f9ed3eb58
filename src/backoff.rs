//! How long to wait before something that failed is tried again.

use std::time::Duration;

/// `first`, doubled for every failure after the first, at most `longest`.
pub(crate) fn doubled(first: Duration, failures: u32, longest: Duration) -> Duration {
    let factor = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
    first.saturating_mul(factor).min(longest)
}
