//! The relay's data path without I/O: datagrams and the time in, datagrams out.
//!
//! It does what `usher_relay.forwarder` in Python does, datagram by datagram and counter by counter; a differential test
//! compares both. `docs/wire.md` has the rules, the heads of [`uplink`], [`downlink`] and [`flows`] repeat them.
#![forbid(unsafe_code)]

pub mod bundle;
mod checks;
pub mod counters;
pub mod datagram;
pub mod downlink;
pub mod endpoint;
pub mod exchange;
pub mod few;
mod flow;
pub mod flows;
pub mod forwarder;
pub mod hop;
mod index;
pub mod inlet;
pub mod keys;
pub mod limits;
mod lines;
pub mod packets;
pub mod peers;
pub mod questions;
pub mod restamped;
pub mod return_slots;
pub mod routes;
pub mod rtp;
mod slots;
pub mod ssrc;
pub mod state;
pub mod stun;
pub mod ufrag;
pub mod uplink;
pub mod waiting;
