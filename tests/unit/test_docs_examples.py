"""Examples in pages that are no commands: JSON and JavaScript. `test_docs_commands` runs the commands, and
`test_docs_backends` what is written in Python."""

import base64
import json
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.pages import Block, blocks, pages
from tests.signaling_fakes import FakeRelay, FakeTransceiver, place, signaling
from tests.signaling_fakes import Fleet as SignalingFleet
from usher_cli.up.members import Member, Members
from usher_core.event_policy import BROWSER
from usher_core.internal_api import ErrorAnswer
from usher_core.keys import parse_key_file
from usher_core.peers import parse_peer_file
from usher_core.routes import parse_route_file
from usher_signaling.hops import RelayWays, hops_of
from usher_signaling.peer_regions.table import parse_regions_file

ALL = [block for page in pages() for block in blocks(page)]
COMMANDS = {"sh", "console", "indented"}
LENGTHS = {"ufrag_key": 16, "password_key": 32, "key": 16}


def shape(value: Any) -> Any:
    """The fields of an example and what is within them; lists by their first entry, values left out."""
    if isinstance(value, dict):
        return {name: shape(entry) for name, entry in value.items()}
    return [shape(value[0])] if isinstance(value, list) and value else None


def named(block: Block) -> str:
    return f"{block.page}:{block.line}"


def with_keys(value: Any) -> Any:
    """Put keys where a key file's example has dots."""
    if isinstance(value, dict):
        return {
            name: base64.b64encode(bytes(LENGTHS[name])).decode() if entry == "…" else with_keys(entry)
            for name, entry in value.items()
        }
    return [with_keys(entry) for entry in value] if isinstance(value, list) else value


async def is_key_file(example: Any, _folder: Path) -> None:
    parsed = parse_key_file(json.dumps(with_keys(example)))
    assert parsed.ice
    assert parsed.hop


async def is_route_file(example: Any, _folder: Path) -> None:
    assert len(parse_route_file(json.dumps(example))) == 1


async def is_peers_file(example: Any, _: Path) -> None:
    assert len(parse_peer_file(json.dumps(example)).peers) == 1


async def is_regions_file(example: Any, _: Path) -> None:
    table = parse_regions_file(json.dumps(example), "us")
    assert (table.names, table.owner(1)) == (("eu",), None)


async def is_state_file(example: Any, _folder: Path) -> None:
    members = Members()
    facts = {"udp": "127.0.0.1:1", "http": "http://127.0.0.1:2", "admin": "http://127.0.0.1:3", "pod": 1}
    for program in ("relay", "transceiver", "signaling"):
        members.add(Member(program, 1, {"program": program, **facts}))
    assert shape(example) == shape(members.state("http://127.0.0.1:4", "127.0.0.1:1", "/tmp/keys"))


async def is_error(example: Any, _folder: Path) -> None:
    assert shape(ErrorAnswer.model_validate(example).model_dump()) == shape(example)


async def is_call(example: Any, folder: Path) -> None:
    async with signaling(folder) as stack:
        placed = await place(stack.client)
        answer = (await stack.client.get(placed.headers["location"])).json()
    assert shape(example) == shape(answer)
    assert example["id"].split("_")[0] == answer["id"].split("_")[0]


async def is_hops(example: Any, _folder: Path) -> None:
    ingress = RelayWays(has_call=True, has_route=False, route_ms=None, trunk_ms=41.2, entry_ms=None)
    home = RelayWays(has_call=False, has_route=True, route_ms=0.3, trunk_ms=None, entry_ms=None)
    assert example == {"hops": [hop.as_json() for hop in hops_of([ingress, home])]}


async def is_secret_request(example: Any, folder: Path) -> None:
    async with signaling(folder) as stack:
        response = await stack.client.post("/v1/realtime/client_secrets", json=example)
    assert response.status_code == 200, response.text


async def is_secret(example: Any, folder: Path) -> None:
    async with signaling(folder) as stack:
        asked = {name: example[name] for name in ("session", "metadata", "event_policy")}
        answer = (await stack.client.post("/v1/realtime/client_secrets", json=asked)).json()
    assert shape(example) == shape(answer)
    assert answer["session"] == example["session"]
    assert answer["event_policy"] == example["event_policy"] == BROWSER.as_json()


async def is_call_list(example: Any, folder: Path) -> None:
    async with signaling(folder) as stack:
        assert (await stack.client.get("/v1/realtime/calls")).json() == example


async def is_fleet(example: Any, folder: Path) -> None:
    relay = FakeRelay(1)
    fleet = SignalingFleet([FakeTransceiver(pod=1)], [relay])
    async with signaling(folder, fleet=fleet, relay_admin=(relay.admin,)) as stack:
        answer = (await stack.client.get("/v1/fleet")).json()
    assert shape(example) == shape(answer)


async def is_model_list(example: Any, folder: Path) -> None:
    async with signaling(folder, backends=[model["id"] for model in example["data"]]) as stack:
        assert (await stack.client.get("/v1/models")).json() == example


async def is_readiness(example: Any, folder: Path) -> None:
    draining = [FakeTransceiver(pod=pod, draining=True) for pod in range(example["transceivers"])]
    async with signaling(folder, *draining, advertise=("1=192.0.2.1:3478",)) as stack:
        answer = (await stack.client.get("/readyz")).json()
    assert answer.pop("why_no_call").startswith(example.pop("why_no_call").removesuffix("…"))
    assert answer == example


JSON_EXAMPLES: dict[tuple[str, frozenset[str]], Callable[[Any, Path], Awaitable[None]]] = {
    ("docs/wire.md", frozenset({"version", "ice", "hop"})): is_key_file,
    ("docs/wire.md", frozenset({"version", "transceivers"})): is_route_file,
    ("docs/wire.md", frozenset({"version", "peers"})): is_peers_file,
    ("docs/http-api.md", frozenset({"version", "regions"})): is_regions_file,
    ("docs/cli.md", frozenset({"http", "udp", "keys", "relays", "transceivers", "signaling"})): is_state_file,
    (
        "docs/operations.md",
        frozenset(
            {"ready", "why", "can_place", "why_no_call", "transceivers", "transceivers_live", "advertised"},
        ),
    ): is_readiness,
    ("docs/http-api.md", frozenset({"error"})): is_error,
    (
        "docs/http-api.md",
        frozenset({"id", "object", "state", "end_reason", "backend", "path", "timings", "age_s", "observers"}),
    ): is_call,
    ("docs/http-api.md", frozenset({"hops"})): is_hops,
    (
        "docs/http-api.md",
        frozenset({"object", "data", "has_more", "last_id", "partial", "transceivers_unanswered"}),
    ): is_call_list,
    ("docs/http-api.md", frozenset({"object", "relays", "transceivers"})): is_fleet,
    ("docs/http-api.md", frozenset({"object", "data"})): is_model_list,
    ("docs/http-api.md", frozenset({"expires_after", "session", "metadata", "event_policy"})): is_secret_request,
    ("docs/http-api.md", frozenset({"event_policy"})): is_secret_request,
    ("docs/http-api.md", frozenset({"value", "expires_at", "session", "metadata", "event_policy"})): is_secret,
}
"""By page and fields: what the example has to be."""


@pytest.mark.parametrize("block", [block for block in ALL if block.language == "json"], ids=named)
async def test_json_is_what_the_programs_read_and_write(block: Block, tmp_path: Path) -> None:
    example = json.loads(block.text)
    check = JSON_EXAMPLES.get((block.page, frozenset(example)))
    assert check, "say in JSON_EXAMPLES what this is"
    await check(example, tmp_path)


def test_no_json_example_is_declared_that_no_page_has() -> None:
    there = {(block.page, frozenset(json.loads(block.text))) for block in ALL if block.language == "json"}
    assert set(JSON_EXAMPLES) == there


@pytest.mark.needs("node")
@pytest.mark.parametrize("block", [block for block in ALL if block.language == "js"], ids=named)
def test_javascript_is_well_formed(block: Block, tmp_path: Path) -> None:
    """`tests/browser/test_browser_agents.py` makes a call with the same SDK."""
    script = tmp_path / "example.mjs"
    script.write_text(block.text)
    checked = subprocess.run(["node", "--check", script], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_every_code_block_says_what_it_is() -> None:
    known = COMMANDS | {"json", "python", "toml", "js", "caddyfile", "yaml"}
    drawings = {"docs/architecture.md", "docs/multi-region.md", "docs/wire.md"}
    odd = [named(block) for block in ALL if block.language not in known and block.page not in drawings]
    assert odd == []
