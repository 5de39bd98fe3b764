//! What a relay counts. All labels are bounded: a reason or an event of this page, never an address or a ufrag.
//!
//! A thread counts for itself; whoever wants a total adds copies up.

use crate::hop::HopFault;

/// An enumeration whose members count from 0 and have a label each.
macro_rules! labels {
    ($(#[$about:meta])* $name:ident { $($(#[$note:meta])* $member:ident = $label:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(usize)]
        pub enum $name { $($(#[$note])* $member,)* }

        impl $name {
            /// All members, each at its own number.
            pub const ALL: &[Self] = &[$(Self::$member,)*];
            /// How many members there are.
            pub const COUNT: usize = Self::ALL.len();

            /// Returns its label in metrics.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$member => $label,)* }
            }
        }
    };
}

labels! {
    /// Why a datagram was not forwarded.
    Drop {
        // From clients.
        /// Empty, or longer than a client datagram can be.
        ClientLength = "client_length",
        /// The first byte announces neither STUN, DTLS nor RTP.
        Protocol = "protocol",
        /// Not a STUN message, although its first byte says so.
        StunMalformed = "stun_malformed",
        /// The USERNAME names a ufrag of another length, charset or spelling than ours.
        UfragShape = "ufrag_shape",
        /// No key of ours made this ufrag.
        UfragUnknown = "ufrag_unknown",
        /// MESSAGE-INTEGRITY is missing or was not made with the password of this ufrag.
        Integrity = "integrity",
        /// No flow has this address, and nothing else tells whose it is.
        UnknownAddress = "unknown_address",
        /// It waited for the answer of a transceiver, and none said that it knows the client.
        NotFound = "not_found",
        /// The transceiver said that it does not know this client path (any more).
        SessionEnded = "session_ended",
        /// The pod that the ufrag or the flow names is not in the route table, or we have no socket of its family.
        NoRoute = "no_route",
        /// It is for another cluster, and the key file has no key for the trunk to it.
        PeerKey = "peer_key",
        /// More packets than one client address may send.
        LimitClient = "limit_client",
        /// More datagrams than one whole address may send.
        LimitAddress = "limit_address",
        /// More checks than one client address, or than all of one ufrag may send.
        LimitChecks = "limit_checks",
        /// More tentative packets than one client address, or than all of them may send.
        LimitTentative = "limit_tentative",
        /// The transceivers were asked too often already.
        LimitQuestions = "limit_questions",
        /// A trunk probed us more often than its relays have reason to.
        LimitProbes = "limit_probes",
        /// As much waits as may, of this client or in all.
        LimitWaiting = "limit_waiting",
        /// Does not fit the hop: a STUN request, or more than two parts.
        HopRoom = "hop_room",

        // From transceivers, or from who pretends to be one.
        /// Its lengths contradict each other.
        HopMalformed = "hop_malformed",
        /// Of another version than ours.
        HopVersion = "hop_version",
        /// Of a type that a relay does not take.
        HopType = "hop_type",
        /// It goes towards a transceiver, not a client.
        HopDirection = "hop_direction",
        /// Its route is not in the table.
        HopRoute = "hop_route",
        /// It came from another address than its route has.
        HopSource = "hop_source",
        /// No live key has its key id.
        HopKey = "hop_key",
        /// Its MAC was not made with the key that it names.
        HopMac = "hop_mac",
        /// The sender's clock is more than 60 s off, or this is a replay.
        HopTime = "hop_time",
        /// No hop is left.
        HopLoop = "hop_loop",
        /// It names a listener or an address family that this relay does not have.
        HopListener = "hop_listener",
        /// HERE to no open question, or one that says nothing new.
        HopHere = "hop_here",
        /// Its return slot is no ingress relay's, or all slots are taken.
        HopSlot = "hop_slot",
        /// A peer's answer to a client of whom nothing was sent to it lately.
        HopUnasked = "hop_unasked",
        /// Transceivers send clients whole datagrams only.
        HopSplit = "hop_split",

        // At the sockets.
        /// The send buffer is full (EAGAIN).
        SendAgain = "send_again",
        /// The kernel has no memory for it (ENOBUFS).
        SendNoBuffers = "send_no_buffers",
        /// Longer than the path takes (EMSGSIZE).
        SendTooLong = "send_too_long",
        /// Any other error of the kernel: no route, a firewall rule, a local address that is gone.
        SendRefused = "send_refused",
        /// A fault of ours; the log tells more.
        Internal = "internal",
    }
}

impl From<HopFault> for Drop {
    fn from(fault: HopFault) -> Self {
        match fault {
            HopFault::Version => Self::HopVersion,
            HopFault::Type => Self::HopType,
            HopFault::Length | HopFault::Route => Self::HopMalformed,
        }
    }
}

labels! {
    /// What happened to flows.
    FlowEvent {
        /// Made by a verified check, or by an alive answer.
        Created = "created",
        /// Answered by its transceiver: probation is over, or it was given up too early.
        Confirmed = "confirmed",
        /// Made by an alive answer to an address that no check had come from.
        Roamed = "roamed",
        /// A quiet flow's address went to another route.
        Moved = "moved",
        /// A session had ended and a verified check of the same route came: a new flow.
        Renewed = "renewed",
        /// A verified check of another route came from the address of a flow that is not quiet: it was not moved.
        Kept = "kept",
        /// The transceiver does not know the client, or has given up this path of it.
        Ended = "ended",
        /// Without life for too long, or ended long enough ago: removed.
        Expired = "expired",
        /// Not answered within its probation: removed.
        ProbationOver = "probation_over",
        /// On probation, and had to make room.
        EvictedProbation = "evicted_probation",
        /// Quiet, and had to make room.
        EvictedQuiet = "evicted_quiet",
        /// Ended, and had to make room.
        EvictedEnded = "evicted_ended",
        /// Its ufrag got more confirmed flows than a session has paths; this one was silent longest.
        EvictedSurplus = "evicted_surplus",
        /// The table is full of live flows.
        Refused = "refused",
    }
}

/// One direction: what came in, and what went on (payload bytes, without hop headers).
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Traffic {
    /// Receive calls' worth: received / batches is the mean batch.
    pub batches: u64,
    /// Datagrams that came in.
    pub received: u64,
    /// Datagrams that went on.
    pub forwarded: u64,
    /// Their payload.
    pub forwarded_bytes: u64,
}

impl Traffic {
    fn add(&mut self, other: &Self) {
        self.batches += other.batches;
        self.received += other.received;
        self.forwarded += other.forwarded;
        self.forwarded_bytes += other.forwarded_bytes;
    }
}

/// All that one data thread counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counters {
    /// From clients to transceivers.
    pub uplink: Traffic,
    /// From transceivers to clients.
    pub downlink: Traffic,
    /// Client datagrams that were sent tentatively.
    pub tentative: u64,
    /// Client datagrams that were cut in two.
    pub split: u64,
    /// WHO-HAS: each went to all transceivers.
    pub questions: u64,
    /// HERE for an address that answered one.
    pub found_by_address: u64,
    /// HERE for an SSRC that answered one.
    pub found_by_ssrc: u64,
    /// Addresses that the store of mappings was asked for.
    pub store_asked: u64,
    /// Those that it was not asked for, since too many questions waited.
    pub store_skipped: u64,
    /// Clients found among what was loaded at the start, without a question.
    pub store_loaded: u64,
    /// Clients found by an answer of the store.
    pub store_found: u64,
    /// Flows that could not be named to it: too many waited.
    pub store_unnamed: u64,
    /// Client datagrams that wait for such an answer now.
    pub waiting_bytes: u64,
    /// By `Drop as usize`.
    pub drops: [u64; Drop::COUNT],
    /// By `FlowEvent as usize`.
    pub flow_events: [u64; FlowEvent::COUNT],
    /// How far the clock of the last authenticated transceiver was ahead of ours.
    pub hop_time_offset_ms: i64,
    /// The largest offset either way within about a minute, refused datagrams included.
    pub hop_time_offset_max_ms: i64,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            uplink: Traffic::default(),
            downlink: Traffic::default(),
            tentative: 0,
            split: 0,
            questions: 0,
            found_by_address: 0,
            found_by_ssrc: 0,
            store_asked: 0,
            store_skipped: 0,
            store_loaded: 0,
            store_found: 0,
            store_unnamed: 0,
            waiting_bytes: 0,
            drops: [0; Drop::COUNT],
            flow_events: [0; FlowEvent::COUNT],
            hop_time_offset_ms: 0,
            hop_time_offset_max_ms: 0,
        }
    }
}

impl Counters {
    /// Counts a datagram that is not forwarded.
    pub fn drop(&mut self, reason: Drop) {
        self.drops[reason as usize] += 1;
    }

    /// Counts something that happened to a flow.
    pub fn event(&mut self, event: FlowEvent) {
        self.flow_events[event as usize] += 1;
    }

    /// Adds what another thread counted. Of two clock offsets the larger one either way stays.
    pub fn add(&mut self, other: &Self) {
        self.uplink.add(&other.uplink);
        self.downlink.add(&other.downlink);
        self.tentative += other.tentative;
        self.split += other.split;
        self.questions += other.questions;
        self.found_by_address += other.found_by_address;
        self.found_by_ssrc += other.found_by_ssrc;
        self.store_asked += other.store_asked;
        self.store_skipped += other.store_skipped;
        self.store_loaded += other.store_loaded;
        self.store_found += other.store_found;
        self.store_unnamed += other.store_unnamed;
        self.waiting_bytes += other.waiting_bytes;
        for (count, more) in self.drops.iter_mut().zip(other.drops) {
            *count += more;
        }
        for (count, more) in self.flow_events.iter_mut().zip(other.flow_events) {
            *count += more;
        }
        self.hop_time_offset_ms = further_off(self.hop_time_offset_ms, other.hop_time_offset_ms);
        self.hop_time_offset_max_ms = further_off(self.hop_time_offset_max_ms, other.hop_time_offset_max_ms);
    }
}

fn further_off(one: i64, other: i64) -> i64 {
    if other.unsigned_abs() > one.unsigned_abs() { other } else { one }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_label_is_its_members_name_in_lower_case_and_at_its_own_number() {
        let drops = Drop::ALL.iter().map(|&it| (format!("{it:?}"), it.name(), it as usize));
        let events = FlowEvent::ALL.iter().map(|&it| (format!("{it:?}"), it.name(), it as usize));
        for (place, (member, label, number)) in drops.enumerate().chain(events.enumerate()) {
            let words: String = label.split('_').map(capital).collect();
            assert_eq!((words, number), (member, place));
        }
        assert_eq!((Drop::COUNT, FlowEvent::COUNT), (39, 14));
    }

    fn capital(word: &str) -> String {
        word[..1].to_uppercase() + &word[1..]
    }

    #[test]
    fn counts_are_kept_by_reason_and_by_event() {
        let mut counters = Counters::default();
        counters.drop(Drop::HopMac);
        counters.drop(Drop::HopMac);
        counters.event(FlowEvent::Refused);
        assert_eq!(counters.drops[Drop::HopMac as usize], 2);
        assert_eq!(counters.flow_events[FlowEvent::Refused as usize], 1);
        assert_eq!(counters.drops.iter().sum::<u64>(), 2);
        assert_eq!(counters.flow_events.iter().sum::<u64>(), 1);
    }

    #[test]
    fn totals_are_sums_and_of_offsets_the_larger_one_either_way() {
        let traffic = |n| Traffic { batches: n, received: 2 * n, forwarded: 3 * n, forwarded_bytes: 4 * n };
        let counted = |n: u64, offset, max| Counters {
            uplink: traffic(n),
            downlink: traffic(10 * n),
            tentative: n,
            split: 2 * n,
            questions: 3 * n,
            found_by_address: 4 * n,
            found_by_ssrc: 5 * n,
            store_asked: 7 * n,
            store_skipped: 8 * n,
            store_loaded: 9 * n,
            store_found: 10 * n,
            store_unnamed: 11 * n,
            waiting_bytes: 6 * n,
            drops: std::array::from_fn(|place| n * place as u64),
            flow_events: std::array::from_fn(|place| 5 * n * place as u64),
            hop_time_offset_ms: offset,
            hop_time_offset_max_ms: max,
        };
        let mut total = counted(1, 5, 70);
        total.add(&counted(2, -9, 30));
        assert_eq!(total, counted(3, -9, 70));
        total.add(&counted(4, 9, 80));
        assert_eq!(total, counted(7, -9, 80));
    }
}
