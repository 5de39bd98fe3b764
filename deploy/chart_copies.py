"""Writes into charts/usher what is the same elsewhere: the CRDs of crds/ and the alerts of examples/.

`python -m deploy.chart_copies`, or `make chart`.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
CHART = ROOT / "charts" / "usher"
ALERTS = ROOT / "examples" / "prometheus-rules.yaml"

_METADATA = "\nmetadata:\n"
_KEEP = "  {{- if .Values.crds.keep }}\n  annotations:\n    helm.sh/resource-policy: keep\n  {{- end }}\n"


def copies() -> dict[Path, str]:
    """Return the text of each copy by its path."""
    crds = {CHART / "templates" / "crds" / path.name: _template(path.read_text()) for path in ROOT.glob("crds/*.yaml")}
    return {**crds, CHART / "files" / ALERTS.name: ALERTS.read_text()}


def _template(crd: str) -> str:
    """Wrap a CRD into its switch. The text itself holds nothing that Helm would take for its own."""
    if "{{" in crd or crd.count(_METADATA) != 1:
        raise ValueError("a CRD is expected without braces of Helm and with one block of metadata")
    return "{{- if .Values.crds.enabled }}\n" + crd.replace(_METADATA, _METADATA + _KEEP) + "{{- end }}\n"


if __name__ == "__main__":
    for path, text in copies().items():
        path.write_text(text)
