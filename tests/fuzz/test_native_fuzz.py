"""A short run of each libFuzzer target of the native engine; `cargo fuzz run TARGET` in relay/native goes on."""

import os
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "relay" / "native"
TARGETS = sorted(file.stem for file in (NATIVE / "fuzz" / "fuzz_targets").glob("*.rs"))
SECONDS = int(os.environ.get("USHER_FUZZ_SECONDS", "2"))

pytestmark = [pytest.mark.programs, pytest.mark.needs("cargo-fuzz"), pytest.mark.timeout(900)]


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_breaks_the_invariants_of(target: str) -> None:
    # Without a sanitizer a stable compiler will do; there is no unsafe code in what is fuzzed.
    command = ["cargo", "fuzz", "run", "--sanitizer", "none", target]
    done = subprocess.run(
        [*command, "--", f"-max_total_time={SECONDS}", "-max_len=1600"],
        cwd=NATIVE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    assert "DONE" in done.stderr
