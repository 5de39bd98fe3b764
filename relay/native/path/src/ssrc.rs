//! Which flows send an RTP or RTCP SSRC, so that a client whose address changed can be found again (design D4a).
//!
//! Rules:
//! * An SSRC is a guess, never a proof: it only says to which transceivers a packet of an unknown address may go
//!   *tentatively*. SRTP authentication there decides.
//! * Several flows may share an SSRC: the paths of one client, and small devices that all use the same constant. At
//!   most 4 candidates are named, those of the same client IP first, within them the latest.
//! * A flow stands here under one SSRC, so the index is as bounded as the flow map.

use crate::flow::{Flow, FlowId, NONE};
use crate::index::{Grouped, Groups};
use crate::lines::linked;
use crate::slots::Slots;

const MAX_CANDIDATES: usize = 4;

/// Flows that may be the one that a packet belongs to, the likeliest first.
#[derive(Clone, Copy, Debug)]
pub struct Candidates {
    ids: [FlowId; MAX_CANDIDATES],
    len: usize,
}

impl Candidates {
    /// The flows.
    pub fn as_slice(&self) -> &[FlowId] {
        &self.ids[..self.len]
    }

    /// Adds a flow at the end, unless it is there or four others are.
    fn add(&mut self, id: FlowId) {
        if self.len < MAX_CANDIDATES && !self.as_slice().contains(&id) {
            self.ids[self.len] = id;
            self.len += 1;
        }
    }
}

linked!(
    /// Flows that send the same SSRC.
    BySsrc by in_ssrc
);

impl Grouped for BySsrc {
    type Key = Option<[u8; 4]>;

    fn key(flow: &Flow) -> Self::Key {
        flow.ssrc
    }
}

linked!(
    /// Flows that send the same SSRC from the same client IP.
    ByClient by in_client
);

impl Grouped for ByClient {
    type Key = (Option<[u8; 4]>, [u8; 16]);

    fn key(flow: &Flow) -> Self::Key {
        (flow.ssrc, flow.address())
    }
}

/// Flows by SSRC, and by SSRC and client IP. Those without an SSRC are not in it.
pub(crate) struct SsrcIndex {
    pub by_ssrc: Groups<BySsrc>,
    pub by_client: Groups<ByClient>,
}

impl SsrcIndex {
    pub fn new(capacity: u32) -> Self {
        Self { by_ssrc: Groups::new(capacity), by_client: Groups::new(capacity) }
    }

    /// Notes that a flow sends `ssrc`; what it sent before is forgotten.
    pub fn learn(&mut self, slots: &mut Slots, id: FlowId, ssrc: [u8; 4]) {
        self.forget(slots, id);
        slots[id].ssrc = Some(ssrc);
        self.by_ssrc.add(slots, id);
        self.by_client.add(slots, id);
    }

    /// Takes a flow out.
    pub fn forget(&mut self, slots: &mut Slots, id: FlowId) {
        if slots[id].ssrc.is_some() {
            self.by_ssrc.remove(slots, id);
            self.by_client.remove(slots, id);
            slots[id].ssrc = None;
        }
    }

    /// Returns at most 4 flows that send `ssrc`, those of client IP `address` first.
    pub fn candidates(&self, slots: &Slots, ssrc: [u8; 4], address: &[u8; 16]) -> Candidates {
        let mut candidates = Candidates { ids: [NONE; MAX_CANDIDATES], len: 0 };
        let same_client = self.by_client.iter(slots, &(Some(ssrc), *address)).take(MAX_CANDIDATES);
        let all = self.by_ssrc.iter(slots, &Some(ssrc)).take(MAX_CANDIDATES);
        same_client.chain(all).for_each(|id| candidates.add(id));
        candidates
    }
}
