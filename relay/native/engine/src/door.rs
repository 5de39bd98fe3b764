//! `NativeEngine`: what Python asks of the engine. It checks nothing that Python's side has checked before.

use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use usher_relay_path::counters::{Counters, Drop, FlowEvent, Traffic};
use usher_relay_path::endpoint::Endpoint;
use usher_relay_path::flows::{Flow, State as FlowState};
use usher_relay_path::hop::RouteKey;
use usher_relay_path::keys::{HopKey, IceKey, KeyState, Keys, KeysFault};
use usher_relay_path::peers::Peer;
use usher_relay_path::routes::LiveRoute;
use usher_relay_path::state::Limits;

use crate::engine::{Engine, Options, Sockets};
use crate::worker::Listener;

/// An ice key: letter, clusters, ufrag key, password key, state, `not_before`.
pub type PyIceKey = (String, Vec<u16>, [u8; 16], Option<[u8; 32]>, String, i64);
/// A hop key of the local scope: id, key, state, `not_before`.
pub type PyHopKey = (u8, [u8; 16], String, i64);
/// Ice keys, hop keys of the local scope, and those of trunks, each with the cluster at the other end.
pub type PyKeys = (Vec<PyIceKey>, Vec<PyHopKey>, Vec<(u16, PyHopKey)>);
/// A peer: cluster, (IP, port) of its addresses, the index of one of them for each of 64 places.
pub type PyPeer = (u16, Vec<([u8; 16], u16)>, Vec<usize>);
/// A route: its 7 bytes, IP (16 bytes), port, hop size.
pub type PyRoute = (RouteKey, [u8; 16], u16, usize);
/// A worker's sockets: (listener id, descriptor, IPv6?) of each listener, descriptor of the upstream socket, of those
/// towards peers, of the trunk listener.
pub type PySockets = (Vec<(u16, i32, bool)>, i32, Vec<i32>, Option<i32>);
/// A flow: path key, route, state, age of the last check, age of the last sign of life, SSRC.
pub type PyFlow = ([u8; 20], RouteKey, &'static str, Option<f64>, Option<f64>, Option<[u8; 4]>);

/// What the store says of a client path.
pub type PyAnswer = ([u8; 20], Option<RouteKey>);

/// The data threads of one relay.
#[pyclass]
pub struct NativeEngine(Engine);

#[pymethods]
impl NativeEngine {
    #[new]
    fn new(
        sockets: Vec<PySockets>,
        upstream_is_ipv6: bool,
        limits: &Bound<'_, PyAny>,
        keys: PyKeys,
        bundle: Option<f64>,
        hop_mtu: usize,
        with_store: bool,
    ) -> PyResult<Self> {
        let sockets = sockets.into_iter().map(|(listeners, upstream, peers, trunk)| {
            let listeners = listeners.into_iter().map(|(id, fd, is_ipv6)| Listener { id, fd, is_ipv6 });
            Sockets { listeners: listeners.collect(), upstream, peers, trunk }
        });
        let bundle = bundle.map(Duration::try_from_secs_f64).transpose();
        let bundle = bundle.map_err(|error| PyValueError::new_err(error.to_string()))?;
        let options = Options { upstream_is_ipv6, bundle, hop_mtu, with_store };
        let engine = Engine::new(sockets.collect(), options, &read_limits(limits)?, &read_keys(keys)?);
        Ok(Self(engine.map_err(PyOSError::new_err)?))
    }

    fn start(&mut self) -> PyResult<()> {
        self.0.start().map_err(PyOSError::new_err)
    }

    fn stop(&mut self, py: Python<'_>) {
        py.detach(|| self.0.stop());
    }

    fn set_routes(&self, py: Python<'_>, routes: Vec<PyRoute>) {
        let routes: Vec<LiveRoute> = routes.into_iter().map(read_route).collect();
        py.detach(|| self.0.set_routes(&routes));
    }

    fn set_peers(&self, py: Python<'_>, peers: Vec<PyPeer>) -> PyResult<()> {
        let peers = peers.into_iter().map(read_peer).collect::<PyResult<Vec<_>>>()?;
        py.detach(|| self.0.set_peers(&peers));
        Ok(())
    }

    fn set_keys(&self, py: Python<'_>, keys: PyKeys, unix: f64) -> PyResult<()> {
        let keys = read_keys(keys)?;
        py.detach(|| self.0.set_keys(&keys, unix));
        Ok(())
    }

    fn store_fd(&self) -> Option<i32> {
        self.0.store_fd()
    }

    fn take_questions<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        let taken = py.detach(|| self.0.take_questions());
        taken.iter().map(|path| PyBytes::new(py, path)).collect()
    }

    fn take_named<'py>(&self, py: Python<'py>) -> Vec<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let taken = py.detach(|| self.0.take_named());
        taken.iter().map(|(path, route)| (PyBytes::new(py, path), PyBytes::new(py, route))).collect()
    }

    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python as values")]
    fn answer(&self, py: Python<'_>, answers: Vec<PyAnswer>) {
        py.detach(|| self.0.answer(&answers));
    }

    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python as values")]
    fn load(&self, py: Python<'_>, mappings: Vec<([u8; 20], RouteKey)>) {
        py.detach(|| self.0.load(&mappings));
    }

    fn snapshot<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let totals = py.detach(|| self.0.totals());
        let snapshot = counters(py, &totals.counters)?;
        snapshot.set_item("confirmed", totals.confirmed)?;
        snapshot.set_item("on_probation", totals.on_probation)?;
        snapshot.set_item("ended", totals.ended)?;
        snapshot.set_item("routes", totals.routes)?;
        snapshot.set_item("heartbeat_age", totals.heartbeat_age)?;
        snapshot.set_item("idle", totals.idle)?;
        Ok(snapshot)
    }

    fn flows(&self, py: Python<'_>, limit: usize) -> Vec<PyFlow> {
        py.detach(|| {
            let mut views = Vec::new();
            for worker in self.0.workers() {
                let now = worker.now();
                let forwarder = worker.lock();
                views.extend(view_flows(&forwarder.state, now, limit - views.len()));
            }
            views
        })
    }

    fn routes(&self, py: Python<'_>, limit: usize) -> Vec<(PyRoute, u64, u64)> {
        py.detach(|| {
            let mut views: Vec<(PyRoute, u64, u64)> = Vec::new();
            for worker in self.0.workers() {
                for (nth, route) in worker.lock().state.routes.iter().take(limit).enumerate() {
                    // All workers have the same table, but for the moment in which it is swapped.
                    match views.get_mut(nth) {
                        Some(view) if view.0.0 == route.key => {
                            view.1 += route.uplink;
                            view.2 += route.downlink;
                        }
                        Some(_) => {}
                        None => {
                            let Endpoint { address, port } = route.address;
                            views.push(((route.key, address, port, route.hop_size), route.uplink, route.downlink));
                        }
                    }
                }
            }
            views
        })
    }
}

/// Reads the limits from Python's dataclass of the same fields.
pub fn read_limits(limits: &Bound<'_, PyAny>) -> PyResult<Limits> {
    let number = |name: &str| limits.getattr(name)?.extract::<u32>();
    Ok(Limits {
        max_flows: number("max_flows")? as usize,
        probation_per_ufrag: number("probation_per_ufrag")? as usize,
        packets_per_client: number("packets_per_client")?,
        packets_per_address: number("packets_per_address")?,
        checks_per_client: number("checks_per_client")?,
        checks_per_ufrag: number("checks_per_ufrag")?,
        tentative_per_client: number("tentative_per_client")?,
        tentative_per_second: number("tentative_per_second")?,
        who_has_limit: number("who_has_limit")? as usize,
        questions_per_second: number("questions_per_second")?,
    })
}

/// Makes keys ready for use.
pub fn read_keys((ice, hop, trunk): PyKeys) -> PyResult<Arc<Keys>> {
    let ice = ice.into_iter().map(|(letter, clusters, ufrag_key, password_key, state, not_before)| {
        let letter = letter.as_bytes().first().copied().unwrap_or(0);
        let state = read_state(&state)?;
        Ok(IceKey { letter, clusters, ufrag_key, password_key, state, not_before })
    });
    let hop = hop
        .into_iter()
        .map(|(id, key, state, not_before)| Ok(HopKey { id, key, state: read_state(&state)?, not_before }));
    let (ice, hop) = (ice.collect::<PyResult<Vec<_>>>()?, hop.collect::<PyResult<Vec<_>>>()?);
    let trunk = trunk.into_iter().map(|(cluster, (id, key, state, not_before))| {
        Ok((cluster, HopKey { id, key, state: read_state(&state)?, not_before }))
    });
    let trunk = trunk.collect::<PyResult<Vec<_>>>()?;
    let mut keys = Keys::new(&ice, &hop).map_err(|fault| {
        PyValueError::new_err(match fault {
            KeysFault::NoIce | KeysFault::NoHop => "no ice key or no hop key".to_owned(),
            KeysFault::TooManyUnderLetter(letter) => format!("too many ice keys under {}", letter as char),
            KeysFault::TwoHopKeys(id) => format!("two hop keys have the id {id}"),
            KeysFault::Letter(letter) => format!("{} is no key letter", letter as char),
        })
    })?;
    keys.add_trunks(&trunk);
    Ok(Arc::new(keys))
}

/// Makes a peer of its parts.
pub fn read_peer((cluster, addresses, places): PyPeer) -> PyResult<Peer> {
    let addresses: Vec<Endpoint> = addresses.into_iter().map(|(address, port)| Endpoint { address, port }).collect();
    let of_place = |index: usize| addresses.get(index).copied();
    let found: Option<Vec<Endpoint>> = places.into_iter().map(of_place).collect();
    let places = found.and_then(|places| places.try_into().ok());
    let places = places.ok_or_else(|| PyValueError::new_err("a peer has 64 places, each an index of an address"))?;
    Ok(Peer { cluster: cluster.to_be_bytes(), addresses, places })
}

fn read_state(state: &str) -> PyResult<KeyState> {
    match state {
        "active" => Ok(KeyState::Active),
        "accepted" => Ok(KeyState::Accepted),
        "retired" => Ok(KeyState::Retired),
        _ => Err(PyValueError::new_err(format!("{state} is no state of a key"))),
    }
}

/// Makes a route of its parts.
pub fn read_route((key, address, port, hop_size): PyRoute) -> LiveRoute {
    LiveRoute::new(key, Endpoint { address, port }, hop_size)
}

/// Returns counters as Python keeps them.
pub fn counters<'py>(py: Python<'py>, counters: &Counters) -> PyResult<Bound<'py, PyDict>> {
    let traffic = |traffic: &Traffic| (traffic.batches, traffic.received, traffic.forwarded, traffic.forwarded_bytes);
    let drops = PyDict::new(py);
    for reason in Drop::ALL {
        drops.set_item(reason.name(), counters.drops[*reason as usize])?;
    }
    let events = PyDict::new(py);
    for event in FlowEvent::ALL {
        events.set_item(event.name(), counters.flow_events[*event as usize])?;
    }
    let all = PyDict::new(py);
    all.set_item("uplink", traffic(&counters.uplink))?;
    all.set_item("downlink", traffic(&counters.downlink))?;
    all.set_item("tentative", counters.tentative)?;
    all.set_item("split", counters.split)?;
    all.set_item("questions", counters.questions)?;
    all.set_item("found_by_address", counters.found_by_address)?;
    all.set_item("found_by_ssrc", counters.found_by_ssrc)?;
    all.set_item("store_asked", counters.store_asked)?;
    all.set_item("store_skipped", counters.store_skipped)?;
    all.set_item("store_loaded", counters.store_loaded)?;
    all.set_item("store_found", counters.store_found)?;
    all.set_item("store_unnamed", counters.store_unnamed)?;
    all.set_item("waiting_bytes", counters.waiting_bytes)?;
    all.set_item("drops", drops)?;
    all.set_item("flow_events", events)?;
    all.set_item("hop_time_offset_ms", counters.hop_time_offset_ms)?;
    all.set_item("hop_time_offset_max_ms", counters.hop_time_offset_max_ms)?;
    Ok(all)
}

/// Returns at most `limit` flows.
pub fn view_flows(state: &usher_relay_path::state::State, now: f64, limit: usize) -> Vec<PyFlow> {
    let age = |then: f64| (then != f64::NEG_INFINITY).then_some(now - then);
    let live = |route: &RouteKey| state.routes.contains(route);
    let view = |flow: &Flow| {
        let quiet = || state.flows.find(&flow.key).is_some_and(|id| state.flows.is_quiet(id, now, &live));
        let name = match flow.state() {
            FlowState::Ended => "ended",
            FlowState::Probation => "probation",
            FlowState::Confirmed if quiet() => "quiet",
            FlowState::Confirmed => "live",
        };
        (flow.key, flow.route, name, age(flow.verified_at()), age(flow.alive_at()), flow.ssrc())
    };
    state.flows.first(limit).map(view).collect()
}
