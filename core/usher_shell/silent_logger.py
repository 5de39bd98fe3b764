"""A logger for clients of WebSockets whose headers are secrets."""

from __future__ import annotations

import logging


def silent_logger() -> logging.Logger:
    """Return a logger that says nothing: at level debug `websockets` would log headers, and keys are among them."""
    logger = logging.getLogger("usher.websocket")
    logger.disabled = True
    return logger
