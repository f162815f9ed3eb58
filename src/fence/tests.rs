use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::clock::Moment;
use crate::fence::{Denied, Fence, Granted, Retiring, Wake, admission_verdict};
use crate::secret::Permit;
use crate::verdict::Verdict;

const NOW: Moment = Moment::from_nanos(1_000);

fn at(seconds: u64) -> Moment {
    NOW.plus(Duration::from_secs(seconds))
}

fn fence() -> Fence {
    Fence::default()
}

fn prepare(fence: &Fence, now: Moment, id: Option<&str>) -> Result<Granted, Denied> {
    fence.prepare(|| now, id, Permit::random().unwrap(), || Verdict::Idle)
}

#[test]
fn a_permit_closes_admission_and_a_cancel_reopens_it() {
    let fence = fence();
    let granted = prepare(&fence, NOW, None).unwrap();
    assert_eq!(fence.admit(NOW).err(), Some(Retiring));
    assert_eq!(prepare(&fence, NOW, None), Err(Denied::Retiring));
    assert!(!fence.cancel(NOW, &Permit::new("x")));
    assert!(fence.cancel(NOW, &granted.permit));
    assert!(fence.admit(NOW).is_ok());
    let other = prepare(&fence, NOW, None).unwrap();
    assert_ne!(other.permit, granted.permit);
    assert_eq!(fence.commit(NOW, &granted.permit), None);
}

#[test]
fn a_permit_lives_thirty_seconds_and_not_one_more() {
    let fence = fence();
    let first = prepare(&fence, NOW, None).unwrap();
    assert_eq!(fence.commit(at(30), &first.permit), None);
    let second = prepare(&fence, at(30), None).unwrap();
    assert!(!fence.cancel(at(60), &second.permit));
    let third = prepare(&fence, at(60), None).unwrap();
    assert_eq!(fence.commit(at(89), &third.permit), Some(None));
}

#[test]
fn a_commit_is_for_ever_and_idempotent() {
    let fence = fence();
    let granted = prepare(&fence, NOW, Some("r1")).unwrap();
    assert_eq!(fence.commit(NOW, &granted.permit), Some(Some("r1".to_owned())));
    assert_eq!(fence.commit(at(3600), &granted.permit), Some(Some("r1".to_owned())));
    assert!(!fence.cancel(NOW, &granted.permit));
    assert_eq!(prepare(&fence, at(3600), None).unwrap().permit, granted.permit);
    assert!(fence.admit(at(3600)).is_err());
}

#[test]
fn the_same_request_id_gets_the_same_live_permit() {
    let fence = fence();
    let first = prepare(&fence, NOW, Some("a")).unwrap();
    let again = prepare(&fence, at(10), Some("a")).unwrap();
    assert_eq!(first.permit, again.permit);
    assert_eq!(again.expires_in, Some(Duration::from_secs(20)));
    assert_eq!(prepare(&fence, at(10), Some("b")), Err(Denied::Retiring));
    assert_eq!(prepare(&fence, at(10), None), Err(Denied::Retiring));
}

#[test]
fn work_in_flight_refuses_and_anything_but_idle_reopens() {
    let fence = fence();
    let admission = fence.admit(NOW).unwrap();
    let denied = fence.prepare(|| NOW, None, Permit::new("p"), || panic!("the ledgers must not be asked"));
    assert_eq!(denied, Err(Denied::Busy(admission_verdict())));
    let presence = admission.enter();
    drop(admission);
    // A ledger that lies cannot get a permit past the count.
    assert!(matches!(prepare(&fence, NOW, None), Err(Denied::Busy(_))));
    drop(presence);
    let unknown = fence.prepare(|| NOW, None, Permit::new("p"), || Verdict::TurnProbeUnavailable);
    assert_eq!(unknown, Err(Denied::Busy(Verdict::TurnProbeUnavailable)));
    assert!(fence.admit(NOW).is_ok());
}

#[test]
fn a_panic_while_reading_reopens() {
    let fence = fence();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = fence.prepare(|| NOW, None, Permit::new("p"), || panic!("ledger"));
    }));
    assert!(panicked.is_err());
    assert!(fence.admit(NOW).is_ok());
}

#[test]
fn an_admission_waits_while_a_prepare_that_will_fail_is_under_way() {
    let fence = fence();
    let admitted = std::thread::scope(|scope| {
        let mut handle = None;
        let denied = fence.prepare(
            || NOW,
            None,
            Permit::new("p"),
            || {
                let fence = fence.clone();
                handle = Some(scope.spawn(move || fence.admit(NOW).is_ok()));
                Verdict::AwaitingHumanInput
            },
        );
        assert!(denied.is_err());
        handle.unwrap().join().unwrap()
    });
    assert!(admitted, "a prepare that fails must not cost a start");
}

#[test]
fn a_draining_process_admits_only_under_what_lives() {
    let fence = fence();
    let presence = fence.admit(NOW).unwrap().enter();
    fence.close();
    assert!(fence.admit(NOW).is_err());
    drop(presence.admit());
    fence.reopen();
    assert!(fence.admit(NOW).is_ok());
}

#[test]
fn a_claim_gets_the_permit_in_the_step_in_which_the_last_holder_goes() {
    let fence = fence();
    let presence = fence.admit(NOW).unwrap().enter();
    let woken = std::sync::Arc::new(AtomicBool::new(false));
    let flag = std::sync::Arc::clone(&woken);
    let wake: Wake = Box::new(move || flag.store(true, Ordering::SeqCst));
    let claim = fence.claim(NOW, Permit::new("p"), Some("r".into()), wake).unwrap();
    assert!(!claim.granted());
    drop(presence);
    assert!(woken.load(Ordering::SeqCst) && claim.granted());
    assert!(fence.admit(NOW).is_err(), "nothing slips in between");
    assert_eq!(fence.commit(NOW, &Permit::new("p")), None, "not before it was confirmed");
    let granted = claim.confirm(NOW, || Verdict::Idle).unwrap();
    assert_eq!(fence.commit(NOW, &granted.permit), Some(Some("r".to_owned())));
}

#[test]
fn a_claim_that_is_dropped_or_denied_reopens() {
    let fence = fence();
    let claim = fence.claim(NOW, Permit::new("p"), None, Box::new(|| ())).unwrap();
    assert!(claim.granted(), "an idle process serves it at once");
    drop(claim);
    assert!(fence.admit(NOW).is_ok());
    let claim = fence.claim(NOW, Permit::new("p"), None, Box::new(|| ())).unwrap();
    let denied = claim.confirm(NOW, || Verdict::TurnProbeUnavailable);
    assert_eq!(denied, Err(Denied::Busy(Verdict::TurnProbeUnavailable)));
    assert!(fence.admit(NOW).is_ok());
}

#[test]
fn claims_are_served_in_order_and_behind_a_foreign_permit() {
    let fence = fence();
    let foreign = prepare(&fence, NOW, None).unwrap();
    let first = fence.claim(NOW, Permit::new("1"), None, Box::new(|| ())).unwrap();
    let second = fence.claim(NOW, Permit::new("2"), None, Box::new(|| ())).unwrap();
    assert!(!first.granted());
    assert!(fence.cancel(NOW, &foreign.permit));
    assert!(first.granted() && !second.granted());
    drop(first);
    assert!(second.granted());
}
