//! docs/wire.md section 4, rules 2 to 4: how long a flow lives, when its address may move, probation, the bounds, SSRCs.

use super::invariants::check;
use super::*;

const A: RouteKey = [0, 1, 0, 0, 0, 17, 0];
const B: RouteKey = [0, 1, 0, 0, 0, 18, 0];
const CLIENT: PathKey = client(5_000);

const fn client(port: u16) -> PathKey {
    client_at(port, 1)
}

const fn client_at(port: u16, address: u8) -> PathKey {
    let [high, low] = port.to_be_bytes();
    [0, 1, high, low, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 192, 0, 2, address]
}

fn ufrag(number: u32) -> Ufrag {
    let mut block = [0; 16];
    block[..4].copy_from_slice(&number.to_be_bytes());
    Ufrag { letter: b'u', block }
}

/// A flow map with a clock of its own. After each call the map is checked as a whole.
struct Rig {
    flows: FlowMap,
    counters: Counters,
    live: Vec<RouteKey>,
    now: f64,
}

impl Rig {
    fn new(capacity: usize) -> Self {
        let flows = FlowMap::new(capacity, PROBATION_PER_UFRAG);
        Self { flows, counters: Counters::default(), live: vec![A, B], now: 1_000.0 }
    }

    fn verified(&mut self, key: PathKey, route: RouteKey, number: u32) {
        self.verified_at(key, route, number, 0);
    }

    fn verified_at(&mut self, key: PathKey, route: RouteKey, number: u32, local: LocalId) {
        let live = |route: &RouteKey| self.live.contains(route);
        self.flows.on_verified(&key, route, &ufrag(number), local, self.now, &live, &mut self.counters);
    }

    fn alive(&mut self, key: PathKey, route: RouteKey) {
        let live = |route: &RouteKey| self.live.contains(route);
        self.flows.on_alive(&key, route, 0, self.now, &live, &mut self.counters);
    }

    /// Makes a confirmed flow.
    fn connect(&mut self, key: PathKey, route: RouteKey, number: u32) {
        self.verified(key, route, number);
        self.alive(key, route);
        assert_eq!(self.route_of(key), Some(route));
    }

    fn unknown(&mut self, key: PathKey, route: RouteKey) {
        self.flows.on_unknown(&key, &route, self.now, &mut self.counters);
    }

    /// Lets time pass, with an expiry at the end of every second.
    fn advance(&mut self, seconds: f64) {
        let end = self.now + seconds;
        while self.now < end {
            self.now += (end - self.now).min(1.0);
            self.flows.expire(self.now, &mut self.counters);
        }
        check(&self.flows);
    }

    fn flow(&self, key: PathKey) -> Option<&Flow> {
        self.flows.find(&key).map(|id| self.flows.get(id))
    }

    fn route_of(&self, key: PathKey) -> Option<RouteKey> {
        self.flow(key).map(|flow| flow.route)
    }

    fn happened(&self, event: FlowEvent) -> u64 {
        self.counters.flow_events[event as usize]
    }

    fn learn(&mut self, key: PathKey, ssrc: u8) {
        let id = self.flows.find(&key).unwrap();
        self.flows.learn_ssrc(id, [ssrc; 4]);
        check(&self.flows);
    }

    fn candidates(&self, ssrc: u8, address: u8) -> Vec<PathKey> {
        let found = self.flows.candidates([ssrc; 4], &client_at(0, address)[4..].try_into().unwrap());
        found.as_slice().iter().map(|&id| self.flows.get(id).key).collect()
    }
}

// 2. Life, quiet, moving.

#[test]
fn a_flow_lives_by_verified_requests() {
    let mut rig = Rig::new(100);
    rig.connect(CLIENT, A, 0);
    for _ in 0..10 {
        rig.advance(60.0);
        rig.verified(CLIENT, A, 0);
    }
    assert_eq!(rig.route_of(CLIENT), Some(A));
}

#[test]
fn a_flow_lives_by_alive_answers() {
    let mut rig = Rig::new(100);
    rig.connect(CLIENT, A, 0);
    for _ in 0..10 {
        rig.advance(60.0);
        rig.alive(CLIENT, A);
    }
    assert_eq!(rig.route_of(CLIENT), Some(A));
}

#[test]
fn a_flow_does_not_live_by_requests_or_answers_of_another_route() {
    let mut rig = Rig::new(100);
    rig.connect(CLIENT, A, 0);
    rig.advance(QUIET_AFTER - 1.0);
    rig.verified(CLIENT, B, 1);
    rig.alive(CLIENT, B);
    assert_eq!((rig.route_of(CLIENT), rig.happened(FlowEvent::Kept)), (Some(A), 2));
    rig.advance(1.0);
    rig.verified(CLIENT, B, 1);
    assert_eq!(rig.route_of(CLIENT), Some(B));
}

#[test]
fn idle_expiry_is_90_seconds() {
    let mut rig = Rig::new(100);
    rig.connect(CLIENT, A, 0);
    rig.advance(IDLE_EXPIRY - 1.0);
    assert!(rig.flow(CLIENT).is_some());
    rig.advance(2.0);
    assert!(rig.flow(CLIENT).is_none());
    assert_eq!(rig.happened(FlowEvent::Expired), 1);
}

#[test]
fn an_address_moves_only_when_its_flow_has_been_quiet_for_7_seconds() {
    let mut rig = Rig::new(100);
    rig.connect(CLIENT, A, 0);
    rig.advance(QUIET_AFTER - 0.1);
    rig.verified(CLIENT, B, 1);
    assert_eq!(rig.route_of(CLIENT), Some(A));
    rig.advance(0.2);
    rig.verified(CLIENT, B, 1);
    assert_eq!(rig.route_of(CLIENT), Some(B));
    assert_eq!(rig.happened(FlowEvent::Moved), 1);
}

#[test]
fn a_moved_address_is_a_new_flow_on_probation_that_is_not_found_by_what_the_old_owner_sent() {
    let mut rig = Rig::new(100);
    rig.connect(CLIENT, A, 0);
    rig.learn(CLIENT, 77);
    rig.advance(QUIET_AFTER);
    rig.verified(CLIENT, B, 1);
    let flow = rig.flow(CLIENT).unwrap();
    assert!(flow.on_probation());
    assert_eq!(flow.ssrc(), None);
    assert!(rig.candidates(77, 1).is_empty());
}

#[test]
fn a_flow_whose_route_is_gone_is_quiet_at_once() {
    let mut rig = Rig::new(100);
    rig.connect(CLIENT, A, 0);
    rig.live = vec![B];
    rig.verified(CLIENT, B, 1);
    assert_eq!(rig.route_of(CLIENT), Some(B));
}

#[test]
fn a_flow_whose_session_has_ended_is_quiet_at_once() {
    let mut rig = Rig::new(100);
    rig.connect(CLIENT, A, 0);
    rig.unknown(CLIENT, A);
    assert!(rig.flow(CLIENT).unwrap().ended());
    rig.verified(CLIENT, B, 1);
    assert_eq!(rig.route_of(CLIENT), Some(B));
}

#[test]
fn an_ended_flow_that_is_checked_begins_anew_on_probation() {
    let mut rig = Rig::new(100);
    rig.connect(CLIENT, A, 0);
    rig.unknown(CLIENT, A);
    rig.verified(CLIENT, A, 2);
    let flow = rig.flow(CLIENT).unwrap();
    assert!(flow.on_probation() && flow.alive_at() == f64::NEG_INFINITY);
    assert_eq!(rig.happened(FlowEvent::Renewed), 1);
}

#[test]
fn an_alive_answer_revives_a_flow_that_was_called_unknown_too_early() {
    let mut rig = Rig::new(100);
    rig.verified(CLIENT, A, 0);
    rig.unknown(CLIENT, A);
    rig.alive(CLIENT, A);
    assert_eq!(rig.flow(CLIENT).unwrap().state(), State::Confirmed);
    assert_eq!((rig.happened(FlowEvent::Ended), rig.happened(FlowEvent::Confirmed)), (1, 1));
}

#[test]
fn unknown_flow_of_another_route_or_without_a_flow_or_again_changes_nothing() {
    let mut rig = Rig::new(100);
    rig.unknown(CLIENT, A);
    assert!(rig.flows.is_empty());
    rig.connect(CLIENT, A, 0);
    rig.unknown(CLIENT, B);
    assert!(!rig.flow(CLIENT).unwrap().ended());
    rig.unknown(CLIENT, A);
    rig.advance(ENDED_KEPT - 1.0);
    rig.unknown(CLIENT, A);
    rig.advance(1.0);
    assert!(rig.flows.is_empty());
}

#[test]
fn alive_from_another_route_takes_a_quiet_address() {
    let mut rig = Rig::new(100);
    rig.connect(CLIENT, A, 0);
    rig.advance(QUIET_AFTER);
    rig.alive(CLIENT, B);
    assert_eq!(rig.route_of(CLIENT), Some(B));
    assert_eq!((rig.happened(FlowEvent::Moved), rig.happened(FlowEvent::Roamed)), (1, 1));
}

#[test]
fn the_local_address_stays_while_a_flow_is_not_quiet() {
    let mut rig = Rig::new(100);
    rig.verified_at(CLIENT, A, 0, 1);
    rig.alive(CLIENT, A);
    rig.verified_at(CLIENT, A, 0, 2);
    assert_eq!(rig.flow(CLIENT).unwrap().local, 1);
    rig.advance(QUIET_AFTER);
    rig.verified_at(CLIENT, A, 0, 2);
    assert_eq!(rig.flow(CLIENT).unwrap().local, 2);
}

// 3. Probation.

#[test]
fn a_new_flow_is_on_probation_until_its_transceiver_has_answered() {
    let mut rig = Rig::new(100);
    rig.verified(CLIENT, A, 0);
    assert_eq!(rig.flows.on_probation(), 1);
    rig.alive(CLIENT, B);
    assert_eq!((rig.flows.on_probation(), rig.route_of(CLIENT)), (1, Some(A)), "another one's answer is none");
    rig.alive(CLIENT, A);
    assert_eq!(rig.flows.on_probation(), 0);
    assert_eq!(rig.happened(FlowEvent::Confirmed), 1);
}

#[test]
fn probation_ends_after_5_seconds_without_an_answer() {
    let mut rig = Rig::new(100);
    rig.verified(CLIENT, A, 0);
    rig.advance(PROBATION - 1.0);
    rig.verified(CLIENT, A, 0);
    assert!(rig.flow(CLIENT).is_some());
    rig.advance(1.0);
    assert!(rig.flow(CLIENT).is_none(), "more checks do not prolong it");
    assert_eq!(rig.happened(FlowEvent::ProbationOver), 1);
    rig.verified(CLIENT, A, 0);
    assert!(rig.flow(CLIENT).is_some(), "but make it anew");
}

#[test]
fn at_most_16_flows_of_one_ufrag_are_on_probation_and_the_oldest_goes() {
    let mut rig = Rig::new(10_000);
    rig.connect(CLIENT, A, 0);
    for port in 1..1_000 {
        rig.verified(client(port), A, 0);
    }
    check(&rig.flows);
    assert_eq!(rig.flows.len(), 1 + PROBATION_PER_UFRAG, "confirmed ones do not count among them");
    assert!((1_000 - 16..1_000).all(|port| rig.flow(client(port)).is_some()));
    assert_eq!(rig.happened(FlowEvent::EvictedProbation), 999 - 16);
}

#[test]
fn probation_flows_are_evicted_first_when_the_table_is_full() {
    let mut rig = Rig::new(50);
    for port in 1..=40 {
        rig.connect(client(port), A, u32::from(port));
    }
    rig.advance(QUIET_AFTER + 1.0);
    for number in 0..100 {
        rig.verified(client(1_000 + number), B, 1_000 + u32::from(number));
    }
    assert_eq!(rig.flows.len(), 50);
    assert!((1..=40).all(|port| rig.flow(client(port)).is_some()), "ten of fifty are on probation");
}

#[test]
fn probation_has_a_tenth_of_the_table_where_others_are_quiet() {
    let mut rig = Rig::new(50);
    for port in 1..=50 {
        rig.connect(client(port), A, u32::from(port));
        rig.advance(0.02);
    }
    rig.advance(QUIET_AFTER);
    for number in 0..100 {
        rig.verified(client(1_000 + number), B, 1_000 + u32::from(number));
    }
    assert_eq!((rig.flows.len(), rig.flows.on_probation()), (50, 6));
    assert_eq!(rig.happened(FlowEvent::EvictedQuiet), 6);
    assert!((1..=6).all(|port| rig.flow(client(port)).is_none()), "those that were silent longest went");
}

#[test]
fn a_live_flow_is_never_evicted() {
    let mut rig = Rig::new(20);
    for port in 1..=20 {
        rig.connect(client(port), A, u32::from(port));
    }
    let last_life = rig.flows.last_life();
    rig.advance(1.0);
    rig.verified(client(999), B, 999);
    rig.alive(client(998), B);
    assert_eq!((rig.route_of(client(999)), rig.route_of(client(998)), rig.flows.len()), (None, None, 20));
    assert_eq!((rig.happened(FlowEvent::Refused), rig.happened(FlowEvent::Roamed)), (2, 0));
    assert_eq!(rig.flows.last_life().to_bits(), last_life.to_bits(), "what is refused is no life");
}

#[test]
fn a_roaming_client_too_finds_room_by_eviction() {
    let mut rig = Rig::new(20);
    for port in 1..=20 {
        rig.verified(client(port), A, u32::from(port));
    }
    rig.alive(client(999), A);
    assert_eq!((rig.route_of(client(999)), rig.flows.len()), (Some(A), 20));
}

#[test]
fn a_map_without_room_refuses_everything() {
    let mut rig = Rig::new(0);
    rig.verified(CLIENT, A, 0);
    rig.alive(CLIENT, A);
    assert!(rig.flows.is_empty());
    assert_eq!(rig.happened(FlowEvent::Refused), 2);
}

#[test]
fn a_quiet_flow_is_found_behind_any_number_of_lively_ones() {
    let mut rig = Rig::new(500);
    for port in 1..=500 {
        rig.connect(client(port), A, u32::from(port));
    }
    for _ in 0..8 {
        rig.advance(1.0);
        for port in 1..500 {
            rig.alive(client(port), A);
        }
    }
    rig.connect(client(9_999), B, 9_999);
    assert!(rig.flow(client(500)).is_none());
    assert_eq!(rig.happened(FlowEvent::Refused), 0);
}

#[test]
fn a_confirmed_flow_moves_to_the_end_of_its_line_at_most_once_a_second() {
    let mut rig = Rig::new(2);
    rig.connect(client(1), A, 1);
    rig.connect(client(2), A, 2);
    rig.now += 0.9;
    rig.alive(client(1), A);
    rig.now += QUIET_AFTER;
    rig.connect(client(3), A, 3);
    assert!(rig.flow(client(1)).is_none(), "found a second late at most");
    let mut rig = Rig::new(2);
    rig.connect(client(1), A, 1);
    rig.connect(client(2), A, 2);
    rig.now += 1.0;
    rig.verified(client(1), A, 1);
    rig.now += QUIET_AFTER;
    rig.connect(client(3), A, 3);
    assert!(rig.flow(client(2)).is_none());
}

// 3. What one session can fill.

#[test]
fn at_most_16_confirmed_flows_of_one_ufrag_and_the_one_silent_longest_goes() {
    let mut rig = Rig::new(100);
    for port in 1..=16 {
        rig.connect(client(port), A, 0);
    }
    rig.advance(1.0);
    for port in (1..=16).filter(|&port| port != 6 && port != 9) {
        rig.alive(client(port), A);
    }
    rig.connect(client(999), A, 0);
    assert_eq!(rig.flows.len(), CONFIRMED_PER_UFRAG);
    assert!(rig.flow(client(6)).is_none(), "of equals the first");
    assert!(rig.flow(client(9)).is_some());
    assert_eq!(rig.happened(FlowEvent::EvictedSurplus), 1);
}

#[test]
fn fresh_checks_of_one_session_from_ever_new_ports_fill_nothing_and_touch_no_other_call() {
    let mut rig = Rig::new(50);
    rig.connect(CLIENT, A, 0);
    for number in 0..1_500 {
        rig.verified(client(10_000 + number), A, 1);
        rig.alive(client(10_000 + number), A);
        rig.alive(CLIENT, A);
        if number % 200 == 0 {
            rig.advance(0.2);
        }
    }
    assert_eq!((rig.flows.len(), rig.happened(FlowEvent::Refused)), (1 + CONFIRMED_PER_UFRAG, 0));
    rig.connect(client(999), B, 2);
    assert_eq!(rig.route_of(CLIENT), Some(A));
}

#[test]
fn a_recorded_check_does_not_push_out_the_confirmed_flows_of_its_ufrag() {
    let mut rig = Rig::new(1_000);
    for port in 1..=16 {
        rig.connect(client(port), A, 0);
    }
    for number in 0..500 {
        rig.verified(client(1_000 + number), A, 0);
    }
    assert!((1..=16).all(|port| rig.flow(client(port)).is_some()));
}

#[test]
fn flows_that_their_transceiver_gave_up_make_room_first_and_the_one_that_ended_first_before_others() {
    let mut rig = Rig::new(20);
    for port in 1..=20 {
        rig.connect(client(port), A, u32::from(port));
        if port == 10 {
            rig.advance(QUIET_AFTER + 1.0);
        }
    }
    rig.unknown(client(13), A);
    rig.unknown(client(12), A);
    let gone = [13, 12, 1];
    for (number, port) in gone.into_iter().enumerate() {
        rig.connect(client(901 + number as u16), B, 901 + number as u32);
        assert!(rig.flow(client(port)).is_none());
    }
    assert_eq!((rig.happened(FlowEvent::EvictedEnded), rig.happened(FlowEvent::EvictedQuiet)), (2, 1));
}

#[test]
fn an_ended_flow_is_kept_for_30_seconds_so_that_its_drops_say_why() {
    let mut rig = Rig::new(100);
    rig.connect(CLIENT, A, 0);
    rig.unknown(CLIENT, A);
    rig.advance(ENDED_KEPT - 1.0);
    assert_eq!((rig.flows.ended(), rig.flow(CLIENT).is_some()), (1, true));
    rig.advance(2.0);
    assert_eq!((rig.flows.ended(), rig.flow(CLIENT).is_some()), (0, false));
}

// 4. SSRCs.

#[test]
fn candidates_are_at_most_4_those_of_the_same_client_first_within_them_the_latest() {
    let mut rig = Rig::new(100);
    for port in 1..=10 {
        let key = client_at(port, if port == 2 || port == 4 { 7 } else { 1 });
        rig.connect(key, A, u32::from(port));
        rig.learn(key, 9);
    }
    assert_eq!(rig.candidates(9, 7), [client_at(4, 7), client_at(2, 7), client(10), client(9)]);
    assert_eq!(rig.candidates(9, 8), [client(10), client(9), client(8), client(7)]);
    assert!(rig.candidates(8, 1).is_empty());
}

#[test]
fn an_ssrc_that_is_learnt_again_is_the_latest_and_another_one_takes_its_place() {
    let mut rig = Rig::new(100);
    for port in 1..=3 {
        rig.connect(client(port), A, u32::from(port));
        rig.learn(client(port), 9);
    }
    rig.learn(client(1), 9);
    assert_eq!(rig.candidates(9, 1), [client(1), client(3), client(2)]);
    rig.learn(client(3), 0);
    assert_eq!(rig.candidates(9, 1), [client(1), client(2)]);
    assert_eq!(rig.candidates(0, 1), [client(3)], "0 is an SSRC like others");
    assert_eq!(rig.flow(client(3)).unwrap().ssrc(), Some([0; 4]));
}

// Bounds of the work, and what is told.

#[test]
fn expiry_looks_at_a_bounded_number_of_flows_at_a_time() {
    let mut rig = Rig::new(5_000);
    for port in 1..=3_000 {
        rig.connect(client(port), A, u32::from(port));
    }
    rig.now += IDLE_EXPIRY + 2.0;
    let sizes = [(); 4].map(|()| {
        rig.flows.expire(rig.now, &mut rig.counters);
        rig.flows.len()
    });
    assert_eq!(sizes, [2_000, 1_000, 0, 0]);
}

#[test]
fn nothing_is_left_behind_by_flows_that_are_gone_and_their_memory_is_used_again() {
    let mut rig = Rig::new(100);
    for round in 0..3 {
        for number in 0..300 {
            let key = client(1 + number);
            rig.verified(key, A, u32::from(number));
            if number % 3 != 0 {
                rig.alive(key, A);
                rig.learn(key, number as u8);
            }
            if number % 4 == 0 {
                rig.unknown(key, A);
            }
            rig.advance(0.5);
        }
        assert!(!rig.flows.is_empty());
        rig.advance(2.0 * IDLE_EXPIRY);
        let flows = &rig.flows;
        assert_eq!((flows.len(), flows.on_probation(), flows.ended()), (0, 0, 0), "round {round}");
        assert_eq!(flows.line(State::Confirmed).len(), 0);
    }
    let ids = (1..=100).map(|port| {
        rig.verified(client(port), A, u32::from(port));
        rig.flows.find(&client(port)).unwrap()
    });
    assert!(ids.max() <= Some(100));
}

#[test]
fn life_is_noted_for_the_shutdown() {
    let mut rig = Rig::new(100);
    assert_eq!(rig.flows.last_life().to_bits(), f64::NEG_INFINITY.to_bits());
    rig.verified(CLIENT, A, 0);
    assert_eq!(rig.flows.last_life().to_bits(), rig.now.to_bits());
    rig.advance(3.0);
    assert_eq!(rig.flows.last_life().to_bits(), (rig.now - 3.0).to_bits());
    rig.alive(CLIENT, A);
    assert_eq!(rig.flows.last_life().to_bits(), rig.now.to_bits());
    let flow = rig.flow(CLIENT).unwrap();
    assert_eq!((flow.verified_at(), flow.alive_at(), flow.heard_at()), (rig.now - 3.0, rig.now, rig.now));
}

#[test]
fn the_first_flows_are_listed_in_the_order_in_which_they_were_made() {
    let mut rig = Rig::new(5);
    for port in 1..=8 {
        rig.verified(client(port), B, u32::from(port));
    }
    rig.alive(client(4), B);
    let first: Vec<PathKey> = rig.flows.first(3).map(|flow| flow.key).collect();
    assert_eq!(first, [client(4), client(5), client(6)]);
}

#[test]
fn the_rate_limit_of_a_flow_is_the_callers_to_note() {
    let mut rig = Rig::new(5);
    rig.connect(CLIENT, A, 0);
    let id = rig.flows.find(&CLIENT).unwrap();
    assert_eq!(rig.flows.get(id).limit_full_at.to_bits(), 0.0_f64.to_bits());
    rig.flows.get_mut(id).limit_full_at = 1_000.5;
    rig.verified(CLIENT, A, 0);
    assert_eq!(rig.flow(CLIENT).unwrap().limit_full_at.to_bits(), 1_000.5_f64.to_bits());
}

// 5. Flows that another worker knows.

impl Rig {
    /// Lets this worker take over what `other` knows of a client.
    fn adopt(&mut self, other: &Rig, key: PathKey) {
        let live = |route: &RouteKey| self.live.contains(route);
        self.flows.adopt(other.flow(key).unwrap(), self.now, &live, &mut self.counters);
        check(&self.flows);
    }
}

#[test]
fn an_adopted_flow_is_as_alive_as_it_was() {
    let (mut here, mut there) = (Rig::new(100), Rig::new(100));
    there.verified_at(CLIENT, A, 0, 7);
    there.alive(CLIENT, A);
    there.learn(CLIENT, 9);
    there.advance(3.0);
    here.now = there.now;
    here.adopt(&there, CLIENT);
    let (copy, flow) = (here.flow(CLIENT).unwrap(), there.flow(CLIENT).unwrap());
    assert_eq!((copy.route, copy.state(), copy.local), (A, State::Confirmed, 7));
    assert_eq!((copy.verified_at(), copy.alive_at()), (flow.verified_at(), flow.alive_at()));
    assert_eq!(here.candidates(9, 1), [CLIENT]);
    assert!(here.flows.last_life() <= flow.heard_at(), "to be copied is no sign of life");
    here.advance(IDLE_EXPIRY);
    assert_eq!(here.route_of(CLIENT), None);
}

#[test]
fn an_adopted_flow_stays_on_probation_for_the_rest_of_it() {
    let (mut here, mut there) = (Rig::new(100), Rig::new(100));
    there.verified(CLIENT, A, 0);
    there.advance(PROBATION - 1.0);
    here.now = there.now;
    here.adopt(&there, CLIENT);
    assert!(here.flow(CLIENT).unwrap().on_probation());
    here.advance(1.0);
    assert_eq!((here.route_of(CLIENT), here.happened(FlowEvent::ProbationOver)), (None, 1));
}

#[test]
fn what_this_worker_knows_itself_and_what_has_ended_is_not_adopted() {
    let (mut here, mut there) = (Rig::new(100), Rig::new(100));
    there.connect(CLIENT, A, 0);
    here.connect(CLIENT, B, 1);
    here.adopt(&there, CLIENT);
    assert_eq!(here.route_of(CLIENT), Some(B));
    there.connect(client(2), A, 0);
    there.unknown(client(2), A);
    here.adopt(&there, client(2));
    assert_eq!(here.route_of(client(2)), None);
}

#[test]
fn adopted_flows_keep_the_bounds_of_the_table_and_of_their_ufrag() {
    let (mut here, mut there) = (Rig::new(100), Rig::new(100));
    for port in 0..40 {
        there.now += 0.01;
        there.connect(client(port), A, u32::from(port) % 2);
    }
    here.now = there.now;
    for port in (0..40).filter(|&port| there.route_of(client(port)).is_some()) {
        here.adopt(&there, client(port));
    }
    here.connect(client(100), A, 0);
    assert_eq!((here.flows.len(), here.happened(FlowEvent::EvictedSurplus)), (2 * CONFIRMED_PER_UFRAG, 1));
    let mut full = Rig::new(4);
    full.now = there.now;
    for port in 30..40 {
        full.adopt(&there, client(port));
    }
    assert_eq!((full.flows.len(), full.happened(FlowEvent::Refused)), (4, 6));
}
