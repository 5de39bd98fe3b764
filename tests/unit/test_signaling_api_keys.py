"""The file of API keys."""

from __future__ import annotations

import pytest

from usher_core.errors import LocalError
from usher_core.event_policy import BROWSER, OPEN, EventPolicy
from usher_signaling.api_keys import ApiKeys, TenantLimits, hashed_line, new_api_key, parse_api_keys


def tenant_of(keys: ApiKeys, key: str) -> str | None:
    known = keys.find(key)
    return None if known is None else known.tenant


def test_named_and_unnamed_keys_comments_and_blank_lines() -> None:
    one, two, three = (f"{name}-0123456789abcdef" for name in ("one", "two", "three"))
    keys = parse_api_keys(f"# keys\n\nacme:{one}\n acme:{two} \n{three}\n")
    assert len(keys) == 3
    assert [tenant_of(keys, key) for key in (one, two, three)] == ["acme", "acme", "default"]
    assert [tenant_of(keys, key) for key in ("", one[:-1], f"{one} ", f"acme:{one}", "# keys", one.upper())] == [
        None
    ] * 6


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no key in it"),
        ("# only a comment\n", "no key in it"),
        ("ok:a-key-that-is-fine\nbad name:a-secret-of-stuff", "line 2"),
        (":a-secret-of-stuff", "line 1"),
        ("acme:", "line 1"),
        ("acme:secret stuff", "line 1"),
        ("acme:secret:stuff", "line 1"),
        ("acme:secret-stüff", "line 1"),
        ("acme:ek_a-secret-of-stuff", "ephemeral"),
        ("acme:" + "a-secret-of-stuff" * 100, "line 1"),
        ("acme:a-secret-of-stuff\nother:a-secret-of-stuff", "another name"),
        ("acme:15-chars-stuff-", "line 1.*16 characters or more"),
        ("[]", "line 1"),
        ("null", "line 1.*16 characters or more"),
        ("acme:sha256:stuff", "64 hexadecimal"),
        ("acme:md5:stuff", "no colon"),
        ("sha256:" + "ab" * 32, "a name is expected"),
        ("acme:sha256:" + "ab" * 32 + ":stuff", "64 hexadecimal"),
        ("acme:a-secret-of-stuff rate", "line 1"),
        ("acme:a-secret-of-stuff rate=0", "line 1"),
        ("acme:a-secret-of-stuff rate=-1", "line 1"),
        ("acme:a-secret-of-stuff rate=nan", "line 1"),
        ("acme:a-secret-of-stuff calls=0", "line 1"),
        ("acme:a-secret-of-stuff calls=1.5", "line 1"),
        ("acme:a-secret-of-stuff calls=1\nacme:more-secret-stuff calls=2", "another calls="),
        ("acme:a-secret-of-stuff policy=stuff", "policy=browser, or names"),
        ("acme:a-secret-of-stuff allow=session.updated,stuff", "line 1.*names between commas"),
        ("acme:a-secret-of-stuff deny=stuff", "session.update"),
        ("acme:a-secret-of-stuff private=stuff", "private= of instructions"),
        ("acme:a-secret-of-stuff private=tools private=prompt", "line 1"),
        ("acme:a-secret-of-stuff\nacme:a-secret-of-stuff policy=browser", "line 2.*another policy"),
    ],
)
def test_a_wrong_line_is_named_and_never_quoted(text: str, complaint: str) -> None:
    with pytest.raises(LocalError, match=complaint) as caught:
        parse_api_keys(text)
    assert "stuff" not in str(caught.value)


def test_no_key_is_kept_in_memory() -> None:
    keys = parse_api_keys("acme:very-secret-0123456789")
    assert b"very-secret-0123456789" not in repr(vars(keys)).encode()
    assert "very-secret-0123456789" not in repr(keys)


def test_a_hashed_key_is_known_by_the_key_and_not_by_its_hash() -> None:
    key = new_api_key()
    line = hashed_line("acme", key)
    keys = parse_api_keys(f"{line}\nother:plain-key-0123456789\n{line.upper().replace('ACME:SHA256', 'acme:sha256')}\n")
    assert key not in line
    assert len(keys) == 2
    assert [tenant_of(keys, text) for text in (key, "plain-key-0123456789")] == ["acme", "other"]
    digest = line.rpartition(":")[2]
    assert [tenant_of(keys, text) for text in (line, digest, f"sha256:{digest}", key[:-1], key.upper())] == [None] * 5


def test_a_key_in_both_forms_has_one_name() -> None:
    line = hashed_line("acme", "one-key-0123456789")
    assert len(parse_api_keys(f"acme:one-key-0123456789\n{line}\n")) == 1
    with pytest.raises(LocalError, match=r"line 2.*another name"):
        parse_api_keys(f"other:one-key-0123456789\n{line}\n")


def test_new_keys_are_256_bits_that_never_repeat() -> None:
    made = {new_api_key() for _ in range(100)}
    assert len(made) == 100
    assert all(key.startswith("usk_") and len(key) == 4 + 43 for key in made)
    parse_api_keys("\n".join(made))


def test_limits_stand_after_a_key_and_belong_to_its_name() -> None:
    keys = parse_api_keys(
        "acme:one-0123456789abcdef rate=2.5\nacme:two-0123456789abcdef calls=7\n"
        "free:three-0123456789abcdef rate=none calls=none\nplain:four-0123456789abcdef\n"
    )
    default = TenantLimits(rate=10.0, calls=20)
    assert keys.limits("acme", default) == TenantLimits(2.5, 7)
    assert keys.limits("free", default) == TenantLimits(None, None)
    assert keys.limits("plain", default) == default
    assert keys.limits("nobody", default) == default
    only_rate = parse_api_keys("acme:one-0123456789abcdef rate=1")
    assert only_rate.limits("acme", default) == TenantLimits(1.0, 20)


def test_a_policy_of_events_stands_after_a_key_and_belongs_to_that_key_alone() -> None:
    keys = parse_api_keys(
        "acme:server-0123456789abcdef\n"
        "acme:page-0123456789abcdef rate=2 policy=browser\n"
        "acme:narrow-0123456789abcdef policy=browser allow=response.*,acme.form deny=response.cancel "
        "private=model calls=3\n"
        "acme:mute-0123456789abcdef allow=none\n"
    )
    policies = {
        name: key.policy
        for name in ("server", "page", "narrow", "mute")
        if (key := keys.find(f"{name}-0123456789abcdef"))
    }
    assert policies == {
        "server": OPEN,
        "page": BROWSER,
        "narrow": EventPolicy(
            allow=("response.cancel", "response.create"),
            deny=("response.cancel",),
            private=(*BROWSER.private, "model"),
        ),
        "mute": EventPolicy(allow=()),
    }
    assert keys.limits("acme", TenantLimits()) == TenantLimits(2.0, 3)
