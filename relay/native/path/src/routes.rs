//! The route table as the data path sees it: where each live transceiver is.

use ahash::RandomState;
use std::collections::HashMap;

use crate::hop::{OVERHEAD, RouteKey};

const V4_MAPPED_PREFIX: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF];

/// An IPv4 address as 16 bytes (RFC 4291 section 2.5.5.2).
pub fn mapped(address: [u8; 4]) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..12].copy_from_slice(&V4_MAPPED_PREFIX);
    bytes[12..].copy_from_slice(&address);
    bytes
}

/// An address of the hop network: IP (v4-mapped) and port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Endpoint {
    /// The IP address, 16 bytes.
    pub address: [u8; 16],
    /// The UDP port.
    pub port: u16,
}

impl Endpoint {
    /// Whether it is an IPv4 address.
    pub fn is_ipv4(&self) -> bool {
        self.address.starts_with(&V4_MAPPED_PREFIX)
    }
}

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
}

impl LiveRoute {
    /// A route without counts.
    pub fn new(key: RouteKey, address: Endpoint, hop_size: usize) -> Self {
        Self { key, address, hop_size, uplink: 0, downlink: 0 }
    }

    /// The longest client datagram that fits with one record.
    pub fn room(&self) -> usize {
        self.hop_size.saturating_sub(OVERHEAD)
    }
}

/// All live routes; replaced as a whole.
#[derive(Default)]
pub struct Routes {
    entries: Vec<LiveRoute>,
    index: HashMap<RouteKey, u32, RandomState>,
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

    /// Takes over the counts of the table that this one replaces.
    pub fn continue_from(&mut self, old: &Routes) {
        for route in &mut self.entries {
            if let Some(known) = old.find(&route.key) {
                route.uplink = old.entries[known as usize].uplink;
                route.downlink = old.entries[known as usize].downlink;
            }
        }
    }

    /// The index of a route.
    pub fn find(&self, key: &RouteKey) -> Option<u32> {
        self.index.get(key).copied()
    }

    /// Whether a route is live.
    pub fn contains(&self, key: &RouteKey) -> bool {
        self.index.contains_key(key)
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

    /// The routes in the order in which they were given.
    pub fn iter(&self) -> impl Iterator<Item = &LiveRoute> {
        self.entries.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
