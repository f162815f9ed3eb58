//! What happens to children and to the pool around the steps: limits, closing, crashes, idleness, memory, adoption.

use super::*;

#[test]
fn limits_change_at_once_and_nobody_is_stopped_without_proof() {
    let mut pool = Pool::of(3);
    let [a, b, c] =
        [("a", busy()), ("b", idle()), ("c", idle())].map(|(profile, standing)| pool.resident(profile, standing));
    let effects = pool.on(Event::Limit { max: 1, budget: None });
    assert_eq!(effects, [Effect::Prepare { lease: b }, Effect::Prepare { lease: c }]);
    assert_eq!(pool.state("a"), Some(State::Ready));
    pool.see_off(b);
    assert_eq!(pool.on(Event::Limit { max: 3, budget: None }), []);
    assert_eq!(pool.on(Event::Prepared { lease: c }), [Effect::Cancel { lease: c }], "there is room again");
    assert!(matches!(pool.open(1, "d", Class::Foreground)[..], [Effect::Spawn { .. }]));
    let _ = a;
}

#[test]
fn closing_is_by_proof_too() {
    let mut pool = Pool::of(3);
    assert_eq!(denied(&pool.on(Event::Close { ticket: Ticket(1), profile: "a".into() }), 1), Some(&Denial::NotOpen));
    pool.open(2, "a", Class::Foreground);
    let close = |ticket| Event::Close { ticket: Ticket(ticket), profile: "a".into() };
    assert!(matches!(denied(&pool.on(close(3)), 3), Some(Denial::Busy { state: State::Starting, .. })));
    let a = pool.lease("a");
    pool.on(Event::Ready { lease: a });
    assert_eq!(pool.on(close(4)), [Effect::Prepare { lease: a }]);
    let effects = pool.on(Event::Refused { lease: a, standing: busy() });
    assert_eq!(denied(&effects, 4), Some(&Denial::Busy { state: State::Ready, standing: busy() }));
    pool.on(close(5));
    assert_eq!(pool.see_off(a), [Effect::Closed { ticket: Ticket(5) }]);
}

#[test]
fn a_pool_that_is_emptied_opens_nothing_and_lets_each_go_when_it_is_idle() {
    let mut pool = Pool::of(2);
    let [a, b] = [("a", idle()), ("b", busy())].map(|(profile, standing)| pool.resident(profile, standing));
    pool.open(1, "c", Class::Foreground);
    let effects = pool.on(Event::Drain);
    assert_eq!(denied(&effects, 1), Some(&Denial::Draining));
    assert_eq!(denied(&pool.open(2, "a", Class::Foreground), 2), Some(&Denial::Draining));
    assert_eq!(pool.answers(a, idle()), [Effect::Prepare { lease: a }]);
    pool.see_off(a);
    assert!(!pool.coordinator.is_drained());
    assert_eq!(pool.on(Event::Heard { lease: b, standing: idle() }), [Effect::Prepare { lease: b }]);
    pool.see_off(b);
    assert!(pool.coordinator.is_drained());
}

#[test]
fn a_crash_is_followed_by_a_restart_later_each_time_and_three_in_a_row_by_none() {
    let mut pool = Pool::of(2);
    let mut lease = pool.resident("a", idle());
    for seconds in [1, 2] {
        pool.exits(lease);
        pool.effects.clear();
        pool.pass(Duration::from_millis(seconds * 1000 - 1));
        assert_eq!(pool.effects, []);
        assert!(matches!(denied(&pool.open(1, "a", Class::Background), 1), Some(Denial::BackingOff { .. })));
        pool.pass(Duration::from_millis(1));
        lease = pool.lease("a");
        pool.on(Event::Ready { lease });
    }
    pool.exits(lease);
    pool.pass(Duration::from_secs(600));
    assert_eq!(pool.state("a"), None, "crashes again and again: left alone");
    assert_eq!(denied(&pool.open(2, "a", Class::Background), 2), Some(&Denial::CrashLoop));
    assert!(matches!(pool.open(3, "a", Class::Foreground)[..], [Effect::Spawn { .. }]), "a person may try");
}

#[test]
fn a_start_that_fails_in_the_background_backs_off_and_a_person_does_not_care() {
    let mut pool = Pool::of(3);
    pool.open(1, "a", Class::Background);
    let lease = pool.lease("a");
    let effects = pool.on(Event::Exited { lease, how: "exit 2".into() });
    assert_eq!(denied(&effects, 1), Some(&Denial::SpawnFailed { why: "exit 2".into() }));
    let Some(Denial::BackingOff { remaining }) = denied(&pool.open(2, "a", Class::Background), 2).cloned() else {
        panic!("it does not back off")
    };
    assert_eq!(remaining, Duration::from_secs(60));
    assert!(matches!(pool.open(3, "a", Class::Foreground)[..], [Effect::Spawn { .. }]));
}

#[test]
fn a_commit_whose_reply_is_lost_and_an_exit_are_no_crash() {
    let mut pool = Pool::of(1);
    let a = pool.resident("a", idle());
    pool.open(1, "b", Class::Foreground);
    pool.answers(a, idle());
    pool.on(Event::Prepared { lease: a });
    pool.on(Event::Uncommitted { lease: a, standing: Standing::unknown() });
    assert!(!pool.effects.contains(&Effect::Stop { lease: a }), "nobody knows that it was committed");
    let effects = pool.exits(a);
    assert!(matches!(&effects[..], [Effect::Spawn { profile, .. }] if &**profile == "b"));
    pool.pass(Duration::from_secs(100));
    assert_eq!(pool.state("a"), None, "it left as it was told");
}

#[test]
fn an_idle_resident_that_nobody_uses_is_retired_and_a_touch_keeps_it() {
    let mut pool = Pool::of(3);
    let a = pool.resident("a", idle());
    pool.pass(Duration::from_secs(599));
    pool.on(Event::Touch { profile: "a".into() });
    pool.pass(Duration::from_secs(599));
    assert!(!pool.effects.contains(&Effect::Prepare { lease: a }));
    pool.pass(Duration::from_secs(2));
    assert!(pool.effects.contains(&Effect::Prepare { lease: a }));
    assert_eq!(pool.see_off(a), []);
    let b = pool.resident("b", busy());
    pool.pass(Duration::from_secs(3600));
    pool.on(Event::Heard { lease: b, standing: idle() });
    pool.pass(Duration::from_secs(599));
    assert!(!pool.effects.contains(&Effect::Prepare { lease: b }), "what ran counts as use");
}

#[test]
fn memory_holds_back_like_the_limit_and_is_made_free_by_proof() {
    let budget = Some(20 << 20);
    let mut pool = Pool::with(Settings { max: 10, budget, ..Settings::default() });
    let [a, b] = ["a", "b"].map(|profile| pool.resident(profile, idle()));
    pool.on(Event::Measured { lease: a, bytes: 8 << 20 });
    pool.on(Event::Measured { lease: b, bytes: 8 << 20 });
    assert_eq!(pool.open(1, "c", Class::Foreground), [Effect::Probe { lease: a }, Effect::Probe { lease: b }]);
    assert_eq!(pool.answers(a, idle()), [Effect::Prepare { lease: a }]);
    pool.see_off(a);
    let c = pool.lease("c");
    pool.on(Event::Ready { lease: c });
    pool.on(Event::Heard { lease: c, standing: busy() });
    pool.answers(b, idle());
    let effects = pool.on(Event::Measured { lease: c, bytes: 30 << 20 });
    assert_eq!(effects, [Effect::Prepare { lease: b }], "it grew: the idle one goes");
    pool.see_off(b);
    pool.on(Event::Heard { lease: c, standing: idle() });
    assert_eq!(pool.state("c"), Some(State::Ready), "the last one is left in peace");
}

#[test]
fn who_was_adopted_may_be_too_many_and_goes_by_proof_alone() {
    let mut pool = Pool::of(1);
    let leases: Vec<Lease> = (0..2).map(|_| pool.coordinator.fresh_lease()).collect();
    for (lease, profile) in leases.iter().zip(["a", "b"]) {
        pool.on(Event::Found { lease: *lease, profile: profile.into() });
        pool.on(Event::Ready { lease: *lease });
    }
    assert_eq!(pool.on(Event::Heard { lease: leases[0], standing: busy() }), []);
    assert_eq!(pool.on(Event::Heard { lease: leases[1], standing: idle() }), [Effect::Prepare { lease: leases[1] }]);
}

#[test]
fn who_is_found_and_cannot_be_taken_over_has_its_slot_until_its_exit() {
    let mut pool = Pool::of(1);
    let lease = pool.coordinator.fresh_lease();
    pool.on(Event::Found { lease, profile: "a".into() });
    assert_eq!(pool.open(1, "b", Class::Foreground), [], "the house is full");
    assert_eq!(pool.open(2, "a", Class::Foreground), [], "it is not ready, and no second one is started");
    let effects = pool.on(Event::Exited { lease, how: "it has left".to_owned() });
    assert!(matches!(&effects[..], [Effect::Spawn { profile, .. }] if &**profile == "b"), "{effects:?}");
    assert_eq!(pool.coordinator.queue.len(), 2, "nobody is told that it did not start");
}

#[test]
fn so_many_wait_and_a_person_takes_the_place_of_the_last_in_the_background() {
    let mut pool = Pool::of(1);
    pool.resident("a", busy());
    for ticket in 0..MAX_WAITERS as u64 {
        pool.open(ticket, &format!("p{ticket}"), Class::Background);
    }
    let more = MAX_WAITERS as u64;
    assert_eq!(denied(&pool.open(more, "q", Class::Background), more), Some(&Denial::TooMany));
    let effects = pool.open(more + 1, "q", Class::Foreground);
    assert_eq!(denied(&effects, more - 1), Some(&Denial::TooMany));
    assert_eq!(pool.coordinator.queue.len(), MAX_WAITERS);
}
