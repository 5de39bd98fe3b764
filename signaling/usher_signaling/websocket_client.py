"""WebSockets that we open: to the owner of a call, or to the signaling of its region."""

from __future__ import annotations

from websockets.asyncio.client import connect


class connect_directly(connect):  # noqa: N801 - as the one that it replaces
    """`websockets.connect` that follows no redirect: what we send proves who we are, and is for nobody else."""

    def process_redirect(self, exc: Exception) -> Exception:
        """Take a redirect for any other refusal."""
        return exc
