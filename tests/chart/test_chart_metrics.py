"""Dashboard and alerts of the chart name metrics that exist."""

import json
import re

import pytest
import yaml

from tests.chart.rendering import CHART, by_name
from tests.pages import ROOT, codes, rows
from usher_operator.metrics import OperatorMetrics

METRIC = re.compile(r"\busher_[a-z_]+")
DASHBOARD = json.loads((CHART / "files" / "dashboard.json").read_text())


def known_metrics() -> set[str]:
    listed = {code for row in rows(ROOT / "docs" / "metrics.md") for code in codes(row.cells[0])}
    own = {
        f"{metric.name}_total" if metric.type == "counter" else metric.name
        for metric in OperatorMetrics().registry.collect()
    }
    return {name for name in listed | own if name.startswith("usher_")}


def base(metric: str) -> str:
    """A histogram's series without their ends."""
    return re.sub(r"_(bucket|sum|count)$", "", metric)


def queries() -> list[str]:
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return panels + [variable["query"] for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"]


def test_the_dashboard_shows_metrics_that_exist() -> None:
    named = {base(metric) for query in queries() for metric in METRIC.findall(query)}
    assert len(named) > 15
    assert named - known_metrics() == set()


def test_panels_of_the_dashboard_have_their_own_place_and_number() -> None:
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]}
    assert len(places) == len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def alerts() -> dict[str, str]:
    groups = yaml.safe_load((ROOT / "examples" / "prometheus-rules.yaml").read_text())["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


@pytest.mark.parametrize(
    "metric",
    ["usher_operator_leader", "usher_operator_pods_waiting_seconds", "usher_operator_keys_waiting_seconds"],
)
def test_what_only_the_operator_can_mend_raises_an_alarm(metric: str) -> None:
    assert any(metric in expression for expression in alerts().values())


def test_an_operator_that_is_gone_raises_an_alarm_where_relays_run_in_kubernetes_and_nowhere_else() -> None:
    """A metric that is gone has no value below a limit; outside Kubernetes there never is one."""
    [guarded] = [expression for expression in alerts().values() if "absent(" in expression]
    assert "absent(usher_operator_leader) and count(usher_relay_pods_conflicting) > 0" in guarded


def test_a_relay_that_lost_its_transceivers_raises_an_alarm_though_a_peer_answers() -> None:
    """A peer excuses only relays that never had any, and only one that answers."""
    found, _, excused = alerts()["UsherNoRoutes"].partition(" unless ")
    assert found == "usher_relay_routes == 0"
    assert excused.removeprefix("on (instance) ").strip("()").split(" and on (instance) ") == [
        "usher_relay_peer_up == 1",
        "max_over_time(usher_relay_routes[1d]) == 0",
    ]


@pytest.mark.needs("helm")
def test_the_rule_object_holds_the_example_alerts() -> None:
    example = yaml.safe_load((ROOT / "examples" / "prometheus-rules.yaml").read_text())
    assert by_name("everything")["PrometheusRule/fleet-usher"]["spec"] == example


@pytest.mark.needs("helm")
def test_the_dashboard_arrives_whole() -> None:
    config_map = by_name("everything")["ConfigMap/fleet-usher-dashboard"]
    assert json.loads(config_map["data"]["usher.json"]) == DASHBOARD


@pytest.mark.needs("helm")
def test_monitors_wait_until_the_cluster_knows_them() -> None:
    kinds = {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
    auto = ("--set=metrics.renderMode=Auto",)
    assert not {name.partition("/")[0] for name in by_name("everything", *auto)} & kinds
    there = {name.partition("/")[0] for name in by_name("everything", *auto, "--api-versions=monitoring.coreos.com/v1")}
    assert kinds <= there
