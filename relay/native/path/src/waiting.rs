//! Datagrams of unknown addresses that wait until a transceiver has said whose they are (docs/wire.md section 4).
//!
//! After a relay has died, or a client's port has changed, its packets come to a relay that knows neither the address nor
//! the SSRC. The relay then asks all live transceivers WHO-HAS, and one of them says HERE.
//!
//! Rules:
//! * One question of a source (client address, port, listener) per second. It asks for the SSRC of RTP and RTCP, and for
//!   the address where DTLS came. Only when the first RTP comes after DTLS there is a second one, for its SSRC.
//! * A question is open for that second, so HERE counts however slow a transceiver is. Whoever is not found within it is
//!   not asked for again before its end: the negative cache.
//! * At most 4 datagrams of a source, and 1,024 in all, wait, none of them longer than 50 ms after the question. What
//!   waited too long is never sent; it is freed with the next call, at the latest by a tick.
//! * Questions are limited in all, a second's worth at once; those to a store, and those to transceivers, each by
//!   themselves. One that goes to more than 16 transceivers costs accordingly more, so that fewer come after the first
//!   second's: what is bounded are the datagrams that strangers can make the fleet handle.
//! * Who sends from few addresses (one IP with many ports: an attacker, but also a NAT or a node in front of hundreds of
//!   calls) leaves half of the questions to others: an IP that has asked 16 times within the second is served only while
//!   half of the limit is left. Who fakes ever new addresses can only make the chance of each packet smaller, and a
//!   caller sends 50 a second.
//! * HERE for the address ends the question: the address has a flow now. HERE for the SSRC lets packets of that SSRC go
//!   tentatively to those who said so, at most 4, until the question's second is over or a flow is made.
//! * Memory is reserved once and touched as it is used.
//!
//! So faked packets gain nothing: they cost 4 places for 50 ms and a share of the questions.

use ahash::RandomState;
use hashbrown::{HashMap, HashTable};

use crate::counters::{Counters, Drop};
use crate::few::Few;
use crate::flows::LocalId;
use crate::hop::{self, PathKey, RouteKey};
use crate::limits::Rate;
use crate::packets::{MAX_CLIENT_DATAGRAM, Slots};

/// An SSRC as it stands in a packet.
pub type Ssrc = [u8; 4];
/// A question that is remembered; good until the next [`Waiting::expire`].
pub type QuestionId = u32;

/// On the wire: the question is for the address.
pub const NO_SSRC: Ssrc = [0; 4];
/// Seconds for which a question is open.
pub const OPEN_FOR: f64 = 1.0;
/// Seconds after a question for which its datagrams wait.
pub const WAIT_AT_MOST: f64 = 0.05;
/// Datagrams of one source that wait.
pub const WAITING_PER_SOURCE: usize = 4;
/// Datagrams that wait in all: about 2 MB, a burst of speech from a thousand clients whose relay has died.
pub const WAITING: usize = 1_024;
/// Questions of one IP within a second that are served as long as there are any.
pub const MODEST: u32 = 16;
/// Transceivers that are believed to know one SSRC.
pub const MAX_FOUND: usize = 4;
/// Transceivers to which a question may go at its usual price.
pub const ASKED_AT_ONE_PRICE: f64 = 16.0;

/// What was asked of all transceivers, for one source.
pub struct Question {
    /// The source.
    pub path: PathKey,
    /// What was asked for.
    pub ssrc: Ssrc,
    /// The local address that its datagrams came to.
    pub local: LocalId,
    /// Whether a transceiver knows the address.
    pub is_answered: bool,
    /// The store was asked and has not answered; the transceivers are asked after it.
    pub awaits_store: bool,
    asked_at: f64,
    found: Few<RouteKey, MAX_FOUND>,
    waiting: Few<Place, WAITING_PER_SOURCE>,
}

impl Question {
    /// The routes whose transceivers know the SSRC.
    pub fn found(&self) -> &[RouteKey] {
        self.found.as_slice()
    }

    /// Notes another such route; false when it is known already, or enough are.
    pub fn add_found(&mut self, route: RouteKey) -> bool {
        self.found.add(route)
    }
}

/// Datagrams that were let go: the slot and length of each.
pub type Released = Few<(u32, usize), WAITING_PER_SOURCE>;

/// Number of a place in the store.
type Place = u32;

#[derive(Clone, Copy, Default)]
struct Held {
    ssrc: Ssrc,
    length: usize,
}

/// The datagrams that wait, in places of equal size.
struct Store {
    bytes: Box<[[u8; MAX_CLIENT_DATAGRAM]]>,
    held: Box<[Held]>,
    /// Places that were used before; the ones from `untouched` on never were.
    free: Vec<Place>,
    untouched: usize,
}

impl Store {
    fn new() -> Self {
        Self {
            bytes: vec![[0; MAX_CLIENT_DATAGRAM]; WAITING].into(),
            held: vec![Held::default(); WAITING].into(),
            free: Vec::with_capacity(WAITING),
            untouched: 0,
        }
    }

    fn len(&self) -> usize {
        self.untouched - self.free.len()
    }

    /// Keeps a datagram; there has to be room.
    fn put(&mut self, ssrc: Ssrc, datagram: &[u8]) -> Place {
        let place = self.free.pop().unwrap_or_else(|| {
            self.untouched += 1;
            self.untouched as Place - 1
        });
        self.bytes[place as usize][..datagram.len()].copy_from_slice(datagram);
        self.held[place as usize] = Held { ssrc, length: datagram.len() };
        place
    }

    fn get(&self, place: Place) -> &[u8] {
        &self.bytes[place as usize][..self.held[place as usize].length]
    }
}

/// The open questions of one data thread, and what waits for their answers.
///
/// `expire` comes before anything else with a new `now`. The questions stand in a ring in the order in which they were
/// asked; their numbers count on for ever, and a number's place is its remainder.
pub struct Waiting {
    rate: Rate,
    /// What the rate allows within a second: its burst, and what comes after it.
    capacity: usize,
    /// When all may be asked again: of the store, and of transceivers.
    full_at: [f64; 2],
    ring: Vec<Question>,
    /// Number of the oldest question.
    oldest: u64,
    /// Number of the oldest one for which datagrams may wait.
    young: u64,
    /// Number of the next one.
    next: u64,
    places: HashTable<QuestionId>,
    by_address: HashMap<[u8; 16], u32, RandomState>,
    hasher: RandomState,
    store: Store,
}

impl Waiting {
    /// Makes one that asks so often.
    pub fn new(questions_per_second: u32) -> Self {
        let capacity = 2 * questions_per_second as usize;
        Self {
            rate: Rate::new(f64::from(questions_per_second), f64::from(questions_per_second)),
            capacity,
            full_at: [0.0; 2],
            ring: Vec::with_capacity(capacity),
            oldest: 0,
            young: 0,
            next: 0,
            // Twice the room: what was removed is cleared in place, and nothing ever grows.
            places: HashTable::with_capacity(2 * capacity),
            by_address: HashMap::with_capacity_and_hasher(2 * capacity, RandomState::new()),
            hasher: RandomState::new(),
            store: Store::new(),
        }
    }

    /// How many datagrams wait.
    pub fn len(&self) -> usize {
        self.store.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many questions are remembered.
    pub fn questions(&self) -> usize {
        (self.next - self.oldest) as usize
    }

    /// Drops what waited too long, and forgets the questions whose second is over.
    pub fn expire(&mut self, now: f64, counters: &mut Counters) {
        while self.young < self.next && now - self.at(self.young).asked_at >= WAIT_AT_MOST {
            let id = self.place(self.young);
            self.young += 1;
            let waiting = std::mem::take(&mut self.ring[id as usize].waiting);
            for &place in waiting.as_slice() {
                self.free(place, counters);
                counters.drop(Drop::NotFound);
            }
        }
        while self.oldest < self.next && now - self.at(self.oldest).asked_at >= OPEN_FOR {
            let id = self.place(self.oldest);
            self.oldest += 1;
            let path = self.ring[id as usize].path;
            if let Ok(entry) = self.places.find_entry(self.hasher.hash_one(path), |&place| place == id) {
                entry.remove();
            }
            let address = hop::client_address(&path);
            match self.by_address.get_mut(&address) {
                Some(count) if *count > 1 => *count -= 1,
                _ => {
                    self.by_address.remove(&address);
                }
            }
        }
    }

    /// The question for a source, if there is one.
    pub fn find(&self, path: &PathKey) -> Option<QuestionId> {
        self.places.find(self.hasher.hash_one(path), |&place| self.ring[place as usize].path == *path).copied()
    }

    /// A question that was found.
    pub fn get(&self, id: QuestionId) -> &Question {
        &self.ring[id as usize]
    }

    /// A question that was found.
    pub fn get_mut(&mut self, id: QuestionId) -> &mut Question {
        &mut self.ring[id as usize]
    }

    /// Opens a question for a source that has none, to so many transceivers, or to a store for 0.
    /// None: there are too many.
    pub fn ask(
        &mut self,
        path: &PathKey,
        ssrc: Ssrc,
        local: LocalId,
        transceivers: u32,
        now: f64,
    ) -> Option<QuestionId> {
        if self.questions() >= self.capacity || !self.may_ask(path, transceivers, now) {
            return None;
        }
        let question = Question {
            path: *path,
            ssrc,
            local,
            is_answered: false,
            awaits_store: false,
            asked_at: now,
            found: Few::default(),
            waiting: Few::default(),
        };
        let id = self.place(self.next);
        self.next += 1;
        match self.ring.get_mut(id as usize) {
            Some(place) => *place = question,
            None => self.ring.push(question),
        }
        let (ring, hasher) = (&self.ring, &self.hasher);
        self.places.insert_unique(hasher.hash_one(path), id, |&place| hasher.hash_one(ring[place as usize].path));
        *self.by_address.entry(hop::client_address(path)).or_insert(0) += 1;
        Some(id)
    }

    /// Widens a question for an address by the SSRC of the first RTP from there. False: there are too many.
    pub fn ask_for_ssrc(&mut self, id: QuestionId, ssrc: Ssrc, transceivers: u32, now: f64) -> bool {
        let path = self.get(id).path;
        let may = self.may_ask(&path, transceivers, now);
        if may {
            self.get_mut(id).ssrc = ssrc;
        }
        may
    }

    /// Tells whether what the store does not know may go to so many. False: there are too many, or nobody to ask.
    pub fn ask_further(&mut self, path: &PathKey, transceivers: u32, now: f64) -> bool {
        transceivers > 0 && self.may_ask(path, transceivers, now)
    }

    /// Lets a datagram wait, or says why it may not.
    pub fn hold(
        &mut self,
        id: QuestionId,
        ssrc: Ssrc,
        datagram: &[u8],
        now: f64,
        counters: &mut Counters,
    ) -> Result<(), Drop> {
        let question = &mut self.ring[id as usize];
        if question.is_answered || now - question.asked_at >= WAIT_AT_MOST {
            return Err(Drop::UnknownAddress);
        }
        if question.waiting.is_full() || self.store.len() >= WAITING {
            return Err(Drop::LimitWaiting);
        }
        question.waiting.push(self.store.put(ssrc, datagram));
        counters.waiting_bytes += datagram.len() as u64;
        Ok(())
    }

    /// Moves what waits for an answer into `slots`: what is of one SSRC, or all for [`NO_SSRC`].
    pub fn release(&mut self, id: QuestionId, ssrc: Ssrc, slots: &mut Slots, counters: &mut Counters) -> Released {
        let waiting = std::mem::take(&mut self.ring[id as usize].waiting);
        let mut released = Released::default();
        for &place in waiting.as_slice() {
            if ssrc == NO_SSRC || self.store.held[place as usize].ssrc == ssrc {
                let datagram = self.store.get(place);
                released.push((slots.put(datagram), datagram.len()));
                self.free(place, counters);
            } else {
                self.ring[id as usize].waiting.push(place);
            }
        }
        released
    }

    fn free(&mut self, place: Place, counters: &mut Counters) {
        counters.waiting_bytes -= self.store.held[place as usize].length as u64;
        self.store.free.push(place);
    }

    fn may_ask(&mut self, path: &PathKey, transceivers: u32, now: f64) -> bool {
        let price = (f64::from(transceivers) / ASKED_AT_ONE_PRICE).max(1.0);
        let is_modest = self.by_address.get(&hop::client_address(path)).is_none_or(|&asked| asked < MODEST);
        // The burst stays what it is: that many calls may come from a relay that has died.
        let tolerance = self.rate.tolerance * price;
        let tolerance = if is_modest { tolerance } else { tolerance / 2.0 };
        let whom = usize::from(transceivers > 0);
        let full_at = self.full_at[whom].max(now);
        if full_at - now > tolerance {
            return false;
        }
        self.full_at[whom] = full_at + self.rate.interval * price;
        true
    }

    fn place(&self, number: u64) -> QuestionId {
        (number % self.capacity as u64) as QuestionId
    }

    fn at(&self, number: u64) -> &Question {
        &self.ring[self.place(number) as usize]
    }
}

#[cfg(test)]
mod tests;
