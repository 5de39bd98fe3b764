//! The data path of one worker without I/O: datagrams and the time in, datagrams out.
//!
//! Times: `now` is monotonic seconds, `unix` Unix seconds; both are read once per batch. [`Forwarder::tick`] is to be
//! called at least once a second, and before the first datagram after a change of keys.

use std::sync::Arc;

use crate::bundle::Bundler;
use crate::downlink::{self, ClientSend};
use crate::keys::Keys;
use crate::packets::{COPIES, Gram, Packet, Slots};
use crate::routes::{Endpoint, Routes};
use crate::state::{Limits, State};
use crate::uplink;

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
}

impl Outbox {
    /// Makes one for batches of at most `batch` datagrams; with `bundle` several records share a hop datagram.
    pub fn new(batch: usize, bundle: bool) -> Self {
        let records = batch * COPIES;
        Self { slots: Slots::new(batch), grams: Vec::with_capacity(records), bundler: Bundler::new(bundle, records) }
    }

    /// Each hop datagram's destination and pieces.
    pub fn iter(&self) -> impl Iterator<Item = (Endpoint, impl Iterator<Item = &[u8]>)> {
        let datagrams = self.bundler.datagrams().iter();
        datagrams.map(|datagram| (datagram.to, self.bundler.pieces(datagram, &self.grams, &self.slots)))
    }

    /// Where hop datagram `number` goes.
    pub fn destination(&self, number: usize) -> Endpoint {
        self.bundler.datagrams()[number].to
    }
}

impl Forwarder {
    /// Makes one that serves `listeners`.
    pub fn new(limits: &Limits, listeners: &[u16], keys: Arc<Keys>) -> Self {
        Self { state: State::new(limits, listeners, keys), offset_window_ends: 0.0 }
    }

    /// Swaps the route table; a route that stays keeps its counts.
    pub fn set_routes(&mut self, mut routes: Routes) {
        routes.continue_from(&self.state.routes);
        self.state.routes = routes;
    }

    /// Swaps the keys.
    pub fn set_keys(&mut self, keys: Arc<Keys>) {
        self.state.keys = keys;
    }

    /// Puts the hop datagrams for one batch of client datagrams into `outbox`: packet `i` stands in its slot `i`.
    pub fn from_clients(&mut self, now: f64, unix: f64, packets: &[Packet], outbox: &mut Outbox) {
        let stamp = self.state.stamp(milliseconds(unix));
        outbox.grams.clear();
        uplink::forward(&mut self.state, &mut outbox.slots, &mut outbox.grams, now, packets);
        outbox.bundler.build(&outbox.grams, &mut outbox.slots, &self.state.routes, &stamp);
    }

    /// Puts the client datagrams for one batch of hop datagrams, each given with its source, into `sends`.
    pub fn from_transceivers<'a>(
        &mut self,
        now: f64,
        unix: f64,
        datagrams: impl Iterator<Item = (&'a [u8], Endpoint)>,
        sends: &mut Vec<ClientSend>,
    ) {
        sends.clear();
        downlink::forward(&mut self.state, sends, now, milliseconds(unix) as u32, datagrams);
    }

    /// Does what time demands: chooses the hop key, expires flows.
    pub fn tick(&mut self, now: f64, unix: f64) {
        self.state.choose_hop_key(unix);
        self.state.flows.expire(now, &mut self.state.counters);
        if now >= self.offset_window_ends {
            self.offset_window_ends = now + OFFSET_WINDOW;
            self.state.counters.hop_time_offset_max_ms = self.state.counters.hop_time_offset_ms.abs();
        }
    }
}

fn milliseconds(unix: f64) -> u64 {
    (unix * 1000.0) as u64
}
