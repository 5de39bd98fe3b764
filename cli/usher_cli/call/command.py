"""`usher call`: its flags, and many calls at a time."""

from __future__ import annotations

import ipaddress
import json
import math
import re
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import click

from usher_cli.help_flags import HELP_FLAGS
from usher_cli.interruptible import run_interruptible
from usher_cli.output_file import check_output_file
from usher_core.errors import LocalError
from usher_core.ids import split_host_port

MAX_COUNT = 10_000
MAX_CONCURRENCY = 200
MAX_SECONDS = 3600
MIN_TRACED_S = 3.0
_REGION = re.compile(r"[A-Za-z0-9._-]{1,64}")


class _Number(click.FloatRange):
    """A number within a range. `nan` is none: it lies on neither side of a bound."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


def _read_address(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[str, int] | None:
    """Return `IP:PORT` as the pair of both. Raises click.BadParameter."""
    if value is None:
        return None
    try:
        host, port = split_host_port(value)
        ipaddress.ip_address(host)
    except (LocalError, ValueError):
        port = 0
    if not port:
        raise click.BadParameter(f"{value!r} is no IP:PORT")
    return host, port


def _read_region(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Return a name that a header can carry. Raises click.BadParameter."""
    if value is not None and not _REGION.fullmatch(value):
        raise click.BadParameter(f"{value[:80]!r} is no region: 1 to 64 letters, digits and . _ - are")
    return value


@click.command(context_settings=HELP_FLAGS)
@click.argument("url")
@click.option("--api-key", envvar="USHER_API_KEY", help="Key of the server; better given as USHER_API_KEY.")
@click.option(
    "--seconds",
    type=_Number(0.5, MAX_SECONDS),
    default=5.0,
    show_default=True,
    help="Length of a call, once connected.",
)
@click.option(
    "--tone", type=float, default=440.0, show_default=True, help="Frequency of the test tone in Hz, 50..8000."
)
@click.option(
    "--talk",
    type=_Number(0.1, MAX_SECONDS),
    help="Send the tone for so many seconds and then silence: what `parrot` needs, which waits for a pause.",
)
@click.option("--wav", type=click.Path(path_type=Path), help="Send this sound file, once, in place of the tone.")
@click.option("--any-reply", is_flag=True, help="The backend answers with words of its own: any sound back is right.")
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    help="Write what came back as WAV; with several calls a number is put before the suffix.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: calls and summary.")
@click.option("--count", type=click.IntRange(1, MAX_COUNT), default=1, show_default=True, help="Number of calls.")
@click.option(
    "--concurrency", type=click.IntRange(1, MAX_CONCURRENCY), help="Calls at a time.  [default: all, at most 200]"
)
@click.option(
    "--load",
    is_flag=True,
    help="Most calls come from a light client that decodes nothing: for more calls than stock clients can make.",
)
@click.option(
    "--full-every",
    type=click.IntRange(1, MAX_COUNT),
    default=20,
    show_default=True,
    help="With --load: one call in so many is a full one, whose sound is judged.",
)
@click.option(
    "--rate",
    type=_Number(0.1, MAX_CONCURRENCY),
    help="With --load: begin so many light calls a second, each when it is due.  [default: 8 at a time]",
)
@click.option(
    "--via",
    callback=_read_address,
    metavar="IP:PORT",
    help="Send media here and not to the addresses in the answer: through a proxy that drops packets, say.",
)
@click.option(
    "--region",
    callback=_read_region,
    metavar="NAME",
    help="Ask for transceivers of this region, as a proxy that knows where callers are would: region-2 of `usher up`.",
)
@click.option(
    "--trace",
    is_flag=True,
    help="Tell where the round trip of each call goes, hop by hop, as relays and checks see it.",
)
def call(  # noqa: PLR0913  (one parameter per flag)
    *,
    url: str,
    api_key: str | None,
    seconds: float,
    tone: float,
    talk: float | None,
    wav: Path | None,
    any_reply: bool,
    record: Path | None,
    as_json: bool,
    count: int,
    concurrency: int | None,
    load: bool,
    full_every: int,
    rate: float | None,
    via: tuple[str, int] | None,
    region: str | None,
    trace: bool,
) -> NoReturn:
    """Place real calls at URL and report times, loss and what came back.

    URL is the base of the server, as `usher up` prints it; with `?model=NAME` the call goes to that backend. The client
    is stock aiortc. It sends a tone (or --wav) and compares what comes back. Exit status 0 only if the sound of every
    call was right. SIGUSR1 hangs up now and reports; Ctrl-C ends without a report.
    """
    # Here, so that `usher call --help` does not wait for them.
    from usher_cli.call import report, result, source  # noqa: PLC0415
    from usher_cli.call.api import bearer, calls_url  # noqa: PLC0415
    from usher_cli.call.hang_up import hang_up_signal  # noqa: PLC0415
    from usher_cli.call.run import Plan, place_calls, recording_path  # noqa: PLC0415

    if wav is not None and talk is not None:
        raise LocalError("--wav and --talk exclude each other", "a file has its own length")
    if load and (wav is not None or talk is not None):
        raise LocalError("--load sends the tone without end", "leave out --wav and --talk")
    if rate is not None and not load:
        raise LocalError("--rate is for --load", "add --load, or use --concurrency")
    if talk is not None and talk >= seconds:
        raise LocalError(f"--talk {talk:g} leaves no time for silence within --seconds {seconds:g}", "let it be less")
    if trace and seconds < MIN_TRACED_S:
        raise LocalError(
            f"--trace times a check, and they come every 2.5 s: --seconds {seconds:g} is too short", "3 do"
        )
    bearer(api_key)
    calls_url(url)
    if record is not None:
        # Not only when the calls are over.
        check_output_file("--record", record)
        for number in range(1, count + 1):
            check_output_file("--record", recording_path(record, number, count))
    plan = Plan(
        url=url,
        api_key=api_key,
        source=source.file(wav) if wav is not None else source.tone(tone, talk),
        seconds=seconds,
        count=count,
        concurrency=min(concurrency or count, MAX_CONCURRENCY),
        record=record,
        via=via,
        any_reply=any_reply,
        region=region,
        trace=trace,
    )
    progress = report.progress if as_json else report.short_progress
    started, cpu = time.monotonic(), time.process_time()

    async def place() -> tuple[list[result.CallResult], dict[str, Any] | None]:
        with hang_up_signal() as hang_up:
            if not load:
                return await place_calls(plan, progress, hang_up), None
            from usher_cli.call.load import place_load  # noqa: PLC0415

            return await place_load(plan, full_every, progress, rate, hang_up)

    results, load_report = run_interruptible(place())
    summary = result.summarise(results, time.monotonic() - started, time.process_time() - cpu)
    if as_json:
        print(json.dumps(result.as_json(results, summary, load_report)))
    else:
        print(report.text(results, summary))
        if load_report is not None:
            print(report.load_text(load_report))
    right = summary["calls"] == summary["ok"] > 0 and (load_report is None or load_report["ok"])
    sys.exit(0 if right else 1)
