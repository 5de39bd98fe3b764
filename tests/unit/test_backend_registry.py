import sys
import time
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest
from structlog.testing import capture_logs

from usher_core.errors import LocalError
from usher_transceiver.backends import registry
from usher_transceiver.backends.coroutine import CoroutineBackend
from usher_transceiver.backends.echo import EchoBackend
from usher_transceiver.backends.parrot import ParrotBackend
from usher_transceiver.backends.watch import BackendWatch


def load(name: str) -> Any:
    return registry.load_backend(name, BackendWatch(time.monotonic))


def load_all(default: str) -> dict[str, Any]:
    return registry.load_backends(default, BackendWatch(time.monotonic))


def installed(monkeypatch: pytest.MonkeyPatch, *entries: tuple[str, str]) -> None:
    found = EntryPoints(EntryPoint(name, value, registry.GROUP) for name, value in entries)
    monkeypatch.setattr(registry, "entry_points", found.select)


def test_echo_and_parrot_are_installed() -> None:
    assert {"echo", "parrot"} <= set(registry.names())
    assert load("echo") is EchoBackend
    assert load("parrot") is ParrotBackend


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(LocalError, match=r"no backend 'eco'.*known here: .*echo.*parrot"):
        load("eco")


def test_a_backend_that_cannot_be_imported_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, ("gone", "a_module_that_is_not_there:Backend"), ("five", "sys:maxsize"))
    with pytest.raises(LocalError, match="could not be imported: ModuleNotFoundError"):
        load("gone")
    with pytest.raises(LocalError, match="no class or function"):
        load("five")


def test_one_name_in_two_distributions_is_no_choice_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, ("twice", "here:One"), ("twice", "there:Two"))
    with pytest.raises(LocalError, match="several distributions: here:One, there:Two"):
        load("twice")


def test_a_broken_backend_is_left_out_unless_it_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    echo = "usher_transceiver.backends.echo:EchoBackend"
    installed(monkeypatch, ("echo", echo), ("gone", "not_there:Backend"), ("two", "a:A"), ("two", "b:B"))
    assert load_all("echo") == {"echo": EchoBackend}
    with pytest.raises(LocalError, match="could not be imported"):
        load_all("gone")


class Whole:
    audio = "pcm"

    async def start(self, call: Any) -> None: ...
    def on_audio(self, frame: Any) -> None: ...
    def on_event(self, event: Any) -> bool:
        return False

    async def close(self, reason: str) -> None: ...


def without(name: str) -> type:
    """A backend that lacks one thing."""
    return type("Half", (), {entry: value for entry, value in vars(Whole).items() if entry not in (name, "__dict__")})


@pytest.mark.parametrize("name", ["audio", "start", "on_audio", "on_event", "close"])
def test_a_class_that_is_no_whole_backend_ends_the_start_and_says_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "Half", without(name), raising=False)
    installed(monkeypatch, ("half", f"{__name__}:Half"))
    with pytest.raises(LocalError, match=f"the backend 'half' .* has no {name}.*it needs audio") as caught:
        load_all("half")
    assert "\n" not in str(caught.value)


def test_a_method_that_cannot_be_called_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "Odd", type("Odd", (Whole,), {"close": None}), raising=False)
    installed(monkeypatch, ("odd", f"{__name__}:Odd"))
    with pytest.raises(LocalError, match=r"has no close\(\)"):
        load("odd")


def of_another_kind(_config: Any) -> Any:
    backend = Whole()
    backend.audio = "wav"
    return backend


def raises(config: Any) -> Any:
    return config["url"]


@pytest.mark.parametrize(
    ("factory", "problem"),
    [
        (raises, "KeyError: 'url'"),
        (lambda _config: without("audio")(), "TypeError: Half has no audio"),
        (lambda _config: None, "TypeError: NoneType has no audio, start, on_audio, on_event, close"),
        (of_another_kind, "ValueError: expected audio = 'pcm' or 'opus', not 'wav'"),
    ],
)
def test_what_makes_no_backend_is_logged_in_one_line_and_told_without_the_reason(factory: Any, problem: str) -> None:
    with capture_logs() as entries, pytest.raises(registry.BackendFailedError) as caught:
        registry.make_backend("mine", factory, {"secret": "s3cret"})
    assert str(caught.value) == "the backend 'mine' could not be made; the transceiver's log says why"
    line, traceback = entries
    assert (line["log_level"], line["backend"], line["problem"]) == ("error", "mine", problem)
    assert "exc_info" not in line
    assert (traceback["log_level"], type(traceback["exc_info"]).__name__) == ("debug", problem.partition(":")[0])


async def runs(_call: Any) -> None: ...


async def takes_two(_config: Any, _call: Any) -> None: ...


async def yields(_call: Any) -> Any:
    yield b""


class Agent:
    """Shared by all calls, as a loaded model is."""

    async def run(self, _call: Any) -> None: ...


agent = Agent()


@pytest.mark.parametrize("name", ["runs", "agent.run"])
def test_a_coroutine_function_is_a_backend_and_so_is_a_method_of_an_object_that_calls_share(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    installed(monkeypatch, ("mine", f"{__name__}:{name}"))
    factory = load_all("mine")["mine"]
    one, two = (registry.make_backend("mine", factory, {"a": 1}) for _ in range(2))
    assert isinstance(one, CoroutineBackend)
    assert one is not two


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("takes_two", r"can't be called with the call alone: missing a required argument: '_call'"),
        ("Agent.run", r"can't be called with the call alone: missing a required argument: '_call'"),
        ("yields", r"yields; it plays by `await call.play\(pcm\)`"),
    ],
)
def test_a_coroutine_function_that_cannot_be_run_ends_the_start(
    monkeypatch: pytest.MonkeyPatch, name: str, fault: str
) -> None:
    installed(monkeypatch, ("odd", f"{__name__}:{name}"))
    with pytest.raises(LocalError, match=f"the backend 'odd' .* {fault}.*write it as `async def run"):
        load_all("odd")
