//! Hop datagrams that go on with their records as they came, under another outer part.
//!
//! Nothing is copied: each is an outer part of ours and the records where they were received.

use std::ops::Range;

use crate::endpoint::Endpoint;
use crate::hop::{self, MAC_AT, OUTER_LENGTH};
use crate::state::Stamp;

/// A datagram that goes on. It was received as number `datagram` of its batch.
pub struct Restamped {
    /// Where it goes.
    pub to: Endpoint,
    /// Number of the datagram in its batch.
    pub datagram: u32,
    outer: [u8; OUTER_LENGTH],
    spans: Range<u32>,
}

/// What a relay has to send over trunks, or has got over one, of one batch.
#[derive(Default)]
pub struct Onward {
    datagrams: Vec<Restamped>,
    spans: Vec<Range<u32>>,
    /// Where the records of one datagram stand that go on; here so that no batch has to allocate it.
    pub(crate) kept: Vec<Range<u32>>,
    /// Answers to probes, each whole.
    pub replies: Vec<(Endpoint, Vec<u8>)>,
}

/// The outer part of a datagram that goes on, but for what all of a batch share.
pub struct Head<'a> {
    /// The type with the direction bit.
    pub kind: u8,
    /// Relays that may still forward it.
    pub hops_left: u8,
    /// Cluster, pod and worker.
    pub route: &'a hop::RouteKey,
    /// Its return slot.
    pub return_slot: u16,
}

impl Onward {
    /// Begins a batch.
    pub fn clear(&mut self) {
        self.datagrams.clear();
        self.spans.clear();
        self.replies.clear();
    }

    /// Sends on the records of a datagram that stand in `spans`, headers included.
    pub fn push(
        &mut self,
        to: Endpoint,
        (number, datagram): (u32, &[u8]),
        spans: impl Iterator<Item = Range<u32>>,
        head: &Head<'_>,
        stamp: &Stamp,
    ) {
        let first = self.spans.len() as u32;
        let mut outer = [0; OUTER_LENGTH];
        let Head { kind, hops_left, route, return_slot } = *head;
        hop::write_outer(&mut outer, kind, hops_left, route, stamp.key_id, stamp.time_ms, return_slot);
        let mut mac = stamp.mac.begin();
        mac.write(&outer);
        for span in spans {
            let record = &datagram[span.start as usize..span.end as usize];
            mac.write(&record[..hop::covered(kind, record.len())]);
            // Neighbours leave as one piece.
            match self.spans[first as usize..].last_mut() {
                Some(last) if last.end == span.start => last.end = span.end,
                _ => self.spans.push(span),
            }
        }
        outer[MAC_AT..].copy_from_slice(&mac.finish());
        self.datagrams.push(Restamped { to, datagram: number, outer, spans: first..self.spans.len() as u32 });
    }

    /// Each datagram, and its pieces; `received` is what number was received as.
    pub fn iter<'a>(
        &'a self,
        received: impl Fn(u32) -> &'a [u8] + Copy + 'a,
    ) -> impl Iterator<Item = (Endpoint, impl Iterator<Item = &'a [u8]>)> {
        self.datagrams.iter().map(move |onward| {
            let bytes = received(onward.datagram);
            let spans = &self.spans[onward.spans.start as usize..onward.spans.end as usize];
            let records = spans.iter().map(move |span| &bytes[span.start as usize..span.end as usize]);
            (onward.to, std::iter::once(&onward.outer[..]).chain(records))
        })
    }
}
