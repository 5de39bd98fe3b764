"""Ctrl-C and SIGTERM at any moment of the first seconds: a quiet end, and nothing left."""

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.fleet import Fleet, calling, children_of, environment, running_fleet, wait_until

pytestmark = [pytest.mark.programs, pytest.mark.timeout(180)]

MOMENTS_S = [0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9, 1.2, 1.6, 2.2]
"""From the first line of usher on: before, in the middle, and after all that `up` and `call` begin with."""
HALVES = [(signal.SIGINT, MOMENTS_S[::2]), (signal.SIGTERM, MOMENTS_S[1::2])]
ENDED_WITHIN_S = 3.0


@pytest.fixture
def silent_server() -> Iterator[str]:
    """A server that takes connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def has_begun(pid: int) -> bool:
    """Whether usher itself runs. While Python starts it catches SIGINT, and prints a traceback of its own."""
    masks = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    is_python = int(masks["SigIgn"], 16) >> (signal.SIGPIPE - 1) & 1
    catches = int(masks["SigCgt"], 16) >> (signal.SIGINT - 1) & 1
    return bool(is_python and not catches)


def end_after(delay_s: float, number: signal.Signals, directory: Path, *arguments: str) -> tuple[int, str]:
    """Start usher, send it a signal; return its exit status as a shell sees it, and its stderr. Nothing may be left."""
    process = subprocess.Popen(
        [sys.executable, "-m", "usher_cli", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment(), "TMPDIR": str(directory)},
    )
    try:
        wait_until(lambda: has_begun(process.pid), 30, "usher has begun")
        # No condition here: what is tested is that it does not matter when.
        time.sleep(delay_s)
        process.send_signal(number)
        _, log = process.communicate(timeout=ENDED_WITHIN_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert children_of(process.pid) == []
    assert list(directory.iterdir()) == []
    return process.returncode if process.returncode >= 0 else 128 - process.returncode, log


@pytest.mark.parametrize("number, moments", HALVES)
def test_a_call_ends_quietly_at_any_moment(
    number: signal.Signals, moments: list[float], silent_server: str, tmp_path: Path
) -> None:
    for moment in moments:
        status, log = end_after(moment, number, tmp_path, "call", silent_server)
        assert status == 128 + number, (moment, log)
        assert log in ("", "call 1: calling\n"), moment


@pytest.mark.parametrize("number, moments", HALVES)
def test_up_ends_quietly_at_any_moment(number: signal.Signals, moments: list[float], tmp_path: Path) -> None:
    for moment in moments:
        status, log = end_after(moment, number, tmp_path, "up", "--http=127.0.0.1:0", "--udp=127.0.0.1:0")
        # Before it has anything to end in order, the signal itself ends it.
        assert status in (0, 128 + number), (moment, log)
        assert "Traceback" not in log, (moment, log)
        assert "Exception" not in log, (moment, log)
        assert "Unknown child" not in log, (moment, log)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("every_s", [0.003, 0.05])
def test_impatience_leaves_nothing_either(every_s: float, number: signal.Signals, tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    try:
        fleet.wait_until_ready()
        deadline = time.monotonic() + ENDED_WITHIN_S
        while fleet.process.poll() is None:
            assert time.monotonic() < deadline
            fleet.process.send_signal(number)
            time.sleep(every_s)
    finally:
        fleet.close()
    assert "Traceback" not in fleet.log_text
    assert children_of(fleet.process.pid) == []
    assert list(tmp_path.iterdir()) == []


def test_a_call_that_is_interrupted_hangs_up(tmp_path: Path) -> None:
    with running_fleet(tmp_path) as fleet, calling(fleet.url, "--seconds=60") as caller:
        caller.wait_until_connected(1)
        caller.process.send_signal(signal.SIGINT)
        assert caller.process.wait(timeout=ENDED_WITHIN_S) == 130
        wait_until(lambda: sessions(fleet) == 0, 2, "the call has ended at the server")


def test_a_call_that_is_told_to_hang_up_reports_what_it_heard_and_places_no_other(tmp_path: Path) -> None:
    arguments = ("--seconds=60", "--count=3", "--concurrency=2", "--json")
    with running_fleet(tmp_path) as fleet, calling(fleet.url, *arguments) as caller:
        caller.wait_until_connected(2)
        # Two seconds of both, so that there is something to judge.
        wait_until(lambda: answers(fleet) > 200, 20, "both have been heard")
        caller.process.send_signal(signal.SIGUSR1)
        caller.process.send_signal(signal.SIGUSR1)
        report = caller.result(20)
        wait_until(lambda: sessions(fleet) == 0, 2, "both calls have ended at the server")
    assert report["status"] == 0
    assert [call["wrong"] for call in report["calls"]] == [[], []]


def sessions(fleet: Fleet) -> int:
    (transceiver,) = httpx.get(f"{fleet.url}/v1/fleet").json()["transceivers"]
    return int(transceiver["sessions"])


def answers(fleet: Fleet) -> int:
    """Packets that went to callers."""
    (relay,) = fleet.state()["relays"]
    page = httpx.get(f"{relay['admin']}/metrics").text
    (found,) = re.findall(r'^usher_relay_packets_total\{direction="downlink"\} (\S+)$', page, re.MULTILINE)
    return int(float(found))
