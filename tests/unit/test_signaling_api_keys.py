"""The file of API keys."""

from __future__ import annotations

import pytest

from usher_core.errors import LocalError
from usher_signaling.api_keys import parse_api_keys


def test_named_and_unnamed_keys_comments_and_blank_lines() -> None:
    keys = parse_api_keys("# keys\n\nacme:one\n acme:two \nthree\n")
    assert len(keys) == 3
    assert [keys.tenant(key) for key in ("one", "two", "three")] == ["acme", "acme", "default"]
    assert [keys.tenant(key) for key in ("", "on", "one ", "acme:one", "# keys", "ONE")] == [None] * 6


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no key in it"),
        ("# only a comment\n", "no key in it"),
        ("ok:fine\nbad name:secret-stuff", "line 2"),
        (":secret-stuff", "line 1"),
        ("acme:", "line 1"),
        ("acme:secret stuff", "line 1"),
        ("acme:secret:stuff", "line 1"),
        ("acme:secret-stüff", "line 1"),
        ("acme:ek_secret-stuff", "ephemeral"),
        ("acme:" + "secret-stuff" * 100, "line 1"),
        ("acme:secret-stuff\nother:secret-stuff", "another name"),
    ],
)
def test_a_wrong_line_is_named_and_never_quoted(text: str, complaint: str) -> None:
    with pytest.raises(LocalError, match=complaint) as caught:
        parse_api_keys(text)
    assert "stuff" not in str(caught.value)


def test_no_key_is_kept_in_memory() -> None:
    keys = parse_api_keys("acme:very-secret")
    assert b"very-secret" not in repr(vars(keys)).encode()
    assert "very-secret" not in repr(keys)
