import stat
from pathlib import Path

from usher_cli.up.atomic_file import write_atomically
from usher_cli.up.members import Member, Members
from usher_cli.up.pod_ids import EPOCH, PodIds
from usher_cli.up.run_directory import RunDirectory
from usher_core.routes import parse_route_file


def members() -> Members:
    fleet = Members()
    for number in (2, 1, 10):
        facts: dict[str, object] = {
            "program": "relay",
            "admin": f"http://127.0.0.1:90{number:02}",
            "listeners": {"1": "0.0.0.0:3478"},
        }
        fleet.add(Member(f"relay-{number}", number, facts))
    facts = {"program": "transceiver", "udp": "127.0.0.1:4001", "http": "http://127.0.0.1:4002", "pod": 17}
    fleet.add(Member("transceiver-1", 50, facts))
    fleet.add(Member("signaling", 60, {"program": "signaling", "http": "http://127.0.0.1:8080"}))
    return fleet


def test_the_state_file_names_the_region_of_each_program_where_there_are_several() -> None:
    members = Members({1: "region-1", 2: "region-2"})
    for region in (2, 1):
        facts = {"program": "relay", "admin": f"http://127.0.0.1:900{region}"}
        members.add(Member(f"region-{region}/relay-1", region, facts, region))
    assert members.state("", "", "")["relays"] == [
        {"pid": 1, "admin": "http://127.0.0.1:9001", "region": "region-1"},
        {"pid": 2, "admin": "http://127.0.0.1:9002", "region": "region-2"},
    ]


def test_the_state_file_names_addresses_and_processes_in_order() -> None:
    assert members().state("http://127.0.0.1:8080", "0.0.0.0:3478", "/tmp/x") == {
        "http": "http://127.0.0.1:8080",
        "udp": "0.0.0.0:3478",
        "keys": "/tmp/x",
        "relays": [
            {"pid": 1, "admin": "http://127.0.0.1:9001"},
            {"pid": 2, "admin": "http://127.0.0.1:9002"},
            {"pid": 10, "admin": "http://127.0.0.1:9010"},
        ],
        "transceivers": [{"pid": 50, "admin": "http://127.0.0.1:4002", "pod_id": 17}],
        "signaling": [{"pid": 60, "admin": "http://127.0.0.1:8080"}],
    }


def test_one_that_has_ended_is_in_neither_file() -> None:
    fleet = members()
    fleet.remove("transceiver-1")
    assert fleet.transceivers() == []
    assert fleet.state("", "", "")["transceivers"] == []


def test_the_route_file_is_what_relays_and_signaling_read() -> None:
    with RunDirectory.make() as directory:
        assert len(parse_route_file(Path(directory.routes).read_text())) == 0
        directory.write_routes(members().transceivers())
        table = parse_route_file(Path(directory.routes).read_text())
        assert [(str(route), entry.udp, entry.http) for route, entry in table.items()] == [
            ("1/17/0", "127.0.0.1:4001", "http://127.0.0.1:4002")
        ]


def test_the_run_directory_is_private_and_removed_at_the_end() -> None:
    with RunDirectory.make() as directory:
        assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in directory.path.iterdir()} == {0o600}
    assert not directory.path.exists()


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    target = tmp_path / "state.json"
    for text in ("old", "new"):
        write_atomically(target, text)
        assert target.read_text() == text
    assert list(tmp_path.iterdir()) == [target]


def test_pod_ids_follow_the_clock_and_never_repeat() -> None:
    ids = PodIds()
    now = EPOCH + 1000.0
    assert [ids.next(now), ids.next(now), ids.next(now - 500), ids.next(now + 60)] == [1000, 1001, 1002, 1060]
