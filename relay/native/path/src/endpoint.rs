//! The other end of a hop: a transceiver, or a relay of another cluster.

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
