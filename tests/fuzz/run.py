"""Runs fuzz targets, each in a process of its own: `python tests/fuzz/run.py --seconds 10 [fuzz_stun …]`.

What a run learns is kept in `var/fuzz/<target>`, so the next one starts from there; an input that breaks a target's
invariant lies beside it.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "var" / "fuzz"
START_S = 60  # a slow machine, and imports that are being instrumented


@dataclass(frozen=True, slots=True)
class Outcome:
    """`report` is empty when the invariant held, else what a person needs to repeat the failure."""

    executions: int
    report: str


def targets() -> list[str]:
    """The names of all targets, without folder and ending."""
    return sorted(path.stem for path in Path(__file__).parent.glob("fuzz_*.py"))


def fuzz(target: str, seconds: int, kept: Path) -> Outcome:
    """Run one target for `seconds` from the inputs in `kept`, which is made where it is missing."""
    corpus = kept / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    module = f"tests.fuzz.{target}"
    limits = [f"-max_total_time={seconds}", "-timeout=10", "-rss_limit_mb=1024", "-max_len=8192"]
    output = [f"-artifact_prefix={kept}/", "-verbosity=0", "-print_final_stats=1"]
    command = [sys.executable, "-m", module, *limits, *output, str(corpus)]
    try:
        ran = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, errors="replace", timeout=seconds + START_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Outcome(0, f"{target} did not end {START_S} s after its time was up")
    count = re.search(r"number_of_executed_units: (\d+)", ran.stderr)
    if ran.returncode == 0 and count:
        return Outcome(int(count[1]), "")
    told = (ran.stdout + ran.stderr)[-6000:]
    return Outcome(0, f"{told}\nrepeat it with: python -m {module} {kept}/crash-…")


def run(names: Iterable[str], seconds: int) -> int:
    """Run the targets one after the other, tell how each went, and return how many failed."""
    failed = 0
    for name in names:
        outcome = fuzz(name, seconds, KEPT / name)
        failed += bool(outcome.report)
        print(f"{name}: {outcome.report or f'held for {outcome.executions:,} inputs'}", flush=True)
    return failed


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="target", help="all where none is given")
    parser.add_argument("--seconds", type=int, default=10, help="for each target (%(default)s)")
    chosen = parser.parse_args()
    known = targets()
    if unknown := set(chosen.names) - set(known):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    sys.exit(1 if run(chosen.names or known, chosen.seconds) else 0)


if __name__ == "__main__":
    main()
