//! Moves batches, to count the instructions of a packet: `instructions CASE BATCHES`.
//!
//! `tests/integration/test_relay_instructions.py` runs it.

#[path = "../tests/traffic/mod.rs"]
mod traffic;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, case, batches] = &arguments[..] else { panic!("usage: instructions CASE BATCHES") };
    traffic::run(case, batches.parse().expect("BATCHES is a number"));
}
