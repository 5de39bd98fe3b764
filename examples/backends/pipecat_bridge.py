"""A Pipecat pipeline as a backend: `UsherTransport` is its transport, as Daily's or LiveKit's would be.

The pipeline here says back what it hears, which needs no key of any service. Put yours into `run` in its place:
transport.input(), speech to text, context, model, text to speech, transport.output().
"""

from typing import Any

from pipecat.frames.frames import (
    CancelFrame,
    ClientConnectedFrame,
    EndFrame,
    Frame,
    InputAudioRawFrame,
    InputTransportMessageFrame,
    InterruptionFrame,
    OutputAudioRawFrame,
    OutputTransportMessageFrame,
    OutputTransportMessageUrgentFrame,
    StartFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.transports.base_input import BaseInputTransport
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import BaseTransport, TransportParams
from pipecat.workers.runner import WorkerRunner

from usher_transceiver.backends.coroutine import Call

RATE = 24_000
AHEAD_MS = 100
"""Pipecat itself keeps what is to be said, so that it knows when the bot speaks and what an interruption cuts off."""


class UsherInput(BaseInputTransport):
    """The caller's audio and events go into the pipeline."""

    def __init__(self, call: Call, params: TransportParams) -> None:
        super().__init__(params)
        self._call = call
        self._readers: list[Any] = []

    async def start(self, frame: StartFrame) -> None:
        """Begin to read; called by Pipecat."""
        await super().start(frame)
        await self.set_transport_ready(frame)
        await self.push_frame(ClientConnectedFrame())
        self._readers = [self.create_task(self._read_audio()), self.create_task(self._read_events())]

    async def _read_audio(self) -> None:
        async for frame in self._call.audio:
            await self.push_audio_frame(InputAudioRawFrame(audio=frame.data, sample_rate=RATE, num_channels=1))

    async def _read_events(self) -> None:
        async for event in self._call.events:
            await self.broadcast_frame(InputTransportMessageFrame, message=event)

    async def _stop_reading(self) -> None:
        readers, self._readers = self._readers, []
        for reader in readers:
            await self.cancel_task(reader)

    async def stop(self, frame: EndFrame) -> None:
        """Read no more; called by Pipecat."""
        await self._stop_reading()
        await super().stop(frame)

    async def cancel(self, frame: CancelFrame) -> None:
        """Read no more; called by Pipecat."""
        await self._stop_reading()
        await super().cancel(frame)


class UsherOutput(BaseOutputTransport):
    """The pipeline's audio and messages go to the caller."""

    def __init__(self, call: Call, params: TransportParams) -> None:
        super().__init__(params)
        self._call = call

    async def start(self, frame: StartFrame) -> None:
        """Get ready; called by Pipecat."""
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Drop at an interruption what has gone to the queue already."""
        await super().process_frame(frame, direction)
        if isinstance(frame, InterruptionFrame):
            self._call.clear()

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        """Play; it takes as long as the audio does, as Pipecat expects."""
        await self._call.play(frame.audio, ahead_ms=AHEAD_MS)
        return True

    async def send_message(self, frame: OutputTransportMessageFrame | OutputTransportMessageUrgentFrame) -> None:
        """Send a message, an object with a `type`, on the data channel."""
        self._call.send_event(frame.message)


class UsherTransport(BaseTransport):
    """One call as a transport of Pipecat."""

    def __init__(self, call: Call, **params: Any) -> None:
        super().__init__()
        audio = TransportParams(
            audio_in_enabled=True,
            audio_in_sample_rate=RATE,
            audio_out_enabled=True,
            audio_out_sample_rate=RATE,
            audio_out_10ms_chunks=2,
            audio_out_auto_silence=False,  # usher sends nothing in silence
            audio_out_end_silence_secs=0,
            **params,
        )
        self._input = UsherInput(call, audio)
        self._output = UsherOutput(call, audio)

    def input(self) -> FrameProcessor:
        """Return what begins a pipeline."""
        return self._input

    def output(self) -> FrameProcessor:
        """Return what ends a pipeline."""
        return self._output


class Echo(FrameProcessor):
    """Where your services would be."""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Turn what is heard into what is said."""
        await super().process_frame(frame, direction)
        if isinstance(frame, InputAudioRawFrame):
            frame = OutputAudioRawFrame(audio=frame.audio, sample_rate=frame.sample_rate, num_channels=1)
        elif isinstance(frame, InputTransportMessageFrame):
            frame = OutputTransportMessageUrgentFrame(message={"type": "heard", "event": frame.message})
        await self.push_frame(frame, direction)


async def run(call: Call) -> None:
    """Run one pipeline for one caller; a hang-up cancels it."""
    transport = UsherTransport(call)
    pipeline = Pipeline([transport.input(), Echo(), transport.output()])
    params = PipelineParams(audio_in_sample_rate=RATE, audio_out_sample_rate=RATE)
    # usher ends calls that are idle, and signals are the transceiver's.
    worker = PipelineWorker(pipeline, params=params, idle_timeout_secs=None)
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    await runner.run()
