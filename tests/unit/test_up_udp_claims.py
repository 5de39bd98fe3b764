"""Two runs of `usher up` never have one UDP address, however close together they begin."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from usher_cli.up.udp_claims import claimed
from usher_core.errors import LocalError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="abstract Unix sockets are Linux's")
PORT = 1 + os.getpid() % 65_000
"""Nothing is bound to it: claims of tests that run beside these have other ones."""


@contextlib.contextmanager
def all_claimed(hosts: list[str]) -> Iterator[None]:
    with contextlib.ExitStack() as claims:
        for host in hosts:
            claims.enter_context(claimed("--udp", f"{host}:{PORT}"))
        yield


@pytest.mark.parametrize(
    "hosts",
    [["127.0.0.1"] * 2, ["0.0.0.0", "127.0.0.1"], ["127.0.0.1", "0.0.0.0"], ["[::]", "127.0.0.1"], ["[::1]", "[::]"]],
)
def test_an_address_that_another_has_or_shares_is_refused_until_it_is_free(hosts: list[str]) -> None:
    with (
        pytest.raises(LocalError, match=r"--udp .* can't be used: Address already in use; stop what uses it"),
        all_claimed(hosts),
    ):
        pass
    for host in hosts:
        with all_claimed([host]):
            pass


def test_other_addresses_other_ports_and_port_0_are_free() -> None:
    with all_claimed(["127.0.0.1", "127.0.0.2", "[::1]"]), claimed("--udp", f"0.0.0.0:{PORT + 1}"):
        pass
    with claimed("--udp", "0.0.0.0:0"), claimed("--udp", "0.0.0.0:0"):
        pass


def test_of_many_that_begin_at_once_one_has_it() -> None:
    many, ended = threading.Barrier(16), threading.Barrier(16)

    def begin(_: int) -> bool:
        many.wait(10)
        try:
            with claimed("--udp", f"0.0.0.0:{PORT}"):
                ended.wait(10)
                return True
        except LocalError:
            ended.wait(10)
            return False

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(begin, range(16))) == 1


def test_one_that_was_killed_leaves_no_claim() -> None:
    program = (
        "import sys, time; from usher_cli.up.udp_claims import claimed\n"
        "with claimed('--udp', sys.argv[1]): print('has it', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, f"127.0.0.1:{PORT}"], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "has it\n"
        with pytest.raises(LocalError), all_claimed(["127.0.0.1"]):
            pass
        other.send_signal(signal.SIGKILL)
        other.wait(10)
    with all_claimed(["127.0.0.1"]):
        pass
