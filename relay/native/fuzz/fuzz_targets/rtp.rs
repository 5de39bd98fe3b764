//! What a first byte announces and what is read of RTP agree with each other, and depend on the header only.
#![no_main]

use libfuzzer_sys::fuzz_target;
use usher_relay_path::datagram::{Kind, kind};
use usher_relay_path::rtp::{is_rtcp, peek_ssrc};

fuzz_target!(|packet: &[u8]| {
    let Some(first) = packet.first() else {
        assert!(!is_rtcp(packet) && peek_ssrc(packet).is_none());
        return;
    };
    let needed = if is_rtcp(packet) { 8 } else { 12 };
    let is_readable = kind(*first) == Kind::Rtp && packet.len() >= needed;
    let ssrc = peek_ssrc(packet);
    assert_eq!(ssrc.is_some(), is_readable, "version 2 is what RTP announces itself by");
    if let Some(ssrc) = ssrc {
        assert_eq!(packet[needed - 4..needed], ssrc);
        assert_eq!(peek_ssrc(&packet[..needed]), Some(ssrc), "nothing behind the header counts");
        assert_eq!(peek_ssrc(&packet[..needed - 1]), None);
    }
});
