"""Says speech back and leaves out the pauses; tells the client when it is heard to speak."""

from usher_transceiver.backends.coroutine import Call
from usher_transceiver.backends.speech import SpeechEvents


async def run(call: Call) -> None:
    """Talk with one caller until it hangs up."""
    speech = SpeechEvents()
    async for frame in call.audio:
        event = speech.on_frame(frame)
        if event is not None:
            call.send_event(event)
        if speech.speaking:
            await call.play(frame.data)
