import os
from pathlib import Path

import pytest

from usher_cli.output_file import check_output_file
from usher_core.errors import LocalError


def test_a_regular_file_and_an_absent_one_are_right_and_stay_as_they_are(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_text("old")
    check_output_file("--record", there)
    check_output_file("--record", tmp_path / "absent")
    assert there.read_text() == "old"
    assert list(tmp_path.iterdir()) == [there]


def test_what_is_no_regular_file_is_refused_also_behind_a_link(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    link = tmp_path / "link"
    link.symlink_to(fifo)
    for path, said in ((fifo, "no regular file"), (link, "no regular file"), (tmp_path, "a directory")):
        with pytest.raises(LocalError, match=f"--state-file {path}: this is {said}"):
            check_output_file("--state-file", path)


@pytest.mark.parametrize("path", ["absent/file", "file/file", "x" * 300])
def test_a_place_where_no_file_can_be_is_refused(path: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalError, match="--record"):
        check_output_file("--record", tmp_path / path)


def test_a_directory_that_we_may_not_write_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)  # root may write anywhere
    with pytest.raises(LocalError, match="we may not write there"):
        check_output_file("--record", tmp_path / "file")
