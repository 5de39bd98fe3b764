"""What of a Realtime server's `error` events no client may see: keys that the server quotes.

Rules:
* A secret is a value of a header or of the address's query, the address itself, and each part of one that a server may
  take for the key: `Token KEY`, `key=KEY, org=1`. What is shorter than 8 characters is none.
* Headers and query fields that name a model or a version are public: without them an error would tell nothing.
* A field is shown as it is or not at all: what is left around a key could tell where it ended.
* What is too long or too deep to be looked through is not shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import parse_qsl, urlsplit

from usher_core.json_values import is_deeper, write_json
from usher_transceiver.backends.protocol import Event

MIN_SECRET = 8
"""Characters. What is shorter is no secret, and stands in many a text."""
MAX_SHOWN = 16_384
"""Characters of all texts in a field that is looked through."""
MAX_NESTING = 32
NOT_SHOWN = "not shown"
PUBLIC_HEADERS = frozenset({"openai-beta"})
PUBLIC_FIELDS = frozenset({"model", "deployment", "api-version"})
_BETWEEN_PARTS = re.compile(r"""[\s,;:=&"'`\\<>()\[\]{}]+""")
_BETWEEN_FIELDS = re.compile(r"[\s,;]+")


def secrets_of(url: str, headers: Mapping[str, str]) -> tuple[str, ...]:
    """Return the texts that no client may see."""
    found = {url}
    for name, value in headers.items():
        if name.lower() not in PUBLIC_HEADERS:
            found |= _parts(value)
    query = urlsplit(url).query
    for name, value in [*_as_written(query), *parse_qsl(query, keep_blank_values=True)]:
        if name.lower() not in PUBLIC_FIELDS:
            found |= _parts(value)
    return tuple(sorted(text for text in found if len(text) >= MIN_SECRET))


def without_secrets(event: Event, text: str, secrets: Sequence[str]) -> tuple[Event, str]:
    """Return an error event, and its JSON, without the fields of it and of its `error` that quote a secret.

    `text` is the JSON that `event` was read from; it is returned as it is when it holds nothing to hide.
    """
    if not secrets:
        return event, text
    error = event.get("error")
    if isinstance(error, dict):
        shown = _masked({**event, "error": None}, secrets) | {"error": _masked(error, secrets)}
    else:
        shown = _masked(event, secrets)
    # Of a field given twice the event has only one, and the text both; `\u` may hide a secret from the search.
    if shown == event and "\\u" not in text and not _quotes_one(text, secrets):
        return event, text
    return shown, write_json(shown)


def _parts(value: str) -> set[str]:
    """Return a value, what follows its first word (the scheme of an Authorization), its fields and their parts."""
    fields = _BETWEEN_FIELDS.split(value)
    after_names = [field.partition("=")[2] for field in fields]
    return {value, value.partition(" ")[2].strip(), *fields, *after_names, *_BETWEEN_PARTS.split(value)}


def _as_written(query: str) -> list[tuple[str, str]]:
    pairs = [pair.partition("=") for pair in query.split("&")]
    return [(name, value) if equals else ("", name) for name, equals, value in pairs]


def _masked(fields: Event, secrets: Sequence[str]) -> Event:
    return {
        name: NOT_SHOWN if _holds_one(value, secrets) else value
        for name, value in fields.items()
        if not _holds_one(name, secrets)
    }


def _holds_one(value: object, secrets: Sequence[str]) -> bool:
    if is_deeper(value, MAX_NESTING):
        return True
    left = MAX_SHOWN
    for text in _texts(value):
        left -= len(text)
        if left < 0 or _quotes_one(text, secrets):
            return True
    return False


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, int | float):
        yield repr(value)  # a key may be digits alone


def _quotes_one(text: str, secrets: Sequence[str]) -> bool:
    return any(secret in text for secret in secrets)
