"""Several calls, some at a time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from usher_cli.call.api import CallError, CallsApi
from usher_cli.call.client import CallRecord, place_call
from usher_cli.call.opus import RATE
from usher_cli.call.reception import receive
from usher_cli.call.result import CallResult, failed, judge
from usher_cli.call.source import Source, write_wav
from usher_cli.call.steady_checks import use_steady_checks


class Progress(Protocol):
    """Is told what a call does, and `why` where something is wrong; number 0 stands for the light calls of a load."""

    def __call__(self, number: int, step: str, why: str | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """What `usher call` was asked for.

    `record`: where to write what came back; `any_reply`: see `result.faults`; `region`: see `CallsApi`; `trace`: its
    hops are asked for.
    """

    url: str
    api_key: str | None
    source: Source
    seconds: float
    count: int = 1
    concurrency: int = 1
    record: Path | None = None
    via: tuple[str, int] | None = None
    any_reply: bool = False
    region: str | None = None
    trace: bool = False


async def place_calls(plan: Plan, progress: Progress, hang_up: asyncio.Event) -> list[CallResult]:
    """Place all calls of a plan and judge them. A call that fails is a result, not an error.

    Once `hang_up` is set, calls end and none that had to wait for its turn is placed.

    Raises LocalError for a URL or a file of ours that is wrong.
    """
    use_steady_checks()
    free = asyncio.Semaphore(plan.concurrency)
    async with CallsApi(plan.url, plan.api_key, plan.region) as api:

        async def one(number: int) -> CallRecord | CallResult | None:
            async with free:
                if hang_up.is_set():
                    return None
                progress(number, "calling")
                try:
                    record = await place_call(
                        api,
                        plan.source,
                        plan.seconds,
                        lambda step: progress(number, step),
                        plan.via,
                        hang_up=hang_up,
                        trace=plan.trace,
                    )
                except CallError as error:
                    progress(number, "failed", str(error))
                    return failed(str(error))
                progress(number, "hung up" if record.broke is None else "broke", record.broke)
                return record

        records = await asyncio.gather(*(one(number) for number in range(1, plan.count + 1)))
    # Only now: decoding would disturb calls that still run.
    return [_result(number, record, plan) for number, record in enumerate(records, 1) if record is not None]


def _result(number: int, record: CallRecord | CallResult, plan: Plan) -> CallResult:
    if isinstance(record, CallResult):
        return record
    if plan.record is not None:
        _write_recording(recording_path(plan.record, number, plan.count), record)
    return judge(record, plan.source, any_reply=plan.any_reply, trace=plan.trace, region=plan.region)


def recording_path(path: Path, number: int, count: int) -> Path:
    """Return where to record call `number` of `count`: `path`, with the number before its suffix if there are more."""
    return path.with_stem(f"{path.stem}-{number}") if count > 1 else path


def _write_recording(path: Path, record: CallRecord) -> None:
    """Write what came back at its place on the sender's clock; lost packets are silence."""
    frames = receive(record.arrivals).frames
    length = max((round(frame.media_s * RATE) + len(frame.samples) for frame in frames), default=0)
    samples = np.zeros(length, np.int16)
    for frame in frames:
        start = max(0, round(frame.media_s * RATE))
        samples[start : start + len(frame.samples)] = frame.samples
    write_wav(path, samples)
