//! What a home relay takes from relays of other clusters (docs/wire.md sections 3 and 4).
//!
//! Rules, in this order; what fails one is dropped and counted:
//! 1. Version 1, direction *to transceiver*, type DATA or PROBE.
//! 2. A live key of a trunk made its MAC, and its time is within 60 s of ours.
//! 3. PROBE is answered to where it came from, with the ids of our keys for it, 1,000 a second of one trunk and each
//!    once; not one for a peer of ours, which came by a name that leads to us.
//! 4. DATA has two hops left, and its route is in our own table: nothing goes on to another cluster, so there are no
//!    loops.
//! 5. A Binding request in it names that route in its ufrag, and its integrity holds: an ingress relay need not have the
//!    password key.
//! 6. It goes on with its records as they are, bundles and halves too: one hop less, the local key, our time, and the
//!    return slot of its source.
//!
//! There are no flows here.

use std::ops::Range;
use std::sync::Arc;

use crate::counters::Drop;
use crate::datagram::{Kind, kind};
use crate::endpoint::Endpoint;
use crate::hop::{self, OUTER_LENGTH, Parsed, RECORD_LENGTH, Record, RouteKey, SPLIT, TIME_WINDOW_MS, TO_CLIENT};
use crate::keys::Keys;
use crate::peers::{Cluster, cluster_of};
use crate::restamped::{Head, Onward};
use crate::state::{Stamp, State};
use crate::{checks, stun};

/// Hops that a datagram on a trunk has left at least: the home relay forwards it once more.
pub const OVER_A_TRUNK: u8 = 2;
/// Most records that are sent on of a datagram that has forged ones too: each leaves as a piece of its own.
const MAX_BESIDE_FORGED: usize = 7;
/// Nonce and time of a PROBE, which go back as they came.
const PROBED_LENGTH: usize = 16;

struct Batch<'a> {
    state: &'a mut State,
    keys: Arc<Keys>,
    onward: &'a mut Onward,
    /// As in `onward`.
    kept: Vec<Range<u32>>,
    now: f64,
    stamp: Stamp,
}

/// Puts into `onward` what comes of a batch of datagrams from trunks, each given with its source.
pub fn forward<'a>(
    state: &mut State,
    onward: &mut Onward,
    now: f64,
    unix_ms: u64,
    datagrams: impl Iterator<Item = (&'a [u8], Endpoint)>,
) {
    state.counters.uplink.batches += 1;
    let stamp = state.stamp(unix_ms);
    let kept = std::mem::take(&mut onward.kept);
    let mut batch = Batch { keys: Arc::clone(&state.keys), state, onward, kept, now, stamp };
    for (number, (datagram, source)) in datagrams.enumerate() {
        batch.state.counters.uplink.received += 1;
        if let Err(refused) = batch.take(number as u32, datagram, source) {
            batch.state.counters.drop(refused);
        }
    }
    batch.onward.kept = batch.kept;
}

impl Batch<'_> {
    fn take(&mut self, number: u32, datagram: &[u8], source: Endpoint) -> Result<(), Drop> {
        let parsed = hop::parse(datagram).map_err(Drop::from)?;
        if parsed.to_client() {
            return Err(Drop::HopDirection);
        }
        if !matches!(parsed.kind(), hop::DATA | hop::PROBE) {
            return Err(Drop::HopType);
        }
        let keys = Arc::clone(&self.keys);
        let mut candidates = keys.trunk_candidates(parsed.key_id()).peekable();
        if candidates.peek().is_none() {
            return Err(Drop::HopKey);
        }
        let (cluster, mac) = candidates.find(|(_, mac)| parsed.verify(mac)).ok_or(Drop::HopMac)?;
        let offset = hop::time_offset_ms(parsed.time_ms(), self.stamp.time_ms);
        if offset.abs() > i64::from(TIME_WINDOW_MS) {
            return Err(Drop::HopTime);
        }
        if parsed.kind() == hop::PROBE {
            let stamp = Stamp { key_id: parsed.key_id(), mac: mac.clone(), ..self.stamp };
            return self.answer_probe(&parsed, source, cluster, &stamp);
        }
        self.send_on(number, datagram, &parsed, source, cluster)
    }

    fn send_on(
        &mut self,
        number: u32,
        datagram: &[u8],
        parsed: &Parsed<'_>,
        source: Endpoint,
        cluster: Cluster,
    ) -> Result<(), Drop> {
        if parsed.hops_left() < OVER_A_TRUNK {
            return Err(Drop::HopLoop);
        }
        let key = parsed.route();
        let route = self.state.routes.find(&key).ok_or(Drop::NoRoute)?;
        let (mut records, mut bytes, mut size) = (0, 0, OUTER_LENGTH);
        self.kept.clear();
        for record in parsed.records() {
            records += 1;
            bytes += record.payload.len() as u64;
            if let Some(reason) = self.forgery(&record, key) {
                self.state.counters.drop(reason);
            } else {
                size += RECORD_LENGTH + record.payload.len();
                self.kept.push(span(record));
            }
        }
        if self.kept.is_empty() {
            return Ok(()); // all of it was forged, and is counted
        }
        if self.kept.len() < records && self.kept.len() > MAX_BESIDE_FORGED {
            return Err(Drop::HopMalformed);
        }
        if size > self.state.routes.get(route).hop_size {
            return Err(Drop::HopRoom);
        }
        let slot = self.state.slots.take(source, cluster, self.now).ok_or(Drop::HopSlot)?;
        let head = Head { kind: hop::DATA, hops_left: parsed.hops_left() - 1, route: &key, return_slot: slot };
        let to = self.state.routes.get(route).address;
        self.onward.push(to, (number, datagram), self.kept.iter().cloned(), &head, &self.stamp);
        let records = records as u64;
        self.state.routes.get_mut(route).uplink += records;
        let traffic = &mut self.state.counters.uplink;
        traffic.forwarded += records;
        traffic.forwarded_bytes += bytes;
        Ok(())
    }

    /// Why no client of ours can have sent a record.
    fn forgery(&self, record: &Record<'_>, route: RouteKey) -> Option<Drop> {
        let first = *record.payload.first()?;
        if record.flags & SPLIT != 0 || kind(first) != Kind::Stun {
            return None;
        }
        let Ok(message) = stun::parse(record.payload) else { return Some(Drop::StunMalformed) };
        if !message.is_binding_request() || message.username().is_none() {
            return None;
        }
        match checks::open(&self.keys, &message) {
            Ok((_, opened)) if opened.password.is_some() && opened.route == route => None,
            Ok(_) => Some(Drop::Integrity),
            Err(reason) => Some(reason),
        }
    }

    fn answer_probe(
        &mut self,
        probe: &Parsed<'_>,
        source: Endpoint,
        cluster: Cluster,
        stamp: &Stamp,
    ) -> Result<(), Drop> {
        if self.state.routes.peer(cluster_of(&probe.route())).is_some() {
            return Err(Drop::HopRoute);
        }
        let mut records = probe.records();
        let (Some(record), None) = (records.next(), records.next()) else { return Err(Drop::HopMalformed) };
        let probed = record.payload.get(..PROBED_LENGTH).ok_or(Drop::HopMalformed)?;
        let nonce = *probed.first_chunk().ok_or(Drop::HopMalformed)?;
        let is_new = self.state.probe_nonces.allow((cluster, nonce), self.now);
        if !(is_new && self.state.probes.allow(cluster, self.now)) {
            return Err(Drop::LimitProbes);
        }
        let payload = [probed, &self.keys.held_ids(cluster, cluster_of(&probe.route()))].concat();
        let mut reply = vec![0; OUTER_LENGTH + RECORD_LENGTH];
        let (outer, header) = reply.split_at_mut(OUTER_LENGTH);
        if let (Ok(outer), Ok(header)) = (outer.try_into(), header.try_into()) {
            let (kind, hops) = (TO_CLIENT | hop::PROBE_REPLY, probe.hops_left());
            hop::write_outer(outer, kind, hops, &probe.route(), stamp.key_id, stamp.time_ms, probe.return_slot());
            hop::write_record(header, payload.len() as u16, record.flags, &record.path, record.split_id);
        }
        reply.extend_from_slice(&payload);
        let mac = stamp.mac.of(&reply);
        reply[hop::MAC_AT..OUTER_LENGTH].copy_from_slice(&mac);
        self.onward.replies.push((source, reply));
        Ok(())
    }
}

/// Where a record stands in its datagram, with its header.
pub fn span(record: Record<'_>) -> Range<u32> {
    (record.offset - RECORD_LENGTH) as u32..(record.offset + record.payload.len()) as u32
}
