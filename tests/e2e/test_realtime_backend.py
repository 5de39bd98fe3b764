"""A pool whose calls a server of the Realtime protocol answers; its key is in a Secret: missing, there, and changed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import realtime_upstream
from tests.e2e.conftest import Figure
from tests.e2e.fleet import API_KEY, CHART, RELEASE, TRANSCEIVER_PODS, TRANSCEIVERS, Fleet, stopwatch, values
from tests.e2e.kube import Json, run, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.needs("kubernetes", "helm"), pytest.mark.timeout(600)]

NAME = "realtime-upstream"
SECRET = "realtime-key"
URL = f"ws://{NAME}:{realtime_upstream.PORT}/v1/realtime"
REALTIME: Json = {
    "url": URL,
    "model": "model-of-the-test",
    "apiKeySecretRef": {"name": SECRET, "key": "api-key"},
    "headersSecretRef": {"name": SECRET, "key": "headers"},
}
HEADERS = json.dumps({"X-Team": "voice"})
LOOK_S = 60
"""Of the operator at a pool, while pods wait; on a busy machine."""
PROPAGATION_S = 180
"""A kubelet brings a changed Secret to its pods 60 to 90 s later, unless they change meanwhile."""


@pytest.fixture
def upstream(fleet: Fleet) -> Iterator[Fleet]:
    """The install with a Realtime server beside it; at the end the pool is as it was."""
    fleet.namespace.apply(*server(fleet))
    fleet.namespace.kubectl("wait", "--for=condition=Ready", f"pod/{NAME}", "--timeout=60s", limit=70)
    try:
        yield fleet
    finally:
        fleet.namespace.patch(TRANSCEIVERS, {"spec": {"backend": {"type": "echo", "realtime": None}}})
        fleet.helm("upgrade", RELEASE, CHART, given=values(fleet.namespace.name, fleet.images))
        fleet.until_settled()
        assert backend_ready(fleet) == ("", ""), "echo takes nothing from Secrets"
        objects = [f"{kind}/{NAME}" for kind in ("pod", "service", "configmap")]
        fleet.namespace.kubectl("delete", *objects, f"secret/{SECRET}", "--ignore-not-found", "--wait=false")


def server(fleet: Fleet) -> list[Json]:
    labels = {"app": NAME}
    script = Path(realtime_upstream.__file__)
    port = realtime_upstream.PORT
    container = {
        "name": "server",
        "image": fleet.images.name("transceiver"),
        "command": ["tini", "--", "python", f"/server/{script.name}"],
        "ports": [{"containerPort": port}],
        "readinessProbe": {"httpGet": {"path": "/livez", "port": port}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "server", "mountPath": "/server"}],
    }
    spec = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": "server", "configMap": {"name": NAME}}],
    }
    return [
        {"apiVersion": "v1", "kind": kind, "metadata": {"name": NAME, "labels": labels}, **rest}
        for kind, rest in (
            ("ConfigMap", {"data": {script.name: script.read_text()}}),
            ("Service", {"spec": {"selector": labels, "ports": [{"port": port}]}}),
            ("Pod", {"spec": spec}),
        )
    ]


def set_secret(fleet: Fleet, **data: str) -> None:
    fleet.namespace.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}, "stringData": data})


def backend_ready(fleet: Fleet) -> tuple[str, str]:
    for each in fleet.namespace.get(TRANSCEIVERS)["status"]["conditions"]:
        if each["type"] == "BackendReady":
            return each["status"], each["reason"]
    return "", ""


def until(fleet: Fleet, status: str, reason: str) -> None:
    wait_for(f"BackendReady {status}, {reason}", lambda: backend_ready(fleet) == (status, reason), LOOK_S)


def call(fleet: Fleet) -> Json:
    """Place a call that has to hear something; return what the server has heard of the last one."""
    command = (sys.executable, "-m", "usher_cli", "call", fleet.url, f"--api-key={API_KEY}", "--any-reply")
    run(*command, "--seconds=4")
    lines = fleet.namespace.kubectl("logs", NAME).splitlines()
    heard: Json = json.loads(next(line for line in reversed(lines) if line.startswith("{")))
    return heard


def test_a_caller_hears_a_realtime_server_that_gets_key_and_headers_from_a_secret(
    upstream: Fleet, figure: Figure
) -> None:
    fleet = upstream
    figures: dict[str, float] = {}
    fleet.namespace.patch(TRANSCEIVERS, {"spec": {"backend": {"type": "realtime", "realtime": REALTIME}}})
    until(fleet, "Unknown", "SecretForbidden")
    given = values(fleet.namespace.name, fleet.images) | {"rbac": {"secretNames": [SECRET]}}
    fleet.helm("upgrade", RELEASE, CHART, given=given)
    until(fleet, "False", "SecretMissing")
    set_secret(fleet, headers=HEADERS)
    until(fleet, "False", "SecretKeyMissing")
    assert fleet.call(seconds=2).lost == 0, "pods of the last good template go on"

    with stopwatch(figures, "from the key to a settled pool"):
        set_secret(fleet, headers=HEADERS, **{"api-key": "first\n"})
        until(fleet, "True", "SecretsFound")
        fleet.until_settled()
    heard = call(fleet)
    assert heard == {"path": "/v1/realtime?model=model-of-the-test", "key": "Bearer first", "team": "voice"}

    with stopwatch(figures, "until a changed key is used"):
        set_secret(fleet, headers=HEADERS, **{"api-key": "second"})
        fleet.bring_files(TRANSCEIVER_PODS)
        wait_for("a call with the new key", lambda: call(fleet)["key"] == "Bearer second", PROPAGATION_S)
    for name, seconds in figures.items():
        figure(name, f"{seconds:.0f} s")
