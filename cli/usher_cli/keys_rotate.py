"""`usher keys rotate`: asks the operator of a cluster for new keys, and says what came of it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import click

from usher_cli.help_flags import HELP_FLAGS


@click.command(context_settings=HELP_FLAGS)
@click.option("--namespace", "-n", required=True, help="Namespace of the pools whose keys shall be new.")
def rotate(namespace: str) -> None:
    """Ask the operator of a cluster for new keys. Calls go on.

    Waits until it has begun, at most 45 s. Old keys are kept until the last call that used them has ended. Refused
    while a rotation is under way. Speaks to the cluster of KUBECONFIG. How it goes on is in the condition KeysReady of
    the pools there.
    """
    click.echo(asyncio.run(_rotate(namespace, datetime.now(UTC).isoformat(timespec="milliseconds"))))


async def _rotate(namespace: str, wish: str) -> str:
    # `usher keys new` needs no cluster.
    from usher_operator.kube import HttpKubeApi, load_configuration  # noqa: PLC0415
    from usher_operator.rotation_request import ask_for_rotation, until_begun  # noqa: PLC0415

    api = HttpKubeApi(await load_configuration())
    try:
        await ask_for_rotation(api, namespace, wish)
        return await until_begun(api, namespace, wish)
    finally:
        await api.close()
