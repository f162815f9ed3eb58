//! The fence under every interleaving: this compiles the product's own fence.rs against loom's locks.
#![allow(missing_docs, dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used)]

#[path = "../src/clock.rs"]
mod clock;
#[path = "../src/fence.rs"]
mod fence;
#[path = "../src/secret.rs"]
mod secret;
#[path = "../src/verdict.rs"]
mod verdict;
mod sync {
    pub use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
}

use clock::Moment;
use fence::{Denied, Fence, Granted};
use loom::sync::atomic::{AtomicUsize, Ordering};
use secret::Permit;
use sync::Arc;
use verdict::Verdict;

const NOW: Moment = Moment::from_nanos(0);
const LATER: Moment = Moment::from_nanos(31_000_000_000);

/// A ledger of one kind: how many entries live.
type Ledger = Arc<AtomicUsize>;

fn read(ledgers: &[Ledger]) -> Verdict {
    // One after the other, as the proof does: work may hop from a later ledger to an earlier one meanwhile.
    if ledgers.iter().any(|ledger| ledger.load(Ordering::SeqCst) > 0) {
        return Verdict::TurnInFlight { detail: None };
    }
    Verdict::Idle
}

fn prepare(fence: &Fence, ledgers: &[Ledger], now: Moment) -> Result<Granted, Denied> {
    fence.prepare(|| now, None, Permit::new("p"), || read(ledgers))
}

/// Work: admitted, entered, left. Counts itself as living from admission to the end.
fn work(fence: &Fence, ledger: &Ledger, living: &AtomicUsize, now: Moment) -> bool {
    let Ok(admission) = fence.admit(now) else { return false };
    living.fetch_add(1, Ordering::SeqCst);
    let presence = admission.enter();
    ledger.fetch_add(1, Ordering::SeqCst);
    drop(admission);
    living.fetch_sub(1, Ordering::SeqCst);
    ledger.fetch_sub(1, Ordering::SeqCst);
    drop(presence);
    true
}

fn ledgers<const N: usize>() -> [Ledger; N] {
    std::array::from_fn(|_| Arc::new(AtomicUsize::new(0)))
}

fn nothing_is_left(fence: &Fence) {
    assert_eq!(fence.admissions().unwrap().0, 0, "an admission leaked");
}

#[test]
fn no_permit_is_issued_while_work_lives_and_none_starts_after() {
    loom::model(|| {
        let fence = Fence::default();
        let [ledger] = ledgers();
        let living = Arc::new(AtomicUsize::new(0));
        let worker = {
            let (fence, ledger, living) = (fence.clone(), Arc::clone(&ledger), Arc::clone(&living));
            loom::thread::spawn(move || work(&fence, &ledger, &living, NOW))
        };
        let granted = prepare(&fence, &[Arc::clone(&ledger)], NOW);
        if let Ok(granted) = &granted {
            assert_eq!(living.load(Ordering::SeqCst), 0, "a permit while work lives");
            assert!(fence.admit(NOW).is_err(), "work after a permit");
            assert!(fence.commit(NOW, &granted.permit).is_some());
        }
        let worked = worker.join().unwrap();
        assert!(worked || granted.is_ok(), "a prepare that failed cost a start");
        nothing_is_left(&fence);
    });
}

#[test]
fn work_that_hops_between_ledgers_is_never_missed() {
    loom::model(|| {
        let fence = Fence::default();
        let [early, late] = ledgers();
        // A job (late ledger) that turns into a turn (early ledger) under its own presence.
        let admission = fence.admit(NOW).unwrap();
        let job = admission.enter();
        late.fetch_add(1, Ordering::SeqCst);
        drop(admission);
        let over = Arc::new(AtomicUsize::new(0));
        let worker = {
            let (early, late, over) = (Arc::clone(&early), Arc::clone(&late), Arc::clone(&over));
            loom::thread::spawn(move || {
                let admission = job.admit();
                let turn = admission.enter();
                early.fetch_add(1, Ordering::SeqCst);
                drop(admission);
                late.fetch_sub(1, Ordering::SeqCst);
                drop(job);
                over.store(1, Ordering::SeqCst);
                early.fetch_sub(1, Ordering::SeqCst);
                drop(turn);
            })
        };
        if prepare(&fence, &[early, late], NOW).is_ok() {
            assert_eq!(over.load(Ordering::SeqCst), 1, "a permit although the work only changed its ledger");
        }
        worker.join().unwrap();
        nothing_is_left(&fence);
    });
}

#[test]
fn commit_cancel_and_expiry_agree_on_one_outcome() {
    loom::model(|| {
        let fence = Fence::default();
        let granted = prepare(&fence, &[], NOW).unwrap();
        let committer = {
            let (fence, permit) = (fence.clone(), granted.permit.clone());
            loom::thread::spawn(move || fence.commit(NOW, &permit).is_some())
        };
        let admitter = {
            let fence = fence.clone();
            loom::thread::spawn(move || fence.admit(LATER).is_ok())
        };
        let cancelled = fence.cancel(NOW, &granted.permit);
        let (committed, admitted) = (committer.join().unwrap(), admitter.join().unwrap());
        assert!(!(committed && cancelled), "both committed and cancelled");
        assert!(!(committed && admitted && fence.admit(LATER).is_ok()), "a committed fence reopened");
        assert_eq!(fence.committed(), committed);
        nothing_is_left(&fence);
    });
}

#[test]
fn a_claim_is_granted_with_the_last_holder_and_nothing_slips_in_between() {
    loom::model(|| {
        let fence = Fence::default();
        let [ledger] = ledgers();
        let living = Arc::new(AtomicUsize::new(0));
        let worker = {
            let (fence, ledger, living) = (fence.clone(), Arc::clone(&ledger), Arc::clone(&living));
            loom::thread::spawn(move || work(&fence, &ledger, &living, NOW))
        };
        let claim = fence.claim(NOW, Permit::new("c"), None, Box::new(|| ())).unwrap();
        if claim.granted() {
            assert_eq!(living.load(Ordering::SeqCst), 0);
            if claim.confirm(NOW, || read(&[Arc::clone(&ledger)])).is_ok() {
                assert!(fence.admit(NOW).is_err());
            }
        } else {
            drop(claim);
        }
        worker.join().unwrap();
        nothing_is_left(&fence);
    });
}

#[test]
fn two_prepares_never_both_get_a_permit() {
    loom::model(|| {
        let fence = Fence::default();
        let other = {
            let fence = fence.clone();
            loom::thread::spawn(move || fence.prepare(|| NOW, None, Permit::new("q"), || Verdict::Idle).is_ok())
        };
        let mine = prepare(&fence, &[], NOW).is_ok();
        assert!(!(mine && other.join().unwrap()));
    });
}
