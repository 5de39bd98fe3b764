"""The control side of a relay's peers while people, programs and strangers do their worst to it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path

import pytest
import structlog

from tests.relay_rig import HOP_KEY
from tests.trunk_rig import HOME_CLUSTER, INGRESS_CLUSTER, trunk_keys
from usher_core import hop
from usher_core.errors import LocalError
from usher_relay.forwarder import Forwarder
from usher_relay.state import Limits, RelayKeys
from usher_relay.trunk.names import PeerNames
from usher_relay.trunk.peer_table import PeerAddresses, PeerTable
from usher_relay.trunk.peering import Peering
from usher_relay.trunk.rendezvous import PLACES

DEADLINE_S = 5.0


class Home:
    """The trunk listener of a home relay, which answers probes as it does; `twist` may change what it answers."""

    def __init__(self, twist: Callable[[bytes], list[bytes]] = lambda reply: [reply]) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.setblocking(False)
        self.twist = twist
        self.relay = Forwarder(Limits(), (), RelayKeys.of(trunk_keys(INGRESS_CLUSTER)))

    @property
    def port(self) -> int:
        return int(self.socket.getsockname()[1])

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            probe, source = await loop.sock_recvfrom(self.socket, 2_048)
            self.relay.from_ingress(loop.time(), hop.parse(probe).outer.time_ms / 1000, [(probe, source)])
            for reply, to in self.relay.take_for_ingress():
                for made in self.twist(reply):
                    self.socket.sendto(made, to)


def peers_file(*ports: int) -> str:
    endpoints = [{"address": f"127.0.0.1:{port}"} for port in ports]
    return json.dumps({"version": 1, "peers": [{"cluster": HOME_CLUSTER, "endpoints": endpoints}]})


class Rig:
    """A peering that runs beside the home relays it probes."""

    def __init__(self, folder: Path, *homes: Home) -> None:
        self.path, self.homes = folder / "peers.json", homes
        self.path.write_text(peers_file(*(home.port for home in homes)))
        self.tables: list[PeerTable] = []
        self.hanging: dict[str, Future[tuple[str, ...]]] = {}
        names = PeerNames(lambda name: self.hanging.setdefault(name, Future()))
        self.peering = Peering(self.path, trunk_keys(HOME_CLUSTER), self.tables.append, names)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not holds():  # noqa: ASYNC110 - what is waited for tells nobody
                await asyncio.sleep(0.01)

    def run(self, story: Callable[[], Coroutine[None, None, None]]) -> None:
        async def main() -> None:
            tasks = [
                asyncio.ensure_future(self.peering.run()),
                *(asyncio.ensure_future(home.serve()) for home in self.homes),
            ]
            try:
                await story()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

        try:
            asyncio.run(main())
        finally:
            for home in self.homes:
                home.socket.close()


def test_a_peers_file_that_is_garbled_again_and_again_changes_nothing_and_a_good_one_counts(tmp_path: Path) -> None:
    rig = Rig(tmp_path, Home(), Home())

    async def story() -> None:
        await rig.until(lambda: all(view.answered for view in rig.peering.endpoints()) and len(rig.tables) > 0)
        tables, seen = len(rig.tables), {view.address for view in rig.peering.endpoints()}
        good = rig.path.read_text()
        for text in ("{", "", good[: len(good) // 2], good.replace('"version": 1', '"version": 2'), "\0" * 100):
            rig.path.write_text(text)
            await rig.until(lambda: rig.peering.status().fault != "")
            rig.path.write_text(good)
            await rig.until(lambda: rig.peering.status().fault == "")
        assert {view.address for view in rig.peering.endpoints()} == seen
        assert all(
            set(table[HOME_CLUSTER].addresses) == set(rig.tables[0][HOME_CLUSTER].addresses)
            for table in rig.tables[tables:]
        )
        rig.path.write_text(peers_file(rig.homes[0].port))
        alone = PeerAddresses((("127.0.0.1", rig.homes[0].port),), (0,) * PLACES)
        await rig.until(lambda: rig.tables[-1] == {HOME_CLUSTER: alone})

    rig.run(story)


def test_forged_replayed_and_foreign_answers_keep_no_endpoint_up(tmp_path: Path) -> None:
    first: list[bytes] = []

    def replay(reply: bytes) -> list[bytes]:
        first.append(reply)
        return first[:1] * 3

    def forge(reply: bytes) -> list[bytes]:
        parsed = hop.parse(reply)
        return [hop.encode(parsed.outer, parsed.records, HOP_KEY), reply[:-1], reply[:20], b""]

    replaying, forging, honest = Home(replay), Home(forge), Home()
    rig = Rig(tmp_path, replaying, forging, honest)

    def views() -> dict[int, tuple[bool, int]]:
        return {int(view.address.rpartition(":")[2]): (view.up, view.answered) for view in rig.peering.endpoints()}

    async def story() -> None:
        await rig.until(lambda: views().get(honest.port, (False, 0))[1] > 5)
        assert views()[replaying.port] == (False, 1), "an answer counts once"
        assert views()[forging.port] == (False, 0)
        assert views()[honest.port][0]
        await rig.until(lambda: set(rig.tables[-1][HOME_CLUSTER].places) == {2})

    rig.run(story)


def test_a_name_server_that_hangs_holds_up_no_address_of_any_peer(tmp_path: Path) -> None:
    rig = Rig(tmp_path, Home())
    addresses = {1: ["192.0.2.1:3479", "hangs.example:3479"], 2: ["hangs.example:3479"], 3: ["late.example:3479"]}
    peers = [
        {"cluster": cluster, "endpoints": [{"address": address} for address in found]}
        for cluster, found in addresses.items()
    ]
    rig.path.write_text(json.dumps({"version": 1, "peers": peers}))

    async def story() -> None:
        await rig.until(lambda: rig.tables[-1:] == [{1: PeerAddresses((("192.0.2.1", 3479),), (0,) * PLACES)}])
        await rig.until(lambda: len(rig.hanging) == 2)
        rig.hanging["late.example"].set_result(("192.0.2.3",))
        await rig.until(lambda: rig.tables[-1].keys() == {1, 3})
        assert rig.tables[-1][3].addresses == (("192.0.2.3", 3479),)
        assert not rig.hanging["hangs.example"].done()

    rig.run(story)


def test_a_peer_without_a_hop_key_and_one_that_is_our_own_cluster_are_a_warning_each_time_it_comes_to_that(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path, Home())
    no_key = f"no hop key for the trunk to cluster {HOME_CLUSTER}: run `usher keys trunk`"
    own = f"cluster {HOME_CLUSTER} has routes here and stands in the peers file; the routes here count"

    async def story() -> None:
        def said() -> list[str]:
            return [line["event"] for line in lines if not line["event"].startswith("peer endpoint is ")]

        async def now(*warnings: str) -> None:
            # On a busy machine its endpoint may seem to be down for a while, which is said too.
            await rig.until(lambda: len(said()) >= len(warnings))
            await asyncio.sleep(0.2)  # four looks more, of which none says it again
            assert said() == list(warnings)

        with structlog.testing.capture_logs() as lines:
            await now()
            rig.peering.set_keys(trunk_keys(INGRESS_CLUSTER))
            await now(no_key)
            rig.peering.set_own_clusters({HOME_CLUSTER, 7})
            await now(no_key, own)
            rig.peering.set_keys(trunk_keys(HOME_CLUSTER))
            rig.peering.set_own_clusters({7})
            await now(no_key, own)
            rig.peering.set_own_clusters({HOME_CLUSTER})
            await now(no_key, own, own)

    rig.run(story)


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ('{"version": 1, "peers": [{"cluster": 1, "endpoint": []}]}', "peers.0.endpoint: unknown field"),
        ("{", "no JSON"),
    ],
)
def test_a_wrong_peers_file_is_named_with_what_was_typed(tmp_path: Path, wrong: str, fault: str) -> None:
    path = tmp_path / "peers.json"
    path.write_text(wrong)
    with pytest.raises(LocalError) as told:
        Peering(path, trunk_keys(HOME_CLUSTER), lambda _: None)
    assert str(told.value).startswith(f"{path}: the peers file is ")
    assert fault in str(told.value)
