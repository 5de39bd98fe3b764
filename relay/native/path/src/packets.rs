//! Client datagrams on their way up: where they stand in memory, and what is sent of them.
//!
//! A datagram is received into a [`Slot`] behind free room, so that hop headers are written in front of it and the
//! payload is never copied. Only what goes out more than once (halves of a long datagram, a packet that is tried at
//! several transceivers) is copied, into a spare slot.

use crate::flows::LocalId;
use crate::hop::{OUTER_LENGTH, OVERHEAD, PathKey, RECORD_LENGTH};

/// Ethernet and tunnels carry less; the slot takes one byte more, so that a longer datagram shows.
pub const MAX_CLIENT_DATAGRAM: usize = 2_000;
/// Room in front of the payload: the hop headers, rounded up to a cache line.
pub const HEADROOM: usize = 64;
/// Most slots that one datagram can take: four transceivers, two halves each.
pub const COPIES: usize = 8;
// An odd number of cache lines, so that equal offsets of many slots do not share one set of the cache.
const SLOT: usize = 33 * 64;

/// Memory of one datagram.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub struct Slot([u8; SLOT]);

impl Slot {
    /// Where the kernel may write a client datagram: one byte more than the longest that is forwarded.
    pub fn receive_area(&mut self) -> &mut [u8] {
        &mut self.0[HEADROOM..=HEADROOM + MAX_CLIENT_DATAGRAM]
    }

    /// The datagram of `length` bytes that was received here.
    pub fn payload(&self, length: usize) -> &[u8] {
        &self.0[HEADROOM..HEADROOM + length]
    }

    /// The record header in front of the payload.
    #[expect(clippy::missing_panics_doc, reason = "the range has that length")]
    pub fn record(&mut self) -> &mut [u8; RECORD_LENGTH] {
        let record = &mut self.0[HEADROOM - RECORD_LENGTH..HEADROOM];
        record.try_into().expect("a slice of that length")
    }

    /// The outer part in front of the record header.
    #[expect(clippy::missing_panics_doc, reason = "the range has that length")]
    pub fn outer(&mut self) -> &mut [u8; OUTER_LENGTH] {
        let outer = &mut self.0[HEADROOM - OVERHEAD..HEADROOM - RECORD_LENGTH];
        outer.try_into().expect("a slice of that length")
    }

    /// The outer part, the record header and `length` bytes of payload.
    pub fn with_outer(&self, length: usize) -> &[u8] {
        &self.0[HEADROOM - OVERHEAD..HEADROOM + length]
    }

    /// The record header and `length` bytes of payload.
    pub fn with_record(&self, length: usize) -> &[u8] {
        &self.0[HEADROOM - RECORD_LENGTH..HEADROOM + length]
    }
}

/// A client datagram: it stands in the slot of the same number.
#[derive(Clone, Copy)]
pub struct Packet {
    /// Listener and client address.
    pub path: PathKey,
    /// The local address that it came to.
    pub local: LocalId,
    /// Its length; more than [`MAX_CLIENT_DATAGRAM`] means that it was cut off.
    pub length: usize,
}

/// One record to send: the slot has its header and `length` bytes of payload.
#[derive(Clone, Copy)]
pub struct Gram {
    /// Number of the slot.
    pub slot: u32,
    /// Payload bytes.
    pub length: u16,
    /// Index in the route table.
    pub route: u32,
}

/// The slots of one worker: those that are received into, then the spare ones.
pub struct Slots {
    all: Box<[Slot]>,
    batch: usize,
    used: usize,
}

impl Slots {
    /// Makes slots for batches of at most `batch` datagrams.
    pub fn new(batch: usize) -> Self {
        let all = vec![Slot([0; SLOT]); batch * COPIES].into_boxed_slice();
        Self { all, batch, used: batch }
    }

    /// The slots that are received into. Frees the spare ones.
    pub fn receive(&mut self) -> &mut [Slot] {
        self.used = self.batch;
        &mut self.all[..self.batch]
    }

    /// Frees all slots: nothing was received into them.
    pub fn free(&mut self) {
        self.used = 0;
    }

    /// Copies a client datagram into a spare slot and returns its number.
    pub fn put(&mut self, datagram: &[u8]) -> u32 {
        let spare = self.used;
        self.used += 1;
        self.all[spare].0[HEADROOM..HEADROOM + datagram.len()].copy_from_slice(datagram);
        spare as u32
    }

    /// A slot by its number.
    pub fn get(&self, slot: u32) -> &Slot {
        &self.all[slot as usize]
    }

    /// A slot by its number.
    pub fn get_mut(&mut self, slot: u32) -> &mut Slot {
        &mut self.all[slot as usize]
    }

    /// Copies `from..to` of the payload in `slot` into a spare slot and returns its number.
    ///
    /// There is always one: a batch of `batch` datagrams takes at most [`COPIES`] each, and so does a batch of HERE, which
    /// lets go four datagrams each, in two halves.
    pub fn copy(&mut self, slot: u32, from: usize, to: usize) -> u32 {
        let spare = self.used;
        self.used += 1;
        let (before, after) = self.all.split_at_mut(spare);
        let source = &before[slot as usize].0[HEADROOM + from..HEADROOM + to];
        after[0].0[HEADROOM..HEADROOM + to - from].copy_from_slice(source);
        spare as u32
    }
}
