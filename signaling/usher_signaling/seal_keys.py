"""The seal keys of this region, and of those whose call ids and ephemeral keys are opened here as well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from usher_core.errors import LocalError
from usher_core.keys import SealKey, index_by_id, newest_active, parse_key_file
from usher_core.sealed import Sealer
from usher_shell.watched_file import WatchedFile

Keys = tuple[SealKey, ...]
_NONE: Keys = ()


class SealKeys:
    """Gives the sealer of what the files say now.

    Args:
        own: our key file.
        others: key files of other regions; one that is missing or wrong costs the texts of that region alone.
        clock: Unix seconds.

    Raises LocalError when our own file can't be used.
    """

    def __init__(self, own: Path, others: Sequence[Path], clock: Callable[[], float]) -> None:
        self.files: tuple[WatchedFile[Keys], ...] = (
            WatchedFile(own, lambda text: _parse_own(text, clock()), "key file"),
            *(WatchedFile(path, _parse, "key file of another region", until_there=_NONE) for path in others),
        )
        self._seen: list[Keys] = []
        self._sealer = Sealer(())
        _ = self()

    def __call__(self) -> Sealer:
        """Return the sealer now."""
        found = [file.value for file in self.files]
        if found != self._seen:
            own, *others = found
            self._sealer = Sealer(own, [key for keys in others for key in keys])
            self._seen = found
        return self._sealer


def _parse(text: str) -> Keys:
    return parse_key_file(text).seal


def _parse_own(text: str, now: float) -> Keys:
    seal = _parse(text)
    _ = index_by_id(seal)  # so that a file that no sealer can use is refused, and the last good one stays
    if newest_active(seal, now) is None:
        raise LocalError("the key file has no active seal key", "make one with `usher keys new`")
    return seal
