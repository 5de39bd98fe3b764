"""`make setup` with the Pythons that a machine may have. All are made up here, so nothing is installed."""

import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from tests.integration.fleet import make_environment
from tests.pages import ROOT

pytestmark = pytest.mark.timeout(60)

PYTHON = """#!/bin/sh
echo "{name} $*" >> {log}
case "$1 $2" in
    "-c "*) exit {is_old} ;;
    "-m venv") mkdir -p "$4/bin" && cp {self} "$4/bin/python" && cp {self} "$4/bin/pip" ;;
esac
"""


class Machine:
    """A folder of scripts that pass for Python. `log` has a line for each time that one was called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.venv = folder / "venv"
        self._log = folder / "log"
        self._log.touch()

    def python(self, name: str, *, is_old: bool) -> Path:
        path = self.folder / name
        path.write_text(PYTHON.format(name=name, log=self._log, self=path, is_old=int(is_old)))
        path.chmod(stat.S_IRWXU)
        return path

    def make_venv(self, python: Path) -> None:
        (self.venv / "bin").mkdir(parents=True)
        for name in ("python", "pip"):
            shutil.copy(python, self.venv / "bin" / name)

    def make_setup(self, python: Path | str) -> tuple[int, list[str], list[str]]:
        """Return the exit status, the lines of make's messages, and what was called with which arguments."""
        done = subprocess.run(
            ["make", "--no-print-directory", "setup", f"VENV={self.venv}", f"PYTHON={python}"],
            cwd=ROOT,
            env=make_environment(),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return done.returncode, done.stderr.splitlines(), self._log.read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def installs(calls: list[str]) -> set[str]:
    """Names of the Pythons that installed something."""
    return {call.split()[0] for call in calls if " -m pip " in call}


@pytest.mark.parametrize("given", ["python3.10", "/nowhere/python", ""])
def test_a_python_that_is_too_old_or_missing_is_one_line_and_touches_nothing(machine: Machine, given: str) -> None:
    python = machine.python("python3.10", is_old=True) if given == "python3.10" else given
    status, said, calls = machine.make_setup(python)
    assert status == 2
    which = f", and PYTHON={python} is none" if python else ""
    assert said[0] == f"usher needs Python 3.11 or newer{which}; name one with PYTHON=…"
    assert len(said) == 2  # the other one is make's own
    assert installs(calls) == set()
    assert not machine.venv.exists()


def test_an_environment_of_an_old_python_is_made_anew(machine: Machine) -> None:
    machine.make_venv(machine.python("python3.10", is_old=True))
    new = machine.python("python3.12", is_old=False)
    status, said, calls = machine.make_setup(new)
    assert status == 0, said
    assert f"python3.12 -m venv --clear {machine.venv}" in calls
    assert installs(calls) == {"python3.12"}


def test_an_environment_of_a_new_python_is_kept(machine: Machine) -> None:
    machine.make_venv(machine.python("python3.11", is_old=False))
    status, said, calls = machine.make_setup(machine.python("python3.12", is_old=False))
    assert status == 0, said
    assert not any(" -m venv " in call for call in calls)
    assert installs(calls) == {"python3.11"}


def test_an_environment_that_is_half_made_is_made_anew(machine: Machine) -> None:
    new = machine.python("python3.12", is_old=False)
    (machine.venv / "bin").mkdir(parents=True)
    shutil.copy(new, machine.venv / "bin" / "python")
    status, said, calls = machine.make_setup(new)
    assert status == 0, said
    assert f"python3.12 -m venv --clear {machine.venv}" in calls
