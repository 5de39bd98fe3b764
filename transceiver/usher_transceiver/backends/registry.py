"""Finds backends by name among the entry points of installed distributions."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, get_args

import structlog

from usher_core.errors import LocalError
from usher_transceiver.backends.coroutine import CoroutineBackend
from usher_transceiver.backends.faults import log_fault
from usher_transceiver.backends.protocol import AudioKind, Backend, BackendConfig, BackendFactory
from usher_transceiver.backends.watch import BackendWatch

GROUP: Final = "usher.backends"
KINDS: Final = get_args(AudioKind)
METHODS: Final = ("start", "on_audio", "on_event", "close")

log = structlog.get_logger()


class BackendFailedError(Exception):
    """A backend could not be made; the log says why."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the backend {name!r} could not be made; the transceiver's log says why")


def names() -> list[str]:
    """Return the names of all installed backends, sorted."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def load_backends(
    default: str, watch: BackendWatch, built_in: Mapping[str, BackendFactory] | None = None
) -> dict[str, BackendFactory]:
    """Import all installed backends, by name. One that can't be imported is left out and logged.

    `built_in`: those that the program has made itself, because they need its settings.

    Raises LocalError when `default` can't be had.
    """
    loaded = dict(built_in or {})
    if default not in loaded:
        loaded[default] = load_backend(default, watch)
    for name in names():
        if name in loaded:
            continue
        try:
            loaded[name] = load_backend(name, watch)
        except LocalError as error:
            log.warning("a backend is left out", backend=name, error=str(error))
    return loaded


def load_backend(name: str, watch: BackendWatch) -> BackendFactory:
    """Import a backend and return what makes one per call. Do it once, at the start: importing may take seconds.

    Raises LocalError when the name is unknown, used by two distributions, or cannot be imported, when it is a class
    that lacks `audio` or a method, and when it is a coroutine function that does not take just the call. What another
    function returns is looked at when it is called, by `make_backend`.
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
            "name a coroutine function that takes the call, or what can be called with the configuration and returns "
            "a backend",
        )
    if inspect.iscoroutinefunction(factory) or inspect.isasyncgenfunction(factory):
        if fault := _run_fault(factory):
            raise LocalError(f"the backend {name!r} ({found[0].value}) {fault}", "write it as `async def run(call)`")
        return partial(CoroutineBackend, factory, name, watch)
    if inspect.isclass(factory) and (fault := _fault(factory)):
        raise LocalError(
            f"the backend {name!r} ({found[0].value}) {fault}",
            'it needs audio = "pcm" or "opus" in the class, and the methods start, on_audio, on_event and close',
        )
    checked: BackendFactory = factory
    return checked


def make_backend(name: str, factory: BackendFactory, config: BackendConfig) -> Backend:
    """Make the backend of one call. Raises BackendFailedError when that raises, or what it returns is no backend."""
    try:
        backend = factory(config)
        if fault := _fault(backend):
            raise TypeError(f"{type(backend).__name__} {fault}")
        if backend.audio not in KINDS:
            raise ValueError(f"expected audio = 'pcm' or 'opus', not {backend.audio!r}")
    except Exception as error:  # noqa: BLE001 - a backend is somebody's code
        log_fault(log.bind(backend=name), "the backend could not be made", error)
        raise BackendFailedError(name) from None
    return backend


def _fault(backend: object) -> str:
    """Say what a backend or its class lacks, "" for nothing."""
    lacks = [name for name in ("audio", *METHODS) if not hasattr(backend, name)]
    lacks += [f"{name}()" for name in METHODS if name not in lacks and not callable(getattr(backend, name))]
    return f"has no {', '.join(lacks)}" if lacks else ""


def _run_fault(run: Callable[..., Any]) -> str:
    """Say why a function can't be the `run` of a backend, "" for nothing."""
    if inspect.isasyncgenfunction(run):
        return "yields; it plays by `await call.play(pcm)`"
    try:
        inspect.signature(run).bind(None)
    except TypeError as error:
        return f"can't be called with the call alone: {error}"
    return ""
