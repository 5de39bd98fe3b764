"""Relays as programs with a real Redis: calls go on at a relay that never saw them, and nothing fails with Redis."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tests.redis_server import RedisServer, free_port
from tests.relay_network import Client, Network, RelayProcess, relay_process, until, write_routes
from tests.relay_rig import POD_A, POD_B, key_text, rtp
from tests.relay_speech import SSRC, Crowd, Flood, Owner, connect, heard, move, send_checks, speak, speech
from usher_core.ids import ClientPath, pack_address
from usher_relay.hop_codec import route_bytes
from usher_relay.store.mapping import VALUE_LENGTH, name_of

pytestmark = [pytest.mark.needs("redis-server"), pytest.mark.programs]

LONGEST_GAP = 10
"""In frames: 200 ms (docs/wire.md section 6)."""
ALONE = ("--who-has-limit", "0")
"""No transceiver is asked, so what is found was found by Redis."""
PASSWORD = "the-right-word"


@pytest.fixture(params=["python", pytest.param("native", marks=pytest.mark.needs("native engine"))])
def engine(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The flag that chooses it. The native one has as many data threads as the machine allows, and at least two."""
    return "--engine", request.param


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_on_a_free_port() as server:
        yield server


@contextlib.contextmanager
def redis_on_a_free_port(password: str = "") -> Iterator[RedisServer]:
    server = RedisServer(free_port(), password)
    asyncio.run(server.start())
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a key file of a relay."""
    keys = json.loads(key_text())
    keys["store"] = [{"id": 9, "key": base64.b64encode(bytes(range(32))).decode()}]
    (tmp_path / "keys.json").write_text(json.dumps(keys))
    return tmp_path


@pytest.fixture
def owner(net: Network, folder: Path) -> Iterator[Owner]:
    with Owner(net.pod(POD_A), SSRC) as owner:
        write_routes(folder / "routes.json", owner.pod)
        yield owner


def path_key(client: Client) -> bytes:
    path = path_of(client)
    return path.listener.to_bytes(2) + path.port.to_bytes(2) + path.address


def path_of(client: Client) -> ClientPath:
    host, port = client.socket.getsockname()[:2]
    return ClientPath(pack_address(host), port, 1)


def stored(server: RedisServer) -> redis.Redis:
    return redis.Redis(port=server.port, password=server.password or None, socket_timeout=5)


def count(relay: RelayProcess, name: str) -> float:
    return relay.metrics()[f"usher_relay_{name}"]


def is_up(relay: RelayProcess) -> bool:
    return count(relay, "redis_away") == 0


def words(relay: RelayProcess) -> list[str]:
    lines = [json.loads(line) for line in relay.log_text().splitlines() if line.startswith("{")]
    return [line["event"].split(";")[0] for line in lines if line["event"].startswith("Redis")]


UP, AWAY = "Redis answers: it is asked for unknown clients", "Redis is away"


def test_a_call_goes_on_at_a_second_relay_when_the_first_was_killed(
    net: Network, folder: Path, server: RedisServer, owner: Owner, engine: tuple[str, str]
) -> None:
    flags = ("--redis-url", server.url(), *ALONE, *engine)
    with relay_process(folder, *flags) as first, relay_process(folder, *flags) as second, stored(server) as held:
        until(lambda: is_up(first) and is_up(second), "both reach Redis")
        client = net.client(first.udp)
        connect(client)
        speak(client, 5)
        name = name_of(path_key(client))
        until(lambda: held.exists(name), "the mapping is written")
        value = held.get(name)
        assert isinstance(value, bytes)
        assert len(value) == VALUE_LENGTH
        assert 50 < float(held.ttl(name)) <= 60
        first.signal(signal.SIGKILL)
        move(client, second)
        gap = speak(client, 50)
        print(f"\nlongest gap: {gap} packets")
        assert gap <= LONGEST_GAP
        assert count(second, 'redis_lookups_total{result="found"}') == 1
        assert count(second, 'lookups_total{event="found_store"}') == 1
        (flow,) = json.loads(second.get("/flows")[1])["flows"]
        assert (flow["client"], flow["state"]) == (client.address, "live")


def test_a_call_of_another_cluster_goes_on_at_a_second_ingress_relay_of_its_region(
    net: Network, folder: Path, server: RedisServer, owner: Owner, engine: tuple[str, str]
) -> None:
    keys = json.loads((folder / "keys.json").read_text())
    trunk = {"id": 5, "key": base64.b64encode(bytes(range(40, 56))).decode()}
    place = folder / "ingress"
    place.mkdir()
    for at, scope in ((folder, 9), (place, 1)):
        (at / "keys.json").write_text(json.dumps(keys | {"hop": [*keys["hop"], trunk | {"scope": scope}]}))
    write_routes(place / "routes.json")
    with relay_process(folder, "--trunk=127.0.0.1:0", *engine) as home, stored(server) as held:
        peer = {"cluster": 1, "endpoints": [{"address": home.facts["trunk"]}]}
        (place / "peers.json").write_text(json.dumps({"version": 1, "peers": [peer]}))
        flags = ("--redis-url", server.url(), "--peers-file", str(place / "peers.json"), *engine)
        with relay_process(place, *flags) as first, relay_process(place, *flags) as second:
            until(lambda: is_up(first) and is_up(second), "both reach Redis")
            client = net.client(first.udp)
            connect(client)
            speak(client, 5)
            until(lambda: held.exists(name_of(path_key(client))), "the mapping is written")
            first.signal(signal.SIGKILL)
            move(client, second)
            gap = speak(client, 50)
            print(f"\nlongest gap: {gap} packets")
            assert gap <= LONGEST_GAP
            assert count(second, 'redis_lookups_total{result="found"}') == 1


@pytest.mark.timed
@pytest.mark.parametrize("replaced", [False, True], ids=["a second relay", "a relay that is started then"])
def test_five_hundred_flows_go_on_at_another_relay(
    net: Network,
    folder: Path,
    server: RedisServer,
    engine: tuple[str, str],
    replaced: bool,
    record_property: Callable[[str, object], None],
) -> None:
    flows, every = 500, 0.2
    flags = ("--redis-url", server.url(), *ALONE, *engine)
    with contextlib.ExitStack() as stack, stored(server) as held:
        owner = stack.enter_context(Owner(net.pod(POD_A)))
        write_routes(folder / "routes.json", owner.pod)
        first = stack.enter_context(relay_process(folder, *flags))
        running = None if replaced else stack.enter_context(relay_process(folder, *flags))
        until(lambda: is_up(first) and (running is None or is_up(running)), "Redis is reached")

        def successor() -> RelayProcess:
            if running is not None:
                return running
            started = stack.enter_context(relay_process(folder, *flags))
            until(lambda: count(started, "redis_loaded") == flows, "all mappings are loaded")
            return started

        clients = [net.client(first.udp) for _ in range(flows)]
        send_checks(clients, lambda _: POD_A)
        until(lambda: held.dbsize() == flows, "every mapping is written", 20)
        crowd = stack.enter_context(Crowd(clients, every))
        second, figures = crowd.outlive(first, successor)
        print(f"\ngaps, p50 p99 max in s, with a packet every {every} s: {figures}")
        record_property("gaps", figures)
        assert figures["after"][-1] <= figures["before"][-1] + 0.2, "beside the gaps that this machine makes anyway"
        metrics = second.metrics()
        found = metrics['usher_relay_lookups_total{event="found_store"}']
        loaded = metrics['usher_relay_lookups_total{event="found_loaded"}']
        assert (found, loaded) == ((0, flows) if replaced else (flows, 0))
        until(lambda: count(second, 'flows{state="confirmed"}') == flows, "all are confirmed")


@pytest.mark.timed
def test_a_flood_of_unknown_sources_loads_redis_no_more_than_the_limit(
    net: Network, folder: Path, server: RedisServer, owner: Owner, engine: tuple[str, str]
) -> None:
    flags = ("--redis-url", server.url(), *ALONE, *engine, "--questions-per-second", "200")
    with relay_process(folder, *flags) as first, relay_process(folder, *flags) as second, stored(server) as held:
        until(lambda: is_up(first) and is_up(second), "both reach Redis")
        live, moving = net.client(second.udp), net.client(first.udp)
        connect(live)
        connect(moving)
        until(lambda: held.dbsize() == 2, "both are written")
        until(lambda: count(second, "redis_loaded") >= 0, "it is loaded")
        with Flood(second.udp) as flood:
            flood.start()
            until(lambda: count(second, 'drops_total{reason="limit_questions"}'), "more than may be asked")
            gap = speak(live, 100)
            move(moving, second)
            found_after = speak(moving, 200, ssrc=78)
            print(f"\nlive call: longest gap {gap} packets; moved call found after {found_after}; {flood.sent} faked")
            asked = count(second, 'lookups_total{event="asked_store"}')
            assert asked <= 200 * (time.monotonic() - flood.began + 2)
            assert asked < flood.sent / 4
            calls = held.info("commandstats")["cmdstat_mget"]["calls"]
            assert calls <= asked + 20, "many in one command, and a few of the start"
        assert gap <= 2, "it loses what the kernel may drop"
        assert found_after <= 150
        assert count(second, 'flows{state="confirmed"}') == 2
        assert is_up(second)


# What may be wrong with Redis: packets go on, and there is a line for each change.


@contextlib.contextmanager
def two_relays(folder: Path, url: str, *flags: str) -> Iterator[tuple[RelayProcess, RelayProcess]]:
    given = ("--redis-url", url, *flags)
    with relay_process(folder, *given) as first, relay_process(folder, *given) as second:
        yield first, second


def goes_on(net: Network, first: RelayProcess, second: RelayProcess) -> int:
    """Make a call at the first relay and let it go on at the second; return the longest gap."""
    client = net.client(first.udp)
    connect(client)
    assert speak(client, 10) <= 2
    move(client, second)
    gap = speak(client, 40)
    for relay in (first, second):
        assert (relay.get("/livez")[0], relay.get("/readyz")[0]) == (200, 200)
    return gap


def outage(server: RedisServer) -> None:
    server.kill()


def hang(server: RedisServer) -> None:
    server.hang()


@pytest.mark.parametrize("fail", [outage, hang])
def test_while_redis_is_gone_or_hangs_calls_go_on_by_the_transceivers_word_and_it_is_found_again(
    net: Network,
    folder: Path,
    server: RedisServer,
    owner: Owner,
    engine: tuple[str, str],
    fail: Callable[[RedisServer], None],
) -> None:
    with two_relays(folder, server.url(), *engine) as (first, second):
        until(lambda: is_up(first) and is_up(second), "both reach Redis")
        fail(server)
        gaps = [goes_on(net, first, second) for _ in range(4)]
        print(f"\nlongest gaps: {gaps} packets")
        assert max(gaps) <= LONGEST_GAP
        until(lambda: not is_up(first) and not is_up(second), "it shows", 10)
        failures = count(first, "redis_failures_total")
        if server.process is None:
            asyncio.run(server.start())
        else:
            server.go_on()
        until(lambda: is_up(first) and is_up(second), "both find it again", 15)
        assert count(first, "redis_failures_total") - failures <= 12, "no storm"
        assert words(first) == words(second) == [UP, AWAY, UP]
        with stored(server) as held:
            client = net.client(first.udp)
            connect(client)
            until(lambda: held.exists(name_of(path_key(client))), "restarted empty or not, it is written again")


def test_a_wrong_password_keeps_nothing_from_working_and_is_in_no_log(net: Network, folder: Path, owner: Owner) -> None:
    with redis_on_a_free_port(PASSWORD) as server, two_relays(folder, server.url("the-wrong-word")) as relays:
        assert goes_on(net, *relays) <= LONGEST_GAP
        for relay in relays:
            assert words(relay) == [AWAY]
            assert '"error": "AuthenticationError"' in relay.log_text()
            assert "-word" not in relay.log_text()


def test_a_redis_whose_memory_is_full_is_still_read(
    net: Network, folder: Path, server: RedisServer, owner: Owner, engine: tuple[str, str]
) -> None:
    with two_relays(folder, server.url(), *ALONE, *engine) as (first, second), stored(server) as held:
        until(lambda: is_up(first) and is_up(second), "both reach Redis")
        client = net.client(first.udp)
        connect(client)
        until(lambda: held.exists(name_of(path_key(client))), "the mapping is written")
        held.config_set("maxmemory", "1mb")
        late = net.client(first.udp)
        connect(late)
        until(lambda: count(first, "redis_refuses_writes") == 1, "it shows")
        move(client, second)
        assert speak(client, 30) <= LONGEST_GAP
        assert is_up(first)
        held.config_set("maxmemory", "0")
        until(lambda: count(first, 'redis_writes_total{result="failed"}') == 1, "it is counted")
        fresh = net.client(first.udp)
        connect(fresh)
        until(lambda: held.exists(name_of(path_key(fresh))), "it is written again", 15)
        until(lambda: len(words(first)) >= 3, "the line follows the answer of Redis")
        assert words(first) == [UP, "Redis refuses writes", "Redis takes writes again"]


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"+OK\r\n" * 50, b"\xff\xfe\r\n", b"$-7\r\n", b""]
)
def test_something_that_is_no_redis_keeps_nothing_from_working(
    net: Network, folder: Path, owner: Owner, answer: bytes
) -> None:
    with babbler(answer) as port, two_relays(folder, f"redis://127.0.0.1:{port}/0") as relays:
        assert goes_on(net, *relays) <= LONGEST_GAP
        assert "fault of ours" not in "".join(relay.log_text() for relay in relays)
        assert [words(relay) for relay in relays] == [[AWAY], [AWAY]]


@contextlib.contextmanager
def babbler(answer: bytes) -> Iterator[int]:
    """Something that says one thing, whatever it is asked."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, contextlib.suppress(OSError):
                        connection.settimeout(1)
                        connection.recv(100)
                        connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_what_somebody_writes_to_redis_steers_nobody(
    net: Network, folder: Path, server: RedisServer, owner: Owner, engine: tuple[str, str]
) -> None:
    with (
        Owner(net.pod(POD_B)) as thief,
        two_relays(folder, server.url(), *ALONE, *engine) as (first, second),
        stored(server) as held,
    ):
        write_routes(folder / "routes.json", owner.pod, thief.pod)
        until(lambda: is_up(first) and is_up(second), "both reach Redis")
        until(lambda: count(first, "routes") == count(second, "routes") == 2, "both know both pods")
        client, accomplice = net.client(first.udp), net.client(first.udp)
        connect(client)
        connect(accomplice, POD_B)
        mine, other = name_of(path_key(client)), name_of(path_key(accomplice))
        until(lambda: held.dbsize() == 2, "both are written")
        good, swapped = held.get(mine), held.get(other)
        assert isinstance(good, bytes)
        assert isinstance(swapped, bytes)
        head = good[:6] + route_bytes(POD_B)
        reasons = 'redis_refusals_total{reason="mapping_mac"}'
        move(client, second)
        for number, value in enumerate((swapped, head + good[13:], head + bytes(16)), 1):
            held.set(mine, value)
            refused = functools.partial(knocks_until_refused, client, second, reasons, number)
            until(refused, "it is refused")
        assert path_of(client) not in thief.paths
        held.set(mine, good)
        until(functools.partial(is_answered, client), "the right one is believed")


def is_answered(client: Client) -> bool:
    client.send(speech(1))
    return bool(heard(client))


def knocks_until_refused(client: Client, relay: RelayProcess, reasons: str, times: int) -> bool:
    """Whether it was refused so often; a source is looked up once a second."""
    client.send(rtp(12_345))
    return count(relay, reasons) >= times


def test_a_relay_without_a_store_key_says_what_it_lacks(tmp_path: Path, server: RedisServer, net: Network) -> None:
    write_routes(tmp_path / "routes.json", net.pod(POD_A))
    with relay_process(tmp_path, "--redis-url", server.url(), ready=False) as relay:
        assert relay.wait(20) == 2
        assert "Redis needs a store key in the relay's key file" in relay.log_text()
