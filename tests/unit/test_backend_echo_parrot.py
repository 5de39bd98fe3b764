"""The two backends that need no model, against a call that writes down what is done to it."""

import pytest

from tests.backend_call import WrittenCall
from tests.media_tone import frames_of, level, tone
from usher_transceiver.backends.echo import EchoBackend
from usher_transceiver.backends.parrot import ParrotBackend
from usher_transceiver.backends.protocol import Backend
from usher_transceiver.media.frame import FRAME_BYTES, FRAME_MS, SILENCE, AudioFrame, Origin

STARTED, STOPPED = "input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped"


class Talk:
    """Speaks to a backend, frame after frame."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.position_ms = 0

    def say(self, pcm: bytes, origin: Origin = Origin.RECEIVED) -> None:
        for frame in frames_of(pcm):
            self.backend.on_audio(AudioFrame(frame, self.position_ms, origin))
            self.position_ms += FRAME_MS

    def pause(self, milliseconds: int) -> None:
        self.say(SILENCE * (milliseconds // FRAME_MS), Origin.SILENCE)


async def started(backend: Backend) -> WrittenCall:
    call = WrittenCall()
    await backend.start(call)
    return call


async def test_echo_plays_every_frame_from_within_on_audio() -> None:
    backend = EchoBackend({})
    call = await started(backend)
    talk = Talk(backend)
    said = tone(440, seconds=0.5)
    for frame in frames_of(said):
        talk.say(frame)
        assert call.queue[-FRAME_BYTES:] == frame
    assert bytes(call.queue) == said


async def test_echo_plays_concealed_frames_but_not_silence() -> None:
    backend = EchoBackend({})
    call = await started(backend)
    talk = Talk(backend)
    talk.say(tone(440, seconds=0.02), Origin.CONCEALED)
    talk.pause(1000)
    assert len(call.queue) == FRAME_BYTES


@pytest.mark.parametrize("make", [EchoBackend, ParrotBackend])
async def test_the_client_is_told_when_it_is_heard_to_speak(make: type[EchoBackend | ParrotBackend]) -> None:
    backend = make({})
    call = await started(backend)
    talk = Talk(backend)
    for _ in range(2):
        talk.pause(1000)
        talk.say(tone(440, seconds=1))
    talk.pause(1000)
    assert call.times == [(STARTED, 1000), (STOPPED, 2000), (STARTED, 3000), (STOPPED, 4000)]
    items = [event["item_id"] for event in call.events]
    assert items[0] == items[1] != items[2] == items[3]
    assert all(item.startswith("item_") for item in items)


async def test_the_parrot_is_silent_until_the_pause_and_then_says_back_what_was_said() -> None:
    backend = ParrotBackend({})
    call = await started(backend)
    talk = Talk(backend)
    talk.pause(2000)
    said = tone(440, seconds=1)
    talk.say(said)
    assert not call.queue
    talk.pause(480)
    assert not call.queue
    talk.pause(40)
    answer = bytes(call.queue)
    assert said in answer
    assert len(answer) // 48 == pytest.approx(1000 + 200 + 100, abs=100)
    assert level(answer[-48 * 80 :]) == -127


async def test_new_speech_interrupts_the_parrot() -> None:
    backend = ParrotBackend({})
    call = await started(backend)
    talk = Talk(backend)
    talk.say(tone(440, seconds=1))
    talk.pause(600)
    assert call.queued_ms > 1000
    talk.say(tone(880, seconds=0.1))
    assert call.queued_ms == 0
    talk.pause(600)
    assert tone(880, seconds=0.1) in bytes(call.queue)
    assert call.queued_ms < 600


async def test_the_parrots_memory_is_bounded() -> None:
    backend = ParrotBackend({})
    call = await started(backend)
    talk = Talk(backend)
    talk.say(tone(440, seconds=10) * 6)
    assert len(backend._recording) <= 31 * 48_000
    talk.pause(1000)
    assert call.queued_ms <= 30_200
    talk.pause(60_000)
    assert len(backend._recording) <= 48 * 300


@pytest.mark.parametrize("kind", ["output_audio_buffer.clear", "response.cancel"])
async def test_the_parrot_can_be_told_to_stop(kind: str) -> None:
    backend = ParrotBackend({})
    call = await started(backend)
    talk = Talk(backend)
    talk.say(tone(440, seconds=1))
    talk.pause(600)
    assert backend.on_event({"type": kind})
    assert call.queued_ms == 0


@pytest.mark.parametrize("make", [EchoBackend, ParrotBackend])
async def test_unknown_events_are_left_to_the_session_and_nothing_happens_after_close(
    make: type[EchoBackend | ParrotBackend],
) -> None:
    backend = make({})
    call = await started(backend)
    assert not backend.on_event({"type": "conversation.item.create"})
    assert not backend.on_event({"type": ["not", "text"]})
    await backend.close("hang-up")
    Talk(backend).say(tone(440, seconds=1))
    assert not call.queue
    assert not call.events
