"""The vectors in tests/vectors hold for this implementation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from siphashc import siphash

from usher_core import hop, internal_api, routes, stun
from usher_core.errors import RemoteError
from usher_core.ids import ClientPath, Route, pack_address
from usher_core.keys import IceKey, IceKeyRing, SealKey, parse_key_file
from usher_core.sealed import Sealer
from usher_core.ufrag import UfragCipher, ice_password

VECTORS = Path(__file__).parent.parent / "vectors"


def load(name: str) -> Any:
    return json.loads((VECTORS / name).read_text())


UFRAG = load("ufrag.json")
HOP = load("hop.json")
STUN = load("stun_rfc5769.json")


@pytest.fixture(name="ring")
def _ring() -> IceKeyRing:
    return IceKeyRing(
        [
            IceKey(
                letter=UFRAG["letter"],
                clusters=tuple(UFRAG["clusters"]),
                ufrag_key=bytes.fromhex(UFRAG["ufrag_key"]),
                password_key=bytes.fromhex(UFRAG["password_key"]),
            )
        ]
    )


@pytest.mark.parametrize("case", UFRAG["good"], ids=lambda case: str(case["ufrag"]))
def test_ufrag_vector_is_made_and_opened(case: dict[str, Any], ring: IceKeyRing) -> None:
    route = Route(case["cluster"], case["pod"], case["worker"])
    made = UfragCipher("a", bytes.fromhex(UFRAG["ufrag_key"])).seal(route, bytes.fromhex(case["random"]))
    assert made == case["ufrag"]
    opened = ring.open(case["ufrag"].encode())
    assert opened.route == route
    assert opened.password == case["password"].encode()
    assert ice_password(bytes.fromhex(UFRAG["password_key"]), made.encode()) == case["password"].encode()


@pytest.mark.parametrize("case", UFRAG["bad"], ids=lambda case: str(case["why"]))
def test_bad_ufrag_vector_is_refused_for_its_reason(case: dict[str, str], ring: IceKeyRing) -> None:
    with pytest.raises(RemoteError) as caught:
        ring.open(case["ufrag"].encode())
    assert caught.value.reason == case["reason"]


def test_siphash_reference_vector() -> None:
    vector = load("siphash.json")
    made = siphash(bytes.fromhex(vector["key"]), bytes.fromhex(vector["input"]))
    assert made == int(vector["output"], 16)


@pytest.mark.parametrize("case", HOP["good"], ids=lambda case: str(case["name"]))
def test_hop_vector_is_made_and_parsed(case: dict[str, Any]) -> None:
    key = bytes.fromhex(HOP["key"])
    outer = hop.Outer(
        hop.HopType(case["type"]),
        case["to_client"],
        case["cluster"],
        case["pod"],
        case["worker"],
        case["key_id"],
        case["time_ms"],
        case["hops_left"],
        case["return_slot"],
        case["flags"],
    )
    records = tuple(
        hop.Record(
            ClientPath(pack_address(record["address"]), record["port"], record["listener"]),
            bytes.fromhex(record["payload"]),
            record["flags"],
            record["split_id"],
        )
        for record in case["records"]
    )
    datagram = bytes.fromhex(case["datagram"])
    assert hop.encode(outer, records, key) == datagram
    parsed = hop.parse(datagram)
    assert parsed.outer == outer
    assert parsed.records == records
    assert hop.verify(parsed, key)


def test_hop_layout_has_the_offsets_of_the_wire_page() -> None:
    case = HOP["good"][0]
    datagram = bytes.fromhex(case["datagram"])
    assert datagram[0] == 1
    assert datagram[1] == 1
    assert datagram[3] == 1
    assert int.from_bytes(datagram[4:6]) == case["cluster"]
    assert int.from_bytes(datagram[6:10]) == case["pod"]
    assert datagram[10] == case["worker"]
    assert datagram[11] == case["key_id"]
    assert int.from_bytes(datagram[12:16]) == case["time_ms"]
    assert int.from_bytes(datagram[16:18]) == case["return_slot"]
    record = datagram[26:]
    assert int.from_bytes(record[0:2]) == 160
    assert record[2] == 0
    assert int.from_bytes(record[3:5]) == 1
    assert int.from_bytes(record[5:7]) == 50000
    assert record[7:23].hex() == "00000000000000000000ffffcb007107"
    assert int.from_bytes(record[23:25]) == 0
    assert record[25:] == bytes(range(160))
    covered = datagram[:18] + bytes(8) + datagram[26:67]
    assert siphash(bytes.fromhex(HOP["key"]), covered) == int.from_bytes(datagram[18:26])


@pytest.mark.parametrize("case", HOP["bad"], ids=lambda case: str(case["why"]))
def test_bad_hop_vector_is_refused_for_its_reason(case: dict[str, str]) -> None:
    with pytest.raises(RemoteError) as caught:
        hop.parse(bytes.fromhex(case["datagram"]))
    assert caught.value.reason == case["reason"]


@pytest.mark.parametrize("case", HOP["forged"], ids=lambda case: str(case["why"]))
def test_forged_hop_vector_fails_its_mac(case: dict[str, str]) -> None:
    assert not hop.verify(hop.parse(bytes.fromhex(case["datagram"])), bytes.fromhex(HOP["key"]))


def test_payload_beyond_16_bytes_is_not_covered_by_the_mac() -> None:
    assert hop.verify(hop.parse(bytes.fromhex(HOP["not_covered"]["datagram"])), bytes.fromhex(HOP["key"]))


def test_rfc5769_request() -> None:
    message = stun.parse(bytes.fromhex(STUN["request"]["datagram"]))
    assert message.is_binding_request
    assert message.verify_integrity(STUN["password"].encode())
    assert not message.verify_integrity(b"wrong")
    assert message.username == STUN["request"]["username"].encode()
    assert message.server_ufrag == b"evtj"
    assert message.priority == STUN["request"]["priority"]
    assert message.attributes[stun.Attribute.ICE_CONTROLLED].hex() == STUN["request"]["controlled"]
    assert message.unknown_required == ()


@pytest.mark.parametrize("name", ["response_ipv4", "response_ipv6"])
def test_rfc5769_response(name: str) -> None:
    case = STUN[name]
    message = stun.parse(bytes.fromhex(case["datagram"]))
    assert message.cls is stun.StunClass.SUCCESS
    assert message.verify_integrity(STUN["password"].encode())
    value = message.attributes[stun.Attribute.XOR_MAPPED_ADDRESS]
    address = pack_address(case["address"])
    assert stun.unxor_address(value, message.transaction_id) == (address, case["port"])
    assert stun.xor_address(address, case["port"], message.transaction_id) == value


def test_sealed_vector() -> None:
    vector = load("sealed.json")
    sealer = Sealer([SealKey(id=vector["id"], key=bytes.fromhex(vector["key"]))])
    content, nonce = bytes.fromhex(vector["content"]), bytes.fromhex(vector["nonce"])
    assert sealer.seal(vector["prefix"], content, nonce, now=0) == vector["text"]
    assert sealer.open(vector["prefix"], vector["text"]) == content


def test_key_and_route_file_vectors_are_read() -> None:
    keys = parse_key_file((VECTORS / "key_file.json").read_text())
    assert [key.letter for key in keys.ice] == ["a", "b"]
    table = routes.parse_route_file((VECTORS / "route_file.json").read_text())
    assert table[Route(1, 60431872)].address == ("10.1.2.3", 7200)
    assert table[Route(1, 60431873)].address == ("fd00::5", 7200)
    assert not table[Route(1, 60431873)].placeable


@pytest.mark.parametrize(("name", "body"), load("internal_api.json").items())
def test_internal_api_vector_has_the_shape_of_its_model(name: str, body: dict[str, Any]) -> None:
    model = getattr(internal_api, name)
    assert json.loads(model.model_validate_json(json.dumps(body)).model_dump_json()) == body
