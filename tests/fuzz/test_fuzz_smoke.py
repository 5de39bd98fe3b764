"""Each fuzz target for a second (`USHER_FUZZ_SECONDS`), so that a target can't rot and a shallow fault shows."""

import os
from pathlib import Path

import pytest

from tests.fuzz.run import START_S, fuzz, targets

SECONDS = int(os.environ.get("USHER_FUZZ_SECONDS", "1"))


@pytest.mark.needs("atheris")
@pytest.mark.timeout(SECONDS + 2 * START_S)
@pytest.mark.parametrize("target", targets())
def test_invariant_holds(target: str, tmp_path: Path) -> None:
    outcome = fuzz(target, SECONDS, tmp_path)
    assert not outcome.report, outcome.report
    assert outcome.executions > 100


@pytest.mark.parametrize("target", targets())
def test_target_states_its_invariant(target: str) -> None:
    first = Path(__file__).with_name(f"{target}.py").read_text().splitlines()[0]
    assert first.startswith('"""Invariant: parse or raise ')
    assert "nothing else." in first
