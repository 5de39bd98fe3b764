//! What flows cost in memory. It is the one test of its process, so that what grows is the flow map.

use std::fs;

use usher_relay_path::counters::Counters;
use usher_relay_path::flows::{FlowMap, PROBATION_PER_UFRAG};
use usher_relay_path::hop::PathKey;
use usher_relay_path::ufrag::Ufrag;

const FLOWS: u32 = 1_000_000;
const MOST_MB: f64 = 160.0;

/// Bytes of this process that are in memory.
fn resident() -> f64 {
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: f64 = pages.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096.0
}

fn client(number: u32) -> PathKey {
    let mut key = [0; 20];
    key[2..4].copy_from_slice(&(number as u16).to_be_bytes());
    key[14..16].fill(0xFF);
    key[16..].copy_from_slice(&(0x0A00_0000 + number).to_be_bytes());
    key
}

fn ufrag(number: u32) -> Ufrag {
    let mut block = [7; 16];
    block[..4].copy_from_slice(&number.to_be_bytes());
    Ufrag { letter: b'a', block }
}

#[test]
#[ignore = "a measurement: run it by itself, in release mode"]
fn a_million_flows_fit_in_160_mb_and_an_empty_map_costs_nothing() {
    let mut counters = Counters::default();
    let live = |_: &[u8; 7]| true;
    let before = resident();
    let mut flows = FlowMap::new(FLOWS as usize, PROBATION_PER_UFRAG);
    let empty = (resident() - before) / 1e6;
    let mut most = empty;
    // The second round has other addresses, ufrags and SSRCs, while the first still stands.
    for number in 0..2 * FLOWS {
        let now = 1_000.0 + 100.0 * f64::from(number / FLOWS);
        let key = client(number);
        flows.on_verified(&key, [1; 7], &ufrag(number), 0, now, &live, &mut counters);
        flows.on_alive(&key, [1; 7], 0, now, &live, &mut counters);
        let id = flows.find(&key).unwrap();
        flows.learn_ssrc(id, (!number).to_be_bytes());
        if (number + 1) % FLOWS == 0 {
            assert_eq!(flows.len(), FLOWS as usize);
            most = most.max((resident() - before) / 1e6);
            println!("{} flows: {:.1} MB", number + 1, (resident() - before) / 1e6);
        }
    }
    println!("empty: {empty:.3} MB, full: {most:.1} MB");
    assert!(empty < 0.5, "{empty} MB");
    assert!(most <= MOST_MB, "{most} MB");
}
