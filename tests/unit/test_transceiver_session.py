"""The life of a call in virtual time: how it begins, everything that ends it, and what is left afterwards."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from tests.direct_rig import DirectRig, FakeBackend
from tests.ice_checks import path
from tests.raw_client import RawClient
from tests.virtual_loop import run_virtual
from usher_core.datagram import DatagramClass, classify
from usher_core.errors import LocalError, RemoteError
from usher_transceiver.backends import registry
from usher_transceiver.backends.registry import BackendFailedError
from usher_transceiver.media.choose_codec import load_codec
from usher_transceiver.media.codec import EncoderSettings
from usher_transceiver.media.frame import FRAME_SAMPLES, SAMPLE_RATE
from usher_transceiver.media.rtcp import Report, build_bye, build_cname, build_report
from usher_transceiver.session import EndReason, Session

OFFER_OF_64_KIB = Path(__file__).parents[1] / "vectors" / "offers" / "gstreamer-max-bundle.sdp"

Scenario = Callable[[DirectRig, RawClient], Awaitable[None]]


def play(folder: Path, scenario: Scenario, **options: Any) -> None:
    """Run a scenario with one client whose session exists, in virtual time."""

    async def main() -> None:
        rig = DirectRig(folder, **options.pop("limits", {}))
        rig.prepare = options.pop("prepare", rig.prepare)
        client = RawClient(rig, 2000)  # type: ignore[arg-type]
        await client.create(**options)
        await scenario(rig, client)
        await rig.sessions.end_all(EndReason.SHUTDOWN)
        rig.close()

    run_virtual(main())


async def keep_checking(client: RawClient, seconds: float) -> None:
    for _ in range(round(seconds / 2.5)):
        client.check()
        await asyncio.sleep(2.5)


def test_a_call_is_new_then_connecting_then_connected(tmp_path: Path) -> None:
    async def scenario(rig: DirectRig, client: RawClient) -> None:
        states = [client.session.state]
        client.check()
        states.append(client.session.state)
        await client.connect()
        assert [*states, client.session.state] == ["new", "connecting", "connected"]

    play(tmp_path, scenario)


def test_without_a_first_check_it_ends_after_15_s(tmp_path: Path) -> None:
    async def scenario(rig: DirectRig, client: RawClient) -> None:
        await asyncio.sleep(14.9)
        assert client.session.state == "new"
        await asyncio.sleep(0.2)
        assert client.session.end_reason is EndReason.NO_FIRST_CHECK
        assert rig.backends[0].closed == ["no_first_check"]

    play(tmp_path, scenario)


def test_without_life_it_ends_after_30_s_and_checks_alone_are_life(tmp_path: Path) -> None:
    async def scenario(rig: DirectRig, client: RawClient) -> None:
        await client.connect()
        await keep_checking(client, 60)
        assert client.session.state == "connected"
        await asyncio.sleep(27)
        assert client.session.state == "connected"
        await asyncio.sleep(3)
        assert client.session.end_reason is EndReason.SILENT

    play(tmp_path, scenario)


def test_a_client_that_only_checks_holds_no_place_for_ever(tmp_path: Path) -> None:
    async def scenario(rig: DirectRig, client: RawClient) -> None:
        await keep_checking(client, 35)
        assert client.session.end_reason is EndReason.DTLS_FAILED

    play(tmp_path, scenario)


def test_a_client_that_never_checks_again_lives_by_its_audio(tmp_path: Path) -> None:
    # GStreamer with libnice sends two checks in all (clients.md item 4).
    async def scenario(rig: DirectRig, client: RawClient) -> None:
        await client.connect()
        for _ in range(12):
            client.speak()
            await asyncio.sleep(10)
        assert client.session.state == "connected"

    play(tmp_path, scenario)


def test_binding_indications_alone_are_no_life(tmp_path: Path) -> None:
    async def scenario(rig: DirectRig, client: RawClient) -> None:
        await client.connect()
        for _ in range(16):
            client.send(b"\0\x11\0\0\x21\x12\xa4\x42" + bytes(12))
            await asyncio.sleep(2)
        assert client.session.end_reason is EndReason.SILENT
        assert rig.mux.drops["stun_not_a_request"] > 0

    play(tmp_path, scenario)


def test_it_ends_at_its_maximum_age_whatever_goes_on(tmp_path: Path) -> None:
    async def scenario(rig: DirectRig, client: RawClient) -> None:
        await client.connect()
        await keep_checking(client, 60)
        assert client.session.end_reason is EndReason.MAX_AGE

    play(tmp_path, scenario, limits={"max_age": 50.0})


@pytest.mark.parametrize("limit,ends", [(20.0, True), (0.0, False)])
def test_it_ends_when_idle_only_if_that_is_limited(tmp_path: Path, limit: float, ends: bool) -> None:
    async def scenario(rig: DirectRig, client: RawClient) -> None:
        await client.connect()
        client.speak()
        await keep_checking(client, 17.5)
        assert client.session.state == "connected"
        await keep_checking(client, 7.5)
        assert (client.session.end_reason is EndReason.IDLE) == ends

    play(tmp_path, scenario, limits={"idle": limit})


def test_a_bye_or_a_pli_ends_nothing(tmp_path: Path) -> None:
    async def scenario(rig: DirectRig, client: RawClient) -> None:
        await client.connect()
        client.speak()
        assert client.srtp is not None
        ssrc = 0x01020304
        bye = build_report(Report(ssrc, ())) + build_cname(ssrc, "x") + build_bye((ssrc,))
        pli = bytes((0x81, 206, 0, 2)) + ssrc.to_bytes(4) + bytes(4)
        for packet in (bye, pli, build_report(Report(ssrc, ())) + pli):
            client.send(client.srtp.protect(packet))
        for _ in range(50):
            client.speak()
            await asyncio.sleep(0.02)
        assert client.session.state == "connected"
        assert client.session.stream.stats(rig.clock()).packets_received == 51
        assert len(rig.backends[0].frames) >= 45

    play(tmp_path, scenario)


# The backend


def test_what_a_backend_plays_before_the_client_is_there_is_heard_first(tmp_path: Path) -> None:
    async def scenario(rig: DirectRig, client: RawClient) -> None:
        await rig.backends[0].started.wait()
        call = rig.backends[0].call
        assert call is not None
        assert call.play(b"\x10\x20" * 4800) == 200
        assert call.id == client.session.facts.session_id
        assert call.metadata == {"user": "7"}
        assert call.session["model"] == "m"
        await client.connect()
        await asyncio.sleep(0.3)
        assert len(client.rtp) >= 10
        assert call.played_ms == 200

    play(tmp_path, scenario, metadata={"user": "7"}, session={"model": "m"})


@pytest.mark.parametrize("kind", ["raises", "too slow"])
def test_a_backend_that_does_not_start_ends_the_call(tmp_path: Path, kind: str) -> None:
    def prepare(backend: FakeBackend) -> None:
        if kind == "raises":
            backend.start_error = ConnectionError("no model")
        else:
            backend.start_takes = 60.0

    async def scenario(rig: DirectRig, client: RawClient) -> None:
        await client.connect() if kind == "too slow" else await asyncio.sleep(0.01)
        await asyncio.sleep(5.5)
        assert client.session.end_reason is EndReason.BACKEND_FAILED
        assert rig.backends[0].closed == ["backend_failed"]

    play(tmp_path, scenario, prepare=prepare, limits={"backend_start": 5.0})


@pytest.mark.parametrize("where", ["start_error", "audio_error", "event_error"])
def test_what_a_backend_raises_is_one_line_of_the_log_and_a_traceback_for_debugging(tmp_path: Path, where: str) -> None:
    def prepare(backend: FakeBackend) -> None:
        setattr(backend, where, ConnectionError("no model"))

    async def scenario(rig: DirectRig, client: RawClient) -> None:
        if where != "start_error":
            await client.connect()
            client.speak()
        await asyncio.sleep(0.1)
        client.session.on_message('{"type": "response.create"}')
        await asyncio.sleep(0.1)
        assert client.session.end_reason is EndReason.BACKEND_FAILED

    with capture_logs() as entries:
        play(tmp_path, scenario, prepare=prepare)
    (line,) = (entry for entry in entries if entry["log_level"] == "error")
    assert line["problem"] == "ConnectionError: no model"
    assert "exc_info" not in line
    (traceback,) = (entry for entry in entries if entry["log_level"] == "debug" and "exc_info" in entry)
    assert (traceback["event"], traceback["session"]) == (line["event"], line["session"])


@pytest.mark.parametrize("what", ["raises", "is no backend"])
def test_a_backend_that_cannot_be_made_makes_no_session_and_the_next_call_is_taken(tmp_path: Path, what: str) -> None:
    def broken(config: Any) -> Any:
        return config["url"] if what == "raises" else object()

    async def scenario(rig: DirectRig, client: RawClient) -> None:
        rig.sessions._backends["broken"] = broken
        before, ufrags = len(rig.sessions), len(rig.mux._by_ufrag)
        for _ in range(3):
            with pytest.raises(BackendFailedError, match="the backend 'broken' could not be made"):
                await rig.create(client.offer(), backend="broken")
        assert (len(rig.sessions), len(rig.mux._by_ufrag)) == (before, ufrags)
        assert rig.sessions.refused == {"backend_failed": 3}
        await rig.create(client.offer())
        assert len(rig.sessions) == before + 1

    play(tmp_path, scenario)


@pytest.mark.parametrize("traceparent", [None, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"])
def test_the_log_names_the_trace_of_a_call_that_has_one(tmp_path: Path, traceparent: str | None) -> None:
    async def scenario(rig: DirectRig, client: RawClient) -> None:
        with capture_logs() as entries:
            created = await rig.create(client.offer(), traceparent=traceparent)
            session = rig.sessions.get(created["session_id"])
            assert session is not None
            session.end(EndReason.HANGUP)
        (line,) = entries
        assert line["session"] == created["session_id"]
        assert line.get("trace") == traceparent
        assert ("trace" in line) == (traceparent is not None)

    play(tmp_path, scenario)


def address(host: str, listener: int = 1) -> dict[str, Any]:
    return {"listener": listener, "host": host, "port": 3478}


@pytest.mark.parametrize(
    ("advertise", "relay"),
    [
        ([address("192.0.2.1")], "192.0.2.1:3478"),
        ([address("2001:db8::1"), address("192.0.2.1")], "192.0.2.1:3478"),
        ([address("192.0.2.9", 2), address("192.0.2.1"), address("2001:db8::1")], "192.0.2.1:3478"),
        ([address("192.0.2.1"), address("192.0.2.2")], None),
        ([address("2001:db8::1")], None),
    ],
    ids=["one", "one of each version", "of another listener", "two of one version", "none of the version"],
)
def test_the_path_names_the_relay_address_where_only_one_can_be_meant(
    tmp_path: Path, advertise: list[dict[str, Any]], relay: str | None
) -> None:
    async def scenario(rig: DirectRig, client: RawClient) -> None:
        assert client.session.info(rig.clock()).path.relay is None
        await client.connect()
        assert client.session.info(rig.clock()).path.relay == relay

    play(tmp_path, scenario, advertise=advertise)


def test_audio_reaches_a_backend_only_after_it_started(tmp_path: Path) -> None:
    def prepare(backend: FakeBackend) -> None:
        backend.start_takes = 1.0

    async def scenario(rig: DirectRig, client: RawClient) -> None:
        await client.connect()
        for _ in range(25):
            client.speak()
            await asyncio.sleep(0.02)
        assert rig.backends[0].frames == []
        await rig.backends[0].started.wait()
        for _ in range(25):
            client.speak()
            await asyncio.sleep(0.02)
        assert rig.backends[0].frames

    play(tmp_path, scenario, prepare=prepare)


def test_a_call_that_ends_while_its_backend_starts_cancels_it_and_closes_it_once(tmp_path: Path) -> None:
    def prepare(backend: FakeBackend) -> None:
        backend.start_takes = 8.0

    async def scenario(rig: DirectRig, client: RawClient) -> None:
        await asyncio.sleep(0.1)
        client.session.end(EndReason.HANGUP)
        client.session.end(EndReason.MAX_AGE)
        assert client.session.finished is not None
        await client.session.finished
        assert rig.backends[0].closed == ["hangup"]
        assert not rig.backends[0].started.is_set()
        assert client.session.end_reason is EndReason.HANGUP

    play(tmp_path, scenario, prepare=prepare)


def test_a_backend_that_never_closes_is_left_behind(tmp_path: Path) -> None:
    def prepare(backend: FakeBackend) -> None:
        backend.close_takes = 1e9

    async def scenario(rig: DirectRig, client: RawClient) -> None:
        began = rig.clock()
        await rig.sessions.end_all(EndReason.SHUTDOWN)
        assert rig.clock() - began < 6

    play(tmp_path, scenario, prepare=prepare)


def test_a_backend_may_hang_up(tmp_path: Path) -> None:
    async def scenario(rig: DirectRig, client: RawClient) -> None:
        await client.connect()
        call = rig.backends[0].call
        assert call is not None
        call.end("the story is over")
        assert client.session.end_reason is EndReason.BACKEND_ENDED
        call.end("again")
        assert call.play(b"\0\0" * 480) == 0
        call.send_event({"type": "too.late"})

    play(tmp_path, scenario)


@pytest.mark.parametrize("where", ["audio_error", "event_error"])
def test_a_backend_that_raises_ends_its_own_call_only(tmp_path: Path, where: str) -> None:
    async def scenario(rig: DirectRig, client: RawClient) -> None:
        other = RawClient(rig, 2001)  # type: ignore[arg-type]
        await other.create()
        await client.connect()
        await other.connect()
        setattr(rig.backends[0], where, ZeroDivisionError())
        for _ in range(20):
            client.speak()
            other.speak()
            await asyncio.sleep(0.02)
        client.session.on_message('{"type": "response.create"}')
        assert client.session.end_reason is EndReason.BACKEND_FAILED
        assert other.session.state == "connected"
        assert rig.backends[1].frames

    play(tmp_path, scenario)


def test_an_unknown_backend_makes_no_session(tmp_path: Path) -> None:
    async def scenario(rig: DirectRig, client: RawClient) -> None:
        before = len(rig.sessions)
        with pytest.raises(LocalError, match="no backend 'nonsense'"):
            await rig.create(client.offer(), backend="nonsense")
        assert len(rig.sessions) == before

    play(tmp_path, scenario)


# The end


def test_after_the_end_nothing_is_left(tmp_path: Path) -> None:
    left: list[weakref.ref[Session]] = []

    async def scenario(rig: DirectRig, client: RawClient) -> None:
        await client.connect()
        client.speak()
        client.check(path(2002))
        session = client.session
        assert rig.mux.paths == 2
        session.end(EndReason.HANGUP)
        assert session.finished is not None
        await session.finished
        assert len(rig.sessions) == 0
        assert rig.mux.paths == 0
        assert rig.mux._by_ufrag == {}
        assert rig.mux._by_ssrc == {}
        assert len(rig.ticker) == 0
        left.append(weakref.ref(session))
        del client.session, session
        rig.backends.clear()
        await asyncio.sleep(0)

    play(tmp_path, scenario)
    gc.collect()
    assert left[0]() is None


def test_the_client_is_told_by_close_notify_and_gets_no_further_answers(tmp_path: Path) -> None:
    async def scenario(rig: DirectRig, client: RawClient) -> None:
        await client.connect()
        request = client.check()
        await asyncio.sleep(0.01)
        heard, answers = len(client.dtls_in), len(client.responses)
        client.session.end(EndReason.HANGUP)
        client.send(request)
        await asyncio.sleep(0.01)
        assert len(client.dtls_in) == heard + 1
        assert client.dtls_in[-1][0] == 21  # alert
        assert len(client.responses) == answers

    play(tmp_path, scenario)


def test_close_notify_of_the_client_frees_the_call(tmp_path: Path) -> None:
    async def scenario(rig: DirectRig, client: RawClient) -> None:
        await client.connect()
        client.ssl.shutdown()
        client.handshake()
        assert client.session.end_reason is EndReason.CLIENT_CLOSED

    play(tmp_path, scenario)


def test_a_client_that_floods_the_channel_loses_the_call(tmp_path: Path) -> None:
    async def scenario(rig: DirectRig, client: RawClient) -> None:
        await client.connect()
        for _ in range(2000):
            client.session.on_message("{}")
        assert client.session.end_reason is EndReason.ABUSE

    play(tmp_path, scenario)


@pytest.mark.parametrize("payload,ends", [(b"\xf8", True), (b"", False)], ids=["DTX", "a loud tone"])
def test_only_what_can_be_heard_keeps_an_idle_call(tmp_path: Path, payload: bytes, ends: bool) -> None:
    encoder = load_codec().encoder(EncoderSettings())
    times = np.arange(FRAME_SAMPLES) / SAMPLE_RATE
    tone = (8000 * np.sin(2 * np.pi * 400 * times)).astype(np.int16).tobytes()

    async def scenario(rig: DirectRig, client: RawClient) -> None:
        await client.connect()
        for number in range(25 * 50):
            client.speak(payload=payload or encoder.encode(tone))
            if number % 100 == 0:
                client.check()
            await asyncio.sleep(0.02)
        assert (client.session.end_reason is EndReason.IDLE) == ends

    play(tmp_path, scenario, limits={"idle": 20.0})


@pytest.mark.parametrize("level,ends", [(0, True), (8000, False)], ids=["silence", "a loud tone"])
def test_only_what_a_backend_says_aloud_keeps_an_idle_call(tmp_path: Path, level: int, ends: bool) -> None:
    times = np.arange(FRAME_SAMPLES) / SAMPLE_RATE
    pcm = (level * np.sin(2 * np.pi * 400 * times)).astype(np.int16).tobytes()

    async def scenario(rig: DirectRig, client: RawClient) -> None:
        await client.connect()
        call = rig.backends[0].call
        assert call is not None
        for number in range(25 * 50):
            call.play(pcm)
            if number % 100 == 0:
                client.check()
            await asyncio.sleep(0.02)
        assert (client.session.end_reason is EndReason.IDLE) == ends

    play(tmp_path, scenario, limits={"idle": 20.0})


def test_a_drain_waits_for_backends_of_calls_that_ended_before(tmp_path: Path) -> None:
    let_go: list[str] = []

    class Slow(FakeBackend):
        async def close(self, reason: str) -> None:
            await asyncio.sleep(3)
            let_go.append(reason)

    async def scenario(rig: DirectRig, client: RawClient) -> None:
        rig.sessions._backends["fake"] = lambda _config: Slow()
        second = RawClient(rig, 3000)  # type: ignore[arg-type]
        await second.create()
        await asyncio.sleep(0.1)
        second.session.end(EndReason.CLIENT_CLOSED)
        client.session.end(EndReason.CLIENT_CLOSED)
        await rig.sessions.wait_empty()
        await rig.sessions.end_all(EndReason.DRAIN_DEADLINE)
        assert let_go == ["client_closed"]
        assert rig.sessions._finishing == set()

    play(tmp_path, scenario)


@pytest.mark.parametrize("size,fits", [(65_000, True), (65_500, False), (200_000, False)])
def test_a_session_that_the_client_could_not_be_told_is_refused(tmp_path: Path, size: int, fits: bool) -> None:
    async def scenario(rig: DirectRig, client: RawClient) -> None:
        offer = OFFER_OF_64_KIB.read_bytes().decode()
        if fits:
            await rig.create(offer, session={"instructions": "x" * size})
            return
        with pytest.raises(RemoteError, match="65536 bytes at most") as caught:
            await rig.create(offer, session={"instructions": "x" * size})
        assert caught.value.reason == "session_too_large"
        assert len(rig.sessions) == 1

    play(tmp_path, scenario)


def test_backends_are_looked_up_at_the_start_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(rig: DirectRig, client: RawClient) -> None:
        def never(**_filter: str) -> None:
            raise AssertionError("looked for entry points within the loop")

        monkeypatch.setattr(registry, "entry_points", never)
        offer = client.offer()
        with pytest.raises(LocalError, match=r"no backend 'nobody'.*known here: echo, fake, parrot"):
            await rig.create(offer, backend="nobody")
        await rig.create(offer, backend="parrot")

    play(tmp_path, scenario)


def test_what_happened_to_audio_is_still_counted_after_the_call(tmp_path: Path) -> None:
    async def scenario(rig: DirectRig, client: RawClient) -> None:
        await client.connect()
        for _ in range(5):
            client.speak()
        client.sequence += 3
        client.speak()
        assert rig.sessions.totals.audio["received"] == 6
        client.session.end(EndReason.HANGUP)
        after = rig.sessions.totals.audio
        assert (after["received"], after["lost"]) == (6, 3)
        assert len(rig.sessions) == 0

    play(tmp_path, scenario)


@pytest.mark.parametrize("report_after,heard_at", [(None, 17.0), (0.5, 13.0)], ids=["checks only", "an RTCP report"])
def test_a_client_that_sends_no_audio_is_heard_again_at_its_new_port(
    tmp_path: Path, report_after: float | None, heard_at: float
) -> None:
    # docs/wire.md section 6: the last check from the old port is at 10.0, the first from the new one at 12.5.
    async def scenario(rig: DirectRig, client: RawClient) -> None:
        await client.connect()
        await asyncio.sleep(0.5)
        came: list[float] = []
        new = path(4000)
        start = rig.clock()

        def on_datagram(payload: bytes) -> None:
            if classify(payload) is DatagramClass.RTP:
                came.append(rig.clock() - start)

        rig.relay.sinks[new] = on_datagram
        call = rig.backends[0].call
        assert call is not None
        assert client.srtp is not None
        client.speak()  # Until something has authenticated, nomination is free.

        async def speak() -> None:
            while True:
                call.play(b"\x10\x20" * 480)
                await asyncio.sleep(0.02)

        speaking = asyncio.create_task(speak())
        for tick in range(9):
            client.check(at=client.path if tick <= 4 else new, nominate=True)
            if tick == 5 and report_after is not None:
                await asyncio.sleep(report_after)
                client.send(client.srtp.protect(build_report(Report(1, ())) + build_cname(1, "client")), at=new)
                await asyncio.sleep(2.5 - report_after)
            else:
                await asyncio.sleep(2.5)
        speaking.cancel()
        assert came[0] == pytest.approx(heard_at, abs=0.05)

    play(tmp_path, scenario)


@pytest.mark.parametrize("wish,bitrate", [(20_000, 20_000), (500, 6_000), (96_000, 64_000)])
def test_a_client_gets_no_more_bits_than_it_wants(tmp_path: Path, wish: int, bitrate: int) -> None:
    async def scenario(rig: DirectRig, client: RawClient) -> None:
        created = await rig.create(client.offer() + f"a=fmtp:111 maxaveragebitrate={wish}\r\n")
        session = rig.sessions.get(created["session_id"])
        assert session is not None
        assert session.facts.stream.encoder.bitrate == bitrate

    play(tmp_path, scenario)
