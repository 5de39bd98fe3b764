//! From transceivers to clients (docs/wire.md sections 3 and 4).
//!
//! Rules, in this order; what fails one is dropped and counted:
//! 1. Its route is in the route table, and it came from that route's address.
//! 2. Version 1, direction *to client*, type DATA, UNKNOWN-FLOW or HERE, at least one hop left.
//! 3. A live hop key made its MAC, and its time is within 60 s of ours.
//! 4. DATA: each record goes to the client address it names, through the listener it names. No flow is needed: an
//!    answer to another session's check goes to where the check came from. *alive* lets the flow of that address live,
//!    ends its probation, and makes the flow where there is none (roaming).
//! 5. UNKNOWN-FLOW: the flow of that address has ended, if it is of this route.
//! 6. HERE has one record, with an SSRC or zeros; what it changes is in [`crate::uplink`], where the question was asked.
//! 7. With a return slot: DATA and UNKNOWN-FLOW go on to the ingress relay that has it, under the key of that trunk, with
//!    one hop less; nothing here is changed by them.
//!
//! What comes over a trunk is judged the same way: its cluster is a peer, it came from one of that peer's addresses, and
//! a key of that trunk made its MAC. HERE does not cross trunks. And each record has to be about a client that has a flow
//! to that cluster, or of whom something was sent there within 10 s: a peer speaks of its own callers, and to nobody else.

use std::ops::Range;
use std::sync::Arc;

use crate::counters::Drop;
use crate::endpoint::Endpoint;
use crate::flows::LocalId;
use crate::hop::{self, ALIVE, HopMac, LAST_PART, Parsed, PathKey, RouteKey, SPLIT, TIME_WINDOW_MS, TO_CLIENT};
use crate::inlet::span;
use crate::keys::Keys;
use crate::peers::cluster_of;
use crate::restamped::{Head, Onward};
use crate::state::State;
use crate::waiting::Ssrc;

/// A client datagram to send: `payload` is where it stands in hop datagram number `datagram` of the batch.
#[derive(Clone, Debug)]
pub struct ClientSend {
    /// Listener and client address.
    pub path: PathKey,
    /// The local address to send from, 0 for the listener's own.
    pub local: LocalId,
    /// Number of the hop datagram in its batch.
    pub datagram: u32,
    /// Where in it the client datagram stands.
    pub payload: Range<u32>,
}

/// A transceiver's word that it knows a client.
#[derive(Clone, Copy, Debug)]
pub struct Here {
    /// The client.
    pub path: PathKey,
    /// The SSRC that it knows, or zeros: the address.
    pub ssrc: Ssrc,
    /// Index of its route.
    pub route: u32,
}

/// What a hop datagram says of one client path.
struct Answer<'a> {
    path: &'a PathKey,
    flags: u8,
    payload: Range<u32>,
}

/// One batch.
struct Batch<'a> {
    state: &'a mut State,
    keys: Arc<Keys>,
    sends: &'a mut Vec<ClientSend>,
    heres: &'a mut Vec<Here>,
    onward: &'a mut Onward,
    now: f64,
    unix_ms: u32,
}

/// Where the hop datagrams of a batch come from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Transceivers of ours.
    Transceivers,
    /// Relays of other clusters, over trunks.
    Peers,
}

/// What comes of a batch.
pub struct Out<'a> {
    /// Takes the client datagrams.
    pub sends: &'a mut Vec<ClientSend>,
    /// Takes every HERE.
    pub heres: &'a mut Vec<Here>,
    /// Takes what goes on to ingress relays.
    pub onward: &'a mut Onward,
}

/// Puts what comes of a batch of hop datagrams, each given with its source, into `out`.
pub fn forward<'a>(
    state: &mut State,
    side: Side,
    out: Out<'_>,
    now: f64,
    unix_ms: u32,
    datagrams: impl Iterator<Item = (&'a [u8], Endpoint)>,
) {
    state.counters.downlink.batches += 1;
    let Out { sends, heres, onward } = out;
    let mut batch = Batch { keys: Arc::clone(&state.keys), state, sends, heres, onward, now, unix_ms };
    for (number, (datagram, source)) in datagrams.enumerate() {
        batch.state.counters.downlink.received += 1;
        let outcome = match side {
            Side::Transceivers => batch.take(number as u32, datagram, source),
            Side::Peers => batch.take_from_peer(number as u32, datagram, source),
        };
        if let Err(refused) = outcome {
            batch.state.counters.drop(refused);
        }
    }
}

/// Who sent a hop datagram towards a client.
#[derive(Clone, Copy)]
enum From {
    /// The transceiver of this route.
    Transceiver(u32),
    /// A relay of another cluster, at this address.
    Peer(Endpoint),
}

impl Batch<'_> {
    fn take(&mut self, number: u32, datagram: &[u8], source: Endpoint) -> Result<(), Drop> {
        let state = &mut *self.state;
        let key = hop::peek_route(datagram).ok_or(Drop::HopRoute)?;
        let route = state.routes.find(&key).ok_or(Drop::HopRoute)?;
        if state.routes.get(route).address != source {
            return Err(Drop::HopSource);
        }
        if datagram.len() < hop::OVERHEAD {
            return Err(Drop::HopMalformed);
        }
        let keys = Arc::clone(&self.keys);
        let mac = keys.hop(datagram[11]).ok_or(Drop::HopKey)?;
        self.take_opened(number, datagram, key, mac, From::Transceiver(route))
    }

    fn take_from_peer(&mut self, number: u32, datagram: &[u8], source: Endpoint) -> Result<(), Drop> {
        let cluster = datagram.get(4..6).and_then(|bytes| bytes.try_into().ok()).ok_or(Drop::HopRoute)?;
        let peer = self.state.routes.peer(cluster).ok_or(Drop::HopRoute)?;
        if !peer.addresses.contains(&source) {
            return Err(Drop::HopSource);
        }
        let key = hop::peek_route(datagram).filter(|_| datagram.len() >= hop::OVERHEAD).ok_or(Drop::HopMalformed)?;
        let keys = Arc::clone(&self.keys);
        let mac = keys.trunk(cluster, datagram[11]).ok_or(Drop::HopKey)?;
        self.take_opened(number, datagram, key, mac, From::Peer(source))
    }

    fn take_opened(
        &mut self,
        number: u32,
        datagram: &[u8],
        key: RouteKey,
        mac: &HopMac,
        from: From,
    ) -> Result<(), Drop> {
        let state = &mut *self.state;
        let parsed = hop::parse(datagram).map_err(Drop::from)?;
        if !parsed.to_client() {
            return Err(Drop::HopDirection);
        }
        let kind = parsed.kind() & !TO_CLIENT;
        if !matches!(kind, hop::DATA | hop::UNKNOWN_FLOW | hop::HERE) {
            return Err(Drop::HopType);
        }
        if parsed.hops_left() == 0 {
            return Err(Drop::HopLoop);
        }
        if !parsed.verify(mac) {
            return Err(Drop::HopMac);
        }
        if !is_timely(state, parsed.time_ms(), self.unix_ms) {
            return Err(Drop::HopTime);
        }
        let route = match from {
            From::Peer(_) if kind == hop::HERE => return Err(Drop::HopType),
            From::Peer(source) => self.state.routes.of_peer(&key, source),
            From::Transceiver(route) if parsed.return_slot() != 0 => {
                return self.send_on(number, datagram, &parsed, route);
            }
            From::Transceiver(route) => route,
        };
        if kind == hop::HERE {
            let mut records = parsed.records();
            let (Some(record), None) = (records.next(), records.next()) else { return Err(Drop::HopMalformed) };
            let ssrc = record.payload.try_into().map_err(|_| Drop::HopMalformed)?;
            self.heres.push(Here { path: record.path, ssrc, route });
            return Ok(());
        }
        let mut refused = Ok(());
        for record in parsed.records() {
            if kind == hop::DATA {
                let start = record.offset as u32;
                let payload = start..start + record.payload.len() as u32;
                let answer = Answer { path: &record.path, flags: record.flags, payload };
                // Of several faults the last one is counted.
                if let Err(drop) = self.on_record(number, key, route, &answer) {
                    refused = Err(drop);
                }
            } else {
                self.state.flows.on_unknown(&record.path, &key, self.now, &mut self.state.counters);
            }
        }
        refused
    }

    /// Sends an answer on to the relay where its client entered; the records stay as they are.
    fn send_on(&mut self, number: u32, datagram: &[u8], parsed: &Parsed<'_>, route: u32) -> Result<(), Drop> {
        let kind = parsed.kind();
        if kind & !TO_CLIENT == hop::HERE {
            return Err(Drop::HopType);
        }
        if parsed.hops_left() <= 1 {
            return Err(Drop::HopLoop);
        }
        let state = &mut *self.state;
        let (to, cluster) = state.slots.find(parsed.return_slot()).ok_or(Drop::HopSlot)?;
        let stamp = state.trunk_stamp(cluster, self.unix_ms).ok_or(Drop::HopSlot)?;
        let head = Head { kind, hops_left: parsed.hops_left() - 1, route: &parsed.route(), return_slot: 0 };
        self.onward.push(to, (number, datagram), parsed.records().map(span), &head, &stamp);
        if kind & !TO_CLIENT == hop::DATA {
            for record in parsed.records() {
                state.routes.get_mut(route).downlink += 1;
                state.counters.downlink.forwarded += 1;
                state.counters.downlink.forwarded_bytes += record.payload.len() as u64;
            }
        }
        Ok(())
    }

    fn on_record(&mut self, number: u32, key: RouteKey, route: u32, answer: &Answer) -> Result<(), Drop> {
        let state = &mut *self.state;
        let path = answer.path;
        let flow = state.flows.find(path).map(|id| state.flows.get(id));
        if state.routes.get(route).is_of_peer {
            let cluster = cluster_of(&key);
            let is_its_own = flow.is_some_and(|flow| cluster_of(&flow.route) == cluster);
            if !is_its_own && !state.asked_peers.may_answer(path, cluster, self.now) {
                return Err(Drop::HopUnasked);
            }
        }
        let own = flow.filter(|flow| flow.route == key);
        let local = if let Some(flow) = own {
            flow.local
        } else if state.listeners.contains(&u16::from_be_bytes([path[0], path[1]])) {
            // The answer to a check that made no flow, or to a tentative packet.
            match state.remembered_local(path) {
                0 => flow.map_or(0, |flow| flow.local),
                local => local,
            }
        } else {
            return Err(Drop::HopListener);
        };
        if answer.flags & ALIVE != 0 {
            let routes = &state.routes;
            let live = |key: &RouteKey| routes.contains(key);
            state.flows.on_alive(path, key, local, self.now, &live, &mut state.counters);
        }
        if answer.flags & (SPLIT | LAST_PART) != 0 {
            return Err(Drop::HopSplit);
        }
        if !answer.payload.is_empty() {
            state.routes.get_mut(route).downlink += 1;
            state.counters.downlink.forwarded += 1;
            state.counters.downlink.forwarded_bytes += u64::from(answer.payload.end - answer.payload.start);
            self.sends.push(ClientSend { path: *path, local, datagram: number, payload: answer.payload.clone() });
        }
        Ok(())
    }
}

fn is_timely(state: &mut State, sent_ms: u32, unix_ms: u32) -> bool {
    let offset = hop::time_offset_ms(sent_ms, unix_ms);
    let counters = &mut state.counters;
    if offset != counters.hop_time_offset_ms {
        counters.hop_time_offset_ms = offset;
        counters.hop_time_offset_max_ms = counters.hop_time_offset_max_ms.max(offset.abs());
    }
    offset.abs() <= i64::from(TIME_WINDOW_MS)
}
