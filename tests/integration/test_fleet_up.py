"""`usher up` as a person uses it: it starts, says where it is, and leaves nothing behind."""

import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.fleet import (
    Fleet,
    calling,
    children_of,
    is_running,
    make_environment,
    make_up,
    running_fleet,
    wait_until,
)
from tests.pages import ROOT

pytestmark = [pytest.mark.programs, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def one_of_each(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("fleet")) as fleet:
        yield fleet


def test_ready_means_that_a_call_succeeds_and_the_state_file_says_who_runs(tmp_path: Path) -> None:
    with running_fleet(tmp_path, "--relays=2", "--transceivers=2") as fleet:
        with calling(fleet.url, "--seconds=1.5") as caller:
            result = caller.result()
        assert result["status"] == 0, result
        assert result["calls"][0]["events"][0] == "session.created"

        state = fleet.state()
        assert set(state) == {"http", "udp", "keys", "relays", "transceivers", "signaling"}
        assert state["http"] == fleet.url
        assert [set(relay) for relay in state["relays"]] == [{"pid", "admin"}] * 2
        assert [set(each) for each in state["transceivers"]] == [{"pid", "admin", "pod_id"}] * 2
        assert len(state["signaling"]) == 1
        assert len({entry["pod_id"] for entry in state["transceivers"]}) == 2
        opened = json.loads(Path(state["keys"], "transceiver.json").read_text())["ice"]
        assert any(f"directory={state['keys']}" in line for line in fleet.log)
        assert opened
        assert stat.S_IMODE(fleet.state_file.stat().st_mode) == 0o600
        for entry in (*state["relays"], *state["transceivers"], *state["signaling"]):
            assert httpx.get(f"{entry['admin']}/readyz").status_code == 200
            assert is_running(entry["pid"])
        assert httpx.get(f"{fleet.url}/readyz").json()["can_place"]
        assert any(line.startswith("relay-2 | ") for line in fleet.log)
        assert any(line.startswith("signaling | ") for line in fleet.log)
    assert not fleet.state_file.exists()


def test_kill_9_of_up_leaves_no_process(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    try:
        fleet.wait_until_ready()
        pids = fleet.pids()
        assert len(pids) == 3
        fleet.process.kill()
        fleet.process.wait()
        wait_until(lambda: not any(map(is_running, pids)), 3, "all children are gone")
    finally:
        fleet.close()


def test_a_closed_terminal_ends_it_like_ctrl_c(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    try:
        fleet.wait_until_ready()
        pids = fleet.pids()
        fleet.process.send_signal(signal.SIGHUP)
        assert fleet.process.wait(timeout=3) == 0
        assert not any(map(is_running, pids))
    finally:
        fleet.close()


def test_ctrl_c_while_it_starts_leaves_no_process(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    try:
        wait_until(lambda: any("relay-1 |" in line for line in fleet.log), 30, "the first relay starts")
        assert fleet.interrupt() < 3
        assert children_of(fleet.process.pid) == []
    finally:
        fleet.close()


def run_up(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "usher_cli", "up", *flags], capture_output=True, text=True, timeout=30, check=False
    )


def test_a_second_up_on_the_same_ports_says_so_and_disturbs_nothing(one_of_each: Fleet) -> None:
    fleet = one_of_each
    udp = ":".join(map(str, fleet.udp))
    for flags, said in (
        (["--http=127.0.0.1:0", f"--udp={udp}"], f"usher: --udp {udp} can't be used: Address already in use"),
        (["--udp=127.0.0.1:0", f"--http={fleet.url[7:]}"], f"usher: --http {fleet.url[7:]} can't be used"),
    ):
        second = run_up(*flags)
        assert (second.returncode, second.stdout) == (2, "")
        assert second.stderr.startswith(said)
        assert second.stderr.count("\n") == 1
    with calling(fleet.url, "--seconds=1") as caller:
        assert caller.result()["status"] == 0


def test_a_program_that_can_not_start_ends_up_with_its_reason() -> None:
    done = run_up("--http=127.0.0.1:0", "--udp=127.0.0.1:0", "--backend=no-such-backend")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "transceiver-1 | usher" in done.stderr
    assert "no-such-backend" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("usher: transceiver-1 does not start")


def test_with_a_key_only_its_holder_may_call(tmp_path: Path) -> None:
    with running_fleet(tmp_path, "--api-key=sesame") as fleet:
        with calling(fleet.url, "--seconds=1") as caller:
            result = caller.result()
        assert result["status"] == 1
        assert "the server wants a key" in result["calls"][0]["wrong"][0]
        with calling(fleet.url, "--seconds=1", "--api-key=sesame") as caller:
            assert caller.result()["status"] == 0
        for pid in fleet.pids():
            assert "sesame" not in Path(f"/proc/{pid}/cmdline").read_text()


def test_what_dies_comes_back_under_the_same_address_with_a_new_pod_id(one_of_each: Fleet) -> None:
    fleet = one_of_each
    before = fleet.state()
    for kind in ("relays", "transceivers", "signaling"):
        os.kill(before[kind][0]["pid"], signal.SIGKILL)
    old = {entry["pid"] for kind in ("relays", "transceivers", "signaling") for entry in before[kind]}

    def is_back() -> bool:
        state = fleet.state()
        entries = [entry for kind in ("relays", "transceivers", "signaling") for entry in state[kind]]
        return len(entries) == 3 and not old & {entry["pid"] for entry in entries}

    wait_until(is_back, 15, "all three are back")
    after = fleet.state()
    assert (after["http"], after["udp"]) == (before["http"], before["udp"])
    assert after["transceivers"][0]["pod_id"] > before["transceivers"][0]["pod_id"]
    assert after["relays"][0]["admin"] == before["relays"][0]["admin"]
    wait_until(lambda: httpx.get(f"{fleet.url}/readyz").json()["can_place"], 10, "signaling can place a call")
    assert [relay["ready"] for relay in httpx.get(f"{fleet.url}/v1/fleet").json()["relays"]] == [True]
    with calling(fleet.url, "--seconds=1") as caller:
        result = caller.result()
    assert result["status"] == 0, result


def test_a_state_file_that_can_not_be_written_any_more_ends_nothing_and_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "states"
    folder.mkdir()
    fleet = Fleet(tmp_path, f"--state-file={folder / 'state.json'}")
    fleet.state_file = folder / "state.json"
    try:
        fleet.wait_until_ready()
        first = fleet.state()["transceivers"][0]["pid"]
        admin = fleet.state()["relays"][0]["admin"]
        shutil.rmtree(folder)
        os.kill(first, signal.SIGKILL)

        def starts() -> int:
            return len(re.findall(r"program is ready .*name=transceiver-1", fleet.log_text))

        wait_until(lambda: starts() == 2, 15, "the transceiver is back")
        (second_pod,) = re.findall(r"--pod=(\d+)", command_of(fleet, "transceiver"))
        wait_until(lambda: knows(fleet, admin, second_pod), 10, "signaling and the relay know it")
        with calling(fleet.url, "--seconds=1") as caller:
            assert caller.result()["status"] == 0
        # The death and the new start.
        assert fleet.log_text.count("the state file is not up to date") == 2
        assert "Traceback" not in fleet.log_text

        folder.mkdir()
        (second,) = children_of(fleet.process.pid, "transceiver")
        os.kill(second, signal.SIGKILL)
        wait_until(
            lambda: (
                fleet.state_file.exists()
                and [each["pid"] not in (first, second) for each in fleet.state()["transceivers"]] == [True]
            ),
            15,
            "the state file is back and names the third transceiver",
        )
        assert fleet.interrupt() < 3
        assert fleet.process.returncode == 0
        assert list(folder.iterdir()) == []
    finally:
        fleet.close()


def command_of(fleet: Fleet, program: str) -> str:
    (pid,) = children_of(fleet.process.pid, program)
    return Path(f"/proc/{pid}/cmdline").read_text()


def knows(fleet: Fleet, admin: str, pod: object) -> bool:
    """Whether signaling and the relay with this admin page would take calls for a transceiver."""
    route = f"1/{pod}/0"
    live = [each["route"] for each in httpx.get(f"{fleet.url}/v1/fleet").json()["transceivers"] if each["live"]]
    return live == [route] and route in httpx.get(f"{admin}/routes").text


def knows_its_transceiver(fleet: Fleet) -> bool:
    state = fleet.state()
    pods = [each["pod_id"] for each in state["transceivers"]]
    return len(pods) == 1 and knows(fleet, state["relays"][0]["admin"], pods[0])


def test_a_route_file_that_can_not_be_written_ends_nothing(tmp_path: Path) -> None:
    with running_fleet(tmp_path) as fleet:
        (private,) = tmp_path.glob("usher-up-*")
        # Also root can't rename a file over a directory.
        (private / "routes.json").unlink()
        (private / "routes.json").mkdir()
        before = fleet.state()["transceivers"][0]["pid"]
        os.kill(before, signal.SIGKILL)
        wait_until(
            lambda: [each["pid"] != before for each in fleet.state()["transceivers"]] == [True], 15, "it is back"
        )
        assert "the relays do not learn of this change" in fleet.log_text
        assert [path for path in private.iterdir() if path.name.startswith(".routes")] == []

        (private / "routes.json").rmdir()
        os.kill(fleet.state()["transceivers"][0]["pid"], signal.SIGKILL)
        wait_until(lambda: knows_its_transceiver(fleet), 15, "signaling and the relay know the third transceiver")
        with calling(fleet.url, "--seconds=1") as caller:
            assert caller.result()["status"] == 0


def test_a_state_file_that_is_a_fifo_stays_one(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    done = run_up("--http=127.0.0.1:0", "--udp=127.0.0.1:0", f"--state-file={fifo}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"usher: --state-file {fifo}: this is no regular file")
    assert fifo.is_fifo()


def test_the_second_make_up_is_ready_in_5_s(tmp_path: Path) -> None:
    def seconds_until_ready() -> float:
        began = time.monotonic()
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen(
                make_up("--http 127.0.0.1:0 --udp 127.0.0.1:0"),
                cwd=ROOT,
                env=make_environment(),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        assert process.stdout is not None
        with process.stdout:
            try:
                line = process.stdout.readline()
                took = time.monotonic() - began
            finally:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(timeout=10)
        assert line.startswith("ready http://127.0.0.1:"), (tmp_path / "log").read_text()
        return took

    # One of two: others may use this machine too.
    assert seconds_until_ready() < 5 or seconds_until_ready() < 5


def test_signaling_knows_the_relays_and_the_transceivers(tmp_path: Path) -> None:
    with running_fleet(tmp_path, "--relays=2", "--transceivers=2") as fleet:
        with calling(fleet.url, "--seconds=1") as caller:
            assert caller.result()["status"] == 0
        told = httpx.get(f"{fleet.url}/v1/fleet").json()
        state = fleet.state()
    assert [f"http://{relay['address']}" for relay in told["relays"]] == [each["admin"] for each in state["relays"]]
    assert all(relay["ready"] for relay in told["relays"])
    assert sum(relay["packets"] for relay in told["relays"]) > 50
    routes = {f"1/{each['pod_id']}/0" for each in state["transceivers"]}
    assert {entry["route"] for entry in told["transceivers"]} == routes
    assert all(entry["live"] for entry in told["transceivers"])


def test_a_caller_may_choose_a_built_in_backend(one_of_each: Fleet) -> None:
    url = one_of_each.url
    assert [model["id"] for model in httpx.get(f"{url}/v1/models").json()["data"]] == ["echo", "parrot"]
    offer = (Path(__file__).parents[1] / "vectors" / "offers" / "chromium-audio-only.sdp").read_bytes()
    for model, backend in (("parrot", "parrot"), ("echo", "echo"), ("gpt-realtime", "echo")):
        placed = httpx.post(
            f"{url}/v1/realtime/calls?model={model}", content=offer, headers={"Content-Type": "application/sdp"}
        )
        assert placed.status_code == 201, placed.text
        call = f"{url}{placed.headers['location']}"
        assert httpx.get(call).json()["backend"] == backend
        httpx.post(f"{call}/hangup")


def test_a_parrot_says_it_back(tmp_path: Path) -> None:
    with (
        running_fleet(tmp_path, "--backend=parrot") as fleet,
        calling(fleet.url, "--talk=1", "--seconds=5", f"--record={tmp_path / 'heard.wav'}") as caller,
    ):
        result = caller.result()
        assert result["status"] == 0, result
        call = result["calls"][0]
        assert "input_audio_buffer.speech_stopped" in call["events"]
        assert call["delay_ms"] is None or call["delay_ms"] > 1000
        assert (tmp_path / "heard.wav").stat().st_size > 2 * 48_000


def test_nothing_listens_beyond_this_machine_and_strangers_get_no_answer(one_of_each: Fleet) -> None:
    state = one_of_each.state()
    for entry in (*state["relays"], *state["transceivers"], *state["signaling"]):
        assert entry["admin"].startswith("http://127.0.0.1:")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.settimeout(0.3)
        probe.sendto(b"not webrtc", one_of_each.udp)
        with pytest.raises(TimeoutError):
            probe.recv(2000)
