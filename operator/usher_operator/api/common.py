"""What both kinds share: the base of all models, and the parts of a pod that people set."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from usher_operator.api.fields import DURATION, NONE, FreeForm, IntOrPercent, Quantity, Rule, rules

_UNITS = {"h": 3600, "m": 60, "s": 1}


def seconds(duration: str) -> int:
    """Return the seconds of a duration such as `90s` or `1h30m`. The schema has checked its form."""
    return sum(int(number) * _UNITS[unit] for number, unit in re.findall("([0-9]+)(h|m|s)", duration))


def _check_duration(value: str) -> str:
    if not value or not re.fullmatch(DURATION, value):
        raise ValueError("a duration is written as 90s, 5m or 1h30m")
    return value


Duration = Annotated[str, Field(max_length=20), AfterValidator(_check_duration)]


class Model(BaseModel):
    """Base: camelCase outside, unknown fields ignored (a newer CRD may have more), immutable."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True, use_attribute_docstrings=True
    )


class LocalReference(Model):
    """Names an object in the namespace of the pool."""

    name: str = Field(min_length=1, max_length=253)
    """Name of the object."""


_SECRET_KEY = rules(
    Rule(
        "self.matches('^[A-Za-z0-9._-]+$')",
        "write a key as a Secret may have it: letters, digits and . _ -, such as api-key",
    )
)


class SecretKeyReference(Model):
    """Names a key of a Secret in the namespace of the pool."""

    name: str = Field(min_length=1, max_length=253)
    """Name of the Secret."""
    key: str = Field(min_length=1, max_length=253, json_schema_extra=_SECRET_KEY)
    """Key within it."""


class Keys(Model):
    """Where the keys of ufrags and hop datagrams come from."""

    secret_ref: LocalReference | None = None
    """Secret with a `keys.json` for this kind of program (docs/wire.md section 1), made and rotated by you; name it in
    the chart's `rbac.secretNames`, too. Left out: the operator makes the keys of the namespace and rotates them."""


class Resources(Model):
    """CPU and memory of a container, as in a pod."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "!has(self.requests) || !has(self.limits) || self.requests.all(name, !(name in self.limits) || "
                "!isQuantity(string(self.requests[name])) || !isQuantity(string(self.limits[name])) || "
                "quantity(string(self.requests[name])).compareTo(quantity(string(self.limits[name]))) <= 0)",
                "a request may not be greater than its limit",
            )
        )
    )

    requests: dict[str, Quantity] = Field(default_factory=dict, max_length=16)
    """What the scheduler reserves. An HPA on CPU needs a CPU request."""
    limits: dict[str, Quantity] = Field(default_factory=dict, max_length=16)
    """What the container may not exceed. A CPU limit makes audio stutter: set memory only."""


class Placement(Model):
    """Where pods may run; the fields of a pod's spec with the same names."""

    node_selector: dict[str, Annotated[str, Field(max_length=63)]] = Field(default_factory=dict, max_length=32)
    """Labels that a node must have."""
    tolerations: list[FreeForm] = Field(default_factory=list, max_length=32)
    """Taints that don't keep the pods away."""
    affinity: FreeForm | None = None
    """Affinity rules of a pod."""
    topology_spread_constraints: list[FreeForm] | None = Field(default=None, max_length=8)
    """How pods are spread. Left out: over zones and nodes where possible."""
    priority_class_name: str = Field(default="", max_length=253)
    """Priority class of the pods."""


class Disruption(Model):
    """The PodDisruptionBudget: exactly one of the two fields."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "has(self.minAvailable) != has(self.maxUnavailable)",
                "set exactly one of minAvailable and maxUnavailable",
            )
        )
    )

    min_available: IntOrPercent | None = None
    """Pods that stay when nodes are drained, as a number or a percentage."""
    max_unavailable: IntOrPercent | None = None
    """Pods that may be missing when nodes are drained, as a number or a percentage."""


class Strategy(Model):
    """How a rollout replaces pods."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                f"!(string(self.maxSurge) in {NONE} && string(self.maxUnavailable) in {NONE})",
                "maxSurge and maxUnavailable can't both be 0: no pod could ever be replaced",
            )
        )
    )

    max_surge: IntOrPercent
    """Pods above the wanted number during a rollout."""
    max_unavailable: IntOrPercent
    """Pods below the wanted number during a rollout."""


class Metadata(Model):
    """What we read of an object's metadata."""

    name: str
    namespace: str
    uid: str
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    deletion_timestamp: str | None = None
    finalizers: list[str] = Field(default_factory=list)


class Condition(Model):
    """A condition, as in every Kubernetes API."""

    type: str = Field(min_length=1, max_length=316)
    """What it is about."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: str = Field(min_length=1, max_length=1024)
    """Why, in one CamelCase word for programs."""
    message: str = Field(max_length=32768)
    """Why, in a sentence for people, with what to change."""
    last_transition_time: str = Field(json_schema_extra={"format": "date-time"})
    """When the status last changed."""
    observed_generation: int | None = Field(default=None, ge=0)
    """The generation of the spec that this was said of."""
