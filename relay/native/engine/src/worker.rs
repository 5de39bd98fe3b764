//! One data thread: it moves datagrams between its sockets and its forwarder.
//!
//! Rules:
//! * A worker owns a socket of each listener and a socket towards the transceivers, so that an answer comes back to the
//!   worker whose flows it concerns.
//! * A round reads at most [`BATCH`] datagrams from each socket that is ready, so none starves another. Clocks are read
//!   once a round.
//! * What has come may wait for more, so that both share system calls and hop datagrams: whatever it is, before it is
//!   read, and not after a round with a full batch, which has no time to lose.
//! * Its forwarder is locked once a batch and never during a system call. Others (the admin thread; workers that look
//!   for a flow) lock it as shortly.
//! * Before the first route table no client is served: what arrives waits in the sockets' buffers. So a relay that starts
//!   beside others, or in the place of one that died, loses nothing of the clients that the kernel gives it.
//! * A fault of ours ends neither the thread nor the calls of others: it is counted, and the batch is lost.

use std::io::Write;
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use usher_relay_path::counters::Drop;
use usher_relay_path::downlink::{ClientSend, Side};
use usher_relay_path::endpoint::Endpoint;
use usher_relay_path::exchange::Exchange;
use usher_relay_path::forwarder::Outbox;
use usher_relay_path::hop::{PathKey, client_address};
use usher_relay_path::packets::{Packet, Slot};

use crate::locals::Locals;
use crate::shared::Shared;
use crate::siblings::Siblings;
use crate::sys::{self, Receiver, Sender};

/// Most datagrams of one receive call.
pub const BATCH: usize = 64;
/// A call that brings as many client datagrams is followed by another one of the same batch, where records share hop
/// datagrams: what comes while we read saves a datagram, and nothing has to wait for what may not come.
const RUSH: usize = 2;
/// Most client datagrams of one send call: a batch of hop datagrams may hold several each.
const SENDS: usize = 256;
/// No hop carries more: jumbo frames have 9,000 bytes. An odd number of cache lines, as with client datagrams.
const HOP_AREA: usize = 145 * 64;
const TICK: f64 = 0.25;
const LONGEST_WAIT_MS: i32 = 250;
const WAIT_FOR_ROUTES_MS: i32 = 5;
/// Where the listeners stand among the descriptors that a worker waits for.
const CLIENTS_AT: usize = 2;
const HOP_SIZE_EVERY: f64 = 1.0;
const HEADERS_IPV4: usize = 28;
const HEADERS_IPV6: usize = 48;

/// A public listener's socket of this worker.
#[derive(Clone, Copy)]
pub struct Listener {
    /// Its id.
    pub id: u16,
    /// The socket.
    pub fd: RawFd,
    /// Whether it serves IPv6 clients.
    pub is_ipv6: bool,
}

/// What a worker is made from. The sockets stay open as long as it runs.
pub struct Config {
    /// The public listeners.
    pub listeners: Vec<Listener>,
    /// The socket towards the transceivers.
    pub upstream: RawFd,
    /// Sockets towards relays of other clusters: their kernels spread what they get by our ports.
    pub peers: Vec<RawFd>,
    /// Where relays of other clusters send to.
    pub trunk: Option<RawFd>,
    /// Whether the sockets towards transceivers and relays are IPv6 ones.
    pub upstream_is_ipv6: bool,
    /// Becomes readable when the worker shall look whether it shall end, or whether the store has answered.
    pub wake: RawFd,
    /// Written to when the worker asks a store; None where there is none.
    pub store: Option<Arc<UnixStream>>,
    /// How long a record may wait for others to share a hop datagram with; None where none do.
    pub bundle: Option<Duration>,
    /// Bytes of an IP packet towards transceivers, 0 to ask the kernel.
    pub hop_mtu: usize,
    /// The CPU that it alone may use.
    pub cpu: Option<usize>,
}

struct PublicSocket {
    listener: Listener,
    sender: Sender,
}

/// The thread's own things.
pub struct Worker {
    shared: Arc<Shared>,
    config: Config,
    siblings: Siblings,
    locals: Locals,
    clients: Vec<PublicSocket>,
    from_clients: Receiver,
    packets: Vec<Packet>,
    outbox: Outbox,
    to_transceivers: Sender,
    from_hops: Receiver,
    hop_areas: Box<[u8]>,
    answers: Vec<ClientSend>,
    next_tick: f64,
    next_hop_size: f64,
    is_busy: bool,
}

impl Worker {
    /// Makes a worker around its sockets.
    pub fn new(shared: Arc<Shared>, config: Config, siblings: Siblings, locals: Locals) -> Self {
        let clients = config.listeners.iter();
        Self {
            clients: clients
                .map(|&listener| PublicSocket { listener, sender: Sender::new(SENDS, SENDS, listener.is_ipv6) })
                .collect(),
            shared,
            siblings,
            locals,
            from_clients: Receiver::new(BATCH),
            packets: Vec::with_capacity(BATCH),
            outbox: Outbox::new(BATCH, config.bundle.is_some()),
            to_transceivers: Sender::new(BATCH, BATCH * usher_relay_path::packets::COPIES, config.upstream_is_ipv6),
            from_hops: Receiver::new(BATCH),
            hop_areas: vec![0; BATCH * HOP_AREA].into(),
            answers: Vec::with_capacity(SENDS),
            next_tick: 0.0,
            next_hop_size: 0.0,
            is_busy: false,
            config,
        }
    }

    /// Forwards until it is told to stop.
    pub fn run(mut self) {
        if let Some(cpu) = self.config.cpu {
            // A CPU that was taken away meanwhile is no reason not to run.
            let _ = sys::pin(cpu);
        }
        let mut fds: Vec<libc::pollfd> = [self.config.wake, self.config.upstream]
            .into_iter()
            .chain(self.config.listeners.iter().map(|listener| listener.fd))
            .chain(self.config.peers.iter().copied())
            .chain(self.config.trunk)
            .map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 })
            .collect();
        let hold = self.config.bundle.filter(|hold| !hold.is_zero());
        while !self.shared.is_stopping() {
            let serves = self.shared.has_routes();
            let (open, wait) = if serves { (fds.len(), LONGEST_WAIT_MS) } else { (CLIENTS_AT, WAIT_FOR_ROUTES_MS) };
            let waited = sys::wait_readable(&mut fds[..open], wait);
            if let Some(hold) = hold.filter(|_| !std::mem::take(&mut self.is_busy)) {
                thread::sleep(hold);
            }
            let round = catch_unwind(AssertUnwindSafe(|| self.round(&fds[..open])));
            if waited.is_err() || round.is_err() {
                self.shared.lock().state.counters.drop(Drop::Internal);
            }
        }
    }

    fn round(&mut self, fds: &[libc::pollfd]) {
        let now = self.shared.now();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64());
        self.shared.beat(now);
        if now >= self.next_tick {
            self.next_tick = now + TICK;
            self.shared.lock().tick(now, unix);
        }
        if fds[0].revents != 0 {
            self.from_store(now, unix);
        }
        if fds[1].revents != 0 {
            self.from_hops(Side::Transceivers, self.config.upstream, now, unix);
        }
        let others = fds.get(CLIENTS_AT..).unwrap_or_default();
        let (listeners, trunks) = others.split_at(others.len().min(self.clients.len()));
        for (nth, _) in listeners.iter().enumerate().filter(|(_, fd)| fd.revents != 0) {
            self.from_clients(nth, now, unix);
        }
        for fd in trunks.iter().filter(|fd| fd.revents != 0) {
            if Some(fd.fd) == self.config.trunk {
                self.from_ingress(fd.fd, now, unix);
            } else {
                self.from_hops(Side::Peers, fd.fd, now, unix);
            }
        }
    }

    fn from_clients(&mut self, nth: usize, now: f64, unix: f64) {
        let listener = self.clients[nth].listener;
        let areas = self.outbox.slots.receive().iter_mut().map(Slot::receive_area);
        // An error of the socket (ICMP, most often) concerns one datagram that was sent, and none that waits.
        let count = self.from_clients.receive(listener.fd, areas, self.config.bundle.map(|_| RUSH)).unwrap_or(0);
        self.is_busy |= count == BATCH;
        self.packets.clear();
        for number in 0..count {
            let local = self.from_clients.local(number).map_or(0, |local| self.locals.id(local));
            let path = path_key(listener.id, self.from_clients.source(number));
            self.packets.push(Packet { path, local, length: self.from_clients.length(number) });
        }
        self.shared.lock().from_clients(now, unix, &self.packets, &mut self.outbox);
        self.send_to_transceivers(now);
        if !self.outbox.unknown().is_empty() {
            self.look_up(now, unix);
        }
    }

    /// Looks up the clients of a batch that no flow of ours has; its calls are on their way already.
    fn look_up(&mut self, now: f64, unix: f64) {
        self.siblings.bring(&self.shared, self.outbox.unknown(), &self.packets, &self.outbox.slots, now);
        let has_news = {
            let mut forwarder = self.shared.lock();
            forwarder.look_up(now, unix, &self.packets, &mut self.outbox);
            forwarder.state.exchange.as_mut().is_some_and(Exchange::take_news)
        };
        if let Some(mut store) = self.config.store.as_deref().filter(|_| has_news) {
            // When it is full, enough wake-ups wait already.
            let _ = store.write(&[0]);
        }
        self.send_to_transceivers(now);
        self.send_questions();
    }

    /// Takes what the store has answered.
    fn from_store(&mut self, now: f64, unix: f64) {
        sys::drain(self.config.wake);
        for answers in self.shared.take_answers().chunks(BATCH) {
            self.shared.lock().from_store(now, unix, answers, &mut self.outbox);
            self.send_to_transceivers(now);
            self.send_questions();
        }
    }

    fn send_questions(&mut self) {
        let Self { shared, outbox, to_transceivers, config, .. } = self;
        let questions = outbox.questions().map(|(to, bytes)| (to, None, std::iter::once(bytes)));
        to_transceivers.send(config.upstream, questions, |_, error| {
            shared.lock().state.counters.drop(drop_reason(error));
        });
    }

    fn send_to_transceivers(&mut self, now: f64) {
        self.send_to_peers();
        let Self { shared, outbox, to_transceivers, config, next_hop_size, .. } = self;
        let datagrams = outbox.iter().map(|(to, pieces)| (to, None, pieces));
        to_transceivers.send(config.upstream, datagrams, |number, error| {
            let reason = drop_reason(error);
            let mut forwarder = shared.lock();
            forwarder.state.counters.drop(reason);
            // The kernel has learnt of a narrower link on the way (RFC 1191, RFC 8201): ask it, but not for every packet.
            if reason == Drop::SendTooLong && now >= *next_hop_size {
                *next_hop_size = now + HOP_SIZE_EVERY;
                let Some(to) = outbox.destination(number) else { return };
                if let Some(mtu) = Some(config.hop_mtu).filter(|&mtu| mtu > 0).or_else(|| sys::path_mtu(to)) {
                    let headers = if to.is_ipv4() { HEADERS_IPV4 } else { HEADERS_IPV6 };
                    forwarder.state.routes.set_hop_size(to, mtu.saturating_sub(headers));
                }
            }
        });
    }

    /// Sends what is for relays of other clusters, each by one of the sockets towards them.
    fn send_to_peers(&mut self) {
        let Self { shared, outbox, to_transceivers, config, .. } = self;
        for (nth, &fd) in config.peers.iter().enumerate() {
            let datagrams = outbox.for_peers(nth, config.peers.len()).map(|(to, pieces)| (to, None, pieces));
            to_transceivers.send(fd, datagrams, |_, error| shared.lock().state.counters.drop(drop_reason(error)));
        }
    }

    /// Receives hop datagrams and returns how many there are.
    fn receive_hops(&mut self, fd: RawFd) -> usize {
        let count = self.from_hops.receive(fd, self.hop_areas.chunks_exact_mut(HOP_AREA), None).unwrap_or(0);
        self.is_busy |= count == BATCH;
        count
    }

    fn from_hops(&mut self, side: Side, fd: RawFd, now: f64, unix: f64) {
        let count = self.receive_hops(fd);
        let Self { shared, from_hops, hop_areas, answers, outbox, .. } = self;
        let datagrams = received(from_hops, hop_areas, count);
        shared.lock().from_hops(side, now, unix, datagrams, answers, outbox);
        self.send_to_clients();
        self.send_to_transceivers(now);
        if let Some(trunk) = self.config.trunk {
            self.send_onward(trunk);
        }
    }

    fn from_ingress(&mut self, trunk: RawFd, now: f64, unix: f64) {
        let count = self.receive_hops(trunk);
        let Self { shared, from_hops, hop_areas, outbox, .. } = self;
        let datagrams = received(from_hops, hop_areas, count);
        shared.lock().from_ingress(now, unix, datagrams, outbox);
        self.send_onward(self.config.upstream);
        let Self { shared, outbox, to_transceivers, .. } = self;
        let replies = outbox.onward.replies.iter().map(|(to, bytes)| (*to, None, std::iter::once(&bytes[..])));
        to_transceivers.send(trunk, replies, |_, error| shared.lock().state.counters.drop(drop_reason(error)));
    }

    /// Sends datagrams on that were received last, with their records as they came.
    fn send_onward(&mut self, fd: RawFd) {
        let Self { shared, outbox, to_transceivers, from_hops, hop_areas, .. } = self;
        let area = |number: u32| &hop_areas[number as usize * HOP_AREA..][..from_hops.length(number as usize)];
        let datagrams = outbox.onward.iter(area).map(|(to, pieces)| (to, None, pieces));
        to_transceivers.send(fd, datagrams, |_, error| shared.lock().state.counters.drop(drop_reason(error)));
    }

    /// Sends the answers, each run of one listener in one go.
    fn send_to_clients(&mut self) {
        let Self { shared, clients, hop_areas, answers, locals, .. } = self;
        let mut rest = &answers[..];
        while let Some(first) = rest.first() {
            let id = listener_of(&first.path);
            let run = rest.iter().take_while(|answer| listener_of(&answer.path) == id).count();
            let (now_sent, later) = rest.split_at(run);
            rest = later;
            let Some(PublicSocket { listener, sender }) = clients.iter_mut().find(|client| client.listener.id == id)
            else {
                continue; // the forwarder knows the same listeners
            };
            let mut mismatched = 0;
            let datagrams = now_sent.iter().filter_map(|answer| {
                let (to, payload) = (endpoint(&answer.path), &answer.payload);
                if to.is_ipv4() == listener.is_ipv6 {
                    mismatched += 1;
                    return None;
                }
                let at = answer.datagram as usize * HOP_AREA;
                let bytes = &hop_areas[at + payload.start as usize..at + payload.end as usize];
                Some((to, locals.address(answer.local), std::iter::once(bytes)))
            });
            sender.send(listener.fd, datagrams, |_, error| shared.lock().state.counters.drop(drop_reason(error)));
            for _ in 0..mismatched {
                shared.lock().state.counters.drop(Drop::HopListener);
            }
        }
    }
}

/// What was received into the areas, each with its source.
fn received<'a>(receiver: &'a Receiver, areas: &'a [u8], count: usize) -> impl Iterator<Item = (&'a [u8], Endpoint)> {
    areas.chunks_exact(HOP_AREA).take(count).enumerate().map(|(number, area)| {
        // Cut off, it would only fail its MAC: as an empty one it is counted at once.
        let length = if receiver.is_cut(number) { 0 } else { receiver.length(number) };
        (&area[..length], receiver.source(number))
    })
}

fn drop_reason(error: &std::io::Error) -> Drop {
    match error.raw_os_error() {
        Some(libc::EAGAIN) => Drop::SendAgain,
        Some(libc::ENOBUFS) => Drop::SendNoBuffers,
        Some(libc::EMSGSIZE) => Drop::SendTooLong,
        _ => Drop::SendRefused,
    }
}

fn path_key(listener: u16, source: Endpoint) -> PathKey {
    let mut path = [0; 20];
    path[..2].copy_from_slice(&listener.to_be_bytes());
    path[2..4].copy_from_slice(&source.port.to_be_bytes());
    path[4..].copy_from_slice(&source.address);
    path
}

fn listener_of(path: &PathKey) -> u16 {
    u16::from_be_bytes([path[0], path[1]])
}

fn endpoint(path: &PathKey) -> Endpoint {
    let port = u16::from_be_bytes([path[2], path[3]]);
    Endpoint { address: client_address(path), port }
}
