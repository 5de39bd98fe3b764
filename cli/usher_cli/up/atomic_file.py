"""Files that others read while we rewrite them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from usher_core.errors import LocalError


def write_atomically(path: Path, text: str) -> None:
    """Replace the file at `path`, mode 0600: a reader sees the old text or the new one, never a part.

    Raises LocalError when the file can't be written.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        scratch.write_text(text, encoding="utf-8")
        scratch.chmod(0o600)
        scratch.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise LocalError(f"can't write {path}: {error.strerror}") from None
