"""The numbers of one call and the summary of several, as printed and as JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from usher_cli.call.analysis import Findings, analyse
from usher_cli.call.client import CallRecord
from usher_cli.call.reception import receive
from usher_cli.call.source import Source
from usher_cli.call.trace import trace_of

FREQUENCY_TOLERANCE = 0.01
LEVEL_TOLERANCE_DB = 6.0
MIN_TONE_SHARE = 0.95
MIN_HEARD_S = 0.5
MIN_FILE_SHARE = 0.8
LAG_S = 0.5
"""Of what was sent at the end of a call, not all has come back when it ends."""
_HINT_FOR_SILENCE = "; a backend that waits for a pause needs --talk, one with words of its own --any-reply"


@dataclass(frozen=True, slots=True)
class CallResult:
    """One call. Times in ms, None where it did not happen.

    * `wrong`: in words what was not right; `ok` means that it is empty
    * `offer_answer_ms`: POST of the offer to the answer read; `ice_ms`: answer to ICE done; `dtls_ms`: from there to
      DTLS done; `first_audio_ms`: POST of the offer to the arrival of the first packet that sounds
    * `rtt_ms`: from the RTCP reports of the transceiver, smoothed by the client; `check_ms`: the quickest check of the
      connected call
    * `trace`: where that goes, hop by hop (`trace.trace_of`); None where it was not asked for
    * `elsewhere`: a region was asked for, and a transceiver of another one serves the call
    * `lost`, `received`: RTP packets towards us; `lost_upstream`: RTP packets of ours, by the transceiver's reports
    * `longest_gap_ms`: the longest time without sound after the first, the larger of `arrival_gap_ms` (between packets
      as they came, less the 20 ms that one lasts) and `content_gap_ms` (silence or loss on the sender's clock)
    * `gaps`: those of 100 ms and more by arrival
    * `late_ms`: how late this client was with a packet of its own, at most; a busy machine shows here and in all gaps
    * `delay_ms`, `delay_growth_ms`: how late our sound came back (median), and how much later at the end
    """

    ok: bool
    wrong: tuple[str, ...]
    offer_answer_ms: float | None = None
    ice_ms: float | None = None
    dtls_ms: float | None = None
    first_audio_ms: float | None = None
    rtt_ms: float | None = None
    check_ms: float | None = None
    received: int = 0
    lost: int = 0
    lost_upstream: int | None = None
    longest_gap_ms: float | None = None
    arrival_gap_ms: float | None = None
    content_gap_ms: float | None = None
    gaps: tuple[dict[str, float], ...] = ()
    late_ms: float | None = None
    tone_hz: float | None = None
    level_dbfs: float | None = None
    tone_share: float | None = None
    delay_ms: float | None = None
    delay_growth_ms: float | None = None
    transceiver: str | None = None
    path: dict[str, Any] | None = None
    elsewhere: bool = False
    trace: dict[str, Any] | None = None
    events: tuple[str, ...] = ()
    seconds: float | None = None


def failed(reason: str) -> CallResult:
    """Return the result of a call that did not come about."""
    return CallResult(ok=False, wrong=(reason,))


def judge(
    record: CallRecord, source: Source, *, any_reply: bool = False, trace: bool = False, region: str | None = None
) -> CallResult:
    """Return the result of a call that came about. Decodes what it received, so it takes some ms per second of call.

    `any_reply`: see `faults`. `trace`: whether hops were asked for. `region`: the one that was asked for.
    """
    assert record.offered_at is not None
    assert record.answered_at is not None
    assert record.ended_at is not None
    assert record.dtls_at is not None
    reception = receive(record.arrivals)
    sent_from = record.sent_from or record.dtls_at
    findings = analyse(reception.frames, source, sent_from, record.ended_at)
    wrong = tuple(faults(findings, source, record.ended_at - sent_from, any_reply=any_reply))
    if record.broke is not None:
        wrong = (record.broke, *wrong)
    longest = max(
        (gap for gap in (findings.longest_arrival_gap_s, findings.longest_content_gap_s) if gap is not None),
        default=None,
    )
    path = record.description.get("path")
    path = path if isinstance(path, dict) else None
    return CallResult(
        ok=not wrong,
        wrong=wrong,
        offer_answer_ms=_ms(record.answered_at - record.offered_at),
        ice_ms=_ms(_since(record.answered_at, record.ice_at)),
        dtls_ms=_ms(_since(record.ice_at, record.dtls_at)),
        first_audio_ms=_ms(_since(record.offered_at, findings.first_sound_at)),
        rtt_ms=_ms(record.rtt_s),
        check_ms=_ms(record.check_s),
        received=len(reception.frames),
        lost=reception.lost,
        lost_upstream=record.lost_upstream,
        longest_gap_ms=_ms(longest),
        arrival_gap_ms=_ms(findings.longest_arrival_gap_s),
        content_gap_ms=_ms(findings.longest_content_gap_s),
        gaps=tuple({"at_ms": round(gap.at_s * 1000, 1), "ms": round(gap.length_s * 1000, 1)} for gap in findings.gaps),
        late_ms=_ms(record.late_s),
        tone_hz=_rounded(findings.tone_hz),
        level_dbfs=_rounded(findings.level_dbfs),
        tone_share=_rounded(findings.tone_share, 4),
        delay_ms=_ms(findings.delay.median_s if findings.delay else None),
        delay_growth_ms=_ms(findings.delay.growth_s if findings.delay else None),
        transceiver=str(path["transceiver"]) if path and path.get("transceiver") is not None else None,
        path=path,
        elsewhere=region is not None and path is not None and path.get("region") != region,
        trace=trace_of(_ms(record.check_s), record.description) if trace else None,
        events=tuple(record.events),
        seconds=_rounded(record.ended_at - record.dtls_at),
    )


def faults(findings: Findings, source: Source, sent_s: float, *, any_reply: bool = False) -> list[str]:
    """Return in words what was not right about the sound.

    A tone without end must come back at its frequency (1 %) and level (6 dB) for 95 % of the time. Of a tone that ends,
    half or 0.5 s must be heard at its frequency: a `parrot` says it later. Of a file, 80 % of what sounded in the
    `sent_s` seconds of the call must be heard, as loud and as soft as it was sent.

    With `any_reply` the backend says something of its own, and 0.5 s of any sound is right.
    """
    if findings.first_sound_at is None:
        waits = source.loop and not any_reply
        return [f"nothing was heard{_HINT_FOR_SILENCE if waits else ''}"]
    if any_reply:
        return _too_short(findings, MIN_HEARD_S)
    wrong: list[str] = []
    if source.frequency is None:
        wrong += _too_short(findings, MIN_FILE_SHARE * source.sounding_s(sent_s - LAG_S))
        if findings.delay is None:
            wrong.append("what was heard does not follow what was sent; expect that with --any-reply only")
        return wrong
    if not _is_frequency(findings.tone_hz, source.frequency):
        wrong.append(
            f"heard {findings.tone_hz or 0:.0f} Hz, sent {source.frequency:.0f} Hz; "
            "a backend with words of its own needs --any-reply"
        )
    if source.seconds is not None:
        return wrong + _too_short(findings, min(MIN_HEARD_S, source.seconds / 2))
    sent_level = float(sum(source.levels) / len(source.levels))
    if findings.level_dbfs is None or abs(findings.level_dbfs - sent_level) > LEVEL_TOLERANCE_DB:
        wrong.append(f"heard {findings.level_dbfs or 0:.0f} dBFS, sent {sent_level:.0f} dBFS")
    if findings.tone_share is None or findings.tone_share < MIN_TONE_SHARE:
        share = 100 * (findings.tone_share or 0)
        wrong.append(f"the tone was there for {share:.0f} % of the time, not {100 * MIN_TONE_SHARE:.0f} %")
    return wrong


def _too_short(findings: Findings, needed: float) -> list[str]:
    if findings.heard_s >= needed:
        return []
    return [f"heard {findings.heard_s:.1f} s of sound, expected at least {needed:.1f} s"]


def summarise(results: Sequence[CallResult], elapsed_s: float, cpu_s: float) -> dict[str, Any]:
    """Return the summary of several calls. `client_cpu_share` says how busy this client was (1: one core)."""
    return {
        "calls": len(results),
        "ok": sum(result.ok for result in results),
        "failed": sum(not result.ok for result in results),
        "offer_answer_ms": spread([result.offer_answer_ms for result in results]),
        "ice_ms": spread([result.ice_ms for result in results]),
        "dtls_ms": spread([result.dtls_ms for result in results]),
        "first_audio_ms": spread([result.first_audio_ms for result in results]),
        "rtt_ms": spread([result.rtt_ms for result in results]),
        "delay_ms": spread([result.delay_ms for result in results]),
        "received": sum(result.received for result in results),
        "lost": sum(result.lost for result in results),
        "longest_gap_ms": max(
            (result.longest_gap_ms for result in results if result.longest_gap_ms is not None), default=None
        ),
        "transceivers": dict(Counter(result.transceiver for result in results if result.transceiver)),
        "wrong": dict(Counter(fault for result in results for fault in result.wrong)),
        "elapsed_s": round(elapsed_s, 2),
        "client_cpu_share": round(cpu_s / elapsed_s, 2) if elapsed_s else 0.0,
    }


def as_json(
    results: Sequence[CallResult], summary: dict[str, Any], load: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the object that `--json` prints; `load` is there with `--load` only."""
    printed = {"calls": [asdict(result) for result in results], "summary": summary}
    return printed if load is None else {**printed, "load": load}


def _is_frequency(found: float | None, wanted: float) -> bool:
    return found is not None and abs(found - wanted) <= FREQUENCY_TOLERANCE * wanted


def _since(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else max(0.0, end - start)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


def _rounded(value: float | None, digits: int = 1) -> float | None:
    return None if value is None else round(value, digits)


def spread(values: Sequence[float | None]) -> dict[str, float] | None:
    """Return median, 95th and 99th percentile (nearest rank) and maximum of what is known; None for nothing."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None

    def rank(share: float) -> float:
        return round(known[max(0, math.ceil(share * len(known)) - 1)], 2)

    return {"p50": rank(0.5), "p95": rank(0.95), "p99": rank(0.99), "max": rank(1.0)}
