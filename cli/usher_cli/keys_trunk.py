"""`usher keys trunk`: lets clients of one cluster enter at the relays of another."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from pathlib import Path

import click

from usher_cli.help_flags import HELP_FLAGS
from usher_cli.key_files import CLOCK_SKEW_S, key_file_text, read_key_file
from usher_cli.up.atomic_file import write_atomically
from usher_core.errors import LocalError
from usher_core.hop import HOP_KEY_LENGTH
from usher_core.ids import MAX_CLUSTER
from usher_core.keys import HopKey, IceKey, KeyFile, KeyState

CLUSTER = click.IntRange(1, MAX_CLUSTER)
FILE = click.Path(path_type=Path)
IDS = range(1, 256)
"""Of hop keys."""


@click.command(context_settings=HELP_FLAGS)
@click.option("--home", required=True, type=FILE, help="relay.json of the cluster whose sessions it shall carry.")
@click.option("--home-cluster", required=True, type=CLUSTER, help="Its id.")
@click.option("--ingress", required=True, type=FILE, help="relay.json of the relays where clients shall enter.")
@click.option("--ingress-cluster", required=True, type=CLUSTER, help="The id of their cluster.")
@click.option(
    "--with-passwords", is_flag=True, help="Let the ingress relays verify checks themselves, which spares the trunk."
)
def trunk(home: Path, home_cluster: int, ingress: Path, ingress_cluster: int, *, with_passwords: bool) -> None:
    """Add the keys of a trunk to both key files, in place.

    These are a new hop key, and at the ingress what opens home's ufrags. Relays read their files again by themselves.
    A second run adds one more hop key, as accepted: that is how it is changed. When both sides hold it, write "active"
    into its `state` in both files with an editor, then "retired" into that of the old one (docs/multi-region.md).
    """
    if home.resolve() == ingress.resolve():
        raise LocalError(f"--home and --ingress are one file, {home}", "each cluster's relays have their own")
    files = read_key_file(home), read_key_file(ingress)
    for path, file in zip((home, ingress), files, strict=True):
        if not file.store:  # `usher keys new` makes one for relays alone
            raise LocalError(f"{path} is not the key file of relays: it has no store key", "give relay.json")
    for path, made in zip(
        (home, ingress), join(*files, home_cluster, ingress_cluster, time.time(), with_passwords), strict=True
    ):
        write_atomically(path, key_file_text(made))
        (*_, added) = made.hop
        click.echo(f"{path}: hop key {added.id}, {added.state.value}")


def join(
    home: KeyFile, ingress: KeyFile, home_cluster: int, ingress_cluster: int, now: float, with_passwords: bool
) -> tuple[KeyFile, KeyFile]:
    """Return both files with the keys of a new trunk; `now` is Unix seconds.

    Raises LocalError when the clusters are one, a file has no ICE key of its own cluster, or all ids are taken.
    """
    if home_cluster == ingress_cluster:
        raise LocalError("a trunk joins two clusters, and both have this id", "give each cluster its own id")
    own = tuple(ice for ice in home.ice if ice.password_key)
    shared = tuple(shared_ice_keys(own, home_cluster, with_passwords=with_passwords))
    if not shared:
        raise LocalError(f"the key file of home has no ICE key of cluster {home_cluster}", "see `usher keys show`")
    if not any(ingress_cluster in ice.clusters and ice.password_key for ice in ingress.ice):
        raise LocalError(
            f"the key file of the ingress relays has no ICE key of their cluster {ingress_cluster}",
            "see `usher keys show`",
        )
    taken = {key.id for file in (home, ingress) for key in file.hop}
    number = next((number for number in IDS if number not in taken), None)
    if number is None:
        raise LocalError("all 255 ids of hop keys are taken", "delete those that are retired")
    key, since = secrets.token_bytes(HOP_KEY_LENGTH), max(0, int(now) - CLOCK_SKEW_S)
    # One that is active before the other end holds it would cost calls.
    is_first = all(held.scope != ingress_cluster or held.state is KeyState.RETIRED for held in home.hop)
    state = KeyState.ACTIVE if is_first else KeyState.ACCEPTED
    at_home = HopKey(id=number, scope=ingress_cluster, key=key, state=state, not_before=since)
    at_ingress = at_home.model_copy(update={"scope": home_cluster})
    known = {(ice.letter, ice.ufrag_key) for ice in shared}
    others = tuple(ice for ice in ingress.ice if (ice.letter, ice.ufrag_key) not in known)
    return (
        home.model_copy(update={"hop": (*home.hop, at_home)}),
        ingress.model_copy(update={"hop": (*ingress.hop, at_ingress), "ice": (*others, *shared)}),
    )


def shared_ice_keys(keys: Iterable[IceKey], cluster: int, *, with_passwords: bool) -> Iterable[IceKey]:
    """Yield what an ingress relay may know of the ICE keys of a cluster."""
    for key in keys:
        if cluster in key.clusters:
            password = key.password_key if with_passwords else None
            yield key.model_copy(update={"clusters": (cluster,), "password_key": password})
