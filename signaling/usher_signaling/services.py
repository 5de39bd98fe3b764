"""The parts of one signaling process, put together from its settings."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from random import SystemRandom
from time import monotonic

import httpx
import structlog

from usher_core.internal_api import parse_token
from usher_core.sealed import Sealer
from usher_shell.watched_file import WatchedFile
from usher_signaling.api_keys import DEFAULT_TENANT, ApiKey, ApiKeys, check_api_key, digest_of, parse_api_keys
from usher_signaling.auth import Authenticator
from usher_signaling.calls import Calls
from usher_signaling.directory import Directory
from usher_signaling.jwt_keys import Jwks, JwtRules, JwtVerifier, parse_jwks
from usher_signaling.limits import Limits
from usher_signaling.metrics import Metrics
from usher_signaling.peer_regions.origin import RegionTokens, parse_region_tokens
from usher_signaling.peer_regions.peers import Peers, build_peers
from usher_signaling.peer_regions.table import RegionTable, parse_regions_file
from usher_signaling.placement import Placement
from usher_signaling.readiness import Readiness
from usher_signaling.redis_store import RedisStore
from usher_signaling.regions import Regions
from usher_signaling.relay_pages import RelayPages
from usher_signaling.seal_keys import Keys, SealKeys
from usher_signaling.settings import SignalingSettings
from usher_signaling.sources import select_sources
from usher_signaling.steering import Steering
from usher_signaling.tenant_calls import TenantCalls
from usher_signaling.tracing import Tracer
from usher_signaling.transceiver_client import TransceiverClient

log = structlog.get_logger()


AnyFile = (
    WatchedFile[Keys]
    | WatchedFile[str]
    | WatchedFile[ApiKeys]
    | WatchedFile[Jwks]
    | WatchedFile[RegionTable]
    | WatchedFile[RegionTokens]
)


@dataclass(frozen=True, slots=True)
class Services:
    """What the routes use. `clock` gives Unix seconds."""

    settings: SignalingSettings
    clock: Callable[[], float]
    metrics: Metrics
    sealer: Callable[[], Sealer]
    authenticator: Authenticator
    client: TransceiverClient
    directory: Directory
    regions: Regions
    calls: Calls
    peers: Peers
    steering: Steering
    readiness: Readiness
    relays: RelayPages
    limits: Limits
    redis: RedisStore | None
    files: tuple[AnyFile, ...]
    follow: tuple[Callable[[], Awaitable[None]], ...]
    """What has to run while the process serves, to learn of transceivers and relays."""
    ending: asyncio.Event
    """Set once the process is told to end."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep files and loads fresh while the process serves."""
        await self.directory.refresh()
        self.readiness.look()
        interval = self.settings.load_interval
        rounds = (self.directory.refresh, self._refresh_files, self._look)
        over = asyncio.Event()
        repeating = [asyncio.create_task(_repeat(interval, one_round, over)) for one_round in rounds]
        following = [asyncio.create_task(_keep_up(follow)) for follow in self.follow]
        try:
            yield
        finally:
            over.set()
            # A question that is cancelled just when it has connected leaves its connection open.
            await asyncio.wait(repeating, timeout=self.settings.load_timeout)
            for task in (*repeating, *following):
                task.cancel()
            await asyncio.gather(*repeating, *following, return_exceptions=True)
            await self.client.close()
            await self.peers.close()
            await self.relays.close()
            if self.redis is not None:
                await self.redis.close()

    async def _look(self) -> None:
        """Tell the log of changes, also where nobody probes."""
        self.readiness.look()

    async def _refresh_files(self) -> None:
        for file in self.files:
            await asyncio.to_thread(file.look)
        self.peers.keep()


def build_services(
    settings: SignalingSettings,
    clock: Callable[[], float],
    transport: httpx.AsyncBaseTransport | None,
    tracer: Tracer,
) -> Services:
    """Read the files and connect the parts. Raises LocalError when a file is missing or wrong.

    Only the route file may come later: the transceivers may still be starting.
    """
    metrics = Metrics()
    sealer = SealKeys(settings.keys_file, settings.region_key_files, clock)
    token = WatchedFile(settings.token_file, parse_token, "token file")
    files: list[AnyFile] = [*sealer.files, token]
    api_keys: Callable[[], ApiKeys] | None = None
    if settings.api_keys_file is not None:
        key_file = WatchedFile(settings.api_keys_file, parse_api_keys, "API key file")
        files.append(key_file)
        api_keys = lambda: key_file.value  # noqa: E731
    elif settings.api_key is not None:
        only_key = ApiKeys([(ApiKey(DEFAULT_TENANT), digest_of(_checked_key(settings)))])
        api_keys = lambda: only_key  # noqa: E731
    elif settings.jwks_file is not None:
        no_key = ApiKeys()  # callers need a JWT then
        api_keys = lambda: no_key  # noqa: E731
    jwt = _jwt_verifier(settings, files, clock)

    sources = select_sources(settings, metrics)
    client = TransceiverClient(lambda: token.value, metrics, transport, tracer)
    regions = settings.regions
    tenant_calls = TenantCalls(settings.load_life)
    redis = _redis(settings, metrics)
    directory = Directory(
        sources.transceivers,
        sources.addresses,
        # The draw guards nothing, but replicas must not share a seed.
        Placement(settings.load_life, SystemRandom()),
        tenant_calls,
        regions,
        client,
        settings.load_timeout,
        monotonic,
    )
    calls = Calls(settings, directory, regions, client, sealer, metrics, clock)
    peers = _peers(settings, files, metrics, transport, tracer)
    ending = asyncio.Event()
    metrics.watch("transceivers", "Transceivers in the route table", lambda: len(directory.transceivers))
    metrics.watch("transceivers_live", "Transceivers that take new calls, full ones included", directory.live_count)
    metrics.watch(
        "can_place",
        "1 while a new call could be placed, though all transceivers may be full",
        lambda: not calls.why_none(),
    )
    metrics.watch(
        "files_wrong",
        "Files that are missing or wrong, so that their last good content is in use",
        lambda: sum(file.is_wrong for file in files) + sources.wrong_files,
    )
    return Services(
        settings=settings,
        clock=clock,
        metrics=metrics,
        sealer=sealer,
        authenticator=Authenticator(api_keys, sealer, clock, jwt, settings.event_policy_of_clients),
        client=client,
        directory=directory,
        regions=regions,
        calls=calls,
        peers=peers,
        steering=Steering(settings, regions, calls, peers, metrics, monotonic),
        readiness=Readiness(sources.statuses, directory, calls, ending),
        relays=RelayPages(settings.relay_admin, metrics, transport),
        limits=Limits(settings, api_keys, tenant_calls, redis, metrics, clock),
        redis=redis,
        files=tuple(files),
        follow=sources.follow,
        ending=ending,
    )


async def _repeat(interval: float, one_round: Callable[[], Awaitable[None]], over: asyncio.Event) -> None:
    """Do `one_round` every `interval` seconds until it is `over`. One that fails is logged: the next may do better."""
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(interval):
                await over.wait()
            return
        try:
            await one_round()
        except Exception:
            log.exception("background round failed")


async def _keep_up(follow: Callable[[], Awaitable[None]]) -> None:
    """Run what never ends by itself. Should it fail all the same, it begins anew."""
    while True:
        try:
            await follow()
        except Exception:
            log.exception("following failed")
        await asyncio.sleep(1)


def _jwt_verifier(settings: SignalingSettings, files: list[AnyFile], clock: Callable[[], float]) -> JwtVerifier | None:
    """Read the JWKS file, which joins `files`; None where no JWT is taken."""
    if settings.jwks_file is None:
        return None
    jwks = WatchedFile(settings.jwks_file, parse_jwks, "JWKS file")
    files.append(jwks)
    rules = JwtRules(
        settings.jwt_issuer,
        settings.jwt_audience,
        settings.jwt_algorithms,
        settings.jwt_leeway,
        settings.jwt_tenant_claim,
    )
    return JwtVerifier(lambda: jwks.value, rules, clock)


def _peers(
    settings: SignalingSettings,
    files: list[AnyFile],
    metrics: Metrics,
    transport: httpx.AsyncBaseTransport | None,
    tracer: Tracer,
) -> Peers:
    """Read the files of other regions, which join `files`; without them there is no other region."""
    nobody = RegionTable()
    table: Callable[[], RegionTable] = lambda: nobody  # noqa: E731
    tokens: Callable[[], RegionTokens] | None = None
    if settings.regions_file is not None and settings.region_token_file is not None:
        regions = WatchedFile(
            settings.regions_file, lambda text: parse_regions_file(text, settings.region), "regions file"
        )
        token = WatchedFile(settings.region_token_file, parse_region_tokens, "region token file")
        files += [regions, token]
        table, tokens = lambda: regions.value, lambda: token.value
    peers = build_peers(table, tokens, settings.region_ca_file, metrics, monotonic, transport, tracer)
    metrics.watch(
        "regions_away", "Other regions that failed, so that few offers are handed on to them", peers.away_count
    )
    return peers


def _redis(settings: SignalingSettings, metrics: Metrics) -> RedisStore | None:
    redis = None
    if settings.redis_url is not None:
        redis = RedisStore(settings.redis_url.get_secret_value(), settings.redis_timeout, metrics, monotonic)
    metrics.watch(
        "redis_away",
        "1 while Redis is asked for and does not answer, so that each replica counts by itself",
        lambda: redis is not None and redis.is_away,
    )
    return redis


def _checked_key(settings: SignalingSettings) -> str:
    assert settings.api_key is not None
    key = settings.api_key.get_secret_value()
    check_api_key(key, "USHER_API_KEY")
    return key
