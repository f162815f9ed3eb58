use std::time::Duration;

use super::*;

fn ledgers() -> Ledgers {
    Ledgers::new(Clock::manual())
}

fn enter(ledgers: &Ledgers, kind: LedgerKind, id: &str) -> Guard {
    ledgers.enter(&ledgers.admit().unwrap(), kind, id, "test")
}

fn detail(ledgers: &Ledgers, kind: LedgerKind) -> Option<String> {
    ledgers.detail(kind).unwrap()
}

#[test]
fn cron_ids_are_sorted_and_named_once() {
    let ledgers = ledgers();
    let guards = ["b", "a", "b"].map(|id| enter(&ledgers, LedgerKind::Cron, id));
    assert_eq!(detail(&ledgers, LedgerKind::Cron).as_deref(), Some("cron:a,b"));
    drop(guards);
    assert_eq!(detail(&ledgers, LedgerKind::Cron), None);
}

#[test]
fn sessions_are_named_in_the_order_in_which_they_came() {
    let ledgers = ledgers();
    let _guards = ["z", "a", "z"].map(|id| enter(&ledgers, LedgerKind::Session, id));
    assert_eq!(detail(&ledgers, LedgerKind::Session).as_deref(), Some("session:z,a"));
}

#[test]
fn a_crowded_ledger_names_a_few_and_counts_the_rest() {
    let ledgers = ledgers();
    let _guards: Vec<_> = (0..MAX_NAMED + 5).map(|n| enter(&ledgers, LedgerKind::Cron, &format!("{n:03}"))).collect();
    assert!(detail(&ledgers, LedgerKind::Cron).unwrap().ends_with("031,+5 more"));
}

#[test]
fn work_leaves_by_panic_and_by_an_aborted_task_too() {
    let ledgers = ledgers();
    let guard = enter(&ledgers, LedgerKind::Delegation, "d");
    let died = std::thread::spawn(move || {
        let _guard = guard;
        panic!("in mid-work");
    });
    assert!(died.join().is_err());
    assert_eq!(detail(&ledgers, LedgerKind::Delegation), None);

    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let guard = enter(&ledgers, LedgerKind::Session, "s");
        // Aborted before it was ever polled, then in the middle: both drop what they were given.
        let task = tokio::spawn(async move {
            let _guard = guard;
            std::future::pending::<()>().await;
        });
        task.abort();
        assert!(task.await.is_err());
    });
    assert_eq!(detail(&ledgers, LedgerKind::Session), None);
}

#[test]
fn pages_are_oldest_first_over_all_ledgers() {
    let ledgers = ledgers();
    let _a = enter(&ledgers, LedgerKind::HumanInput, "ask");
    ledgers.clock().advance(Duration::from_secs(2));
    let _b = enter(&ledgers, LedgerKind::Session, "turn");
    let (page, total) = ledgers.oldest(None, 1);
    assert_eq!((page[0].id.as_str(), page[0].age_ms, total), ("ask", 2000, 2));
    let (next, _) = ledgers.oldest(Some(page[0].number), 10);
    assert_eq!(next.iter().map(|entry| entry.id.as_str()).collect::<Vec<_>>(), ["turn"]);
    let (holders, more) = ledgers.holders(1);
    assert_eq!((holders[0].ledger, more), (LedgerKind::HumanInput, 1));
}

#[test]
fn work_nests_under_what_lives_while_the_process_drains() {
    let ledgers = ledgers();
    let job = enter(&ledgers, LedgerKind::Cron, "job");
    ledgers.fence().close();
    assert!(ledgers.admit().is_err());
    let stray = ledgers.enter(&job.admit().unwrap(), LedgerKind::Process, "42", "left behind");
    drop(job);
    assert_eq!(detail(&ledgers, LedgerKind::Process).as_deref(), Some("process:42"));
    drop(stray);
}

#[test]
fn every_change_is_told_and_a_look_is_not() {
    let ledgers = ledgers();
    let mut changes = ledgers.changes();
    changes.mark_unchanged();
    let _ = (ledgers.detail(LedgerKind::Cron), ledgers.fence().refuses(ledgers.clock().now()));
    assert!(!changes.has_changed().unwrap());
    let admission = ledgers.admit().unwrap();
    assert!(changes.has_changed().unwrap());
    changes.mark_unchanged();
    drop(admission);
    assert!(changes.has_changed().unwrap());
}

#[test]
fn a_doubt_makes_its_ledger_unreadable_until_it_is_settled() {
    let ledgers = ledgers();
    let doubt = ledgers.doubt(&ledgers.admit().unwrap(), LedgerKind::Session, "journal", "cannot be read");
    assert_eq!(ledgers.detail(LedgerKind::Session), Err(Unreadable(LedgerKind::Session)));
    assert_eq!(ledgers.count(LedgerKind::Session), Err(Unreadable(LedgerKind::Session)));
    assert_eq!(ledgers.oldest(None, 1).0[0].why, "cannot be read", "people are told why");
    let turn = ledgers.enter(&doubt.admit().unwrap(), LedgerKind::Session, "s", "prompt queued");
    drop(doubt);
    assert_eq!(detail(&ledgers, LedgerKind::Session).as_deref(), Some("session:s"));
    drop(turn);
    assert_eq!(detail(&ledgers, LedgerKind::Session), None);
}
