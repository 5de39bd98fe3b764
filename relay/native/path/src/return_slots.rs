//! Return slots: how a transceiver's answer finds the ingress relay that asked (docs/wire.md section 3).
//!
//! Rules:
//! * A source gets a slot with its first datagram whose MAC held, and by nothing else: it is the one address that a
//!   relay learns from a packet.
//! * A slot is kept for 120 s after its last use; then its number may stand for another source.
//! * Of one trunk 256 sources may get one at once, and 50 more a second: one recorded datagram, sent again from many ports
//!   within its minute, leaves room for others.
//! * At most 4,096 sources have one. Beyond, the source that was silent longest makes room, if that was for 7 s: a client
//!   checks more often. Else the new one is refused.
//! * Numbers are handed out in turn, so that one is not soon used again. 0 means that there is none.

use std::num::NonZeroUsize;

use ahash::RandomState;
use lru::LruCache;

use crate::endpoint::Endpoint;
use crate::limits::{Buckets, Rate};
use crate::peers::Cluster;

const KEPT: f64 = 120.0;
const MAX_SLOTS: NonZeroUsize = NonZeroUsize::new(4_096).expect("not zero");
const QUIET: f64 = 7.0;
const MAX_TRUNKS: usize = 64;
const ORDER_EVERY: f64 = 1.0;

struct Slot {
    number: u16,
    cluster: Cluster,
    used_at: f64,
}

/// The slots of one worker.
pub struct ReturnSlots {
    /// The one silent longest is the least recently used, within a second.
    by_source: LruCache<Endpoint, Slot, RandomState>,
    by_number: std::collections::HashMap<u16, Endpoint, RandomState>,
    last: u16,
    new: Buckets<Cluster>,
}

impl Default for ReturnSlots {
    fn default() -> Self {
        Self {
            by_source: LruCache::with_hasher(MAX_SLOTS, RandomState::new()),
            by_number: std::collections::HashMap::default(),
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
        if let Some(slot) = self.by_source.peek_mut(&source) {
            slot.cluster = cluster;
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
            let (_, first) = self.by_source.peek_lru()?;
            if now - first.used_at < QUIET {
                return None;
            }
            self.forget_first();
        }
        let mut number = self.last;
        while number == self.last || self.by_number.contains_key(&number) {
            number = if number == u16::MAX { 1 } else { number + 1 };
        }
        self.last = number;
        self.by_number.insert(number, source);
        self.by_source.put(source, Slot { number, cluster, used_at: now });
        Some(number)
    }

    /// Whose slot this is, and by which trunk he is reached.
    pub fn find(&self, number: u16) -> Option<(Endpoint, Cluster)> {
        let source = self.by_number.get(&number)?;
        Some((*source, self.by_source.peek(source)?.cluster))
    }

    /// Forgets the sources that are due.
    pub fn expire(&mut self, now: f64) {
        while self.by_source.peek_lru().is_some_and(|(_, first)| now - first.used_at >= KEPT) {
            self.forget_first();
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

    fn forget_first(&mut self) {
        if let Some((_, slot)) = self.by_source.pop_lru() {
            self.by_number.remove(&slot.number);
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
        assert_eq!(slots.take(source(1), [0, 8], 50.0), Some(1));
        assert_eq!(slots.find(1), Some((source(1), [0, 8])));
        assert_eq!(slots.find(0), None);
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
