"""The private directory of one run: keys, token and route file. Removed at the end."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from usher_cli.key_files import RELAY_FILE, SIGNALING_FILE, TOKEN_FILE, TRANSCEIVER_FILE, write_key_files
from usher_cli.up.atomic_file import write_atomically
from usher_core.errors import LocalError
from usher_core.routes import RouteFile, Transceiver

CLUSTER = 1
"""All of `usher up` is one cluster."""


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """A directory of mode 0700 in the system's place for temporary files; a context manager that removes it."""

    path: Path

    @classmethod
    def make(cls) -> Self:
        """Make the directory with fresh keys and an empty route file. Raises LocalError when that fails."""
        try:
            directory = cls(Path(tempfile.mkdtemp(prefix="usher-up-")))
        except OSError as error:
            raise LocalError(f"no place for temporary files: {error.strerror}", "TMPDIR can name one") from None
        try:
            write_key_files(directory.path, [CLUSTER], time.time())
            directory.write_routes([])
        except LocalError:
            directory.__exit__()
            raise
        return directory

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    @property
    def relay_keys(self) -> str:
        return str(self.path / RELAY_FILE)

    @property
    def transceiver_keys(self) -> str:
        return str(self.path / TRANSCEIVER_FILE)

    @property
    def signaling_keys(self) -> str:
        return str(self.path / SIGNALING_FILE)

    @property
    def token(self) -> str:
        return str(self.path / TOKEN_FILE)

    @property
    def routes(self) -> str:
        return str(self.path / "routes.json")

    def write_routes(self, transceivers: Iterable[Transceiver]) -> None:
        """Replace the route file, which relays and signaling read again. Raises LocalError when it can't be written."""
        file = RouteFile(version=1, transceivers=tuple(transceivers))
        write_atomically(Path(self.routes), json.dumps(file.model_dump(mode="json")))
