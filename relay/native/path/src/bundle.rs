//! Hop datagrams out of records: what one batch holds for one transceiver leaves in as few as fit the way there.
//!
//! Rules:
//! * A hop datagram has one route. Records keep the order of their packets, so a full datagram is never reopened.
//! * It is as long as the way to its transceiver carries in one piece, and no longer than a transceiver reads.
//! * The MAC is made last, over the outer part and each record header with the first 16 bytes of its payload.
//! * Nothing is copied: a datagram is a list of pieces, each a slot's record header and payload, the first with the
//!   outer part in front.

use crate::endpoint::Endpoint;
use crate::hop::{self, MAC_AT, MAC_PAYLOAD_LENGTH, OUTER_LENGTH, RECORD_LENGTH};
use crate::inlet::OVER_A_TRUNK;
use crate::packets::{Gram, Slots};
use crate::peers::cluster_of;
use crate::routes::Routes;
use crate::state::{Stamp, State};

/// The longest hop datagram that is made of several records. Jumbo frames carry no more, and loopback's 64 KiB would
/// only hold up the first packet of a batch.
pub const MAX_BUNDLE: usize = 8_900;

const NONE: u32 = u32::MAX;

/// A hop datagram.
#[derive(Clone, Copy)]
pub struct HopDatagram {
    /// Where it goes.
    pub to: Endpoint,
    /// Whether it goes over a trunk.
    pub is_for_peer: bool,
    route: u32,
    first: u32,
    last: u32,
    size: u32,
}

impl HopDatagram {
    /// Index in the route table.
    pub fn route(&self) -> u32 {
        self.route
    }
}

/// Builds the hop datagrams of one batch after the other.
pub struct Bundler {
    enabled: bool,
    datagrams: Vec<HopDatagram>,
    /// For each record the next one of its datagram.
    next: Vec<u32>,
    /// For each route its open datagram.
    open: Vec<u32>,
}

impl Bundler {
    /// Makes one; without `enabled` each record gets a datagram of its own.
    pub fn new(enabled: bool, records: usize) -> Self {
        Self { enabled, datagrams: Vec::with_capacity(records), next: Vec::with_capacity(records), open: Vec::new() }
    }

    /// Begins a batch.
    pub fn clear(&mut self) {
        self.datagrams.clear();
        self.next.clear();
    }

    /// Puts the records of a batch into hop datagrams and authenticates them.
    pub fn build(&mut self, grams: &[Gram], slots: &mut Slots, state: &State, stamp: &Stamp) {
        let routes = &state.routes;
        self.clear();
        self.open.resize(routes.entries(), NONE);
        for (number, gram) in grams.iter().enumerate() {
            self.place(number as u32, gram, routes);
        }
        for datagram in &self.datagrams {
            self.open[datagram.route as usize] = NONE;
            let route = routes.get(datagram.route);
            let over_a_trunk = route.is_of_peer.then(|| state.trunk_stamp(cluster_of(&route.key), stamp.time_ms));
            // Nothing is sent to a peer without a key.
            let stamp = over_a_trunk.as_ref().map_or(stamp, |found| found.as_ref().unwrap_or(stamp));
            let hops_left = if route.is_of_peer { OVER_A_TRUNK } else { 1 };
            let first = slots.get_mut(grams[datagram.first as usize].slot).outer();
            hop::write_outer(first, hop::DATA, hops_left, &route.key, stamp.key_id, stamp.time_ms, 0);
            if datagram.first == datagram.last {
                let gram = &grams[datagram.first as usize];
                let slot = slots.get_mut(gram.slot);
                let mac = stamp.mac.of(slot.with_outer(MAC_PAYLOAD_LENGTH.min(gram.length as usize)));
                slot.outer()[MAC_AT..].copy_from_slice(&mac);
                continue;
            }
            let mut mac = stamp.mac.begin();
            mac.write(first);
            for gram in self.records(datagram, grams) {
                let covered = MAC_PAYLOAD_LENGTH.min(gram.length as usize);
                mac.write(slots.get(gram.slot).with_record(covered));
            }
            let outer = slots.get_mut(grams[datagram.first as usize].slot).outer();
            outer[MAC_AT..].copy_from_slice(&mac.finish());
        }
    }

    /// The hop datagrams of the batch.
    pub fn datagrams(&self) -> &[HopDatagram] {
        &self.datagrams
    }

    /// The bytes of a hop datagram, piece by piece.
    pub fn pieces<'a>(
        &'a self,
        datagram: &'a HopDatagram,
        grams: &'a [Gram],
        slots: &'a Slots,
    ) -> impl Iterator<Item = &'a [u8]> {
        self.records(datagram, grams).enumerate().map(|(nth, gram)| {
            let slot = slots.get(gram.slot);
            let length = gram.length as usize;
            if nth == 0 { slot.with_outer(length) } else { slot.with_record(length) }
        })
    }

    fn records<'a>(&'a self, datagram: &HopDatagram, grams: &'a [Gram]) -> impl Iterator<Item = &'a Gram> {
        let mut at = datagram.first;
        std::iter::from_fn(move || {
            let gram = grams.get(at as usize)?;
            at = self.next[at as usize];
            Some(gram)
        })
    }

    fn place(&mut self, number: u32, gram: &Gram, routes: &Routes) {
        self.next.push(NONE);
        let record = RECORD_LENGTH as u32 + u32::from(gram.length);
        let open = self.open[gram.route as usize];
        if self.enabled && open != NONE {
            let datagram = &mut self.datagrams[open as usize];
            if (datagram.size + record) as usize <= routes.get(gram.route).hop_size.min(MAX_BUNDLE) {
                self.next[datagram.last as usize] = number;
                datagram.last = number;
                datagram.size += record;
                return;
            }
        }
        self.open[gram.route as usize] = self.datagrams.len() as u32;
        let size = OUTER_LENGTH as u32 + record;
        let route = routes.get(gram.route);
        let (to, is_for_peer) = (route.address, route.is_of_peer);
        self.datagrams.push(HopDatagram { to, is_for_peer, route: gram.route, first: number, last: number, size });
    }
}
