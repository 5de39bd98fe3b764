"""`usher keys rotate`: asks the operator of a cluster for new keys."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from usher_cli.help_flags import HELP_FLAGS
from usher_core.errors import LocalError

if TYPE_CHECKING:
    from kubernetes.aio.client import Configuration


@click.command(context_settings=HELP_FLAGS)
@click.option("--namespace", "-n", required=True, help="Namespace of the pools whose keys shall be new.")
def rotate(namespace: str) -> None:
    """Ask the operator for new keys. Calls go on: old keys are kept until the last call that used them has ended.

    Speaks to the cluster of KUBECONFIG. How it goes on is in the condition KeysReady of the pools there.
    """
    wish = datetime.now(UTC).isoformat(timespec="seconds")
    asyncio.run(_rotate(namespace, wish))
    click.echo(f"asked for new keys in {namespace}; watch: kubectl describe rpool,tpool -n {namespace}")


async def _rotate(namespace: str, wish: str) -> None:
    from usher_operator.kube import load_configuration  # noqa: PLC0415  (`usher keys new` needs no cluster)

    await ask_for_rotation(await load_configuration(), namespace, wish)


async def ask_for_rotation(configuration: Configuration, namespace: str, wish: str) -> None:
    """Leave the wish for a rotation on the key set Secret. Raises LocalError when that can't be done.

    Args:
        configuration: where the API server is.
        namespace: of the Secret.
        wish: any text that was not left there before.
    """
    from usher_operator import names  # noqa: PLC0415  (see above)
    from usher_operator.actions import Reference  # noqa: PLC0415
    from usher_operator.kube import HttpKubeApi, KubeError, NotFoundError  # noqa: PLC0415

    # The operator's Secret always has annotations, so that one can be added beside them.
    place = "/metadata/annotations/" + names.ROTATE_ANNOTATION.replace("/", "~1")
    api = HttpKubeApi(configuration)
    try:
        await api.json_patch(
            Reference("v1", "Secret", namespace, names.KEY_SET_SECRET), [{"op": "add", "path": place, "value": wish}]
        )
    except NotFoundError:
        raise LocalError(
            f"namespace {namespace} has no Secret {names.KEY_SET_SECRET}",
            "the operator makes it for the first pool there; keys of spec.keys.secretRef are rotated by their owner",
        ) from None
    except KubeError as error:
        raise LocalError(f"the operator could not be asked for new keys: {error}") from None
    finally:
        await api.close()
