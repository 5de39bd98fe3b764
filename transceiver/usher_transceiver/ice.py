"""The ICE-lite agent of one session, without I/O (RFC 8445 section 2.5, docs/wire.md section 5).

Rules:
1. Until the first authenticated packet, nomination is free: the latest USE-CANDIDATE, else the latest valid check, is
   the sending path. A DTLS flight goes where the newest DTLS datagram from a checked address came from.
2. Afterwards USE-CANDIDATE marks a path *preferred*. It becomes the sending path with its first authenticated packet,
   or when the old one has been silent for 7 s.
3. The first unseen check of a newer generation (ICE restart) moves at once.
4. An authenticated packet that is newer than all before moves the sending path at once: SRTP and SRTCP from any
   address, DTLS application data from one that has passed a check.
5. An address that has passed no unseen check gets at most 3 bytes per byte that authenticated from there.
6. Each transaction id of a generation is remembered, within one bound for all of a session. A check whose id is known
   from another address is not answered, moves nothing and extends nothing. One that is known from the same address is
   answered and does nothing more. When the memory is full, checks are answered on known paths only and do nothing more.
7. A path is (client address, port, listener). An answer leaves by the path of its request. The relay of a path changes
   only with an authenticated packet or an unseen valid check.
   Of more than 16 paths the one that was silent longest goes, and its relay is told: a session with many addresses
   must not fill the relay's table.
8. Life: an unseen valid check or an authenticated packet within 30 s; the first check within 15 s. Binding
   Indications count for nothing: libnice sends them, but they are not authenticated.
9. Errors, after integrity held: 420 for attributes we must know and don't, 487 for ICE-CONTROLLED.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto

from usher_core import stun
from usher_core.ids import ClientPath
from usher_core.stun import Attribute, StunMessage
from usher_transceiver.paths import NEVER, Path, PathTable, Via
from usher_transceiver.transactions import MAX_TRANSACTIONS, Seen, TransactionMemory

FIRST_CHECK_S = 15.0
LIFE_S = 30.0
"""RFC 7675 section 5.1: consent lasts 30 s."""
MAX_GENERATIONS = 4
"""Generations whose checks are answered: the one in use, and what restarts in quick succession add."""


class CheckOutcome(StrEnum):
    """What became of a check; a metric label."""

    FRESH = "fresh"
    REPEATED = "repeated"
    FOREIGN = "foreign"
    """Valid, but its address belongs to another live session: answered, and nothing moves."""
    UNKNOWN_UFRAG = "ice_ufrag"
    WRONG_USERNAME = "ice_username"
    WRONG_PASSWORD = "ice_integrity"
    REPLAYED = "ice_replay"
    MEMORY_FULL = "ice_memory_full"
    UNKNOWN_ATTRIBUTE = "ice_unknown_attribute"
    ROLE_CONFLICT = "ice_role_conflict"


class Expiry(Enum):
    """Why a session has no life left."""

    NO_FIRST_CHECK = auto()
    SILENT = auto()


@dataclass(frozen=True, slots=True)
class Generation:
    """One pair of credentials (RFC 8445 section 9).

    `remote_ufrags` are those the client may use, the main one first: an offer without BUNDLE has one per section.
    """

    ufrag: bytes
    password: bytes = field(repr=False)
    remote_ufrags: tuple[bytes, ...]


@dataclass(slots=True)
class _Generation:
    number: int
    credentials: Generation


class IceAgent:
    """Decides which checks are answered, where to send, and whether the client is still there.

    Args:
        generation: our first credentials and the client's.
        hash_key: 16 secret random bytes for the memory of transaction ids.
        now: seconds, monotonic.
        on_evict: told each path that was forgotten to make room.
        memory_limit: transaction ids, of all generations.
    """

    def __init__(
        self,
        generation: Generation,
        hash_key: bytes,
        now: float,
        on_evict: Callable[[Path], None] = lambda _path: None,
        memory_limit: int = MAX_TRANSACTIONS,
    ) -> None:
        self.memory = TransactionMemory(hash_key, memory_limit)
        self._generations: dict[bytes, _Generation] = {}
        self._newest = -1
        self._active = -1
        self._paths = PathTable(on_evict)
        self._sending: Path | None = None
        self._preferred: Path | None = None
        self._dtls: Path | None = None
        self._nominated = False
        self._authenticated = False
        self._created = now
        self._life = NEVER
        self.first_check: float | None = None
        self.add_generation(generation)

    # Credentials

    @property
    def newest(self) -> Generation:
        """The credentials of the newest generation."""
        return next(g.credentials for g in self._generations.values() if g.number == self._newest)

    @property
    def ufrags(self) -> tuple[bytes, ...]:
        """Our ufrags that are answered."""
        return tuple(self._generations)

    def add_generation(self, generation: Generation) -> bytes | None:
        """Start a new generation beside the old ones (make before break); return a ufrag that had to go, or None."""
        self._newest += 1
        self._generations[generation.ufrag] = _Generation(self._newest, generation)
        if len(self._generations) <= MAX_GENERATIONS:
            return None
        oldest = next(ufrag for ufrag, g in self._generations.items() if g.number != self._active)
        del self._generations[oldest]
        return oldest

    # What comes in

    def on_check(
        self, now: float, request: StunMessage, address: ClientPath, via: Via, *, usable: bool = True
    ) -> tuple[CheckOutcome, bytes | None]:
        """Handle a Binding request; return what it was, and the answer to send to `address` by `via`.

        Args:
            now: seconds, monotonic.
            request: parsed, not yet verified.
            address: where the relay says it came from.
            via: the way back.
            usable: False when the address belongs to another live session.
        """
        generation = self._generations.get(request.server_ufrag or b"")
        if generation is None:
            return CheckOutcome.UNKNOWN_UFRAG, None
        credentials = generation.credentials
        _, _, remote = (request.username or b"").partition(b":")
        if remote not in credentials.remote_ufrags:
            return CheckOutcome.WRONG_USERNAME, None
        if not request.verify_integrity(credentials.password):
            return CheckOutcome.WRONG_PASSWORD, None
        # One memory for all generations, so that restarts multiply no memory; an id means something in its own only.
        seen = self.memory.see(credentials.ufrag + request.transaction_id, address)
        if seen is Seen.OTHER_PATH:
            return CheckOutcome.REPLAYED, None
        refused = _refusal(request, credentials.password)
        if refused is not None:
            return refused
        if seen is Seen.MEMORY_FULL and self._paths.get(address) is None:
            return CheckOutcome.MEMORY_FULL, None
        if seen is Seen.NEW:
            self._life = now
            if usable:
                self._on_fresh_check(now, generation, request.use_candidate, address, via)
        outcome = _OUTCOMES[seen] if usable or seen is not Seen.NEW else CheckOutcome.FOREIGN
        return outcome, stun.build_success(request, address.address, address.port, credentials.password)

    def _on_fresh_check(
        self, now: float, generation: _Generation, nominates: bool, address: ClientPath, via: Via
    ) -> None:
        path = self._paths.add(address, via, self._in_use)
        path.via = via
        path.checked = True
        path.last_check = now
        if self.first_check is None:
            self.first_check = now
        if generation.number > self._active:
            self._active = generation.number
            self._move(path)
            self._preferred = None
            self._nominated = nominates
        elif generation.number < self._active:
            pass  # An old generation keeps its paths alive and decides nothing.
        elif self._authenticated:
            if nominates:
                self._preferred = path
        elif nominates or not self._nominated:
            self._nominated = self._nominated or nominates
            self._move(path)

    def on_dtls(self, address: ClientPath) -> bool:
        """Note a DTLS datagram, not yet authenticated; False when it may not come from there."""
        path = self._paths.get(address)
        if path is None or not path.checked:
            return False
        self._dtls = path
        return True

    def on_authenticated(self, now: float, address: ClientPath, via: Via, size: int, *, newer: bool) -> None:
        """Note an SRTP or SRTCP packet that authenticated, or DTLS application data that decrypted.

        Args:
            now: seconds, monotonic.
            address: where it came from.
            via: the way back.
            size: UDP payload bytes.
            newer: newer than all before of its stream; a late one must not move the path back.
        """
        path = self._paths.add(address, via, self._in_use)
        path.via = via
        path.last_authenticated = now
        path.received += size
        self._life = now
        if newer or not self._authenticated or path is self._preferred:
            self._move(path)
        self._authenticated = True

    def _move(self, path: Path) -> None:
        self._sending = path
        if path is self._preferred:
            self._preferred = None

    @property
    def _in_use(self) -> tuple[Path | None, ...]:
        return self._sending, self._preferred, self._dtls

    def forget(self, address: ClientPath) -> None:
        """Forget an address: it belongs to another session now."""
        path = self._paths.remove(address)
        if path is None:
            return
        self._sending = None if self._sending is path else self._sending
        self._preferred = None if self._preferred is path else self._preferred
        self._dtls = None if self._dtls is path else self._dtls

    # What goes out

    @property
    def sending(self) -> Path | None:
        """Where audio and data go."""
        return self._sending

    @property
    def dtls_path(self) -> Path | None:
        """Where a DTLS handshake flight goes."""
        if self._authenticated or self._dtls is None:
            return self._sending
        return self._dtls

    def path(self, address: ClientPath) -> Path | None:
        """Return what is known about an address, or None."""
        return self._paths.get(address)

    @property
    def addresses(self) -> tuple[ClientPath, ...]:
        """All addresses the client was seen at."""
        return tuple(path.address for path in self._paths)

    # Time

    def tick(self, now: float) -> Expiry | None:
        """Move away from a silent path, and tell whether life has ended. To be called at least once a second."""
        if self.first_check is None:
            return Expiry.NO_FIRST_CHECK if now - self._created >= FIRST_CHECK_S else None
        if now - self._life >= LIFE_S:
            return Expiry.SILENT
        if self._sending is None or self._sending.is_quiet(now):
            self._leave_quiet_path(now)
        return None

    def _leave_quiet_path(self, now: float) -> None:
        if self._preferred is not None and not self._preferred.is_quiet(now):
            self._move(self._preferred)
            return
        # Firefox, pion and aiortc nominate once and never again: their checks on a new path have to be enough.
        lively = [path for path in self._paths if path.checked and not path.is_quiet(now)]
        if lively:
            self._move(max(lively, key=lambda path: path.last_seen))


_OUTCOMES = {
    Seen.NEW: CheckOutcome.FRESH,
    Seen.SAME_PATH: CheckOutcome.REPEATED,
    Seen.MEMORY_FULL: CheckOutcome.MEMORY_FULL,
}


def _refusal(request: StunMessage, password: bytes) -> tuple[CheckOutcome, bytes] | None:
    if request.unknown_required:
        # RFC 8489 section 6.3.1.
        answer = stun.build_error(request, 420, password, request.unknown_required)
        return CheckOutcome.UNKNOWN_ATTRIBUTE, answer
    if Attribute.ICE_CONTROLLED in request.attributes:
        # RFC 8445 section 7.3.1.1: the lite side is controlled, whatever the tie-breaker.
        return CheckOutcome.ROLE_CONFLICT, stun.build_error(request, 487, password)
    return None
