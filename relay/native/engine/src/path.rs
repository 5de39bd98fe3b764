//! `Path`: one forwarder without sockets and clock, for tests that compare it with the Python one.
#![expect(clippy::needless_pass_by_value, reason = "arguments come from Python as values")]

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use usher_relay_path::downlink::{ClientSend, Side};
use usher_relay_path::endpoint::Endpoint;
use usher_relay_path::exchange::{Exchange, Named};
use usher_relay_path::flows::LocalId;
use usher_relay_path::forwarder::{Forwarder, Outbox};
use usher_relay_path::packets::Packet;
use usher_relay_path::routes::Routes;

use crate::door::{
    PyAnswer, PyFlow, PyKeys, PyPeer, PyRoute, counters, read_keys, read_limits, read_peer, read_route, view_flows,
};
use crate::worker::BATCH;

type PyEndpoint = ([u8; 16], u16);
/// Hop datagram, destination.
type PyHopSend<'py> = (Bound<'py, PyBytes>, PyEndpoint);
/// Path key, client datagram, number of the local address.
type PyClientSend<'py> = ([u8; 20], Bound<'py, PyBytes>, LocalId);

/// One forwarder.
#[pyclass]
pub struct Path {
    forwarder: Forwarder,
    outbox: Outbox,
    for_peers: Vec<(Endpoint, Vec<u8>)>,
}

#[pymethods]
impl Path {
    #[new]
    fn new(
        limits: &Bound<'_, PyAny>,
        listeners: Vec<u16>,
        keys: PyKeys,
        bundle: bool,
        with_store: bool,
    ) -> PyResult<Self> {
        let limits = read_limits(limits)?;
        let mut forwarder = Forwarder::new(&limits, &listeners, read_keys(keys)?);
        if with_store {
            forwarder.state.use_store(limits.max_flows);
        }
        Ok(Self { forwarder, outbox: Outbox::new(BATCH, bundle), for_peers: Vec::new() })
    }

    fn set_routes(&mut self, routes: Vec<PyRoute>) {
        self.forwarder.set_routes(Routes::new(routes.into_iter().map(read_route)));
    }

    fn set_peers(&mut self, peers: Vec<PyPeer>) -> PyResult<()> {
        self.forwarder.set_peers(peers.into_iter().map(read_peer).collect::<PyResult<Vec<_>>>()?);
        Ok(())
    }

    fn set_hop_size(&mut self, address: [u8; 16], port: u16, hop_size: usize) {
        self.forwarder.state.routes.set_hop_size(Endpoint { address, port }, hop_size);
    }

    fn set_keys(&mut self, keys: PyKeys) -> PyResult<()> {
        self.forwarder.set_keys(read_keys(keys)?);
        Ok(())
    }

    fn tick(&mut self, now: f64, unix: f64) {
        self.forwarder.tick(now, unix);
    }

    /// Takes at most one batch of (path key, local address number, datagram).
    fn from_clients<'py>(
        &mut self,
        py: Python<'py>,
        now: f64,
        unix: f64,
        packets: Vec<([u8; 20], LocalId, Vec<u8>)>,
    ) -> Vec<PyHopSend<'py>> {
        let mut taken = Vec::with_capacity(packets.len());
        for (slot, (path, local, datagram)) in self.outbox.slots.receive().iter_mut().zip(&packets) {
            let area = slot.receive_area();
            // As the kernel does: what is too long is cut off.
            let length = datagram.len().min(area.len());
            area[..length].copy_from_slice(&datagram[..length]);
            taken.push(Packet { path: *path, local: *local, length });
        }
        self.forwarder.from_clients(now, unix, &taken, &mut self.outbox);
        let mut sent = self.sent(py);
        if !self.outbox.unknown().is_empty() {
            self.forwarder.look_up(now, unix, &taken, &mut self.outbox);
            sent.extend(self.sent(py));
            let questions = self.outbox.questions();
            sent.extend(questions.map(|(to, bytes)| (PyBytes::new(py, bytes), (to.address, to.port))));
        }
        sent
    }

    /// Takes a batch of (hop datagram, source); returns what goes to clients, to transceivers, and to ingress relays.
    fn from_transceivers<'py>(
        &mut self,
        py: Python<'py>,
        now: f64,
        unix: f64,
        datagrams: Vec<(Vec<u8>, PyEndpoint)>,
    ) -> (Vec<PyClientSend<'py>>, Vec<PyHopSend<'py>>, Vec<PyHopSend<'py>>) {
        let mut sends = Vec::new();
        self.forwarder.from_hops(Side::Transceivers, now, unix, received(&datagrams), &mut sends, &mut self.outbox);
        (to_clients(py, sends, &datagrams), self.sent(py), onward(py, &self.outbox, &datagrams))
    }

    /// Takes a batch of (hop datagram, source) from peers; returns what goes to clients.
    fn from_peers<'py>(
        &mut self,
        py: Python<'py>,
        now: f64,
        unix: f64,
        datagrams: Vec<(Vec<u8>, PyEndpoint)>,
    ) -> Vec<PyClientSend<'py>> {
        let mut sends = Vec::new();
        self.forwarder.from_hops(Side::Peers, now, unix, received(&datagrams), &mut sends, &mut self.outbox);
        to_clients(py, sends, &datagrams)
    }

    /// Takes a batch of (hop datagram, source) from ingress relays; returns what goes to transceivers, and what goes back.
    fn from_ingress<'py>(
        &mut self,
        py: Python<'py>,
        now: f64,
        unix: f64,
        datagrams: Vec<(Vec<u8>, PyEndpoint)>,
    ) -> (Vec<PyHopSend<'py>>, Vec<PyHopSend<'py>>) {
        self.forwarder.from_ingress(now, unix, received(&datagrams), &mut self.outbox);
        let replies = self.outbox.onward.replies.iter();
        let replies = replies.map(|(to, bytes)| (PyBytes::new(py, bytes), (to.address, to.port))).collect();
        (onward(py, &self.outbox, &datagrams), replies)
    }

    /// What all calls since the last one of this have made for peers.
    fn take_for_peers<'py>(&mut self, py: Python<'py>) -> Vec<PyHopSend<'py>> {
        whole(py, self.for_peers.drain(..).map(|(to, bytes)| (to, std::iter::once(bytes))))
    }

    /// Takes at most one batch of answers.
    fn from_store<'py>(&mut self, py: Python<'py>, now: f64, unix: f64, answers: Vec<PyAnswer>) -> Vec<PyHopSend<'py>> {
        self.forwarder.from_store(now, unix, &answers, &mut self.outbox);
        let mut sent = self.sent(py);
        sent.extend(self.outbox.questions().map(|(to, bytes)| (PyBytes::new(py, bytes), (to.address, to.port))));
        sent
    }

    fn take_questions<'py>(&mut self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        let taken = self.forwarder.state.exchange.as_mut().map(Exchange::take_questions).unwrap_or_default();
        taken.iter().map(|path| PyBytes::new(py, path)).collect()
    }

    fn take_named<'py>(&mut self, py: Python<'py>) -> Vec<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let taken = self.forwarder.state.flows.named.as_mut().map(Named::take).unwrap_or_default();
        taken.iter().map(|(path, route)| (PyBytes::new(py, path), PyBytes::new(py, route))).collect()
    }

    fn load(&mut self, mappings: Vec<([u8; 20], [u8; 7])>, now: f64) {
        if let Some(exchange) = &mut self.forwarder.state.exchange {
            exchange.load(mappings.into_iter(), now);
        }
    }

    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        counters(py, &self.forwarder.state.counters)
    }

    fn flows(&self, now: f64, limit: usize) -> Vec<PyFlow> {
        view_flows(&self.forwarder.state, now, limit)
    }
}

impl Path {
    /// The hop datagrams of the last batch for transceivers; keeps those for peers.
    fn sent<'py>(&mut self, py: Python<'py>) -> Vec<PyHopSend<'py>> {
        let for_peers = self.outbox.for_peers(0, 1);
        self.for_peers.extend(for_peers.map(|(to, pieces)| (to, pieces.flatten().copied().collect())));
        whole(py, self.outbox.iter())
    }
}

fn whole<B: AsRef<[u8]>, P: Iterator<Item = B>>(
    py: Python<'_>,
    datagrams: impl Iterator<Item = (Endpoint, P)>,
) -> Vec<PyHopSend<'_>> {
    let joined = datagrams.map(|(to, pieces)| {
        let bytes: Vec<u8> = pieces.flat_map(|piece| piece.as_ref().to_vec()).collect();
        (PyBytes::new(py, &bytes), (to.address, to.port))
    });
    joined.collect()
}

fn onward<'py>(py: Python<'py>, outbox: &Outbox, datagrams: &[(Vec<u8>, PyEndpoint)]) -> Vec<PyHopSend<'py>> {
    whole(py, outbox.onward.iter(|number: u32| &datagrams[number as usize].0[..]))
}

fn received(datagrams: &[(Vec<u8>, PyEndpoint)]) -> impl Iterator<Item = (&[u8], Endpoint)> {
    datagrams.iter().map(|(datagram, (address, port))| (&datagram[..], Endpoint { address: *address, port: *port }))
}

fn to_clients<'py>(
    py: Python<'py>,
    sends: Vec<ClientSend>,
    datagrams: &[(Vec<u8>, PyEndpoint)],
) -> Vec<PyClientSend<'py>> {
    let sent = sends.into_iter().map(|send| {
        let payload = send.payload.start as usize..send.payload.end as usize;
        (send.path, PyBytes::new(py, &datagrams[send.datagram as usize].0[payload]), send.local)
    });
    sent.collect()
}
