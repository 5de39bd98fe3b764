"""Names of peers: one whose name server hangs costs no other anything. In virtual time."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
import structlog

from usher_relay.trunk.names import MAX_LOOK_UPS, PeerNames, look_up

STEP_S = 0.05


class Resolver:
    """Knows some names, and hangs at all others. `now` is the time."""

    def __init__(self, known: dict[str, tuple[str, ...]]) -> None:
        self.known = known
        self.asked: list[str] = []
        self.hanging: dict[str, Future[tuple[str, ...]]] = {}
        self.names = PeerNames(self.begin)
        self.now = 1_000.0

    def begin(self, name: str) -> Future[tuple[str, ...]]:
        self.asked.append(name)
        answer: Future[tuple[str, ...]] = Future()
        if name in self.known:
            answer.set_result(self.known[name])
        else:
            assert name not in self.hanging, "asked again while it hangs"
            self.hanging[name] = answer
        return answer

    def answer(self, name: str, *addresses: str) -> None:
        self.hanging.pop(name).set_result(addresses)

    def pass_time(self, seconds: float) -> int:
        """Look as often as the relay does; return how often an address was new."""
        news = 0
        for _ in range(round(seconds / STEP_S)):
            news += self.names.look(self.now)
            self.now += STEP_S
        return news


def test_a_name_that_hangs_does_not_hold_up_another() -> None:
    resolver = Resolver({"good.example": ("198.51.100.1",)})
    resolver.names.set_names({"hangs.example", "good.example"}, resolver.now)
    assert resolver.pass_time(2 * STEP_S) == 1
    assert resolver.names.addresses("good.example") == ("198.51.100.1",)
    assert resolver.names.addresses("hangs.example") == ()


def test_many_names_that_hang_starve_none_that_answers() -> None:
    bad = {f"hangs{number}.example" for number in range(MAX_LOOK_UPS - 8)}
    good: dict[str, tuple[str, ...]] = {f"good{number}.example": (f"198.51.100.{number}",) for number in range(8)}
    resolver = Resolver(good)
    resolver.names.set_names(bad | good.keys(), resolver.now)
    resolver.pass_time(10.0)  # 16 of 512 each 0.25 s, in an order by chance
    assert {name: resolver.names.addresses(name) for name in good} == good
    # Those that answered are ahead of all the others from now on.
    resolver.known |= dict.fromkeys(good, ("198.51.100.99",))
    resolver.names.set_names(bad | good.keys(), resolver.now)
    assert resolver.pass_time(2 * STEP_S) == 1
    assert {resolver.names.addresses(name) for name in good} == {("198.51.100.99",)}


def test_a_name_that_hangs_is_asked_once_until_it_answers_and_a_late_answer_counts() -> None:
    resolver = Resolver({})
    resolver.names.set_names({"slow.example"}, resolver.now)
    assert resolver.pass_time(100.0) == 0
    assert resolver.asked == ["slow.example"]
    resolver.answer("slow.example", "198.51.100.1")
    assert resolver.pass_time(STEP_S) == 1
    assert resolver.names.addresses("slow.example") == ("198.51.100.1",)
    resolver.pass_time(100.0)
    assert len(resolver.asked) == 2


def test_the_look_ups_that_go_on_are_bounded_whatever_the_file_says() -> None:
    resolver = Resolver({})
    for version in range(4):
        resolver.names.set_names({f"v{version}-{number}.example" for number in range(MAX_LOOK_UPS)}, resolver.now)
        resolver.pass_time(10.0)
    assert len(resolver.hanging) == MAX_LOOK_UPS
    resolver.answer(next(iter(resolver.hanging)), "198.51.100.1")
    resolver.pass_time(STEP_S)
    assert len(resolver.hanging) == MAX_LOOK_UPS, "another one had its turn"


def test_a_name_is_asked_every_30_seconds_and_keeps_its_last_good_answer_with_one_warning() -> None:
    resolver = Resolver({"a.example": ("198.51.100.1",)})
    resolver.names.set_names({"a.example"}, resolver.now)
    resolver.pass_time(59.0)
    assert len(resolver.asked) == 2
    with structlog.testing.capture_logs() as lines:
        resolver.known["a.example"] = ()
        assert resolver.pass_time(90.0) == 0
        del resolver.known["a.example"]
        assert resolver.pass_time(90.0) == 0
    assert resolver.names.addresses("a.example") == ("198.51.100.1",)
    assert [(line["event"], line["using"]) for line in lines] == [
        ("a peer's name has no address now", ("198.51.100.1",))
    ]


def test_a_name_has_4_addresses_at_most() -> None:
    resolver = Resolver({"a.example": tuple(f"198.51.100.{number}" for number in range(9))})
    resolver.names.set_names({"a.example"}, resolver.now)
    resolver.pass_time(2 * STEP_S)
    assert len(resolver.names.addresses("a.example")) == 4


@pytest.mark.parametrize(("name", "expected"), [("127.0.0.1", ("127.0.0.1",)), ("a" * 64, ())])
def test_the_system_resolver_gives_addresses_or_none(name: str, expected: tuple[str, ...]) -> None:
    assert look_up(name).result(timeout=5.0) == expected
