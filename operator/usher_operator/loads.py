"""What the operator asks pods over HTTP: loads and drains of transceivers, and the keys that programs hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from usher_core.errors import UsherError
from usher_core.internal_api import BASE_PATH, RELAY_IDLE_S, HeldKeys, Load
from usher_operator.seen import EndpointSeen, PodSeen

ModelT = TypeVar("ModelT", bound=BaseModel)
AnswerT = TypeVar("AnswerT")

REQUEST_S = 2.0
MAX_ANSWER = 1024 * 1024
MAX_AT_ONCE = 64
"""Requests at a time, over all pools."""


class PodAnswerError(UsherError):
    """A pod did not do what it was asked, or not in time."""


class _Flows(BaseModel):
    flows: list[Any]
    idle: float | None = None


class _Peers(BaseModel):
    peers: tuple[EndpointSeen, ...] = ()


class PodClient:
    """Speaks to pods over one pool of connections.

    Args:
        transport: replaces the network in tests.
    """

    def __init__(self, transport: httpx.AsyncBaseTransport | None = None) -> None:
        limits = httpx.Limits(max_connections=MAX_AT_ONCE, max_keepalive_connections=MAX_AT_ONCE)
        self._http = httpx.AsyncClient(
            timeout=REQUEST_S, limits=limits, transport=transport, trust_env=False, follow_redirects=False
        )
        self._turns = asyncio.Semaphore(MAX_AT_ONCE)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def load(self, base: str, token: str) -> Load:
        """Return the load of a transceiver. Raises PodAnswerError, as all methods do."""
        return await self._ask(Load, "GET", f"{base}{BASE_PATH}/load", token)

    async def set_drain(self, base: str, token: str, *, drain: bool) -> Load:
        """Have a transceiver drain, or take calls again."""
        return await self._ask(Load, "POST", f"{base}{BASE_PATH}/{'drain' if drain else 'undrain'}", token)

    async def transceiver_keys(self, base: str, token: str) -> HeldKeys:
        """Return the keys that a transceiver holds."""
        return await self._ask(HeldKeys, "GET", f"{base}{BASE_PATH}/keys", token)

    async def relay_keys(self, base: str) -> HeldKeys:
        """Return the keys that a relay holds, from its admin page."""
        return await self._ask(HeldKeys, "GET", f"{base}/keys", "")

    async def relay_peers(self, base: str) -> tuple[EndpointSeen, ...]:
        """Return the endpoints of a relay's peers, from its admin page."""
        answer = await self._ask(_Peers, "GET", f"{base}/routes?limit=1", "")
        return answer.peers

    async def has_flows(self, base: str) -> bool:
        """Return whether a relay carries calls, from its admin page: it remembers flows for 90 s after their end."""
        answer = await self._ask(_Flows, "GET", f"{base}/flows?limit=1", "")
        return bool(answer.flows) and (answer.idle is None or answer.idle < RELAY_IDLE_S)

    async def _ask(self, model: type[ModelT], method: str, url: str, token: str) -> ModelT:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            # Whoever waits for its turn is not silent: the time begins with the request.
            async with (
                self._turns,
                asyncio.timeout(REQUEST_S),
                self._http.stream(method, url, headers=headers) as answer,
            ):
                text = b""
                async for part in answer.aiter_bytes():
                    text += part
                    if len(text) > MAX_ANSWER:
                        raise PodAnswerError(f"{url}: its answer is longer than {MAX_ANSWER} bytes")
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError) as error:
            raise PodAnswerError(f"{url} does not answer: {str(error) or type(error).__name__}") from None
        if answer.status_code != 200:
            raise PodAnswerError(f"{url} answers {answer.status_code}")
        try:
            return model.model_validate_json(text)
        except ValidationError:
            raise PodAnswerError(f"{url}: its answer is no {model.__name__}") from None


async def ask_all(questions: Mapping[str, Awaitable[AnswerT]], within: float) -> dict[str, AnswerT | BaseException]:
    """Ask all at once, and return the answers or what was raised; CancelledError for what took too long."""
    tasks = {key: asyncio.ensure_future(question) for key, question in questions.items()}
    try:
        if tasks:
            await asyncio.wait(tasks.values(), timeout=within)
    finally:
        for task in tasks.values():
            task.cancel()
        answers = await asyncio.gather(*tasks.values(), return_exceptions=True)
    return dict(zip(tasks, answers, strict=True))


def answered(answers: Mapping[str, AnswerT | BaseException]) -> dict[str, AnswerT]:
    """Return what was answered; raise what is no fault of a pod."""
    for answer in answers.values():
        if isinstance(answer, Exception) and not isinstance(answer, PodAnswerError):
            raise answer
    return {key: answer for key, answer in answers.items() if not isinstance(answer, BaseException)}


@dataclass(frozen=True, slots=True)
class _Answer:
    load: Load | None
    at: float


class Loads:
    """The loads of transceivers, asked for at a bounded rate.

    A look asks the pods whose answer is older than FRESH_S, those that end or drain first and then by age, MAX_PER_LOOK
    at most; what has not answered after LOOK_S, or is older than STALE_S, is missing in the result.

    Args:
        client: asks.
        clock: seconds that only go forward.
        on_outcome: called with `answered` or `silent` for each request.
    """

    FRESH_S = 2.0
    STALE_S = 60.0
    RETRY_S = 5.0
    LOOK_S = 3.0
    MAX_PER_LOOK = 500

    def __init__(self, client: PodClient, clock: Callable[[], float], on_outcome: Callable[[str], None]) -> None:
        self._client = client
        self._clock = clock
        self._on_outcome = on_outcome
        self._answers: dict[str, _Answer] = {}

    @property
    def client(self) -> PodClient:
        """Asks pods for what is no load."""
        return self._client

    async def look(self, pods: Iterable[PodSeen], port: int, token: str, urgent: frozenset[str]) -> Mapping[str, Load]:
        """Return loads by pod uid.

        Args:
            pods: of one pool.
            port: of their internal API.
            token: that opens it.
            urgent: uids of pods to ask first, whatever the age of their answer.
        """
        asked = [pod for pod in pods if pod.can_answer]
        now = self._clock()
        due = sorted((pod for pod in asked if self._is_due(pod, now, urgent)), key=lambda pod: self._rank(pod, urgent))
        await ask_all({pod.uid: self._ask(pod, port, token) for pod in due[: self.MAX_PER_LOOK]}, self.LOOK_S)
        self._forget_old()
        known = {pod.uid: answer.load for pod in asked if (answer := self._answers.get(pod.uid))}
        return {uid: load for uid, load in known.items() if load is not None}

    async def idle_relays(self, pods: Iterable[PodSeen], port: int) -> frozenset[str]:
        """Return the uids of the relays that say they carry no flow; whoever is silent may carry some.

        Args:
            pods: of one pool.
            port: of their admin page.
        """
        questions = {pod.uid: self._client.has_flows(pod.base_url(port)) for pod in pods if pod.can_answer}
        answers = await ask_all(questions, self.LOOK_S)
        return frozenset(uid for uid, answer in answers.items() if answer is False)

    def _is_due(self, pod: PodSeen, now: float, urgent: frozenset[str]) -> bool:
        answer = self._answers.get(pod.uid)
        if answer is None or (pod.uid in urgent and answer.load is not None):
            return True
        return now - answer.at >= (self.FRESH_S if answer.load is not None else self.RETRY_S)

    def _rank(self, pod: PodSeen, urgent: frozenset[str]) -> tuple[bool, float]:
        answer = self._answers.get(pod.uid)
        return pod.uid not in urgent, answer.at if answer else float("-inf")

    async def _ask(self, pod: PodSeen, port: int, token: str) -> None:
        # Marked first: one that is cut off counts as silent, too.
        before = self._answers.get(pod.uid)
        self._answers[pod.uid] = _Answer(None, self._clock())
        try:
            load = await self._client.load(pod.base_url(port), token)
        except PodAnswerError:
            self._on_outcome("silent")
        except asyncio.CancelledError:
            if before is not None:
                self._answers[pod.uid] = before
            self._on_outcome("silent")
            raise
        else:
            self._answers[pod.uid] = _Answer(load, self._clock())
            self._on_outcome("answered")

    def _forget_old(self) -> None:
        now = self._clock()
        for uid in [uid for uid, answer in self._answers.items() if now - answer.at > self.STALE_S]:
            del self._answers[uid]
