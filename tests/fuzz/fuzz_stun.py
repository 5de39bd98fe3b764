"""Invariant: parse or raise RemoteError, nothing else."""

from contextlib import suppress

from tests.fuzz.harness import instrumented, main

with instrumented():
    from usher_core import stun
    from usher_core.errors import RemoteError


def one_input(data: bytes) -> None:
    for datagram in (data, _with_true_length(data)):
        with suppress(RemoteError):
            _use(stun.parse(datagram))


def _with_true_length(data: bytes) -> bytes:
    """The input as attributes behind a header that parses."""
    body = data[: len(data) // 4 * 4]
    return b"\0\1" + len(body).to_bytes(2) + stun.MAGIC_COOKIE.to_bytes(4) + bytes(12) + body


def _use(message: stun.StunMessage) -> None:
    message.verify_integrity(b"p" * 32)
    assert isinstance(message.use_candidate, bool)
    assert message.priority is None or 0 <= message.priority < 1 << 32
    assert message.server_ufrag is None or b":" not in message.server_ufrag
    for kind, value in message.attributes.items():
        with suppress(RemoteError):
            if kind == stun.Attribute.XOR_MAPPED_ADDRESS:
                stun.unxor_address(value, message.transaction_id)
            elif kind == stun.Attribute.ERROR_CODE:
                assert 300 <= stun.error_code(value) <= 699


SEEDS = [
    stun.build(
        stun.StunClass.REQUEST,
        bytes(12),
        [
            (stun.Attribute.USERNAME, b"Aserver:client"),
            (stun.Attribute.PRIORITY, bytes(4)),
            (stun.Attribute.ICE_CONTROLLING, bytes(8)),
            (stun.Attribute.USE_CANDIDATE, b""),
            (stun.Attribute.SOFTWARE, b"seed"),
            (stun.Attribute.XOR_MAPPED_ADDRESS, b"\0\1" + bytes(6)),
            (stun.Attribute.ERROR_CODE, b"\0\0\4\x14Unknown Attribute"),
        ],
        b"p" * 32,
    ),
]

if __name__ == "__main__":
    main(one_input, SEEDS)
