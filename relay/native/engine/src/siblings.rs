//! What the other workers of this relay know of clients that are unknown to this one.
//!
//! The kernel spreads clients over the sockets of a port by a hash of their addresses, and spreads them anew whenever a
//! socket joins or leaves the port: a relay that starts or dies beside this one. So before a worker asks transceivers
//! whose a client is, it looks into the tables of its siblings and takes over a copy of the flow: by the client's
//! address, else by the SSRC that it sends (docs/wire.md section 4).
//!
//! One lock at a time, none during a system call, and none at all while all clients of a batch are known.

use std::sync::Arc;

use usher_relay_path::flows::Flow;
use usher_relay_path::hop::{RouteKey, client_address};
use usher_relay_path::packets::{Packet, Slots};
use usher_relay_path::rtp;

use crate::shared::Shared;

/// The other workers.
pub struct Siblings {
    others: Vec<Arc<Shared>>,
    found: Vec<Flow>,
}

impl Siblings {
    /// Those of one worker.
    pub fn new(others: Vec<Arc<Shared>>) -> Self {
        Self { others, found: Vec::new() }
    }

    /// Brings to `own` what others know of the clients of the packets `unknown` of a batch.
    pub fn bring(&mut self, own: &Shared, unknown: &[u32], packets: &[Packet], slots: &Slots, now: f64) {
        for other in &self.others {
            let forwarder = other.lock();
            let flows = &forwarder.state.flows;
            for &number in unknown {
                let packet = &packets[number as usize];
                if let Some(id) = flows.find(&packet.path) {
                    self.found.push(flows.get(id).clone());
                } else if let Some(ssrc) = rtp::peek_ssrc(slots.get(number).payload(packet.length)) {
                    let candidates = flows.candidates(ssrc, &client_address(&packet.path));
                    self.found.extend(candidates.as_slice().iter().map(|&id| flows.get(id).clone()));
                }
            }
        }
        if self.found.is_empty() {
            return;
        }
        let state = &mut own.lock().state;
        let live = |route: &RouteKey| state.routes.contains(route);
        for flow in self.found.drain(..) {
            state.flows.adopt(&flow, now, &live, &mut state.counters);
        }
    }
}
