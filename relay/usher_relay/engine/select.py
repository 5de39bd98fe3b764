"""Choice of the engine: `auto`, `python` or `native`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import structlog

from usher_core.errors import LocalError
from usher_core.keys import KeyFile
from usher_relay.engine.interface import Engine, EngineConfig
from usher_relay.engine.python_engine import PythonEngine

if TYPE_CHECKING:
    from usher_relay.engine.native_engine import NativeEngine

log = structlog.get_logger()


def select_engine(choice: Literal["auto", "python", "native"], config: EngineConfig, keys: KeyFile) -> Engine:
    """Return the chosen engine, with its sockets bound but not started.

    Raises LocalError when it is not installed or can't do what is asked, or a socket or the keys are of no use.
    """
    if config.with_store and choice == "native":
        raise LocalError(
            "the native engine can't ask Redis for unknown clients yet", "use --engine auto, or leave out --redis-url"
        )
    native = None if choice == "python" or config.with_store else _native_engine()
    if native is None and choice == "native":
        raise LocalError(
            "the native engine is not installed", "`make native` builds it; or use --engine auto or --engine python"
        )
    engine: Engine = PythonEngine(config, keys) if native is None else native(config, keys)
    reason = {"why": "only this one asks Redis so far"} if config.with_store and choice == "auto" else {}
    log.info("engine chosen", engine=engine.name, asked_for=choice, **reason)
    return engine


def _native_engine() -> type[NativeEngine] | None:
    try:
        from usher_relay.engine.native_engine import NativeEngine  # noqa: PLC0415  # an optional distribution
    except ModuleNotFoundError as error:
        if error.name != "usher_relay_native":
            raise
        return None
    return NativeEngine
