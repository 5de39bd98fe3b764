"""Whether a file that a flag names can be written, told before the work begins."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from usher_core.errors import LocalError


def check_output_file(flag: str, path: Path) -> None:
    """Raise LocalError unless `path` is a regular file or absent, in a directory that we may write to.

    Nothing is written. What is no regular file is refused: a device or a FIFO would be replaced, or block us.
    """
    where = path.parent
    try:
        if not stat.S_ISDIR(where.stat().st_mode):
            raise LocalError(f"{flag} {path}: {where} is no directory", "choose another file")
        found = path.stat().st_mode if path.exists() else None
    except OSError as error:
        raise LocalError(f"{flag} {path}: {error.strerror}", "choose a file in a directory that exists") from None
    if found is not None and not stat.S_ISREG(found):
        kind = "a directory" if stat.S_ISDIR(found) else "no regular file"
        raise LocalError(f"{flag} {path}: this is {kind}", "name a regular file, or one that does not exist yet")
    if not os.access(where, os.W_OK | os.X_OK) or (found is not None and not os.access(path, os.W_OK)):
        raise LocalError(f"{flag} {path}: we may not write there", "choose another file")
