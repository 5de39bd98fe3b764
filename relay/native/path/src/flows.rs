//! The flow map: which transceiver a client address belongs to (docs/wire.md section 4).
//!
//! A flow is named by a *path key*, the 20 bytes that a hop record carries: listener 2, client port 2, client address 16.
//!
//! Rules:
//! * A flow is made by a verified Binding request, by an *alive* answer of a transceiver (roaming), or by its HERE for an
//!   address that has none (another relay's flow).
//! * It lives by verified requests for its own route and by *alive* answers of its own transceiver. Packets of the client
//!   never count: anybody can send them.
//! * It is *quiet* when it had neither for 7 s, and at once when its route is not live or its transceiver has given it up
//!   (UNKNOWN-FLOW: the session has ended, or has newer paths). Only a quiet flow's address may move to another route;
//!   then it is a new flow.
//! * A flow that a request or HERE made is on *probation* until its transceiver has answered that address (alive), at most
//!   for 5 s: then it is removed, and the client's next check makes it anew. So a recorded check that is replayed from many
//!   addresses fills nothing: at most 16 flows of one ufrag are on probation (the oldest goes). Nor does what fakes the
//!   addresses of live clients: HERE says that a client was there, alive that what came from there was its own.
//! * Of one ufrag at most 16 flows are *confirmed*: beyond, the one of them that was silent longest goes. So fresh checks
//!   of somebody with a session of his own fill nothing either. Transceivers keep 16 paths of a session and give up the
//!   others, which bounds what comes by roaming and by ICE restarts: those flows are *ended*.
//! * When the table is full, room is made by the first of these that there is: the flow that ended first; the oldest on
//!   probation, if those hold more than a tenth of the table; the confirmed flow that was silent longest, if it is quiet;
//!   the oldest on probation. A live confirmed flow never makes room; when all are such, the new one is refused.
//! * Removed: confirmed flows after 90 s without life, ended ones 30 s after their end.
//! * Where mappings are kept, a confirmed flow is named to their store at once, and again every 30 s in which its
//!   transceiver vouched for it.
//! * No scan: the flows of each state wait in order. A confirmed flow moves to the end of its line at most once a second,
//!   so that it is cheap for each packet; what is looked for at the front is found at most a second late.
//! * Memory is reserved once: 128 bytes for a flow, and 16 to 32 for its places in the indices, whose lengths are powers of
//!   two. What was never used of it was never touched, so it costs nothing.

use crate::counters::{Counters, FlowEvent};
use crate::exchange::{Named, refresh_is_due};
pub use crate::flow::{Flow, FlowId, LocalId, State};
use crate::hop::{PathKey, RouteKey};
use crate::index::{Grouped, Groups, KeyIndex};
use crate::lines::{Line, linked};
use crate::slots::Slots;
pub use crate::ssrc::Candidates;
use crate::ssrc::SsrcIndex;
use crate::ufrag::Ufrag;

/// Seconds without life after which an address may move.
pub const QUIET_AFTER: f64 = 7.0;
/// Seconds without life after which a confirmed flow is removed.
pub const IDLE_EXPIRY: f64 = 90.0;
/// Seconds that an ended flow is kept. A client whose consent ran out stops within them (RFC 7675); until then its drops
/// say why.
pub const ENDED_KEPT: f64 = 30.0;
/// Seconds that a transceiver has for its first answer.
pub const PROBATION: f64 = 5.0;
/// Most flows of one ufrag on probation, where nothing else is set.
pub const PROBATION_PER_UFRAG: usize = 16;
/// The paths that a transceiver keeps of a session: no flow of a path that it knows has to go.
pub const CONFIRMED_PER_UFRAG: usize = 16;
/// Seconds between two moves of a confirmed flow to the end of its line.
pub const ORDER_EVERY: f64 = 1.0;
/// Flows looked at in one call of `expire`, so that it never holds up packets.
pub const EXPIRY_STEPS: usize = 1_000;

linked!(
    /// All flows, as they were made.
    InOrder by in_order
);

linked!(
    /// The flows of one state.
    InLine by in_line
);

linked!(
    /// Flows of the same state that checks of the same ufrag made.
    ByUfrag by in_ufrag
);

impl Grouped for ByUfrag {
    type Key = (State, Ufrag);

    fn key(flow: &Flow) -> Self::Key {
        (flow.state, flow.ufrag)
    }
}

/// All flows of one data thread.
pub struct FlowMap {
    capacity: usize,
    probation_share: usize,
    probation_per_ufrag: usize,
    last_life: f64,
    slots: Slots,
    by_key: KeyIndex,
    by_ufrag: Groups<ByUfrag>,
    ssrcs: SsrcIndex,
    all: Line<InOrder>,
    /// By `State as usize`.
    lines: [Line<InLine>; 3],
    /// Whom to keep; None where nobody does.
    pub named: Option<Named>,
}

impl FlowMap {
    /// Makes an empty map for at most `capacity` flows, of which at most `probation_per_ufrag` of one ufrag are on
    /// probation.
    pub fn new(capacity: usize, probation_per_ufrag: usize) -> Self {
        let slots = u32::try_from(capacity).unwrap_or(u32::MAX - 1);
        Self {
            capacity: slots as usize,
            probation_share: (capacity / 10).max(1),
            probation_per_ufrag,
            last_life: f64::NEG_INFINITY,
            slots: Slots::new(slots),
            by_key: KeyIndex::new(slots),
            by_ufrag: Groups::new(slots),
            ssrcs: SsrcIndex::new(slots),
            all: Line::new(),
            lines: [Line::new(), Line::new(), Line::new()],
            named: None,
        }
    }

    /// Returns the number of flows.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Tells whether there is no flow.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of flows on probation.
    pub fn on_probation(&self) -> usize {
        self.line(State::Probation).len()
    }

    /// The number of flows whose transceiver has given them up.
    pub fn ended(&self) -> usize {
        self.line(State::Ended).len()
    }

    /// When any flow last showed life; minus infinity for never.
    pub fn last_life(&self) -> f64 {
        self.last_life
    }

    /// Returns the flow of a client path.
    pub fn find(&self, key: &PathKey) -> Option<FlowId> {
        self.by_key.find(&self.slots, key)
    }

    /// Returns a flow that was found in this batch.
    pub fn get(&self, id: FlowId) -> &Flow {
        &self.slots[id]
    }

    /// Like `get`, to note its rate limit.
    pub fn get_mut(&mut self, id: FlowId) -> &mut Flow {
        &mut self.slots[id]
    }

    /// Returns at most `limit` flows, the oldest first.
    pub fn first(&self, limit: usize) -> impl Iterator<Item = &Flow> {
        self.all.iter(&self.slots).take(limit).map(|id| &self.slots[id])
    }

    /// Tells whether the flow's address may move to another route. `live` knows the routes of the route table.
    pub fn is_quiet(&self, id: FlowId, now: f64, live: &impl Fn(&RouteKey) -> bool) -> bool {
        let flow = &self.slots[id];
        flow.ended() || now - flow.heard_at() >= QUIET_AFTER || !live(&flow.route)
    }

    /// Notes that a flow sends `ssrc`; what it sent before is forgotten.
    pub fn learn_ssrc(&mut self, id: FlowId, ssrc: [u8; 4]) {
        self.ssrcs.learn(&mut self.slots, id, ssrc);
    }

    /// Returns at most 4 flows that send `ssrc`, those of client IP `address` first, within them the latest.
    pub fn candidates(&self, ssrc: [u8; 4], address: &[u8; 16]) -> Candidates {
        self.ssrcs.candidates(&self.slots, ssrc, address)
    }

    /// Takes note of a Binding request with valid integrity from `key`, whose ufrag names the live `route`.
    #[expect(clippy::too_many_arguments, reason = "what the request says, when it came, and what is known and counted")]
    pub fn on_verified(
        &mut self,
        key: &PathKey,
        route: RouteKey,
        ufrag: &Ufrag,
        local: LocalId,
        now: f64,
        live: &impl Fn(&RouteKey) -> bool,
        counters: &mut Counters,
    ) {
        let known = self.find(key);
        if let Some(id) = known.filter(|&id| self.slots[id].route == route && !self.slots[id].ended()) {
            if self.is_quiet(id, now, live) {
                self.slots[id].local = local;
            }
            self.slots[id].verified_at = now;
            self.last_life = now;
            if !self.slots[id].on_probation() {
                self.keep_order(id, now);
            }
            return;
        }
        if !self.vacate(known, route, now, live, counters) {
            return;
        }
        self.make_room_for_sibling((State::Probation, *ufrag), counters);
        let mut flow = Flow::new(*key, route, local, State::Probation, now + PROBATION);
        flow.ufrag = *ufrag;
        flow.verified_at = now;
        self.add(flow, now, live, counters);
    }

    /// Takes note that the transceiver of `route` vouches for the client at `key`.
    pub fn on_alive(
        &mut self,
        key: &PathKey,
        route: RouteKey,
        local: LocalId,
        now: f64,
        live: &impl Fn(&RouteKey) -> bool,
        counters: &mut Counters,
    ) {
        let known = self.find(key);
        if let Some(id) = known.filter(|&id| self.slots[id].route == route) {
            let before = std::mem::replace(&mut self.slots[id].alive_at, now);
            self.last_life = now;
            if self.slots[id].state == State::Confirmed {
                self.keep_order(id, now);
                if let Some(named) = self.named.as_mut().filter(|_| refresh_is_due(key, before, now)) {
                    named.name(key, route, counters);
                }
            } else {
                self.confirm(id, now, counters);
            }
            return;
        }
        if !self.vacate(known, route, now, live, counters) {
            return;
        }
        let mut flow = Flow::new(*key, route, local, State::Confirmed, now);
        flow.alive_at = now;
        if self.add(flow, now, live, counters) {
            counters.event(FlowEvent::Roamed);
            self.name(key, route, counters);
        }
    }

    /// Takes note that the transceiver of `route` knows the client at `key`; false when that is another's by now.
    pub fn on_here(
        &mut self,
        key: &PathKey,
        route: RouteKey,
        local: LocalId,
        now: f64,
        live: &impl Fn(&RouteKey) -> bool,
        counters: &mut Counters,
    ) -> bool {
        if let Some(id) = self.find(key) {
            return self.slots[id].route == route && !self.slots[id].ended();
        }
        let mut flow = Flow::new(*key, route, local, State::Probation, now + PROBATION);
        flow.alive_at = now;
        self.add(flow, now, live, counters);
        true
    }

    /// Takes over what another worker of this relay knows of a client whose packets come here now.
    ///
    /// It is a copy: answers on their way still find the flow where it was, and there it expires by itself.
    pub fn adopt(&mut self, known: &Flow, now: f64, live: &impl Fn(&RouteKey) -> bool, counters: &mut Counters) {
        if known.ended() || self.find(&known.key).is_some() {
            return;
        }
        if known.has_ufrag() {
            self.make_room_for_sibling((known.state, known.ufrag), counters);
        }
        let ordered_at = if known.on_probation() { known.ordered_at } else { now };
        let mut flow = Flow::new(known.key, known.route, known.local, known.state, ordered_at);
        flow.ufrag = known.ufrag;
        flow.verified_at = known.verified_at;
        flow.alive_at = known.alive_at;
        flow.limit_full_at = known.limit_full_at;
        // Packets are no sign of life.
        let last_life = self.last_life.max(known.heard_at());
        self.add(flow, now, live, counters);
        self.last_life = last_life;
        if let (Some(id), Some(ssrc)) = (self.find(&known.key), known.ssrc) {
            self.learn_ssrc(id, ssrc);
        }
    }

    /// Takes note that the transceiver of `route` does not know the client at `key`, or not any more.
    pub fn on_unknown(&mut self, key: &PathKey, route: &RouteKey, now: f64, counters: &mut Counters) {
        let known = self.find(key);
        if let Some(id) = known.filter(|&id| self.slots[id].route == *route && !self.slots[id].ended()) {
            self.leave_line(id);
            self.slots[id].state = State::Ended;
            self.slots[id].ordered_at = now;
            self.join_line(id);
            counters.event(FlowEvent::Ended);
        }
    }

    /// Removes what is due. To be called at least once a second; the work of one call is bounded.
    pub fn expire(&mut self, now: f64, counters: &mut Counters) {
        for _ in 0..EXPIRY_STEPS {
            let Some((id, event)) = self.due(now) else {
                return;
            };
            self.remove(id, event, counters);
        }
    }

    fn due(&self, now: f64) -> Option<(FlowId, FlowEvent)> {
        let first = |state, is_due: &dyn Fn(&Flow) -> bool| self.line(state).first().filter(|&id| is_due(self.get(id)));
        if let Some(id) = first(State::Probation, &|flow| now >= flow.ordered_at) {
            return Some((id, FlowEvent::ProbationOver));
        }
        first(State::Ended, &|flow| now - flow.ordered_at >= ENDED_KEPT)
            .or_else(|| first(State::Confirmed, &|flow| now - flow.heard_at() >= IDLE_EXPIRY))
            .map(|id| (id, FlowEvent::Expired))
    }

    /// Makes the address free for `route`; false when its flow must stay.
    fn vacate(
        &mut self,
        known: Option<FlowId>,
        route: RouteKey,
        now: f64,
        live: &impl Fn(&RouteKey) -> bool,
        counters: &mut Counters,
    ) -> bool {
        let Some(id) = known else {
            return true;
        };
        if !self.is_quiet(id, now, live) {
            counters.event(FlowEvent::Kept);
            return false;
        }
        let event = if self.slots[id].route == route { FlowEvent::Renewed } else { FlowEvent::Moved };
        self.remove(id, event, counters);
        true
    }

    fn add(&mut self, flow: Flow, now: f64, live: &impl Fn(&RouteKey) -> bool, counters: &mut Counters) -> bool {
        if self.len() >= self.capacity && !self.evict(now, live, counters) {
            counters.event(FlowEvent::Refused);
            return false;
        }
        let id = self.slots.put(flow);
        self.by_key.add(&mut self.slots, id);
        self.all.add(&mut self.slots, id);
        self.join_line(id);
        self.last_life = now;
        counters.event(FlowEvent::Created);
        true
    }

    fn confirm(&mut self, id: FlowId, now: f64, counters: &mut Counters) {
        self.leave_line(id);
        self.slots[id].state = State::Confirmed;
        self.slots[id].ordered_at = now;
        if self.slots[id].has_ufrag() {
            self.make_room_for_sibling((State::Confirmed, self.slots[id].ufrag), counters);
        }
        self.join_line(id);
        counters.event(FlowEvent::Confirmed);
        let (key, route) = (self.slots[id].key, self.slots[id].route);
        self.name(&key, route, counters);
    }

    /// Has a confirmed flow kept.
    fn name(&mut self, key: &PathKey, route: RouteKey, counters: &mut Counters) {
        if let Some(named) = &mut self.named {
            named.name(key, route, counters);
        }
    }

    /// Makes room for one more flow of a ufrag in a state: of those on probation the oldest goes, of the confirmed ones
    /// the one that was silent longest.
    fn make_room_for_sibling(&mut self, of: (State, Ufrag), counters: &mut Counters) {
        let (mut siblings, mut oldest, mut silent, mut heard_at) = (0, None, None, f64::INFINITY);
        // They come latest first; of equals the oldest goes.
        for id in self.by_ufrag.iter(&self.slots, &of) {
            siblings += 1;
            oldest = Some(id);
            if self.slots[id].heard_at() <= heard_at {
                (silent, heard_at) = (Some(id), self.slots[id].heard_at());
            }
        }
        let (limit, surplus, event) = if of.0 == State::Probation {
            (self.probation_per_ufrag, oldest, FlowEvent::EvictedProbation)
        } else {
            (CONFIRMED_PER_UFRAG, silent, FlowEvent::EvictedSurplus)
        };
        if let Some(surplus) = surplus.filter(|_| siblings >= limit) {
            self.remove(surplus, event, counters);
        }
    }

    /// Notes life of a confirmed flow.
    fn keep_order(&mut self, id: FlowId, now: f64) {
        if now - self.slots[id].ordered_at >= ORDER_EVERY {
            self.slots[id].ordered_at = now;
            self.lines[State::Confirmed as usize].move_to_end(&mut self.slots, id);
        }
    }

    fn evict(&mut self, now: f64, live: &impl Fn(&RouteKey) -> bool, counters: &mut Counters) -> bool {
        let [waiting, silent, ended] = self.lines.each_ref().map(Line::first);
        let (id, event) = if let Some(ended) = ended {
            (ended, FlowEvent::EvictedEnded)
        } else if let Some(waiting) = waiting.filter(|_| self.on_probation() > self.probation_share) {
            (waiting, FlowEvent::EvictedProbation)
        } else if let Some(silent) = silent.filter(|&id| self.is_quiet(id, now, live)) {
            (silent, FlowEvent::EvictedQuiet)
        } else if let Some(waiting) = waiting {
            (waiting, FlowEvent::EvictedProbation)
        } else {
            return false;
        };
        self.remove(id, event, counters);
        true
    }

    fn remove(&mut self, id: FlowId, event: FlowEvent, counters: &mut Counters) {
        self.by_key.remove(&mut self.slots, id);
        self.all.remove(&mut self.slots, id);
        self.ssrcs.forget(&mut self.slots, id);
        self.leave_line(id);
        self.slots.free(id);
        counters.event(event);
    }

    fn line(&self, state: State) -> &Line<InLine> {
        &self.lines[state as usize]
    }

    fn join_line(&mut self, id: FlowId) {
        if self.slots[id].has_ufrag() {
            self.by_ufrag.add(&mut self.slots, id);
        }
        let state = self.slots[id].state;
        self.lines[state as usize].add(&mut self.slots, id);
    }

    fn leave_line(&mut self, id: FlowId) {
        if self.slots[id].has_ufrag() {
            self.by_ufrag.remove(&mut self.slots, id);
        }
        let state = self.slots[id].state;
        self.lines[state as usize].remove(&mut self.slots, id);
    }
}

#[cfg(test)]
mod invariants;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
