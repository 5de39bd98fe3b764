"""`usher keys new`, `usher keys api` and `usher keys show`; the other commands are beside this file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import click

from usher_cli.help_flags import HELP_FLAGS
from usher_cli.key_files import read_key_file, write_key_files
from usher_cli.keys_rotate import rotate
from usher_cli.keys_trunk import trunk
from usher_cli.keys_trunk_secrets import trunk_secrets
from usher_core.decimals import read_decimal
from usher_core.errors import LocalError
from usher_core.ids import MAX_CLUSTER
from usher_core.keys import KeyFile
from usher_signaling.api_keys import hashed_line, new_api_key


@click.group(no_args_is_help=False, context_settings=HELP_FLAGS)
def keys() -> None:
    """Make and look at key files."""


keys.add_command(rotate)
keys.add_command(trunk)
keys.add_command(trunk_secrets)


@keys.command()
@click.option("--cluster", required=True, help="Cluster ids that the keys serve, 1..65535: N or N,N,…")
@click.option(
    "--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Directory, made where absent."
)
def new(cluster: str, out: Path) -> None:
    """Write the key files of programs and their token, mode 0600.

    They are relay.json, transceiver.json, signaling.json and internal-token. Each holds only what that program may
    know. Nothing is ever overwritten.
    """
    for path in write_key_files(out, _cluster_ids(cluster), time.time()):
        click.echo(path)


@keys.command()
@click.option("--name", required=True, help="Tenant: up to 64 of A-Z a-z 0-9 . _ -")
def api(name: str) -> None:
    """Make an API key. Prints the key, which is shown this once, and the line to store in --api-keys-file.

    The line has the SHA-256 of the key only. Nothing is written anywhere.
    """
    key = new_api_key()
    line = hashed_line(name, key)
    click.echo(f"key   {key}")
    click.echo(f"line  {line}")


@keys.command()
@click.argument("file", type=click.Path(path_type=Path))
def show(file: Path) -> None:
    """Tell which keys FILE has, but never a key itself.

    Each line has kind, id, what for, state, and since when it counts. A new key counts from a minute before it was
    made, for clocks that differ.
    """
    for line in _describe(read_key_file(file), time.time()):
        click.echo(line)


def _cluster_ids(texts: str) -> tuple[int, ...]:
    ids = []
    for text in map(str.strip, texts.split(",")):
        number = read_decimal(text, MAX_CLUSTER, 1)
        if number is None:
            raise LocalError(f"--cluster: {text!r} is no cluster id", f"one is a number within 1..{MAX_CLUSTER}")
        ids.append(number)
    return tuple(dict.fromkeys(ids))


def _describe(file: KeyFile, now: float) -> Iterator[str]:
    rows = [("KIND", "ID", "FOR", "STATE", "COUNTS SINCE"), *_rows(file, now)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def _rows(file: KeyFile, now: float) -> Iterator[tuple[str, ...]]:
    for ice in file.ice:
        verifies = "" if ice.password_key else ", no password key"
        serves = "cluster " + ",".join(map(str, ice.clusters)) + verifies
        yield "ice", ice.letter, serves, ice.state, _since(ice.not_before, now)
    for hop in file.hop:
        scope = "this cluster" if hop.scope == "local" else f"trunk to cluster {hop.scope}"
        yield "hop", str(hop.id), scope, hop.state, _since(hop.not_before, now)
    for store in file.store:
        yield "store", str(store.id), "mappings in Redis", store.state, _since(store.not_before, now)
    for seal in file.seal:
        yield "seal", str(seal.id), "call ids, secrets", seal.state, _since(seal.not_before, now)


def _since(not_before: int, now: float) -> str:
    if not_before == 0:
        return "ever"
    seconds = int(now) - not_before
    return f"{_span(seconds)} ago" if seconds >= 0 else f"in {_span(-seconds)}"


def _span(seconds: int) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
