"""Where log lines have colours, and whose are not logged."""

import json
import os
import pty
import subprocess
import sys

import pytest

from usher_core.logs import is_coloured

SAYS_ONE_LINE = (
    "from usher_core import logs; import structlog; logs.configure('{}', 'info'); structlog.get_logger().info('hello')"
)
ESCAPE = b"\x1b["


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize(
    "no_color, force_color, coloured",
    [
        (None, None, None),
        ("", "", None),
        ("1", None, False),
        ("0", None, False),
        (None, "1", True),
        (None, "0", True),
        ("", "1", True),
        ("1", "1", False),
    ],
)
def test_no_color_wins_then_force_color_then_what_stderr_is(
    terminal: bool, no_color: str | None, force_color: str | None, coloured: bool | None
) -> None:
    given = {"NO_COLOR": no_color, "FORCE_COLOR": force_color}
    environment = {name: value for name, value in given.items() if value is not None}
    assert is_coloured(environment, is_terminal=terminal) is (terminal if coloured is None else coloured)


@pytest.mark.parametrize("log_format, coloured", [("console", True), ("json", False)])
def test_lines_have_colours_in_a_terminal_where_people_read_them(log_format: str, coloured: bool) -> None:
    assert (ESCAPE in said_in_a_terminal(log_format)) is coloured
    assert ESCAPE not in said_in_a_terminal(log_format, NO_COLOR="1")


def said_in_a_terminal(log_format: str, **more: str) -> bytes:
    """What a program logs whose stderr is a pseudo terminal."""
    ours, its = pty.openpty()
    try:
        plain = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "FORCE_COLOR"}}
        command = [sys.executable, "-c", SAYS_ONE_LINE.format(log_format)]
        subprocess.run(command, stderr=its, env=plain | more, timeout=30, check=True)
        said = os.read(ours, 4096)
    finally:
        os.close(ours)
        os.close(its)
    assert b"hello" in said
    return said


SPEAK_TO_OTHERS = ("aiohttp.client", "httpcore.http11", "httpx", "redis.asyncio.connection", "urllib3.connectionpool")
LOGGERS_AT_DEBUG = (
    "from usher_core import logs; import json, logging, sys; logs.configure('json', 'debug'); "
    "print(json.dumps({name: logging.getLogger(name).isEnabledFor(logging.DEBUG) for name in sys.argv[1:]}))"
)


def test_at_level_debug_libraries_that_speak_to_others_do_not_log_what_they_say() -> None:
    names = (*SPEAK_TO_OTHERS, "kubernetes.aio.client", "websockets.client", "usher_signaling.app", "my_backend")
    command = [sys.executable, "-c", LOGGERS_AT_DEBUG, *names]
    told = json.loads(subprocess.run(command, capture_output=True, timeout=30, check=True).stdout)
    assert {name for name, is_logged in told.items() if is_logged} == {"usher_signaling.app", "my_backend"}
