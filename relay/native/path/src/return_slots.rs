//! Return slots: how a transceiver's answer finds the ingress relay that asked (docs/wire.md section 3).
//!
//! Rules:
//! * A source gets a slot with its first datagram whose MAC held, and by nothing else: it is the one address that a
//!   relay learns from a packet. One that two trunks name has two: who holds the key of one takes no answers of the
//!   other.
//! * A slot is kept for 120 s after its last use; then its number may stand for another source.
//! * Of one trunk 256 sources may get one at once, and 50 more a second: one recorded datagram, sent again from many ports
//!   within its minute, leaves room for others.
//! * At most 4,096 sources have one. Beyond, the source that was silent longest makes room, if that was for 7 s: a client
//!   checks more often. Else, of the trunk that has most, the one that was silent longest, if the newcomer's has at least
//!   two fewer. Else the new one is refused. So no trunk takes the room of others.
//! * Numbers are handed out in turn, so that one is not soon used again. 0 means that there is none.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::num::NonZeroUsize;

use ahash::RandomState;
use lru::LruCache;

use crate::endpoint::Endpoint;
use crate::limits::{Buckets, Rate};
use crate::peers::Cluster;

const KEPT: f64 = 120.0;
const MAX_SLOTS: NonZeroUsize = NonZeroUsize::new(4_096).expect("not zero");
const QUIET: f64 = 7.0;
/// Most trunks whose rates are told apart: those to 64 peers, and those of 64 clusters whose clients enter there.
pub const MAX_TRUNKS: usize = 128;
const ORDER_EVERY: f64 = 1.0;

struct Slot {
    number: u16,
    used_at: f64,
}

/// A source, and the trunk whose key made its MAC.
type Source = (Endpoint, Cluster);

/// The slots of one worker.
pub struct ReturnSlots {
    /// The one silent longest is the least recently used, within a second.
    by_source: LruCache<Source, Slot, RandomState>,
    by_number: HashMap<u16, Source, RandomState>,
    of_trunk: HashMap<Cluster, usize, RandomState>,
    last: u16,
    new: Buckets<Cluster>,
}

impl Default for ReturnSlots {
    fn default() -> Self {
        Self {
            by_source: LruCache::with_hasher(MAX_SLOTS, RandomState::new()),
            by_number: HashMap::default(),
            of_trunk: HashMap::default(),
            last: 0,
            new: Buckets::new(Rate::new(50.0, 256.0), MAX_TRUNKS),
        }
    }
}

impl ReturnSlots {
    /// The slot of an authenticated source, a new one where it has none; None when there is no room.
    ///
    /// `cluster` is the trunk whose key made the MAC: the answer's will do so too.
    pub fn take(&mut self, source: Endpoint, cluster: Cluster, now: f64) -> Option<u16> {
        let source = (source, cluster);
        if let Some(slot) = self.by_source.peek_mut(&source) {
            let number = slot.number;
            if now - slot.used_at >= ORDER_EVERY {
                slot.used_at = now;
                self.by_source.promote(&source);
            }
            return Some(number);
        }
        if !self.new.allow(cluster, now) {
            return None;
        }
        if self.by_source.len() >= MAX_SLOTS.get() {
            let gone = self.to_make_room(cluster, now)?;
            self.forget(&gone);
        }
        let mut number = self.last;
        while number == self.last || self.by_number.contains_key(&number) {
            number = if number == u16::MAX { 1 } else { number + 1 };
        }
        self.last = number;
        self.by_number.insert(number, source);
        self.by_source.put(source, Slot { number, used_at: now });
        *self.of_trunk.entry(cluster).or_default() += 1;
        Some(number)
    }

    fn to_make_room(&self, cluster: Cluster, now: f64) -> Option<Source> {
        let (first, slot) = self.by_source.peek_lru()?;
        if now - slot.used_at >= QUIET {
            return Some(*first);
        }
        let (most, count) = self.of_trunk.iter().min_by_key(|&(trunk, count)| (Reverse(*count), *trunk))?;
        if *count < self.of_trunk.get(&cluster).copied().unwrap_or(0) + 2 {
            return None;
        }
        self.by_source.iter().rev().map(|(source, _)| *source).find(|(_, trunk)| trunk == most)
    }

    /// Whose slot this is, and by which trunk he is reached.
    pub fn find(&self, number: u16) -> Option<(Endpoint, Cluster)> {
        self.by_number.get(&number).copied()
    }

    /// Forgets the sources that are due.
    pub fn expire(&mut self, now: f64) {
        while let Some((first, _)) = self.by_source.peek_lru().filter(|(_, slot)| now - slot.used_at >= KEPT) {
            let gone = *first;
            self.forget(&gone);
        }
    }

    /// How many sources have a slot.
    pub fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Whether none has.
    pub fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }

    fn forget(&mut self, source: &Source) {
        if let Some(slot) = self.by_source.pop(source) {
            self.by_number.remove(&slot.number);
            let count = self.of_trunk.entry(source.1).or_default();
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.of_trunk.remove(&source.1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::mapped;

    const TRUNK: Cluster = [0, 9];

    fn source(number: u16) -> Endpoint {
        Endpoint { address: mapped([203, 0, 113, 5]), port: number }
    }

    #[test]
    fn a_source_keeps_its_slot_and_others_get_others() {
        let mut slots = ReturnSlots::default();
        assert_eq!(slots.take(source(1), TRUNK, 0.0), Some(1));
        assert_eq!(slots.take(source(2), TRUNK, 0.0), Some(2));
        assert_eq!(slots.take(source(1), TRUNK, 50.0), Some(1));
        assert_eq!(slots.find(1), Some((source(1), TRUNK)));
        assert_eq!(slots.find(0), None);
    }

    #[test]
    fn a_source_that_another_trunk_names_too_keeps_the_slot_of_its_own() {
        let mut slots = ReturnSlots::default();
        assert_eq!(slots.take(source(1), TRUNK, 0.0), Some(1));
        assert_eq!(slots.take(source(1), [0, 8], 0.0), Some(2));
        assert_eq!(slots.find(1), Some((source(1), TRUNK)));
        assert_eq!(slots.find(2), Some((source(1), [0, 8])));
    }

    #[test]
    fn a_trunk_that_takes_all_slots_makes_room_for_others_and_not_for_itself() {
        let mut slots = ReturnSlots::default();
        let mut now = 0.0;
        for number in 0..8_000 {
            now += 0.02;
            slots.take(source(number), TRUNK, now);
            if slots.len() == 4_096 {
                break;
            }
            for used in (0..number).filter(|_| number % 250 == 0) {
                slots.take(source(used), TRUNK, now);
            }
        }
        assert_eq!(slots.len(), 4_096);
        assert_eq!(slots.take(source(9_000), TRUNK, now), None, "it is full of live sources");
        for number in 0..200 {
            assert!(slots.take(source(number), [0, 8], now).is_some());
        }
        assert_eq!(slots.len(), 4_096);
    }

    #[test]
    fn a_slot_is_forgotten_120_s_after_its_last_use_and_its_number_not_soon_given_again() {
        let mut slots = ReturnSlots::default();
        slots.take(source(1), TRUNK, 0.0);
        slots.take(source(1), TRUNK, 50.0);
        slots.expire(169.9);
        assert_eq!(slots.len(), 1);
        slots.expire(170.0);
        assert!(slots.is_empty());
        assert_eq!(slots.take(source(1), TRUNK, 171.0), Some(2));
    }

    #[test]
    fn when_all_are_taken_a_quiet_source_makes_room_and_a_live_one_does_not() {
        let mut slots = ReturnSlots::default();
        for number in 0..4_096 {
            let cluster = [0, (number % 64) as u8];
            assert!(slots.take(source(number), cluster, f64::from(number) / 1_000.0).is_some());
        }
        assert_eq!(slots.take(source(5_000), TRUNK, 6.9), None);
        assert_eq!(slots.take(source(5_000), TRUNK, 7.0), Some(4_097));
        assert_eq!(slots.find(1), None, "the one that was silent longest went");
        assert_eq!(slots.len(), 4_096);
    }
}
