"""`usher keys rotate`: needs a namespace and a cluster; what it asks and says is in test_operator_rotation_request."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from usher_cli.keys_command import keys
from usher_core.errors import LocalError


def test_the_command_needs_a_namespace_and_a_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert CliRunner().invoke(keys, ["rotate"]).exit_code == 2
    result = CliRunner().invoke(keys, ["rotate", "-n", "calls"])
    assert isinstance(result.exception, LocalError)
    assert "KUBECONFIG" in str(result.exception)
