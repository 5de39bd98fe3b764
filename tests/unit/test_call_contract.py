"""What `usher call` relies on inside aiortc and aioice. An upgrade that changes it fails here, not in a measurement."""

import inspect

import pytest
from aioice import ice
from aiortc import RTCRtpReceiver

from usher_cli.call.steady_checks import CHECK_INTERVAL_S, use_steady_checks


@pytest.fixture(autouse=True)
def interval_of_aioice_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ice, "CONSENT_INTERVAL", ice.CONSENT_INTERVAL)


async def test_checks_come_every_2_5_s_without_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    use_steady_checks()
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 20:
            raise EndOfTestError

    monkeypatch.setattr("aioice.ice.asyncio.sleep", sleep)
    connection = ice.Connection(ice_controlling=True)
    connection.remote_password = "not used"
    with pytest.raises(EndOfTestError):
        await connection.query_consent()
    assert slept == [CHECK_INTERVAL_S] * 20


class EndOfTestError(Exception):
    pass


def test_consent_ends_after_six_lost_checks() -> None:
    assert ice.CONSENT_FAILURES == 6


def test_the_rtp_receiver_gets_packets_as_the_tap_expects() -> None:
    parameters = inspect.signature(RTCRtpReceiver._handle_rtp_packet).parameters
    assert list(parameters) == ["self", "packet", "arrival_time_ms"]


def test_checks_of_a_connected_pair_are_timed_by_their_protocol() -> None:
    assert inspect.iscoroutinefunction(ice.StunProtocol.request)
    assert "protocol" in inspect.signature(ice.CandidatePair).parameters
    assert ice.Connection(ice_controlling=True)._nominated == {}
    assert "protocol.request(" in inspect.getsource(ice.Connection.query_consent)
