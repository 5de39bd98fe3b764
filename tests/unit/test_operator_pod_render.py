"""Merging a pool's podTemplate into what we render."""

from typing import Any

import pytest

from usher_operator.render.merge import merge


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
