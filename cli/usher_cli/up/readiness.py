"""Whether a call placed now would succeed."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from usher_cli.up.members import Member, Members
from usher_cli.up.places import Places
from usher_core.errors import LocalError

INTERVAL_S = 0.05
LIMIT_S = 30.0


async def wait_until_calls_succeed(members: Members, places: Places) -> None:
    """Return when signaling says that it can place a call and every relay says that it forwards to every transceiver
    of its own cluster and has heard the relays of all others.

    Raises LocalError with the last answers after 30 s.
    """
    missing: list[str] = []
    try:
        async with asyncio.timeout(LIMIT_S), httpx.AsyncClient(timeout=2.0, trust_env=False) as client:
            while True:
                missing = await _missing(client, members, places)
                if not missing:
                    return
                await asyncio.sleep(INTERVAL_S)
    except TimeoutError:
        raise LocalError(f"not ready after {LIMIT_S:.0f} s: {'; '.join(missing)}", "the log above says more") from None


async def _missing(client: httpx.AsyncClient, members: Members, places: Places) -> list[str]:
    """Return in words what is still missing."""
    missing: list[str] = []
    for member in [*members.of("signaling"), *members.of("relay")]:
        base = member.facts.get("admin", member.facts.get("http"))
        try:
            answer = await client.get(f"{base}/readyz")
            if not answer.is_success:
                missing.append(f"{member.name} says {answer.status_code} {answer.text[:200].strip()}")
            elif member in members.of("signaling"):
                # It is ready, too, while nobody takes calls.
                missing += [f"{member.name} says: {why}"] if (why := answer.json()["why_no_call"]) else []
            else:
                routes = await client.get(f"{base}/routes", params={"limit": 1000})
                missing += (
                    _unknown(member, routes, members, places) if routes.is_success else [f"{member.name}: no routes"]
                )
        except httpx.HTTPError as error:
            missing.append(f"{member.name} does not answer: {error!r}")
    return missing


def _unknown(relay: Member, answer: httpx.Response, members: Members, places: Places) -> list[str]:
    """Return in words what a relay does not know yet."""
    body: dict[str, Any] = answer.json()
    routes = {str(entry["route"]) for entry in body["routes"]}
    wanted = {str(each.route) for each in members.transceivers() if each.cluster == relay.region}
    heard = {str(peer["address"]) for peer in body.get("peers", []) if peer["rtt_ms"] is not None}
    peers = {address for addresses in places.peers(relay.region).values() for address in addresses}
    return [
        *(f"{relay.name} has no route to {route}" for route in sorted(wanted - routes)),
        *(f"{relay.name} has not heard the relay behind {peer}" for peer in sorted(peers - heard)),
    ]
