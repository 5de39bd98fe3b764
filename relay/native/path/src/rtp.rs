//! What a relay may read of SRTP and SRTCP: the parts that are sent in clear (RFC 3711 sections 3.1, 3.4).
//!
//! RTCP is told from RTP by its packet type, 192..223 (RFC 5761 section 4). An RTP header has at least 12 bytes with the
//! SSRC in the last 4, an RTCP header 8 bytes with the sender's SSRC in the last 4 (RFC 3550 sections 5.1, 6.4).

/// The shortest RTP packet: its fixed header (RFC 3550 section 5.1).
pub const HEADER_LENGTH: usize = 12;
const RTCP_HEADER_LENGTH: usize = 8;
const VERSION: u8 = 2;

/// Tell RTCP from RTP.
pub fn is_rtcp(packet: &[u8]) -> bool {
    matches!(packet.get(1), Some(192..=223))
}

/// Return the SSRC of an RTP packet, the sender's SSRC of an RTCP packet, or None when it is too short for one.
pub fn peek_ssrc(packet: &[u8]) -> Option<[u8; 4]> {
    if packet.len() < RTCP_HEADER_LENGTH || packet[0] >> 6 != VERSION {
        return None;
    }
    let end = if is_rtcp(packet) { RTCP_HEADER_LENGTH } else { HEADER_LENGTH };
    packet.get(..end)?.last_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RTP: [u8; 12] = [0x80, 96, 0, 1, 0, 0, 0, 2, 0xa1, 0xa2, 0xa3, 0xa4];
    const RTCP: [u8; 8] = [0x80, 200, 0, 1, 0xb1, 0xb2, 0xb3, 0xb4];

    #[test]
    fn rtcp_has_the_packet_types_192_to_223() {
        for kind in 0..=255 {
            assert_eq!(is_rtcp(&[0x80, kind]), (192..=223).contains(&kind), "packet type {kind}");
        }
        assert!(!is_rtcp(&[0x80]));
        assert!(!is_rtcp(&[]));
    }

    #[test]
    fn the_ssrc_of_rtp_stands_behind_the_timestamp_and_that_of_rtcp_behind_the_length() {
        assert_eq!(peek_ssrc(&RTP), Some([0xa1, 0xa2, 0xa3, 0xa4]));
        assert_eq!(peek_ssrc(&RTCP), Some([0xb1, 0xb2, 0xb3, 0xb4]));
    }

    #[test]
    fn a_packet_that_is_cut_off_before_its_ssrc_ends_has_none() {
        for length in 0..RTP.len() {
            assert_eq!(peek_ssrc(&RTP[..length]), None, "RTP of {length} bytes");
        }
        for length in 0..RTCP.len() {
            assert_eq!(peek_ssrc(&RTCP[..length]), None, "RTCP of {length} bytes");
        }
    }

    #[test]
    fn another_version_than_2_has_no_ssrc() {
        for first in [0x00, 0x40, 0x7f, 0xc0, 0xff] {
            let mut packet = RTP;
            packet[0] = first;
            assert_eq!(peek_ssrc(&packet), None, "first byte {first}");
        }
    }

    proptest! {
        #[test]
        fn an_ssrc_is_always_bytes_of_the_packet(packet in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Some(ssrc) = peek_ssrc(&packet) {
                let at = if is_rtcp(&packet) { 4 } else { 8 };
                prop_assert_eq!(&packet[at..at + 4], &ssrc);
                prop_assert_eq!(packet[0] >> 6, 2);
            }
        }
    }
}
