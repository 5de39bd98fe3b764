"""Which texts of a Realtime server's errors are secrets, and what is left of an error that quotes one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from usher_core.json_values import read_json
from usher_transceiver.backends.realtime.masking import secrets_of, without_secrets

URL = "wss://model.example/v1/realtime"
KEY = "sk-live-0123456789abcdef"
GIVEN: dict[str, tuple[str, dict[str, str]]] = {
    "bearer": (URL, {"Authorization": f"Bearer {KEY}"}),
    "lower case": (URL, {"authorization": f"bearer {KEY}"}),
    "another scheme": (URL, {"Authorization": f"Token {KEY}"}),
    "two blanks": (URL, {"Authorization": f"Token  {KEY} "}),
    "a header alone": (URL, {"api-key": KEY}),
    "fields": (URL, {"X-Auth": f"key={KEY}, org=1"}),
    "fields without blanks": (URL, {"X-Auth": f"org=1;key={KEY};x"}),
    "quoted": (URL, {"X-Auth": f'key="{KEY}"'}),
    "an id before it": (URL, {"X-Auth": f"me:{KEY}"}),
    "query": (f"{URL}?model=m&api_key={KEY}", {}),
    "query without a name": (f"{URL}?{KEY}", {}),
    "escaped query": (f"{URL}?api_key={KEY.replace('-', '%2D')}&x", {}),
}


def shown(error: Any, secrets: tuple[str, ...], text: str | None = None) -> tuple[dict[str, Any], str]:
    event = {"type": "error", "error": error}
    masked, written = without_secrets(event, json.dumps(event) if text is None else text, secrets)
    assert read_json(written) == masked
    return masked, written


QUOTES: dict[str, Any] = {
    "in a sentence": {"message": f"Incorrect API key provided: {KEY}."},
    "within a word": {"message": f"x{KEY}x"},
    "in a list": {"param": [1, {"key": KEY}]},
    "as a name": {"param": {KEY: 1}},
    "as the name of a field": {KEY: 1},
    "in JSON in a text": {"message": json.dumps({"headers": {"Authorization": f'Token "{KEY}"'}})},
    "behind much else": {"message": "x" * 100_000 + KEY},
    "deep inside": {"param": json.loads("[" * 200 + f'"{KEY}"' + "]" * 200)},
    "as the error itself": KEY,
}


@pytest.mark.parametrize("quote", QUOTES.values(), ids=QUOTES)
@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_a_key_reaches_no_client_however_it_is_given_and_quoted(given: tuple[str, dict[str, str]], quote: Any) -> None:
    event, text = shown(quote, secrets_of(*given))
    assert event["type"] == "error"
    assert KEY not in text


def test_other_fields_of_the_event_are_looked_through_as_well() -> None:
    event = {"type": "error", "message": f"wrong: {KEY}", "error": {"code": "x"}}
    masked, _ = without_secrets(event, json.dumps(event), (KEY,))
    assert masked == {"type": "error", "message": "not shown", "error": {"code": "x"}}


def test_what_only_the_text_holds_is_not_passed_either() -> None:
    escaped = KEY.replace("-", "\\u002d")
    for hidden in (KEY, escaped):
        text = f'{{"type": "error", "error": {{"message": "{hidden}", "message": "y"}}}}'
        assert shown({"message": "y"}, (KEY,), text)[1] == '{"type":"error","error":{"message":"y"}}'


def test_models_and_versions_may_be_told() -> None:
    secrets = secrets_of(
        f"{URL}?api-version=2025-04-01-preview&deployment=my-realtime&model=gpt-realtime-mini",
        {"OpenAI-Beta": "realtime=v1", "Authorization": f"Bearer {KEY}"},
    )
    error = {"message": "gpt-realtime-mini is no model of my-realtime in 2025-04-01-preview, realtime=v1"}
    plain = json.dumps({"type": "error", "error": error}, indent=1)
    assert shown(error, secrets, plain)[1] == plain, "as it was written"


def test_what_is_short_is_no_secret() -> None:
    assert secrets_of("ws://h", {"X": "short=1, 1234567"}) == ("short=1, 1234567",)


SEPARATORS = " ,;=:&\"'"
PARTS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters="\\`<>()[]{}#%+" + SEPARATORS))
AROUND = st.text(max_size=5)


@given(
    parts=st.lists(st.one_of(PARTS, PARTS.map(lambda part: part * 8)), min_size=1, max_size=4),
    separators=st.lists(st.text(st.sampled_from(SEPARATORS), min_size=1, max_size=2), min_size=3, max_size=3),
    in_query=st.booleans(),
    before=AROUND,
    after=AROUND,
)
@example(["a" * 8], [" "] * 3, False, "", "")
def test_no_part_of_a_secret_comes_through_whatever_the_quote_around_it(
    parts: list[str], separators: list[str], in_query: bool, before: str, after: str
) -> None:
    if in_query:
        separators = [between.replace("&", ",") for between in separators]
    value = parts[0] + "".join(between + part for between, part in zip(separators, parts[1:], strict=False))
    given = (f"{URL}?key={value}", {}) if in_query else (URL, {"X-Auth": value})
    secrets = secrets_of(*given)
    long = [part for part in (value, *parts) if len(part) >= 8]
    for part in long:
        quoted = f"{before}{part}{after}"
        for error in ({"message": quoted}, {"param": [{quoted: None}]}, {quoted: "x"}, quoted):
            event, _ = shown(error, secrets)
            assert part not in json.dumps(event, ensure_ascii=False).replace('\\"', '"').replace("\\\\", "\\")
