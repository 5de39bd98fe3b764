//! What both directions of the path share: routes, keys, flows, limits, counters. Owned by one worker.

use std::num::NonZeroUsize;
use std::sync::Arc;

use ahash::RandomState;
use lru::LruCache;

use crate::counters::Counters;
use crate::exchange::{Exchange, Named};
use crate::flows::{FlowMap, LocalId};
use crate::hop::{HopMac, PathKey};
use crate::keys::{Keys, TrunkKey};
use crate::limits::{AddressLimit, Buckets, Rate};
use crate::peers::{AskedPeers, Cluster};
use crate::return_slots::{MAX_TRUNKS, ReturnSlots};
use crate::routes::Routes;
use crate::ufrag::Ufrag;
use crate::waiting::Waiting;

const REMEMBERED_LOCALS: NonZeroUsize = NonZeroUsize::new(4_096).expect("not zero");
/// Answered per second: each relay at the other end sends 4 for each address of ours.
const PROBES_PER_TRUNK: u32 = 1_000;
/// Seconds after which a datagram is no longer timely, however its sender's clock goes: within 60 s, before or after.
const PROBE_KNOWN: f64 = 120.0;
/// Senders and ufrags that a limit tells apart.
const BUCKETS: usize = 65_536;

/// The limits of a relay; the settings of `usher relay` say the reason of each.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most client addresses remembered.
    pub max_flows: usize,
    /// Most flows of one ufrag that wait for their first answer.
    pub probation_per_ufrag: usize,
    /// Datagrams per second from one client address and port.
    pub packets_per_client: u32,
    /// Datagrams per second from one whole address.
    pub packets_per_address: u32,
    /// Valid requests per second from one client address and port.
    pub checks_per_client: u32,
    /// Valid requests per second for one ufrag from addresses not yet answered.
    pub checks_per_ufrag: u32,
    /// Tentative packets per second from one client address and port.
    pub tentative_per_client: u32,
    /// Tentative packets per second in all.
    pub tentative_per_second: u32,
    /// Most live transceivers that are all asked whose an unknown client is.
    pub who_has_limit: usize,
    /// Such questions per second.
    pub questions_per_second: u32,
}

/// What all hop datagrams of one batch share.
#[derive(Clone)]
pub struct Stamp {
    /// Id of the key.
    pub key_id: u8,
    /// Makes MACs.
    pub mac: HopMac,
    /// Unix time in ms, modulo 2^32.
    pub time_ms: u32,
}

/// The state of one worker.
pub struct State {
    /// What was counted so far.
    pub counters: Counters,
    /// The ids of the listeners that it serves.
    pub listeners: Box<[u16]>,
    /// The live transceivers.
    pub routes: Routes,
    /// Which client address belongs to which transceiver.
    pub flows: FlowMap,
    /// Replaced as a whole.
    pub keys: Arc<Keys>,
    pub(crate) client_rate: Rate,
    pub(crate) address_limit: AddressLimit,
    pub(crate) checks_by_client: Buckets<PathKey>,
    pub(crate) checks_by_ufrag: Buckets<Ufrag>,
    pub(crate) tentative_by_client: Buckets<PathKey>,
    pub(crate) tentative: Buckets<()>,
    pub(crate) who_has_limit: usize,
    /// What waits until a transceiver has said whose it is.
    pub waiting: Waiting,
    /// Which peers may answer whom.
    pub asked_peers: AskedPeers,
    /// How answers find ingress relays of other clusters.
    pub slots: ReturnSlots,
    /// How many probes of each trunk are answered.
    pub(crate) probes: Buckets<Cluster>,
    /// Each of them once, by its nonce: a recorded one takes nothing from its trunk.
    pub(crate) probe_nonces: Buckets<(Cluster, [u8; 8])>,
    /// To send over trunks with.
    pub trunk_keys: Vec<TrunkKey>,
    /// The way to a store of mappings; None where none is asked.
    pub exchange: Option<Exchange>,
    locals: LruCache<PathKey, LocalId, RandomState>,
    hop_key: (u8, HopMac),
    pub(crate) split_id: u16,
}

impl State {
    /// Makes the state of a worker that serves `listeners`.
    pub fn new(limits: &Limits, listeners: &[u16], keys: Arc<Keys>) -> Self {
        let (id, mac) = keys.choose_hop(0.0);
        let hop_key = (id, mac.clone());
        Self {
            counters: Counters::default(),
            listeners: listeners.into(),
            routes: Routes::default(),
            flows: FlowMap::new(limits.max_flows, limits.probation_per_ufrag),
            keys,
            client_rate: rate(limits.packets_per_client),
            address_limit: AddressLimit::new(limits.packets_per_address.into(), BUCKETS),
            checks_by_client: Buckets::new(rate(limits.checks_per_client), BUCKETS),
            checks_by_ufrag: Buckets::new(rate(limits.checks_per_ufrag), BUCKETS),
            tentative_by_client: Buckets::new(rate(limits.tentative_per_client), BUCKETS),
            tentative: Buckets::new(rate(limits.tentative_per_second), 1),
            who_has_limit: limits.who_has_limit,
            waiting: Waiting::new(limits.questions_per_second),
            asked_peers: AskedPeers::default(),
            slots: ReturnSlots::default(),
            probes: Buckets::new(rate(PROBES_PER_TRUNK), MAX_TRUNKS),
            probe_nonces: Buckets::new(Rate::once_in(PROBE_KNOWN), BUCKETS),
            trunk_keys: Vec::new(),
            exchange: None,
            locals: LruCache::with_hasher(REMEMBERED_LOCALS, RandomState::new()),
            hop_key,
            split_id: 0,
        }
    }

    /// Has a store asked for unknown clients, and confirmed flows named to it.
    pub fn use_store(&mut self, capacity: usize) {
        self.exchange = Some(Exchange::new(capacity));
        self.flows.named = Some(Named::default());
    }

    /// How many transceivers are asked whose a client is: all of them, or none where they are too many.
    pub fn transceivers_to_ask(&self) -> u32 {
        if self.routes.len() <= self.who_has_limit { self.routes.len() as u32 } else { 0 }
    }

    /// Chooses the keys that are sent with at `unix`, Unix seconds: keys become active as time passes.
    pub fn choose_hop_keys(&mut self, unix: f64) {
        let (id, mac) = self.keys.choose_hop(unix);
        self.hop_key = (id, mac.clone());
        self.trunk_keys = self.keys.choose_trunks(unix);
    }

    /// The stamp of a batch at `unix_ms`, Unix time in ms.
    pub fn stamp(&self, unix_ms: u64) -> Stamp {
        Stamp { key_id: self.hop_key.0, mac: self.hop_key.1.clone(), time_ms: unix_ms as u32 }
    }

    /// The stamp of the same batch for what goes over the trunk to a cluster; None without a key for it.
    pub fn trunk_stamp(&self, cluster: Cluster, time_ms: u32) -> Option<Stamp> {
        let key = self.trunk_keys.iter().find(|key| key.cluster == cluster)?;
        Some(Stamp { key_id: key.id, mac: key.mac.clone(), time_ms })
    }

    /// Keeps the local address of a request or tentative packet that made no flow, for its answer.
    pub fn remember_local(&mut self, path: &PathKey, local: LocalId) {
        if local != 0 {
            self.locals.put(*path, local);
        }
    }

    /// The local address kept for an answer to `path`, or 0: the listener's own.
    pub fn remembered_local(&self, path: &PathKey) -> LocalId {
        self.locals.peek(path).copied().unwrap_or(0)
    }
}

/// A whole second's packets may come at once: what a stalled network lets through in one go is no attack.
fn rate(per_second: u32) -> Rate {
    Rate::new(f64::from(per_second), f64::from(per_second))
}
