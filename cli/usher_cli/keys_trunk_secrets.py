"""`usher keys trunk-secrets`: the keys of a trunk as two Secrets, for clusters whose operators make all other keys.

A run makes the first key of the trunk, or keeps those there are, and copies what opens ufrags of home as home has it
now: so it is run again when home's keys have changed. Whether ingress has home's passwords stays as it was said first.
A new key of the trunk counts later than it is made, on both sides at the same time: each has it by then, whenever
kubelets bring it.
"""

from __future__ import annotations

import base64
import binascii
import json
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from usher_cli.help_flags import HELP_FLAGS
from usher_cli.key_files import CLOCK_SKEW_S, key_file_text, read_key_file
from usher_cli.keys_trunk import CLUSTER, FILE, IDS, shared_ice_keys
from usher_cli.up.atomic_file import write_atomically
from usher_core.errors import LocalError
from usher_core.hop import HOP_KEY_LENGTH
from usher_core.keys import HopKey, IceKey, KeyFile, KeyState, parse_key_file
from usher_operator.names import APP, KEYS_FILE, NAME_LABEL, RELAY_KEYS_SECRET

HOME_FILE = "home.json"
INGRESS_FILE = "ingress.json"
_NAME = "usher-trunk-{cluster}"
"""Of a Secret, with the cluster at the other end."""
_MAX_KEYS = 8
STARTS_IN_S = 900
"""A kubelet brings a changed Secret to its pods within 60 to 90 s, and people have two clusters to give it to."""


@click.command(name="trunk-secrets", context_settings=HELP_FLAGS)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--home",
    required=True,
    type=FILE,
    help="Keys of home's relays: the Secret `usher-relay-keys` in JSON as kubectl prints it, or a key file.",
)
@click.option("--home-cluster", required=True, type=CLUSTER, help="The id of the cluster whose calls it shall carry.")
@click.option(
    "--ingress-cluster", required=True, type=CLUSTER, help="The id of the cluster of the relays where clients enter."
)
@click.option(
    "--with-passwords/--without-passwords",
    default=None,
    help="Let the ingress relays verify checks, which spares the trunk. Left out: as FOLDER has it, at first without.",
)
@click.option("--new-key", is_flag=True, help="Make one more key of the trunk, and drop those that nobody uses.")
@click.option(
    "--starts-in",
    type=click.IntRange(0, 86_400),
    default=STARTS_IN_S,
    show_default=True,
    help="Seconds until that key is used.",
)
def trunk_secrets(
    folder: Path,
    home: Path,
    home_cluster: int,
    ingress_cluster: int,
    *,
    with_passwords: bool | None,
    new_key: bool,
    starts_in: int,
) -> None:
    """Write the keys of a trunk as two Secrets for kubectl.

    They are home.json and ingress.json in FOLDER, for `kubectl apply` in either cluster. Run it again whenever the keys
    of home's relays have changed: what is in FOLDER is kept, and what opens home's ufrags is new. FOLDER holds
    keys: keep it as a secret, or delete it and get both Secrets from the clusters later.
    """
    if home_cluster == ingress_cluster:
        raise LocalError("a trunk joins two clusters, and both have this id", "give each cluster its own id")
    now = time.time()
    known = _known(folder / HOME_FILE, folder / INGRESS_FILE)
    if with_passwords is None:
        with_passwords = known.has_passwords
    ice = tuple(shared_ice_keys(_read(home).ice, home_cluster, with_passwords=with_passwords))
    if not ice:
        raise LocalError(f"the keys of home have no ICE key of cluster {home_cluster}", "see `usher keys show`")
    hops = trunk_keys(known.hops, now, more_in=starts_in if new_key else None)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, other, shared in ((HOME_FILE, ingress_cluster, ()), (INGRESS_FILE, home_cluster, ice)):
        write_atomically(folder / name, _secret(other, hops, shared))
        click.echo(folder / name)


def trunk_keys(known: tuple[HopKey, ...], now: float, more_in: float | None) -> tuple[HopKey, ...]:
    """Return the keys that a trunk has next.

    Args:
        known: those it has.
        now: Unix seconds.
        more_in: seconds until one more shall be used; None: no more, but for the first.

    Raises LocalError when there are too many.
    """
    if known and more_in is None:
        return known
    # The newest that counts for so long that all use it makes those before it needless.
    used = [key.not_before for key in known if key.not_before + STARTS_IN_S <= now]
    kept = tuple(key for key in known if not used or key.not_before >= max(used))
    if len(kept) >= _MAX_KEYS:
        raise LocalError(f"the trunk has {len(kept)} keys already", "wait until the newest is used")
    since = int(now) - CLOCK_SKEW_S if not kept else int(now + (more_in or 0))
    # Drawn, since other trunks of either side have ids, too, and one id is for 8 of them at most.
    taken = {key.id for key in known}
    number = secrets.choice([each for each in IDS if each not in taken])
    made = HopKey(id=number, scope="local", key=secrets.token_bytes(HOP_KEY_LENGTH), not_before=max(0, since))
    return (*kept, made)


@dataclass(frozen=True, slots=True)
class _Known:
    """What an earlier run made: the keys of the trunk, and whether ingress has home's passwords."""

    hops: tuple[HopKey, ...] = ()
    has_passwords: bool = False


def _known(home: Path, ingress: Path) -> _Known:
    """Return what was made before. Raises LocalError when the files have other keys of the trunk."""
    if not home.exists() and not ingress.exists():
        return _Known()
    at_home, at_ingress = _read(home), _read(ingress)
    sides = [
        {key.id: key.model_copy(update={"scope": "local"}) for key in file.hop if key.state != KeyState.RETIRED}
        for file in (at_home, at_ingress)
    ]
    if sides[0] != sides[1]:
        raise LocalError(
            f"{home} and {ingress} have other keys of the trunk", "take both from the clusters, or delete both"
        )
    return _Known(tuple(sides[0].values()), any(key.password_key is not None for key in at_ingress.ice))


def _read(path: Path) -> KeyFile:
    """Return the keys in a Secret as kubectl prints it, or in a key file. Raises LocalError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return read_key_file(path)  # which says what is wrong
    if not isinstance(found, dict) or found.get("kind") != "Secret":
        return read_key_file(path)
    try:
        return parse_key_file(base64.b64decode(found["data"][KEYS_FILE], validate=True).decode())
    except (KeyError, TypeError, binascii.Error, UnicodeDecodeError):
        raise LocalError(
            f"the Secret in {path} has no {KEYS_FILE}", f"take the one of relays, {RELAY_KEYS_SECRET}"
        ) from None


def _secret(other: int, hops: tuple[HopKey, ...], ice: tuple[IceKey, ...]) -> str:
    """Return one side's Secret; `other` is the cluster at the other end."""
    file = KeyFile(version=1, ice=ice, hop=tuple(key.model_copy(update={"scope": other}) for key in hops))
    secret: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": _NAME.format(cluster=other), "labels": {NAME_LABEL: APP}},
        "type": "Opaque",
        "data": {KEYS_FILE: base64.b64encode(key_file_text(file).encode()).decode("ascii")},
    }
    return json.dumps(secret, indent=2) + "\n"
