"""`kubectl drain` of a node whose transceivers have calls: the budget is honoured, and calls last until their end."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import Figure
from tests.e2e.fleet import TRANSCEIVER_PODS, TRANSCEIVERS, Fleet, is_ready
from tests.e2e.kube import Json, kubectl, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.needs("kubernetes", "helm"), pytest.mark.timeout(500)]

TAINT = "usher.fleet/test"
CALL_S = 35


@pytest.fixture
def node(fleet: Fleet) -> Iterator[str]:
    """A node with both transceivers and nothing else of ours, which may be cordoned before and is so afterwards.

    Not the first one: there callers come in.
    """
    names = [node["metadata"]["name"] for node in json.loads(kubectl("get", "nodes", "--output=json"))["items"]]
    if len(names) < 2:
        pytest.skip("the cluster has one node. To enable this test: use one with two")
    name = names[-1]
    kubectl("taint", "node", name, f"{TAINT}=drain:NoSchedule", "--overwrite")
    try:
        kubectl("uncordon", name)
        fleet.namespace.patch(TRANSCEIVERS, {"spec": {"placement": rather(name)}})
        fleet.until_settled()
        wait_for("both transceivers on the node", lambda: places(fleet) == [name, name])
        yield name
    finally:
        kubectl("cordon", name)
        kubectl("taint", "node", name, f"{TAINT}-")
        fleet.namespace.patch(TRANSCEIVERS, {"spec": {"placement": None}})


def rather(name: str) -> Json:
    """Pods on this node, and elsewhere when it takes none."""
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [name]}
    preferred = [{"weight": 100, "preference": {"matchExpressions": [here]}}]
    return {
        "tolerations": [{"key": TAINT, "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}},
        "topologySpreadConstraints": [],
    }


def places(fleet: Fleet) -> list[str]:
    """Where transceivers are that are ready and stay."""
    return [pod["spec"]["nodeName"] for pod in fleet.pods(TRANSCEIVER_PODS) if is_ready(pod)]


def test_draining_a_node_honours_the_budget_and_loses_no_call(fleet: Fleet, node: str, figure: Figure) -> None:
    command = [
        "kubectl", "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=200s",
        f"--pod-selector={TRANSCEIVER_PODS}",
    ]  # fmt: skip
    fewest = 2
    with fleet.calls(6, seconds=CALL_S, light=True) as calls:
        calls.until_up()
        began = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as drain:
            while sorted(found := places(fleet)).count(node) or len(found) < 2:
                fewest = min(fewest, len(found))
                assert time.monotonic() - began < 120, f"not moved: {found}"
            figure(
                "both transceivers were elsewhere after", f"{time.monotonic() - began:.1f} s, {fewest} ready at least"
            )
            late = fleet.call(seconds=2, count=4)
            assert calls.are_running
            assert drain.poll() is None, "a drain waits for calls"
            outcome = calls.until_ended()
            said, _ = drain.communicate(timeout=120)
        figure("the drain took", f"{time.monotonic() - began:.1f} s under calls of {CALL_S} s")
    figure("calls during all of it", outcome)
    figure("calls placed meanwhile", late)
    assert drain.returncode == 0, said
    assert "disruption budget" in said, f"one eviction had to wait:\n{said}"
    assert fewest >= 1
    assert outcome.is_unbroken
    assert late.lost == 0
