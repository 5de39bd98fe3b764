"""The log of `usher up` never waits for whoever reads it."""

from __future__ import annotations

import contextlib
import io
import os
import time

from usher_cli.up.log_writer import MAX_WAITING, LogWriter


class Unclosed(io.BytesIO):
    """A stream that can still be looked at."""

    def close(self) -> None:
        """Stay open."""


def test_lines_stand_behind_the_name_of_their_program_and_own_text_as_it_is() -> None:
    stream = Unclosed()
    log = LogWriter(stream)
    log.write_line("relay-1", b"ready\r\n")
    log.write("own line\n")
    log.close()
    assert stream.getvalue() == b"relay-1 | ready\nown line\n"


def test_a_reader_that_stopped_costs_lines_and_no_time() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as stream:
        log = LogWriter(stream)
        began = time.monotonic()
        for _ in range(MAX_WAITING + 5000):
            log.write_line("relay-1", b"x" * 200)
        assert time.monotonic() - began < 5
        began = time.monotonic()
        log.close()
        assert time.monotonic() - began < 2
        # Let the thread go, so that the stream can be closed.
        os.set_blocking(reading, False)
        deadline = time.monotonic() + 10
        while log.is_writing and time.monotonic() < deadline:
            with contextlib.suppress(BlockingIOError):
                os.read(reading, 1 << 20)
        assert not log.is_writing
    os.close(reading)


def test_a_reader_that_went_away_ends_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb", buffering=0) as stream:
        log = LogWriter(stream)
        log.write_line("relay-1", b"line")
        log.write_line("relay-1", b"line")
        log.close()
        assert not log.is_writing
