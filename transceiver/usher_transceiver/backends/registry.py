"""Finds backends by name among the entry points of installed distributions."""

from importlib.metadata import EntryPoint, entry_points
from typing import Final

import structlog

from usher_core.errors import LocalError
from usher_transceiver.backends.protocol import BackendFactory

GROUP: Final = "usher.backends"

log = structlog.get_logger()


def names() -> list[str]:
    """Return the names of all installed backends, sorted."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def load_backends(default: str) -> dict[str, BackendFactory]:
    """Import all installed backends, by name. One that can't be imported is left out and logged.

    Raises LocalError when `default` can't be had.
    """
    loaded = {default: load_backend(default)}
    for name in names():
        if name in loaded:
            continue
        try:
            loaded[name] = load_backend(name)
        except LocalError as error:
            log.warning("a backend is left out", backend=name, error=str(error))
    return loaded


def load_backend(name: str) -> BackendFactory:
    """Import a backend and return what makes one per call. Do it once, at the start: importing may take seconds.

    Raises LocalError when the name is unknown, used by two distributions, or cannot be imported.
    """
    found: list[EntryPoint] = list(entry_points(group=GROUP, name=name))
    if not found:
        raise LocalError(
            f"there is no backend {name!r}",
            f"known here: {', '.join(names()) or 'none'}; install the distribution that has the entry point "
            f"{name!r} in the group {GROUP}",
        )
    if len({entry.value for entry in found}) > 1:
        owners = ", ".join(sorted(entry.dist.name if entry.dist else entry.value for entry in found))
        raise LocalError(f"the backend {name!r} is in several distributions: {owners}", "remove all but one")
    try:
        factory = found[0].load()
    except Exception as error:  # importing somebody's module may raise anything
        raise LocalError(
            f"the backend {name!r} ({found[0].value}) could not be imported: {type(error).__name__}: {error}",
            "see the error above" if error.__cause__ else "",
        ) from error
    if not callable(factory):
        raise LocalError(
            f"the backend {name!r} ({found[0].value}) is no class or function",
            "name something that can be called with the configuration and returns a backend",
        )
    checked: BackendFactory = factory
    return checked
