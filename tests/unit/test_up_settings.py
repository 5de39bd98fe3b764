import pytest

from usher_cli.up.settings import UpSettings
from usher_core.errors import LocalError


def test_defaults_need_nothing() -> None:
    settings = UpSettings.from_command_line([])
    assert (settings.http, settings.udp) == ("127.0.0.1:8080", "0.0.0.0:3478")
    assert (settings.relays, settings.transceivers, settings.backend, settings.engine) == (1, 1, "echo", "auto")


def test_flags_of_the_issue_are_understood() -> None:
    arguments = (
        "--http 0.0.0.0:80 --udp 127.0.0.1:0 --advertise 10.0.0.1 --advertise 10.0.0.2:99 --relays 2 --transceivers 3 "
        "--backend parrot --engine python --api-key sesame --state-file /tmp/state.json"
    )
    settings = UpSettings.from_command_line(arguments.split())
    assert settings.advertise == ("10.0.0.1", "10.0.0.2:99")
    assert (settings.relays, settings.transceivers, settings.backend, settings.engine) == (2, 3, "parrot", "python")
    assert settings.api_key is not None
    assert settings.api_key.get_secret_value() == "sesame"
    assert "sesame" not in repr(settings)


def test_the_key_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USHER_API_KEY", "sesame")
    assert UpSettings.from_command_line(["--http", "0.0.0.0:8080"]).api_key is not None


@pytest.mark.parametrize("http", ["0.0.0.0:8080", "192.168.1.5:8080", "[::]:8080", "example.org:8080"])
def test_beyond_loopback_a_key_is_needed(http: str) -> None:
    with pytest.raises(LocalError, match="--api-key is needed"):
        UpSettings.from_command_line(["--http", http])


@pytest.mark.parametrize("http", ["127.0.0.1:0", "localhost:8080", "[::1]:8080", "127.1.2.3:80"])
def test_loopback_needs_no_key(http: str) -> None:
    assert UpSettings.from_command_line(["--http", http]).api_key is None


@pytest.mark.parametrize(
    "flags", [["--http", "8080"], ["--udp", "0.0.0.0:70000"], ["--relays", "99"], ["--engine", "go"]]
)
def test_a_bad_flag_is_an_error_of_ours(flags: list[str]) -> None:
    with pytest.raises(LocalError, match="usher up"):
        UpSettings.from_command_line(flags)
