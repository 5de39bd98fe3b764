//! Hop datagrams between relay and transceiver, version 1 (docs/wire.md section 3), read and written in place.
//!
//! Outer part, 26 bytes:
//!
//! ```text
//! version 1 | direction and type 1 | flags 1 | hops left 1 | cluster 2 | pod 4 | worker 1
//! | MAC key id 1 | time 4 | return slot 2 | MAC 8
//! ```
//!
//! then one or more records, 25 bytes of header each and a payload:
//!
//! ```text
//! length 2 | flags 1 | listener 2 | client port 2 | client address 16 | split id 2 | payload
//! ```
//!
//! The MAC is SipHash-2-4 (Aumasson and Bernstein 2012), written big endian, over the outer part with a zero MAC, then
//! over each record header with the first 16 bytes of its payload (of DATA; all other types carry little, so their whole
//! payload is covered).

use core::fmt;
use core::hash::Hasher;
use core::ops::Deref;
use siphasher::sip::SipHasher24;
use subtle::ConstantTimeEq;

/// Listener 2, client port 2, client address 16 (IPv4 mapped): where a client is, as it stands in a record.
pub type PathKey = [u8; 20];
/// Cluster 2, pod 4, worker 1: which transceiver worker owns a session, as it stands in the outer part.
pub type RouteKey = [u8; 7];

/// The version that is written and read.
pub const VERSION: u8 = 1;
/// Length of the outer part.
pub const OUTER_LENGTH: usize = 26;
/// Length of a record header.
pub const RECORD_LENGTH: usize = 25;
/// Bytes that the first record of a datagram adds to its payload.
pub const OVERHEAD: usize = OUTER_LENGTH + RECORD_LENGTH;
/// Length of the MAC, which ends the outer part.
pub const MAC_LENGTH: usize = 8;
/// Where the MAC starts.
pub const MAC_AT: usize = OUTER_LENGTH - MAC_LENGTH;
/// How much of a DATA payload the MAC covers.
pub const MAC_PAYLOAD_LENGTH: usize = 16;
/// The most UDP payload that IPv4 carries; also how much of another payload the MAC covers.
pub const MAX_DATAGRAM: usize = 65_507;
/// How far a sender's clock may be away from ours.
pub const TIME_WINDOW_MS: u32 = 60_000;
/// The direction bit of the type.
pub const TO_CLIENT: u8 = 0x80;

/// A client's datagram, or one half of it.
pub const DATA: u8 = 1;
/// The transceiver does not know the client path, or has given it up.
pub const UNKNOWN_FLOW: u8 = 2;
/// Which transceiver has this SSRC or address?
pub const WHO_HAS: u8 = 3;
/// The answer to that.
pub const HERE: u8 = 4;
/// Is the way there good?
pub const PROBE: u8 = 5;
/// The answer to that.
pub const PROBE_REPLY: u8 = 6;

/// Record flag, towards the transceiver: the relay guessed the route by SSRC; SRTP authentication decides.
pub const TENTATIVE: u8 = 1;
/// Record flag, towards the client: an authenticated packet or a valid unseen check came from there within 5 s.
pub const ALIVE: u8 = 2;
/// Record flag: the payload is one half of a datagram that did not fit.
pub const SPLIT: u8 = 4;
/// Record flag: the second half.
pub const LAST_PART: u8 = 8;

const NO_MAC: [u8; MAC_LENGTH] = [0; MAC_LENGTH];
const LAST_TYPE: u8 = PROBE_REPLY;
const NO_CLUSTER: [u8; 2] = [0; 2];

/// A hop key, ready for use.
#[derive(Clone)]
pub struct HopMac {
    keyed: SipHasher24,
}

impl HopMac {
    /// Take a key of 16 bytes.
    pub fn new(key: &[u8; 16]) -> Self {
        Self { keyed: SipHasher24::new_with_key(key) }
    }

    /// Make the MAC of input in one piece.
    pub fn of(&self, input: &[u8]) -> [u8; MAC_LENGTH] {
        self.keyed.hash(input).to_be_bytes()
    }

    /// Start a MAC.
    pub fn begin(&self) -> MacState {
        MacState { hasher: self.keyed }
    }
}

impl fmt::Debug for HopMac {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("HopMac(..)")
    }
}

/// A MAC that is being made. How its input is cut into writes does not matter.
#[derive(Clone)]
pub struct MacState {
    hasher: SipHasher24,
}

impl MacState {
    /// Take more input.
    pub fn write(&mut self, input: &[u8]) {
        self.hasher.write(input);
    }

    /// Return the MAC as it stands on the wire.
    pub fn finish(&self) -> [u8; MAC_LENGTH] {
        self.hasher.finish().to_be_bytes()
    }
}

/// Write an outer part with flags 0 and a zero MAC.
///
/// `kind` is the type with the direction bit; `time_ms` Unix time in ms mod 2^32.
pub fn write_outer(
    out: &mut [u8; OUTER_LENGTH],
    kind: u8,
    hops_left: u8,
    route: &RouteKey,
    key_id: u8,
    time_ms: u32,
    return_slot: u16,
) {
    out[..4].copy_from_slice(&[VERSION, kind, 0, hops_left]);
    out[4..11].copy_from_slice(route);
    out[11] = key_id;
    out[12..16].copy_from_slice(&time_ms.to_be_bytes());
    out[16..MAC_AT].copy_from_slice(&return_slot.to_be_bytes());
    out[MAC_AT..].copy_from_slice(&NO_MAC);
}

/// Write the header of a record; `length` bytes of payload follow it.
pub fn write_record(out: &mut [u8; RECORD_LENGTH], length: u16, flags: u8, path: &PathKey, split_id: u16) {
    out[..2].copy_from_slice(&length.to_be_bytes());
    out[2] = flags;
    out[3..23].copy_from_slice(path);
    out[23..].copy_from_slice(&split_id.to_be_bytes());
}

/// The outer part of a datagram. Nothing of it is checked before [`parse`], nor authentic before [`Parsed::verify`].
#[derive(Clone, Copy)]
pub struct Outer<'a> {
    bytes: &'a [u8; OUTER_LENGTH],
}

impl<'a> Outer<'a> {
    /// Return the outer part of a datagram, or None when it is too short for one.
    pub fn of(datagram: &'a [u8]) -> Option<Self> {
        datagram.first_chunk().map(|bytes| Self { bytes })
    }

    /// The version.
    pub fn version(self) -> u8 {
        self.bytes[0]
    }

    /// The type with the direction bit.
    pub fn kind(self) -> u8 {
        self.bytes[1]
    }

    /// Whether the direction is towards the client.
    pub fn to_client(self) -> bool {
        self.bytes[1] & TO_CLIENT != 0
    }

    /// The flags: 0 in version 1, ignored when read, covered by the MAC.
    pub fn flags(self) -> u8 {
        self.bytes[2]
    }

    /// How many relays may still forward the datagram.
    pub fn hops_left(self) -> u8 {
        self.bytes[3]
    }

    /// The route.
    pub fn route(self) -> RouteKey {
        let mut route = [0; 7];
        route.copy_from_slice(&self.bytes[4..11]);
        route
    }

    /// Which key made the MAC.
    pub fn key_id(self) -> u8 {
        self.bytes[11]
    }

    /// The sender's Unix time in ms mod 2^32.
    pub fn time_ms(self) -> u32 {
        u32::from_be_bytes([self.bytes[12], self.bytes[13], self.bytes[14], self.bytes[15]])
    }

    /// The return slot.
    pub fn return_slot(self) -> u16 {
        u16::from_be_bytes([self.bytes[16], self.bytes[17]])
    }

    fn mac(&self) -> &[u8] {
        &self.bytes[MAC_AT..]
    }

    /// Begin the MAC with the outer part, its own MAC zeroed.
    fn begin(self, mac: &HopMac) -> MacState {
        let mut zeroed = *self.bytes;
        zeroed[MAC_AT..].copy_from_slice(&NO_MAC);
        let mut state = mac.begin();
        state.write(&zeroed);
        state
    }
}

/// Return how much of a record of `length` bytes, header included, the MAC covers.
pub fn covered(kind: u8, length: usize) -> usize {
    let payload = if kind & !TO_CLIENT == DATA { MAC_PAYLOAD_LENGTH } else { MAX_DATAGRAM };
    length.min(RECORD_LENGTH + payload)
}

/// Return the client's IP, 16 bytes, that a path names.
pub fn client_address(path: &PathKey) -> [u8; 16] {
    let mut address = [0; 16];
    address.copy_from_slice(&path[4..]);
    address
}

/// Return the route of a datagram of at least 11 bytes: the rest of it need not be there to look the route up.
pub fn peek_route(datagram: &[u8]) -> Option<RouteKey> {
    datagram.get(4..11)?.try_into().ok()
}

/// Why a datagram is no hop datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HopFault {
    /// It is too short, a record header is cut off, or a record is longer than its datagram.
    Length,
    /// Not version 1.
    Version,
    /// The type is none of version 1.
    Type,
    /// Cluster id 0 is reserved.
    Route,
}

/// A hop datagram whose records all lie within it. It is not authentic before `verify` held.
#[derive(Clone, Copy)]
pub struct Parsed<'a> {
    outer: Outer<'a>,
    datagram: &'a [u8],
}

/// Check a hop datagram: length, version, type, route, records, in this order.
pub fn parse(datagram: &[u8]) -> Result<Parsed<'_>, HopFault> {
    if datagram.len() < OVERHEAD {
        return Err(HopFault::Length);
    }
    let outer = Outer::of(datagram).ok_or(HopFault::Length)?;
    if outer.version() != VERSION {
        return Err(HopFault::Version);
    }
    if !(DATA..=LAST_TYPE).contains(&(outer.kind() & !TO_CLIENT)) {
        return Err(HopFault::Type);
    }
    if outer.bytes[4..6] == NO_CLUSTER {
        return Err(HopFault::Route);
    }
    let mut records = Records { datagram, offset: OUTER_LENGTH };
    while records.next().is_some() {}
    // The first record that does not fit ends the walk where it starts.
    if records.offset == datagram.len() { Ok(Parsed { outer, datagram }) } else { Err(HopFault::Length) }
}

impl<'a> Parsed<'a> {
    /// The records, at least one.
    pub fn records(&self) -> Records<'a> {
        Records { datagram: self.datagram, offset: OUTER_LENGTH }
    }

    /// Tell in constant time whether `mac` made the MAC.
    pub fn verify(&self, mac: &HopMac) -> bool {
        let covered = if self.kind() & !TO_CLIENT == DATA { MAC_PAYLOAD_LENGTH } else { MAX_DATAGRAM };
        // One record with little to cover, as most have: in one piece, which costs a third less.
        let first = self.records().next().map_or(0, |record| record.payload.len());
        let input = &self.datagram[..self.datagram.len().min(OVERHEAD + covered)];
        let mut whole = [0; OVERHEAD + MAC_PAYLOAD_LENGTH];
        if let (true, Some(whole)) = (OVERHEAD + first == self.datagram.len(), whole.get_mut(..input.len())) {
            whole.copy_from_slice(input);
            whole[MAC_AT..OUTER_LENGTH].copy_from_slice(&NO_MAC);
            return mac.of(whole).ct_eq(self.outer.mac()).into();
        }
        let mut state = self.outer.begin(mac);
        for record in self.records() {
            let header = record.offset - RECORD_LENGTH;
            let stop = record.offset + record.payload.len().min(covered);
            state.write(&self.datagram[header..stop]);
        }
        state.finish().ct_eq(self.outer.mac()).into()
    }
}

impl<'a> Deref for Parsed<'a> {
    type Target = Outer<'a>;

    fn deref(&self) -> &Outer<'a> {
        &self.outer
    }
}

/// One client datagram, or one question or answer about a client path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// The client path.
    pub path: PathKey,
    /// The record flags.
    pub flags: u8,
    /// Names the halves of one datagram.
    pub split_id: u16,
    /// What the header is followed by.
    pub payload: &'a [u8],
    /// Where the payload starts in the datagram.
    pub offset: usize,
}

/// Walks the records of a datagram, and ends before one that does not fit.
#[derive(Clone)]
pub struct Records<'a> {
    datagram: &'a [u8],
    offset: usize,
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        let (header, rest) = self.datagram.get(self.offset..)?.split_first_chunk::<RECORD_LENGTH>()?;
        let payload = rest.get(..usize::from(u16::from_be_bytes([header[0], header[1]])))?;
        let offset = self.offset + RECORD_LENGTH;
        self.offset = offset + payload.len();
        let mut path = [0; 20];
        path.copy_from_slice(&header[3..23]);
        Some(Record { path, flags: header[2], split_id: u16::from_be_bytes([header[23], header[24]]), payload, offset })
    }
}

/// Return how far the sender's clock is ahead of ours, in ms within -2^31..2^31-1 (serial arithmetic mod 2^32).
pub fn time_offset_ms(sent_ms: u32, now_ms: u32) -> i64 {
    const HALF: i64 = 1 << 31;
    (i64::from(sent_ms) - i64::from(now_ms) + HALF).rem_euclid(2 * HALF) - HALF
}

/// Return where to cut a payload in the middle, so that each half fits any later hop; None when half exceeds `room`.
pub fn split_at(length: usize, room: usize) -> Option<usize> {
    let middle = length.div_ceil(2);
    (middle <= room).then_some(middle)
}

#[cfg(test)]
mod tests;
