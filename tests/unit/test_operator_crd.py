"""The CRDs: those in the repository are what the models say, and such that the API server and people like them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from tests.pages import ROOT
from usher_operator import crd
from usher_operator.api.common import seconds
from usher_operator.api.relay_pool import RelayPoolSpec
from usher_operator.api.transceiver_pool import TransceiverPool, TransceiverPoolSpec
from usher_operator.crd import KINDS, Kind, Schema

PAGE = ROOT / "docs" / "kubernetes-api.md"

kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.model.__name__)


def parts(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """A schema and all within, with their paths."""
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from parts(part, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if name in schema:
            yield from parts(schema[name], f"{path}[]")


@kinds
def test_crds_are_those_of_the_models(kind: Kind) -> None:
    assert (ROOT / "crds" / kind.file_name).read_text() == crd.as_yaml(kind), "run `make crds`"


def test_there_is_no_other_crd() -> None:
    assert {path.name for path in (ROOT / "crds").iterdir()} == {kind.file_name for kind in KINDS}


def test_the_page_has_the_fields_of_the_models() -> None:
    assert PAGE.read_text().partition(crd.BEGIN)[2] == "\n" + crd.reference(), "run `make crds`"


def test_writing_anew_keeps_what_stands_above_the_tables(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"by hand\n{crd.BEGIN}old")
    crd.main(str(tmp_path / "crds"), str(page))
    assert page.read_text() == f"by hand\n{crd.BEGIN}\n{crd.reference()}"
    assert len(list((tmp_path / "crds").iterdir())) == len(KINDS)


@kinds
def test_schemas_are_structural(kind: Kind) -> None:
    for path, part in parts(crd.schema(kind)):
        assert not {"$ref", "$defs", "anyOf", "allOf", "title", "const", "nullable"} & set(part), path
        assert ("type" in part) != ("x-kubernetes-int-or-string" in part), path


@kinds
def test_a_default_has_all_that_is_required(kind: Kind) -> None:
    for path, part in parts(crd.schema(kind)):
        if isinstance(part.get("default"), dict):
            assert set(part.get("required", ())) <= set(part["default"]), path


@kinds
def test_every_field_is_explained(kind: Kind) -> None:
    for path, part in parts(crd.schema(kind)):
        if path and not path.endswith("[]") and path != ".metadata":
            assert part.get("description", "").strip(), path


@kinds
def test_everything_that_people_write_is_bounded(kind: Kind) -> None:
    """Else the API server could not tell what a rule may cost, and refuses the CRD."""
    for path, part in parts(crd.schema(kind)["properties"]["spec"]):
        if part.get("type") == "string" and "enum" not in part and not path.endswith(".exposure.annotations[]"):
            assert "maxLength" in part, path
        if part.get("type") == "array":
            assert "maxItems" in part, path
        if part.get("type") == "integer":
            assert {"minimum", "maximum"} <= set(part), path
        if "additionalProperties" in part:
            assert "maxProperties" in part, path
        assert "pattern" not in part, f"{path}: a rule says in words what to write"


@kinds
def test_every_rule_has_a_message_in_words(kind: Kind) -> None:
    for path, part in parts(crd.schema(kind)):
        for rule in part.get("x-kubernetes-validations", ()):
            assert len(rule["message"].split()) >= 5, path
            assert "self" not in rule["message"], path


@kinds
def test_the_operator_and_the_api_server_have_the_same_defaults(kind: Kind) -> None:
    fields = kind.model.model_fields["spec"]
    assert fields.annotation is not None
    by_server = fields.annotation.model_validate(crd.schema(kind)["properties"]["spec"]["default"])
    assert by_server == fields.annotation()


@kinds
def test_paths_of_columns_and_of_the_scale_exist(kind: Kind) -> None:
    known = {path.replace("[]", "") for path, _ in parts(crd.schema(kind))}
    version = crd.manifest(kind)["spec"]["versions"][0]
    scale = version["subresources"]["scale"].values()
    columns = [column["jsonPath"].replace("[0]", "") for column in version["additionalPrinterColumns"]]
    selectable = [field["jsonPath"] for field in version["selectableFields"]]
    for path in (*scale, *columns, *selectable):
        name = path.replace('[?(@.type=="Ready")]', "")
        assert name in known | {".metadata.creationTimestamp"}, path


@kinds
def test_conditions_before_the_first_look_are_ones_that_the_operator_sets(kind: Kind) -> None:
    status = crd.schema(kind)["properties"]["status"]
    types = status["properties"]["conditions"]["description"].rstrip(".").split(", ")
    assert {condition["type"] for condition in status["default"]["conditions"]} <= set(types)


@pytest.mark.parametrize(
    ("spec", "surge", "unavailable"),
    [
        ({}, 1, 0),
        ({"exposure": {"type": "NodePort"}}, 1, 0),
        ({"exposure": {"type": "HostPort"}}, 0, 1),
        ({"workload": "DaemonSet"}, 0, 1),
        ({"workload": "DaemonSet", "strategy": {"maxSurge": 2, "maxUnavailable": 0}}, 2, 0),
    ],
)
def test_relays_that_are_bound_to_a_node_are_replaced_old_one_first(
    spec: dict[str, Any], surge: int, unavailable: int
) -> None:
    strategy = RelayPoolSpec.model_validate(spec).strategy
    assert (strategy.max_surge, strategy.max_unavailable) == (surge, unavailable)


def test_fields_of_a_newer_crd_are_no_error() -> None:
    pool = {"metadata": {"name": "a", "namespace": "b", "uid": "c"}, "spec": {"tomorrow": 1}, "status": {"later": {}}}
    assert TransceiverPool.model_validate(pool).spec == TransceiverPoolSpec()


def test_durations_are_read_as_people_write_them() -> None:
    assert [seconds(written) for written in ("0s", "90s", "5m", "1h30m", "1h1m1s")] == [0, 90, 300, 5400, 3661]


@pytest.mark.parametrize("written", ["", "90", "s", "1.5h", "-1s", "1d", "30m1h", "1h 5m", "\uff11s", "1s\n"])
def test_other_spellings_of_a_duration_are_refused(written: str) -> None:
    with pytest.raises(ValidationError, match="90s, 5m or 1h30m"):
        TransceiverPoolSpec.model_validate({"maxSessionAge": written})


EXAMPLES = ["relaypool", "relaypool-redis", "transceiverpool", "transceiverpool-realtime", "two-regions/home"]


@pytest.mark.parametrize("name", [*EXAMPLES, "two-regions/ingress"])
def test_fields_of_examples_exist(name: str) -> None:
    for example in yaml.safe_load_all((ROOT / "examples" / f"{name}.yaml").read_text()):
        kind = next(kind for kind in KINDS if kind.model.__name__ == example["kind"])
        fields = kind.model.model_fields["spec"].annotation
        assert fields is not None
        assert set(example["spec"]) <= {field.alias for field in fields.model_fields.values()}
