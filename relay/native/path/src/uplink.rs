//! From clients to transceivers (docs/wire.md section 4).
//!
//! Rules, by what a datagram is:
//! 1. **Binding request with USERNAME**: opened by its ufrag, its integrity tried, and sent to the route that the ufrag
//!    names, whatever the flow map says; of another cluster, over the trunk to it. It makes, refreshes or moves a flow as [`crate::flows`] allows. Without a
//!    password key (an ingress-only relay) it is forwarded and makes no flow; the alive answer does. Wrong in any way:
//!    dropped.
//! 2. **Anything else of a known address** goes to its flow's transceiver, if that is live and has not said that the
//!    session is over.
//! 3. **RTP and RTCP of an unknown address** (or one whose flow is over): sent *tentatively* to the transceivers of the
//!    flows with the same SSRC, at most 4. No flow is made of it. DTLS never roams before a check.
//! 4. **RTP, RTCP and DTLS of an address without flow**, where no flow has the SSRC either, wait ([`crate::waiting`]) until
//!    the store of mappings knows the address, or else a transceiver has said that the client is its own. All live ones
//!    are asked, if they are no more than the limit. What the store knows, and HERE for the address, make a flow on
//!    probation and let go what waits; HERE for the SSRC lets its packets go *tentatively*. They are looked up after all
//!    others of their batch, which may have made them known, and questions leave last: they hold up no call.
//! 5. Everything else is dropped.
//!
//! Limits come after a request's integrity, never before. A datagram that does not fit its hop is cut in the middle; a
//! STUN request never is, as a check that crosses only in parts would promise a path that carries no whole packets.

use crate::checks;
use crate::counters::Drop;
use crate::datagram::{Kind, kind};
use crate::downlink::Here;
use crate::few::Few;
use crate::flows::FlowId;
use crate::hop::{self, LAST_PART, PathKey, SPLIT, TENTATIVE};
use crate::packets::{Gram, MAX_CLIENT_DATAGRAM, Packet, Slots};
use crate::peers::cluster_of;
use crate::questions::Questions;
use crate::rtp;
use crate::state::State;
use crate::stun;
use crate::waiting::{MAX_FOUND, NO_SSRC, QuestionId, Ssrc};

type Outcome = Result<(), Drop>;
/// The routes that a packet is tried with.
type Tried = Few<u32, MAX_FOUND>;

/// What comes of a batch. Of client datagrams packet `i` stands in slot `i`.
pub struct Out<'a> {
    /// Where the datagrams stand.
    pub slots: &'a mut Slots,
    /// The records to send.
    pub grams: &'a mut Vec<Gram>,
    /// Takes the numbers of the packets whose clients are unknown; None: they are looked up at once.
    pub unknown: Option<&'a mut Vec<u32>>,
    /// What to ask all transceivers.
    pub questions: &'a mut Questions,
}

/// One batch. `crowded`: whole addresses have to be counted.
struct Batch<'a> {
    state: &'a mut State,
    out: Out<'a>,
    now: f64,
    crowded: bool,
}

/// Forwards a batch of client datagrams, and leaves those of unknown clients to [`look_up`].
pub fn forward(state: &mut State, out: Out<'_>, now: f64, packets: &[Packet]) {
    let count = packets.len() as u64;
    state.counters.uplink.batches += 1;
    state.counters.uplink.received += count;
    let crowded = state.address_limit.begin(now, count);
    let mut batch = Batch { state, out, now, crowded };
    for (slot, packet) in packets.iter().enumerate() {
        let outcome = batch.take(slot as u32, packet);
        batch.count(outcome);
    }
}

/// Looks up the packets `unknown` of a batch: their clients may be known by now, else transceivers are asked.
pub fn look_up(state: &mut State, out: Out<'_>, now: f64, packets: &[Packet], unknown: &[u32]) {
    let mut batch = Batch { state, out, now, crowded: false };
    batch.state.waiting.expire(now, &mut batch.state.counters);
    for &slot in unknown {
        let packet = &packets[slot as usize];
        let is = kind(batch.out.slots.get(slot).payload(1)[0]);
        let outcome = batch.on_media(slot, packet, is);
        batch.count(outcome);
    }
}

/// Lets go what had waited for what these HERE say.
pub fn release(state: &mut State, out: Out<'_>, now: f64, heres: &[Here]) {
    let mut batch = Batch { state, out, now, crowded: false };
    batch.state.waiting.expire(now, &mut batch.state.counters);
    for here in heres {
        let outcome = batch.on_here(here);
        batch.count(outcome);
    }
}

/// Lets go what the store's answers say, and asks the transceivers for what it does not know.
pub fn on_stored(state: &mut State, out: Out<'_>, now: f64, answers: &[(PathKey, Option<hop::RouteKey>)]) {
    let mut batch = Batch { state, out, now, crowded: false };
    batch.state.waiting.expire(now, &mut batch.state.counters);
    for (path, route) in answers {
        batch.on_stored(path, *route);
    }
}

impl Batch<'_> {
    fn take(&mut self, slot: u32, packet: &Packet) -> Outcome {
        if packet.length == 0 || packet.length > MAX_CLIENT_DATAGRAM {
            return Err(Drop::ClientLength);
        }
        match kind(self.out.slots.get(slot).payload(1)[0]) {
            Kind::Other => Err(Drop::Protocol),
            Kind::Stun => self.on_stun(slot, packet),
            is @ (Kind::Dtls | Kind::Rtp) => {
                self.address_may(&packet.path)?;
                self.on_media(slot, packet, is)
            }
        }
    }

    fn count(&mut self, outcome: Outcome) {
        if let Err(refused) = outcome {
            self.state.counters.drop(refused);
        }
    }

    fn on_media(&mut self, slot: u32, packet: &Packet, is: Kind) -> Outcome {
        let found = self.state.flows.find(&packet.path);
        let State { flows, routes, .. } = &mut *self.state;
        let live = found.map(|id| flows.get(id)).filter(|flow| !flow.ended());
        let (Some(id), Some(route)) = (found, live.and_then(|flow| routes.way(&flow.route, &packet.path))) else {
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
            let payload = self.out.slots.get(slot).payload(packet.length);
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
        let key = flow.route;
        let route = self.state.routes.way(&key, &packet.path).ok_or(Drop::NoRoute)?;
        self.flow_may(id)?;
        if is_request && packet.length > self.state.routes.get(route).room() {
            return Err(Drop::HopRoom);
        }
        self.send(route, slot, packet, 0)
    }

    fn on_check(&mut self, slot: u32, packet: &Packet) -> Outcome {
        let state = &mut *self.state;
        let payload = self.out.slots.get(slot).payload(packet.length);
        let message = stun::parse(payload).map_err(|_| Drop::StunMalformed)?;
        let (ufrag, opened) = checks::open(&state.keys, &message)?;
        let route = state.routes.way(&opened.route, &packet.path).ok_or(Drop::NoRoute)?;
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
        let payload = self.out.slots.get(slot).payload(packet.length);
        let routes = self.state.routes_by_ssrc(&packet.path, payload);
        if !routes.is_empty() {
            return self.send_tentatively(slot, packet, &routes);
        }
        let state = &*self.state;
        match flow {
            Some(id) if state.flows.get(id).ended() => Err(Drop::SessionEnded),
            Some(_) => Err(Drop::NoRoute),
            None => match (ssrc(payload), &mut self.out.unknown) {
                (None, _) => Err(Drop::UnknownAddress),
                (_, Some(unknown)) => {
                    unknown.push(slot);
                    Ok(())
                }
                (Some(ssrc), None) => self.look_up(slot, packet, ssrc),
            },
        }
    }

    /// Asks whose an unknown address is, or does what was answered before.
    fn look_up(&mut self, slot: u32, packet: &Packet, ssrc: Ssrc) -> Outcome {
        let state = &mut *self.state;
        let path = &packet.path;
        let Some(id) = state.waiting.find(path) else {
            if self.was_loaded(packet) {
                return self.on_media(slot, packet, kind(self.out.slots.get(slot).payload(1)[0]));
            }
            let state = &mut *self.state;
            let transceivers = state.transceivers_to_ask();
            // The store may know clients of other clusters as well; transceivers are asked in our own alone.
            let may_ask = if state.exchange.is_none() { transceivers > 0 } else { state.routes.lead_anywhere() };
            if !may_ask {
                return Err(Drop::UnknownAddress);
            }
            let asked = if state.exchange.is_none() { transceivers } else { 0 };
            let id = state.waiting.ask(path, ssrc, packet.local, asked, self.now).ok_or(Drop::LimitQuestions)?;
            match state.exchange.as_mut().map(|store| store.ask(path, &mut state.counters)) {
                None => self.ask_all(path, ssrc),
                Some(true) => state.waiting.get_mut(id).awaits_store = true,
                Some(false) => self.ask_further(path, ssrc),
            }
            return self.hold(id, ssrc, slot, packet);
        };
        let transceivers = state.transceivers_to_ask();
        let question = state.waiting.get_mut(id);
        if ssrc != NO_SSRC && question.ssrc == NO_SSRC && !question.is_answered {
            if question.awaits_store || transceivers == 0 {
                question.ssrc = ssrc;
            } else if state.waiting.ask_for_ssrc(id, ssrc, transceivers, self.now) {
                self.ask_all(path, ssrc);
            } else {
                return Err(Drop::LimitQuestions);
            }
        } else if ssrc == question.ssrc {
            let routes: Tried = question.found().iter().filter_map(|route| state.routes.find(route)).collect();
            if !routes.is_empty() {
                return self.send_tentatively(slot, packet, &routes);
            }
        }
        self.hold(id, ssrc, slot, packet)
    }

    /// Makes a flow of what was loaded for an address at the start.
    fn was_loaded(&mut self, packet: &Packet) -> bool {
        let state = &mut *self.state;
        let Some(route) = state.exchange.as_mut().and_then(|store| store.loaded(&packet.path)) else { return false };
        if !state.routes.contains(&route) {
            return false;
        }
        state.counters.store_loaded += 1;
        let routes = &state.routes;
        let live = |key: &hop::RouteKey| routes.contains(key);
        state.flows.on_here(&packet.path, route, packet.local, self.now, &live, &mut state.counters);
        state.flows.find(&packet.path).is_some() // a full table refuses it
    }

    /// Takes the store's word for a client, or asks the transceivers when it has none.
    fn on_stored(&mut self, path: &PathKey, key: Option<hop::RouteKey>) {
        let state = &mut *self.state;
        let Some(id) = state.waiting.find(path) else { return };
        let question = state.waiting.get_mut(id);
        if !std::mem::take(&mut question.awaits_store) {
            return;
        }
        let (ssrc, local) = (question.ssrc, question.local);
        let Some((key, route)) = key.and_then(|key| Some((key, state.routes.way(&key, path)?))) else {
            return self.ask_further(path, ssrc);
        };
        let routes = &state.routes;
        let live = |key: &hop::RouteKey| routes.contains(key);
        if !state.flows.on_here(path, key, local, self.now, &live, &mut state.counters) {
            return;
        }
        question.is_answered = true;
        state.counters.store_found += 1;
        let released = state.waiting.release(id, NO_SSRC, self.out.slots, &mut state.counters);
        for &(slot, length) in released.as_slice() {
            let outcome = self.send(route, slot, &Packet { path: *path, local, length }, 0);
            self.count(outcome);
        }
    }

    /// Asks the transceivers what the store does not know.
    fn ask_further(&mut self, path: &PathKey, ssrc: Ssrc) {
        let transceivers = self.state.transceivers_to_ask();
        if self.state.waiting.ask_further(path, transceivers, self.now) {
            self.ask_all(path, ssrc);
        }
    }

    fn ask_all(&mut self, path: &PathKey, ssrc: Ssrc) {
        if self.state.transceivers_to_ask() > 0 {
            self.state.counters.questions += 1;
            self.out.questions.ask(path, ssrc);
        }
    }

    fn hold(&mut self, id: QuestionId, ssrc: Ssrc, slot: u32, packet: &Packet) -> Outcome {
        let payload = self.out.slots.get(slot).payload(packet.length);
        self.state.waiting.hold(id, ssrc, payload, self.now, &mut self.state.counters)
    }

    /// Takes a transceiver's word for a client, if it was asked for it.
    fn on_here(&mut self, here: &Here) -> Outcome {
        let state = &mut *self.state;
        let id = state.waiting.find(&here.path).ok_or(Drop::HopHere)?;
        let question = state.waiting.get_mut(id);
        let local = question.local;
        let key = state.routes.get(here.route).key;
        let is_address = here.ssrc == NO_SSRC;
        if question.is_answered {
            return Err(Drop::HopHere);
        }
        if is_address {
            let routes = &state.routes;
            let live = |key: &hop::RouteKey| routes.contains(key);
            if !state.flows.on_here(&here.path, key, local, self.now, &live, &mut state.counters) {
                return Err(Drop::HopHere);
            }
            question.is_answered = true;
            state.counters.found_by_address += 1;
        } else {
            if here.ssrc != question.ssrc || !question.add_found(key) {
                return Err(Drop::HopHere);
            }
            state.counters.found_by_ssrc += 1;
        }
        let released = state.waiting.release(id, here.ssrc, self.out.slots, &mut state.counters);
        for &(slot, length) in released.as_slice() {
            let packet = Packet { path: here.path, local, length };
            let outcome = if is_address {
                self.send(here.route, slot, &packet, 0)
            } else {
                self.send_tentatively(slot, &packet, &Tried::from_iter([here.route]))
            };
            self.count(outcome);
        }
        Ok(())
    }

    fn send_tentatively(&mut self, slot: u32, packet: &Packet, routes: &Tried) -> Outcome {
        let state = &mut *self.state;
        if !state.tentative_by_client.allow(packet.path, self.now) || !state.tentative.allow((), self.now) {
            return Err(Drop::LimitTentative);
        }
        state.remember_local(&packet.path, packet.local);
        state.counters.tentative += 1;
        let mut outcome = Ok(());
        let routes = routes.as_slice();
        for (nth, &route) in routes.iter().enumerate() {
            let copy = if nth + 1 < routes.len() { self.out.slots.copy(slot, 0, packet.length) } else { slot };
            outcome = self.send(route, copy, packet, TENTATIVE);
        }
        outcome
    }

    fn send(&mut self, route: u32, slot: u32, packet: &Packet, flags: u8) -> Outcome {
        let way = self.state.routes.get(route);
        let (room, cluster) = (way.room(), cluster_of(&way.key));
        let lacks_key = || self.state.trunk_keys.iter().all(|key| key.cluster != cluster);
        if way.is_of_peer {
            if lacks_key() {
                return Err(Drop::PeerKey);
            }
            // What does not fit is no news for the peer.
            if packet.length <= room || hop::split_at(packet.length, room).is_some() {
                self.state.asked_peers.note(&packet.path, cluster, self.now);
            }
        }
        let length = packet.length;
        if length <= room {
            self.add(slot, length, &packet.path, flags, 0, route);
        } else {
            let middle = hop::split_at(length, room).ok_or(Drop::HopRoom)?;
            self.state.split_id = self.state.split_id.wrapping_add(1);
            let split_id = self.state.split_id;
            self.state.counters.split += 1;
            let second = self.out.slots.copy(slot, middle, length);
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
        hop::write_record(self.out.slots.get_mut(slot).record(), length as u16, flags, path, split_id);
        self.out.grams.push(Gram { slot, length: length as u16, route });
    }

    fn address_may(&mut self, path: &PathKey) -> Outcome {
        if self.crowded && !self.state.address_limit.allow(hop::client_address(path)) {
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
        let packet = self.out.slots.get(slot).payload(length);
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
    fn routes_by_ssrc(&mut self, path: &PathKey, datagram: &[u8]) -> Tried {
        if kind(datagram[0]) != Kind::Rtp {
            return Tried::default();
        }
        let Some(ssrc) = rtp::peek_ssrc(datagram) else { return Tried::default() };
        let State { flows, routes, .. } = self;
        let candidates = flows.candidates(ssrc, &hop::client_address(path));
        let flows = candidates.as_slice().iter().map(|&id| flows.get(id));
        flows.filter(|flow| !flow.ended()).filter_map(|flow| routes.way(&flow.route, path)).collect()
    }
}

/// The SSRC of RTP or RTCP, [`NO_SSRC`] for DTLS, and None for what is too short for an SSRC.
fn ssrc(datagram: &[u8]) -> Option<Ssrc> {
    if kind(datagram[0]) == Kind::Rtp { rtp::peek_ssrc(datagram) } else { Some(NO_SSRC) }
}
