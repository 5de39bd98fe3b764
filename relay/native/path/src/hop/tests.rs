use super::*;
use proptest::prelude::*;

const KEY: [u8; 16] = [7; 16];
const ROUTE: RouteKey = [0, 1, 3, 0x9a, 0x1e, 0, 9];

#[derive(Clone, Debug)]
struct Made {
    path: PathKey,
    flags: u8,
    split_id: u16,
    payload: Vec<u8>,
}

fn encode(kind: u8, records: &[Made], key: &[u8; 16]) -> Vec<u8> {
    let mut outer = [0xee; OUTER_LENGTH];
    write_outer(&mut outer, kind, 1, &ROUTE, 3, 0xcfe5_687b, 0x0102);
    let covered = if kind & !TO_CLIENT == DATA { MAC_PAYLOAD_LENGTH } else { MAX_DATAGRAM };
    let mut state = HopMac::new(key).begin();
    state.write(&outer);
    let mut body = Vec::new();
    for record in records {
        let mut header = [0xee; RECORD_LENGTH];
        let length = u16::try_from(record.payload.len()).unwrap();
        write_record(&mut header, length, record.flags, &record.path, record.split_id);
        state.write(&header);
        state.write(&record.payload[..record.payload.len().min(covered)]);
        body.extend_from_slice(&header);
        body.extend_from_slice(&record.payload);
    }
    outer[MAC_AT..].copy_from_slice(&state.finish());
    [&outer[..], &body].concat()
}

fn made(payload: &[u8]) -> Made {
    let mut path = [0; 20];
    for (byte, value) in path.iter_mut().zip(10..) {
        *byte = value;
    }
    Made { path, flags: ALIVE, split_id: 0x0a0b, payload: payload.to_vec() }
}

fn any_records() -> impl Strategy<Value = Vec<Made>> {
    let record = (any::<PathKey>(), any::<u8>(), any::<u16>(), proptest::collection::vec(any::<u8>(), 0..80))
        .prop_map(|(path, flags, split_id, payload)| Made { path, flags, split_id, payload });
    proptest::collection::vec(record, 1..4)
}

/// The bytes that the MAC covers or is, by a walk that shares nothing with the code above.
fn covered_bytes(kind: u8, records: &[Made]) -> Vec<usize> {
    let mut covered: Vec<usize> = (0..26).collect();
    let mut at = 26;
    for record in records {
        let payload = if kind == DATA { record.payload.len().min(16) } else { record.payload.len() };
        covered.extend(at..at + 25 + payload);
        at += 25 + record.payload.len();
    }
    covered
}

fn fault(datagram: &[u8]) -> Option<HopFault> {
    parse(datagram).err()
}

#[test]
fn each_field_stands_at_its_offset() {
    let datagram = encode(TO_CLIENT | DATA, &[made(b"payload")], &KEY);
    assert_eq!(&datagram[..18], &[1, 0x81, 0, 1, 0, 1, 3, 0x9a, 0x1e, 0, 9, 3, 0xcf, 0xe5, 0x68, 0x7b, 1, 2]);
    assert_eq!(&datagram[26..29], &[0, 7, ALIVE]);
    assert_eq!(&datagram[29..49], &made(b"").path);
    assert_eq!(&datagram[49..51], &[0x0a, 0x0b]);
    assert_eq!(&datagram[51..], b"payload");
}

#[test]
fn the_accessors_return_what_was_written() {
    let datagram = encode(TO_CLIENT | HERE, &[made(b"ssrc")], &KEY);
    let parsed = parse(&datagram).unwrap();
    assert_eq!((parsed.kind(), parsed.to_client(), parsed.hops_left(), parsed.flags()), (TO_CLIENT | HERE, true, 1, 0));
    assert_eq!((parsed.route(), parsed.key_id()), (ROUTE, 3));
    assert_eq!((parsed.time_ms(), parsed.return_slot()), (0xcfe5_687b, 0x0102));
    assert_eq!(parsed.version(), VERSION);
    assert_eq!(peek_route(&datagram), Some(ROUTE));
    assert_eq!(peek_route(&datagram[..11]), Some(ROUTE));
    assert_eq!(peek_route(&datagram[..10]), None);
    let records: Vec<_> = parsed.records().collect();
    assert_eq!(records.len(), 1);
    assert_eq!((records[0].path, records[0].flags, records[0].split_id), (made(b"").path, ALIVE, 0x0a0b));
    assert_eq!((records[0].payload, records[0].offset), (&b"ssrc"[..], 51));
}

#[test]
fn faults_are_found_in_the_order_length_version_type_route_records() {
    let mut datagram = encode(DATA, &[made(b"payload")], &KEY);
    datagram[26] = 0xff;
    assert_eq!(fault(&datagram), Some(HopFault::Length));
    datagram[4..6].fill(0);
    assert_eq!(fault(&datagram), Some(HopFault::Route));
    datagram[1] = 7;
    assert_eq!(fault(&datagram), Some(HopFault::Type));
    datagram[0] = 2;
    assert_eq!(fault(&datagram), Some(HopFault::Version));
    datagram.truncate(50);
    assert_eq!(fault(&datagram), Some(HopFault::Length));
}

#[test]
fn types_1_to_6_are_known_in_both_directions() {
    let mut datagram = encode(DATA, &[made(b"")], &KEY);
    for kind in 0..=255_u8 {
        datagram[1] = kind;
        let expected = (!(1..=6).contains(&(kind & 0x7f))).then_some(HopFault::Type);
        assert_eq!(fault(&datagram), expected, "type byte {kind}");
    }
}

#[test]
fn a_datagram_cut_off_or_with_a_byte_too_many_is_refused() {
    let records = [made(b"first"), made(b"")];
    let whole = encode(DATA, &records, &KEY);
    for length in 0..whole.len() {
        // Behind its first record a datagram is whole.
        let expected = (length != 56).then_some(HopFault::Length);
        assert_eq!(fault(&whole[..length]), expected, "{length} bytes");
    }
    assert_eq!(fault(&[&whole[..], &[0]].concat()), Some(HopFault::Length));
}

#[test]
fn a_mac_does_not_depend_on_how_its_input_is_cut() {
    let input: Vec<u8> = (0..100).collect();
    let mut whole = HopMac::new(&KEY).begin();
    whole.write(&input);
    for cut in 0..=input.len() {
        let mut state = HopMac::new(&KEY).begin();
        state.write(&input[..cut]);
        state.write(&input[cut..]);
        assert_eq!(state.finish(), whole.finish(), "cut at {cut}");
    }
}

#[test]
fn a_key_does_not_show_in_debug() {
    assert_eq!(format!("{:?}", HopMac::new(&KEY)), "HopMac(..)");
}

#[test]
fn time_offsets_are_serial() {
    assert_eq!(time_offset_ms(5, 3), 2);
    assert_eq!(time_offset_ms(3, 5), -2);
    assert_eq!(time_offset_ms(1, u32::MAX), 2);
    assert_eq!(time_offset_ms(u32::MAX, 1), -2);
    assert_eq!(time_offset_ms(1 << 31, 0), -(1 << 31));
    assert_eq!(time_offset_ms((1 << 31) - 1, 0), (1 << 31) - 1);
}

#[test]
fn a_cut_is_in_the_middle_and_the_first_half_the_longer_one() {
    assert_eq!(split_at(1408, 704), Some(704));
    assert_eq!(split_at(1409, 705), Some(705));
    assert_eq!(split_at(1409, 704), None);
    assert_eq!(split_at(0, 0), Some(0));
    assert_eq!(split_at(usize::MAX, usize::MAX), Some(usize::MAX / 2 + 1));
}

proptest! {
    #[test]
    fn what_was_written_is_read_and_verified(
        kind in DATA..=PROBE_REPLY,
        direction in prop_oneof![Just(0), Just(TO_CLIENT)],
        records in any_records(),
    ) {
        let datagram = encode(kind | direction, &records, &KEY);
        let parsed = parse(&datagram).unwrap();
        prop_assert_eq!(parsed.kind(), kind | direction);
        prop_assert_eq!(parsed.to_client(), direction != 0);
        let read: Vec<_> = parsed.records().collect();
        prop_assert_eq!(read.len(), records.len());
        for (record, written) in read.iter().zip(&records) {
            prop_assert_eq!(record.path, written.path);
            prop_assert_eq!((record.flags, record.split_id), (written.flags, written.split_id));
            prop_assert_eq!(record.payload, &written.payload[..]);
            prop_assert_eq!(&datagram[record.offset..record.offset + record.payload.len()], record.payload);
        }
        prop_assert!(parsed.verify(&HopMac::new(&KEY)));
        prop_assert!(!parsed.verify(&HopMac::new(&[8; 16])));
    }

    #[test]
    fn a_flip_of_any_bit_shows_exactly_where_it_is_covered(
        kind in prop_oneof![Just(DATA), Just(UNKNOWN_FLOW), Just(PROBE)],
        records in any_records(),
        at in any::<proptest::sample::Index>(),
        bit in 0..8_u32,
    ) {
        let mut datagram = encode(kind, &records, &KEY);
        let at = at.index(datagram.len());
        datagram[at] ^= 1_u8 << bit;
        let accepted = parse(&datagram).is_ok_and(|parsed| parsed.verify(&HopMac::new(&KEY)));
        prop_assert_eq!(accepted, !covered_bytes(kind, &records).contains(&at), "byte {}", at);
    }

    #[test]
    fn no_input_makes_it_panic(datagram in proptest::collection::vec(any::<u8>(), 0..200), head in any::<bool>()) {
        let mut datagram = datagram;
        if head && datagram.len() > 6 {
            datagram[..6].copy_from_slice(&[VERSION, DATA, 0, 0, 0, 1]);
        }
        let mac = HopMac::new(&KEY);
        let _ = peek_route(&datagram);
        if let Ok(parsed) = parse(&datagram) {
            let end = parsed.records().last().map(|record| record.offset + record.payload.len());
            prop_assert_eq!(end, Some(datagram.len()));
            let _ = parsed.verify(&mac);
        }
    }

    #[test]
    fn an_offset_added_to_our_time_is_the_senders(sent in any::<u32>(), now in any::<u32>()) {
        let offset = time_offset_ms(sent, now);
        prop_assert!((-(1 << 31)..1 << 31).contains(&offset));
        prop_assert_eq!((i64::from(now) + offset).rem_euclid(1 << 32), i64::from(sent));
    }

    #[test]
    fn halves_differ_by_at_most_one_byte_and_fit(length in 0..70_000_usize, room in 0..2_000_usize) {
        match split_at(length, room) {
            Some(middle) => {
                prop_assert!(middle <= room && length - middle <= middle && middle - (length - middle) <= 1);
            }
            None => prop_assert!(length.div_ceil(2) > room),
        }
    }
}
