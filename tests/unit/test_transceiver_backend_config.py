"""The file of --backend-config-file: a JSON object in a regular file, or one line of error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from usher_core.errors import LocalError
from usher_transceiver.main import _read_backend_config


def test_it_is_a_json_object(tmp_path: Path) -> None:
    (tmp_path / "file").write_text('{"voice": "é"}')
    assert _read_backend_config(tmp_path / "file") == {"voice": "é"}
    assert _read_backend_config(None) == {}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "Expecting value"),
        (b"[]", "no JSON object"),
        (b"\xff", "no UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"1" * 5_000, "4300 digits"),
    ],
)
def test_what_is_none_is_said_in_one_line_with_its_path(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(LocalError, match=says) as caught:
        _read_backend_config(tmp_path / "file")
    assert str(tmp_path / "file") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_may_never_end_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(LocalError, match="has to be a regular file"):
            _read_backend_config(path)
