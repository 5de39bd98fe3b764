//! A parsed hop datagram is its records and nothing else, can be written again byte by byte, and its MAC covers what the
//! wire page says.
#![no_main]

use libfuzzer_sys::fuzz_target;
use usher_relay_path::hop::{self, HopMac, MAC_AT, OUTER_LENGTH, OVERHEAD, RECORD_LENGTH, TO_CLIENT, VERSION};

const KEY: [u8; 16] = [7; 16];

fuzz_target!(|input: &[u8]| {
    check(input);
    if input.len() >= OVERHEAD {
        let mut mended = input.to_vec();
        mended[0] = VERSION;
        mended[1] = mended[1] & TO_CLIENT | (mended[1] % 6 + 1);
        check(&mended);
        mended[OUTER_LENGTH..OUTER_LENGTH + 2].copy_from_slice(&((input.len() - OVERHEAD) as u16).to_be_bytes());
        check(&mended);
    }
});

fn check(datagram: &[u8]) {
    let Ok(parsed) = hop::parse(datagram) else { return };
    let (written, covered) = write_again(&parsed);
    let (start, end) = (MAC_AT, OUTER_LENGTH);
    assert_eq!(written[..2], datagram[..2]);
    // The flags, which version 1 writes as 0, and the MAC are not the fuzzer's to know.
    assert_eq!(written[3..start], datagram[3..start]);
    assert_eq!(written[end..], datagram[end..]);
    is_covered(&written, &covered, usize::from(datagram[2]) << 8 | usize::from(datagram[MAC_AT]));
}

/// Write the datagram with a good MAC; return it and which of its bytes the MAC covers or is.
fn write_again(parsed: &hop::Parsed<'_>) -> (Vec<u8>, Vec<bool>) {
    let mut outer = [0; OUTER_LENGTH];
    let (hops_left, route, key_id) = (parsed.hops_left(), parsed.route(), parsed.key_id());
    hop::write_outer(&mut outer, parsed.kind(), hops_left, &route, key_id, parsed.time_ms(), parsed.return_slot());
    let mut state = HopMac::new(&KEY).begin();
    state.write(&outer);
    let mut written = outer.to_vec();
    let mut covered = vec![true; OUTER_LENGTH];
    for record in parsed.records() {
        let mut header = [0; RECORD_LENGTH];
        let length = record.payload.len();
        hop::write_record(&mut header, length as u16, record.flags, &record.path, record.split_id);
        assert_eq!(written.len() + RECORD_LENGTH, record.offset);
        let is_data = parsed.kind() & !TO_CLIENT == hop::DATA;
        let part = if is_data { length.min(16) } else { length.min(hop::MAX_DATAGRAM) };
        state.write(&header);
        state.write(&record.payload[..part]);
        written.extend([&header[..], record.payload].concat());
        covered.resize(covered.len() + RECORD_LENGTH + part, true);
        covered.resize(covered.len() + length - part, false);
    }
    written[MAC_AT..OUTER_LENGTH].copy_from_slice(&state.finish());
    (written, covered)
}

/// Flip one bit that the input chooses: the MAC must notice, exactly where it covers.
fn is_covered(written: &[u8], covered: &[bool], choice: usize) {
    let mac = HopMac::new(&KEY);
    let verify = |datagram: &[u8]| hop::parse(datagram).is_ok_and(|parsed| parsed.verify(&mac));
    assert!(verify(written));
    let at = choice % written.len();
    let mut changed = written.to_vec();
    changed[at] ^= 1 << (choice % 8);
    assert_eq!(verify(&changed), !covered[at], "byte {at}");
}
