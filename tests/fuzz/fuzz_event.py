"""Invariant: parse or raise RemoteError, nothing else. Whatever a client sends, it gets back well-formed JSON.

Where instructions are private, no message changes them or brings them to light.
"""

import json
from contextlib import suppress

from tests.fuzz.harness import instrumented, main

with instrumented():
    from usher_core.errors import RemoteError
    from usher_core.event_policy import EventPolicy
    from usher_transceiver.events import EventHub, parse_event


class Looker:
    """An observer that takes everything."""

    def offer(self, text: str) -> bool:
        strict(text)
        return True

    def dropped(self, reason: str) -> None:
        raise AssertionError(reason)


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def strict(text: str) -> bool:
    event = json.loads(text, parse_constant=refuse)
    assert isinstance(event["type"], str)
    return True


def hides(text: str) -> bool:
    assert SECRET not in text
    return strict(text)


def one_input(data: bytes) -> None:
    message = data[1:].decode("utf-8", "replace") if data[:1] == b"t" else data
    with suppress(RemoteError):
        parse_event(message)
    hub = EventHub(dict(SESSION), lambda: "event_1", strict, lambda _event: True)
    hub.observe(Looker())
    hub.on_open()
    hub.on_message(0.0, message)
    hub.on_backend_ready()
    hub.on_message(0.0, message)
    assert hub.session["id"] == "sess_1"
    bound = EventHub({**SESSION, "instructions": SECRET}, lambda: "event_1", hides, lambda _event: True, policy=POLICY)
    bound.on_open()
    bound.on_message(0.0, message)
    bound.emit({"type": "session.updated", "session": bound.session})
    assert bound.session["instructions"] == SECRET


SECRET = "You are a ship's cook who was once a spy."
POLICY = EventPolicy(private=("instructions",))
SESSION = {"id": "sess_1", "object": "realtime.session", "type": "realtime"}
UPDATE = {"type": "session.update", "event_id": "e1", "session": {"id": "x", "audio": {"output": {"voice": "a"}}}}
SEEDS = [
    json.dumps(UPDATE).encode(),
    b't{"type":"input_audio_buffer.clear"}',
    b'{"type":"session.update","session":{"instructions":"x","type":"y"},"type":"session.update"}',
    b'{"type":"conversation.item.create","item":{"role":"system","content":[{"text":"x"}]}}',
    b'{"type":"session.update","session":{"temperature":1e999}}',
    b'{"type":"session.update","session":{"a":"\\ud800","b":' + b"9" * 400 + b"}}",
    # Nested just within what this interpreter reads, where what is done with it may go too deep.
    *(b'{"type":"session.update","session":' + b'{"a":' * n + b"1" + b"}" * n + b"}" for n in range(850, 1000, 5)),
]

if __name__ == "__main__":
    main(one_input, SEEDS)
