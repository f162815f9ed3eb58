//! Random lives of a pool, against children that answer, refuse, hang, lose replies and crash. What must hold is looked at
//! after every step.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;

const PROFILES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// What happens next, as far as chance decides it.
#[derive(Debug, Clone)]
enum Step {
    Open(usize, Class, Option<u64>),
    Cancel(usize),
    Promote(usize),
    Touch(usize),
    Close(usize),
    Limit(usize),
    /// A child is about something, or done with it, and says so.
    Work(usize, bool),
    /// Its stream broke.
    Mute(usize),
    Crash(usize),
    /// The oldest thing that was asked for is done, well or badly.
    Done(bool),
    Pass(u64),
    Drain,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let class = prop::sample::select(vec![Class::Foreground, Class::Due, Class::Background]);
    let one = prop_oneof![
        6 => (0..5_usize, class, prop::option::of(1..60_000_u64)).prop_map(|(p, class, ms)| Step::Open(p, class, ms)),
        1 => (0..8_usize).prop_map(Step::Cancel),
        1 => (0..8_usize).prop_map(Step::Promote),
        1 => (0..5_usize).prop_map(Step::Touch),
        1 => (0..5_usize).prop_map(Step::Close),
        1 => (1..4_usize).prop_map(Step::Limit),
        6 => (0..5_usize, any::<bool>()).prop_map(|(p, busy)| Step::Work(p, busy)),
        1 => (0..5_usize).prop_map(Step::Mute),
        1 => (0..5_usize).prop_map(Step::Crash),
        16 => prop::bool::weighted(0.8).prop_map(Step::Done),
        3 => (1..400_000_u64).prop_map(Step::Pass),
        1 => Just(Step::Drain),
    ];
    prop::collection::vec(one, 1..120)
}

/// A child as it really is.
#[derive(Debug, Clone, PartialEq)]
struct Child {
    profile: Arc<str>,
    up: bool,
    busy: bool,
    /// It has given its permit, and starts nothing.
    frozen: bool,
    committed: bool,
    told_to_stop: bool,
    last_said: Standing,
}

/// The world that the coordinator must not harm.
struct World {
    pool: Pool,
    children: BTreeMap<Lease, Child>,
    /// What was asked for and is not done, oldest first.
    asked: VecDeque<Effect>,
    waiting: BTreeMap<Ticket, (Arc<str>, Class)>,
    answered: BTreeSet<Ticket>,
    closing: BTreeSet<Lease>,
    permits: BTreeSet<Lease>,
    retired: BTreeSet<Arc<str>>,
    tickets: u64,
    /// The limit was lowered below what lives, or children crashed into it.
    highest: usize,
    drained: bool,
}

impl Child {
    fn of(profile: Arc<str>) -> Self {
        let last_said = Standing::unknown();
        Self { profile, up: false, busy: false, frozen: false, committed: false, told_to_stop: false, last_said }
    }
}

impl World {
    /// A world in which a pool before ours left so many children.
    fn with(heirs: usize) -> Self {
        let mut world = Self::new();
        for (place, profile) in PROFILES.iter().take(heirs).enumerate() {
            let (lease, profile) = (world.pool.coordinator.fresh_lease(), Arc::<str>::from(*profile));
            let child = Child { busy: place % 2 == 0, ..Child::of(Arc::clone(&profile)) };
            world.children.insert(lease, child);
            world.highest = world.highest.max(heirs);
            world.on_found(lease, profile);
        }
        world
    }

    fn on_found(&mut self, lease: Lease, profile: Arc<str>) {
        // Whether it is taken over, or leaves before, is as open as whether one that is started comes up.
        self.asked.push_back(Effect::Spawn { lease, profile: Arc::clone(&profile) });
        let effects = self.pool.on(Event::Found { lease, profile });
        assert_eq!(effects, [], "it has a slot, and nothing is asked of it");
    }

    fn new() -> Self {
        Self {
            pool: Pool::of(2),
            children: BTreeMap::new(),
            asked: VecDeque::new(),
            waiting: BTreeMap::new(),
            answered: BTreeSet::new(),
            closing: BTreeSet::new(),
            permits: BTreeSet::new(),
            retired: BTreeSet::new(),
            tickets: 0,
            highest: 2,
            drained: false,
        }
    }

    fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Open(profile, class, ms) => {
                let (ticket, profile) = (self.ticket(), Arc::<str>::from(PROFILES[profile]));
                self.waiting.insert(ticket, (profile.clone(), class));
                if class == Class::Foreground && !self.drained {
                    self.retired.remove(&profile);
                }
                self.on(Event::Open { ticket, profile, class, deadline: ms.map(Duration::from_millis) });
            }
            Step::Cancel(place) => {
                if let Some(ticket) = self.waiting.keys().nth(place).copied() {
                    self.on(Event::Cancel { ticket });
                    assert!(self.answered.contains(&ticket), "who gives up is told so");
                }
            }
            Step::Promote(place) => {
                if let Some((ticket, (profile, _))) = self.waiting.iter().nth(place).map(|(t, w)| (*t, w.clone())) {
                    self.retired.remove(&profile);
                    self.waiting.insert(ticket, (profile, Class::Foreground));
                    self.on(Event::Promote { ticket, deadline: None });
                }
            }
            Step::Touch(profile) => self.on(Event::Touch { profile: PROFILES[profile].into() }),
            Step::Close(profile) => {
                let (ticket, profile) = (self.ticket(), Arc::<str>::from(PROFILES[profile]));
                self.waiting.insert(ticket, (profile.clone(), Class::Foreground));
                self.closing
                    .extend(self.children.iter().filter(|(_, child)| child.profile == profile).map(|(l, _)| *l));
                self.on(Event::Close { ticket, profile });
            }
            Step::Limit(max) => {
                self.highest = self.children.len().max(max);
                self.on(Event::Limit { max, budget: None });
            }
            Step::Work(profile, busy) => self.work(PROFILES[profile], busy),
            Step::Mute(profile) => self.say(PROFILES[profile], Standing::unknown()),
            Step::Crash(profile) => {
                let lease =
                    self.children.iter().find(|(_, child)| &*child.profile == PROFILES[profile]).map(|(l, _)| *l);
                if let Some(lease) = lease {
                    self.exit(lease);
                }
            }
            Step::Done(well) => self.done(well),
            Step::Pass(ms) => self.pass(Duration::from_millis(ms)),
            Step::Drain => {
                self.drained = true;
                self.on(Event::Drain);
            }
        }
    }

    fn work(&mut self, profile: &str, busy: bool) {
        let Some((_, child)) = self.children.iter_mut().find(|(_, child)| &*child.profile == profile && child.up)
        else {
            return;
        };
        if child.committed || child.frozen {
            return;
        }
        child.busy = busy;
        let standing = if busy { super::busy() } else { idle() };
        self.say(profile, standing);
    }

    fn say(&mut self, profile: &str, standing: Standing) {
        let found = self.children.iter_mut().find(|(_, child)| &*child.profile == profile && child.up);
        if let Some((lease, child)) = found {
            let lease = *lease;
            child.last_said = standing.clone();
            self.on(Event::Heard { lease, standing });
        }
    }

    fn exit(&mut self, lease: Lease) {
        if let Some(child) = self.children.remove(&lease) {
            if child.committed {
                self.retired.insert(child.profile.clone());
            }
            // A person waits for it already: that is as good as opening it now.
            let person = |(waited, class): &(Arc<str>, Class)| *waited == child.profile && *class == Class::Foreground;
            if self.waiting.values().any(person) {
                self.retired.remove(&child.profile);
            }
            self.permits.remove(&lease);
            self.closing.remove(&lease);
            self.asked.retain(|effect| of(effect) != Some(lease));
            self.on(Event::Exited { lease, how: "exit".into() });
        }
    }

    /// Carries out the oldest thing that was asked for.
    fn done(&mut self, well: bool) {
        let Some(effect) = self.asked.pop_front() else { return };
        let Some(lease) = of(&effect) else { return };
        let Some(child) = self.children.get_mut(&lease) else { return };
        let now = if child.busy { super::busy() } else { idle() };
        match effect {
            Effect::Spawn { .. } if well => {
                child.up = true;
                self.on(Event::Ready { lease });
            }
            Effect::Spawn { .. } => self.exit(lease),
            Effect::Probe { .. } => {
                let standing = if well { now } else { Standing::unknown() };
                child.last_said = standing.clone();
                self.on(Event::Probed { lease, standing });
            }
            Effect::Prepare { .. } if well && !child.busy => {
                child.frozen = true;
                self.permits.insert(lease);
                self.on(Event::Prepared { lease });
                assert!(!self.permits.contains(&lease), "a permit is committed or given back at once");
            }
            Effect::Prepare { .. } => {
                let standing = if child.busy { now } else { Standing::unknown() };
                child.last_said = standing.clone();
                self.on(Event::Refused { lease, standing });
            }
            Effect::Commit { .. } if well => {
                child.committed = true;
                self.on(Event::Committed { lease });
            }
            // Lost on the way there: the permit expires.
            Effect::Commit { .. } => {
                child.frozen = false;
                child.last_said = Standing::unknown();
                self.on(Event::Uncommitted { lease, standing: Standing::unknown() });
            }
            Effect::Stop { .. } => self.exit(lease),
            Effect::Cancel { .. } | Effect::Granted { .. } | Effect::Closed { .. } | Effect::Denied { .. } => {}
        }
    }

    fn pass(&mut self, span: Duration) {
        let until = self.pool.now.plus(span);
        let mut wakes = 0;
        while let Some(at) = self.pool.coordinator.wake_at().filter(|at| *at <= until) {
            self.pool.now = self.pool.now.max(at);
            self.on(Event::Wake);
            wakes += 1;
            assert!(wakes < 5000, "it wakes without end");
        }
        self.pool.now = until;
    }

    fn on(&mut self, event: Event) {
        for effect in self.pool.on(event) {
            self.see(&effect);
            self.asked.push_back(effect);
        }
        self.look();
    }

    /// What may be asked for, and when.
    fn see(&mut self, effect: &Effect) {
        match effect {
            Effect::Spawn { lease, profile } => {
                assert!(!self.drained, "a pool that is emptied opens nothing");
                assert!(self.children.values().all(|child| child.profile != *profile), "two children of one profile");
                let wanted = self.waiting.values().any(|(waited, class)| {
                    waited == profile && (*class != Class::Background || !self.retired.contains(profile))
                });
                let restart = !self.retired.contains(profile);
                assert!(wanted || restart, "a retired profile comes back for a person or a job only");
                let child = Child::of(profile.clone());
                assert!(self.children.insert(*lease, child).is_none(), "a lease is never given twice");
            }
            Effect::Prepare { lease } => {
                let child = &self.children[lease];
                assert!(child.up && (child.last_said.is_idle() || self.closing.contains(lease)), "{child:?}");
            }
            Effect::Commit { lease } => assert!(self.permits.remove(lease), "nobody has its permit"),
            Effect::Cancel { lease } => {
                assert!(self.permits.remove(lease), "nobody has its permit");
                if let Some(child) = self.children.get_mut(lease) {
                    child.frozen = false;
                }
            }
            Effect::Stop { lease } => {
                let Some(child) = self.children.get_mut(lease) else { panic!("nobody to stop") };
                assert!(child.committed && !child.busy && !child.told_to_stop, "stopped without proof: {child:?}");
                child.told_to_stop = true;
                self.retired.insert(child.profile.clone());
            }
            Effect::Probe { lease } => assert!(self.children[lease].up),
            Effect::Granted { ticket, lease } => {
                self.end(*ticket);
                let child = &self.children[lease];
                assert!(child.up && !child.committed, "granted a child that goes");
            }
            Effect::Closed { ticket } | Effect::Denied { ticket, .. } => self.end(*ticket),
        }
    }

    fn end(&mut self, ticket: Ticket) {
        self.waiting.remove(&ticket);
        assert!(self.answered.insert(ticket), "{ticket:?} is answered twice");
    }

    /// What holds at every moment.
    fn look(&mut self) {
        let max = self.pool.coordinator.settings.max;
        self.highest = self.highest.max(max).min(self.children.len().max(max));
        assert!(self.children.len() <= self.highest, "more children than the limit");
        assert_eq!(self.pool.coordinator.slots.len(), self.children.len(), "a slot was lost or given twice");
        let view = self.pool.coordinator.view(self.pool.now);
        let leaving =
            view.slots.iter().any(|slot| matches!(slot.state, State::Preparing | State::Committing | State::Stopping));
        for waiter in &view.queue {
            let own = view.slots.iter().find(|slot| slot.profile == waiter.profile);
            assert!(own.is_none_or(|slot| slot.state != State::Ready), "it waits for what is there");
            let room = view.slots.len() < max;
            assert!(!(room && own.is_none() && waiter.class == Class::Foreground), "it waits, and there is room");
        }
        // Somebody waits, somebody could go, and nobody is on the way: then the question must be in the air.
        let blocked = view.queue.iter().any(|waiter| {
            waiter.class == Class::Foreground && view.slots.iter().all(|slot| slot.profile != waiter.profile)
        });
        let idle = self.pool.coordinator.slots.values().any(Slot::may_prepare);
        let asked = self.pool.coordinator.slots.values().any(|slot| slot.awaited);
        assert!(!blocked || !idle || leaving || asked, "an idle resident is not asked to make room: {view:?}");
    }
}

fn of(effect: &Effect) -> Option<Lease> {
    match effect {
        Effect::Spawn { lease, .. }
        | Effect::Probe { lease }
        | Effect::Prepare { lease }
        | Effect::Commit { lease }
        | Effect::Cancel { lease }
        | Effect::Stop { lease } => Some(*lease),
        Effect::Granted { .. } | Effect::Closed { .. } | Effect::Denied { .. } => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_life_of_a_pool_ends_work_loses_a_slot_or_forgets_a_waiter(heirs in 0..=4_usize, steps in steps()) {
        let mut world = World::with(heirs);
        for step in steps {
            world.step(step);
        }
        // Let everybody be done: then everybody who waits is served, or the house is full of work.
        for _ in 0..400 {
            world.done(true);
        }
        world.pass(Duration::from_secs(3600));
        for _ in 0..400 {
            world.done(true);
        }
        let view = world.pool.coordinator.view(world.pool.now);
        let told: BTreeSet<Ticket> = view.queue.iter().filter_map(|waiter| waiter.ticket).collect();
        let untold: Vec<_> = world.waiting.keys().filter(|ticket| !told.contains(ticket)).collect();
        prop_assert!(untold.is_empty(), "nobody will ever answer {untold:?}");
    }
}
