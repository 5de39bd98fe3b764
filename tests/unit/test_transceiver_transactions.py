"""The memory of transaction ids: what it remembers, and what it costs."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from tests.ice_checks import RELAY_A, check, generation, path
from usher_transceiver.ice import IceAgent
from usher_transceiver.transactions import MAX_TRANSACTIONS, Seen, TransactionMemory

KEY = bytes(range(16))
PATHS = (path(1), path(2))


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 1)), max_size=600), st.integers(1, 300))
def test_it_remembers_like_a_dictionary(asked: list[tuple[int, int]], limit: int) -> None:
    memory, model = TransactionMemory(KEY, limit), dict[int, int]()
    for number, where in asked:
        seen = memory.see(number.to_bytes(12), PATHS[where])
        if number in model:
            assert seen is (Seen.SAME_PATH if model[number] == where else Seen.OTHER_PATH)
        elif len(model) >= limit:
            assert seen is Seen.MEMORY_FULL
        else:
            assert seen is Seen.NEW
            model[number] = where
    assert len(memory) == len(model)


def test_a_full_memory_has_32_bytes_an_id_at_most() -> None:
    memory = TransactionMemory(KEY)
    for number in range(MAX_TRANSACTIONS + 10):
        memory.see(number.to_bytes(12), PATHS[0])
    assert len(memory) == MAX_TRANSACTIONS
    assert sys.getsizeof(memory._ids) + sys.getsizeof(memory._paths) <= 32 * MAX_TRANSACTIONS


def test_restarts_do_not_multiply_the_memory_of_a_session() -> None:
    agent = IceAgent(generation(0), KEY, 0.0, memory_limit=8)
    for number in range(1, 4):
        agent.add_generation(generation(number))
        for _ in range(8):
            agent.on_check(1.0, check(of=generation(number)), path(1), RELAY_A)
    assert len(agent.memory) == 8
