//! One entry of the flow map; what moves and ends it is in [`flows`](crate::flows).
//!
//! An entry fills two cache lines: the first has all that a packet of a known address needs, the second what an alive
//! answer changes and the places in lists.

use crate::hop::{self, PathKey, RouteKey};
use crate::ufrag::Ufrag;

/// Names a flow: its place in flat memory. It holds until the flow is removed, so never beyond one batch.
pub type FlowId = u32;

/// No flow. It is 0, so that memory that nobody has touched is an empty list.
pub(crate) const NONE: FlowId = 0;

/// The local address that the engine saw, as the engine numbers them; 0 where the socket implies it.
pub type LocalId = u16;

/// What a flow waits for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum State {
    /// For the first answer of its transceiver.
    Probation,
    /// For its idle expiry, which life puts off.
    Confirmed,
    /// For its removal: its transceiver has given it up.
    Ended,
}

/// A place in a doubly linked list.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Link {
    pub before: FlowId,
    pub after: FlowId,
}

/// One client path and its owner. Times are monotonic seconds.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Flow {
    /// Listener 2, client port 2, client address 16.
    pub key: PathKey,
    pub(crate) next_in_bucket: FlowId,
    /// State of the flow's rate limit.
    pub limit_full_at: f64,
    /// Cluster, pod and worker in a hop datagram.
    pub route: RouteKey,
    pub(crate) state: State,
    pub(crate) ssrc: Option<[u8; 4]>,
    /// Of the request that made it; letter 0 when a transceiver's word did.
    pub(crate) ufrag: Ufrag,
    /// Where its packets arrived.
    pub local: LocalId,

    pub(crate) verified_at: f64,
    pub(crate) alive_at: f64,
    /// On probation: when that is over. Else when it last went to the end of its line: confirmed with life, or ended.
    pub(crate) ordered_at: f64,
    pub(crate) in_order: Link,
    pub(crate) in_line: Link,
    pub(crate) in_ufrag: Link,
    pub(crate) in_ssrc: Link,
    pub(crate) in_client: Link,
}

const _: () = assert!(size_of::<Flow>() == 128, "a flow fills two cache lines");

impl Flow {
    /// A flow in no list.
    pub(crate) fn new(key: PathKey, route: RouteKey, local: LocalId, state: State, ordered_at: f64) -> Self {
        Self {
            key,
            next_in_bucket: NONE,
            limit_full_at: 0.0,
            route,
            state,
            ssrc: None,
            ufrag: Ufrag { letter: 0, block: [0; 16] },
            local,
            verified_at: f64::NEG_INFINITY,
            alive_at: f64::NEG_INFINITY,
            ordered_at,
            in_order: Link::default(),
            in_line: Link::default(),
            in_ufrag: Link::default(),
            in_ssrc: Link::default(),
            in_client: Link::default(),
        }
    }

    /// What it waits for.
    pub fn state(&self) -> State {
        self.state
    }

    /// Tells whether its transceiver has given it up.
    pub fn ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Tells whether its transceiver has yet to answer.
    pub fn on_probation(&self) -> bool {
        self.state == State::Probation
    }

    /// What it sends, if that is known.
    pub fn ssrc(&self) -> Option<[u8; 4]> {
        self.ssrc
    }

    /// The client's IP.
    pub fn address(&self) -> [u8; 16] {
        hop::client_address(&self.key)
    }

    /// When a verified request last came; minus infinity for never.
    pub fn verified_at(&self) -> f64 {
        self.verified_at
    }

    /// When its transceiver last answered alive; minus infinity for never.
    pub fn alive_at(&self) -> f64 {
        self.alive_at
    }

    /// When it last showed life.
    pub fn heard_at(&self) -> f64 {
        self.verified_at.max(self.alive_at)
    }

    /// Tells whether a request made it, so that it stands among the flows of that request's ufrag.
    pub(crate) fn has_ufrag(&self) -> bool {
        self.ufrag.letter != 0
    }
}
