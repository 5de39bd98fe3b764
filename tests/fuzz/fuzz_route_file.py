"""Invariant: parse or raise LocalError, nothing else. What parses has addresses that a socket takes."""

import ipaddress
import json
from contextlib import suppress

from tests.fuzz.harness import instrumented, main

with instrumented():
    from usher_core.errors import LocalError
    from usher_core.routes import parse_route_file


def one_input(data: bytes) -> None:
    with suppress(LocalError):
        for route, entry in parse_route_file(data.decode("utf-8", "replace")).items():
            host, port = entry.address
            ipaddress.ip_address(host.partition("%")[0])
            assert 1 <= port <= 0xFFFF
            assert entry.route == route


ENTRY = {"cluster": 1, "pod": 17, "worker": 0, "udp": "127.0.0.1:40001", "http": "http://127.0.0.1:41001"}
FILES = [
    {"version": 1, "transceivers": [ENTRY | {"placeable": False, "region": "eu"}, ENTRY | {"pod": 18}]},
    {"version": 1, "transceivers": [ENTRY | {"udp": "[2001:db8::1]:40001"}]},
]

if __name__ == "__main__":
    main(one_input, [json.dumps(file).encode() for file in FILES] + [b"1" * 4400])
