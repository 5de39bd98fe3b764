"""Whether a call placed now would succeed."""

from __future__ import annotations

import asyncio

import httpx
import structlog

from usher_cli.up.members import Members
from usher_core.errors import LocalError

INTERVAL_S = 0.05
LIMIT_S = 30.0

_log = structlog.get_logger()


async def wait_until_calls_succeed(members: Members) -> None:
    """Return when signaling says that it can place calls and every relay says that it forwards.

    Raises LocalError with the last answers after 30 s.
    """
    answers: list[str] = []
    try:
        async with asyncio.timeout(LIMIT_S), httpx.AsyncClient(timeout=2.0) as client:
            while True:
                urls = [relay.fact("admin") for relay in members.of("relay")]
                urls += [signaling.fact("http") for signaling in members.of("signaling")]
                answers = [answer for url in urls if (answer := await _problem(client, f"{url}/readyz"))]
                if not answers:
                    return
                await asyncio.sleep(INTERVAL_S)
    except TimeoutError:
        raise LocalError(f"not ready after {LIMIT_S:.0f} s: {'; '.join(answers)}", "the log above says more") from None


async def _problem(client: httpx.AsyncClient, url: str) -> str:
    try:
        answer = await client.get(url)
    except httpx.HTTPError as error:
        return f"{url}: {error!r}"
    return "" if answer.is_success else f"{url}: {answer.status_code} {answer.text[:200]}"
