"""The chart as Helm renders it, for tests."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "usher"
SCENARIOS = {path.stem: path for path in sorted((ROOT / "tests" / "chart" / "scenarios").glob("*.yaml"))}
RELEASE = "fleet"
NAMESPACE = "usher-system"
NO_KUBECONFIG = "/dev/null"

Object = dict[str, Any]


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Helm, which must not look at a cluster."""
    command = ["helm", *arguments, "--kubeconfig", NO_KUBECONFIG]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def template(*arguments: str, namespace: str = NAMESPACE) -> subprocess.CompletedProcess[str]:
    """Render the chart."""
    return helm("template", RELEASE, str(CHART), f"--namespace={namespace}", *arguments)


@cache
def rendered(scenario: str, *arguments: str) -> str:
    """Return what Helm renders for a scenario, hooks included."""
    outcome = template(f"--values={SCENARIOS[scenario]}", *arguments)
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


def objects(scenario: str, *arguments: str) -> list[Object]:
    """Return the objects of a scenario; ones of their own for each caller."""
    return [found for found in yaml.safe_load_all(rendered(scenario, *arguments)) if found]


def name_of(found: Object) -> str:
    """Return `Kind/name`, with the namespace where it is not that of the release."""
    metadata = found["metadata"]
    namespace = metadata.get("namespace", NAMESPACE)
    return f"{found['kind']}/{metadata['name']}" + (f" in {namespace}" if namespace != NAMESPACE else "")


def by_name(scenario: str, *arguments: str) -> dict[str, Object]:
    """Return the objects of a scenario by `Kind/name`."""
    return {name_of(found): found for found in objects(scenario, *arguments)}


def pods(found: Object) -> Iterator[Object]:
    """Yield the specs of the pods that an object makes."""
    match found["kind"]:
        case "Pod":
            yield found["spec"]
        case "Deployment" | "DaemonSet" | "StatefulSet" | "Job":
            yield found["spec"]["template"]["spec"]
