"""The key files of signaling: what a new content of them changes, and that a wrong one leaves the last good keys."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from usher_core.errors import LocalError, RemoteError
from usher_signaling.seal_keys import SealKeys

NOW = 1000.0


def key(number: int, fill: int, **changes: Any) -> dict[str, Any]:
    return {"id": number, "key": base64.b64encode(bytes([fill]) * 32).decode(), **changes}


def write(path: Path, *keys: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"version": 1, "seal": keys}))
    return path


def look(keys: SealKeys) -> None:
    for file in keys.files:
        _ = file.look()


def sealed(path: Path) -> str:
    return SealKeys(path, (), lambda: NOW)().seal("rtc_", b"call", bytes(12), NOW)


def opens(keys: SealKeys, text: str) -> bool:
    try:
        return keys().open("rtc_", text) == b"call"
    except RemoteError:
        return False


WRONG_FILES = [
    pytest.param([key(1, 1), key(1, 2)], id="two live keys with one id"),
    pytest.param([key(1, 1), key(1, 2, state="accepted")], id="one of them accepted"),
    pytest.param([], id="no key"),
    pytest.param([key(1, 1, state="accepted")], id="none active"),
    pytest.param([key(1, 1, not_before=2000)], id="none active yet"),
]


@pytest.mark.parametrize("wrong", WRONG_FILES)
def test_a_wrong_file_of_our_own_is_refused_at_the_start(tmp_path: Path, wrong: list[dict[str, Any]]) -> None:
    with pytest.raises(LocalError):
        _ = SealKeys(write(tmp_path / "own", *wrong), (), lambda: NOW)


@pytest.mark.parametrize("wrong", WRONG_FILES)
def test_after_a_wrong_file_of_our_own_the_last_good_keys_stay_in_use(
    tmp_path: Path, wrong: list[dict[str, Any]]
) -> None:
    own = write(tmp_path / "own", key(7, 7))
    keys = SealKeys(own, (), lambda: NOW)
    text = sealed(own)
    look(keys)
    _ = write(own, *wrong)
    look(keys)
    assert keys.files[0].is_wrong
    assert opens(keys, text)
    assert keys().seal("rtc_", b"call", bytes(12), NOW) == text


def test_a_retired_key_shares_its_id_with_a_live_one(tmp_path: Path) -> None:
    own = write(tmp_path / "own", key(1, 1, state="retired"), key(1, 2))
    keys = SealKeys(own, (), lambda: NOW)
    assert opens(keys, sealed(own))


@pytest.mark.parametrize(("state", "opened"), [("active", True), ("accepted", True), ("retired", False)])
def test_a_key_of_another_region_opens_until_it_is_retired(tmp_path: Path, state: str, opened: bool) -> None:
    theirs = write(tmp_path / "theirs", key(1, 2))
    text = sealed(theirs)
    keys = SealKeys(write(tmp_path / "own", key(1, 1)), (theirs,), lambda: NOW)
    assert opens(keys, text)
    _ = write(theirs, key(1, 2, state=state), key(2, 3))
    look(keys)
    assert opens(keys, text) is opened
