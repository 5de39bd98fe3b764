"""`usher keys rotate`: leaves a wish on the operator's Secret, and says what is wrong in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from kubernetes.aio.client import Configuration

from tests.kube_fake import KubeFake
from usher_cli.keys_command import keys
from usher_cli.keys_rotate import ask_for_rotation
from usher_core.errors import LocalError
from usher_operator import names


def secret() -> dict[str, object]:
    metadata = {"name": names.KEY_SET_SECRET, "namespace": "calls", "annotations": {"kept": "yes"}}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"key-set.json": "e30="}}


async def test_it_leaves_a_wish_and_touches_nothing_else() -> None:
    async with KubeFake() as server:
        server.create(secret())
        await ask_for_rotation(Configuration(host=server.url), "calls", "now")
        await ask_for_rotation(Configuration(host=server.url), "calls", "again")
        found = server.get("Secret", "calls", names.KEY_SET_SECRET)
        assert found is not None
        assert found["metadata"]["annotations"] == {"kept": "yes", names.ROTATE_ANNOTATION: "again"}
        assert found["data"] == {"key-set.json": "e30="}


async def test_without_the_secret_it_says_where_keys_come_from() -> None:
    async with KubeFake() as server:
        with pytest.raises(LocalError, match=r"has no Secret usher-keys; the operator makes it"):
            await ask_for_rotation(Configuration(host=server.url), "calls", "now")


async def test_without_a_cluster_it_says_so() -> None:
    async with KubeFake() as server:
        gone = server.url
    with pytest.raises(LocalError, match="could not be asked for new keys"):
        await ask_for_rotation(Configuration(host=gone), "calls", "now")


def test_the_command_needs_a_namespace_and_a_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert CliRunner().invoke(keys, ["rotate"]).exit_code == 2
    result = CliRunner().invoke(keys, ["rotate", "-n", "calls"])
    assert isinstance(result.exception, LocalError)
    assert "KUBECONFIG" in str(result.exception)
