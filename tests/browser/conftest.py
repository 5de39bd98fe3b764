"""Chromium with a tone for a microphone, and the systems it calls."""

import fcntl
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, Playwright, async_playwright

from tests.browser.fickle import FickleBackend
from tests.browser.hearing import write_tone
from tests.browser.stack import Stack, usher_up
from tests.tools import find

HERE = Path(__file__).parent
API_KEY = "sk-browser-tests"

QUIET_FLAGS = (
    "--no-sandbox",  # Chromium refuses its sandbox to root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--autoplay-policy=no-user-gesture-required",
)


@pytest.fixture(scope="session")
def usher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """As `make up` starts it: no keys, so it serves its own page only."""
    with usher_up(tmp_path_factory.mktemp("usher"), "--relays", "2", "--transceivers", "2") as stack:
        yield stack


@pytest.fixture(scope="session")
def usher_with_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """With an API key, so that pages of any origin may call."""
    folder = tmp_path_factory.mktemp("usher-with-key")
    with usher_up(folder, "--relays", "2", "--transceivers", "2", key=API_KEY) as stack:
        yield stack


@pytest.fixture(scope="session")
def fickle(tmp_path_factory: pytest.TempPathFactory) -> FickleBackend:
    return FickleBackend(tmp_path_factory.mktemp("fickle"))


@pytest.fixture(scope="session")
def usher_with_fickle(tmp_path_factory: pytest.TempPathFactory, fickle: FickleBackend) -> Iterator[Stack]:
    """With a backend that fails when a test says so."""
    folder = tmp_path_factory.mktemp("usher-with-fickle")
    with usher_up(folder, "--backend", fickle.name, modules=fickle.folder) as stack:
        yield stack


@pytest.fixture(scope="session")
def tone_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tone") / "440.wav"
    write_tone(path)
    return path


@pytest.fixture(scope="session")
def tone_microphone(tone_file: Path) -> tuple[str, ...]:
    """Flags of a microphone that plays the tone and needs no permission."""
    return (
        "--use-fake-device-for-media-stream",
        "--use-fake-ui-for-media-stream",
        f"--use-file-for-fake-audio-capture={tone_file}",
    )


@dataclass(frozen=True, slots=True)
class Launcher:
    """Starts browsers; they are closed after the last test of the module."""

    playwright: Playwright
    executable: str

    async def __call__(self, *flags: str) -> Browser:
        return await self.playwright.chromium.launch(
            executable_path=self.executable, headless=True, args=["--headless=new", *QUIET_FLAGS, *flags]
        )


# Playwright's synchronous half would be shorter, but keeps an event loop running in the main thread until it is
# closed, under which asynchronous tests of other modules cannot run. So all of a module shares one loop instead.
@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def launch() -> AsyncIterator[Launcher]:
    executable = find("chromium")
    assert executable is not None, "mark the module with needs(chromium)"
    async with async_playwright() as playwright:
        yield Launcher(playwright, executable)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(launch: Launcher, tone_microphone: tuple[str, ...]) -> Browser:
    return await launch(*tone_microphone)


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Browser) -> AsyncIterator[Page]:
    """A page of its own profile, whose microphone plays the tone. Its call ends with the test."""
    page = await new_page(browser)
    yield page
    await page.context.close()


async def new_page(browser: Browser) -> Page:
    """A page in which ear.js runs before everything else."""
    page = await (await browser.new_context()).new_page()
    await page.add_init_script(path=HERE / "ear.js")
    return page


@pytest.fixture(scope="session")
def node_modules(request: pytest.FixtureRequest) -> Path:
    """The packages of package-lock.json, exactly, installed once."""
    folder, lock = HERE / "node_modules", HERE / "package-lock.json"
    installed = folder / ".package-lock.json"
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # other test processes want them, too
        if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            subprocess.run(command, cwd=HERE, check=True, capture_output=True, timeout=300)
    return folder


@pytest.fixture(scope="session")
def bundle(node_modules: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bundle") / "agents.js"
    esbuild = node_modules / ".bin" / "esbuild"
    command = [str(esbuild), "agents.js", "--bundle", "--format=esm", "--log-level=error", f"--outfile={out}"]
    subprocess.run(command, cwd=HERE, check=True, timeout=60)
    return out


@pytest.fixture
def other_origin(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder and the address a plain web server shows it at: a page of another origin than usher's."""
    folder = tmp_path / "site"
    folder.mkdir()

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture
def agent_site(bundle: Path, other_origin: tuple[Path, str]) -> str:
    """The address of a page, of another origin than usher's, that has loaded the library."""
    folder, url = other_origin
    (folder / "agents.js").write_bytes(bundle.read_bytes())
    (folder / "index.html").write_text(
        '<!doctype html><audio autoplay></audio><script type="module" src="agents.js"></script>'
    )
    return url
