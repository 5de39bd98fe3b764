"""Invariant: parse or raise RemoteError, nothing else. Only what was sealed opens."""

from contextlib import suppress

from tests.fuzz.harness import instrumented, main

with instrumented():
    from usher_core.errors import RemoteError
    from usher_core.keys import SealKey
    from usher_core.sealed import Sealer

SEALER = Sealer([SealKey(id=1, key=bytes(32))])
TEXT = SEALER.seal("call_", b"content", bytes(12), now=0)


def one_input(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    with suppress(RemoteError):
        SEALER.open("call_", text)
        assert text == TEXT
    with suppress(RemoteError):
        SEALER.open("ek_", text)
        raise AssertionError("a call id opened as a secret")


if __name__ == "__main__":
    main(one_input, [TEXT.encode(), TEXT.replace("call_", "ek_").encode()])
