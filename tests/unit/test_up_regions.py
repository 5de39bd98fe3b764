"""`usher up` with several regions: which flags fit together, who reads which file, and where everything is."""

import json
import stat
from pathlib import Path

import pytest

from usher_cli.up.arguments import Arguments
from usher_cli.up.members import Member, Members
from usher_cli.up.places import Places
from usher_cli.up.run_directory import RunDirectory
from usher_cli.up.settings import UpSettings
from usher_core.errors import LocalError
from usher_core.keys import KeyFile, parse_key_file
from usher_core.peers import parse_peer_file
from usher_core.routes import parse_route_file


def settings(flags: str) -> UpSettings:
    return UpSettings.from_command_line(flags.split())


def member(name: str, region: int, program: str, **facts: object) -> Member:
    return Member(name, 1, {"program": program, **facts}, region)


def relay(name: str, region: int, port: int, trunk: str | None = None) -> Member:
    facts: dict[str, object] = {"listeners": {str(region): f"0.0.0.0:{port}"}, "admin": f"http://127.0.0.1:{port + 9}"}
    return member(name, region, "relay", **facts, **({"trunk": trunk} if trunk else {}))


def keys(path: str) -> KeyFile:
    return parse_key_file(Path(path).read_text())


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--wan 40ms", "--wan 40ms is between regions, and there is one: add --clusters 2 --ingress 2"),
        ("--clusters 2 --wan 40", "'40' is no time such as 40ms or 0.5s"),
        ("--clusters 2 --wan 11s", "at most 10s is expected"),
        ("--clusters 0", "at least 1 is expected"),
        ("--ingress 9", "at most 8 is expected"),
        ("--clusters 2 --relays 9", "--relays 9: a cluster can be reached by 8 relays of another"),
        ("--ingress 2 --udp 0.0.0.0:65535", "--udp 0.0.0.0:65535: there are not 2 ports from there on"),
        ("--ingress 2 --advertise 192.0.2.1:99", "each ingress point has a port of its own, so give HOST only"),
    ],
)
def test_flags_that_make_no_sense_are_refused_with_the_reason(flags: str, said: str) -> None:
    with pytest.raises(LocalError) as error:
        settings(flags)
    assert said in str(error.value)


def test_each_ingress_point_has_the_port_behind_the_one_before() -> None:
    up = settings("--clusters 3 --ingress 2 --http [::1]:8080")
    assert [up.udp_of(region) for region in (1, 2)] == ["0.0.0.0:3478", "0.0.0.0:3479"]
    assert [up.http_of(region) for region in (1, 2)] == ["[::1]:8080", "[::1]:8081"]
    assert up.regions == 3
    assert settings("--ingress 2 --udp 127.0.0.1:0").udp_of(2) == "127.0.0.1:0"


def test_relays_hold_the_keys_of_their_trunks_and_nobody_the_passwords_of_another_cluster() -> None:
    with RunDirectory.make(regions=3, clusters=2) as directory:
        assert {stat.S_IMODE(path.stat().st_mode) for path in directory.path.rglob("*") if path.is_file()} == {0o600}
        first, second, third = (keys(directory.of(region).relay_keys) for region in (1, 2, 3))
        scopes = [sorted(str(key.scope) for key in held.hop) for held in (first, second, third)]
        assert scopes == [["2", "2", "3", "local"], ["1", "1", "3", "local"], ["1", "2", "local"]]
        ice = {key.clusters: key.password_key is not None for key in third.ice}
        assert ice == {(1,): False, (2,): False, (3,): True}
        transceiver = keys(directory.of(2).transceiver_keys)
        assert [key.clusters for key in transceiver.ice] == [(2,)]
        assert parse_peer_file(Path(directory.of(1).peers).read_text()).peers == ()


def test_relays_read_routes_of_their_own_cluster_and_signaling_all() -> None:
    with RunDirectory.make(regions=2, clusters=2) as directory:
        members = Members({1: "region-1", 2: "region-2"})
        for region in (1, 2):
            facts = {"udp": f"127.0.0.1:400{region}", "http": "http://127.0.0.1:4002", "pod": 16 + region}
            members.add(member(f"region-{region}/transceiver-1", region, "transceiver", **facts))
        directory.write_routes(members.transceivers())
        files = [directory.of(1).routes, directory.of(2).routes, directory.routes]
        tables = [parse_route_file(Path(file).read_text()) for file in files]
        assert [list(map(str, table)) for table in tables] == [["1/17/0"], ["2/18/0"], ["1/17/0", "2/18/0"]]
        assert [entry.region for entry in tables[2].values()] == ["region-1", "region-2"]


def test_one_region_has_its_files_where_they_always_were() -> None:
    with RunDirectory.make() as directory:
        names = {path.name for path in directory.path.iterdir()}
    assert names == {"relay.json", "transceiver.json", "signaling.json", "internal-token", "routes.json"}
    assert directory.of(1).routes == directory.routes


def two_regions() -> Places:
    places = Places(settings("--clusters 2 --ingress 2 --wan 40ms"))
    places.learn(relay("region-1/relay-1", 1, 3478, "127.0.0.1:5001"))
    places.learn(relay("region-2/relay-1", 2, 3479, "127.0.0.1:5002"))
    places.learn(relay("region-2/relay-2", 2, 3479, "127.0.0.1:5003"))
    return places


def test_without_a_delay_relays_and_far_callers_go_straight() -> None:
    places = two_regions()
    assert places.peers(1) == {2: ["127.0.0.1:5002", "127.0.0.1:5003"]}
    assert places.peers(2) == {1: ["127.0.0.1:5001"]}
    assert places.far(2) == "127.0.0.1:3479"


def test_with_a_delay_all_ways_between_regions_lead_through_it_and_stay_where_they_are() -> None:
    places = two_regions()
    ends = ["127.0.0.1:5001", "127.0.0.1:5002", "127.0.0.1:5003", "127.0.0.1:3478", "127.0.0.1:3479"]
    assert places.links(2) == [f"127.0.0.1:0={end}" for end in ends]
    links = {f"127.0.0.1:{9000 + number}": end for number, end in enumerate(ends)}
    places.learn(member("wan", 1, "wan", links=links))
    assert places.peers(1) == {2: ["127.0.0.1:9001", "127.0.0.1:9002"]}
    assert places.far(1) == "127.0.0.1:9003"
    assert places.links(2) == [f"{here}={there}" for here, there in links.items()]


def test_signaling_of_a_region_advertises_its_own_ingress_and_believes_this_machine_about_regions() -> None:
    with RunDirectory.make(regions=2, clusters=2) as directory:
        up = settings("--clusters 2 --ingress 2 --udp 127.0.0.1:3478")
        started = Arguments(up, directory, two_regions()).signaling(2)
    assert "--advertise=2=127.0.0.1:3479@region-2" in started
    assert {"--region=region-2", "--region-header=Usher-Region", "--trusted-proxies=127.0.0.0/8"} <= set(started)
    assert f"--routes-file={directory.routes}" in started


def test_a_relay_without_transceivers_takes_nothing_from_trunks() -> None:
    with RunDirectory.make(regions=2, clusters=1) as directory:
        arguments = Arguments(settings("--ingress 2"), directory, two_regions())
        home, ingress = arguments.relay(1, "region-1/relay-1"), arguments.relay(2, "region-2/relay-1")
    assert "--trunk=127.0.0.1:5001" in home
    assert not [flag for flag in ingress if flag.startswith("--trunk")]
    assert f"--peers-file={directory.of(2).peers}" in ingress


def test_peers_are_written_as_relays_read_them() -> None:
    with RunDirectory.make(regions=2, clusters=2) as directory:
        directory.of(1).write_peers(two_regions().peers(1))
        written = json.loads(Path(directory.of(1).peers).read_text())
    assert [peer["cluster"] for peer in written["peers"]] == [2]
    assert [each["address"] for each in written["peers"][0]["endpoints"]] == ["127.0.0.1:5002", "127.0.0.1:5003"]
