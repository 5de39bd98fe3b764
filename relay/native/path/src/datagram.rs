//! What kind of datagram a first byte announces (RFC 7983 section 7, RFC 9443 section 3).
//!
//! The relay takes three of the protocols that may share a port: STUN 0..3, DTLS 20..63, RTP and RTCP 128..191. All
//! others (ZRTP 16..19, TURN channels 64..79, QUIC 80..127 and 192..255, and what is not assigned) are [`Kind::Other`].

/// The protocols that the relay tells apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Not ours.
    Other,
    /// STUN (RFC 8489).
    Stun,
    /// DTLS (RFC 6347, RFC 9147).
    Dtls,
    /// RTP or RTCP; [`crate::rtp::is_rtcp`] tells which.
    Rtp,
}

const KINDS: [Kind; 256] = table();

/// Tell the kind of a datagram by its first byte.
pub fn kind(first: u8) -> Kind {
    KINDS[usize::from(first)]
}

const fn table() -> [Kind; 256] {
    let mut kinds = [Kind::Other; 256];
    let mut first = 0;
    while first < kinds.len() {
        kinds[first] = match first {
            0..=3 => Kind::Stun,
            20..=63 => Kind::Dtls,
            128..=191 => Kind::Rtp,
            _ => Kind::Other,
        };
        first += 1;
    }
    kinds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_first_byte_has_the_kind_of_rfc_7983() {
        let ranges = [
            (0, 3, Kind::Stun),
            (4, 15, Kind::Other),
            (16, 19, Kind::Other),
            (20, 63, Kind::Dtls),
            (64, 127, Kind::Other),
            (128, 191, Kind::Rtp),
            (192, 255, Kind::Other),
        ];
        let mut seen = 0;
        for (first, last, expected) in ranges {
            for byte in first..=last {
                assert_eq!(kind(byte), expected, "first byte {byte}");
                seen += 1;
            }
        }
        assert_eq!(seen, 256);
    }
}
