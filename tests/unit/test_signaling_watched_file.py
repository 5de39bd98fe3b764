"""Files that are read again: what is kept when they go wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from usher_core.errors import LocalError
from usher_signaling.watched_file import WatchedFile


def parse(text: str) -> int:
    if not text.strip().isdigit():
        raise LocalError("a number is expected")
    return int(text)


def test_a_new_content_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("1")
    file = WatchedFile(path, parse)
    assert (file.value, file.refresh()) == (1, False)
    path.write_text("22")
    assert (file.refresh(), file.value) == (True, 22)
    assert file.refresh() is False


def test_a_swapped_symbolic_link_of_the_same_size_and_age_is_noticed(tmp_path: Path) -> None:
    import os

    for name, text in (("one", "1"), ("two", "2")):
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (1, 1))
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "one")
    file = WatchedFile(link, parse)
    link.unlink()
    link.symlink_to(tmp_path / "two")
    assert file.refresh()
    assert file.value == 2


def test_the_last_good_content_stays_while_the_file_is_wrong_or_missing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("1")
    file = WatchedFile(path, parse)
    assert not file.is_wrong
    path.write_text("not yet a number")
    assert (file.refresh(), file.value) == (False, 1)
    assert file.is_wrong
    path.unlink()
    assert (file.refresh(), file.value) == (False, 1)
    path.write_bytes(b"\xff\xfe")
    assert (file.refresh(), file.value) == (False, 1)
    path.write_text("333")
    assert (file.refresh(), file.value) == (True, 333)
    assert not file.is_wrong


def test_a_file_that_comes_back_as_it_was_is_right_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("1")
    file = WatchedFile(path, parse)
    path.rename(tmp_path / "away")
    assert (file.refresh(), file.is_wrong) == (False, True)
    (tmp_path / "away").rename(path)
    assert (file.refresh(), file.is_wrong, file.value) == (True, False, 1)


def test_a_missing_or_wrong_file_is_an_error_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(LocalError, match="can't read"):
        WatchedFile(path, parse)
    path.write_text("x")
    with pytest.raises(LocalError, match="a number"):
        WatchedFile(path, parse, missing=0)


def test_a_file_that_may_come_later_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = WatchedFile(path, parse, missing=0)
    assert (file.refresh(), file.value) == (False, 0)
    path.write_text("5")
    assert (file.refresh(), file.value) == (True, 5)
