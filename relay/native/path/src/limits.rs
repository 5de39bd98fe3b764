//! Rate limits with bounded memory (docs/wire.md section 4).
//!
//! Rules:
//! * A limit is a token bucket: a rate per second, and a burst at once. It is kept as one number, the time at which the
//!   bucket would be full again (GCRA, the virtual scheduling form of ITU-T I.371), so a flow can carry its own.
//! * Buckets of unknown senders live in a table with a bound. When it is full the older half goes: whoever is forgotten
//!   starts with a full bucket, so an attacker gains at most another burst and a person loses nothing.
//! * (address, port) is limited first. A whole address may be one NAT or one node in front of hundreds of calls, so it
//!   is limited only above 50,000 datagrams a second.

use std::collections::HashMap;
use std::hash::Hash;

use ahash::RandomState;
use hashbrown::HashTable;

/// A rate per second and how much may come at once, as the times that deciding takes. Both are in seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rate {
    /// What one token costs.
    pub interval: f64,
    /// How far ahead of `now` a bucket may be full again for another token to be given.
    pub tolerance: f64,
}

impl Rate {
    /// Derives the times from a rate and a burst.
    pub fn new(per_second: f64, burst: f64) -> Self {
        // Half a token more than exact, because sums of intervals are rounded.
        Self { interval: 1.0 / per_second, tolerance: (burst - 0.5) / per_second }
    }

    /// One token in so many seconds.
    pub fn once_in(seconds: f64) -> Self {
        Self { interval: seconds, tolerance: 0.0 }
    }
}

#[derive(Clone, Copy)]
struct Bucket<K> {
    key: K,
    full_at: f64,
}

/// Token buckets by key, at most `capacity` of them.
///
/// They stand in a ring in the order in which they came. The older half goes by being counted out; the memory of one of
/// them is cleared when a new one takes its place, so no call ever works on more than one bucket.
pub struct Buckets<K> {
    rate: Rate,
    capacity: usize,
    ring: Vec<Bucket<K>>,
    /// Where the next one goes.
    next: usize,
    /// How many before `next` are remembered.
    remembered: usize,
    places: HashTable<u32>,
    hasher: RandomState,
}

impl<K: Hash + Eq + Copy> Buckets<K> {
    /// Makes an empty table.
    pub fn new(rate: Rate, capacity: usize) -> Self {
        let capacity = capacity.clamp(1, u32::MAX as usize);
        Self {
            rate,
            capacity,
            ring: Vec::with_capacity(capacity),
            next: 0,
            remembered: 0,
            places: HashTable::new(),
            hasher: RandomState::new(),
        }
    }

    /// Returns how many keys are remembered.
    pub fn len(&self) -> usize {
        self.remembered
    }

    /// Tells whether no key is remembered.
    pub fn is_empty(&self) -> bool {
        self.remembered == 0
    }

    /// Takes one token of `key` and returns true, or returns false when there is none.
    pub fn allow(&mut self, key: K, now: f64) -> bool {
        let hash = self.hasher.hash_one(key);
        let found = self.places.find(hash, |&place| self.ring[place as usize].key == key).copied();
        let known = found.filter(|&place| self.is_remembered(place as usize));
        let full_at = known.map_or(now, |place| self.ring[place as usize].full_at.max(now));
        if full_at - now > self.rate.tolerance {
            return false;
        }
        let full_at = full_at + self.rate.interval;
        if let Some(place) = known {
            self.ring[place as usize].full_at = full_at;
            return true;
        }
        if let Some(forgotten) = found {
            self.clear(hash, forgotten);
        }
        self.add(hash, Bucket { key, full_at });
        true
    }

    fn is_remembered(&self, place: usize) -> bool {
        let behind = if place < self.next { self.next } else { self.next + self.capacity };
        behind - place <= self.remembered
    }

    fn add(&mut self, hash: u64, bucket: Bucket<K>) {
        if self.remembered == self.capacity {
            self.remembered -= self.capacity.div_ceil(2);
        }
        let place = self.next;
        if let Some(forgotten) = self.ring.get(place).copied() {
            self.clear(self.hasher.hash_one(forgotten.key), place as u32);
            self.ring[place] = bucket;
        } else {
            self.ring.push(bucket);
        }
        let (ring, hasher) = (&self.ring, &self.hasher);
        self.places.insert_unique(hash, place as u32, |&at| hasher.hash_one(ring[at as usize].key));
        self.next = (place + 1) % self.capacity;
        self.remembered += 1;
    }

    fn clear(&mut self, hash: u64, place: u32) {
        if let Ok(entry) = self.places.find_entry(hash, |&at| at == place) {
            entry.remove();
        }
    }
}

/// Limits a whole address, and costs nothing while the relay as a whole is below that limit.
///
/// An address cannot exceed the limit in a second in which all addresses together do not. So addresses are told apart
/// only after `per_second` datagrams came within the running second.
pub struct AddressLimit {
    per_second: u64,
    capacity: usize,
    second: i64,
    total: u64,
    by_address: HashMap<[u8; 16], u64, RandomState>,
}

impl AddressLimit {
    /// Makes a limit that tells at most `capacity` addresses apart; others are not limited.
    pub fn new(per_second: u64, capacity: usize) -> Self {
        let by_address = HashMap::with_hasher(RandomState::new());
        Self { per_second, capacity, second: -1, total: 0, by_address }
    }

    /// Notes a batch of `count` datagrams; returns whether addresses have to be told apart for it.
    pub fn begin(&mut self, now: f64, count: u64) -> bool {
        let second = now as i64;
        if second != self.second {
            self.second = second;
            self.total = 0;
            self.by_address.clear();
        }
        self.total += count;
        self.total > self.per_second
    }

    /// Counts one datagram of `address` in the running second; returns false above the limit.
    pub fn allow(&mut self, address: [u8; 16]) -> bool {
        let is_full = self.by_address.len() >= self.capacity;
        match self.by_address.get_mut(&address) {
            Some(count) if *count >= self.per_second => return false,
            Some(count) => *count += 1,
            None if self.per_second == 0 => return false,
            None if is_full => {}
            None => {
                self.by_address.insert(address, 1);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests;
