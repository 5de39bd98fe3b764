"""Datagrams of unknown addresses that wait until somebody has said whose they are (docs/wire.md section 4).

After a relay has died, or a client's port has changed, its packets come to a relay that knows neither the address nor
the SSRC. The relay then asks the store of mappings, if it has one, for the address. When that knows nothing, it asks
all live transceivers WHO-HAS, and one of them says HERE.

Rules:
* One question of a source (client address, port, listener) per second. It asks for the SSRC of RTP and RTCP, and for
  the address where DTLS came. Only when the first RTP comes after DTLS there is a second one, for its SSRC.
* A question is open for that second, so HERE counts however slow a transceiver is. Whoever is not found within it is
  not asked for again before its end: the negative cache.
* At most 4 datagrams of a source, and 1,024 in all, wait, none of them longer than 50 ms after the question. What
  waited too long is never sent; it is freed with the next call, at the latest by a tick.
* Questions are limited in all, a second's worth at once; those to a store, and those to transceivers, each by
  themselves. One that goes to more than 16 transceivers costs accordingly more, so that fewer come after the first
  second's: what is bounded are the datagrams that strangers can make the fleet handle.
* Who sends from few addresses (one IP with many ports: an attacker, but also a NAT or a node in front of hundreds of
  calls) leaves half of the questions to others: an IP that has asked 16 times within the second is served only while
  half of the limit is left. Who fakes ever new addresses can only make the chance of each packet smaller, and a caller
  sends 50 a second.
* What the store knows, and HERE for the address, end the question: the address has a flow now. HERE for the SSRC lets
  packets of that SSRC go tentatively to those who said so, at most 4, until the question's second is over or a flow is
  made.

So faked packets gain nothing: they cost 4 places for 50 ms and a share of the questions.

No I/O, no clock: `now` is monotonic seconds.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field

from usher_relay.counters import Counters, Drop
from usher_relay.limits import Rate

NO_SSRC = bytes(4)
"""On the wire: the question is for the address."""
OPEN_FOR = 1.0
WAIT_AT_MOST = 0.05
WAITING_PER_SOURCE = 4
WAITING = 1_024
"""About 2 MB at most; a burst of speech from a thousand clients whose relay has died."""
MODEST = 16
"""Questions of one IP within a second that are served as long as there are any."""
MAX_FOUND = 4
ASKED_AT_ONE_PRICE = 16
"""Transceivers to which a question may go at its usual price."""


@dataclass(slots=True, eq=False)
class Question:
    """What was asked of all transceivers, for one source. `local` is the local address that its datagrams came to."""

    path_key: bytes
    ssrc: bytes
    local: object
    asked_at: float
    found: list[bytes] = field(default_factory=list)
    """The routes whose transceivers know the SSRC."""
    is_answered: bool = False
    """A transceiver or the store knows the address."""
    awaits_store: bool = False
    """The store was asked and has not answered; the transceivers are asked after it."""
    waiting: list[tuple[bytes, bytes]] = field(default_factory=list)
    """(SSRC, datagram)."""


class Waiting:
    """The open questions of one data thread, and what waits for their answers.

    `expire` comes before anything else with a new `now`.
    """

    def __init__(self, questions_per_second: int, counters: Counters) -> None:
        self._rate = Rate(questions_per_second, questions_per_second)
        self._capacity = 2 * questions_per_second
        """What the rate allows within a second: its burst, and what comes after it."""
        self._counters = counters
        self._full_at = [0.0, 0.0]
        """When all may be asked again: of the store, and of transceivers."""
        # In the order in which they were asked; ordered, as a plain dictionary is slow to eat from its front.
        self._questions: OrderedDict[bytes, Question] = OrderedDict()
        self._young: deque[Question] = deque()
        """Those for which datagrams may wait."""
        self._by_address: Counter[bytes] = Counter()
        self._waiting = 0

    def __len__(self) -> int:
        """Return how many datagrams wait."""
        return self._waiting

    @property
    def questions(self) -> int:
        """How many questions are remembered."""
        return len(self._questions)

    def expire(self, now: float) -> None:
        """Drop what waited too long, and forget the questions whose second is over."""
        while self._young and now - self._young[0].asked_at >= WAIT_AT_MOST:
            self._counters.drops[Drop.NOT_FOUND] += len(self.release(self._young.popleft()))
        while self._questions:
            question = next(iter(self._questions.values()))
            if now - question.asked_at < OPEN_FOR:
                return
            del self._questions[question.path_key]
            address = question.path_key[4:]
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]

    def find(self, path_key: bytes) -> Question | None:
        """Return the question for a source, if there is one."""
        return self._questions.get(path_key)

    def ask(self, path_key: bytes, ssrc: bytes, local: object, transceivers: int, now: float) -> Question | None:
        """Open a question for a source that has none, to so many, or to a store for 0. None: there are too many."""
        if len(self._questions) >= self._capacity or not self._may_ask(path_key, transceivers, now):
            return None
        question = Question(path_key, ssrc, local, now)
        self._questions[path_key] = question
        self._young.append(question)
        self._by_address[path_key[4:]] += 1
        return question

    def ask_for_ssrc(self, question: Question, ssrc: bytes, transceivers: int, now: float) -> bool:
        """Widen a question for an address by the SSRC of the first RTP from there. False: there are too many."""
        if not self._may_ask(question.path_key, transceivers, now):
            return False
        question.ssrc = ssrc
        return True

    def ask_further(self, question: Question, transceivers: int, now: float) -> bool:
        """Tell whether what the store does not know may go to so many. False: there are too many, or nobody to ask."""
        return transceivers > 0 and self._may_ask(question.path_key, transceivers, now)

    def hold(self, question: Question, ssrc: bytes, datagram: bytes, now: float) -> Drop | None:
        """Let a datagram wait; return why it may not."""
        if question.is_answered or now - question.asked_at >= WAIT_AT_MOST:
            return Drop.UNKNOWN_ADDRESS
        if len(question.waiting) >= WAITING_PER_SOURCE or self._waiting >= WAITING:
            return Drop.LIMIT_WAITING
        question.waiting.append((ssrc, datagram))
        self._waiting += 1
        self._counters.waiting_bytes += len(datagram)
        return None

    def release(self, question: Question, ssrc: bytes = NO_SSRC) -> list[bytes]:
        """Take out what waits for an answer, of one SSRC or all."""
        taken: list[bytes] = []
        kept: list[tuple[bytes, bytes]] = []
        for entry in question.waiting:
            if ssrc in (NO_SSRC, entry[0]):
                taken.append(entry[1])
            else:
                kept.append(entry)
        question.waiting = kept
        self._waiting -= len(taken)
        self._counters.waiting_bytes -= sum(map(len, taken))
        return taken

    def _may_ask(self, path_key: bytes, transceivers: int, now: float) -> bool:
        price = max(1.0, transceivers / ASKED_AT_ONE_PRICE)
        # The burst stays what it is: that many calls may come from a relay that has died.
        tolerance = self._rate.tolerance * price
        if self._by_address[path_key[4:]] >= MODEST:
            tolerance /= 2
        whom = int(transceivers > 0)
        full_at = max(self._full_at[whom], now)
        if full_at - now > tolerance:
            return False
        self._full_at[whom] = full_at + self._rate.interval * price
        return True
