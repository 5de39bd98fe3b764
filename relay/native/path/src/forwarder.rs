//! The data path of one worker without I/O: datagrams and the time in, datagrams out.
//!
//! Times: `now` is monotonic seconds, `unix` Unix seconds; both are read once per batch. [`Forwarder::tick`] is to be
//! called at least once a second, and before the first datagram after a change of keys.

use std::sync::Arc;

use crate::bundle::{Bundler, HopDatagram};
use crate::downlink::{self, ClientSend, Here, Side};
use crate::endpoint::Endpoint;
use crate::hop::{PathKey, RouteKey};
use crate::inlet;
use crate::keys::Keys;
use crate::packets::{COPIES, Gram, Packet, Slots};
use crate::peers::Peer;
use crate::questions::Questions;
use crate::restamped::Onward;
use crate::routes::Routes;
use crate::state::{Limits, State};
use crate::uplink::{self, Out};

const OFFSET_WINDOW: f64 = 60.0;

/// One worker's worth of relay.
pub struct Forwarder {
    /// Routes, keys, flows, counters.
    pub state: State,
    offset_window_ends: f64,
}

/// The hop datagrams of one batch, in pieces that stand in its slots.
///
/// It belongs to the worker and not to the forwarder, so that nobody who looks at the flows waits for a system call.
pub struct Outbox {
    /// Where client datagrams are received.
    pub slots: Slots,
    grams: Vec<Gram>,
    bundler: Bundler,
    unknown: Vec<u32>,
    questions: Questions,
    heres: Vec<Here>,
    /// What goes on with its records as they came: over trunks, or from one to transceivers.
    pub onward: Onward,
}

impl Outbox {
    /// Makes one for batches of at most `batch` datagrams; with `bundle` several records share a hop datagram.
    pub fn new(batch: usize, bundle: bool) -> Self {
        let records = batch * COPIES;
        Self {
            slots: Slots::new(batch),
            grams: Vec::with_capacity(records),
            bundler: Bundler::new(bundle, records),
            unknown: Vec::with_capacity(batch),
            questions: Questions::default(),
            heres: Vec::with_capacity(batch),
            onward: Onward::default(),
        }
    }

    /// Numbers of the packets whose clients are unknown, for [`Forwarder::look_up`].
    pub fn unknown(&self) -> &[u32] {
        &self.unknown
    }

    /// What to ask all transceivers, to be sent after the hop datagrams: destination and bytes.
    pub fn questions(&self) -> impl Iterator<Item = (Endpoint, &[u8])> {
        self.questions.iter()
    }

    fn clear(&mut self) {
        self.grams.clear();
        self.bundler.clear();
        self.questions.clear();
        self.onward.clear();
    }

    /// The destination and pieces of each hop datagram for transceivers of ours.
    pub fn iter(&self) -> impl Iterator<Item = (Endpoint, impl Iterator<Item = &[u8]>)> {
        self.own().map(|datagram| self.whole(datagram))
    }

    /// Where hop datagram `number` of those goes.
    pub fn destination(&self, number: usize) -> Option<Endpoint> {
        self.own().nth(number).map(|datagram| datagram.to)
    }

    /// The destination and pieces of each hop datagram for peers that is to leave by socket `nth` of `sockets`.
    ///
    /// Those of one transceiver leave by one, so that a client's stay in order.
    pub fn for_peers(
        &self,
        nth: usize,
        sockets: usize,
    ) -> impl Iterator<Item = (Endpoint, impl Iterator<Item = &[u8]>)> {
        let datagrams = self.bundler.datagrams().iter();
        datagrams
            .filter(move |datagram| datagram.is_for_peer && datagram.route() as usize % sockets == nth)
            .map(|datagram| self.whole(datagram))
    }

    fn own(&self) -> impl Iterator<Item = &HopDatagram> {
        self.bundler.datagrams().iter().filter(|datagram| !datagram.is_for_peer)
    }

    fn whole<'a>(&'a self, datagram: &'a HopDatagram) -> (Endpoint, impl Iterator<Item = &'a [u8]>) {
        (datagram.to, self.bundler.pieces(datagram, &self.grams, &self.slots))
    }
}

impl Forwarder {
    /// Makes one that serves `listeners`.
    pub fn new(limits: &Limits, listeners: &[u16], keys: Arc<Keys>) -> Self {
        Self { state: State::new(limits, listeners, keys), offset_window_ends: 0.0 }
    }

    /// Swaps the route table; a route that stays keeps its counts.
    pub fn set_routes(&mut self, mut routes: Routes) {
        routes.continue_from(&mut self.state.routes);
        self.state.routes = routes;
    }

    /// Swaps the peers.
    pub fn set_peers(&mut self, peers: Vec<Peer>) {
        self.state.routes.set_peers(peers);
    }

    /// Swaps the keys.
    pub fn set_keys(&mut self, keys: Arc<Keys>) {
        self.state.keys = keys;
    }

    /// Puts the hop datagrams for one batch of client datagrams into `outbox`: packet `i` stands in its slot `i`.
    ///
    /// Once they are sent, [`Forwarder::look_up`] is to follow where clients are unknown.
    pub fn from_clients(&mut self, now: f64, unix: f64, packets: &[Packet], outbox: &mut Outbox) {
        self.state.routes.tidy();
        outbox.clear();
        outbox.unknown.clear();
        let Outbox { slots, grams, unknown, questions, .. } = outbox;
        uplink::forward(&mut self.state, Out { slots, grams, unknown: Some(unknown), questions }, now, packets);
        self.build(unix, outbox);
    }

    /// Looks up the clients of the same batch that were unknown. Puts into `outbox` the hop datagrams of those that are
    /// known by now, and questions.
    pub fn look_up(&mut self, now: f64, unix: f64, packets: &[Packet], outbox: &mut Outbox) {
        outbox.clear();
        let Outbox { slots, grams, unknown, questions, .. } = outbox;
        uplink::look_up(&mut self.state, Out { slots, grams, unknown: None, questions }, now, packets, unknown);
        self.build(unix, outbox);
        outbox.questions.build(&self.state.routes, &self.state.stamp(milliseconds(unix)));
    }

    /// Puts the client datagrams for one batch of hop datagrams, each given with its source, into `sends`. Into `outbox`
    /// come the hop datagrams for what had waited until a transceiver said that it is its own, and what goes on to
    /// ingress relays.
    pub fn from_hops<'a>(
        &mut self,
        side: Side,
        now: f64,
        unix: f64,
        datagrams: impl Iterator<Item = (&'a [u8], Endpoint)>,
        sends: &mut Vec<ClientSend>,
        outbox: &mut Outbox,
    ) {
        self.state.routes.tidy();
        sends.clear();
        outbox.clear();
        outbox.heres.clear();
        let Outbox { heres, onward, .. } = outbox;
        let out = downlink::Out { sends, heres, onward };
        downlink::forward(&mut self.state, side, out, now, milliseconds(unix) as u32, datagrams);
        if !outbox.heres.is_empty() {
            outbox.slots.free();
            let Outbox { slots, grams, questions, heres, .. } = outbox;
            uplink::release(&mut self.state, Out { slots, grams, unknown: None, questions }, now, heres);
            self.build(unix, outbox);
        }
    }

    /// Puts what comes of one batch from relays where clients of ours entered, each given with its source, into `outbox`.
    pub fn from_ingress<'a>(
        &mut self,
        now: f64,
        unix: f64,
        datagrams: impl Iterator<Item = (&'a [u8], Endpoint)>,
        outbox: &mut Outbox,
    ) {
        outbox.clear();
        inlet::forward(&mut self.state, &mut outbox.onward, now, milliseconds(unix), datagrams);
    }

    /// Puts into `outbox` what comes of the store's answers, at most a batch of them: hop datagrams, and questions.
    pub fn from_store(&mut self, now: f64, unix: f64, answers: &[(PathKey, Option<RouteKey>)], outbox: &mut Outbox) {
        outbox.clear();
        outbox.slots.free();
        let Outbox { slots, grams, questions, .. } = outbox;
        uplink::on_stored(&mut self.state, Out { slots, grams, unknown: None, questions }, now, answers);
        self.build(unix, outbox);
        outbox.questions.build(&self.state.routes, &self.state.stamp(milliseconds(unix)));
    }

    fn build(&self, unix: f64, outbox: &mut Outbox) {
        let stamp = self.state.stamp(milliseconds(unix));
        outbox.bundler.build(&outbox.grams, &mut outbox.slots, &self.state, &stamp);
    }

    /// Does what time demands: chooses the hop key, expires flows and what waits.
    pub fn tick(&mut self, now: f64, unix: f64) {
        self.state.choose_hop_keys(unix);
        self.state.slots.expire(now);
        self.state.flows.expire(now, &mut self.state.counters);
        self.state.waiting.expire(now, &mut self.state.counters);
        if let Some(exchange) = &mut self.state.exchange {
            exchange.expire(now);
        }
        if now >= self.offset_window_ends {
            self.offset_window_ends = now + OFFSET_WINDOW;
            self.state.counters.hop_time_offset_max_ms = self.state.counters.hop_time_offset_ms.abs();
        }
    }
}

fn milliseconds(unix: f64) -> u64 {
    (unix * 1000.0) as u64
}
