//! The route table as the data path sees it: where each live transceiver is.

use ahash::RandomState;
use std::collections::HashMap;

use crate::endpoint::Endpoint;
use crate::hop::{OVERHEAD, PathKey, RouteKey};
use crate::peers::{Cluster, Peer, TRUNK_HOP_SIZE, cluster_of};

/// A transceiver.
#[derive(Clone, Debug)]
pub struct LiveRoute {
    /// Cluster, pod and worker.
    pub key: RouteKey,
    /// Where it listens, and where its answers come from.
    pub address: Endpoint,
    /// The most UDP payload that the way to it carries in one piece.
    pub hop_size: usize,
    /// Client datagrams sent there.
    pub uplink: u64,
    /// Client datagrams that came from there.
    pub downlink: u64,
    /// Whether it is of another cluster: `address` is then that of a relay there.
    pub is_of_peer: bool,
}

impl LiveRoute {
    /// A route without counts.
    pub fn new(key: RouteKey, address: Endpoint, hop_size: usize) -> Self {
        Self { key, address, hop_size, uplink: 0, downlink: 0, is_of_peer: false }
    }

    /// The longest client datagram that fits with one record.
    pub fn room(&self) -> usize {
        self.hop_size.saturating_sub(OVERHEAD)
    }
}

/// Routes of other clusters that are remembered, for each address that they are reached by.
const MAX_OF_PEERS: usize = 16_384;

/// All live routes: those of the table, which is replaced as a whole, and those of peers that clients named lately.
#[derive(Default)]
pub struct Routes {
    /// Those of the table, then those of peers.
    entries: Vec<LiveRoute>,
    index: HashMap<RouteKey, u32, RandomState>,
    peers: Vec<Peer>,
    of_peers: HashMap<(RouteKey, Endpoint), u32, RandomState>,
}

impl Routes {
    /// Makes a table; of two routes with one key the later one counts, in the place of the first.
    pub fn new(routes: impl IntoIterator<Item = LiveRoute>) -> Self {
        let mut table = Self::default();
        for route in routes {
            if let Some(&known) = table.index.get(&route.key) {
                table.entries[known as usize] = route;
            } else {
                table.index.insert(route.key, table.entries.len() as u32);
                table.entries.push(route);
            }
        }
        table
    }

    /// Takes over peers and counts of the table that this one replaces.
    pub fn continue_from(&mut self, old: &mut Routes) {
        self.peers = std::mem::take(&mut old.peers);
        for route in &mut self.entries {
            if let Some(known) = old.find(&route.key) {
                route.uplink = old.entries[known as usize].uplink;
                route.downlink = old.entries[known as usize].downlink;
            }
        }
    }

    /// Swaps the peers.
    pub fn set_peers(&mut self, peers: Vec<Peer>) {
        self.peers = peers;
        self.forget_peers_routes();
    }

    /// The peer of a cluster.
    pub fn peer(&self, cluster: Cluster) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.cluster == cluster)
    }

    /// The index of a route, by which a client's datagrams leave: of the table, or of a peer.
    pub fn way(&mut self, key: &RouteKey, path: &PathKey) -> Option<u32> {
        if let Some(own) = self.find(key) {
            return Some(own);
        }
        let address = self.peer(cluster_of(key))?.address(path);
        Some(self.of_peer(key, address))
    }

    /// The index of a route of a peer that is reached by `address`.
    pub fn of_peer(&mut self, key: &RouteKey, address: Endpoint) -> u32 {
        if let Some(&known) = self.of_peers.get(&(*key, address)) {
            return known;
        }
        let added = self.entries.len() as u32;
        self.of_peers.insert((*key, address), added);
        self.entries.push(LiveRoute { is_of_peer: true, ..LiveRoute::new(*key, address, TRUNK_HOP_SIZE) });
        added
    }

    /// Makes room for routes of peers. Indexes of such routes are void after it: to be called between batches.
    pub fn tidy(&mut self) {
        if self.of_peers.len() > MAX_OF_PEERS {
            self.forget_peers_routes();
        }
    }

    fn forget_peers_routes(&mut self) {
        self.entries.truncate(self.index.len());
        self.of_peers.clear();
    }

    /// How many entries there are, those of peers included.
    pub fn entries(&self) -> usize {
        self.entries.len()
    }

    /// The index of a route of the table.
    pub fn find(&self, key: &RouteKey) -> Option<u32> {
        self.index.get(key).copied()
    }

    /// Whether a route is live.
    pub fn contains(&self, key: &RouteKey) -> bool {
        self.index.contains_key(key) || self.peer(cluster_of(key)).is_some()
    }

    /// A route by its index.
    pub fn get(&self, route: u32) -> &LiveRoute {
        &self.entries[route as usize]
    }

    /// A route by its index.
    pub fn get_mut(&mut self, route: u32) -> &mut LiveRoute {
        &mut self.entries[route as usize]
    }

    /// Takes note of how much the way to an address carries.
    pub fn set_hop_size(&mut self, address: Endpoint, hop_size: usize) {
        for route in self.entries.iter_mut().filter(|route| route.address == address) {
            route.hop_size = hop_size;
        }
    }

    /// The routes of the table in the order in which they were given.
    pub fn iter(&self) -> impl Iterator<Item = &LiveRoute> {
        self.entries[..self.index.len()].iter()
    }

    /// How many the table has.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there is any live route, here or in another cluster.
    pub fn lead_anywhere(&self) -> bool {
        !self.is_empty() || !self.peers.is_empty()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }
}
