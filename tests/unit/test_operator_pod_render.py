"""What pods of both kinds of pools have in common, and merging a pool's podTemplate into it."""

from dataclasses import replace
from typing import Any

import pytest

from tests.operator_relays import DEFAULTS, relay_pool
from tests.transceiver_pools import CLUSTER, make_pool
from usher_operator.render.merge import merge
from usher_operator.render.relay import relay_workload
from usher_operator.render.transceiver import transceiver_deployment


@pytest.mark.parametrize(
    ("base", "extra", "merged"),
    [
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}}, {"a": {"b": 1, "c": 3}}),
        ({"args": ["relay"]}, {"args": ["sleep"]}, {"args": ["sleep"]}),
        (
            {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
            {"env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}]},
            {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "3"}, {"name": "C", "value": "4"}]},
        ),
        (
            {"volumeMounts": [{"name": "keys", "mountPath": "/a"}]},
            {"volumeMounts": [{"name": "keys", "mountPath": "/b"}]},
            {"volumeMounts": [{"name": "keys", "mountPath": "/a"}, {"name": "keys", "mountPath": "/b"}]},
        ),
        ({"volumes": [{"name": "a"}]}, {"volumes": ["wrong"]}, {"volumes": [{"name": "a"}, "wrong"]}),
        ({"a": {"b": 1}}, {"a": None}, {"a": None}),
    ],
)
def test_objects_merge_by_key_named_lists_by_name_and_all_else_is_replaced(
    base: dict[str, Any], extra: dict[str, Any], merged: dict[str, Any]
) -> None:
    assert merge(base, extra) == merged


def test_merging_changes_neither_side() -> None:
    base = {"env": [{"name": "A", "value": "1"}]}
    extra = {"env": [{"name": "A", "value": "2"}]}
    merge(base, extra)
    assert base == {"env": [{"name": "A", "value": "1"}]}
    assert extra == {"env": [{"name": "A", "value": "2"}]}


@pytest.mark.parametrize(
    ("of_pool", "of_operator", "used"),
    [
        ([], (), None),
        ([], ("registry", "mirror"), ["registry", "mirror"]),
        (["mine"], ("registry",), ["mine"]),
        (["mine"], (), ["mine"]),
    ],
)
def test_images_are_pulled_with_the_secrets_of_the_pool_or_else_those_of_the_operator(
    of_pool: list[str], of_operator: tuple[str, ...], used: list[str] | None
) -> None:
    spec: dict[str, Any] = {"imagePullSecrets": [{"name": name} for name in of_pool]} if of_pool else {}
    defaults = replace(DEFAULTS, image_pull_secrets=of_operator)
    wanted = None if used is None else [{"name": name} for name in used]
    for workload in (
        relay_workload(relay_pool(**spec), defaults),
        transceiver_deployment(make_pool(spec), CLUSTER, defaults),
    ):
        assert workload["spec"]["template"]["spec"].get("imagePullSecrets") == wanted
