"""The backends of examples/backends, installed as the docs say and called through a whole fleet."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
import wave
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import numpy as np
import pytest
from websockets.sync.client import connect

from tests.integration.fleet import Fleet, calling, running_fleet, wait_until
from tests.pages import ROOT

pytestmark = [pytest.mark.programs, pytest.mark.needs("package-index"), pytest.mark.timeout(300)]


KEPT = ROOT / "build" / f"example-backends-{sysconfig.get_python_version()}"


@pytest.fixture(scope="module")
def packages() -> Path:
    """Where the examples are installed with what they need beyond this environment.

    It is kept, for Pipecat is 350 MB: of the next run pip installs the examples anew, and what of the rest has changed.
    """
    venv.create(KEPT)
    site = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(KEPT), "platbase": str(KEPT)}))
    ours = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (site / "ours.pth").write_text(ours)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(KEPT), "install", "--quiet")
    ran = subprocess.run([*pip, f"{ROOT}/examples/backends[pipecat]"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return site


def path_to(packages: Path) -> str:
    return os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(packages))))


def start(directory: Path, packages: Path, backend: str) -> AbstractContextManager[Fleet]:
    return running_fleet(directory, settings={"PYTHONPATH": path_to(packages), "USHER_BACKEND": backend})


@pytest.mark.parametrize("backend", ["vad-echo", "pipecat"])
def test_what_is_said_comes_back(tmp_path: Path, packages: Path, backend: str) -> None:
    # Judged here: how whole the tone is depends on how busy this machine is.
    with start(tmp_path, packages, backend) as fleet, calling(fleet.url, "--seconds=3", "--any-reply") as caller:
        result = caller.result()
    assert result["status"] == 0, result
    assert [call["tone_hz"] for call in result["calls"]] == [pytest.approx(440, abs=5)]


@pytest.mark.needs("espeak-ng")
def test_espeak_answers_an_utterance(tmp_path: Path, packages: Path) -> None:
    recorded = tmp_path / "answer.wav"
    flags = ("--any-reply", "--talk=1.5", "--seconds=6", f"--record={recorded}")
    with start(tmp_path, packages, "espeak") as fleet, calling(fleet.url, *flags) as caller:
        result = caller.result()
    assert result["status"] == 0, result
    with wave.open(str(recorded)) as file:
        rate = file.getframerate()
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    loud = np.abs(samples[: len(samples) // rate * rate].reshape(-1, rate // 10).astype(int)).max(axis=1) > 1000
    spoken = np.flatnonzero(loud) / 10
    # What it greets with is interrupted at once; "You spoke for 1.5 seconds." takes two.
    *_, answer = np.split(spoken, np.flatnonzero(np.diff(spoken) > 0.5) + 1)
    assert answer[-1] - answer[0] == pytest.approx(2, abs=0.7), spoken


def test_events_pass_through_a_pipeline_of_pipecat_and_the_end_of_the_call_ends_it(
    tmp_path: Path, packages: Path
) -> None:
    with start(tmp_path, packages, "pipecat") as fleet:
        with calling(fleet.url, "--seconds=3", "--any-reply") as caller:
            caller.wait_until_connected(1)
            (call,) = httpx.get(f"{fleet.url}/v1/realtime/calls").json()["data"]
            side_band = f"{fleet.url.replace('http', 'ws', 1)}/v1/realtime?call_id={call['id']}"
            with connect(side_band, proxy=None) as socket:
                socket.send('{"type": "hello", "number": 7}')
                heard = next(event for event in map(json.loads, socket) if event["type"] == "heard")
            assert heard["event"] == {"type": "hello", "number": 7}
            assert caller.result()["status"] == 0
        wait_until(lambda: "finished running" in fleet.log_text, 10, "the pipeline has ended")
        assert "ERROR" not in fleet.log_text
        assert "the backend" not in fleet.log_text


def test_an_interruption_in_a_pipeline_of_pipecat_reaches_the_queue_and_its_end_waits_for_the_last_word(
    packages: Path,
) -> None:
    ran = subprocess.run(
        [sys.executable, Path(__file__).with_name("pipecat_call.py")],
        env=os.environ | {"PYTHONPATH": path_to(packages)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    saw = json.loads(ran.stdout.splitlines()[-1])
    # Of a minute that was to be said a moment was heard, and next to nothing waited.
    assert 1000 <= saw["interrupted_at"] < 20_000
    assert saw["cleared"][0] <= 300
    assert saw["played"] - saw["interrupted_at"] == pytest.approx(2000, abs=100)
