"""Invariant: parse or raise RemoteError, nothing else. A weak tag never matches a strong one."""

from contextlib import suppress

from tests.fuzz.harness import instrumented, main

with instrumented():
    from usher_core.errors import RemoteError
    from usher_signaling.entity_tags import entity_tag, parse_if_match

TAG = entity_tag("Aufrag")


def one_input(data: bytes) -> None:
    text = data.decode("latin-1")
    with suppress(RemoteError):
        match = parse_if_match(text)
        assert match.any or match.matches(TAG) == (TAG in match.tags)
        assert match.any or not match.matches("W/" + TAG) or "W/" in text


SEEDS = [b"*", b'"*"', TAG.encode(), f'W/{TAG}, {TAG} ,"x"'.encode()]

if __name__ == "__main__":
    main(one_input, SEEDS)
