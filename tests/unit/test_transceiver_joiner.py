import itertools

import pytest

from tests.ice_checks import path
from usher_core.hop import Record, RecordFlag
from usher_transceiver.joiner import MAX_WAITING, WAIT_S, Joiner

RELAY, OTHER_RELAY = ("10.0.0.1", 1), ("10.0.0.2", 1)


def half(payload: bytes, *, last: bool, split_id: int = 1, port: int = 1000) -> Record:
    flags = RecordFlag.SPLIT | (RecordFlag.LAST_PART if last else RecordFlag(0))
    return Record(path(port), payload, flags, split_id)


@pytest.mark.parametrize("order", list(itertools.permutations((False, True))))
def test_halves_join_in_either_order(order: tuple[bool, bool]) -> None:
    joiner = Joiner()
    payload = {False: b"first", True: b"second"}
    assert joiner.join(0.0, RELAY, half(payload[order[0]], last=order[0])) is None
    assert joiner.join(0.1, RELAY, half(payload[order[1]], last=order[1])) == b"firstsecond"
    assert len(joiner) == 0


@pytest.mark.parametrize("relay,change", [(OTHER_RELAY, {}), (RELAY, {"split_id": 2}), (RELAY, {"port": 1001})])
def test_halves_of_another_relay_id_or_client_do_not_join(relay: tuple[str, int], change: dict[str, int]) -> None:
    joiner = Joiner()
    joiner.join(0.0, RELAY, half(b"first", last=False))
    assert joiner.join(0.0, relay, half(b"second", last=True, **change)) is None


def test_a_repeated_half_does_not_join_with_itself() -> None:
    joiner = Joiner()
    assert joiner.join(0.0, RELAY, half(b"first", last=False)) is None
    assert joiner.join(0.0, RELAY, half(b"first", last=False)) is None
    assert joiner.join(0.0, RELAY, half(b"second", last=True)) == b"firstsecond"


def test_a_half_waits_200_ms() -> None:
    joiner = Joiner()
    joiner.join(0.0, RELAY, half(b"first", last=False))
    assert joiner.join(WAIT_S, RELAY, half(b"second", last=True)) is None
    assert joiner.expired == 1


def test_the_number_of_waiting_halves_is_bounded() -> None:
    joiner = Joiner()
    for split_id in range(3 * MAX_WAITING):
        joiner.join(0.0, RELAY, half(b"x", last=False, split_id=split_id))
    assert len(joiner) == MAX_WAITING
    assert joiner.overflowed == 2 * MAX_WAITING
