"""Calls of stock aiortc through a minimal relay: audio both ways, events, hang-up."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from tests.raw_client import RawClient
from tests.transceiver_rig import Client, Rig, rig, until
from usher_core.datagram import DatagramClass, classify
from usher_core.hop import RecordFlag
from usher_core.rtp import is_rtcp
from usher_transceiver.aiortc_adapter import MAX_MESSAGE_SIZE
from usher_transceiver.session import EndReason

pytestmark = pytest.mark.programs


async def connected(running: Rig, **options: object) -> Client:
    client = running.client(**options)
    await client.call()
    return client


async def test_a_tone_comes_back_and_the_data_channel_greets(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        client = await connected(running)
        await until(client.hears_tone, "the tone is heard")
        await until(lambda: client.events, "an event came")
        assert client.events[0]["type"] == "session.created"
        session = client.events[0]["session"]
        assert session["id"] == f"sess_{client.session_id}"
        assert session["object"] == "realtime.session"


async def test_info_tells_state_path_timings_and_both_ufrags(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        client = await connected(running)
        await until(client.hears_tone, "the tone is heard")
        info = (await running.http.get(f"/internal/v1/sessions/{client.session_id}")).json()
        assert info["state"] == "connected"
        assert info["path"] == {
            "relay": f"127.0.0.1:{running.relay.port}",
            "listener": 1,
            "cluster": 1,
            "pod": 17,
            "worker": 0,
        }
        timings = info["timings"]
        order = ["answer_ms", "ice_ms", "dtls_ms", "first_audio_in_ms", "first_audio_out_ms"]
        assert all(timings[name] is not None for name in order)
        assert timings["answer_ms"] <= timings["ice_ms"] <= timings["dtls_ms"] <= timings["first_audio_in_ms"]
        assert f"a=ice-ufrag:{info['ufrag']}" in client.answer
        assert f"a=ice-ufrag:{info['remote_ufrags'][0]}" in client.pc.localDescription.sdp


async def test_the_first_channel_carries_the_events_whatever_its_label(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        client = await connected(running, channel="device-channel")
        await until(lambda: client.of_type("session.created"), "greeted")
        assert client.channel is not None
        client.channel.send(json.dumps({"type": "session.update", "session": {"instructions": "x"}}))
        await until(lambda: client.of_type("session.updated"), "updated")
        client.channel.send("not json")
        await until(lambda: client.of_type("error"), "told of the error")
        other = client.pc.createDataChannel("another")
        await until(lambda: other.readyState == "open", "a second channel opens")
        assert len(client.of_type("session.created")) == 1


async def test_a_message_of_256_kib_works_both_ways(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        client = await connected(running)
        await until(lambda: client.of_type("session.created"), "greeted")
        assert client.channel is not None
        frame = json.dumps({"type": "session.update", "session": {"instructions": ""}})
        room = MAX_MESSAGE_SIZE - 1024 - len(frame)
        client.channel.send(frame.replace('""', json.dumps("x" * room)))
        await until(lambda: client.of_type("session.updated"), "updated", 30)
        assert len(client.of_type("session.updated")[0]["session"]["instructions"]) == room


async def test_a_call_without_a_data_channel_has_audio(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        client = await connected(running, channel=None)
        await until(client.hears_tone, "the tone is heard")


@pytest.mark.parametrize(("codec", "payload_type"), [("audio/PCMU", 0), ("audio/PCMA", 8)])
async def test_a_client_that_has_telephone_audio_alone_hears_its_tone(
    tmp_path: Path, codec: str, payload_type: int
) -> None:
    async with rig(tmp_path) as running:
        client = await connected(running, codec=codec)
        assert f"m=audio {running.relay.port} UDP/TLS/RTP/SAVPF {payload_type}\r\n" in client.answer
        await until(client.hears_tone, "the tone is heard")
        assert client.heard_rate == 8000
        assert client.session.stream.stats(0.0).dropped == {}


async def test_what_goes_to_clients_fits_1200_bytes_and_says_that_they_are_alive(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        client = await connected(running)
        await until(lambda: client.of_type("session.created"), "greeted")
        client.session.events.emit({"type": "large", "text": "x" * 100_000})
        await until(lambda: client.of_type("large"), "the large event came")
        await until(client.hears_tone, "the tone is heard")
        assert max(len(payload) for _, _, payload, _ in running.relay.log.down) <= 1200
        assert all(flags & RecordFlag.ALIVE for _, _, _, flags in running.relay.log.down)


async def test_hang_up_by_the_api_closes_the_client_at_once_and_checks_are_no_longer_answered(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        client = await connected(running)
        await until(lambda: client.of_type("session.created"), "greeted")
        path = client.remote_path
        ended = await running.http.delete(f"/internal/v1/sessions/{client.session_id}")
        assert ended.status_code == 200
        assert ended.json() == {"session_id": client.session_id, "reason": "hangup"}
        assert client.channel is not None
        await until(lambda: client.channel.readyState == "closed", "the channel is closed")  # type: ignore[union-attr]
        await until(lambda: client.pc.connectionState == "closed", "the connection is closed")
        assert [event["reason"] for event in client.of_type("usher.call.ended")] == ["hangup"]
        assert (await running.http.get(f"/internal/v1/sessions/{client.session_id}")).json()["end_reason"] == "hangup"
        answers = len(running.relay.down_to(path, DatagramClass.STUN))
        checks = [payload for _, at, payload in running.relay.log.up if classify(payload) is DatagramClass.STUN]
        running.relay.forward(path, checks[-1])
        await until(lambda: running.drops["ice_ufrag"], "the check was dropped")
        assert len(running.relay.down_to(path, DatagramClass.STUN)) == answers
        assert path in running.relay.log.unknown_flow


async def test_a_client_that_closes_frees_its_session_at_once(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        client = await connected(running)
        await until(lambda: client.of_type("session.created"), "greeted")
        session = client.session
        await client.pc.close()
        await until(lambda: session.state == "ended", "ended", 1.0)
        assert session.end_reason == "client_closed"
        assert len(running.transceiver.sessions) == 0
        assert running.transceiver.mux.paths == 0


async def test_a_client_far_away_hears_of_the_end_though_events_fill_the_window_of_its_way(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        running.relay.delay_s = 0.075
        client = await connected(running)
        await until(lambda: client.of_type("session.created"), "greeted")
        for number in range(12):
            client.session.events.emit({"type": "test.filler", "number": number, "text": "x" * 1000})
        client.session.end(EndReason.HANGUP)
        await until(lambda: client.of_type("usher.call.ended"), "told", 1.0)
        assert [event["number"] for event in client.of_type("test.filler")] == list(range(12))
        assert len(running.transceiver.sessions) == 0


async def test_an_sctp_abort_alone_frees_the_session(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        client = await connected(running)
        await until(lambda: client.of_type("session.created"), "greeted")
        session = client.session
        assert client.pc.sctp is not None
        await client.pc.sctp.stop()
        await until(lambda: session.state == "ended", "ended", 1.0)
        assert session.end_reason == "client_closed"


async def test_a_small_device_has_a_call(tmp_path: Path) -> None:
    # ESP32 class: SAVP, opus/16000/1, setup:passive, RSA 1024, mid `audio`, no extensions, no candidates.
    async with rig(tmp_path) as running:
        device = RawClient(
            running,
            2000,
            setup="passive",
            codec="opus/16000/1",
            key="rsa",
            bits=1024,
            profiles=b"SRTP_AES128_CM_SHA1_80",
        )
        session = await device.create()
        await device.connect()
        for _ in range(10):
            device.speak()
        await until(lambda: session.stream.stats(0).packets_received == 10, "its audio arrives")
        session.stream.play(b"\x10\x20" * 4800)
        await until(lambda: len(device.rtp) >= 8, "it hears something")
        times = [int.from_bytes(packet[4:8]) for packet in device.rtp if not is_rtcp(packet)]
        assert {later - earlier for earlier, later in itertools.pairwise(times)} == {320}


async def test_a_packet_that_is_too_long_for_srtp_harms_nothing(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        client = RawClient(running, 2000)
        session = await client.create()
        await client.connect()
        for size in (1349, 1500, 2000):
            client.send(b"\x80\x6f" + bytes(size))
        await until(lambda: running.drops["srtp_authentication"] == 3, "dropped")
        client.speak()
        await until(lambda: session.sources, "the call goes on")


async def test_an_offer_with_setup_passive_makes_us_the_dtls_client(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        client = running.client(channel="datachannel")
        await client.call(lambda sdp: sdp.replace("a=setup:actpass", "a=setup:passive"))
        assert "a=setup:active" in client.answer
        assert client.session.facts.offer.role == "client"
        await until(client.hears_tone, "the tone is heard")
        await until(lambda: client.of_type("session.created"), "greeted")
