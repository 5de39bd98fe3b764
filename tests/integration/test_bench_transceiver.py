"""The transceiver's bench, shortened: all its parts run and say something. What it measures so is worth nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.programs
@pytest.mark.timeout(240)
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="the server and the load need a CPU each")
def test_a_quick_run_of_the_bench_measures_every_server_and_a_burst(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benches.transceiver.run", "--quick", f"--out={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "transceiver.json").read_text())
    assert [row["name"] for row in found["rows"]] == [
        "usher, full codec both ways",
        "usher, bot talks 40 %",
        "usher, passed through",
        "usher, realtime bridge",
        "aiortc",
    ]
    for row in found["rows"]:
        idle, busy = row["points"]
        assert (idle["calls"], busy["calls"]) == (0, 8)
        assert busy["cpu_percent"] > idle["cpu_percent"]
        assert busy["lost_percent"] < 100
    # Two calls of each phase: their packets leave together.
    assert found["rows"][0]["points"][1]["bundled"] > 1.2
    assert found["burst"]["calls"] == 7  # the eighth is the full client
    assert found["burst"]["failed"] == 0
    assert 0 < found["burst"]["answer_p50"] <= found["burst"]["answer_p99"]
    assert len(found["goals"]) == 3
    assert found["machine"]["cpus"] >= 2
