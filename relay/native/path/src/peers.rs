//! Other clusters as the data path of an ingress relay sees them.
//!
//! A peer has the addresses that its answers may come from, and 64 places, each with the address that the clients of
//! this place are sent to. Which addresses are up is found out elsewhere; the data path gets the outcome.

use core::hash::Hasher;
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
