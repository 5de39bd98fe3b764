//! What a limit gives, and that forgetting is the same as in the plainest table that one can write.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// `usher_relay.limits.Buckets`, word for word: a list in the order of insertion.
struct Plain {
    rate: Rate,
    capacity: usize,
    full_at: Vec<(u8, f64)>,
}

impl Plain {
    fn allow(&mut self, key: u8, now: f64) -> bool {
        let known = self.full_at.iter().position(|&(other, _)| other == key);
        let full_at = known.map_or(now, |place| self.full_at[place].1.max(now));
        if full_at - now > self.rate.tolerance {
            return false;
        }
        if known.is_none() && self.full_at.len() >= self.capacity {
            self.full_at.drain(..self.capacity.div_ceil(2));
        }
        match known {
            Some(place) => self.full_at[place].1 = full_at + self.rate.interval,
            None => self.full_at.push((key, full_at + self.rate.interval)),
        }
        true
    }
}

fn remembered(buckets: &Buckets<u8>) -> Vec<(u8, f64)> {
    let behind = buckets.next + if buckets.ring.len() == buckets.capacity { buckets.capacity } else { 0 };
    let places = (behind - buckets.remembered..behind).map(|place| buckets.ring[place % buckets.capacity]);
    places.map(|bucket| (bucket.key, bucket.full_at)).collect()
}

proptest! {
    #[test]
    fn buckets_decide_and_remember_as_the_plain_table_does(
        steps in vec((0..30_u8, prop_oneof![Just(0.0), 0.0..0.5]), 0..300),
        rate in 1..20_u8, burst in 1..6_u8, capacity in 1..20_usize,
    ) {
        let rate = Rate::new(f64::from(rate), f64::from(burst));
        let mut buckets = Buckets::new(rate, capacity);
        let mut plain = Plain { rate, capacity, full_at: Vec::new() };
        let mut now = 0.0;
        for (key, pause) in steps {
            now += pause;
            prop_assert_eq!(buckets.allow(key, now), plain.allow(key, now));
            prop_assert_eq!(remembered(&buckets), plain.full_at.clone());
            prop_assert_eq!(buckets.len(), plain.full_at.len());
            prop_assert!(buckets.places.len() <= capacity);
            prop_assert!(buckets.ring.len() <= capacity);
        }
    }

    #[test]
    fn buckets_never_give_more_than_rate_and_burst(
        pauses in vec(0.0..0.5, 0..300), rate in 1..20_u8, burst in 1..20_u8,
    ) {
        let (rate, burst) = (f64::from(rate), f64::from(burst));
        let mut buckets = Buckets::new(Rate::new(rate, burst), 4);
        let (mut now, mut given) = (0.0, 0.0);
        for pause in pauses {
            now += pause;
            given += f64::from(u8::from(buckets.allow((), now)));
            prop_assert!(given <= burst + rate * now + 1.0);
        }
    }

    #[test]
    fn a_whole_address_gets_at_least_its_limit(sends in vec(0..4_u8, 0..200), limit in 1..40_u64) {
        let mut limits = AddressLimit::new(limit, 2);
        let mut got = [0_u64; 4];
        for &address in &sends {
            let is_crowded = limits.begin(5.0, 1);
            got[usize::from(address)] += u64::from(!is_crowded || limits.allow([address; 16]));
        }
        for (address, &count) in got.iter().enumerate() {
            let sent = sends.iter().filter(|&&it| usize::from(it) == address).count() as u64;
            prop_assert!(count >= limit.min(sent));
        }
        prop_assert!(!limits.begin(6.0, 1));
    }
}

#[test]
fn a_burst_is_given_at_once_and_the_rate_after_it() {
    let mut buckets = Buckets::new(Rate::new(10.0, 3.0), 4);
    let given: Vec<bool> = (0..5).map(|_| buckets.allow('a', 100.0)).collect();
    assert_eq!(given, [true, true, true, false, false]);
    assert!(buckets.allow('a', 100.1));
    assert!(!buckets.allow('a', 100.1));
    assert!(buckets.allow('b', 100.1), "each key has its own");
}

#[test]
fn the_older_half_is_forgotten_when_the_table_is_full_and_a_refreshed_one_keeps_its_place() {
    let mut buckets = Buckets::new(Rate::new(1.0, 1.0), 5);
    for key in 0..5_u8 {
        assert!(buckets.allow(key, f64::from(key)));
    }
    assert!(buckets.allow(0, 10.0), "0 is as old as before");
    assert!(buckets.allow(9, 10.0));
    assert_eq!(buckets.len(), 3);
    assert!(buckets.allow(0, 10.0), "it was forgotten, so its bucket is full");
    assert!(!buckets.allow(9, 10.0));
}

#[test]
fn a_refusal_makes_nothing_known() {
    let mut buckets = Buckets::new(Rate { interval: 1.0, tolerance: -1.0 }, 5);
    assert!(!buckets.allow(1, 0.0));
    assert!(buckets.is_empty());
}

#[test]
fn addresses_are_told_apart_only_while_all_of_them_together_exceed_the_limit() {
    let mut limits = AddressLimit::new(100, 10);
    assert!(!limits.begin(7.2, 100));
    assert!(limits.begin(7.9, 1));
    assert!(!limits.begin(8.0, 100), "a new second");
}

#[test]
fn an_address_is_limited_by_itself_and_beyond_the_bound_of_the_table_not_at_all() {
    let mut limits = AddressLimit::new(2, 2);
    let given = |limits: &mut AddressLimit, address| (0..4).filter(|_| limits.allow([address; 16])).count();
    assert_eq!([1, 2, 3].map(|address| given(&mut limits, address)), [2, 2, 4]);
    assert_eq!(given(&mut limits, 1), 0);
    limits.begin(1.0, 1);
    assert_eq!(given(&mut limits, 1), 2);
    assert!(!AddressLimit::new(0, 2).allow([1; 16]));
}
