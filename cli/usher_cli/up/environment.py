"""The environment of the programs that `usher up` starts."""

from __future__ import annotations

from collections.abc import Mapping

from usher_cli.up.settings import UpSettings
from usher_core.logs import is_coloured


def environment_of_child(
    ours: Mapping[str, str], settings: UpSettings, *, with_key: bool, is_terminal: bool
) -> dict[str, str]:
    """Return the environment of `usher up` without what was meant for itself.

    Args:
        ours: the environment of `usher up`.
        settings: of `usher up`.
        with_key: whether the program gets the API key.
        is_terminal: whether our stderr is one.
    """
    own = {f"USHER_{field.upper()}" for field in UpSettings.model_fields}
    environment = {name: value for name, value in ours.items() if name not in own}
    if is_coloured(environment, is_terminal=is_terminal):
        # Its lines go to a pipe, and from there to where ours go.
        environment["FORCE_COLOR"] = "1"
    if with_key and settings.api_key is not None:
        # Not as a flag: any user of this machine can read those.
        environment["USHER_API_KEY"] = settings.api_key.get_secret_value()
    return environment
