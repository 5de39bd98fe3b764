//! Other clusters as the data path of an ingress relay sees them.
//!
//! A peer has the addresses that its answers may come from, and 64 places, each with the address that the clients of
//! this place are sent to. Which addresses are up is found out elsewhere; the data path gets the outcome.

use core::hash::Hasher;
use std::num::NonZeroUsize;

use ahash::RandomState;
use lru::LruCache;
use siphasher::sip::SipHasher24;

use crate::endpoint::Endpoint;
use crate::hop::{PathKey, RouteKey};

/// The two bytes of a cluster id.
pub type Cluster = [u8; 2];
/// How many places a peer has.
pub const PLACES: usize = 64;
/// UDP payload that every link of IPv6 carries (RFC 8200 section 5), and so any way between clusters.
pub const TRUNK_HOP_SIZE: usize = 1_232;

/// One other cluster.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its id.
    pub cluster: Cluster,
    /// All its addresses.
    pub addresses: Vec<Endpoint>,
    /// The address of each place.
    pub places: [Endpoint; PLACES],
}

impl Peer {
    /// Where the datagrams of a client go now.
    pub fn address(&self, path: &PathKey) -> Endpoint {
        self.places[place_of(path)]
    }
}

const MAX_ASKED: NonZeroUsize = NonZeroUsize::new(65_536).expect("not zero");
const ASKED_FOR: f64 = 10.0;

/// Which peer was sent something of a client that has no flow there: its answer is let through, and no other's.
///
/// Else a peer could have anything sent to anybody, and make any client its own.
pub struct AskedPeers(LruCache<PathKey, (Cluster, f64), RandomState>);

impl Default for AskedPeers {
    fn default() -> Self {
        // Unbounded to make, so that a relay without peers has no memory for it; `note` keeps the bound.
        Self(LruCache::unbounded_with_hasher(RandomState::new()))
    }
}

impl AskedPeers {
    /// A datagram of a client goes to a peer.
    pub fn note(&mut self, path: &PathKey, cluster: Cluster, now: f64) {
        self.0.put(*path, (cluster, now));
        if self.0.len() > MAX_ASKED.get() {
            self.0.pop_lru();
        }
    }

    /// Whether a peer was the last one that was sent something of this client, within 10 s.
    pub fn may_answer(&self, path: &PathKey, cluster: Cluster, now: f64) -> bool {
        self.0.peek(path).is_some_and(|&(asked, at)| asked == cluster && now - at < ASKED_FOR)
    }
}

/// The cluster of a route.
pub fn cluster_of(route: &RouteKey) -> Cluster {
    [route[0], route[1]]
}

/// The place of a client: the same in every relay, and after a restart.
///
/// The hash has no secret: who chooses his own address and port chooses only which of the peer's relays carries him.
pub fn place_of(path: &PathKey) -> usize {
    let mut hasher = SipHasher24::new();
    hasher.write(path);
    (hasher.finish() % PLACES as u64) as usize
}
