"""`pip install .` on a machine without a compiler."""

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NO_COMPILER = os.environ | {"CC": "/bin/false", "CXX": "/bin/false", "CARGO": "/bin/false"}


def run(*command: str | Path) -> str:
    ran = subprocess.run(command, env=NO_COMPILER, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.needs("package-index")
@pytest.mark.timeout(300)
def test_pip_install_needs_no_compiler(tmp_path: Path) -> None:
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")

    run(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    assert {"usher_cli/main.py", "usher_core/py.typed", "usher_signaling/pages/index.html"} <= inside
    assert not {name for name in inside if name.startswith("tests/")}

    new = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", new)
    run(*pip, "--python", new, "install", "--quiet", "--only-binary", ":all:", wheel)

    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert version in run(new / "bin" / "usher", "--version")
