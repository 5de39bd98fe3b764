"""The Python of docs/backends.md does what the page says of it; and examples/backends, what needs no fleet."""

import ast
import asyncio
import shutil
import sys
import time
import tomllib
from collections.abc import AsyncIterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import pytest

from tests.backend_call import WrittenCall
from tests.media_tone import frames_of, frequency, tone
from tests.pages import ROOT, Block, blocks
from tests.transceiver_rig import until
from usher_core.errors import LocalError
from usher_transceiver.backends import registry
from usher_transceiver.backends.protocol import AudioFrame, BackendFactory
from usher_transceiver.backends.watch import BackendWatch
from usher_transceiver.media.frame import FRAME_BYTES

PAGE = ROOT / "docs" / "backends.md"
WORDS, PAUSE = tone(300, seconds=1), bytes(FRAME_BYTES * 50)


def module_of(block: Block) -> str:
    """The file that a block says to be."""
    return (ast.get_docstring(ast.parse(block.text)) or "").partition(".py:")[0]


PYTHON = {module_of(block): block for block in blocks(PAGE) if block.language == "python"}


def installed(monkeypatch: pytest.MonkeyPatch, folder: Path, entry: str) -> BackendFactory:
    """Load the backend that an entry point names, from files in a folder."""
    monkeypatch.syspath_prepend(folder)
    found = EntryPoints([EntryPoint("mine", entry, registry.GROUP)])
    monkeypatch.setattr(registry, "entry_points", found.select)
    monkeypatch.delitem(sys.modules, entry.partition(":")[0], raising=False)
    return registry.load_backend("mine", BackendWatch(time.monotonic))


def of_page(monkeypatch: pytest.MonkeyPatch, folder: Path, entry: str) -> BackendFactory:
    module = entry.partition(":")[0]
    (folder / f"{module}.py").write_text(PYTHON[module].text)
    return installed(monkeypatch, folder, entry)


class Ending(WrittenCall):
    """A call that a backend may end. What is queued has been played as soon as the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.session = {"model": "m"}
        self.ends: list[str] = []

    def end_when_told(self, reason: str) -> None:
        self.ends.append(reason)


class Listener:
    """Feeds a backend with audio."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.position_ms = 0

    async def hear(self, pcm: bytes) -> None:
        for data in frames_of(pcm):
            self.backend.on_audio(AudioFrame(data, self.position_ms))
            self.position_ms += 20
            await asyncio.sleep(0)


def test_every_block_of_the_page_is_run_here() -> None:
    assert set(PYTHON) == {"beeper", "agent", "metronome"}


async def test_the_first_backend_of_the_page_beeps_after_each_utterance_and_is_the_one_that_the_toml_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (toml,) = (block for block in blocks(PAGE) if block.language == "toml")
    project = tomllib.loads(toml.text)
    entry = project["project"]["entry-points"][registry.GROUP]["beeper"]
    assert f"{project['tool']['setuptools']['py-modules'][0]}:run" == entry
    backend = of_page(monkeypatch, tmp_path, entry)({"hertz": 500})
    call, listener = WrittenCall(), Listener(backend)
    await backend.start(call)
    await listener.hear(WORDS + PAUSE)
    await until(lambda: call.queued_ms == 1000, "it beeps")
    assert frequency(bytes(call.queue)) == pytest.approx(500, abs=2)
    await listener.hear(WORDS)
    await until(lambda: call.queued_ms == 0, "it is interrupted")
    assert [event["type"].rpartition("_")[2] for event in call.events] == ["started", "stopped", "started"]
    await backend.close("hangup")


class Model:
    """The fake that stands for `your_model`."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.says: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
        self.is_closed = False

    async def send(self, pcm: bytes) -> None:
        self.heard += pcm

    async def __aiter__(self) -> AsyncIterator[tuple[str, bytes]]:
        while (said := await self.says.get())[0] != "end":
            yield said

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.is_closed = True


async def test_the_agent_of_the_page_listens_while_it_speaks_and_ends_the_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, asked = Model(), []

    def connect(name: str) -> Model:
        asked.append(name)
        return model

    module = ModuleType("your_model")
    vars(module).update(Model=Model, connect=connect)
    monkeypatch.setitem(sys.modules, "your_model", module)
    backend = of_page(monkeypatch, tmp_path, "agent:run")({})
    call, listener = Ending(), Listener(backend)
    await backend.start(call)
    await model.says.put(("audio", tone(440, seconds=70)))
    await until(lambda: call.queued_ms == 60_000, "the queue is full")
    await listener.hear(WORDS)
    await until(lambda: bytes(model.heard) == WORDS, "it listens all the same")
    call.queue.clear()
    await until(lambda: call.queued_ms == 10_000, "the rest of it is queued")
    await model.says.put(("interrupted", b""))
    await until(lambda: call.queued_ms == 0, "it is interrupted")
    await model.says.put(("end", b""))
    await until(lambda: call.ends == ["returned"], "the call ends")
    assert (asked, model.is_closed) == (["m"], True)
    await backend.close("backend_ended")


async def test_the_metronome_of_the_page_beeps_by_callbacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    backend = of_page(monkeypatch, tmp_path, "metronome:Metronome")({"hertz": 500})
    call = WrittenCall()
    await backend.start(call)
    await until(lambda: call.queued_ms == 40, "it beeps")
    await backend.close("hangup")
    assert frequency(bytes(call.queue)) == pytest.approx(500, abs=2)


def test_the_examples_that_the_page_lists_are_the_ones_there_are() -> None:
    folder = ROOT / "examples" / "backends"
    entries = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["entry-points"][registry.GROUP]
    rows = {f"[`{name}`](../examples/backends/{entry.partition(':')[0]}.py)" for name, entry in entries.items()}
    assert {row for row in rows if f"| {row} |" in PAGE.read_text()} == rows
    assert {path.name for path in folder.glob("*.py")} == {
        f"{entry.partition(':')[0]}.py" for entry in entries.values()
    }


def test_without_espeak_the_transceiver_does_not_start_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(LocalError, match=r"could not be imported: RuntimeError: espeak-ng is not installed; `apt"):
        installed(monkeypatch, ROOT / "examples" / "backends", "espeak:run")
