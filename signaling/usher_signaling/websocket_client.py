"""WebSockets that we open: to the owner of a call, or to the signaling of its region."""

from __future__ import annotations

from typing import Any

from websockets.asyncio.client import connect

from usher_shell.silent_logger import silent_logger


class connect_directly(connect):  # noqa: N801 - as the one that it replaces
    """`websockets.connect` that follows no redirect and logs nothing.

    What we send proves who we are: it is for nobody else, and for no log.
    """

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, logger=silent_logger(), **options)

    def process_redirect(self, exc: Exception) -> Exception:
        """Take a redirect for any other refusal."""
        return exc
