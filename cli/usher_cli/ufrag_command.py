"""`usher ufrag`: what a username fragment says, or why it says nothing to us."""

from __future__ import annotations

from pathlib import Path

import click

from usher_cli.help_flags import HELP_FLAGS
from usher_cli.key_files import read_key_file
from usher_core.errors import LocalError, RemoteError
from usher_core.keys import IceKey, KeyFile, KeyState
from usher_core.ufrag import UfragCipher, split_ufrag


@click.command(context_settings=HELP_FLAGS)
@click.argument("ufrag")
@click.option(
    "--keys-file",
    required=True,
    type=click.Path(path_type=Path),
    help="relay.json or transceiver.json of `usher keys new`; those of `usher up` are in `keys` of its state file.",
)
def ufrag(ufrag: str, keys_file: Path) -> None:
    """Explain UFRAG, the server's half of an ICE user name: the route that it names.

    A client's user name `server:client` may be given whole. Exit status 1 when no usable key opens it.
    """
    for line in explain(ufrag.partition(":")[0], read_key_file(keys_file)):
        click.echo(line)


def explain(text: str, keys: KeyFile) -> list[str]:
    """Return the lines that explain a ufrag.

    Raises LocalError when the file has no key of this kind; RemoteError with the reason that a relay would count:
    `ufrag_length`, `ufrag_charset`, `ufrag_spelling`, `ufrag_letter`, `ufrag_check`.
    """
    if not keys.ice:
        raise LocalError(
            "--keys-file: this file has no key for ufrags, as that of signaling has none",
            "take relay.json or transceiver.json",
        )
    letter, block = split_ufrag(text.encode("utf-8"))
    same_letter = [key for key in keys.ice if key.letter == letter]
    if not same_letter:
        held = ", ".join(sorted({key.letter for key in keys.ice}))
        raise RemoteError("ufrag_letter", f"no key has the letter {letter!r}; this file has: {held}")
    for key in same_letter:
        route = UfragCipher(letter, key.ufrag_key).open(block)
        if route is None:
            continue
        _check_usable(key, route.cluster)
        return [
            f"key letter  {letter} ({key.state})",
            f"cluster     {route.cluster}",
            f"pod         {route.pod}",
            f"worker      {route.worker}",
        ]
    raise RemoteError(
        "ufrag_check",
        f"none of the {len(same_letter)} keys with the letter {letter!r} made this ufrag: "
        "it is mistyped, forged, or of another install",
    )


def _check_usable(key: IceKey, cluster: int) -> None:
    if cluster not in key.clusters:
        raise RemoteError(
            "ufrag_check",
            f"a key {key.letter!r} opens it, but names cluster {cluster}, which this key does not serve",
        )
    if key.state is KeyState.RETIRED:
        raise RemoteError("ufrag_letter", f"the retired key {key.letter!r} made it, so relays drop it")
