"""Every command in README, CONTRIBUTING and docs/ runs, as it stands there, against a real fleet.

What has to be other than on the page is declared here: substitutions, and what runs elsewhere. A command that is
neither run nor declared fails, and so does a declaration that fits no page any more.
"""

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.integration.fleet import Fleet, calling, is_running, make_environment, make_up, running_fleet, wait_until
from tests.pages import ROOT, Block, blocks, pages

pytestmark = [pytest.mark.programs, pytest.mark.timeout(120)]

OFFER = ROOT / "tests" / "vectors" / "offers" / "chromium.sdp"
PROGRAMS = {"usher", ".venv/bin/usher", ".venv/bin/pytest", "curl", "sysctl", "make", "printf"}
ASSIGNMENT = re.compile(r"[a-z]+=")

ELSEWHERE = {
    "make setup": "`make test` begins with it",
    "make native": "`make test` begins with it, where there is cargo",
    "make test": "this is a part of it",
    "make test-timed": "the tests of one marker",
    "make fmt": "it would change files; test_layout.py knows that the target exists",
    ".venv/bin/mypy": "`make types` runs it, a part of `make test`",
    "usher keys rotate --namespace NAME": "it needs a cluster; test_cli_keys_rotate.py has a made-up one",
    "USHER_REALTIME_URL=wss://realtime.example/v1/realtime USHER_REALTIME_API_KEY_FILE=realtime.key "
    ".venv/bin/usher up --backend realtime": "test_realtime_calls.py begins so, with a server that is there",
    "USHER_REALTIME_URL=ws://127.0.0.1:9000/v1/realtime .venv/bin/usher up --backend realtime": "the same",
    ".venv/bin/python -m tests.realtime_server": "test_realtime_server.py starts it so",
    "relay-1 | 2026-02-03T10:15:04.301Z [info] relay ready …": "a line of a log",
}

ON_A_CLUSTER = re.compile(r"(helm|kubectl|make images|make kind-up|KEY=sk_)\b")
"""`tests/chart/test_docs_kubernetes.py` looks at these, and `make e2e` runs their like."""

SUBSTITUTIONS: dict[str, str | Callable[[re.Match[str]], str]] = {
    # A line that lists options is no command; `test_docs_names` compares each option with the code.
    r"^(usher \w+)\b.*\[--.*": r"\1 --help",
    r"http://127\.0\.0\.1:8080": "$FLEET",
    r"http://127\.0\.0\.1:8081": "$FLEET_2",
    r"\bFAR\b": "$FAR",
    r"http://TRANSCEIVER": "$TRANSCEIVER",
    r"\bUFRAG\b": "$UFRAG",
    r"\bN\[,N\]…": "1,2",
    r"\bDIR\b": "new-keys",
    r"\bFILE\b": "relay.json",
    r"@tests/": "@$ROOT/tests/",
    # Else an error answer would pass.
    r"^curl\b": "curl --silent --show-error --fail-with-body",
    # What it names exists; that it passes is for `make test` to show.
    r"^\.venv/bin/pytest\b": "env -C $ROOT $BIN/pytest --collect-only --quiet -p no:cacheprovider",
    r"^\.venv/bin/": "$BIN/",
    # Writing needs root and would change this machine.
    r"^sysctl -w (.*)": lambda match: "sysctl -n " + re.sub(r"=\d+", "", match[1]),
}


@dataclass(frozen=True)
class Script:
    """The commands of a block, and the first line of what the page says they print, or ""."""

    block: Block
    commands: tuple[str, ...]
    prints: str = ""

    @property
    def name(self) -> str:
        return f"{self.block.page}:{self.block.line}"


def read(block: Block) -> Script:
    """Find the commands: all lines of `sh` and indented blocks, those after `$` of `console`; without comments."""
    text = block.text.replace("\\\n", " ")
    if block.language == "indented":
        text = re.sub(r"\n +", " ", text)  # the second line of a list of options
    lines = [re.sub(r"(^|\s{2,})# .*", "", line).rstrip() for line in text.splitlines()]
    if block.language != "console":
        return Script(block, tuple(filter(None, lines)))
    commands = tuple(line.removeprefix("$ ") for line in lines if line.startswith("$ "))
    return Script(block, commands, next(line for line in lines if line and not line.startswith("$ ")))


SCRIPTS = [read(block) for page in pages() for block in blocks(page) if block.language in {"sh", "console", "indented"}]
COMMANDS = [command for script in SCRIPTS for command in script.commands]
BY_HAND = [script for script in SCRIPTS if any(command.endswith(" &") for command in script.commands)]
MAKE_UP = sorted({command for command in COMMANDS if re.match(r"make up\b", command)})


def runs_here(command: str) -> bool:
    known = command in ELSEWHERE or command in MAKE_UP or any(command in script.commands for script in BY_HAND)
    return not known and not ON_A_CLUSTER.match(command)


def substituted(command: str) -> str:
    for pattern, replacement in SUBSTITUTIONS.items():
        command = re.sub(pattern, replacement, command)
    return command


def test_commands_are_found_and_known() -> None:
    assert len(COMMANDS) > 10
    here = [command for command in COMMANDS if runs_here(command) and not ASSIGNMENT.match(command)]
    assert {command for command in here if command.split()[0] not in PROGRAMS} == set()


def test_declarations_fit_a_page() -> None:
    assert set(ELSEWHERE) - set(COMMANDS) == set()
    assert [pattern for pattern in SUBSTITUTIONS if not any(map(re.compile(pattern).search, COMMANDS))] == []
    assert {program for program in PROGRAMS if not any(command.startswith(program) for command in COMMANDS)} == set()


@dataclass(frozen=True)
class Workplace:
    """Where the commands run: a folder with the files that pages speak of, and variables in the environment."""

    folder: Path
    environment: dict[str, str]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    directory = tmp_path_factory.mktemp("fleet")
    with running_fleet(directory) as fleet:
        yield set_up(fleet, directory, tmp_path_factory.mktemp("work"))


@pytest.fixture(scope="module")
def two_regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    """What docs/multi-region.md begins with."""
    directory = tmp_path_factory.mktemp("regions")
    with running_fleet(directory, "--clusters=2", "--ingress=2", "--wan=40ms") as fleet:
        near, far = fleet.state()["regions"]
        there = {"FLEET": near["http"], "FLEET_2": far["http"], "FAR": far["far_udp"]}
        path = f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}"
        yield Workplace(tmp_path_factory.mktemp("work"), {**make_environment(), "PATH": path, **there})


def set_up(fleet: Fleet, directory: Path, folder: Path) -> Workplace:
    (secrets,) = directory.glob("usher-up-*")
    for name in ("internal-token", "relay.json"):
        shutil.copy(secrets / name, folder)
    shutil.copy(secrets / "relay.json", folder / "relay-keys.json")  # what kubectl would have written there
    sdp = {"Content-Type": "application/sdp"}
    answer = httpx.post(f"{fleet.url}/v1/realtime/calls", content=OFFER.read_bytes(), headers=sdp)
    ufrag = re.search(r"a=ice-ufrag:(\S+)", answer.text)
    assert ufrag, answer.text
    scripts = Path(sys.prefix) / "bin"
    environment = {
        **make_environment(),
        "PATH": f"{scripts}:{os.environ['PATH']}",
        "BIN": str(scripts),
        "ROOT": str(ROOT),
        "FLEET": fleet.url,
        "TRANSCEIVER": fleet.state()["transceivers"][0]["admin"],
        "UFRAG": ufrag[1],
        "KEY": "any: this fleet asks for none",
    }
    return Workplace(folder, environment)


@pytest.mark.parametrize(
    "script", [s for s in SCRIPTS if any(map(runs_here, s.commands))], ids=lambda script: script.name
)
def test_commands_of_a_page_run(
    script: Script, request: pytest.FixtureRequest, require_tool: Callable[[str], str]
) -> None:
    calls_regions = script.block.page == "docs/multi-region.md" and "usher call" in script.block.text
    workplace: Workplace = request.getfixturevalue("two_regions" if calls_regions else "workplace")
    commands = [substituted(command) for command in script.commands if runs_here(command)]
    for program in {"curl", "sysctl"} & {command.split()[0] for command in commands}:
        require_tool(program)
    done = subprocess.run(
        ["sh", "-euxc", "\n".join(commands)],
        cwd=workplace.folder,
        env=workplace.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
    assert script.prints in done.stdout


@pytest.mark.parametrize("command", MAKE_UP)
def test_make_up_prints_one_line_answers_a_call_and_ends_on_ctrl_c(command: str, tmp_path: Path) -> None:
    given = "".join(word.removeprefix("ARGS=") for word in shlex.split(command) if word.startswith("ARGS="))
    state = tmp_path / "state.json"
    flags = f"{given} --http 127.0.0.1:0 --udp 127.0.0.1:0 --state-file {state}"
    out, log = tmp_path / "out", tmp_path / "log"
    with out.open("w") as stdout, log.open("w") as stderr:
        # A session of its own is what a terminal's job is: Ctrl-C reaches make and all that it has started.
        process = subprocess.Popen(
            make_up(flags), cwd=ROOT, env=make_environment(), stdout=stdout, stderr=stderr, start_new_session=True
        )
    pids: list[int] = []
    try:
        wait_until(lambda: out.read_text().endswith("\n") or process.poll() is not None, 30, "the line `ready URL`")
        ready = re.fullmatch(r"ready (http://127\.0\.0\.1:\d+)\n", out.read_text())
        assert ready, out.read_text() + log.read_text()
        with calling(ready[1], "--talk=1", "--seconds=3.5") as caller:
            result = caller.result()
        assert result["status"] == 0, result

        pids = [int(pid) for pid in re.findall(r'"pid": (\d+)', state.read_text())]
        assert len(pids) >= 3
        began = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=10)
        assert time.monotonic() - began < 3
        assert [pid for pid in pids if is_running(pid)] == []
        assert out.read_text() == ready[0]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(timeout=10)


@pytest.mark.parametrize("script", BY_HAND, ids=[script.name for script in BY_HAND])
def test_the_programs_started_by_hand_answer_a_call(script: Script, tmp_path: Path) -> None:
    """On free ports."""
    text = "\n".join(script.commands)
    named = sorted(set(re.findall(r"(?<=:)\d{4}\b", text)))
    ports = dict(zip(named, free_ports(len(named)), strict=True))
    text = re.sub(rf"(?<=:)({'|'.join(ports)})\b", lambda match: ports[match[1]], text)
    lines = text.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("usher call "))
    starts, calls = lines[:first], [re.sub("^usher call .*", r"\g<0> --seconds=3", line) for line in lines[first:]]
    readyz = f"http://127.0.0.1:{ports['8080']}/readyz"
    ready = f"""until curl --silent {readyz} | grep '"can_place":true'; do sleep 0.1; done"""
    log = tmp_path / "log"
    with log.open("w") as output:
        # All are of one process group, which ends them.
        process = subprocess.Popen(
            ["sh", "-euc", "\n".join([*starts, ready, *calls])],
            cwd=tmp_path,
            env={**make_environment(), "PATH": f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}"},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        assert process.wait(timeout=90) == 0, log.read_text()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    placed = [line for line in calls if line.startswith("usher call ")]
    assert log.read_text().count("1 of 1 calls right") == len(placed)
    assert "not in the region asked for" not in log.read_text()
    if "--trace" in calls[-1]:
        assert "ingress ↔ home" in log.read_text()
        assert "home ↔ transceiver" in log.read_text()


def free_ports(count: int) -> list[str]:
    """Ports that are free for TCP and UDP, each another one."""
    found = []
    with contextlib.ExitStack() as held:
        for _ in range(count):
            tcp = held.enter_context(socket.socket())
            udp = held.enter_context(socket.socket(type=socket.SOCK_DGRAM))
            tcp.bind(("127.0.0.1", 0))
            udp.bind(tcp.getsockname())
            found.append(str(tcp.getsockname()[1]))
    return found
