"""Writes into charts/usher what comes from elsewhere: CRDs, alerts, and the settings that its schema lets through.

`python -m deploy.chart_copies`, or `make chart`.
"""

from __future__ import annotations

import json
import typing
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from usher_core.settings import ProgramSettings
from usher_operator.settings import OperatorSettings
from usher_signaling.settings import SignalingSettings

ROOT = Path(__file__).parents[1]
CHART = ROOT / "charts" / "usher"
ALERTS = ROOT / "examples" / "prometheus-rules.yaml"
SCHEMA = CHART / "values.schema.json"

PROGRAMS: dict[str, tuple[type[ProgramSettings], frozenset[str]]] = {
    "operator": (
        OperatorSettings,
        frozenset(
            {
                *("http", "log_format", "own_namespace", "namespaces", "lease_name"),
                *("relay_image", "transceiver_image", "image_pull_secrets"),
            }
        ),
    ),
    "signaling": (
        SignalingSettings,
        frozenset(
            {
                *("http", "log_format", "keys_file", "token_file", "api_keys_file", "keyless", "routes_file"),
                *("pods_namespace", "pods_selector", "relay_pools_namespace"),
            }
        ),
    ),
}
"""By the block in values.yaml: the settings of the program, and those that the chart sets itself or never."""

_METADATA = "\nmetadata:\n"
_KEEP = "  {{- if .Values.crds.keep }}\n  annotations:\n    helm.sh/resource-policy: keep\n  {{- end }}\n"


def copies() -> dict[Path, str]:
    """Return the text of each copy by its path."""
    crds = {CHART / "templates" / "crds" / path.name: _template(path.read_text()) for path in ROOT.glob("crds/*.yaml")}
    return {**crds, CHART / "files" / ALERTS.name: ALERTS.read_text(), SCHEMA: _schema()}


def camel_case(name: str) -> str:
    """Return the name of a setting as values.yaml has it."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _template(crd: str) -> str:
    """Wrap a CRD into its switch. The text itself holds nothing that Helm would take for its own."""
    if "{{" in crd or crd.count(_METADATA) != 1:
        raise ValueError("a CRD is expected without braces of Helm and with one block of metadata")
    return "{{- if .Values.crds.enabled }}\n" + crd.replace(_METADATA, _METADATA + _KEEP) + "{{- end }}\n"


def _schema() -> str:
    schema = json.loads(SCHEMA.read_text())
    for block, (settings, ours) in PROGRAMS.items():
        schema["properties"][block]["properties"]["settings"] = {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                camel_case(name): {**_type(field.annotation), "description": field.description or ""}
                for name, field in settings.model_fields.items()
                if name not in ours and not _is_secret(field.annotation)
            },
        }
    return json.dumps(schema, indent=2) + "\n"


def _is_secret(annotation: Any) -> bool:
    return annotation is SecretStr or any(map(_is_secret, typing.get_args(annotation)))


def _type(annotation: Any) -> dict[str, Any]:
    """Return the JSON type of a setting's value; the program itself checks the rest."""
    kinds = {annotation, typing.get_origin(annotation), *typing.get_args(annotation)}
    if bool in kinds:
        return {"type": "boolean"}
    if tuple in kinds:
        return {"type": ["array", "string"], "items": {"type": "string"}}
    if float in kinds:
        # `helm --set` takes a number with a point for text.
        return {"type": ["number", "string"], "pattern": r"^[0-9]+(\.[0-9]+)?$"}
    return {"type": "integer"} if int in kinds else {"type": "string"}


if __name__ == "__main__":
    for path, text in copies().items():
        path.write_text(text)
