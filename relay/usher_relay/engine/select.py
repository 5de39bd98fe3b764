"""Choice of the engine: `auto`, `python` or `native`."""

from __future__ import annotations

from typing import Literal

import structlog

from usher_core.errors import LocalError
from usher_core.keys import KeyFile
from usher_relay.engine.interface import Engine, EngineConfig
from usher_relay.engine.python_engine import PythonEngine

log = structlog.get_logger()


def select_engine(choice: Literal["auto", "python", "native"], config: EngineConfig, keys: KeyFile) -> Engine:
    """Return the chosen engine, with its sockets bound but not started.

    Raises LocalError when it is not installed, or a socket or the keys are of no use.
    """
    if choice == "native":
        raise LocalError("the native engine is not installed", "use --engine auto or --engine python")
    engine = PythonEngine(config, keys)
    log.info("engine chosen", engine=engine.name, asked_for=choice)
    return engine
