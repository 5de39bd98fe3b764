//! Moves batches of one kind through a forwarder, to count what a packet takes.
//!
//! The difference of two lengths leaves the start out.

use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;
use usher_relay_path::downlink::Side;
use usher_relay_path::endpoint::{Endpoint, mapped};
use usher_relay_path::forwarder::{Forwarder, Outbox};
use usher_relay_path::hop::{self, ALIVE, HopMac, MAC_AT, OUTER_LENGTH, OVERHEAD, PathKey, RouteKey, TO_CLIENT};
use usher_relay_path::inlet::OVER_A_TRUNK;
use usher_relay_path::keys::{HopKey, IceKey, KeyState, Keys};
use usher_relay_path::packets::Packet;
use usher_relay_path::peers::{PLACES, Peer};
use usher_relay_path::routes::{LiveRoute, Routes};
use usher_relay_path::state::Limits;

/// What can be moved.
pub const CASES: [&str; 10] = [
    "forward",
    "forward-bundled",
    "return",
    "hostile-unknown",
    "hostile-tampered",
    "check",
    "ingress-up",
    "ingress-down",
    "home-up",
    "home-down",
];

const BATCH: usize = 64;
const FLOWS: u32 = 1_024;
const PAYLOAD: usize = 160;
const UNIX: f64 = 1_000_000.0;
const HOP_KEY: [u8; 16] = [3; 16];
const HOP_KEY_ID: u8 = 1;
const TRUNK_KEY: [u8; 16] = [4; 16];
const TRUNK_KEY_ID: u8 = 2;
const ROUTE: RouteKey = [0, 1, 0, 0, 0, 1, 0];
const PASSWORD_KEY: [u8; 32] = [5; 32];
// Of tests/vectors/ufrag.json: the key, and a ufrag of `ROUTE`.
const UFRAG_KEY: [u8; 16] =
    [0x66, 0x62, 0x5c, 0x07, 0xef, 0xea, 0x2d, 0x9e, 0xe0, 0x7e, 0x63, 0x0e, 0xfc, 0x51, 0x0e, 0xda];
const UFRAG: &[u8; 23] = b"aDvYWZScBjvGdyxWrDMP2vA";

/// Makes a forwarder without flows that knows `routes`, and has a trunk to cluster `other_end`.
fn empty(routes: Routes, other_end: u16, password_key: Option<[u8; 32]>) -> Forwarder {
    let state = KeyState::Active;
    let ice = IceKey { letter: b'a', clusters: vec![1], ufrag_key: UFRAG_KEY, password_key, state, not_before: 0 };
    let hop = HopKey { id: HOP_KEY_ID, key: HOP_KEY, state, not_before: 0 };
    let trunk = HopKey { id: TRUNK_KEY_ID, key: TRUNK_KEY, state, not_before: 0 };
    let mut keys = Keys::new(&[ice], &[hop]).unwrap_or_else(|_| panic!("keys that can be used"));
    keys.add_trunks(&[(other_end, trunk)]);
    let limits = Limits {
        max_flows: 100_000,
        probation_per_ufrag: 16,
        packets_per_client: 1_000_000,
        packets_per_address: 1_000_000_000,
        checks_per_client: 1_000_000,
        checks_per_ufrag: 1_000_000,
        tentative_per_client: 200,
        tentative_per_second: 10_000,
        who_has_limit: 0, // what is asked goes out a few times a second, whatever comes in
        questions_per_second: 1_000,
    };
    let mut forwarder = Forwarder::new(&limits, &[1], Arc::new(keys));
    forwarder.set_routes(routes);
    forwarder.tick(1.0, UNIX);
    forwarder
}

fn one_route() -> Routes {
    Routes::new([LiveRoute::new(ROUTE, transceiver(), 1_472)])
}

/// Makes a forwarder with confirmed flows of the clients `0..FLOWS`.
fn forwarder() -> Forwarder {
    let mut forwarder = empty(one_route(), 9, Some(PASSWORD_KEY));
    let (mut sends, mut outbox) = (Vec::new(), Outbox::new(BATCH, false));
    for client in 0..FLOWS {
        let answer = answer(client);
        let one = std::iter::once((&answer[..], transceiver()));
        forwarder.from_hops(Side::Transceivers, 1.0, UNIX, one, &mut sends, &mut outbox);
        assert_eq!(sends.len(), 1, "an answer is accepted");
    }
    forwarder
}

fn transceiver() -> Endpoint {
    Endpoint { address: mapped([10, 1, 0, 1]), port: 7_200 }
}

fn path(client: u32) -> PathKey {
    let mut key = [0; 20];
    key[1] = 1;
    key[2..4].copy_from_slice(&50_000_u16.to_be_bytes());
    key[4..].copy_from_slice(&mapped((0xCB00_0000 + client).to_be_bytes()));
    key
}

/// Makes an ingress relay with confirmed flows of the clients `0..FLOWS` to a transceiver of another cluster.
fn ingress() -> Forwarder {
    let mut ingress = empty(Routes::default(), 1, None);
    ingress.set_peers(vec![Peer { cluster: [0, 1], addresses: vec![home()], places: [home(); PLACES] }]);
    let (mut sends, mut outbox, valid) = (Vec::new(), Outbox::new(BATCH, false), check(true));
    for client in 0..FLOWS {
        outbox.slots.receive()[0].receive_area()[..valid.len()].copy_from_slice(&valid);
        let packet = Packet { path: path(client), local: 0, length: valid.len() };
        ingress.from_clients(1.0, UNIX, &[packet], &mut outbox);
        let answer = over_the_trunk(client, TO_CLIENT | hop::DATA, 1);
        let one = std::iter::once((&answer[..], home()));
        ingress.from_hops(Side::Peers, 1.0, UNIX, one, &mut sends, &mut outbox);
        assert_eq!(sends.len(), 1, "an answer is accepted");
    }
    ingress
}

fn home() -> Endpoint {
    Endpoint { address: mapped([198, 51, 100, 7]), port: 3_479 }
}

/// An RTP packet.
fn rtp(ssrc: u32) -> Vec<u8> {
    let mut packet = vec![0; PAYLOAD];
    packet[..2].copy_from_slice(&[0x80, 0x6F]);
    packet[8..12].copy_from_slice(&ssrc.to_be_bytes());
    packet
}

/// A hop datagram for a client, which says that it is alive.
fn answer(client: u32) -> Vec<u8> {
    datagram(client, TO_CLIENT | hop::DATA, 1, 0, (HOP_KEY_ID, HOP_KEY))
}

fn over_the_trunk(client: u32, kind: u8, hops_left: u8) -> Vec<u8> {
    datagram(client, kind, hops_left, 0, (TRUNK_KEY_ID, TRUNK_KEY))
}

fn datagram(client: u32, kind: u8, hops_left: u8, slot: u16, (key_id, key): (u8, [u8; 16])) -> Vec<u8> {
    let mut datagram = vec![0; OVERHEAD];
    let (outer, record) = datagram.split_at_mut(OUTER_LENGTH);
    let outer: &mut [u8; OUTER_LENGTH] = outer.try_into().unwrap();
    hop::write_outer(outer, kind, hops_left, &ROUTE, key_id, (UNIX * 1000.0) as u32, slot);
    hop::write_record(record.try_into().unwrap(), PAYLOAD as u16, ALIVE, &path(client), 0);
    datagram.extend(rtp(client));
    let mut mac = HopMac::new(&key).begin();
    mac.write(&datagram[..OVERHEAD + hop::MAC_PAYLOAD_LENGTH]);
    datagram[MAC_AT..OUTER_LENGTH].copy_from_slice(&mac.finish());
    datagram
}

/// A Binding request as Chromium sends it, or one whose integrity does not hold.
fn check(holds: bool) -> Vec<u8> {
    let password = usher_relay_path::ufrag::ice_password(&PASSWORD_KEY, UFRAG);
    let mut message = vec![0, 1, 0, 0, 0x21, 0x12, 0xA4, 0x42];
    message.extend([7; 12]);
    for (kind, value) in [
        (0x0006_u16, [UFRAG, &b":peer"[..]].concat()),
        (0x802A, vec![9; 8]),
        (0x0025, vec![]),
        (0x0024, vec![0x6E, 0, 0x1E, 0xFF]),
    ] {
        message.extend([&kind.to_be_bytes()[..], &(value.len() as u16).to_be_bytes(), &value].concat());
    }
    let length = (message.len() + 24 - 20) as u16;
    message[2..4].copy_from_slice(&length.to_be_bytes());
    let mut mac = Hmac::<Sha1>::new_from_slice(&password).unwrap();
    mac.update(&message);
    let mut digest = mac.finalize().into_bytes();
    digest[0] ^= u8::from(!holds);
    message.extend([&[0, 8, 0, 20], &digest[..]].concat());
    message[2..4].copy_from_slice(&(length + 8).to_be_bytes());
    let fingerprint = crc32fast::hash(&message) ^ 0x5354_554E;
    message.extend([&[0x80, 0x28, 0, 4], &fingerprint.to_be_bytes()[..]].concat());
    message
}

/// Moves the same batch again and again: headers are written in front of a datagram, so it stays in its slot.
fn from_clients(batches: u32, bundle: bool, first: u32, expected: usize, make: impl Fn(u32) -> Vec<u8>) {
    to_transceivers(forwarder(), batches, bundle, first, expected, make);
}

fn to_transceivers(
    mut forwarder: Forwarder,
    batches: u32,
    bundle: bool,
    first: u32,
    expected: usize,
    make: impl Fn(u32) -> Vec<u8>,
) {
    let (mut outbox, mut packets) = (Outbox::new(BATCH, bundle), Vec::new());
    for (client, slot) in (first..).zip(outbox.slots.receive()) {
        let datagram = make(client);
        slot.receive_area()[..datagram.len()].copy_from_slice(&datagram);
        packets.push(Packet { path: path(client), local: 0, length: datagram.len() });
    }
    for batch in 0..batches {
        outbox.slots.receive();
        let now = 2.0 + f64::from(batch) / 1000.0;
        forwarder.from_clients(now, UNIX, &packets, &mut outbox);
        let over_trunks = outbox.for_peers(0, 1).map(|(_, pieces)| pieces.count()).sum::<usize>();
        let records = over_trunks + outbox.iter().map(|(_, pieces)| pieces.count()).sum::<usize>();
        assert_eq!(records, expected, "of batch {batch}");
        if !outbox.unknown().is_empty() {
            forwarder.look_up(now, UNIX, &packets, &mut outbox);
        }
    }
}

fn from_transceivers(batches: u32) {
    to_clients(forwarder(), batches, Side::Transceivers, transceiver(), answer);
}

fn to_clients(mut forwarder: Forwarder, batches: u32, side: Side, source: Endpoint, make: impl Fn(u32) -> Vec<u8>) {
    let answers: Vec<Vec<u8>> = (0..FLOWS).map(make).collect();
    let (mut sends, mut outbox) = (Vec::new(), Outbox::new(BATCH, false));
    for batch in 0..batches {
        let from = batch as usize * BATCH % answers.len();
        let datagrams = answers[from..from + BATCH].iter().map(|answer| (&answer[..], source));
        forwarder.from_hops(side, 2.0 + f64::from(batch) / 1000.0, UNIX, datagrams, &mut sends, &mut outbox);
        assert_eq!(sends.len(), BATCH, "of batch {batch}");
    }
}

/// What a home relay sends on: towards transceivers, or back to the ingress relay.
fn onward(batches: u32, back: bool) {
    let (mut home, mut sends, mut outbox) = (empty(one_route(), 9, None), Vec::new(), Outbox::new(BATCH, false));
    let ingress = Endpoint { address: mapped([203, 0, 113, 5]), port: 40_001 };
    let up: Vec<Vec<u8>> = (0..BATCH as u32).map(|client| over_the_trunk(client, hop::DATA, OVER_A_TRUNK)).collect();
    // The first source has slot 1.
    let down: Vec<Vec<u8>> = (0..BATCH as u32)
        .map(|client| datagram(client, TO_CLIENT | hop::DATA, OVER_A_TRUNK, 1, (HOP_KEY_ID, HOP_KEY)))
        .collect();
    home.from_ingress(1.0, UNIX, std::iter::once((&up[0][..], ingress)), &mut outbox);
    for batch in 0..batches {
        let now = 2.0 + f64::from(batch) / 1000.0;
        if back {
            let came = down.iter().map(|datagram| (&datagram[..], transceiver()));
            home.from_hops(Side::Transceivers, now, UNIX, came, &mut sends, &mut outbox);
        } else {
            home.from_ingress(now, UNIX, up.iter().map(|datagram| (&datagram[..], ingress)), &mut outbox);
        }
        let received = if back { &down } else { &up };
        assert_eq!(outbox.onward.iter(|number| &received[number as usize]).count(), BATCH, "of batch {batch}");
    }
}

/// Moves `batches` of a case, with one of [`CASES`].
pub fn run(case: &str, batches: u32) {
    let (valid, tampered) = (check(true), check(false));
    match case {
        "forward" => from_clients(batches, false, 0, BATCH, rtp),
        "forward-bundled" => from_clients(batches, true, 0, BATCH, rtp),
        "return" => from_transceivers(batches),
        "hostile-unknown" => from_clients(batches, false, 1_000_000, 0, |client| rtp(!client)),
        "hostile-tampered" => from_clients(batches, false, 1_000_000, 0, |_| tampered.clone()),
        "check" => from_clients(batches, false, 0, BATCH, |_| valid.clone()),
        "ingress-up" => to_transceivers(ingress(), batches, false, 0, BATCH, rtp),
        "ingress-down" => {
            to_clients(ingress(), batches, Side::Peers, home(), |client| {
                over_the_trunk(client, TO_CLIENT | hop::DATA, 1)
            });
        }
        "home-up" => onward(batches, false),
        "home-down" => onward(batches, true),
        _ => panic!("the cases are {CASES:?}"),
    }
}
