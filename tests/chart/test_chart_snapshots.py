"""What the chart renders, as files to read in a review. To write them anew: USHER_UPDATE_SNAPSHOTS=1."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.rendering import CHART, RELEASE, ROOT, SCENARIOS, Object, by_name, helm, objects, rendered

pytestmark = pytest.mark.needs("helm")

SNAPSHOTS = ROOT / "tests" / "chart" / "snapshots"
SAME_EVERYWHERE = {
    "app.kubernetes.io/name": "usher",
    "app.kubernetes.io/instance": RELEASE,
    "app.kubernetes.io/managed-by": "Helm",
    "app.kubernetes.io/part-of": "usher",
    "app.kubernetes.io/version": None,
    "helm.sh/chart": None,
}


def without_noise(value: Any) -> Any:
    """Leave out the labels that everything has, and files that stand elsewhere in the repository."""
    if isinstance(value, dict):
        kept = {
            name: without_noise(entry)
            for name, entry in value.items()
            if not (name in SAME_EVERYWHERE and SAME_EVERYWHERE[name] in (None, entry))
        }
        if "groups" in kept:
            kept["groups"] = "those of examples/prometheus-rules.yaml"
        if "usher.json" in kept:
            kept["usher.json"] = "files/dashboard.json of the chart"
        return kept
    return [without_noise(entry) for entry in value] if isinstance(value, list) else value


def snapshot_of(scenario: str) -> dict[str, Any]:
    """Return the objects by name; those that are as with the defaults in a word."""
    defaults = {} if scenario == "defaults" else by_name("defaults")
    return {
        name: "as in defaults" if defaults.get(name) == found else body(found)
        for name, found in by_name(scenario).items()
    }


def body(found: Object) -> Any:
    if found["kind"] == "CustomResourceDefinition":
        return "that of crds/"
    told = {name: value for name, value in found.items() if name != "kind"}
    told["metadata"] = {name: value for name, value in found["metadata"].items() if name not in ("name", "namespace")}
    return without_noise(told)


def path_of(scenario: str) -> Path:
    return SNAPSHOTS / f"{scenario}.yaml"


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_rendered_manifests_are_those_that_were_reviewed(scenario: str) -> None:
    snapshot = snapshot_of(scenario)
    if os.environ.get("USHER_UPDATE_SNAPSHOTS"):
        text = yaml.safe_dump(snapshot, width=150, allow_unicode=True, default_flow_style=None)
        path_of(scenario).write_text(
            f"# What scenarios/{scenario}.yaml renders. USHER_UPDATE_SNAPSHOTS=1 writes it.\n{text}"
        )
    assert snapshot == yaml.safe_load(path_of(scenario).read_text())


def test_no_snapshot_is_left_of_a_scenario_that_is_gone() -> None:
    assert {path.stem for path in SNAPSHOTS.glob("*.yaml")} == set(SCENARIOS)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_lint_finds_nothing(scenario: str) -> None:
    outcome = helm("lint", "--strict", str(CHART), f"--values={SCENARIOS[scenario]}")
    assert outcome.returncode == 0, outcome.stdout
    assert "[WARNING]" not in outcome.stdout


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_two_renderings_are_the_same(scenario: str) -> None:
    """Nothing random: an upgrade without a change changes nothing."""
    again = rendered.__wrapped__(scenario)
    assert again == rendered(scenario)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_object_is_rendered_twice(scenario: str) -> None:
    assert len(by_name(scenario)) == len(objects(scenario))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_selectors_find_pods_and_hold_no_version(scenario: str) -> None:
    found = objects(scenario)
    labels = [one["spec"]["template"]["metadata"]["labels"] for one in found if one["kind"] == "Deployment"]
    for one in found:
        selector = {
            "Deployment": lambda spec: spec["selector"]["matchLabels"],
            "PodDisruptionBudget": lambda spec: spec["selector"]["matchLabels"],
            "Service": lambda spec: spec["selector"],
        }.get(one["kind"])
        if selector:
            wanted = selector(one["spec"])
            assert sum(wanted.items() <= pod.items() for pod in labels) == 1, one["metadata"]["name"]
            assert not {"app.kubernetes.io/version", "helm.sh/chart"} & set(wanted)
