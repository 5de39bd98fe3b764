"""When the operator counts as stuck: work is under way and no request ends."""

import asyncio

import pytest
from kubernetes.aio.client import Configuration

from tests.kube_fake import KubeFake
from usher_operator.actions import Reference
from usher_operator.main import Worker
from usher_operator.metrics import OperatorMetrics
from usher_operator.reconciler import PoolKey
from usher_operator.settings import OperatorSettings

POOL = PoolKey("TransceiverPool", "voice", "p")


async def test_a_leader_is_stuck_when_no_request_ends_however_long_its_looks_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr("usher_operator.main.monotonic", lambda: now)
    async with KubeFake() as server:
        configuration = Configuration()
        configuration.host = server.url
        settings = OperatorSettings(namespaces=("voice",), own_namespace="usher")
        worker = Worker(settings, configuration, OperatorMetrics(), lambda: True)
        now += 500
        assert worker.stuck_for() == 0

        server.fail(500, resource="transceiverpools.usher.fleet", delay=60)
        look = asyncio.create_task(worker.reconciler.look(POOL))
        await server.until(lambda: worker.reconciler.working_since() is not None, "a look is under way")
        now += 170
        assert worker.stuck_for() == 170
        await worker._api.get(Reference("v1", "Secret", "voice", "another"))
        now += 20
        assert worker.stuck_for() == 20

        look.cancel()
        await asyncio.gather(look, return_exceptions=True)
        now += 500
        assert worker.stuck_for() == 0
        await worker._client.close()
        await worker._api.close()
