"""Invariant: parse or raise RemoteError, nothing else. One session has one spelling."""

from contextlib import suppress

from tests.fuzz.harness import instrumented, main

with instrumented():
    from usher_core.errors import RemoteError
    from usher_core.ids import Route
    from usher_core.keys import IceKey, IceKeyRing
    from usher_core.ufrag import UfragCipher, split_ufrag

KEY = bytes(range(16))
RING = IceKeyRing([IceKey(letter="A", clusters=(1,), ufrag_key=KEY, password_key=bytes(32))])
ROUTE = Route(1, 17)
UFRAG = UfragCipher("A", KEY).seal(ROUTE, b"usher").encode()


def one_input(data: bytes) -> None:
    with suppress(RemoteError):
        split_ufrag(data)
    with suppress(RemoteError):
        opened = RING.open(data)
        # The check value has 32 bits: what the fuzzer made of the seed does not open.
        assert data == UFRAG
        assert opened.route == ROUTE


if __name__ == "__main__":
    main(one_input, [UFRAG])
