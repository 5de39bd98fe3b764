"""values.yaml, its schema, and the programs agree; what is misspelt is refused in a sentence that names it."""

import json
import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import yaml

from deploy.chart_copies import PROGRAMS, copies
from tests.chart.rendering import CHART, SCENARIOS, Object, by_name, template
from usher_operator.settings import OperatorSettings

needs_helm = pytest.mark.needs("helm")

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def schema_at(schema: Object) -> Object:
    """Follow a reference into the definitions."""
    reference = schema.get("$ref")
    return SCHEMA["definitions"][reference.rpartition("/")[2]] if reference else schema


def closed_blocks(schema: Object, path: str = "") -> Iterator[tuple[str, Object]]:
    """Yield each block whose names are listed, by its path."""
    schema = schema_at(schema)
    if properties := schema.get("properties"):
        yield path, schema
        for name, inner in properties.items():
            yield from closed_blocks(inner, f"{path}.{name}" if path else name)


BLOCKS = dict(closed_blocks(SCHEMA))


def value_at(path: str) -> Any:
    value = VALUES
    for name in filter(None, path.split(".")):
        value = value[name]
    return value


@pytest.mark.parametrize("path", BLOCKS)
def test_schema_and_values_name_the_same(path: str) -> None:
    block = BLOCKS[path]
    listed, written = set(block["properties"]), set(value_at(path))
    if path.endswith(".settings"):
        assert written <= listed
    else:
        assert written == listed
    # Charts above this one put names of their own into `global`.
    assert block.get("additionalProperties", True) is (path == "global")


@needs_helm
@pytest.mark.parametrize("path", ["", "operator", "signaling.settings", "transceiver.pool", "redis.image"])
def test_a_misspelt_name_is_refused_and_named(path: str) -> None:
    """Of all other blocks the test above says that they are closed, too."""
    outcome = template(f"--set={f'{path}.' if path else ''}enabeld=true")
    assert outcome.returncode != 0
    assert "'enabeld' not allowed" in outcome.stderr


@needs_helm
@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("operator.replicaCount=-1", "at '/operator/replicaCount'"),
        ("operator.replicaCount=two", "want integer"),
        ("signaling.image.pullPolicy=Sometimes", "at '/signaling/image/pullPolicy'"),
        ("signaling.image.digest=abc", "at '/signaling/image/digest'"),
        ("signaling.service.port=70000", "at '/signaling/service/port'"),
        ("signaling.settings.loadInterval=fast", "at '/signaling/settings/loadInterval'"),
        ("transceiver.keda.serverAddress=prometheus", "at '/transceiver/keda/serverAddress'"),
        ("metrics.renderMode=never", "at '/metrics/renderMode'"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(value: str, told: str) -> None:
    outcome = template(f"--set={value}")
    assert outcome.returncode != 0
    assert told in outcome.stderr


@needs_helm
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("transceiver.autoscaling.enabled", "transceiver.keda.enabled"),
        ("redis.enabled", "redis.external.existingSecret"),
    ],
)
def test_what_excludes_each_other_is_refused(first: str, second: str) -> None:
    outcome = template(f"--set={first}=true", f"--set={second}={'mine' if 'Secret' in second else 'true'}")
    assert outcome.returncode != 0
    assert "exclude each other" in outcome.stderr


def environment(container: Object) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "redis://from-a-secret") for entry in container["env"]}


@needs_helm
@pytest.mark.parametrize("component", PROGRAMS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_programs_take_what_they_are_given(component: str, scenario: str) -> None:
    settings, _ = PROGRAMS[component]
    deployment = by_name(scenario).get(f"Deployment/fleet-usher-{component}")
    if deployment is None:
        assert scenario == "minimal"
        return
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    given = environment(container)
    with mock.patch.dict(os.environ, given, clear=True):
        read = settings.from_command_line(container["args"][1:])
    unknown = {name for name in given if name.startswith("USHER_")} - {
        f"USHER_{name.upper()}" for name in settings.model_fields
    }
    assert unknown == set()
    assert read.log_format == "json"


@needs_helm
def test_numbers_and_lists_reach_the_program_as_they_were_written() -> None:
    deployment = by_name(
        "defaults",
        "--set=signaling.settings.maxRequests=100000",
        "--set=signaling.settings.maxConnections=1000000",
        "--set=signaling.settings.loadInterval=0.25",
        "--set=signaling.settings.debugPath=true",
        "--set=signaling.settings.backends={echo,parrot}",
    )["Deployment/fleet-usher-signaling"]
    given = environment(deployment["spec"]["template"]["spec"]["containers"][0])
    assert {
        name: given[name] for name in given if name[6:] in ("MAX_REQUESTS", "MAX_CONNECTIONS", "LOAD_INTERVAL")
    } == {
        "USHER_MAX_REQUESTS": "100000",
        "USHER_MAX_CONNECTIONS": "1000000",
        "USHER_LOAD_INTERVAL": "0.25",
    }
    assert (given["USHER_DEBUG_PATH"], given["USHER_BACKENDS"]) == ("true", "echo,parrot")


@needs_helm
def test_secrets_for_the_registry_reach_the_pods_of_pools_by_the_operator() -> None:
    names = ("--set=global.imagePullSecrets[0].name=a", "--set=global.imagePullSecrets[1].name=b")
    spec = by_name("defaults", *names)["Deployment/fleet-usher-operator"]["spec"]["template"]["spec"]
    assert spec["imagePullSecrets"] == [{"name": "a"}, {"name": "b"}]
    with mock.patch.dict(os.environ, environment(spec["containers"][0]), clear=True):
        assert OperatorSettings.from_command_line([]).defaults.image_pull_secrets == ("a", "b")


def test_linger_and_grace_fit_into_the_end_of_a_pod() -> None:
    signaling = VALUES["signaling"]
    assert signaling["settings"]["linger"] + signaling["settings"]["grace"] < signaling["terminationGracePeriodSeconds"]


def test_the_chart_has_the_newest_crds_alerts_and_settings() -> None:
    assert {path: path.read_text() for path in copies()} == copies(), "run `make chart`"
    folder = CHART / "templates" / "crds"
    assert set(folder.iterdir()) == {path for path in copies() if path.parent == folder}
