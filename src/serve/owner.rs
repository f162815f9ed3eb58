//! The owner's death, seen from the child's side.

use std::time::Duration;

use tokio::time::sleep;

use crate::lifecycle::Owner;
use crate::process;
use crate::work::group;

/// Without a pidfd the owner is looked at this often.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Resolves when the owner is gone; never, if there is none.
pub(super) async fn gone(owner: &Owner) {
    let Owner::Process { pid, marker } = owner else { return std::future::pending().await };
    while lives(*pid, marker.as_deref()) {
        // Held by descriptor and only then compared once more, so that a recycled pid cannot pass for the owner.
        tokio::select! {
            () = group::exited(*pid) => {}
            () = recheck(*pid, marker.as_deref()) => {}
        }
    }
}

/// Whether there was one and it is gone.
pub(super) fn is_gone(owner: &Owner) -> bool {
    matches!(owner, Owner::Process { pid, marker } if !lives(*pid, marker.as_deref()))
}

fn lives(pid: u32, marker: Option<&str>) -> bool {
    match marker {
        // A marker of another kind than we can read proves nothing either way.
        Some(marker) if marker.starts_with("linux:") == cfg!(target_os = "linux") => process::alive(pid, marker),
        _ => process::start_marker(pid).is_some_and(|marker| process::alive(pid, &marker)),
    }
}

/// Between the comparison and the hold the owner may have been replaced: one more look settles it.
async fn recheck(pid: u32, marker: Option<&str>) {
    tokio::task::yield_now().await;
    if cfg!(target_os = "linux") && lives(pid, marker) {
        return std::future::pending().await;
    }
    sleep(LOOK_AGAIN).await;
}
