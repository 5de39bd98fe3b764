"""Whatever comes in whatever order: no amplification, no effect of a replay, no path from nowhere."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tests.ice_checks import RELAY_A, RELAY_B, check, generation, path
from usher_core.ids import ClientPath
from usher_core.stun import StunMessage
from usher_transceiver.ice import LIFE_S, CheckOutcome, Expiry, IceAgent
from usher_transceiver.paths import AMPLIFICATION, MAX_PATHS

KEY = bytes(range(16))
ADDRESSES = [path(port) for port in range(1, 6)]


@dataclass(frozen=True)
class Step:
    kind: str
    address: ClientPath
    pause: float
    flag: bool
    size: int
    pick: int


STEPS = st.lists(
    st.builds(
        Step,
        kind=st.sampled_from(["check", "replay", "restart", "authenticated", "dtls", "send", "tick", "forget"]),
        address=st.sampled_from(ADDRESSES),
        pause=st.sampled_from([0.0, 0.02, 1.0, 4.0, 7.0, 12.0]),
        flag=st.booleans(),
        size=st.integers(1, 1200),
        pick=st.integers(0, 99),
    ),
    max_size=60,
)


class World:
    """An agent, and what an observer at the wire knows."""

    def __init__(self) -> None:
        self.now = 0.0
        self.generations = [generation(0)]
        self.agent = IceAgent(self.generations[0], KEY, 0.0)
        self.recorded: list[tuple[StunMessage, ClientPath]] = []
        self.received: dict[ClientPath, int] = defaultdict(int)
        self.sent: dict[ClientPath, int] = defaultdict(int)
        self.confirmed: set[ClientPath] = set()
        self.life = 0.0

    def facts(self) -> tuple[object, ...]:
        agent = self.agent
        paths = [(p.address, p.via, p.checked, p.last_seen) for a in agent.addresses if (p := agent.path(a))]
        sending, dtls = agent.sending, agent.dtls_path
        return paths, sending and sending.address, dtls and dtls.address, agent.first_check, agent.tick(self.now)

    def step(self, step: Step) -> None:
        self.now += step.pause
        getattr(self, step.kind)(step)
        sending = self.agent.sending
        assert sending is None or sending.address in self.agent.addresses
        assert len(self.agent.addresses) <= MAX_PATHS

    def check(self, step: Step) -> None:
        of = self.generations[step.pick % len(self.generations)]
        request = check(of, nominate=step.flag)
        outcome, answer = self.agent.on_check(self.now, request, step.address, RELAY_A)
        if outcome is CheckOutcome.FRESH:
            assert answer is not None
            self.recorded.append((request, step.address))
            self.confirmed.add(step.address)
            self.life = self.now

    def replay(self, step: Step) -> None:
        if not self.recorded:
            return
        request, origin = self.recorded[step.pick % len(self.recorded)]
        before = self.facts()
        outcome, answer = self.agent.on_check(self.now, request, step.address, RELAY_B)
        assert self.facts() == before
        if step.address != origin and outcome is not CheckOutcome.UNKNOWN_UFRAG:
            assert outcome is CheckOutcome.REPLAYED
            assert answer is None

    def restart(self, step: Step) -> None:
        new = generation(len(self.generations))
        self.generations.append(new)
        before = self.facts()
        self.agent.add_generation(new)
        assert self.facts() == before

    def authenticated(self, step: Step) -> None:
        self.received[step.address] += step.size
        self.life = self.now
        self.agent.on_authenticated(self.now, step.address, RELAY_A, step.size, newer=step.flag)
        if step.flag:
            assert self.agent.sending is not None
            assert self.agent.sending.address == step.address

    def dtls(self, step: Step) -> None:
        known = self.agent.path(step.address)
        assert self.agent.on_dtls(step.address) == (known is not None and known.checked)

    def send(self, step: Step) -> None:
        for target in (self.agent.sending, self.agent.dtls_path):
            if target is not None and target.spend(step.size, is_data=step.flag):
                self.sent[target.address] += step.size
                if target.address not in self.confirmed:
                    assert self.sent[target.address] <= AMPLIFICATION * self.received[target.address]

    def tick(self, step: Step) -> None:
        expiry = self.agent.tick(self.now)
        if self.agent.first_check is not None:
            assert (expiry is Expiry.SILENT) == (self.now - self.life >= LIFE_S)

    def forget(self, step: Step) -> None:
        self.agent.forget(step.address)
        self.confirmed.discard(step.address)
        self.sent[step.address] = self.received[step.address] = 0
        assert step.address not in self.agent.addresses


@given(STEPS)
def test_no_sequence_breaks_the_bounds(steps: list[Step]) -> None:
    world = World()
    for step in steps:
        world.step(step)
