"""Many requests: an end under load that loses none, and replicas that share them without a store."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.signaling_fakes import (
    API_KEY,
    OFFER,
    OTHER_KEY,
    PASSWORD,
    FakeTransceiver,
    Fleet,
    assert_error,
    place,
    signaling,
    until,
    write_files,
)
from tests.signaling_program import HEADERS, program, serving, write_route

WORKERS = 16


async def test_an_end_under_load_loses_no_request(tmp_path: Path) -> None:
    """A load balancer keeps connections open, asks for readiness every 50 ms and stops sending once it is gone."""
    fakes = [FakeTransceiver(pod=pod, max_sessions=10_000, answer_delay=0.01) for pod in (1, 2)]
    write_files(tmp_path, [])
    answers: Counter[int] = Counter()
    lost: list[str] = []
    ready = asyncio.Event()

    async def work(client: httpx.AsyncClient) -> None:
        while ready.is_set():
            try:
                call = await place(client)
                answers[call.status_code] += 1
                ended = await client.post(f"{call.headers['location']}/hangup")
                answers[ended.status_code] += 1
            except httpx.HTTPError as error:
                lost.append(repr(error))
                return

    async def watch(client: httpx.AsyncClient) -> None:
        while ready.is_set():
            if (await client.get("/readyz")).status_code != 200:
                ready.clear()
            await asyncio.sleep(0.05)

    async with contextlib.AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(serving(fake)) for fake in fakes]
        write_route(tmp_path, dict(zip(urls, fakes, strict=True)))
        running = await stack.enter_async_context(program(tmp_path, "--linger", "6", "--log-level", "warning"))
        clients = [
            await stack.enter_async_context(httpx.AsyncClient(base_url=running.url, headers=HEADERS, timeout=20))
            for _ in range(WORKERS + 1)
        ]
        ready.set()
        tasks = [asyncio.create_task(work(client)) for client in clients[1:]]

        async def under_load() -> bool:
            return answers[200] >= 100

        await until(under_load, 40)
        watcher = asyncio.create_task(watch(clients[0]))
        running.process.send_signal(signal.SIGTERM)
        before = answers.total()
        await asyncio.gather(watcher, *tasks)
        assert await asyncio.wait_for(running.process.wait(), 20) == 0
    assert lost == []
    assert set(answers) == {200, 201}
    assert answers.total() > before
    assert sum(len(fake.sessions) for fake in fakes) == 0


class RoundRobin(httpx.AsyncBaseTransport):
    """A proxy that gives each request to the next replica, whatever it is about."""

    def __init__(self, replicas: list[httpx.AsyncBaseTransport]) -> None:
        self._replicas = itertools.cycle(replicas)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await next(self._replicas).handle_async_request(request)


@dataclass
class Placed:
    """A call as the test knows it: where it must be, and what names it."""

    key: str
    location: str
    tag: str
    owner: FakeTransceiver
    session_id: str


class Crowd:
    """Callers of two tenants who do all there is to do with calls, and check where each request has arrived."""

    def __init__(self, client: httpx.AsyncClient, fleet: Fleet, source: random.Random) -> None:
        self.client, self.fleet, self.random = client, fleet, source
        self.calls: list[Placed] = []
        self.done: Counter[str] = Counter()

    async def ask(self, method: str, path: str, key: str, **arguments: object) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}", **arguments.pop("headers", {})}  # type: ignore[dict-item]
        return await self.client.request(method, path, headers=headers, **arguments)  # type: ignore[arg-type]

    async def step(self) -> None:
        steps: list[Callable[[], Awaitable[None]]] = [self.place, self.place_with_secret]
        if self.calls:
            steps += [self.describe, self.trickle, self.restart, self.end, self.meddle]
        chosen = self.random.choice(steps)
        self.done[chosen.__name__] += 1
        await chosen()

    async def place(self) -> None:
        await self._place(self.random.choice((API_KEY, OTHER_KEY)))

    async def place_with_secret(self) -> None:
        key = self.random.choice((API_KEY, OTHER_KEY))
        secret = (await self.ask("POST", "/v1/realtime/client_secrets", key)).json()["value"]
        self.done["place_with_secret"] += 1
        await self._place(key, secret)

    async def _place(self, key: str, used: str | None = None) -> None:
        known = {session_id for fake in self.fleet.transceivers for session_id in fake.sessions}
        path = self.random.choice(("/whip", "/v1/realtime/calls"))
        headers = {"Content-Type": "application/sdp"}
        call = await self.ask("POST", path, used or key, content=OFFER, headers=headers)
        assert call.status_code == 201, call.text
        ((owner, session_id),) = [
            (fake, session_id)
            for fake in self.fleet.transceivers
            for session_id in fake.sessions
            if session_id not in known
        ]
        call_id = call.headers["location"].rpartition("/")[2]
        self.calls.append(Placed(key, call_id, call.headers.get("etag", ""), owner, session_id))

    async def describe(self) -> None:
        call = self.random.choice(self.calls)
        info = (await self.ask("GET", f"/v1/realtime/calls/{call.location}", call.key)).json()
        assert info["path"]["transceiver"] == f"1/{call.owner.pod}/0"
        assert info["id"] == call.location

    async def trickle(self) -> None:
        call = self.random.choice(self.calls)
        before = len(call.owner.trickled)
        headers = {"Content-Type": "application/trickle-ice-sdpfrag", "If-Match": call.tag or '"none"'}
        answer = await self.ask("PATCH", f"/whip/{call.location}", call.key, content="", headers=headers)
        assert answer.status_code == (204 if call.tag else 412)
        assert len(call.owner.trickled) == before + bool(call.tag)

    async def restart(self) -> None:
        call = self.random.choice(self.calls)
        before = call.owner.sessions[call.session_id].ufrag
        headers = {"Content-Type": "application/trickle-ice-sdpfrag", "If-Match": "*"}
        fragment = f"a=ice-ufrag:ysXw\r\na=ice-pwd:{PASSWORD}\r\n"
        answer = await self.ask("PATCH", f"/whip/{call.location}", call.key, content=fragment, headers=headers)
        assert answer.status_code == 200
        call.tag = answer.headers["etag"]
        assert call.owner.sessions[call.session_id].ufrag != before

    async def end(self) -> None:
        call = self.calls.pop(self.random.randrange(len(self.calls)))
        ways = (("POST", f"/v1/realtime/calls/{call.location}/hangup"), ("DELETE", f"/whip/{call.location}"))
        method, path = self.random.choice(ways)
        assert (await self.ask(method, path, call.key)).status_code == 200
        assert call.session_id not in call.owner.sessions

    async def meddle(self) -> None:
        """The other tenant gets nowhere."""
        call = self.random.choice(self.calls)
        stranger = OTHER_KEY if call.key == API_KEY else API_KEY
        assert_error(await self.ask("DELETE", f"/whip/{call.location}", stranger), 404, "call_not_found")


async def test_of_1000_mixed_requests_to_two_replicas_none_is_misrouted(tmp_path: Path) -> None:
    fleet = Fleet([FakeTransceiver(pod=pod, max_sessions=1000) for pod in range(1, 6)])
    async with signaling(tmp_path, fleet=fleet) as first, signaling(tmp_path, fleet=fleet) as second:
        proxy = RoundRobin([httpx.ASGITransport(app=replica.app) for replica in (first, second)])
        async with httpx.AsyncClient(transport=proxy, base_url="http://127.0.0.1:8080") as client:
            crowd = Crowd(client, fleet, random.Random(1))
            while crowd.done.total() < 1000:
                await crowd.step()
        for replica in (first, second):
            text = replica.app.state.services.metrics.text().decode()
            assert 'usher_signaling_placements_total{outcome="placed"}' in text
    assert min(crowd.done.values()) > 50
    alive = {(call.owner.pod, call.session_id) for call in crowd.calls}
    assert alive == {(fake.pod, session_id) for fake in fleet.transceivers for session_id in fake.sessions}
    assert all(fake.created for fake in fleet.transceivers)
