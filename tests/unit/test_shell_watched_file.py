"""A file that is read again when it changes; what was good stays."""

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from usher_core.errors import LocalError
from usher_shell.watched_file import MAX_BYTES, WatchedFile


def parse(text: str) -> int:
    if not text.isdigit():
        raise LocalError(f"{text!r} is no number", "write one")
    return int(text)


NOTHING = -1


class Watch:
    """A file, and all its contents that were new at a look."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.got: list[int] = []
        self._file: WatchedFile[int] | None = None

    @property
    def file(self) -> WatchedFile[int]:
        assert self._file is not None
        return self._file

    def look(self) -> list[int]:
        if self._file is None:
            self._file = WatchedFile(self.path, parse, "test file", until_there=NOTHING)
            if self._file.value != NOTHING:
                self.got.append(self._file.value)
        elif self._file.look():
            self.got.append(self._file.value)
        return self.got

    def write(self, text: str, *, settled: bool = True) -> None:
        self.path.write_text(text)
        if settled:
            self.age()

    def age(self) -> None:
        """Make the file look as if it had been written a while ago."""
        stat = self.path.stat()
        os.utime(self.path, ns=(stat.st_atime_ns, stat.st_mtime_ns - 5_000_000_000))


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch(tmp_path / "file")


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as captured:
        yield captured


def test_new_content_is_given_once(watch: Watch) -> None:
    watch.write("1")
    assert watch.look() == [1]
    assert watch.look() == [1]
    watch.write("22")
    assert watch.look() == [1, 22]


def test_content_of_the_same_length_is_new_content(watch: Watch) -> None:
    watch.write("1", settled=False)
    watch.look()
    watch.write("2", settled=False)
    assert watch.look() == [1, 2]


def test_a_change_within_the_resolution_of_file_times_is_seen(watch: Watch) -> None:
    watch.write("1", settled=False)
    before = watch.path.stat()
    watch.look()
    watch.write("2", settled=False)
    os.utime(watch.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert watch.look() == [1, 2]


def test_a_file_renamed_into_place_is_seen(watch: Watch) -> None:
    watch.write("1")
    watch.look()
    other = watch.path.with_name("new")
    other.write_text("2")
    other.replace(watch.path)
    assert watch.look() == [1, 2]


def test_a_swapped_symbolic_link_is_seen(tmp_path: Path) -> None:
    # Kubernetes updates a mounted ConfigMap so.
    for name, text in (("old", "1"), ("new", "2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(text)
    (tmp_path / "data").symlink_to("old")
    watch = Watch(tmp_path / "data" / "file")
    watch.look()
    (tmp_path / "next").symlink_to("new")
    (tmp_path / "next").replace(tmp_path / "data")
    assert watch.look() == [1, 2]


def test_what_was_good_stays_when_the_file_is_lost_and_its_age_grows(watch: Watch, lines: list[Any]) -> None:
    watch.write("1")
    watch.look()
    watch.path.unlink()
    for _ in range(3):
        watch.look()
    status = watch.file.status()
    assert status.loaded
    assert "No such file" in status.fault
    assert status.age is not None
    time.sleep(0.02)
    later = watch.file.status().age
    assert later is not None
    assert later > status.age
    assert [line["event"] for line in lines] == ["file read", "file lost"], "one line per change of state"
    watch.write("1")
    watch.look()
    assert watch.file.status().fault == ""
    assert [line["event"] for line in lines] == ["file read", "file lost", "file read"]


def test_what_was_good_stays_when_the_file_is_broken(watch: Watch, lines: list[Any]) -> None:
    watch.write("1")
    watch.look()
    watch.write("half a")
    assert watch.look() == [1]
    assert watch.look() == [1]
    assert watch.file.status().fault == f"{watch.path}: 'half a' is no number; write one"
    watch.write("3")
    assert watch.look() == [1, 3]
    assert [line["event"] for line in lines] == ["file read", "file lost", "file read"]


def test_a_file_that_is_no_text_is_broken(watch: Watch) -> None:
    watch.path.write_bytes(b"\xff\xfe")
    assert watch.look() == []
    assert "UTF-8" in watch.file.status().fault


def test_a_file_that_comes_back_as_it_was_is_right_again(watch: Watch) -> None:
    watch.write("1")
    watch.look()
    away = watch.path.with_name("away")
    watch.path.rename(away)
    watch.look()
    assert watch.file.is_wrong
    away.rename(watch.path)
    assert watch.look() == [1], "nothing new"
    assert not watch.file.is_wrong


def test_a_broken_file_stays_broken_until_it_changes(watch: Watch) -> None:
    watch.write("1")
    watch.look()
    watch.write("x")
    for _ in range(3):
        watch.look()
        assert watch.file.is_wrong
    assert watch.file.value == 1


def test_a_missing_or_wrong_file_is_an_error_at_the_start_unless_it_may_come_later(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(LocalError, match=r"test file .* can't be read: No such file"):
        WatchedFile(path, parse, "test file")
    path.write_text("x")
    with pytest.raises(LocalError, match=f"^{re.escape(str(path))}: 'x' is no number; write one$"):
        WatchedFile(path, parse, "test file")
    assert WatchedFile(path, parse, "test file", until_there=0).value == 0


def test_a_file_beyond_the_size_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as sparse:
        sparse.truncate(MAX_BYTES + 1)
    with pytest.raises(LocalError, match="more than"):
        WatchedFile(path, parse, "test file")


@pytest.mark.parametrize(("make", "kind"), [(os.mkfifo, "a pipe"), (os.mkdir, "a directory")])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, make: Callable[[Path], None], kind: str) -> None:
    make(tmp_path / "file")
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        with pytest.raises(LocalError, match=f"{name} is {kind}, and has to be a regular file"):
            WatchedFile(tmp_path / name, parse, "test file")


def test_a_pipe_that_takes_the_files_place_leaves_what_was_good(watch: Watch, lines: list[Any]) -> None:
    watch.write("1")
    watch.look()
    watch.path.unlink()
    os.mkfifo(watch.path)
    watch.look()
    watch.look()
    assert watch.file.is_wrong
    assert watch.file.value == 1
    assert [line["event"] for line in lines].count("file lost") == 1
    watch.path.unlink()
    watch.write("2")
    assert watch.look() == [1, 2]


def test_a_secret_as_kubernetes_mounts_it_is_read_and_followed(tmp_path: Path) -> None:
    # file → ..data/file, ..data → ..version; an update renames another link over ..data.
    for number in ("1", "2"):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}" / "file").write_text(number)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "file").symlink_to("..data/file")
    watched = WatchedFile(tmp_path / "file", parse, "test file")
    assert watched.value == 1
    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    assert watched.look()
    assert watched.value == 2


def test_a_file_that_never_was_is_waited_for(watch: Watch, lines: list[Any]) -> None:
    watch.look()
    status = watch.file.status()
    assert (status.loaded, status.age) == (False, None)
    assert lines[0]["now"] == "waiting for it"
    watch.write("1")
    assert watch.look() == [1]
    assert watch.file.status().age == pytest.approx(0, abs=1)
