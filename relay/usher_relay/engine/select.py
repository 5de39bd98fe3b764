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

    Raises LocalError when it is not installed, or a socket or the keys are of no use.
    """
    native = None if choice == "python" else _native_engine()
    if native is None and choice == "native":
        raise LocalError(
            "the native engine is not installed", "`make native` builds it; or use --engine auto or --engine python"
        )
    engine: Engine = PythonEngine(config, keys) if native is None else native(config, keys)
    log.info("engine chosen", engine=engine.name, asked_for=choice)
    return engine


def _native_engine() -> type[NativeEngine] | None:
    try:
        from usher_relay.engine.native_engine import NativeEngine  # noqa: PLC0415  # an optional distribution
    except ModuleNotFoundError as error:
        if error.name != "usher_relay_native":
            raise
        return None
    return NativeEngine
