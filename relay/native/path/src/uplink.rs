//! From clients to transceivers (docs/wire.md section 4).
//!
//! Rules, by what a datagram is:
//! 1. **Binding request with USERNAME**: opened by its ufrag, its integrity tried, and sent to the route that the ufrag
//!    names, whatever the flow map says. It makes, refreshes or moves a flow as [`crate::flows`] allows. Without a
//!    password key (an ingress-only relay) it is forwarded and makes no flow; the alive answer does. Wrong in any way:
//!    dropped.
//! 2. **Anything else of a known address** goes to its flow's transceiver, if that is live and has not said that the
//!    session is over.
//! 3. **RTP and RTCP of an unknown address** (or one whose flow is over): sent *tentatively* to the transceivers of the
//!    flows with the same SSRC, at most 4. No flow is made of it. DTLS never roams before a check.
//! 4. Everything else is dropped.
//!
//! Limits come after a request's integrity, never before. A datagram that does not fit its hop is cut in the middle; a
//! STUN request never is, as a check that crosses only in parts would promise a path that carries no whole packets.

use crate::counters::Drop;
use crate::datagram::{Kind, kind};
use crate::flows::FlowId;
use crate::hop::{self, LAST_PART, PathKey, SPLIT, TENTATIVE};
use crate::packets::{Gram, MAX_CLIENT_DATAGRAM, Packet, Slots};
use crate::rtp;
use crate::state::State;
use crate::stun;
use crate::ufrag;

type Outcome = Result<(), Drop>;

/// One batch. `crowded`: whole addresses have to be counted.
struct Batch<'a> {
    state: &'a mut State,
    slots: &'a mut Slots,
    grams: &'a mut Vec<Gram>,
    now: f64,
    crowded: bool,
}

/// Appends to `grams` the records to send for a batch of client datagrams: packet `i` stands in slot `i`.
pub fn forward(state: &mut State, slots: &mut Slots, grams: &mut Vec<Gram>, now: f64, packets: &[Packet]) {
    let count = packets.len() as u64;
    state.counters.uplink.batches += 1;
    state.counters.uplink.received += count;
    let crowded = state.address_limit.begin(now, count);
    let mut batch = Batch { state, slots, grams, now, crowded };
    for (slot, packet) in packets.iter().enumerate() {
        if let Err(refused) = batch.take(slot as u32, packet) {
            batch.state.counters.drop(refused);
        }
    }
}

impl Batch<'_> {
    fn take(&mut self, slot: u32, packet: &Packet) -> Outcome {
        if packet.length == 0 || packet.length > MAX_CLIENT_DATAGRAM {
            return Err(Drop::ClientLength);
        }
        match kind(self.slots.get(slot).payload(1)[0]) {
            Kind::Other => Err(Drop::Protocol),
            Kind::Stun => self.on_stun(slot, packet),
            is @ (Kind::Dtls | Kind::Rtp) => self.on_media(slot, packet, is),
        }
    }

    fn on_media(&mut self, slot: u32, packet: &Packet, is: Kind) -> Outcome {
        self.address_may(&packet.path)?;
        let found = self.state.flows.find(&packet.path);
        let flow = found.map(|id| self.state.flows.get(id));
        let live = flow.filter(|flow| !flow.ended());
        let (Some(id), Some(route)) = (found, live.and_then(|flow| self.state.routes.find(&flow.route))) else {
            return self.roam(slot, packet, found);
        };
        self.flow_may(id)?;
        if is == Kind::Rtp {
            self.learn_ssrc(id, slot, packet.length);
        }
        self.send(route, slot, packet, 0)
    }

    fn on_stun(&mut self, slot: u32, packet: &Packet) -> Outcome {
        let (is_check, is_request) = {
            let payload = self.slots.get(slot).payload(packet.length);
            let message = stun::parse(payload).map_err(|_| Drop::StunMalformed)?;
            (message.is_binding_request() && message.username().is_some(), message.is_request())
        };
        if is_check {
            return self.on_check(slot, packet);
        }
        // Indications (all that libnice sends after set-up), answers, requests that name no session.
        self.address_may(&packet.path)?;
        let id = self.state.flows.find(&packet.path).ok_or(Drop::UnknownAddress)?;
        let flow = self.state.flows.get(id);
        if flow.ended() {
            return Err(Drop::SessionEnded);
        }
        let route = self.state.routes.find(&flow.route).ok_or(Drop::NoRoute)?;
        self.flow_may(id)?;
        if is_request && packet.length > self.state.routes.get(route).room() {
            return Err(Drop::HopRoom);
        }
        self.send(route, slot, packet, 0)
    }

    fn on_check(&mut self, slot: u32, packet: &Packet) -> Outcome {
        let state = &mut *self.state;
        let payload = self.slots.get(slot).payload(packet.length);
        let message = stun::parse(payload).map_err(|_| Drop::StunMalformed)?;
        let text = message.server_ufrag().ok_or(Drop::UfragShape)?;
        let ufrag = ufrag::split(text).map_err(|_| Drop::UfragShape)?;
        let opened = state.keys.open(&ufrag).ok_or(Drop::UfragUnknown)?;
        if opened.password.is_some_and(|password| !message.verify_integrity(&password)) {
            return Err(Drop::Integrity);
        }
        let route = state.routes.find(&opened.route).ok_or(Drop::NoRoute)?;
        self.address_may(&packet.path)?;
        let state = &mut *self.state;
        if !state.checks_by_client.allow(packet.path, self.now) {
            return Err(Drop::LimitChecks);
        }
        let answered = state.flows.find(&packet.path).is_some_and(|id| {
            let flow = state.flows.get(id);
            flow.route == opened.route && !flow.on_probation() && !flow.ended()
        });
        // A client that was answered does not suffer from replays.
        if !answered && !state.checks_by_ufrag.allow(ufrag, self.now) {
            return Err(Drop::LimitChecks);
        }
        if packet.length > state.routes.get(route).room() {
            return Err(Drop::HopRoom);
        }
        if opened.password.is_some() {
            let routes = &state.routes;
            let live = |key: &hop::RouteKey| routes.contains(key);
            let flows = &mut state.flows;
            flows.on_verified(&packet.path, opened.route, &ufrag, packet.local, self.now, &live, &mut state.counters);
        }
        if state.flows.find(&packet.path).is_none_or(|id| state.flows.get(id).route != opened.route) {
            state.remember_local(&packet.path, packet.local);
        }
        self.send(route, slot, packet, 0)
    }

    fn roam(&mut self, slot: u32, packet: &Packet, flow: Option<FlowId>) -> Outcome {
        let state = &mut *self.state;
        let (routes, count) = state.routes_by_ssrc(&packet.path, self.slots.get(slot).payload(packet.length));
        if count == 0 {
            return Err(match flow {
                None => Drop::UnknownAddress,
                Some(id) if state.flows.get(id).ended() => Drop::SessionEnded,
                Some(_) => Drop::NoRoute,
            });
        }
        if !state.tentative_by_client.allow(packet.path, self.now) || !state.tentative.allow((), self.now) {
            return Err(Drop::LimitTentative);
        }
        state.remember_local(&packet.path, packet.local);
        state.counters.tentative += 1;
        let mut outcome = Ok(());
        for (nth, &route) in routes[..count].iter().enumerate() {
            let copy = if nth + 1 < count { self.slots.copy(slot, 0, packet.length) } else { slot };
            outcome = self.send(route, copy, packet, TENTATIVE);
        }
        outcome
    }

    fn send(&mut self, route: u32, slot: u32, packet: &Packet, flags: u8) -> Outcome {
        let room = self.state.routes.get(route).room();
        let length = packet.length;
        if length <= room {
            self.add(slot, length, &packet.path, flags, 0, route);
        } else {
            let middle = hop::split_at(length, room).ok_or(Drop::HopRoom)?;
            self.state.split_id = self.state.split_id.wrapping_add(1);
            let split_id = self.state.split_id;
            self.state.counters.split += 1;
            let second = self.slots.copy(slot, middle, length);
            self.add(slot, middle, &packet.path, flags | SPLIT, split_id, route);
            let last = flags | SPLIT | LAST_PART;
            self.add(second, length - middle, &packet.path, last, split_id, route);
        }
        self.state.routes.get_mut(route).uplink += 1;
        let traffic = &mut self.state.counters.uplink;
        traffic.forwarded += 1;
        traffic.forwarded_bytes += length as u64;
        Ok(())
    }

    fn add(&mut self, slot: u32, length: usize, path: &PathKey, flags: u8, split_id: u16, route: u32) {
        hop::write_record(self.slots.get_mut(slot).record(), length as u16, flags, path, split_id);
        self.grams.push(Gram { slot, length: length as u16, route });
    }

    fn address_may(&mut self, path: &PathKey) -> Outcome {
        if self.crowded && !self.state.address_limit.allow(address(path)) {
            return Err(Drop::LimitAddress);
        }
        Ok(())
    }

    fn flow_may(&mut self, id: FlowId) -> Outcome {
        let rate = self.state.client_rate;
        let flow = self.state.flows.get_mut(id);
        let full_at = flow.limit_full_at.max(self.now);
        if full_at - self.now > rate.tolerance {
            return Err(Drop::LimitClient);
        }
        flow.limit_full_at = full_at + rate.interval;
        Ok(())
    }

    fn learn_ssrc(&mut self, id: FlowId, slot: u32, length: usize) {
        let packet = self.slots.get(slot).payload(length);
        let flow = self.state.flows.get(id);
        let known = flow.ssrc();
        if known.is_some_and(|known| packet.get(8..12) == Some(&known)) {
            return;
        }
        // On probation the packet may be anybody's; and RTCP of a client that also sends RTP would only swap the two.
        if flow.on_probation() || (known.is_some() && rtp::is_rtcp(packet)) {
            return;
        }
        // What is too short to be either, SRTCP with its tag included (RFC 3711 section 3.4), says nothing.
        if length < rtp::HEADER_LENGTH {
            return;
        }
        if let Some(ssrc) = rtp::peek_ssrc(packet) {
            self.state.flows.learn_ssrc(id, ssrc);
        }
    }
}

impl State {
    /// The live transceivers of the flows that send the datagram's SSRC, each once.
    fn routes_by_ssrc(&self, path: &PathKey, datagram: &[u8]) -> ([u32; 4], usize) {
        let mut routes = [0; 4];
        let mut count = 0;
        if kind(datagram[0]) != Kind::Rtp {
            return (routes, 0);
        }
        let Some(ssrc) = rtp::peek_ssrc(datagram) else { return (routes, 0) };
        for &id in self.flows.candidates(ssrc, &address(path)).as_slice() {
            let flow = self.flows.get(id);
            match self.routes.find(&flow.route) {
                Some(route) if !flow.ended() && !routes[..count].contains(&route) => {
                    routes[count] = route;
                    count += 1;
                }
                _ => {}
            }
        }
        (routes, count)
    }
}

fn address(path: &PathKey) -> [u8; 16] {
    *path.last_chunk().expect("a path ends with 16 bytes of address")
}
