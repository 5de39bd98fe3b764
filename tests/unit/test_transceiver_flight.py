import pytest

from usher_transceiver.flight import DELAYS_S, MAX_SOLICITED, Flight

FLIGHT = (b"certificate", b"done")


def test_a_flight_is_repeated_after_100_200_and_400_ms_of_silence_and_then_no_more() -> None:
    flight = Flight()
    flight.sent(0.0, FLIGHT)
    repeated = [now / 1000 for now in range(0, 3000, 20) if flight.due(now / 1000)]
    assert repeated == pytest.approx([0.1, 0.3, 0.7], abs=0.05)


def test_progress_ends_the_repeats() -> None:
    flight = Flight()
    flight.sent(0.0, FLIGHT)
    assert flight.due(0.1) == FLIGHT
    flight.done()
    assert flight.due(5.0) == ()
    assert flight.solicited(5.0) == ()


def test_a_new_flight_replaces_the_old_one_and_begins_again() -> None:
    flight = Flight()
    flight.sent(0.0, FLIGHT)
    flight.due(0.1)
    flight.sent(0.2, (b"finished",))
    assert flight.due(0.25) == ()
    assert flight.due(0.2 + DELAYS_S[0]) == (b"finished",)


def test_a_peer_that_repeats_itself_gets_the_flight_at_once_but_not_without_end() -> None:
    flight = Flight()
    assert flight.solicited(0.0) == ()
    flight.sent(0.0, FLIGHT)
    assert flight.solicited(0.01) == ()
    assert flight.solicited(0.05) == FLIGHT
    assert flight.solicited(0.06) == ()
    answers = sum(1 for step in range(2, 100) if flight.solicited(step * 0.05))
    assert answers == MAX_SOLICITED - 1
