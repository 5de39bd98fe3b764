"""The ledger of what the model said: amounts of each part, and the order of what begins and stops."""

from __future__ import annotations

from collections import deque
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from usher_transceiver.backends.realtime.playout import (
    AHEAD_MS,
    BYTES_PER_MS,
    MAX_CANCELLED,
    MAX_PARTS,
    MAX_PIECE,
    MAX_PIECES,
    MAX_QUIET,
    MAX_WAITING_MS,
    Change,
    Part,
    Playout,
    Truncation,
)

ONE = Part("resp_1", "item_1", 0)
TWO = Part("resp_1", "item_2", 0)
OTHER = Part("resp_2", "item_3", 1)


def pcm(ms: int, value: int = 1) -> bytes:
    return bytes((value,)) * (ms * BYTES_PER_MS)


class Player:
    """A play queue with the playout before it."""

    def __init__(self) -> None:
        self.playout = Playout()
        self.queue = bytearray()
        self.played = bytearray()
        self.changes: list[Change] = []

    @property
    def queued_ms(self) -> int:
        return len(self.queue) // BYTES_PER_MS

    def look(self) -> None:
        self.changes += self.playout.advance(self.queued_ms)
        self.queue += self.playout.take(self.queued_ms)

    def play(self, ms: int) -> None:
        for _ in range(0, ms, 20):
            self.look()
            self.played += self.queue[: 20 * BYTES_PER_MS]
            del self.queue[: 20 * BYTES_PER_MS]
        self.look()

    def interrupt(self, *responses: str) -> list[Truncation]:
        self.look()
        stopped = self.playout.interrupt(responses or None)
        if stopped.responses:
            self.queue.clear()
            self.look()
        return list(stopped.truncations)


def test_only_so_much_is_handed_over_ahead_and_all_of_it_is_played_in_order() -> None:
    player = Player()
    for value in range(1, 11):
        assert player.playout.add(ONE, pcm(130, value))
    player.look()
    assert player.queued_ms == AHEAD_MS
    player.play(1400)
    assert bytes(player.played) == b"".join(pcm(130, value) for value in range(1, 11))
    assert player.playout.is_idle


def test_each_part_is_truncated_at_what_was_played_of_it_alone() -> None:
    player = Player()
    player.playout.add(ONE, pcm(300))
    player.playout.complete(ONE)
    player.playout.add(TWO, pcm(500))
    player.playout.add(OTHER, pcm(400))
    player.play(460)
    assert player.interrupt() == [Truncation("item_2", 0, 160), Truncation("item_3", 1, 0)]
    assert player.queued_ms == 0
    assert player.playout.is_idle


def test_a_part_that_was_played_but_not_all_received_is_truncated_at_what_was_received() -> None:
    player = Player()
    player.playout.add(ONE, pcm(100))
    player.play(500)
    assert player.interrupt() == [Truncation("item_1", 0, 100)]


def test_nothing_is_truncated_that_was_heard_to_its_end_or_had_no_audio() -> None:
    player = Player()
    player.playout.add(ONE, pcm(100))
    player.playout.add(TWO, b"")
    player.playout.complete(ONE)
    player.play(100)
    assert player.interrupt() == []


def test_late_audio_of_an_interrupted_response_is_refused_and_another_one_goes_on() -> None:
    player = Player()
    player.playout.add(ONE, pcm(100))
    player.playout.add(OTHER, pcm(200, 7))
    player.play(40)
    assert player.interrupt("resp_1") == [Truncation("item_1", 0, 40)]
    assert not player.playout.add(TWO, pcm(20))
    player.play(200)
    assert bytes(player.played[40 * BYTES_PER_MS :]) == pcm(200, 7)


def test_audio_of_another_response_that_was_in_the_play_queue_is_played_all_the_same() -> None:
    player = Player()
    player.playout.add(ONE, pcm(100, 7))
    player.playout.add(OTHER, pcm(100))
    player.play(40)
    assert player.interrupt("resp_2") == [Truncation("item_3", 1, 0)]
    player.play(100)
    assert bytes(player.played) == pcm(100, 7)


def test_a_response_starts_with_its_first_audio_played_and_stops_when_finished_and_played() -> None:
    player = Player()
    player.playout.add(ONE, pcm(100))
    player.look()
    assert player.changes == []
    player.play(20)
    assert player.changes == [Change("started", "resp_1")]
    player.play(200)
    assert player.changes == [Change("started", "resp_1")], "starved is not stopped: more may come"
    assert player.playout.finish("resp_1") == [Change("stopped", "resp_1")]
    player.playout.add(OTHER, pcm(40))
    assert player.playout.finish("resp_2") == []
    player.play(40)
    assert player.changes[1:] == [Change("started", "resp_2"), Change("stopped", "resp_2")]
    assert player.playout.finish("resp_without_audio") == []


def test_the_playout_is_full_when_five_minutes_wait_and_remembers_some_interrupted_responses() -> None:
    playout = Playout()
    playout.add(ONE, pcm(MAX_WAITING_MS - 1))
    assert not playout.is_full
    playout.add(ONE, pcm(1))
    assert playout.is_full
    playout.cancel(f"resp_{number}" for number in range(100, 101 + MAX_CANCELLED))
    assert playout.add(Part("resp_100", "", 0), pcm(1))
    assert not playout.add(Part("resp_101", "", 0), pcm(1))


def test_a_server_that_names_no_responses_is_not_silenced_by_an_interruption() -> None:
    player = Player()
    nameless = Part("", "item_1", 0)
    player.playout.add(nameless, pcm(100))
    assert player.interrupt() == [Truncation("item_1", 0, 0)]
    assert player.playout.add(nameless, pcm(100))


def test_audio_in_very_small_pieces_takes_no_more_room_than_in_large_ones() -> None:
    playout = Playout()
    for _ in range(10_000):
        playout.add(ONE, b"\x01\x00")
    assert len(playout._waiting) == -(-20_000 // MAX_PIECE)
    assert playout.take(0) == b"\x01\x00" * (AHEAD_MS * BYTES_PER_MS // 2)


def test_very_small_pieces_of_parts_that_alternate_fill_the_playout_before_they_fill_the_memory() -> None:
    player, added = Player(), 0
    while not player.playout.is_full:
        player.playout.add(Part("resp", f"item_{added % 2}", 0), b"\x01\x00")
        added += 1
    assert added == MAX_PIECES
    player.look()
    assert not player.playout.is_full


def test_a_server_that_never_ends_its_parts_or_responses_fills_nothing() -> None:
    player = Player()
    for number in range(100):
        player.playout.add(Part(f"resp_{number}", "item", 0), pcm(20))
        player.play(20)
    assert len(player.playout._responses) == len(player.playout._parts) == MAX_QUIET
    assert len(player.interrupt()) == MAX_QUIET
    for number in range(MAX_PARTS):
        assert not player.playout.is_full
        player.playout.add(Part("resp", f"item_{number}", 0), pcm(1))
    assert player.playout.is_full
    player.play(2_000)
    assert player.playout.finish("resp") == [Change("stopped", "resp")]
    assert not player.playout.is_full


PARTS = [Part(f"resp_{response}", f"item_{response}_{item}", 0) for response in range(3) for item in range(2)]
STEPS = st.lists(
    st.one_of(
        # Whole milliseconds: what a play queue says is no finer.
        st.tuples(st.just("add"), st.integers(0, 5), st.integers(1, 800).map(lambda ms: ms * BYTES_PER_MS // 2)),
        st.tuples(st.just("play"), st.integers(1, 30)),
        st.tuples(st.just("complete"), st.integers(0, 5)),
        st.tuples(st.just("finish"), st.integers(0, 2)),
        st.tuples(st.just("interrupt"), st.sampled_from([None, 0, 1, 2])),
    ),
    max_size=40,
)


class Model:
    """The same by other means: every sample on its own in a queue, with the name of its part."""

    def __init__(self) -> None:
        self.unplayed: deque[Part] = deque()
        self.received = dict.fromkeys(PARTS, 0)
        self.played = dict.fromkeys(PARTS, 0)
        self.complete: set[Part] = set()
        self.interrupted: set[str] = set()

    def play(self, samples: int) -> None:
        for _ in range(min(samples, len(self.unplayed))):
            self.played[self.unplayed.popleft()] += 1

    def interrupt(self, responses: set[str]) -> dict[str, int]:
        hit = [part for part in PARTS if part.response_id in responses and self.received[part]]
        cut = {
            part.item_id: self.played[part] * 2 // BYTES_PER_MS
            for part in hit
            if part not in self.complete or self.played[part] < self.received[part]
        }
        self.unplayed = deque(part for part in self.unplayed if part.response_id not in responses)
        return cut


@given(STEPS)
def test_whatever_happens_the_amounts_are_those_of_samples_counted_one_by_one(steps: list[tuple[Any, ...]]) -> None:
    player, model = Player(), Model()
    over: set[str] = set()
    for step in steps:
        match step:
            case ("add", index, samples) if PARTS[index].response_id not in over and PARTS[index] not in model.complete:
                part = PARTS[index]
                is_taken = player.playout.add(part, bytes((index, 0)) * samples)
                assert is_taken == (part.response_id not in model.interrupted)
                if is_taken:
                    model.unplayed.extend([part] * samples)
                    model.received[part] += samples
            case ("play", frames):
                for _ in range(frames):
                    player.look()
                    heard = player.queue[: 20 * BYTES_PER_MS]
                    expected = bytes(PARTS.index(part) for part in list(model.unplayed)[: len(heard) // 2])
                    assert bytes(heard[::2]) == expected, "in order, and nothing that was dropped"
                    del player.queue[: 20 * BYTES_PER_MS]
                    model.play(20 * BYTES_PER_MS // 2)
                player.look()
            case ("finish", number):
                over.add(f"resp_{number}")
                player.changes += player.playout.finish(f"resp_{number}")
                model.complete |= {part for part in PARTS if part.response_id == f"resp_{number}"}
            case ("interrupt", number):
                # Nothing is left of a response that is finished and played, nor of one interrupted before.
                alive = {part.response_id for part in PARTS if model.received[part]} - model.interrupted
                alive -= over - {part.response_id for part in model.unplayed}
                wanted = alive if number is None else alive & {f"resp_{number}"}
                expected_cut = model.interrupt(wanted)
                cut = player.interrupt(*([] if number is None else [f"resp_{number}"]))
                assert {item: at for item, _, at in cut} == expected_cut
                assert all(
                    at * BYTES_PER_MS <= 2 * model.received[part]
                    for part in PARTS
                    for item, _, at in cut
                    if item == part.item_id
                )
                model.interrupted |= wanted
            case ("complete", index) if model.received[PARTS[index]]:
                if PARTS[index].response_id not in model.interrupted:
                    model.complete.add(PARTS[index])
                    player.playout.complete(PARTS[index])
    started = [change.response_id for change in player.changes if change.kind == "started"]
    stopped = [change.response_id for change in player.changes if change.kind == "stopped"]
    assert len(started) == len(set(started))
    assert set(stopped) <= set(started)
    assert not set(stopped) & model.interrupted
