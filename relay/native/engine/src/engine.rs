//! All workers of one relay: started, looked at and ended together.

use std::io::{self, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use usher_relay_path::counters::Counters;
use usher_relay_path::exchange::{Exchange, Named};
use usher_relay_path::forwarder::Forwarder;
use usher_relay_path::hop::{PathKey, RouteKey};
use usher_relay_path::keys::Keys;
use usher_relay_path::peers::Peer;
use usher_relay_path::routes::{LiveRoute, Routes};
use usher_relay_path::state::Limits;

use crate::locals::Locals;
use crate::shared::{Answer, Shared};
use crate::siblings::Siblings;
use crate::worker::{Config, Listener, Worker};

/// The sockets of one worker.
pub struct Sockets {
    /// The public listeners.
    pub listeners: Vec<Listener>,
    /// The socket towards the transceivers.
    pub upstream: RawFd,
    /// The sockets towards relays of other clusters; none where there are no peers.
    pub peers: Vec<RawFd>,
    /// Where relays of other clusters send to.
    pub trunk: Option<RawFd>,
}

/// What all workers have in common.
#[derive(Clone, Copy)]
pub struct Options {
    /// Whether the upstream sockets are IPv6 ones.
    pub upstream_is_ipv6: bool,
    /// How long a record may wait for others to share a hop datagram with; None where none do.
    pub bundle: Option<Duration>,
    /// Bytes of an IP packet towards transceivers, 0 to ask the kernel.
    pub hop_mtu: usize,
    /// Whether a store of mappings is asked for unknown clients.
    pub with_store: bool,
}

/// The engine. Its sockets belong to the caller, who keeps them open until [`Engine::stop`] has returned.
pub struct Engine {
    workers: Vec<Arc<Shared>>,
    prepared: Vec<(Config, Locals)>,
    threads: Vec<JoinHandle<()>>,
    wakers: Vec<UnixStream>,
    sleepers: Vec<UnixStream>,
    store: Option<UnixStream>,
}

/// What the workers have counted, added up.
pub struct Totals {
    /// The counters.
    pub counters: Counters,
    /// Flows that a transceiver has answered.
    pub confirmed: usize,
    /// Flows that wait for their first answer.
    pub on_probation: usize,
    /// Flows that their transceiver has given up.
    pub ended: usize,
    /// Routes of the table.
    pub routes: usize,
    /// Seconds since the slowest worker began a round.
    pub heartbeat_age: f64,
    /// Seconds since a flow last showed life; infinity for never.
    pub idle: f64,
}

impl Engine {
    /// Makes a worker for each set of sockets. Each gets its share of the flows that are remembered, and
    /// of the questions that are asked.
    pub fn new(sockets: Vec<Sockets>, options: Options, limits: &Limits, keys: &Arc<Keys>) -> io::Result<Self> {
        let epoch = Instant::now();
        let locals = Locals::default();
        let share = share_of(limits, sockets.len().max(1));
        let cpus = own_cpus(sockets.len());
        let mut engine =
            Self { workers: vec![], prepared: vec![], threads: vec![], wakers: vec![], sleepers: vec![], store: None };
        let mut store = None;
        if options.with_store {
            let (asking, asked) = UnixStream::pair()?;
            asking.set_nonblocking(true)?;
            asked.set_nonblocking(true)?;
            engine.store = Some(asked);
            store = Some(Arc::new(asking));
        }
        for (number, sockets) in sockets.into_iter().enumerate() {
            let (waker, sleeper) = UnixStream::pair()?;
            let ids: Vec<u16> = sockets.listeners.iter().map(|listener| listener.id).collect();
            let mut forwarder = Forwarder::new(&share, &ids, Arc::clone(keys));
            if options.with_store {
                // Each worker may be the one to which a client comes, so each gets all that is loaded.
                forwarder.state.use_store(limits.max_flows);
            }
            waker.set_nonblocking(true)?;
            sleeper.set_nonblocking(true)?;
            let shared = Arc::new(Shared::new(forwarder, epoch));
            let config = Config {
                listeners: sockets.listeners,
                upstream: sockets.upstream,
                peers: sockets.peers,
                trunk: sockets.trunk,
                upstream_is_ipv6: options.upstream_is_ipv6,
                wake: sleeper.as_raw_fd(),
                store: store.clone(),
                bundle: options.bundle,
                hop_mtu: options.hop_mtu,
                cpu: cpus.get(number).copied(),
            };
            engine.prepared.push((config, locals.another()));
            engine.workers.push(shared);
            engine.wakers.push(waker);
            engine.sleepers.push(sleeper);
        }
        Ok(engine)
    }

    /// Starts the threads.
    pub fn start(&mut self) -> io::Result<()> {
        for (number, (config, locals)) in self.prepared.drain(..).enumerate() {
            let mut others = self.workers.clone();
            let shared = others.swap_remove(number);
            shared.beat(shared.now());
            let thread = Builder::new().name(format!("relay-data-{number}"));
            // Made in its thread, so that its memory is near the CPU that uses it.
            self.threads.push(thread.spawn(move || Worker::new(shared, config, Siblings::new(others), locals).run())?);
        }
        Ok(())
    }

    /// Ends the threads and waits for them; a worker sees it at once.
    pub fn stop(&mut self) {
        for worker in &self.workers {
            worker.stop();
        }
        // The other ends close, which wakes who polls them.
        self.wakers.clear();
        for thread in self.threads.drain(..) {
            // A thread that panicked has ended too.
            let _ = thread.join();
        }
        self.prepared.clear();
        self.sleepers.clear();
    }

    /// Swaps the route table of all workers.
    pub fn set_routes(&self, routes: &[LiveRoute]) {
        for worker in &self.workers {
            let table = Routes::new(routes.iter().cloned());
            worker.set_routes(table);
        }
    }

    /// Swaps the peers of all workers.
    pub fn set_peers(&self, peers: &[Peer]) {
        for worker in &self.workers {
            let peers = peers.to_vec();
            worker.lock().set_peers(peers);
        }
    }

    /// Swaps the keys of all workers.
    pub fn set_keys(&self, keys: &Arc<Keys>, unix: f64) {
        for worker in &self.workers {
            let now = worker.now();
            let mut forwarder = worker.lock();
            forwarder.set_keys(Arc::clone(keys));
            forwarder.tick(now, unix);
        }
    }

    /// Becomes readable when clients are asked for; None without a store.
    pub fn store_fd(&self) -> Option<RawFd> {
        self.store.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Takes the client paths that are asked for.
    pub fn take_questions(&self) -> Vec<PathKey> {
        if let Some(fd) = self.store_fd() {
            crate::sys::drain(fd);
        }
        self.workers()
            .filter_map(|worker| worker.lock().state.exchange.as_mut().map(Exchange::take_questions))
            .flatten()
            .collect()
    }

    /// Takes the flows to keep.
    pub fn take_named(&self) -> Vec<(PathKey, RouteKey)> {
        self.workers()
            .filter_map(|worker| worker.lock().state.flows.named.as_mut().map(Named::take))
            .flatten()
            .collect()
    }

    /// Says whose client paths are. All workers hear it; those that did not ask take no notice.
    pub fn answer(&self, answers: &[Answer]) {
        for (worker, mut waker) in self.workers.iter().zip(&self.wakers) {
            worker.answer(answers);
            // When it is full, enough wake-ups wait already.
            let _ = waker.write(&[0]);
        }
    }

    /// Hands mappings of clients that may come to all workers.
    pub fn load(&self, mappings: &[(PathKey, RouteKey)]) {
        for worker in &self.workers {
            let now = worker.now();
            if let Some(exchange) = &mut worker.lock().state.exchange {
                exchange.load(mappings.iter().copied(), now);
            }
        }
    }

    /// Each worker in turn.
    pub fn workers(&self) -> impl Iterator<Item = &Shared> {
        self.workers.iter().map(AsRef::as_ref)
    }

    /// Counters and numbers of all workers.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals {
            counters: Counters::default(),
            confirmed: 0,
            on_probation: 0,
            ended: 0,
            routes: 0,
            heartbeat_age: 0.0,
            idle: f64::INFINITY,
        };
        for worker in &self.workers {
            let now = worker.now();
            let forwarder = worker.lock();
            let state = &forwarder.state;
            let (on_probation, ended) = (state.flows.on_probation(), state.flows.ended());
            totals.counters.add(&state.counters);
            totals.on_probation += on_probation;
            totals.ended += ended;
            totals.confirmed += state.flows.len() - on_probation - ended;
            totals.routes = state.routes.len();
            totals.idle = totals.idle.min(now - state.flows.last_life());
            totals.heartbeat_age = totals.heartbeat_age.max(worker.heartbeat_age());
        }
        totals
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What one of several workers may have and do, where a limit is one of the whole relay.
fn share_of(limits: &Limits, workers: usize) -> Limits {
    let workers_u32 = u32::try_from(workers).unwrap_or(u32::MAX);
    Limits {
        max_flows: limits.max_flows.div_ceil(workers),
        tentative_per_second: limits.tentative_per_second.div_ceil(workers_u32),
        questions_per_second: limits.questions_per_second.div_ceil(workers_u32),
        ..*limits
    }
}

/// The CPUs to pin workers to: only where this process has as many for itself as workers, and fewer than the machine.
///
/// Where it may run everywhere, others may too, and the kernel knows better where to put whom.
fn own_cpus(workers: usize) -> Vec<usize> {
    let allowed = crate::sys::allowed_cpus();
    let all = crate::sys::online_cpus();
    if workers > 0 && allowed.len() == workers && allowed.len() < all { allowed } else { vec![] }
}
