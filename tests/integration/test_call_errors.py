"""What `usher call` says when a server refuses: words for the person at the terminal."""

import asyncio
import contextlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.browser.fickle import FickleBackend
from tests.integration.fleet import Fleet, calling, running_fleet
from usher_cli.call import api
from usher_cli.call.api import CallError, CallsApi
from usher_cli.call.report import printable
from usher_transceiver.session import EndReason


class Refusing(http.server.BaseHTTPRequestHandler):
    status = 500
    body = b""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  (the base class names it so)
        pass


@pytest.fixture
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    status, body = request.param
    handler = type("Handler", (Refusing,), {"status": status, "body": body})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def refusal(code: str, message: str) -> bytes:
    return json.dumps({"error": {"type": "x", "code": code, "message": message, "param": None}}).encode()


def usher_call(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "usher_cli", "call", *arguments], capture_output=True, text=True, timeout=50, check=False
    )


@pytest.mark.parametrize(
    "url, said",
    [
        (
            (401, refusal("invalid_api_key", "This key is unknown.")),
            "the server wants a key (--api-key, or USHER_API_KEY)",
        ),
        (
            (503, refusal("no_transceiver", "All are full.")),
            "no transceiver takes the call now (HTTP 503: All are full.",
        ),
        (
            (502, refusal("backend_failed", "The backend failed.")),
            "the server could not make the call (HTTP 502: The back",
        ),
        (
            (503, refusal("no_address", "No relay is there.")),
            "the server has no relay to send us to (HTTP 503: No relay is there.",
        ),
        ((503, refusal("server_ending", "Again.")), "the server takes no call now (HTTP 503: Again.)"),
        (
            (503, b"<h1>no upstream</h1>"),
            "a proxy finds no server behind it: in Kubernetes, is a pod of signaling ready?",
        ),
        (
            (502, b"<h1>bad gateway</h1>"),
            "a proxy finds no server behind it: in Kubernetes, is a pod of signaling ready?",
        ),
        ((405, refusal("method_not_allowed", "No.")), "is this the base URL of usher? (HTTP 405: No.)"),
        ((404, b"<h1>Not here</h1>"), "is this the base URL of usher? (HTTP 404: <h1>Not here</h1>)"),
        ((201, b"this is no SDP"), "our client can't use the answer"),
    ],
    indirect=["url"],
)
def test_a_refusal_is_told_in_words(url: str, said: str) -> None:
    done = usher_call(url, "--seconds=1", "--json")
    assert done.returncode == 1
    result = json.loads(done.stdout)
    assert result["summary"] == {**result["summary"], "calls": 1, "ok": 0, "failed": 1}
    assert said in result["calls"][0]["wrong"][0]
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("url", [(401, refusal("invalid_api_key", "This key is unknown."))], indirect=True)
def test_a_key_that_was_sent_is_not_asked_for_but_refused(url: str) -> None:
    done = usher_call(url, "--api-key=sesame")
    assert "the server does not take this key (--api-key, or USHER_API_KEY)" in done.stdout


@pytest.mark.parametrize("url", [(503, refusal("no_transceiver", "All are full."))], indirect=True)
def test_the_reason_of_a_failure_is_told_once(url: str) -> None:
    for flags in ([], ["--json"]):
        done = usher_call(url, *flags)
        where = done.stderr if flags else done.stdout + done.stderr
        assert where.count("All are full.") == 1
        assert "call 1: failed" in done.stderr


def test_nobody_there_is_told_in_words() -> None:
    done = usher_call("http://127.0.0.1:1")
    assert done.returncode == 1
    assert "on one machine, is `usher up` running? In Kubernetes, is a pod of signaling ready" in done.stdout
    assert "Traceback" not in done.stderr


async def refused(url: str) -> str:
    async with CallsApi(url, None) as calls:
        with pytest.raises(CallError) as caught:
            await calls.place("v=0")
    return str(caught.value)


async def test_a_name_without_an_address_is_no_server_that_is_down() -> None:
    assert "the name no-such-host.invalid has no address" in await refused("http://no-such-host.invalid:8080")


@pytest.mark.parametrize("url", [(404, b"")], indirect=True)
async def test_https_to_a_port_of_http_is_told(url: str) -> None:
    said = await refused(url.replace("http:", "https:"))
    assert said.endswith("speaks no TLS: is the port right, or should the URL begin with http://?")


@pytest.mark.parametrize(
    "written, said",
    [
        (
            b"SSH-2.0-OpenSSH_9.6\r\nInvalid SSH identification string.\r\n",
            r"what answers at http://\S+ speaks no HTTP",
        ),
        (b"220 mail ESMTP\r\n500 unrecognized\r\n", r"what answers at http://\S+ speaks no HTTP"),
        (b"\x15\x03\x01\x00\x02\x02\x46", r"what answers at http://\S+ speaks no HTTP"),
        (b"", r"(what answers at|talking to) http://\S+ \S.+"),
    ],
)
async def test_a_port_that_speaks_no_http_is_told(written: bytes, said: str) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\nv=0")
        writer.write(written)
        writer.close()

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()[:2]
        message = await refused(f"http://{host}:{port}")
    assert re.fullmatch(rf"{said}: is the port right, or should the URL begin with https://\?", message), message


@pytest.mark.parametrize(
    "status, body, said",
    [
        (
            b"200 OK",
            {"state": "ended", "end_reason": "backend_failed"},
            "the backend failed (backend_failed): see the tr",
        ),
        (b"200 OK", {"state": "ended", "end_reason": "max_age"}, "the server ended it as max_age"),
        (b"200 OK", {"state": "connecting", "end_reason": None}, None),
        (b"410 Gone", {"error": {"code": "call_gone"}}, "its transceiver is gone (call_gone)"),
        # An ephemeral key may not look.
        (b"403 Forbidden", {"error": {"code": "api_key_required"}}, None),
        (b"404 Not Found", {"error": {"code": "call_not_found"}}, None),
        (b"200 OK", [], None),
    ],
)
async def test_why_a_call_ended_is_what_the_server_tells_or_nothing(status: bytes, body: Any, said: str | None) -> None:
    text = json.dumps(body).encode()
    head = b"HTTP/1.1 " + status + b"\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(text)
    async with answering(head + text, b"", 1) as url, CallsApi(url, None) as calls:
        found = await calls.why_ended(url)
    assert (found or "").startswith(said or "")
    assert (found is None) == (said is None)


def test_every_end_reason_that_is_explained_exists() -> None:
    assert set(api._END_REASONS) <= set(EndReason)


@pytest.fixture(scope="module")
def fickle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Fleet, FickleBackend]]:
    """A fleet whose backend fails as told."""
    backend = FickleBackend(tmp_path_factory.mktemp("backend"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(backend.folder), prepend=os.pathsep)
        with running_fleet(tmp_path_factory.mktemp("fleet"), f"--backend={backend.name}") as fleet:
            yield fleet, backend


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "moment, said",
    [
        ("made", r"the server could not make the call \(HTTP 502: .*fickle.*\)"),
        ("started", r".*; the backend failed \(backend_failed\): see the transceiver's log"),
        ("spoken to", r"the connection ended by itself .*; the backend failed \(backend_failed\): see the tr.*"),
    ],
)
def test_a_backend_that_fails_is_named_at_once_and_not_the_network(
    fickle: tuple[Fleet, FickleBackend], moment: str, said: str
) -> None:
    fleet, backend = fickle
    backend.fail_when(moment)
    began = time.monotonic()
    with calling(fleet.url, "--seconds=5") as caller:
        result = caller.result()
    assert result["status"] == 1
    wrong = result["calls"][0]["wrong"]
    assert re.fullmatch(said, wrong[0]), wrong
    assert "advertised" not in wrong[0]
    # Not after the 20 s that a connection may take.
    assert time.monotonic() - began < 18


@pytest.mark.parametrize("url", [(503, refusal("x", "red \x1b[31m\x07 \x9b2J\u202e\ud800\r\nline"))], indirect=True)
def test_what_a_server_says_does_not_steer_the_terminal(url: str) -> None:
    done = usher_call(url, "--seconds=1")
    assert done.returncode == 1
    assert "the server takes no call now (HTTP 503: red [31m 2J line)" in done.stdout
    assert all(character.isprintable() or character == "\n" for character in done.stdout + done.stderr)


def test_text_for_the_terminal_is_one_line_without_control_characters() -> None:
    everything = "".join(map(chr, range(0x11000)))
    assert printable(everything).isprintable()
    assert printable("a\tb\n\u2028c é 日本") == "a b c é 日本"


@contextlib.asynccontextmanager
async def answering(head: bytes, part: bytes, every_s: float) -> AsyncIterator[str]:
    """A server that sends a head, and then the same part again and again without an end."""

    ended = asyncio.Event()
    serving = set()

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError):
            writer.write(head)
            while not ended.is_set():
                writer.write(part)
                await writer.drain()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), every_s)
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()[:2]
        yield f"http://{host}:{port}"
    finally:
        server.close()
        ended.set()
        await asyncio.gather(*filter(None, serving))


@pytest.mark.parametrize(
    "head, part",
    [
        (b"", b"X"),
        (b"HTTP/1.1 201 Created\r\n", b"X: y\r\n"),
        (b"HTTP/1.1 201 Created\r\nContent-Length: 100000\r\n\r\n", b"v"),
        (b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nv\r\n"),
    ],
)
async def test_a_server_that_dribbles_its_answer_is_given_up(
    head: bytes, part: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "ANSWER_LIMIT_S", 0.5)
    monkeypatch.setattr(api, "LOOK_LIMIT_S", 0.5)
    async with answering(head, part, 0.02) as url, CallsApi(url, None) as calls, asyncio.timeout(5):
        with pytest.raises(CallError, match="the server is at fault: no whole answer"):
            await calls.place("v=0")
        assert await calls.describe(url) == {}
        await calls.hang_up(url)


@pytest.mark.parametrize("encoding", [b"", b"Content-Encoding: gzip\r\n"])
async def test_an_answer_without_end_is_given_up(encoding: bytes) -> None:
    head = b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n" + encoding + b"\r\n"
    part = b"1000\r\n" + bytes(0x1000) + b"\r\n"
    async with answering(head, part, 0.001) as url, CallsApi(url, None) as calls, asyncio.timeout(5):
        with pytest.raises(CallError, match="the server is at fault: its answer has more than 128 KiB"):
            await calls.place("v=0")
        assert await calls.describe(url) == {}
        await calls.hang_up(url)


@pytest.mark.parametrize("location", [b"http://[::1", b"http://a:99999/x", b"file:///x", b"//a..b/"])
async def test_a_call_url_that_is_none_is_the_fault_of_the_server(location: bytes) -> None:
    head = b"HTTP/1.1 201 Created\r\nContent-Length: 1\r\nLocation: " + location + b"\r\n\r\n"
    async with answering(head, b"v", 1) as url, CallsApi(url, None) as calls:
        with pytest.raises(CallError, match="the server is at fault: its Location"):
            await calls.place("v=0")


@pytest.mark.parametrize("body", [b"[" * 100_000, b"1" * 5000, b"\xff", b"[]", b'{"error": {"message": null}}'])
async def test_a_refusal_of_any_form_is_told(body: bytes) -> None:
    for status in (b"200 OK", b"500 Broken"):
        head = b"HTTP/1.1 " + status + b"\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
        async with answering(head + body, b"", 1) as url, CallsApi(url, None) as calls:
            with pytest.raises(CallError, match="the server refused"):
                await calls.place("v=0")
            assert isinstance(await calls.describe(url), dict)
