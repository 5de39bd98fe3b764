"""Kinds of fields, and the rules of CEL that the API server checks: unlike a pattern, a rule says what to write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

NONE = "['0', '0%']"
"""How no pods at all is written, in CEL."""
DURATION = "([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?"
"""Regular expression of a duration; the empty string is none."""

PORT = ":([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
"""Regular expression of a port behind an address."""

_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_LAST_LABEL = "[A-Za-z]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"


def _is_host(port: str) -> tuple[str, ...]:
    """Return rules of CEL, of which a host holds one. `port`: regular expression of what follows it."""
    return (
        rf"self.matches(r'^\[.*\]{port}$') && isIP(self.substring(1, self.indexOf(']')))",
        rf"self.matches(r'^[0-9.]+{port}$') && isIP(self.split(':')[0])",
        rf"self.matches(r'^({_LABEL}\.)*{_LAST_LABEL}{port}$')",
    )


IS_ADDRESS = " || ".join(("isIP(self)", *_is_host(f"({PORT})?")))
"""In CEL: an IP or a host name, with or without a port."""
IS_ADDRESS_WITH_PORT = " || ".join(_is_host(PORT))
"""In CEL: an IP or a host name, with a port."""
IS_NO_WILDCARD = r"!self.matches(r'^(0\.0\.0\.0|\[?::\]?)(:[0-9]+)?$')"


@dataclass(frozen=True, slots=True)
class Rule:
    """What the API server checks, in CEL, and what it says to whoever breaks it."""

    cel: str
    says: str


def rules(*checks: Rule) -> dict[str, Any]:
    """Return rules in the form of a schema."""
    return {"x-kubernetes-validations": [{"rule": rule.cel, "message": rule.says} for rule in checks]}


def keyed_by(*keys: str) -> dict[str, Any]:
    """Return what makes a list one of named entries, which different people can apply parts of."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


def lasting(least: str, most: str) -> dict[str, Any]:
    """Return the rule that a `Duration` lies between two, both included."""
    is_duration = f"self.matches(r'^{DURATION}$') && self != ''"
    is_within = f"duration(self) >= duration('{least}') && duration(self) <= duration('{most}')"
    return rules(Rule(f"{is_duration} && {is_within}", f"write a duration from {least} to {most}, as 90s, 5m or 1h30m"))


IntOrPercent = Annotated[
    int | str,
    Field(
        json_schema_extra={
            "x-kubernetes-int-or-string": True,
            "maxLength": 20,
            **rules(
                Rule(
                    "type(self) == int ? self >= 0 : self.matches('^(100|[1-9]?[0-9])%$')",
                    "write a number of pods, 0 or more, or a percentage from 0% to 100%, such as 25%",
                )
            ),
        }
    ),
]

Quantity = Annotated[
    int | str,
    Field(
        json_schema_extra={
            "x-kubernetes-int-or-string": True,
            "maxLength": 32,
            **rules(
                Rule(
                    "type(self) == int ? self >= 0 : isQuantity(self) && !quantity(self).isLessThan(quantity('0'))",
                    "write an amount such as 500m or 256Mi",
                )
            ),
        }
    ),
]

FreeForm = Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})]

_FREE = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}

PodTemplate = Annotated[
    dict[str, Any],
    Field(
        json_schema_extra={
            "properties": {
                "metadata": {**_FREE, "description": "Labels and annotations to add."},
                "spec": {**_FREE, "description": "Fields of a pod's spec; lists such as `containers` merge by name."},
            }
        }
    ),
]

LabelSelector = Annotated[
    dict[str, Any],
    Field(
        json_schema_extra={
            "x-kubernetes-map-type": "atomic",
            "properties": {
                "matchLabels": {
                    "description": "Labels that a pod must have.",
                    "type": "object",
                    "additionalProperties": {"type": "string", "maxLength": 63},
                    "maxProperties": 16,
                },
                "matchExpressions": {
                    "description": "Further conditions; all must hold.",
                    "type": "array",
                    "maxItems": 16,
                    "items": {
                        "type": "object",
                        "required": ["key", "operator"],
                        "properties": {
                            "key": {"description": "Name of the label.", "type": "string", "maxLength": 317},
                            "operator": {
                                "description": "How the label is compared.",
                                "type": "string",
                                "enum": ["In", "NotIn", "Exists", "DoesNotExist"],
                            },
                            "values": {
                                "description": "For In and NotIn.",
                                "type": "array",
                                "maxItems": 64,
                                "items": {"type": "string", "maxLength": 63},
                            },
                        },
                        **rules(
                            Rule(
                                "(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
                                "In and NotIn need values, Exists and DoesNotExist take none",
                            )
                        ),
                    },
                },
            },
        }
    ),
]

Region = Annotated[
    str,
    Field(
        max_length=63,
        json_schema_extra=rules(
            Rule(
                "self.matches('^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?$')",
                "write a region as letters, digits and . _ - between them, such as eu-west",
            )
        ),
    ),
]

_PATH_PART = "[A-Za-z0-9][A-Za-z0-9._:@-]*"

Image = Annotated[
    str,
    Field(
        max_length=512,
        json_schema_extra=rules(
            Rule(
                f"self == '' || self.matches('^{_PATH_PART}(/{_PATH_PART})*$')",
                "write an image as registry.example.com/usher/NAME:TAG or with @sha256:DIGEST, no https:// or blanks",
            )
        ),
    ),
]

NAME_RULE = Rule(
    "self.metadata.name.matches('^[a-z]([a-z0-9-]*[a-z0-9])?$') && self.metadata.name.size() <= 50",
    "metadata.name names Services and labels too: write at most 50 lower-case letters, digits and hyphens, beginning "
    "with a letter",
)
