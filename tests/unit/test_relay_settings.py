"""Settings and listeners of the relay, and the choice of its engine."""

import errno
import sys
from pathlib import Path
from typing import Literal

import pytest

from tests.relay_rig import key_file
from usher_core.errors import LocalError
from usher_core.keys import KeyFile, KeyState, StoreKey
from usher_relay.counters import Drop
from usher_relay.engine.interface import EngineConfig
from usher_relay.engine.select import select_engine
from usher_relay.engine.sockets import drop_reason
from usher_relay.listeners import Listener, parse_listener
from usher_relay.settings import RelaySettings
from usher_relay.state import Limits, RelayKeys

FILES = ["--keys-file", "k.json", "--routes-file", "r.json"]


def settings(*flags: str) -> RelaySettings:
    return RelaySettings.from_command_line([*FILES, *flags])


def test_the_flags_of_a_relay() -> None:
    made = settings(
        *("--listen", "1=0.0.0.0:3478", "--listen", "2=[::]:3478", "--upstream", "::", "--admin", "[::1]:9000"),
        *("--engine", "python", "--grace", "120", "--max-flows", "500", "--hop-mtu", "1400", "--log-format", "json"),
    )
    assert made.listeners == (Listener(1, "0.0.0.0", 3478), Listener(2, "::", 3478))
    assert (made.upstream, made.admin, made.engine, made.grace) == ("::", "[::1]:9000", "python", 120)
    assert (made.hop_mtu, made.log_format, made.keys_file) == (1400, "json", Path("k.json"))
    assert made.limits == Limits(max_flows=500)


def test_flags_have_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USHER_LISTEN", "1=127.0.0.1:1,2=127.0.0.1:2")
    monkeypatch.setenv("USHER_GRACE", "45")
    made = settings()
    assert [listener.id for listener in made.listeners] == [1, 2]
    assert made.grace == 45


def test_the_defaults_of_settings_and_data_path_are_the_same() -> None:
    assert settings("--listen", "1=127.0.0.1:0").limits == Limits()


def test_every_setting_says_what_it_is() -> None:
    assert [name for name, field in RelaySettings.model_fields.items() if not field.description] == []


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--listen", "0.0.0.0:3478"],
        ["--listen", "x=0.0.0.0:3478"],
        ["--listen", "65536=0.0.0.0:3478"],
        ["--listen", "-1=0.0.0.0:3478"],
        ["--listen", "1=0.0.0.0"],
        ["--listen", "1=localhost:3478"],
        ["--listen", "1=0.0.0.0:99999"],
        ["--listen", "1=0.0.0.0:1", "--listen", "1=0.0.0.0:2"],
        ["--listen", "1=0.0.0.0:1", "--upstream", "here"],
        ["--listen", "1=0.0.0.0:1", "--admin", "9000"],
        ["--listen", "1=0.0.0.0:1", "--hop-mtu", "500"],
        ["--listen", "1=0.0.0.0:1", "--packets-per-address", "49999"],
        ["--listen", "1=0.0.0.0:1", "--probation-per-ufrag", "15"],
        ["--listen", "1=0.0.0.0:1", "--engine", "go"],
        ["--listen", "1=0.0.0.0:1", "--grace", "-1"],
    ],
)
def test_a_wrong_flag_is_a_local_error(flags: list[str]) -> None:
    with pytest.raises(LocalError, match="usher relay"):
        settings(*flags)


def test_a_listener_is_written_as_it_is_read() -> None:
    for text in ("1=0.0.0.0:3478", "2=[::1]:3478"):
        assert str(parse_listener(text)) == text
    assert parse_listener("1=0.0.0.0:1").is_wildcard
    assert parse_listener("1=[::]:1").is_wildcard
    assert not parse_listener("1=127.0.0.1:1").is_wildcard


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "[0::0]", "[0:0:0:0:0:0:0:0]", "[::0.0.0.0]"])
def test_a_wildcard_is_one_in_every_spelling(host: str) -> None:
    assert parse_listener(f"1={host}:1").is_wildcard


def test_an_address_of_another_family_counts_as_a_listener_that_is_not_there() -> None:
    assert drop_reason(OSError(errno.EAFNOSUPPORT, "another family")) is Drop.HOP_LISTENER


CONFIG = EngineConfig((Listener(1, "127.0.0.1", 0),), "127.0.0.1", Limits(), 0, 65_536, 65_536)


@pytest.fixture
def without_native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "usher_relay.engine.native_engine", raising=False)
    monkeypatch.setitem(sys.modules, "usher_relay_native", None)


def chosen(choice: Literal["auto", "python", "native"]) -> str:
    engine = select_engine(choice, CONFIG, key_file())
    engine.stop()
    return engine.name


@pytest.mark.usefixtures("without_native")
def test_the_native_engine_is_asked_for_in_vain() -> None:
    with pytest.raises(LocalError, match="not installed; `make native` builds it"):
        chosen("native")


@pytest.mark.usefixtures("without_native")
def test_without_the_native_engine_auto_is_the_python_one() -> None:
    assert chosen("auto") == "python"


@pytest.mark.needs("native engine")
def test_auto_prefers_the_native_engine_and_either_can_be_named() -> None:
    assert (chosen("auto"), chosen("native"), chosen("python")) == ("native", "native", "python")


@pytest.mark.usefixtures("without_native")
def test_a_native_engine_that_cannot_be_loaded_is_no_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "usher_relay.engine.native_engine", None)
    with pytest.raises(ModuleNotFoundError, match="native_engine"):
        chosen("auto")


@pytest.mark.parametrize("missing", ["ice", "hop"])
def test_keys_of_no_use_are_a_local_error(missing: str) -> None:
    broken: KeyFile = key_file().model_copy(update={missing: ()})
    with pytest.raises(LocalError, match="at least one"):
        RelayKeys.of(broken)


def test_held_keys_are_named_without_their_bytes() -> None:
    store = StoreKey(id=9, key=bytes(32), state=KeyState.ACCEPTED)
    keys = RelayKeys.of(key_file().model_copy(update={"store": (store,)}))
    held = [("ice", "u", "active"), ("hop", "3", "active"), ("store", "9", "accepted")]
    assert [(key.list, key.id, key.state) for key in keys.held] == held
    assert "key=b" not in repr(keys)


PODS = ["--keys-file", "k.json", "--listen", "1=127.0.0.1:1"]


def test_routes_come_from_pods_instead_of_a_file() -> None:
    flags = ["--pods-namespace", "voice", "--pods-namespace", "video", "--pods-selector", "usher.fleet/pool=x"]
    settings = RelaySettings.from_command_line([*PODS, *flags])
    assert settings.pods_namespace == ("voice", "video")
    assert settings.routes_file is None


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ([], "one of routes_file and pods_namespace"),
        (["--routes-file", "r", "--pods-namespace", "voice"], "one of routes_file and pods_namespace"),
        (["--routes-file", "r", "--pods-selector", "a=b"], "only with pods_namespace"),
        (["--pods-namespace", "Voice"], "no name of a namespace"),
        (["--pods-namespace", "voice/../x"], "no name of a namespace"),
        (["--pods-namespace", "a", "--pods-namespace", "a"], "stands twice"),
    ],
)
def test_a_wrong_source_of_routes_is_named(flags: list[str], complaint: str) -> None:
    with pytest.raises(LocalError, match=complaint):
        RelaySettings.from_command_line([*PODS, *flags])
