"""Settings that say where the route table comes from; relays and signaling share them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator

from usher_core.settings import ProgramSettings, TextList

MAX_NAMESPACES = 16
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def check_namespaces(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of namespaces. Raises ValueError for one that is none, or stands twice."""
    for name in names:
        if not _NAMESPACE.fullmatch(name):
            raise ValueError(
                f"{name!r} is no name of a namespace: up to 63 lower-case letters, digits and inner hyphens are"
            )
    if len(set(names)) != len(names):
        raise ValueError("a namespace stands twice")
    return names


class RouteSettings(ProgramSettings):
    """Exactly one source: a file, or the transceiver pods of Kubernetes namespaces."""

    routes_file: Path | None = Field(
        default=None,
        description="route file with the transceivers, read again when it changes; the last good table stays when it "
        "is lost. In Kubernetes give --pods-namespace instead",
    )
    pods_namespace: TextList = Field(
        default=(),
        max_length=MAX_NAMESPACES,
        description="Kubernetes namespace (repeatable) whose transceiver pods are the routes, in place of "
        "--routes-file; needs to list and watch pods there",
    )
    pods_selector: str = Field(
        default="",
        max_length=4096,
        description="label selector of these pods, such as usher.fleet/pool=voice; none: all transceivers",
    )

    @field_validator("pods_namespace")
    @classmethod
    def _are_namespaces(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return check_namespaces(value)

    @model_validator(mode="after")
    def _one_source_of_routes(self) -> Self:
        if (self.routes_file is None) == (not self.pods_namespace):
            raise ValueError("where the transceivers are is told by one of routes_file and pods_namespace")
        if self.pods_selector and not self.pods_namespace:
            raise ValueError("pods_selector has a meaning only with pods_namespace")
        return self
