"""Autoscalers measure the pool that they scale, and budgets let nodes be drained."""

from typing import Any

import pytest
import yaml

from tests.chart.rendering import NAMESPACE, ROOT, SCENARIOS, Object, by_name, objects

EXAMPLE = yaml.safe_load((ROOT / "examples" / "keda.yaml").read_text())


def trigger(scaled: Object) -> dict[str, Any]:
    [found] = scaled["spec"]["triggers"]
    return dict(found["metadata"])


def wanted(namespace: str, pool: str) -> str:
    sessions = f'usher_transceiver_sessions{{namespace="{namespace}",usher_fleet_pool="{pool}"}}'
    return f"sum({sessions} unless on (namespace, pod) (usher_transceiver_draining == 1))"


def test_the_example_for_keda_counts_the_calls_of_its_pool_alone() -> None:
    pool = EXAMPLE["spec"]["scaleTargetRef"]["name"]
    assert pool == yaml.safe_load((ROOT / "examples" / "transceiverpool.yaml").read_text())["metadata"]["name"]
    assert trigger(EXAMPLE)["query"] == wanted("default", pool)


@pytest.mark.needs("helm")
def test_keda_of_the_chart_counts_the_calls_of_its_pool_alone() -> None:
    enabled = ("--set=transceiver.keda.enabled=true", "--set=transceiver.pool.name=sales")
    scaled = by_name("defaults", *enabled)["ScaledObject/fleet-usher-transceiver"]
    assert scaled["spec"]["scaleTargetRef"]["name"] == "sales"
    assert trigger(scaled)["query"] == wanted(NAMESPACE, "sales")
    assert trigger(scaled) == {
        **trigger(EXAMPLE),
        "query": trigger(scaled)["query"],
    }


@pytest.mark.needs("helm")
def test_the_monitor_hands_on_the_label_that_tells_pools_apart() -> None:
    """Prometheus writes usher.fleet/pool as usher_fleet_pool."""
    monitor = by_name("everything")["PodMonitor/fleet-usher-pools"]
    assert "usher.fleet/pool" in monitor["spec"]["podTargetLabels"]


def test_without_a_measurement_keda_leaves_the_pool_as_it_is() -> None:
    assert trigger(EXAMPLE)["ignoreNullValues"] == "false"


@pytest.mark.needs("helm")
@pytest.mark.parametrize("replicas", [1, 2, 5])
@pytest.mark.parametrize("scenario", sorted({*SCENARIOS} - {"everything"}))
def test_a_budget_lets_a_node_be_drained_however_many_replicas_there_are(scenario: str, replicas: int) -> None:
    count = (f"--set=signaling.replicaCount={replicas}", f"--set=operator.replicaCount={replicas}")
    for budget in (one["spec"] for one in objects(scenario, *count) if one["kind"] == "PodDisruptionBudget"):
        evictable = budget.get("maxUnavailable", replicas - budget.get("minAvailable", 0))
        assert evictable >= 1
