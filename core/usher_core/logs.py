"""Set-up of the log: structlog on stderr, JSON in a cluster and plain lines elsewhere."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from typing import Literal, Protocol

import structlog

CHATTY = ("httpx", "httpcore", "uvicorn.access")
TALKERS = ("aiohttp", "kubernetes", "opentelemetry", "push_response", "redis", "urllib3", "websockets")
"""Libraries that speak to others. At level debug they may log headers, URLs and messages, and secrets are among them:
what to look into at that level are our own lines, and those of a backend."""


class Stream(Protocol):
    """What a log is written to."""

    def write(self, text: str, /) -> int:
        """Write some text."""

    def flush(self) -> None:
        """Let it go."""


def is_coloured(environment: Mapping[str, str], *, is_terminal: bool) -> bool:
    """Tell whether lines have colours: in a terminal but with NO_COLOR (no-color.org), elsewhere with FORCE_COLOR.

    A variable counts when it is not empty, whatever it says; NO_COLOR wins (force-color.org).
    """
    return not environment.get("NO_COLOR") and bool(environment.get("FORCE_COLOR") or is_terminal)


def configure(log_format: Literal["console", "json"], level: str, stream: Stream = sys.stderr) -> None:
    """Send the log of usher and of its libraries to a stream. Called once, by the program's `run`."""
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info if log_format == "json" else _unchanged,
    ]
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        # Not the default: with `rich` installed that prints local variables, and keys are among them.
        else structlog.dev.ConsoleRenderer(
            colors=is_coloured(os.environ, is_terminal=sys.stderr.isatty()),
            exception_formatter=structlog.dev.plain_traceback,
        )
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Each request of a probe would be a line.
    for chatty in CHATTY:
        logging.getLogger(chatty).setLevel(logging.WARNING)
    for talker in TALKERS:
        logging.getLogger(talker).setLevel(max(root.level, logging.INFO))


def _unchanged(
    _logger: structlog.types.WrappedLogger, _name: str, event: structlog.types.EventDict
) -> structlog.types.EventDict:
    return event
