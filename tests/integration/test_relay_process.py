"""The whole program `usher relay`: start, files that change or get lost, signals, neighbours on one port, load."""

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.relay_network import (
    START,
    Client,
    FakeTransceiver,
    Network,
    RelayProcess,
    relay_process,
    until,
    write_routes,
)
from tests.relay_rig import DTLS, HOP_KEY, POD_A, POD_B, key_text, rtp, session


@pytest.fixture
def pod(net: Network, tmp_path: Path) -> FakeTransceiver:
    pod = net.pod(POD_A)
    write_routes(tmp_path / "routes.json", pod)
    return pod


def call(client: Client, pod: FakeTransceiver, number: int = 0) -> None:
    client.send(session(pod.route, number).check())
    pod.answer(pod.receive(), b"success")
    assert client.receive()[0] == b"success"


def forwards(client: Client, pod: FakeTransceiver) -> None:
    client.send(rtp(7))
    pod.answer(pod.receive(), rtp(8))
    assert client.receive()[0] == rtp(8)


@pytest.mark.parametrize("engine", ["python", pytest.param("native", marks=pytest.mark.needs("native engine"))])
def test_it_announces_itself_forwards_and_ends_at_once_outside_kubernetes(
    tmp_path: Path, net: Network, pod: FakeTransceiver, engine: str
) -> None:
    with relay_process(tmp_path, "--engine", engine) as relay:
        assert set(relay.facts) == {"ready", "program", "listeners", "admin"}
        call(net.client(relay.udp), pod)
        assert (relay.get("/livez"), relay.get("/readyz")) == ((200, "ok\n"), (200, "ok\n"))
        assert relay.metrics()[f'usher_relay_engine_info{{engine="{engine}"}}'] == 1
        assert f'"engine": "{engine}"' in relay.log_text(), "the log says which engine runs"
        assert len(json.loads(relay.get("/flows")[1])["flows"]) == 1
        assert json.loads(relay.get("/routes")[1])["routes"][0]["udp"] == pod.entry.udp
        begin = time.monotonic()
        relay.signal(signal.SIGTERM)
        assert relay.wait() == 0
        assert time.monotonic() - begin < 3


def test_no_secret_is_logged(tmp_path: Path, pod: FakeTransceiver) -> None:
    with relay_process(tmp_path, "--log-level", "debug") as relay:
        log = relay.log_text()
        for entry in [*json.loads(relay.keys.read_text())["ice"], *json.loads(relay.keys.read_text())["hop"]]:
            for name in ("ufrag_key", "password_key", "key"):
                assert entry.get(name, "-not-there-") not in log


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--listen", "nonsense"], "ID=HOST:PORT"),
        (["--listen", "1=192.0.2.1:5000"], "cannot listen"),
        (["--listen", "1=127.0.0.1:0", "--keys-file", "/nowhere/keys.json"], "usher keys new"),
        (["--listen", "1=127.0.0.1:0", "--admin", "192.0.2.1:80"], "--admin"),
    ],
)
def test_what_a_person_did_wrong_is_said_in_one_line(tmp_path: Path, flags: list[str], message: str) -> None:
    (tmp_path / "keys.json").write_text(key_text())
    given = ["--keys-file", str(tmp_path / "keys.json"), "--routes-file", "r.json", "--admin", "127.0.0.1:0", *flags]
    done = subprocess.run(
        [sys.executable, "-c", START, "relay", *given], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_it_waits_unready_for_its_first_route_table(tmp_path: Path, net: Network) -> None:
    with relay_process(tmp_path, ready=False) as relay:
        until(lambda: "waiting for it" in relay.log_text(), "the log says what it waits for", 20)
        pod = net.pod(POD_A)
        write_routes(relay.routes, pod)
        relay.wait_until_ready()
        call(net.client(relay.udp), pod)


def test_a_new_pod_is_routable_at_once(tmp_path: Path, net: Network, pod: FakeTransceiver) -> None:
    with relay_process(tmp_path) as relay:
        client = net.client(relay.udp)
        newcomer = net.pod(POD_B)
        write_routes(relay.routes, pod, newcomer)
        begin = time.monotonic()
        newcomer.socket.settimeout(0.01)
        while True:
            client.send(session(POD_B).check())
            try:
                newcomer.receive()
                break
            except TimeoutError:
                assert time.monotonic() - begin < 5
        assert time.monotonic() - begin < 1, "it looks every 0.1 s"


def test_a_lost_route_file_changes_nothing_but_the_age_of_the_table(
    tmp_path: Path, net: Network, pod: FakeTransceiver
) -> None:
    with relay_process(tmp_path) as relay:
        client = net.client(relay.udp)
        call(client, pod)
        for fault in ("lost", "broken"):
            if fault == "lost":
                relay.routes.unlink()
            else:
                relay.routes.write_text('{"version": 1, "transce')
            until(lambda: relay.metrics()["usher_relay_routes_source_up"] == 0, "the metrics say so")
            before = relay.metrics()["usher_relay_routes_age_seconds"]
            until(lambda: relay.metrics()["usher_relay_routes_age_seconds"] > before, "the age grows")  # noqa: B023
            forwards(client, pod)
            assert relay.get("/readyz")[0] == 200
            write_routes(relay.routes, pod)
            until(lambda: relay.metrics()["usher_relay_routes_source_up"] == 1, "it is good again")
        assert relay.log_text().count('"file lost"') == 2, "one line per change of state"


def test_the_log_warns_of_a_peer_that_has_routes_here_and_no_key_of_a_trunk(
    tmp_path: Path, pod: FakeTransceiver
) -> None:
    cluster = pod.route.cluster
    peer = {"cluster": cluster, "endpoints": [{"address": "127.0.0.1:9"}]}
    (tmp_path / "peers.json").write_text(json.dumps({"version": 1, "peers": [peer]}))
    with relay_process(tmp_path, "--engine", "python", "--peers-file", str(tmp_path / "peers.json")) as relay:
        until(lambda: f"no hop key for the trunk to cluster {cluster}: run" in relay.log_text(), "no key")
        until(lambda: f"cluster {cluster} has routes here and stands in the peers file" in relay.log_text(), "ours")


def test_a_pod_that_moves_is_followed(tmp_path: Path, net: Network, pod: FakeTransceiver) -> None:
    with relay_process(tmp_path) as relay:
        client = net.client(relay.udp)
        call(client, pod)
        moved = net.pod(POD_A)
        write_routes(relay.routes, moved)
        until(lambda: moved.entry.udp in relay.get("/routes")[1], "the table is read")
        forwards(client, moved)


def test_keys_are_read_again_and_a_broken_key_file_changes_nothing(
    tmp_path: Path, net: Network, pod: FakeTransceiver
) -> None:
    with relay_process(tmp_path) as relay:
        client = net.client(relay.udp)
        call(client, pod)
        relay.keys.write_text("{")
        until(lambda: relay.metrics()["usher_relay_keys_source_up"] == 0, "the metrics say so")
        forwards(client, pod)
        relay.keys.write_text(key_text(hop_id=9, hop_key=HOP_KEY))
        until(lambda: 'usher_relay_keys{id="9",list="hop",state="active"}' in relay.metrics(), "the new id is reported")
        client.send(rtp(7))
        datagram, _ = pod.receive_datagram()
        assert datagram[11] == 9


def test_with_a_grace_it_turns_unready_while_it_still_forwards_and_then_goes(
    tmp_path: Path, net: Network, pod: FakeTransceiver
) -> None:
    # A grace below 10 s begins with its last part: unready, forwarding.
    with relay_process(tmp_path, "--grace", "5") as relay:
        client = net.client(relay.udp)
        call(client, pod)
        begin = time.monotonic()
        relay.signal(signal.SIGTERM)
        until(lambda: relay.get("/readyz")[0] == 503, "it turns unready")
        assert relay.get("/livez")[0] == 200
        while time.monotonic() - begin < 3:
            forwards(client, pod)
            time.sleep(0.05)
        assert relay.wait() == 0
        assert 3.5 < time.monotonic() - begin < 8


def test_with_a_long_grace_it_stays_ready_and_a_second_signal_ends_it(
    tmp_path: Path, net: Network, pod: FakeTransceiver
) -> None:
    with relay_process(tmp_path, "--grace", "600") as relay:
        client = net.client(relay.udp)
        call(client, pod)
        relay.signal(signal.SIGTERM)
        until(lambda: "told to end" in relay.log_text(), "the signal arrives")
        assert relay.get("/readyz")[0] == 200
        forwards(client, pod)
        relay.signal(signal.SIGTERM)
        assert relay.wait() == 0


@pytest.mark.long
def test_without_calls_it_goes_10_seconds_after_the_signal(tmp_path: Path, pod: FakeTransceiver) -> None:
    with relay_process(tmp_path, "--grace", "600") as relay:
        begin = time.monotonic()
        relay.signal(signal.SIGTERM)
        assert relay.wait(15) == 0
        assert 9.5 < time.monotonic() - begin < 12


def test_a_new_relay_binds_beside_the_old_one_and_takes_over_when_it_is_killed(
    tmp_path: Path, net: Network, pod: FakeTransceiver
) -> None:
    # With more workers a flow that comes to another one of them is known twice for a while.
    one = ("--workers", "1")
    with relay_process(tmp_path, *one) as old, relay_process(tmp_path, *one, listen=f"1={old.udp}") as new:
        assert old.udp == new.udp
        clients = [net.client(old.udp) for _ in range(40)]
        for number, client in enumerate(clients):
            call(client, pod, number)
        shares = [relay.metrics()['usher_relay_flows{state="confirmed"}'] for relay in (old, new)]
        assert sum(shares) == 40
        assert min(shares) >= 5, "the kernel spreads flows"
        old.signal(signal.SIGKILL)
        old.wait()
        # Each client's next check restores its flow.
        for number, client in enumerate(clients):
            call(client, pod, number)
            forwards(client, pod)
        assert new.metrics()['usher_relay_flows{state="confirmed"}'] == 40


def test_load_on_the_data_path_does_not_silence_the_admin_http(
    tmp_path: Path, net: Network, pod: FakeTransceiver
) -> None:
    with relay_process(tmp_path) as relay:
        stop = threading.Event()
        flooders = [threading.Thread(target=flood, args=(net.client(relay.udp), stop)) for _ in range(2)]
        for flooder in flooders:
            flooder.start()
        try:
            until(lambda: dropped(relay) > 5_000, "the flood arrives")
            slowest = 0.0
            for path in ("/livez", "/readyz", "/metrics", "/routes", "/flows") * 6:
                begin = time.monotonic()
                assert relay.get(path)[0] == 200
                slowest = max(slowest, time.monotonic() - begin)
            assert slowest < 1, "a probe with the default time-out of 1 s passes"
        finally:
            stop.set()
            for flooder in flooders:
                flooder.join()


def flood(stranger: Client, stop: threading.Event) -> None:
    forged = session(POD_A).check(password="x" * 32)
    while not stop.is_set():
        for _ in range(50):
            stranger.send(forged)
            stranger.send(DTLS)


def dropped(relay: RelayProcess) -> float:
    return sum(value for name, value in relay.metrics().items() if name.startswith("usher_relay_drops_total"))
