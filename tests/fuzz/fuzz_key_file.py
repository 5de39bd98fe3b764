"""Invariant: parse or raise LocalError, nothing else. The error never quotes the file."""

import base64
import json

from tests.fuzz.harness import instrumented, main

with instrumented():
    from usher_core.errors import LocalError
    from usher_core.keys import HopKeyRing, IceKeyRing, parse_key_file
    from usher_core.sealed import Sealer

SECRET = base64.b64encode(bytes(range(200, 232))).decode()
SHORT = base64.b64encode(bytes(range(200, 216))).decode()


def one_input(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    try:
        keys = parse_key_file(text)
        IceKeyRing(keys.ice)
        HopKeyRing(keys.hop)
        Sealer(keys.seal)
    except LocalError as error:
        assert SECRET not in str(error)
        assert SHORT not in str(error)


FILE = {
    "version": 1,
    "ice": [{"letter": "A", "clusters": [1], "ufrag_key": SHORT, "password_key": SECRET, "state": "active"}],
    "hop": [{"id": 1, "scope": "local", "key": SHORT, "not_before": 0}],
    "store": [{"id": 1, "key": SECRET}],
    "seal": [{"id": 1, "key": SECRET, "state": "retired"}],
}

if __name__ == "__main__":
    main(one_input, [json.dumps(FILE).encode(), b'{"version":1}', b"1" * 4400])
