"""A real API server takes every manifest that the chart renders, and Pod Security `restricted` its pods.

Nothing is made but namespaces and the kinds of other projects as stubs, where the cluster has not the real ones.
"""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.chart.rendering import ROOT, SCENARIOS, template
from tests.e2e.test_crds import kubectl

pytestmark = [pytest.mark.e2e, pytest.mark.needs("kubernetes", "helm")]

STUBS = ROOT / "tests" / "chart" / "stubs" / "crds.yaml"


@pytest.fixture(scope="module")
def kinds() -> Iterator[None]:
    """The kinds that the chart makes objects of. Stubs that we made go again; real ones are left alone."""
    kubectl("apply", "--server-side", "--force-conflicts", f"--filename={ROOT / 'crds'}")
    stubs = [stub for stub in yaml.safe_load_all(STUBS.read_text()) if is_missing(stub["metadata"]["name"])]
    for stub in stubs:
        kubectl("create", "--filename=-", given=json.dumps(stub))
    for folder in (ROOT / "crds", STUBS):
        kubectl("wait", "--for=condition=Established", "--timeout=30s", f"--filename={folder}")
    yield
    for stub in stubs:
        kubectl("delete", "--wait=false", f"crd/{stub['metadata']['name']}")


def is_missing(crd: str) -> bool:
    return not kubectl("get", "crd", "--ignore-not-found", "--output=name", f"--field-selector=metadata.name={crd}")


@pytest.fixture(scope="module")
def namespaces() -> Iterator[dict[str, str]]:
    """Namespaces of ours, by the names in scenarios; pods there have to be `restricted`."""
    end = uuid.uuid4().hex[:8]
    names = {name: f"usher-{name}-{end}" for name in ("home", "voice", "calls", "shared")}
    for name in names.values():
        kubectl("create", "namespace", name)
        kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    yield names
    for name in names.values():
        kubectl("delete", "namespace", name, "--wait=false")


@pytest.mark.usefixtures("kinds")
def test_an_api_server_takes_every_manifest(namespaces: dict[str, str], tmp_path: Path) -> None:
    """One test for all scenarios: the stubs belong to the whole cluster, so no two processes may make them."""
    for scenario in SCENARIOS:
        dry_run(scenario, namespaces, tmp_path)


def dry_run(scenario: str, namespaces: dict[str, str], tmp_path: Path) -> None:
    values = yaml.safe_load(SCENARIOS[scenario].read_text())
    if watched := values.get("operator", {}).get("watchNamespaces"):
        values["operator"]["watchNamespaces"] = [namespaces[name] for name in watched]
        values["operator"]["settings"]["identityNamespace"] = namespaces["shared"]
        values["signaling"]["poolsNamespace"] = namespaces["voice"]
    ours = tmp_path / "values.yaml"
    ours.write_text(yaml.safe_dump(values))
    rendered = template(f"--values={ours}", namespace=namespaces["home"])
    assert rendered.returncode == 0, rendered.stderr
    found = [one for one in yaml.safe_load_all(rendered.stdout) if one]
    bare_pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"pod-{number}", "namespace": namespaces["home"]},
            "spec": one["spec"]["template"]["spec"],
        }
        for number, one in enumerate(found)
        if one["kind"] in ("Deployment", "Job")
    ]
    for pod in bare_pods:
        # Accounts are part of the same dry run, so there are none yet.
        pod["spec"].pop("serviceAccountName")
    told = kubectl(
        "apply", "--dry-run=server", "--server-side", "--force-conflicts",
        "--validate=strict", "--filename=-", given=yaml.safe_dump_all([*found, *bare_pods]),
    )  # fmt: skip
    assert told.count("serverside-applied (server dry run)") == len(found) + len(bare_pods)
