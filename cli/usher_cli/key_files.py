"""New key files: one per program, each with only what that program may know (docs/wire.md section 1)."""

from __future__ import annotations

import os
import secrets
import string
from collections.abc import Sequence
from pathlib import Path

from usher_core.errors import LocalError
from usher_core.hop import HOP_KEY_LENGTH
from usher_core.keys import (
    SEAL_KEY_LENGTH,
    STORE_KEY_LENGTH,
    HopKey,
    IceKey,
    KeyFile,
    SealKey,
    StoreKey,
    parse_key_file,
)
from usher_core.ufrag import PASSWORD_KEY_LENGTH, UFRAG_KEY_LENGTH

RELAY_FILE = "relay.json"
TRANSCEIVER_FILE = "transceiver.json"
SIGNALING_FILE = "signaling.json"
TOKEN_FILE = "internal-token"
_TOKEN_BYTES = 32
CLOCK_SKEW_S = 60
"""New keys count from this long ago: hop datagrams tolerate clocks that far apart, so keys do too."""


def make_key_files(clusters: Sequence[int], now: float) -> dict[str, KeyFile]:
    """Return fresh key files by file name.

    Args:
        clusters: the cluster ids that the ICE key serves.
        now: Unix seconds.

    The key letter is drawn, so that two installs seldom try each other's keys.
    """
    since = max(0, int(now) - CLOCK_SKEW_S)
    ice = IceKey(
        letter=secrets.choice(string.ascii_letters),
        clusters=tuple(clusters),
        ufrag_key=secrets.token_bytes(UFRAG_KEY_LENGTH),
        password_key=secrets.token_bytes(PASSWORD_KEY_LENGTH),
        not_before=since,
    )
    hop = HopKey(id=1, key=secrets.token_bytes(HOP_KEY_LENGTH), not_before=since)
    store = StoreKey(id=1, key=secrets.token_bytes(STORE_KEY_LENGTH), not_before=since)
    seal = SealKey(id=1, key=secrets.token_bytes(SEAL_KEY_LENGTH), not_before=since)
    return {
        RELAY_FILE: KeyFile(version=1, ice=(ice,), hop=(hop,), store=(store,)),
        TRANSCEIVER_FILE: KeyFile(version=1, ice=(ice,), hop=(hop,)),
        SIGNALING_FILE: KeyFile(version=1, seal=(seal,)),
    }


def key_file_text(file: KeyFile) -> str:
    """Return what stands in a key file."""
    return file.model_dump_json(indent=2) + "\n"


def write_key_files(directory: Path, clusters: Sequence[int], now: float) -> list[Path]:
    """Write fresh key files and an internal token into `directory`, mode 0600; return their paths.

    Raises LocalError when one of them exists already (nothing is written then), or the directory can't be written.
    """
    texts = {name: key_file_text(keys) for name, keys in make_key_files(clusters, now).items()}
    texts[TOKEN_FILE] = secrets.token_urlsafe(_TOKEN_BYTES) + "\n"
    for name in texts:
        if (directory / name).exists():
            raise LocalError(
                f"{directory / name} exists, and live calls may need its keys", "choose an empty directory with --out"
            )
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, text in texts.items():
            _write_private(directory / name, text)
    except OSError as error:
        raise LocalError(f"can't write keys into {directory}: {error.strerror}") from None
    return [directory / name for name in texts]


def read_key_file(path: Path) -> KeyFile:
    """Return the key file at `path`. Raises LocalError when it can't be read or is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise LocalError(f"can't read the key file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise LocalError(f"{path} is no key file: it is not text", "make one with `usher keys new`") from None
    return parse_key_file(text)


def _write_private(path: Path, text: str) -> None:
    # O_EXCL: neither overwritten nor written through somebody's symbolic link.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)
