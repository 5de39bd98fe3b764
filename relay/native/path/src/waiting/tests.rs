use super::*;
use crate::packets::Slot;

const NOW: f64 = 1_000.0;
const TOO_LONG: f64 = WAIT_AT_MOST + 0.001;

struct World {
    waiting: Waiting,
    counters: Counters,
    slots: Slots,
    now: f64,
}

impl World {
    fn new(questions_per_second: u32) -> Self {
        let waiting = Waiting::new(questions_per_second);
        Self { waiting, counters: Counters::default(), slots: Slots::new(64), now: NOW }
    }

    fn advance(&mut self, seconds: f64) {
        self.now += seconds;
        self.waiting.expire(self.now, &mut self.counters);
    }

    fn ask(&mut self, path: &PathKey, ssrc: Ssrc) -> Option<QuestionId> {
        self.ask_of(16, path, ssrc)
    }

    fn ask_of(&mut self, transceivers: u32, path: &PathKey, ssrc: Ssrc) -> Option<QuestionId> {
        self.waiting.ask(path, ssrc, 3, transceivers, self.now)
    }

    fn hold(&mut self, id: QuestionId, ssrc: Ssrc, datagram: &[u8]) -> Result<(), Drop> {
        self.waiting.hold(id, ssrc, datagram, self.now, &mut self.counters)
    }

    fn release(&mut self, id: QuestionId, ssrc: Ssrc) -> Vec<Vec<u8>> {
        self.slots.free();
        let released = self.waiting.release(id, ssrc, &mut self.slots, &mut self.counters);
        let payload = |&(slot, length): &(u32, usize)| Slot::payload(self.slots.get(slot), length).to_vec();
        released.as_slice().iter().map(payload).collect()
    }

    fn dropped(&self, reason: Drop) -> u64 {
        self.counters.drops[reason as usize]
    }
}

fn path(ip: u32, port: u16) -> PathKey {
    let mut path = [0; 20];
    path[1] = 1;
    path[2..4].copy_from_slice(&port.to_be_bytes());
    path[14..16].fill(0xFF);
    path[16..].copy_from_slice(&ip.to_be_bytes());
    path
}

#[test]
fn a_question_is_remembered_for_a_second_and_then_can_be_asked_again() {
    let mut world = World::new(1_000);
    let source = path(1, 1);
    let id = world.ask(&source, [7; 4]).unwrap();
    assert_eq!(world.waiting.find(&source), Some(id));
    let question = world.waiting.get(id);
    assert_eq!((question.path, question.ssrc, question.local, question.is_answered), (source, [7; 4], 3, false));
    world.advance(OPEN_FOR - 0.01);
    assert_eq!(world.waiting.find(&source), Some(id));
    world.advance(0.02);
    assert_eq!((world.waiting.find(&source), world.waiting.questions()), (None, 0));
    assert!(world.ask(&source, NO_SSRC).is_some());
}

#[test]
fn what_waits_is_let_go_by_ssrc_or_all_in_the_order_in_which_it_came() {
    let mut world = World::new(1_000);
    let id = world.ask(&path(1, 1), [7; 4]).unwrap();
    for (ssrc, datagram) in [([7; 4], &b"first"[..]), (NO_SSRC, b"dtls"), ([7; 4], b"second"), ([8; 4], b"other")] {
        assert_eq!(world.hold(id, ssrc, datagram), Ok(()));
    }
    assert_eq!(world.hold(id, [7; 4], b"fifth"), Err(Drop::LimitWaiting));
    assert_eq!((world.waiting.len(), world.counters.waiting_bytes), (4, 20));
    assert_eq!(world.release(id, [7; 4]), [b"first".to_vec(), b"second".to_vec()]);
    assert_eq!((world.waiting.len(), world.counters.waiting_bytes), (2, 9));
    assert_eq!(world.release(id, NO_SSRC), [b"dtls".to_vec(), b"other".to_vec()]);
    assert!(world.waiting.is_empty());
    assert_eq!(world.counters.waiting_bytes, 0);
}

#[test]
fn what_waited_too_long_is_dropped_and_its_place_is_used_again() {
    let mut world = World::new(1_000);
    for round in 0..5_000_u32 {
        let id = world.ask(&path(round, 1), [7; 4]).unwrap();
        assert_eq!(world.hold(id, [7; 4], &round.to_be_bytes()), Ok(()));
        world.advance(TOO_LONG);
        assert_eq!(world.hold(id, [7; 4], b"late"), Err(Drop::UnknownAddress));
        assert_eq!(world.release(id, NO_SSRC), Vec::<Vec<u8>>::new());
    }
    assert_eq!(world.dropped(Drop::NotFound), 5_000);
    assert_eq!(world.waiting.store.untouched, 1);
}

#[test]
fn nothing_grows_after_the_start_whoever_asks() {
    let mut world = World::new(100);
    let memory = |waiting: &Waiting| {
        let store = waiting.store.free.capacity();
        (waiting.ring.capacity(), waiting.places.allocation_size(), waiting.by_address.allocation_size(), store)
    };
    let before = memory(&world.waiting);
    let mut asked = 0;
    for ip in 0..100_000_u32 {
        if let Some(id) = world.ask(&path(ip, 1), [7; 4]) {
            asked += 1;
            let _ = world.hold(id, [7; 4], &[0; 2_000]);
        }
        world.advance(0.0011);
        assert!(world.waiting.questions() <= 200);
    }
    assert_eq!(memory(&world.waiting), before);
    assert!(asked > 10_000);
    world.advance(OPEN_FOR);
    assert_eq!((world.waiting.questions(), world.waiting.places.len(), world.waiting.by_address.len()), (0, 0, 0));
    assert_eq!((world.waiting.len(), world.counters.waiting_bytes), (0, 0));
}

#[test]
fn no_more_than_a_thousand_datagrams_wait() {
    let mut world = World::new(10_000);
    for ip in 0..2_000 {
        let id = world.ask(&path(ip, 1), [7; 4]).unwrap();
        let expected = if ip < WAITING as u32 { Ok(()) } else { Err(Drop::LimitWaiting) };
        assert_eq!(world.hold(id, [7; 4], b"speech"), expected);
    }
}

#[test]
fn one_ip_with_many_ports_leaves_half_of_the_questions_to_others() {
    let mut world = World::new(100);
    let asked = (0..1_000).filter(|&port| world.ask(&path(1, port), NO_SSRC).is_some()).count();
    assert_eq!(asked, 50);
    let others = (2..1_000).filter(|&ip| world.ask(&path(ip, 1), NO_SSRC).is_some()).count();
    assert_eq!(others, 50);
    world.advance(OPEN_FOR);
    let again = (0..1_000).filter(|&port| world.ask(&path(1, port), NO_SSRC).is_some()).count();
    assert_eq!(again, 50);
}

#[test]
fn as_many_questions_come_at_once_whatever_they_cost_but_fewer_after_them_where_more_transceivers_are_asked() {
    for (transceivers, later) in [(0, 12), (1, 12), (16, 12), (32, 6), (64, 3)] {
        let mut world = World::new(100);
        let at_once = (0..1_000).filter(|&ip| world.ask_of(transceivers, &path(ip, 1), NO_SSRC).is_some()).count();
        world.advance(0.121);
        let more = (1_000..2_000).filter(|&ip| world.ask_of(transceivers, &path(ip, 1), NO_SSRC).is_some()).count();
        assert_eq!((at_once, more), (100, later), "of {transceivers} transceivers");
    }
}

#[test]
fn no_more_than_four_transceivers_are_believed_to_know_an_ssrc() {
    let mut world = World::new(100);
    let id = world.ask(&path(1, 1), [7; 4]).unwrap();
    let question = world.waiting.get_mut(id);
    assert!(question.add_found([0; 7]));
    assert!(!question.add_found([0; 7]));
    let added = (1..10).filter(|&pod| question.add_found([pod; 7])).count();
    assert_eq!((added, question.found().len()), (MAX_FOUND - 1, MAX_FOUND));
}
