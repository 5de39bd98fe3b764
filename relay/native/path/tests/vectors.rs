//! The crate against the bytes in `tests/vectors` (its README says where they are from): what Python makes and reads,
//! and what RFC 5769 and the `SipHash` paper print.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use std::net::IpAddr;
use std::path::Path;
use usher_relay_path::hop::{
    self, HopFault, HopMac, MAC_AT, OUTER_LENGTH, PathKey, RECORD_LENGTH, RouteKey, TO_CLIENT,
};
use usher_relay_path::keys::{HopKey, IceKey, KeyState, Keys};
use usher_relay_path::{stun, ufrag};

fn load(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/vectors").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn number<T: TryFrom<u64, Error: std::fmt::Debug>>(value: &Value) -> T {
    value.as_u64().unwrap().try_into().unwrap()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

fn bytes(value: &Value) -> Vec<u8> {
    let text = text(value);
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

fn key<const LENGTH: usize>(value: &Value) -> [u8; LENGTH] {
    bytes(value).try_into().unwrap()
}

fn base64_key<const LENGTH: usize>(value: &Value) -> [u8; LENGTH] {
    STANDARD.decode(text(value)).unwrap().try_into().unwrap()
}

fn route_key(case: &Value) -> RouteKey {
    let (cluster, pod, worker): (u16, u32, u8) =
        (number(&case["cluster"]), number(&case["pod"]), number(&case["worker"]));
    [&cluster.to_be_bytes()[..], &pod.to_be_bytes(), &[worker]].concat().try_into().unwrap()
}

fn path_key(record: &Value) -> PathKey {
    let address = match text(&record["address"]).parse().unwrap() {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let (listener, port): (u16, u16) = (number(&record["listener"]), number(&record["port"]));
    [&listener.to_be_bytes()[..], &port.to_be_bytes(), &address.octets()].concat().try_into().unwrap()
}

fn clusters(value: &Value) -> Vec<u16> {
    list(value).iter().map(number).collect()
}

fn ufrag_ring(vectors: &Value) -> Keys {
    let ice = IceKey {
        letter: text(&vectors["letter"]).as_bytes()[0],
        clusters: clusters(&vectors["clusters"]),
        ufrag_key: key(&vectors["ufrag_key"]),
        password_key: Some(key(&vectors["password_key"])),
        state: KeyState::Active,
        not_before: 0,
    };
    Keys::new(&[ice], &[HopKey { id: 0, key: [0; 16], state: KeyState::Active, not_before: 0 }]).unwrap()
}

#[test]
fn good_ufrags_open_to_their_route_and_password() {
    let vectors = load("ufrag.json");
    let keys = ufrag_ring(&vectors);
    for case in list(&vectors["good"]) {
        let name = text(&case["ufrag"]);
        let ufrag = ufrag::split(name.as_bytes()).unwrap();
        assert_eq!(&ufrag::text(&ufrag)[..], name.as_bytes());
        let opened = keys.open(&ufrag).unwrap();
        assert_eq!(opened.route, route_key(case), "{name}");
        assert_eq!(&opened.password.unwrap()[..], text(&case["password"]).as_bytes(), "{name}");
        let password = ufrag::ice_password(&key(&vectors["password_key"]), name.as_bytes().try_into().unwrap());
        assert_eq!(Some(password), opened.password, "{name}");
    }
}

#[test]
fn bad_ufrags_are_refused_by_shape_or_by_the_keys_as_their_reason_says() {
    let vectors = load("ufrag.json");
    let keys = ufrag_ring(&vectors);
    for case in list(&vectors["bad"]) {
        let split = ufrag::split(text(&case["ufrag"]).as_bytes());
        match text(&case["reason"]) {
            "ufrag_length" | "ufrag_charset" | "ufrag_spelling" => {
                assert!(split.is_err(), "{}", case["why"]);
            }
            "ufrag_letter" | "ufrag_check" => {
                assert_eq!(keys.open(&split.unwrap()), None, "{}", case["why"]);
            }
            other => panic!("a reason that is new here: {other}"),
        }
    }
}

#[test]
fn the_mac_is_siphash_2_4() {
    let vector = load("siphash.json");
    let mut state = HopMac::new(&key(&vector["key"])).begin();
    state.write(&bytes(&vector["input"]));
    assert_eq!(&state.finish()[..], bytes(&vector["output"]));
}

#[test]
fn good_hop_datagrams_are_read_and_verified() {
    let vectors = load("hop.json");
    let mac = HopMac::new(&key(&vectors["key"]));
    for case in list(&vectors["good"]) {
        let name = &case["name"];
        let datagram = bytes(&case["datagram"]);
        let parsed = hop::parse(&datagram).unwrap();
        assert_eq!(parsed.kind() & !TO_CLIENT, number::<u8>(&case["type"]), "{name}");
        assert_eq!(parsed.to_client(), case["to_client"].as_bool().unwrap(), "{name}");
        assert_eq!(parsed.flags(), number::<u8>(&case["flags"]), "{name}");
        assert_eq!(parsed.hops_left(), number::<u8>(&case["hops_left"]), "{name}");
        assert_eq!(parsed.route(), route_key(case), "{name}");
        assert_eq!(parsed.key_id(), number::<u8>(&case["key_id"]), "{name}");
        assert_eq!(parsed.time_ms(), number::<u32>(&case["time_ms"]), "{name}");
        assert_eq!(parsed.return_slot(), number::<u16>(&case["return_slot"]), "{name}");
        let records: Vec<_> = parsed.records().collect();
        assert_eq!(records.len(), list(&case["records"]).len(), "{name}");
        for (record, expected) in records.iter().zip(list(&case["records"])) {
            assert_eq!(record.path, path_key(expected), "{name}");
            assert_eq!(record.flags, number::<u8>(&expected["flags"]), "{name}");
            assert_eq!(record.split_id, number::<u16>(&expected["split_id"]), "{name}");
            assert_eq!(record.payload, bytes(&expected["payload"]), "{name}");
        }
        assert!(parsed.verify(&mac), "{name}");
    }
}

#[test]
fn good_hop_datagrams_are_written_byte_by_byte() {
    let vectors = load("hop.json");
    for case in list(&vectors["good"]) {
        let direction = if case["to_client"].as_bool().unwrap() { TO_CLIENT } else { 0 };
        let mut outer = [0xee; OUTER_LENGTH];
        hop::write_outer(
            &mut outer,
            number::<u8>(&case["type"]) | direction,
            number(&case["hops_left"]),
            &route_key(case),
            number(&case["key_id"]),
            number(&case["time_ms"]),
            number(&case["return_slot"]),
        );
        let mut written = outer.to_vec();
        for record in list(&case["records"]) {
            let payload = bytes(&record["payload"]);
            let mut header = [0xee; RECORD_LENGTH];
            let length = payload.len().try_into().unwrap();
            let (flags, split_id) = (number(&record["flags"]), number(&record["split_id"]));
            hop::write_record(&mut header, length, flags, &path_key(record), split_id);
            written.extend([&header[..], &payload].concat());
        }
        let mut expected = bytes(&case["datagram"]);
        expected[MAC_AT..OUTER_LENGTH].fill(0);
        assert_eq!(written, expected, "{}", case["name"]);
    }
}

#[test]
fn bad_hop_datagrams_are_refused_for_their_reason() {
    for case in list(&load("hop.json")["bad"]) {
        let expected = match text(&case["reason"]) {
            "hop_length" => HopFault::Length,
            "hop_version" => HopFault::Version,
            "hop_type" => HopFault::Type,
            "hop_route" => HopFault::Route,
            other => panic!("a reason that is new here: {other}"),
        };
        assert_eq!(hop::parse(&bytes(&case["datagram"])).err(), Some(expected), "{}", case["why"]);
    }
}

#[test]
fn forged_hop_datagrams_are_refused_and_what_the_mac_does_not_cover_is_not() {
    let vectors = load("hop.json");
    let mac = HopMac::new(&key(&vectors["key"]));
    for case in list(&vectors["forged"]) {
        let datagram = bytes(&case["datagram"]);
        assert!(!hop::parse(&datagram).unwrap().verify(&mac), "{}", case["why"]);
    }
    let not_covered = bytes(&vectors["not_covered"]["datagram"]);
    assert!(hop::parse(&not_covered).unwrap().verify(&mac));
}

#[test]
fn the_messages_of_rfc_5769_are_read_and_hold() {
    let vectors = load("stun_rfc5769.json");
    for name in ["request", "response_ipv4", "response_ipv6"] {
        let case = &vectors[name];
        let datagram = bytes(&case["datagram"]);
        let message = stun::parse(&datagram).unwrap();
        assert_eq!(message.is_binding_request(), name == "request");
        assert_eq!(message.is_request(), name == "request");
        assert_eq!(message.username(), case["username"].as_str().map(str::as_bytes), "{name}");
        assert_eq!(message.server_ufrag(), (name == "request").then_some(&b"evtj"[..]), "{name}");
        assert!(message.verify_integrity(text(&vectors["password"]).as_bytes()), "{name}");
        assert!(!message.verify_integrity(b"another"), "{name}");
    }
}

#[test]
fn any_flipped_bit_of_the_request_of_rfc_5769_is_noticed() {
    let vectors = load("stun_rfc5769.json");
    let password = text(&vectors["password"]).as_bytes();
    let good = bytes(&vectors["request"]["datagram"]);
    for bit in 0..(good.len() - 8) * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(!stun::parse(&bad).is_ok_and(|message| message.verify_integrity(password)), "bit {bit}");
    }
}

fn state(entry: &Value) -> KeyState {
    match text(&entry["state"]) {
        "active" => KeyState::Active,
        "accepted" => KeyState::Accepted,
        "retired" => KeyState::Retired,
        other => panic!("a state that is new here: {other}"),
    }
}

#[test]
fn the_key_file_gives_keys_that_open_and_verify_the_other_vectors() {
    let file = load("key_file.json");
    let ice = list(&file["ice"]).iter().map(|entry| IceKey {
        letter: text(&entry["letter"]).as_bytes()[0],
        clusters: clusters(&entry["clusters"]),
        ufrag_key: base64_key(&entry["ufrag_key"]),
        password_key: Some(base64_key(&entry["password_key"])),
        state: state(entry),
        not_before: entry["not_before"].as_i64().unwrap(),
    });
    let hop = list(&file["hop"]).iter().map(|entry| HopKey {
        id: number(&entry["id"]),
        key: base64_key(&entry["key"]),
        state: state(entry),
        not_before: entry["not_before"].as_i64().unwrap(),
    });
    let keys = Keys::new(&ice.collect::<Vec<_>>(), &hop.collect::<Vec<_>>()).unwrap();

    for case in list(&load("ufrag.json")["good"]) {
        let opened = keys.open(&ufrag::split(text(&case["ufrag"]).as_bytes()).unwrap());
        // The file names cluster 1 only.
        let expected = (case["cluster"] == 1).then(|| route_key(case));
        assert_eq!(opened.map(|opened| opened.route), expected, "{}", case["ufrag"]);
    }
    let (id, mac) = keys.choose_hop(0.0);
    assert_eq!(id, 3);
    for case in list(&load("hop.json")["good"]) {
        assert!(hop::parse(&bytes(&case["datagram"])).unwrap().verify(mac), "{}", case["name"]);
    }
    assert!(keys.hop(id).is_some() && keys.hop(4).is_none());
}
