//! The flow map against one that can be seen to be right: vectors in order, searched from the front.
//!
//! It follows `usher_relay.flows` and `usher_relay.ssrc` line by line. Few keys, routes and ufrags and small capacities
//! make every rule come to be used.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::invariants::check;
use super::*;

#[derive(Clone, PartialEq, Debug)]
struct Entry {
    key: PathKey,
    route: RouteKey,
    local: LocalId,
    ufrag: Option<Ufrag>,
    state: State,
    verified_at: f64,
    alive_at: f64,
    probation_until: f64,
    ordered_at: f64,
    ssrc: Option<[u8; 4]>,
}

impl Entry {
    fn heard_at(&self) -> f64 {
        self.verified_at.max(self.alive_at)
    }
}

/// `all` holds the flows, the first made first. The others hold keys: of each state the flows in their order and in the
/// order in which they came there, and those with an SSRC in the order in which it was learnt.
struct Model {
    capacity: usize,
    probation_per_ufrag: usize,
    live: [bool; 3],
    all: Vec<Entry>,
    lines: [Vec<PathKey>; 3],
    siblings: [Vec<PathKey>; 3],
    ssrcs: Vec<PathKey>,
    last_life: f64,
    counters: Counters,
}

impl Model {
    fn new(capacity: usize, probation_per_ufrag: usize) -> Self {
        Self {
            capacity,
            probation_per_ufrag,
            live: [true; 3],
            all: Vec::new(),
            lines: Default::default(),
            siblings: Default::default(),
            ssrcs: Vec::new(),
            last_life: f64::NEG_INFINITY,
            counters: Counters::default(),
        }
    }

    fn find(&mut self, key: &PathKey) -> Option<&mut Entry> {
        self.all.iter_mut().find(|flow| flow.key == *key)
    }

    fn get(&self, key: &PathKey) -> &Entry {
        self.all.iter().find(|flow| flow.key == *key).unwrap()
    }

    fn is_quiet(&self, flow: &Entry, now: f64) -> bool {
        flow.state == State::Ended || now - flow.heard_at() >= QUIET_AFTER || !self.live[usize::from(flow.route[0])]
    }

    fn on_verified(&mut self, key: &PathKey, route: RouteKey, ufrag: Ufrag, local: LocalId, now: f64) {
        let known = self.find(key).cloned();
        if let Some(flow) = known.clone().filter(|flow| flow.route == route && flow.state != State::Ended) {
            let is_quiet = self.is_quiet(&flow, now);
            let flow = self.find(key).unwrap();
            flow.verified_at = now;
            if is_quiet {
                flow.local = local;
            }
            self.last_life = now;
            self.keep_order(key, now);
            return;
        }
        if !self.vacate(known, route, now) {
            return;
        }
        let siblings = self.siblings(State::Probation, Some(ufrag));
        if siblings.len() >= self.probation_per_ufrag {
            self.remove(&siblings[0], FlowEvent::EvictedProbation);
        }
        self.add(
            Entry {
                key: *key,
                route,
                local,
                ufrag: Some(ufrag),
                state: State::Probation,
                verified_at: now,
                alive_at: f64::NEG_INFINITY,
                probation_until: now + PROBATION,
                ordered_at: now,
                ssrc: None,
            },
            now,
        );
    }

    fn on_alive(&mut self, key: &PathKey, route: RouteKey, local: LocalId, now: f64) {
        let known = self.find(key).cloned();
        if known.as_ref().is_some_and(|flow| flow.route == route) {
            let flow = self.find(key).unwrap();
            flow.alive_at = now;
            let state = flow.state;
            self.last_life = now;
            if state == State::Confirmed {
                self.keep_order(key, now);
            } else {
                self.confirm(key, now);
            }
            return;
        }
        if !self.vacate(known, route, now) {
            return;
        }
        let made = self.add(
            Entry {
                key: *key,
                route,
                local,
                ufrag: None,
                state: State::Confirmed,
                verified_at: f64::NEG_INFINITY,
                alive_at: now,
                probation_until: 0.0,
                ordered_at: now,
                ssrc: None,
            },
            now,
        );
        if made {
            self.counters.event(FlowEvent::Roamed);
        }
    }

    fn on_unknown(&mut self, key: &PathKey, route: RouteKey, now: f64) {
        if self.find(key).is_some_and(|flow| flow.route == route && flow.state != State::Ended) {
            self.change_state(key, State::Ended, now);
            self.join(key);
            self.counters.event(FlowEvent::Ended);
        }
    }

    fn expire(&mut self, now: f64) {
        for _ in 0..EXPIRY_STEPS {
            let [waiting, silent, ended] = self.lines.each_ref().map(|line| line.first().copied());
            if let Some(key) = waiting.filter(|key| now >= self.get(key).probation_until) {
                self.remove(&key, FlowEvent::ProbationOver);
            } else if let Some(key) = ended.filter(|key| now - self.get(key).ordered_at >= ENDED_KEPT) {
                self.remove(&key, FlowEvent::Expired);
            } else if let Some(key) = silent.filter(|key| now - self.get(key).heard_at() >= IDLE_EXPIRY) {
                self.remove(&key, FlowEvent::Expired);
            } else {
                return;
            }
        }
    }

    fn learn(&mut self, key: &PathKey, ssrc: [u8; 4]) {
        self.ssrcs.retain(|other| other != key);
        self.find(key).unwrap().ssrc = Some(ssrc);
        self.ssrcs.push(*key);
    }

    fn candidates(&self, ssrc: [u8; 4], address: &[u8; 16]) -> Vec<PathKey> {
        let latest = self.ssrcs.iter().rev().filter(|&key| self.get(key).ssrc == Some(ssrc));
        let mut found: Vec<PathKey> = latest.clone().filter(|&key| key[4..] == address[..]).take(4).copied().collect();
        let others: Vec<PathKey> = latest.take(4).filter(|&key| !found.contains(key)).copied().collect();
        found.extend(others);
        found.truncate(4);
        found
    }

    fn siblings(&self, state: State, ufrag: Option<Ufrag>) -> Vec<PathKey> {
        let siblings = self.siblings[state as usize].iter();
        siblings.filter(|&key| ufrag.is_some() && self.get(key).ufrag == ufrag).copied().collect()
    }

    fn vacate(&mut self, known: Option<Entry>, route: RouteKey, now: f64) -> bool {
        let Some(flow) = known else {
            return true;
        };
        if !self.is_quiet(&flow, now) {
            self.counters.event(FlowEvent::Kept);
            return false;
        }
        self.remove(&flow.key, if flow.route == route { FlowEvent::Renewed } else { FlowEvent::Moved });
        true
    }

    fn add(&mut self, flow: Entry, now: f64) -> bool {
        if self.all.len() >= self.capacity && !self.evict(now) {
            self.counters.event(FlowEvent::Refused);
            return false;
        }
        let key = flow.key;
        self.all.push(flow);
        self.join(&key);
        self.last_life = now;
        self.counters.event(FlowEvent::Created);
        true
    }

    fn confirm(&mut self, key: &PathKey, now: f64) {
        self.change_state(key, State::Confirmed, now);
        let siblings = self.siblings(State::Confirmed, self.get(key).ufrag);
        if siblings.len() >= CONFIRMED_PER_UFRAG {
            let mut silent = siblings[0];
            for other in siblings {
                if self.get(&other).heard_at() < self.get(&silent).heard_at() {
                    silent = other;
                }
            }
            self.remove(&silent, FlowEvent::EvictedSurplus);
        }
        self.join(key);
        self.counters.event(FlowEvent::Confirmed);
    }

    fn keep_order(&mut self, key: &PathKey, now: f64) {
        let flow = self.find(key).unwrap();
        if flow.state == State::Confirmed && now - flow.ordered_at >= ORDER_EVERY {
            flow.ordered_at = now;
            let line = &mut self.lines[State::Confirmed as usize];
            line.retain(|other| other != key);
            line.push(*key);
        }
    }

    fn evict(&mut self, now: f64) -> bool {
        let [waiting, silent, ended] = self.lines.each_ref().map(|line| line.first().copied());
        let is_share_exceeded = self.lines[State::Probation as usize].len() > (self.capacity / 10).max(1);
        if let Some(key) = ended {
            self.remove(&key, FlowEvent::EvictedEnded);
        } else if let Some(key) = waiting.filter(|_| is_share_exceeded) {
            self.remove(&key, FlowEvent::EvictedProbation);
        } else if let Some(key) = silent.filter(|key| self.is_quiet(self.get(key), now)) {
            self.remove(&key, FlowEvent::EvictedQuiet);
        } else if let Some(key) = waiting {
            self.remove(&key, FlowEvent::EvictedProbation);
        } else {
            return false;
        }
        true
    }

    /// Takes the flow out of its line and lets it wait for something else.
    fn change_state(&mut self, key: &PathKey, state: State, now: f64) {
        self.leave(key);
        let flow = self.find(key).unwrap();
        flow.state = state;
        flow.ordered_at = now;
    }

    fn remove(&mut self, key: &PathKey, event: FlowEvent) {
        self.leave(key);
        self.ssrcs.retain(|other| other != key);
        self.all.retain(|flow| flow.key != *key);
        self.counters.event(event);
    }

    fn join(&mut self, key: &PathKey) {
        let state = self.get(key).state as usize;
        self.lines[state].push(*key);
        self.siblings[state].push(*key);
    }

    fn leave(&mut self, key: &PathKey) {
        let state = self.get(key).state as usize;
        self.lines[state].retain(|other| other != key);
        self.siblings[state].retain(|other| other != key);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Verified { key: PathKey, route: RouteKey, ufrag: Ufrag, local: LocalId },
    Alive { key: PathKey, route: RouteKey, local: LocalId },
    Unknown { key: PathKey, route: RouteKey },
    Expire,
    Learn { key: PathKey, ssrc: [u8; 4] },
    Wait(f64),
    Live([bool; 3]),
}

/// Fewer than `most` steps; some of them are a check and its answer.
fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    // Four addresses with some ports each.
    let key = || (0..4_u8, 0..16_u8).prop_map(|(address, port)| [[0, 1, 0, port].as_slice(), &[address; 16]].concat());
    let key = move || key().prop_map(|bytes| <PathKey>::try_from(bytes).unwrap());
    // Mostly the same one, so that answers meet their checks and a ufrag gets more flows than it may have.
    let number = || prop_oneof![6 => Just(0_u8), 1 => Just(1), 1 => Just(2)];
    let route = move || number().prop_map(|number| [number; 7]);
    let ufrag = move || number().prop_map(|number| Ufrag { letter: b'a', block: [number; 16] });
    let check = move || {
        (key(), route(), ufrag(), 0..3_u16).prop_map(|(key, route, ufrag, local)| Step::Verified {
            key,
            route,
            ufrag,
            local,
        })
    };
    let ssrc = (0..4_u8).prop_map(|number| [number; 4]);
    let pause = prop_oneof![
        6 => 0.0..0.3,
        1 => proptest::sample::select(vec![0.5, 1.0, 2.5, PROBATION, QUIET_AFTER, ENDED_KEPT, IDLE_EXPIRY]),
    ];
    let one = prop_oneof![
        8 => check(),
        8 => (key(), route(), 0..3_u16).prop_map(|(key, route, local)| Step::Alive { key, route, local }),
        2 => (key(), route()).prop_map(|(key, route)| Step::Unknown { key, route }),
        1 => Just(Step::Expire),
        5 => (key(), ssrc).prop_map(|(key, ssrc)| Step::Learn { key, ssrc }),
        4 => pause.prop_map(Step::Wait),
        1 => prop_oneof![3 => Just([true; 3]), 1 => any::<[bool; 3]>()].prop_map(Step::Live),
    ];
    let answered = check().prop_map(|check| match check {
        Step::Verified { key, route, local, .. } => vec![check, Step::Alive { key, route, local }],
        other => vec![other],
    });
    vec(prop_oneof![4 => one.prop_map(|step| vec![step]), 1 => answered], 0..most).prop_map(|steps| steps.concat())
}

/// What the flow map says of a flow, in the words of the model.
fn entry(flow: &Flow) -> Entry {
    Entry {
        key: flow.key,
        route: flow.route,
        local: flow.local,
        ufrag: flow.has_ufrag().then_some(flow.ufrag),
        state: flow.state,
        verified_at: flow.verified_at,
        alive_at: flow.alive_at,
        probation_until: flow.ordered_at,
        ordered_at: flow.ordered_at,
        ssrc: flow.ssrc,
    }
}

/// The two times of which a flow has only the one that its state needs.
fn with_one_time(flow: &Entry) -> Entry {
    let time = if flow.state == State::Probation { flow.probation_until } else { flow.ordered_at };
    Entry { probation_until: time, ordered_at: time, ..flow.clone() }
}

fn compare(flows: &FlowMap, counters: &Counters, model: &Model) {
    let made: Vec<Entry> = flows.first(usize::MAX).map(entry).collect();
    assert_eq!(made, model.all.iter().map(with_one_time).collect::<Vec<_>>());
    for (line, keys) in flows.lines.iter().zip(&model.lines) {
        assert_eq!(&line.iter(&flows.slots).map(|id| flows.get(id).key).collect::<Vec<_>>(), keys);
    }
    assert_eq!((flows.on_probation(), flows.ended()), (model.lines[0].len(), model.lines[2].len()));
    assert_eq!(counters, &model.counters);
    assert_eq!(flows.last_life().to_bits(), model.last_life.to_bits());
    for ssrc in 0..4 {
        for address in 0..4 {
            let found = flows.candidates([ssrc; 4], &[address; 16]);
            let found: Vec<PathKey> = found.as_slice().iter().map(|&id| flows.get(id).key).collect();
            assert_eq!(found, model.candidates([ssrc; 4], &[address; 16]));
        }
    }
}

/// Takes the steps in both; returns what happened.
fn walk(capacity: usize, probation_per_ufrag: usize, steps: Vec<Step>) -> Counters {
    let (mut flows, mut counters) = (FlowMap::new(capacity, probation_per_ufrag), Counters::default());
    let mut model = Model::new(capacity, probation_per_ufrag);
    let mut now = 1_000.0;
    for step in steps {
        let routes = model.live;
        let live = |route: &RouteKey| routes[usize::from(route[0])];
        match step {
            Step::Verified { key, route, ufrag, local } => {
                flows.on_verified(&key, route, &ufrag, local, now, &live, &mut counters);
                model.on_verified(&key, route, ufrag, local, now);
            }
            Step::Alive { key, route, local } => {
                flows.on_alive(&key, route, local, now, &live, &mut counters);
                model.on_alive(&key, route, local, now);
            }
            Step::Unknown { key, route } => {
                flows.on_unknown(&key, &route, now, &mut counters);
                model.on_unknown(&key, route, now);
            }
            Step::Expire => {
                flows.expire(now, &mut counters);
                model.expire(now);
            }
            Step::Learn { key, ssrc } => {
                if let Some(id) = flows.find(&key) {
                    flows.learn_ssrc(id, ssrc);
                    model.learn(&key, ssrc);
                }
            }
            Step::Wait(seconds) => now += seconds,
            Step::Live(live) => model.live = live,
        }
        check(&flows);
        compare(&flows, &counters, &model);
        for (id, key) in model.all.iter().map(|flow| (flows.find(&flow.key).unwrap(), flow.key)) {
            let live = |route: &RouteKey| model.live[usize::from(route[0])];
            assert_eq!(flows.is_quiet(id, now, &live), model.is_quiet(model.get(&key), now));
        }
    }
    counters
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn the_flow_map_does_what_the_model_does(
        capacity in prop_oneof![0..12_usize, Just(15), Just(25), Just(60)],
        probation_per_ufrag in 1..5_usize,
        steps in steps(250),
    ) {
        walk(capacity, probation_per_ufrag, steps);
    }
}

#[test]
fn the_steps_come_to_every_event() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut happened = Counters::default();
    for capacity in [6, 25, 60].repeat(8) {
        let steps = steps(500).new_tree(&mut runner).unwrap().current();
        happened.add(&walk(capacity, 3, steps));
    }
    for &event in FlowEvent::ALL {
        assert!(happened.flow_events[event as usize] > 0, "{}", event.name());
    }
}
