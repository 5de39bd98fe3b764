"""Greets, then says after each utterance how long it was, with the voice of espeak-ng; new speech interrupts it."""

import asyncio
import io
import shutil
import subprocess

import av

from usher_transceiver.backends.coroutine import Call
from usher_transceiver.backends.speech import SpeechEvents

ESPEAK = shutil.which("espeak-ng") or ""
if not ESPEAK:
    # At the import, so that it is told when the transceiver starts, and not to the first caller.
    raise RuntimeError("espeak-ng is not installed; `apt install espeak-ng`, or your system's like")


async def run(call: Call) -> None:
    """Talk with one caller until it hangs up. The configuration may name a `voice`."""
    await say(call, f"Hello {call.metadata.get('name', '')}. Say something.")
    speech, begun_ms = SpeechEvents(), 0
    async for frame in call.audio:
        event = speech.on_frame(frame)
        if event is None:
            continue
        call.send_event(event)
        if speech.speaking:
            begun_ms = event["audio_start_ms"]
            call.clear()
        else:
            await say(call, f"You spoke for {(event['audio_end_ms'] - begun_ms) / 1000:.1f} seconds.")


async def say(call: Call, text: str) -> None:
    """Put a text into speech, and the speech into the queue."""
    # In a thread: starting a program takes longer than the loop has, which carries everybody's audio.
    await call.play(await asyncio.to_thread(to_pcm, text, call.config.get("voice", "en")))


def to_pcm(text: str, voice: str) -> bytes:
    """Return speech in the form that `play` takes: 24 kHz, mono, signed 16 bit."""
    command = (ESPEAK, "-v", voice, "--stdin", "--stdout")
    wav = subprocess.run(command, input=text.encode(), stdout=subprocess.PIPE, check=True, timeout=10).stdout
    resampler = av.AudioResampler(format="s16", layout="mono", rate=24_000)
    with av.open(io.BytesIO(wav), "r") as file:
        frames = [*file.decode(audio=0), None]  # None: what the resampler still holds
        return b"".join(out.to_ndarray().tobytes() for frame in frames for out in resampler.resample(frame))
