"""Makes `crds/*.yaml` and the tables of `docs/kubernetes-api.md` from the models in `api`.

`python -m usher_operator.crd crds docs/kubernetes-api.md` writes both.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from usher_operator.api.relay_pool import RelayPool
from usher_operator.api.transceiver_pool import TransceiverPool
from usher_operator.names import GROUP, VERSION

Schema = dict[str, Any]

_EPOCH = "1970-01-01T00:00:00Z"
_BEFORE_FIRST_LOOK = [
    {
        "type": type_,
        "status": "Unknown",
        "reason": "Pending",
        "message": "Waiting for the operator",
        "lastTransitionTime": _EPOCH,
    }
    for type_ in ("Accepted", "Ready")
]
"""Conditions of a pool that no operator has seen yet. Only types that every look sets again, else they would stay."""

_READY = '.status.conditions[?(@.type=="Ready")]'


def _column(name: str, path: str, kind: str, description: str, *, wide: bool = False) -> dict[str, Any]:
    """Return a column of `kubectl get`; a wide one stands there with `-o wide` only."""
    column = {"name": name, "jsonPath": path, "type": kind, "description": description}
    return {**column, "priority": 1} if wide else column


_HOW_IT_IS = (
    _column("Status", f"{_READY}.reason", "string", "Whether the pool is ready, or why not."),
    _column("Age", ".metadata.creationTimestamp", "date", "Time since the pool was made."),
)
_LAST_COLUMNS = (
    _column("Region", ".spec.region", "string", "Region of the pool.", wide=True),
    _column("Message", f"{_READY}.message", "string", "Why, in words.", wide=True),
)


@dataclass(frozen=True, slots=True)
class Kind:
    """A custom resource as the API server has to know it."""

    model: type[RelayPool | TransceiverPool]
    short_name: str
    columns: tuple[dict[str, Any], ...]
    selectable: tuple[str, ...]
    """Fields that `kubectl get --field-selector` knows."""

    @property
    def file_name(self) -> str:
        return f"{GROUP}_{self.model.plural}.yaml"


KINDS = (
    Kind(
        RelayPool,
        "rpool",
        (
            _column("Exposure", ".spec.exposure.type", "string", "How clients reach the relays."),
            _column("Desired", ".status.desiredReplicas", "integer", "Wanted relays."),
            _column("Current", ".status.replicas", "integer", "Relays that exist."),
            _column("Ready", ".status.readyReplicas", "integer", "Relays that are ready."),
            _column("Address", ".status.endpoint", "string", "First public address, with its port."),
            *_HOW_IT_IS,
            _column("Trunk", ".status.trunkAddresses[0]", "string", "Where other clusters' relays send.", wide=True),
            _column("Peers", ".status.peersUp", "string", "Clusters that the relays reach, of all.", wide=True),
            *_LAST_COLUMNS,
        ),
        (".spec.region", ".spec.exposure.type"),
    ),
    Kind(
        TransceiverPool,
        "tpool",
        (
            _column("Cluster", ".status.clusterID", "integer", "Cluster id in use."),
            _column("Desired", ".spec.replicas", "integer", "Wanted transceivers."),
            _column("Current", ".status.replicas", "integer", "Transceivers that take calls or soon will."),
            _column("Ready", ".status.readyReplicas", "integer", "Transceivers that are ready."),
            _column("Draining", ".status.drainingReplicas", "integer", "Transceivers that wait for their last call."),
            _column("Calls", ".status.sessions", "integer", "Calls, about."),
            *_HOW_IT_IS,
            *_LAST_COLUMNS,
        ),
        (".spec.region", ".spec.clusterID", ".status.clusterID"),
    ),
)


def manifest(kind: Kind) -> dict[str, Any]:
    """Return the CustomResourceDefinition of a kind."""
    name, plural = kind.model.__name__, kind.model.plural
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": name,
                "listKind": f"{name}List",
                "plural": plural,
                "singular": name.lower(),
                "shortNames": [kind.short_name],
                "categories": ["usher"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "selectableFields": [{"jsonPath": path} for path in kind.selectable],
                    "additionalPrinterColumns": list(kind.columns),
                    "schema": {"openAPIV3Schema": schema(kind)},
                }
            ],
        },
    }


def schema(kind: Kind) -> Schema:
    """Return the structural schema of a kind, with the defaults that the API server sets."""
    generated = kind.model.model_json_schema()
    fields, definitions = generated["properties"], generated["$defs"]
    status = _structural(fields["status"], definitions)
    return {
        "description": generated["description"],
        "type": "object",
        "x-kubernetes-validations": generated["x-kubernetes-validations"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"{GROUP}/{VERSION}"},
            "kind": {"type": "string", "description": kind.model.__name__},
            "metadata": {"type": "object"},
            "spec": _with_defaults(_structural(fields["spec"], definitions)),
            "status": {**_without_defaults(status), "default": {"conditions": _BEFORE_FIRST_LOOK}},
        },
        "required": ["metadata"],
    }


_UNKNOWN_TO_KUBERNETES = {"title", "const", "additionalProperties", "anyOf"}


def _structural(part: Schema, definitions: dict[str, Schema]) -> Schema:
    """Turn what pydantic makes into what Kubernetes takes: references put in, no null, no title."""
    if "$ref" in part:
        target = definitions[part["$ref"].removeprefix("#/$defs/")]
        return _structural({**target, **{name: value for name, value in part.items() if name != "$ref"}}, definitions)
    choices = [choice for choice in part.get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) == 1:  # the others are integer or string, for which Kubernetes has a word
        return _structural({**choices[0], **{name: part[name] for name in part if name != "anyOf"}}, definitions)
    first = {name: part[name] for name in ("description", "type") if name in part}
    result = first | {name: value for name, value in part.items() if name not in _UNKNOWN_TO_KUBERNETES}
    if "description" in result:
        result["description"] = " ".join(result["description"].split())
    if "const" in part:
        result["enum"] = [part["const"]]
    if isinstance(values := part.get("additionalProperties"), dict):
        result["additionalProperties"] = _structural(values, definitions)
    if "items" in part:
        result["items"] = _structural(part["items"], definitions)
    if "properties" in part:
        result["properties"] = {name: _structural(field, definitions) for name, field in part["properties"].items()}
    return result


def _with_defaults(part: Schema) -> Schema:
    """Keep the defaults of single values, and give objects that hold such those of their fields.

    Lists get none, nor objects whose fields belong together: who applies `minAvailable` later would find a
    `maxUnavailable` beside it that nobody wrote. The operator knows those defaults, and the descriptions say them.
    An object that may be missing stays missing, and one with a field that people have to write gets no default.
    """
    result = {name: value for name, value in part.items() if name != "default"}
    if "items" in part:
        result["items"] = _with_defaults(part["items"])
    if "properties" in part:
        result["properties"] = {name: _with_defaults(field) for name, field in part["properties"].items()}
    default = part.get("default")
    inner = {name: field["default"] for name, field in result.get("properties", {}).items() if "default" in field}
    if isinstance(default, int) or (isinstance(default, str) and default):
        result["default"] = default
        result["description"] += f" Default: {default if isinstance(default, str) else json.dumps(default)}."
    elif inner and (default is not None or "default" not in part) and set(part.get("required", ())) <= set(inner):
        result["default"] = inner
    return result


def _without_defaults(part: Any) -> Any:
    """What the operator has not said stays unsaid."""
    if isinstance(part, dict):
        return {name: _without_defaults(value) for name, value in part.items() if name != "default"}
    return [_without_defaults(value) for value in part] if isinstance(part, list) else part


class _Dumper(yaml.SafeDumper):
    """Writes everything out: references within YAML are hard to read."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def as_yaml(kind: Kind) -> str:
    """Return the file of a kind in `crds/`."""
    head = "# Made by `make crds` from operator/usher_operator/api: change it there.\n"
    return head + yaml.dump(manifest(kind), Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


BEGIN = "<!-- Below: made by `make crds`. -->\n"
"""The line of the page under which its tables begin."""


def reference() -> str:
    """Return the tables of all kinds in Markdown."""
    return "\n".join("\n".join(_section(kind)) for kind in KINDS)


def _section(kind: Kind) -> Iterator[str]:
    root = schema(kind)
    yield f"## {kind.model.__name__}\n"
    yield f"{root['description']} Short name `{kind.short_name}`.\n"
    for half in ("spec", "status"):
        yield f"### The {half} of a {kind.model.__name__}\n"
        yield "| Field | Type | Meaning |\n| --- | --- | --- |"
        for path, part in _fields(root["properties"][half]):
            yield f"| `{path}` | {_type(part)} | {part['description']} |"
        yield ""
    yield f"### What the API server says to a {kind.model.__name__} that can't work\n"
    yield "| Where | Message |\n| --- | --- |"
    wheres: dict[str, list[str]] = {}
    for path, says in _messages(root):
        wheres.setdefault(says, []).append(f"`{path}`" if path else "the whole")
    for says, paths in wheres.items():
        yield f"| {', '.join(paths)} | {says} |"
    yield ""


def _fields(part: Schema, prefix: str = "") -> Iterator[tuple[str, Schema]]:
    for name, field in part.get("properties", {}).items():
        yield f"{prefix}{name}", field
        yield from _fields(field, f"{prefix}{name}.")
        yield from _fields(field.get("items", {}), f"{prefix}{name}[].")


def _messages(part: Schema, path: str = "") -> Iterator[tuple[str, str]]:
    for rule in part.get("x-kubernetes-validations", ()):
        yield path, rule["message"]
    for name, field in part.get("properties", {}).items():
        yield from _messages(field, f"{path}.{name}".lstrip("."))
    for name, suffix in (("items", "[]"), ("additionalProperties", ".*")):
        if name in part:
            yield from _messages(part[name], path + suffix)


def _type(part: Schema) -> str:
    if "enum" in part:
        return " or ".join(f"`{value}`" for value in part["enum"])
    if "x-kubernetes-int-or-string" in part:
        return "number or percentage"
    if "maxItems" in part:
        return f"list, at most {part['maxItems']}"
    if "additionalProperties" in part:
        return "map"
    if "maximum" in part:
        return f"integer, {part['minimum']} to {part['maximum']}"
    return str(part["type"])


def main(folder: str, page: str) -> None:
    """Write the CRDs into a folder, and the tables into a page under its line `BEGIN`."""
    Path(folder).mkdir(exist_ok=True)
    for kind in KINDS:
        (Path(folder) / kind.file_name).write_text(as_yaml(kind))
    head, begin, _ = Path(page).read_text().partition(BEGIN)
    Path(page).write_text(head + begin + "\n" + reference())


if __name__ == "__main__":
    main(*sys.argv[1:])
