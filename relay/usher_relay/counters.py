"""What a relay counts. All labels are bounded: a reason or an event of this page, never an address or a ufrag."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from usher_core.errors import RemoteError


class Drop(StrEnum):
    """Why a datagram was not forwarded."""

    # From clients.
    CLIENT_LENGTH = "client_length"
    """Empty, or longer than a client datagram can be."""
    PROTOCOL = "protocol"
    """The first byte announces neither STUN, DTLS nor RTP."""
    STUN_MALFORMED = "stun_malformed"
    UFRAG_SHAPE = "ufrag_shape"
    """The USERNAME names a ufrag of another length, charset or spelling than ours."""
    UFRAG_UNKNOWN = "ufrag_unknown"
    """No key of ours made this ufrag."""
    INTEGRITY = "integrity"
    """MESSAGE-INTEGRITY is missing or was not made with the password of this ufrag."""
    UNKNOWN_ADDRESS = "unknown_address"
    """No flow has this address, and nothing else tells whose it is."""
    NOT_FOUND = "not_found"
    """It waited for the answer of Redis or of a transceiver, and none knew the client in time."""
    SESSION_ENDED = "session_ended"
    """The transceiver said that it does not know this client path (any more)."""
    NO_ROUTE = "no_route"
    """The pod that the ufrag or the flow names is not in the route table, or we have no socket of its family."""
    PEER_KEY = "peer_key"
    """It is for another cluster, and the key file has no key for the trunk to it."""
    LIMIT_CLIENT = "limit_client"
    LIMIT_ADDRESS = "limit_address"
    LIMIT_CHECKS = "limit_checks"
    LIMIT_TENTATIVE = "limit_tentative"
    LIMIT_QUESTIONS = "limit_questions"
    """The transceivers were asked too often already."""
    LIMIT_PROBES = "limit_probes"
    """A trunk probed us more often than its relays have reason to: a recorded probe that comes again, for one."""
    LIMIT_WAITING = "limit_waiting"
    """As much waits as may, of this client or in all."""
    HOP_ROOM = "hop_room"
    """Does not fit the hop: a STUN request, or more than two parts."""

    # From transceivers, or from who pretends to be one.
    HOP_MALFORMED = "hop_malformed"
    HOP_VERSION = "hop_version"
    HOP_TYPE = "hop_type"
    HOP_DIRECTION = "hop_direction"
    HOP_ROUTE = "hop_route"
    """Its route is not in the table."""
    HOP_SOURCE = "hop_source"
    """It came from another address than its route has."""
    HOP_KEY = "hop_key"
    HOP_MAC = "hop_mac"
    HOP_TIME = "hop_time"
    """The sender's clock is more than 60 s off, or this is a replay."""
    HOP_LOOP = "hop_loop"
    """No hop is left."""
    HOP_LISTENER = "hop_listener"
    """It names a listener or an address family that this relay does not have."""
    HOP_HERE = "hop_here"
    """HERE to no open question, or one that says nothing new."""
    HOP_SLOT = "hop_slot"
    """Its return slot is no ingress relay's, or all slots are taken."""
    HOP_UNASKED = "hop_unasked"
    """A peer's answer to a client of whom nothing was sent to it lately."""
    HOP_SPLIT = "hop_split"
    """Transceivers send clients whole datagrams only."""

    # At the sockets.
    SEND_AGAIN = "send_again"
    """The send buffer is full (EAGAIN)."""
    SEND_NO_BUFFERS = "send_no_buffers"
    """The kernel has no memory for it (ENOBUFS)."""
    SEND_TOO_LONG = "send_too_long"
    """Longer than the path takes (EMSGSIZE)."""
    SEND_REFUSED = "send_refused"
    """Any other error of the kernel: no route, a firewall rule, a local address that is gone."""
    INTERNAL = "internal"
    """A fault of ours; the log tells more."""

    @classmethod
    def of_hop_fault(cls, error: RemoteError) -> Drop:
        """Return under which reason a datagram is dropped that `hop.parse` refused."""
        return {"hop_version": cls.HOP_VERSION, "hop_type": cls.HOP_TYPE}.get(error.reason, cls.HOP_MALFORMED)


class FlowEvent(StrEnum):
    """What happened to flows."""

    CREATED = "created"
    CONFIRMED = "confirmed"
    """Answered by its transceiver: probation is over, or it was given up too early."""
    ROAMED = "roamed"
    """Made by an alive answer to an address that no check had come from."""
    MOVED = "moved"
    """A quiet flow's address went to another route."""
    RENEWED = "renewed"
    """A session had ended and a verified check of the same route came: a new flow."""
    KEPT = "kept"
    """A verified check of another route came from the address of a flow that is not quiet: it was not moved."""
    ENDED = "ended"
    """The transceiver does not know the client, or has given up this path of it."""
    EXPIRED = "expired"
    PROBATION_OVER = "probation_over"
    """Not answered within its probation: removed."""
    EVICTED_PROBATION = "evicted_probation"
    EVICTED_QUIET = "evicted_quiet"
    EVICTED_ENDED = "evicted_ended"
    EVICTED_SURPLUS = "evicted_surplus"
    """Its ufrag got more confirmed flows than a session has paths; this one was silent longest."""
    REFUSED = "refused"
    """The table is full of live flows."""


@dataclass(slots=True)
class Traffic:
    """One direction: what came in, and what went on (payload bytes, without hop headers)."""

    batches: int = 0
    """Receive calls' worth: received / batches is the mean batch."""
    received: int = 0
    forwarded: int = 0
    forwarded_bytes: int = 0


@dataclass(slots=True)
class Counters:
    """Written by the data thread alone; others read single numbers, which needs no lock."""

    uplink: Traffic = field(default_factory=Traffic)
    downlink: Traffic = field(default_factory=Traffic)
    tentative: int = 0
    split: int = 0
    questions: int = 0
    """WHO-HAS: each went to all transceivers."""
    found_by_address: int = 0
    found_by_ssrc: int = 0
    """HERE that answered one."""
    store_asked: int = 0
    """Addresses that the store of mappings was asked for."""
    store_skipped: int = 0
    """Those that it was not asked for, since too many questions waited."""
    store_loaded: int = 0
    """Clients found among what was loaded at the start, without a question."""
    store_found: int = 0
    """Clients found by an answer of the store."""
    store_unnamed: int = 0
    """Flows that could not be named to it: too many waited."""
    waiting_bytes: int = 0
    """Client datagrams that wait for such an answer now."""
    drops: dict[Drop, int] = field(default_factory=lambda: dict.fromkeys(Drop, 0))
    flow_events: dict[FlowEvent, int] = field(default_factory=lambda: dict.fromkeys(FlowEvent, 0))
    hop_time_offset_ms: int = 0
    """How far the clock of the last authenticated transceiver was ahead of ours."""
    hop_time_offset_max_ms: int = 0
    """The largest offset either way within about a minute, refused datagrams included."""

    def copy(self) -> Counters:
        """Return the counts as they are now."""
        return replace(
            self,
            uplink=replace(self.uplink),
            downlink=replace(self.downlink),
            drops=dict(self.drops),
            flow_events=dict(self.flow_events),
        )
