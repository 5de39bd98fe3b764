"""User-space instructions that the native engine takes per packet: a slower path shows, whatever else the machine does.

Times of the relay differ by 14 % from one minute to the next, so `benches/relay` compares only inside one run.
Instructions repeat within 1 %. `relay_instructions.json` has what was counted last, and with which compiler: the bound
is 5 % above that, and 20 % where rustc is of another minor version, which may make other code of the same lines.

Whoever makes the path slower on purpose, or faster, or takes a new compiler, writes the new numbers there; the test
prints them with `-s`. They hold for x86_64. Valgrind has no SHA instructions: a check takes more here than in life.
"""

import json
import platform
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "relay" / "native"
RECORDED = json.loads((Path(__file__).parent / "relay_instructions.json").read_text())
BATCH = 64
SHORT, LONG = 20, 120

pytestmark = [
    pytest.mark.programs,
    pytest.mark.needs("cargo", "valgrind"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86_64"),
]


def output(*command: str | Path, cwd: Path = NATIVE) -> str:
    ran = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout + ran.stderr


@pytest.fixture(scope="module")
def program() -> Path:
    build = ("cargo", "build", "--release", "--package", "usher-relay-path", "--example", "instructions")
    messages = output(*build, "--locked", "--message-format=json")
    found = [json.loads(line) for line in messages.splitlines() if line.startswith("{")]
    return next(Path(message["executable"]) for message in found if message.get("executable"))


@pytest.fixture(scope="module")
def allowed() -> float:
    version = re.search(r"rustc (\d+\.\d+)", output("rustc", "--version"))
    assert version
    return 1.05 if version[1] == RECORDED["rustc"] else 1.20


def counted(program: Path, case: str, batches: int) -> int:
    callgrind = ("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null")
    found = re.search(r"Collected : (\d+)", output(*callgrind, program, case, str(batches)))
    assert found
    return int(found[1])


@pytest.mark.parametrize("case", RECORDED["instructions"])
def test_a_packet_takes_no_more_instructions_than_recorded(
    program: Path, allowed: float, case: str, record_property
) -> None:
    grown = counted(program, case, LONG) - counted(program, case, SHORT)
    per_packet = grown / (LONG - SHORT) / BATCH
    recorded = RECORDED["instructions"][case]
    record_property("instructions", round(per_packet))
    print(f"{case}: {per_packet:.0f} instructions per packet, recorded {recorded}")
    assert per_packet <= recorded * allowed, f"{case}: {per_packet:.0f} instructions per packet, recorded {recorded}"
