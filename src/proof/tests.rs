//! The model's own acceptance cases 1 to 11 (12 to 15 are live: tests/it/seed_live.rs).

use super::*;
use crate::clock::Clock;
use crate::ledger::Guard;

fn proof() -> Proof {
    Proof::new(Ledgers::new(Clock::manual()))
}

fn enter(proof: &Proof, kind: LedgerKind, id: &str) -> Guard {
    let ledgers = proof.ledgers();
    ledgers.enter(&ledgers.admit().unwrap(), kind, id, "test")
}

fn busy(detail: &str) -> Verdict {
    Verdict::TurnInFlight { detail: Some(detail.to_owned()) }
}

#[test]
fn case_1_nothing_and_no_question_is_idle() {
    assert_eq!(idle_proof(|| TurnProbe::NotBusy, || Some(0)), Verdict::Idle);
}

#[test]
fn cases_2_and_3_a_turn_is_busy_with_or_without_a_name() {
    let asked = || panic!("the input probe is not asked while work lives");
    assert_eq!(idle_proof(|| TurnProbe::Busy(None), asked), Verdict::TurnInFlight { detail: None });
    assert_eq!(idle_proof(|| TurnProbe::Busy(Some("session:abc".into())), asked), busy("session:abc"));
}

#[test]
fn case_4_a_question_awaits_a_human() {
    assert_eq!(idle_proof(|| TurnProbe::NotBusy, || Some(1)), Verdict::AwaitingHumanInput);
}

#[test]
fn case_5_what_cannot_be_read_is_never_idle() {
    assert_eq!(idle_proof(|| TurnProbe::Unknown, || Some(0)).idle(), None);
    assert_eq!(idle_proof(|| TurnProbe::NotBusy, || None).idle(), None);
}

#[test]
fn cases_6_and_7_a_running_job_is_named_until_it_is_gone() {
    let proof = proof();
    assert_eq!(proof.verdict(), Verdict::Idle);
    let job = enter(&proof, LedgerKind::Cron, "idle-proof-live-job");
    assert_eq!(proof.verdict(), busy("cron:idle-proof-live-job"));
    drop(job);
    assert_eq!(proof.verdict(), Verdict::Idle);
}

#[test]
fn cases_8_and_9_an_approval_or_a_clarify_awaits_a_human() {
    let proof = proof();
    for kind in ["approval", "clarify"] {
        let question = enter(&proof, LedgerKind::HumanInput, kind);
        assert_eq!(proof.ledgers().count(LedgerKind::HumanInput), Ok(1));
        assert_eq!(proof.verdict(), Verdict::AwaitingHumanInput);
        drop(question);
        assert_eq!(proof.verdict(), Verdict::Idle);
    }
}

#[test]
fn cases_10_and_11_a_queued_prompt_and_an_unwinding_worker_are_busy() {
    let proof = proof();
    for why in ["queued prompt", "unwinding"] {
        let admission = proof.ledgers().admit().unwrap();
        let guard = proof.ledgers().enter(&admission, LedgerKind::Session, "s1", why);
        drop(admission);
        assert_eq!(proof.verdict(), busy("session:s1"));
        drop(guard);
        assert_eq!(proof.verdict(), Verdict::Idle);
    }
}

#[test]
fn every_subset_of_ledgers_answers_with_its_first() {
    let first = [
        busy("session:x"),
        busy("delegation"),
        busy("cron:x"),
        busy("hold:x"),
        busy("process:x"),
        Verdict::AwaitingHumanInput,
    ];
    for subset in 0_u32..64 {
        let proof = proof();
        let held = LedgerKind::ENTRIES.iter().enumerate().filter(|(place, _)| subset & (1 << place) != 0);
        let _guards: Vec<_> = held.map(|(_, kind)| enter(&proof, *kind, "x")).collect();
        let expected = first.get(subset.trailing_zeros() as usize).cloned().unwrap_or(Verdict::Idle);
        assert_eq!(proof.verdict(), expected, "subset {subset:06b}");
    }
}

#[test]
fn an_admission_is_busy_before_any_ledger() {
    let proof = proof();
    let _job = enter(&proof, LedgerKind::Cron, "x");
    let _admission = proof.ledgers().admit().unwrap();
    assert_eq!(proof.verdict(), busy("retirement_admission"));
}

#[test]
fn an_unreadable_ledger_is_unknown_unless_a_busy_one_comes_first() {
    for (place, kind) in LedgerKind::ENTRIES.into_iter().enumerate() {
        let proof = proof();
        proof.ledgers().poison(kind);
        let expected = match kind {
            LedgerKind::HumanInput => Verdict::InputProbeUnavailable,
            _ => Verdict::TurnProbeUnavailable,
        };
        assert_eq!(proof.verdict(), expected, "{kind:?}");
        if place > 0 {
            let _turn = enter(&proof, LedgerKind::Session, "s");
            assert_eq!(proof.verdict(), busy("session:s"), "{kind:?}");
        }
        if let Some(later) = LedgerKind::ENTRIES.get(place + 1) {
            let _work = enter(&proof, *later, "x");
            assert_eq!(proof.verdict(), expected, "{kind:?} before {later:?}");
        }
    }
}

#[test]
fn a_doubt_is_unknown_and_authorises_nothing() {
    let proof = proof();
    let admission = proof.ledgers().admit().unwrap();
    let doubt = proof.ledgers().doubt(&admission, LedgerKind::Session, "journal", "cannot be read");
    drop(admission);
    assert_eq!(proof.verdict(), Verdict::TurnProbeUnavailable);
    drop(doubt);
    assert_eq!(proof.verdict(), Verdict::Idle);
}

#[test]
fn a_refusal_names_the_oldest_holders() {
    let proof = proof();
    let _guards: Vec<_> = (0..20).map(|n| enter(&proof, LedgerKind::Hold, &format!("h{n}"))).collect();
    let refusal = proof.refusal(proof.verdict(), false);
    assert_eq!((refusal.holders.len(), refusal.more), (Refusal::MAX_HOLDERS, 4));
    assert_eq!(refusal.holders[0].id, "h0");
    assert_eq!(refusal.since_ms, Some(0));
}

#[test]
fn a_report_pages_through_every_entry_once() {
    let proof = proof();
    let _guards: Vec<_> = (0..7).map(|n| enter(&proof, LedgerKind::Cron, &format!("j{n}"))).collect();
    let (mut after, mut seen) = (None, Vec::new());
    loop {
        let report = proof.report(after, 3, TickerReport::default());
        seen.extend(report.entries.iter().map(|entry| entry.id.clone()));
        after = report.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen, (0..7).map(|n| format!("j{n}")).collect::<Vec<_>>());
}
