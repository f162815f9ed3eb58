//! One test a rule. The numbers are those of the steps in `pool.rs`.

use super::*;
use crate::pool::SlotView;
use crate::verdict::Verdict;

mod life;
mod properties;

/// A coordinator, its time, and what it has said.
struct Pool {
    coordinator: Coordinator,
    now: Moment,
    effects: Vec<Effect>,
}

fn idle() -> Standing {
    Verdict::Idle.into()
}

fn busy() -> Standing {
    Verdict::TurnInFlight { detail: Some("cron:j".into()) }.into()
}

impl Pool {
    fn of(max: usize) -> Self {
        Self::with(Settings { max, ..Settings::default() })
    }

    fn with(settings: Settings) -> Self {
        Self { coordinator: Coordinator::new(settings), now: Moment::from_nanos(1), effects: Vec::new() }
    }

    fn on(&mut self, event: Event) -> Vec<Effect> {
        let effects = self.coordinator.handle(self.now, event);
        self.effects.extend(effects.clone());
        effects
    }

    /// Lets time pass, and wakes the coordinator as often as it asks for it.
    fn pass(&mut self, span: Duration) {
        let until = self.now.plus(span);
        while let Some(at) = self.coordinator.wake_at().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.on(Event::Wake);
        }
        self.now = until;
    }

    fn open(&mut self, ticket: u64, profile: &str, class: Class) -> Vec<Effect> {
        self.on(Event::Open { ticket: Ticket(ticket), profile: profile.into(), class, deadline: None })
    }

    fn lease(&self, profile: &str) -> Lease {
        self.coordinator.slot_of(profile).expect("a slot").0
    }

    fn state(&self, profile: &str) -> Option<State> {
        self.coordinator.slot_of(profile).map(|(_, slot)| slot.state)
    }

    /// A resident that was opened by a person, is up, and says this.
    fn resident(&mut self, profile: &str, standing: Standing) -> Lease {
        self.open(1000 + self.now.since(Moment::from_nanos(0)).as_nanos() as u64, profile, Class::Foreground);
        let lease = self.lease(profile);
        self.on(Event::Ready { lease });
        self.on(Event::Heard { lease, standing });
        self.now = self.now.plus(Duration::from_millis(1));
        lease
    }

    /// Goes from the permit to the exit.
    fn see_off(&mut self, lease: Lease) -> Vec<Effect> {
        assert_eq!(self.on(Event::Prepared { lease }), [Effect::Commit { lease }]);
        assert_eq!(self.on(Event::Committed { lease }), [Effect::Stop { lease }]);
        self.on(Event::Exited { lease, how: "exit 0".into() })
    }

    fn answers(&mut self, lease: Lease, standing: Standing) -> Vec<Effect> {
        self.on(Event::Probed { lease, standing })
    }

    fn exits(&mut self, lease: Lease) -> Vec<Effect> {
        self.on(Event::Exited { lease, how: "signal 9".into() })
    }
}

fn denied(effects: &[Effect], ticket: u64) -> Option<&Denial> {
    effects.iter().find_map(|effect| match effect {
        Effect::Denied { ticket: denied, denial } if *denied == Ticket(ticket) => Some(denial),
        _ => None,
    })
}

fn granted(effects: &[Effect], ticket: u64) -> bool {
    effects.iter().any(|effect| matches!(effect, Effect::Granted { ticket: granted, .. } if *granted == Ticket(ticket)))
}

#[test]
fn step_1_a_lease_is_given_back_by_an_exit_or_a_failed_spawn_and_by_nothing_else() {
    let mut pool = Pool::of(1);
    let a = pool.resident("a", busy());
    pool.open(1, "b", Class::Foreground);
    for event in [
        Event::Committed { lease: a },
        Event::Refused { lease: a, standing: idle() },
        Event::SpawnFailed { lease: Lease(99), why: "x".into() },
        Event::Exited { lease: Lease(99), how: "x".into() },
    ] {
        pool.on(event);
        assert_eq!((pool.state("a"), pool.state("b")), (Some(State::Ready), None));
    }
    assert_eq!(pool.exits(a), [Effect::Spawn { lease: Lease(2), profile: "b".into() }]);
    let failed = pool.on(Event::SpawnFailed { lease: Lease(2), why: "no".into() });
    assert_eq!(denied(&failed, 1), Some(&Denial::SpawnFailed { why: "no".into() }));
    assert!(pool.coordinator.slots.is_empty());
}

#[test]
fn step_2_foreground_comes_first_then_due_then_background_each_in_turn() {
    let mut pool = Pool::of(1);
    let a = pool.resident("a", busy());
    for (ticket, class) in
        [(1, Class::Background), (2, Class::Due), (3, Class::Foreground), (4, Class::Due), (5, Class::Foreground)]
    {
        pool.open(ticket, &format!("p{ticket}"), class);
    }
    let order: Vec<_> = pool.coordinator.view(pool.now).queue.iter().map(|waiter| waiter.ticket.unwrap().0).collect();
    assert_eq!(order, [3, 5, 2, 4, 1]);
    assert_eq!(pool.exits(a), [Effect::Spawn { lease: Lease(2), profile: "p3".into() }]);
}

#[test]
fn one_slot_is_kept_from_the_background_and_all_may_be_foreground() {
    let mut pool = Pool::of(2);
    pool.open(1, "a", Class::Background);
    assert_eq!(pool.open(2, "b", Class::Due), [], "the last one is kept");
    assert!(matches!(pool.open(3, "c", Class::Foreground)[..], [Effect::Spawn { .. }]));
    let mut one = Pool::of(1);
    assert!(matches!(one.open(1, "a", Class::Background)[..], [Effect::Spawn { .. }]), "of one none is kept");
}

#[test]
fn step_3_every_resident_that_may_go_is_asked_at_once() {
    let mut pool = Pool::of(3);
    let leases = ["a", "b", "c"].map(|profile| pool.resident(profile, busy()));
    let effects = pool.open(1, "d", Class::Foreground);
    assert_eq!(effects, leases.map(|lease| Effect::Probe { lease }));
    assert_eq!(pool.on(Event::Wake), [], "once");
}

#[test]
fn step_4_the_idle_one_used_least_recently_goes_when_those_before_it_have_answered() {
    let mut pool = Pool::of(3);
    let [a, b, c] = ["a", "b", "c"].map(|profile| pool.resident(profile, busy()));
    pool.open(1, "d", Class::Foreground);
    assert_eq!(pool.answers(c, idle()), [], "a and b were used less recently");
    assert_eq!(pool.answers(a, busy()), []);
    assert_eq!(pool.answers(b, idle()), [Effect::Prepare { lease: b }]);
}

#[test]
fn step_4_one_that_is_known_to_be_hung_is_waited_for_by_nobody() {
    let mut pool = Pool::of(2);
    let [hung, other] = ["hung", "other"].map(|profile| pool.resident(profile, idle()));
    pool.open(1, "c", Class::Foreground);
    assert_eq!(pool.answers(other, idle()), []);
    let effects = pool.answers(hung, Standing::unknown());
    assert_eq!(effects, [Effect::Prepare { lease: other }], "it cost its own deadline, once");
    pool.see_off(other);
    let c = pool.lease("c");
    pool.on(Event::Ready { lease: c });
    pool.on(Event::Heard { lease: c, standing: idle() });
    let effects = pool.open(2, "d", Class::Foreground);
    assert!(effects.contains(&Effect::Probe { lease: hung }), "it is asked all the same");
    assert_eq!(pool.answers(c, idle()), [Effect::Prepare { lease: c }], "and nobody waits for it");
}

#[test]
fn step_5_a_permit_that_nobody_needs_any_more_is_given_back() {
    let mut pool = Pool::of(1);
    let a = pool.resident("a", idle());
    pool.open(1, "b", Class::Foreground);
    assert_eq!(pool.answers(a, idle()), [Effect::Prepare { lease: a }]);
    pool.on(Event::Cancel { ticket: Ticket(1) });
    assert_eq!(pool.on(Event::Prepared { lease: a }), [Effect::Cancel { lease: a }]);
    assert_eq!(pool.state("a"), Some(State::Ready));
}

#[test]
fn step_5_whoever_is_used_again_stays() {
    let mut pool = Pool::of(2);
    let [a, b] = ["a", "b"].map(|profile| pool.resident(profile, idle()));
    pool.open(1, "c", Class::Foreground);
    pool.answers(b, busy());
    assert_eq!(pool.answers(a, idle()), [Effect::Prepare { lease: a }]);
    pool.open(2, "a", Class::Foreground);
    let effects = pool.on(Event::Prepared { lease: a });
    assert_eq!(effects[0], Effect::Cancel { lease: a });
    assert!(granted(&effects, 2));
}

#[test]
fn step_6_the_mark_comes_before_the_signal_and_only_a_foreground_opening_clears_it() {
    let mut pool = Pool::of(1);
    let a = pool.resident("a", idle());
    pool.open(1, "b", Class::Foreground);
    pool.answers(a, idle());
    pool.on(Event::Prepared { lease: a });
    pool.on(Event::Cancel { ticket: Ticket(1) });
    assert_eq!(pool.on(Event::Committed { lease: a }), [Effect::Stop { lease: a }], "nothing aborts it any more");
    assert_eq!(denied(&pool.open(2, "a", Class::Background), 2), Some(&Denial::Retired));
    assert_eq!(pool.exits(a), []);
    assert!(matches!(pool.open(3, "a", Class::Due)[..], [Effect::Spawn { .. }]), "a job that is due is no redial");
    let again = pool.lease("a");
    pool.exits(again);
    pool.open(4, "a", Class::Foreground);
    assert_eq!(denied(&pool.open(5, "a", Class::Background), 5), None);
}

#[test]
fn step_7_refused_the_next_has_its_turn_and_the_first_word_of_idle_is_enough() {
    let mut pool = Pool::of(2);
    let [a, b] = ["a", "b"].map(|profile| pool.resident(profile, idle()));
    pool.open(1, "c", Class::Foreground);
    pool.answers(a, idle());
    assert_eq!(pool.answers(b, idle()), []);
    assert_eq!(pool.on(Event::Refused { lease: a, standing: busy() }), [Effect::Prepare { lease: b }]);
    assert_eq!(pool.on(Event::Refused { lease: b, standing: busy() }), []);
    assert_eq!(
        pool.coordinator.wake_at().filter(|at| at.since(pool.now) < Duration::from_secs(60)),
        None,
        "no polling"
    );
    assert_eq!(pool.on(Event::Heard { lease: b, standing: idle() }), [Effect::Prepare { lease: b }]);
}

#[test]
fn what_cannot_be_told_is_never_asked_for_a_permit() {
    let mut pool = Pool::of(1);
    let a = pool.resident("a", Standing::unknown());
    let effects = pool.open(1, "b", Class::Foreground);
    assert!(!effects.contains(&Effect::Prepare { lease: a }));
    for standing in
        [Standing::unknown(), busy(), Verdict::AwaitingHumanInput.into(), Verdict::InputProbeUnavailable.into()]
    {
        assert_eq!(pool.answers(a, standing), []);
    }
    // Whoever says idle and refuses all the same has another retirement going on.
    pool.on(Event::Heard { lease: a, standing: idle() });
    assert_eq!(pool.on(Event::Refused { lease: a, standing: idle() }), []);
}

#[test]
fn step_8_a_deadline_is_end_to_end_names_who_was_in_the_way_and_begins_anew_on_promotion() {
    let mut pool = Pool::of(1);
    let a = pool.resident("a", busy());
    let deadline = Some(Duration::from_secs(30));
    let open = |ticket, class| Event::Open { ticket: Ticket(ticket), profile: "b".into(), class, deadline };
    pool.on(open(1, Class::Background));
    pool.on(open(2, Class::Background));
    pool.pass(Duration::from_secs(29));
    pool.on(Event::Promote { ticket: Ticket(1), deadline });
    pool.effects.clear();
    pool.pass(Duration::from_secs(29));
    let Some(Denial::TimedOut { in_the_way }) = denied(&pool.effects, 2) else { panic!("{:?}", pool.effects) };
    assert!(matches!(&in_the_way[..], [SlotView { lease, .. }] if *lease == a));
    assert_eq!(denied(&pool.effects, 1), None);
    pool.pass(Duration::from_secs(2));
    assert!(matches!(denied(&pool.effects, 1), Some(Denial::TimedOut { .. })));
}

#[test]
fn a_promoted_waiter_makes_room_where_a_background_one_must_not() {
    let mut pool = Pool::of(1);
    let a = pool.resident("a", idle());
    assert_eq!(pool.open(1, "b", Class::Background), [], "a was used a moment ago");
    let effects = pool.on(Event::Promote { ticket: Ticket(1), deadline: None });
    assert_eq!(effects, [Effect::Probe { lease: a }]);
    assert_eq!(pool.answers(a, idle()), [Effect::Prepare { lease: a }]);
}

#[test]
fn the_background_takes_the_place_of_who_has_grown_stale() {
    let mut pool = Pool::of(1);
    let a = pool.resident("a", idle());
    pool.open(1, "b", Class::Background);
    pool.pass(Duration::from_secs(239));
    assert!(!pool.effects.contains(&Effect::Prepare { lease: a }));
    pool.pass(Duration::from_secs(2));
    assert!(pool.effects.contains(&Effect::Probe { lease: a }), "{:?}", pool.effects);
    assert_eq!(pool.answers(a, idle()), [Effect::Prepare { lease: a }]);
}

#[test]
fn a_slot_that_is_on_its_way_is_not_asked_for_twice() {
    let mut pool = Pool::of(3);
    let [a, b, c] = ["a", "b", "c"].map(|profile| pool.resident(profile, idle()));
    pool.open(1, "d", Class::Foreground);
    for lease in [a, b, c] {
        pool.answers(lease, idle());
    }
    let prepared = |pool: &Pool| pool.effects.iter().filter(|effect| matches!(effect, Effect::Prepare { .. })).count();
    assert_eq!(prepared(&pool), 1);
    pool.open(2, "e", Class::Foreground);
    for lease in [b, c] {
        pool.answers(lease, idle());
    }
    assert_eq!(prepared(&pool), 2, "one for each that waits");
    let effects = pool.see_off(a);
    assert!(matches!(&effects[..], [Effect::Spawn { profile, .. }] if &**profile == "d"));
}

#[test]
fn two_children_never_share_a_profile() {
    let mut pool = Pool::of(2);
    let a = pool.resident("a", idle());
    pool.on(Event::Close { ticket: Ticket(1), profile: "a".into() });
    pool.on(Event::Prepared { lease: a });
    pool.on(Event::Committed { lease: a });
    assert_eq!(pool.open(2, "a", Class::Foreground), [], "there is room, and its home is still in use");
    let effects = pool.exits(a);
    assert_eq!(effects[0], Effect::Closed { ticket: Ticket(1) });
    assert!(matches!(effects[1], Effect::Spawn { .. }));
    assert_eq!(pool.open(3, "a", Class::Foreground), [], "it comes up already");
    let again = pool.lease("a");
    let effects = pool.on(Event::Ready { lease: again });
    assert!(granted(&effects, 2) && granted(&effects, 3));
}

#[test]
fn an_older_childs_news_never_touch_a_newer_one() {
    let mut pool = Pool::of(1);
    let old = pool.resident("a", idle());
    pool.exits(old);
    let new = pool.resident("a", busy());
    assert_ne!(old, new);
    for event in [
        Event::Exited { lease: old, how: "late".into() },
        Event::Heard { lease: old, standing: idle() },
        Event::Committed { lease: old },
        Event::Ready { lease: old },
    ] {
        assert_eq!(pool.on(event), []);
    }
    assert_eq!(pool.on(Event::Prepared { lease: old }), [Effect::Cancel { lease: old }]);
    assert_eq!((pool.state("a"), pool.lease("a")), (Some(State::Ready), new));
}
