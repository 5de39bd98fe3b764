"""Design D15: what a relay does between SIGTERM and its end."""

import pytest

from usher_relay.shutdown import Phase, Shutdown

BUSY = 0.1
FOREVER = float("inf")


def test_without_a_signal_it_serves() -> None:
    assert Shutdown(60).phase(1e9, FOREVER) is Phase.SERVING


def test_it_stays_ready_then_turns_unready_10_seconds_before_the_end_then_goes() -> None:
    shutdown = Shutdown(60)
    shutdown.on_signal(100.0)
    assert shutdown.phase(100.0, BUSY) is Phase.ENDING
    assert shutdown.phase(149.9, BUSY) is Phase.ENDING
    assert shutdown.phase(150.0, BUSY) is Phase.LEAVING
    assert shutdown.phase(158.9, BUSY) is Phase.LEAVING
    assert shutdown.phase(159.0, BUSY) is Phase.OVER


def test_it_goes_early_when_no_flow_was_active_for_10_seconds() -> None:
    shutdown = Shutdown(60)
    shutdown.on_signal(100.0)
    assert shutdown.phase(120.0, 9.9) is Phase.ENDING
    assert shutdown.phase(120.0, 10.0) is Phase.OVER


@pytest.mark.parametrize("idle", [FOREVER, 3600.0])
def test_an_idle_relay_waits_10_seconds_for_those_who_do_not_know_yet_that_it_ends(idle: float) -> None:
    shutdown = Shutdown(60)
    shutdown.on_signal(100.0)
    assert shutdown.phase(109.9, idle) is Phase.ENDING
    assert shutdown.phase(110.0, idle) is Phase.OVER


def test_outside_kubernetes_it_goes_at_once() -> None:
    shutdown = Shutdown(0)
    shutdown.on_signal(100.0)
    assert shutdown.phase(100.0, BUSY) is Phase.OVER


def test_a_second_signal_ends_it_at_once() -> None:
    shutdown = Shutdown(60)
    shutdown.on_signal(100.0)
    shutdown.on_signal(101.0)
    assert shutdown.phase(101.0, BUSY) is Phase.OVER


def test_a_short_grace_makes_it_unready_at_once() -> None:
    shutdown = Shutdown(8)
    shutdown.on_signal(100.0)
    assert shutdown.phase(100.0, BUSY) is Phase.LEAVING
    assert shutdown.phase(107.0, BUSY) is Phase.OVER
