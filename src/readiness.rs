//! Waiting until a descriptor can be read: pidfd, inotify, timerfd.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::unix::AsyncFd;

/// Registers an owned descriptor with the runtime. Readiness stays until a read would block, as with any edge trigger.
///
/// # Errors
/// The runtime takes no more.
pub fn watch(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // tokio's objection is to types whose descriptor may change or close under it; an OwnedFd does neither, and its own
    // replacement can only be called from unsafe code, which this crate has none of.
    #[expect(deprecated)]
    AsyncFd::new(descriptor)
}
