"""Whether an event is one of the Realtime protocol, by the models of the `openai` Python package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from openai.types.realtime import RealtimeClientEvent, RealtimeServerEvent
from pydantic import BaseModel, ValidationError

Models = dict[str, type[BaseModel]]


def _models(union: Any) -> Models:
    """The members of one of the package's unions by the `type` of their event."""
    members = get_args(get_args(union)[0])
    return {get_args(member.model_fields["type"].annotation)[0]: member for member in members}


CLIENT: Models = _models(RealtimeClientEvent)
SERVER: Models = _models(RealtimeServerEvent)


def faults(event: dict[str, Any], models: Models) -> list[str]:
    """What is wrong with an event: its type, a field's type, a field that no model knows."""
    model = models.get(str(event.get("type")))
    if model is None:
        return [f"{event.get('type')!r} is no event"]
    try:
        return [f"{model.__name__} has no {name}" for name in _unknown(model.model_validate(event, strict=True))]
    except ValidationError as error:
        return [f"{model.__name__}.{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]


def _unknown(model: BaseModel) -> Iterator[str]:
    yield from model.model_extra or ()
    for name, value in model:
        # Objects of sessions have more fields than the package's requests.
        if name != "session":
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, BaseModel):
                    yield from (f"{name}.{inner}" for inner in _unknown(part))
