"""What every fuzz target shares.

A target is a file `fuzz_<parser>.py`. Its docstring states the invariant; `one_input(data)` breaks it by letting any
other error out. Seeds are whole valid inputs: they take the fuzzer past lengths, cookies and check sums at once.

Run one from the root of the repository: `python -m tests.fuzz.fuzz_stun`, with flags of libFuzzer, or with the path of
an input that failed.
"""

import hashlib
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

import atheris

PACKAGES = ["usher_core", "usher_relay", "usher_transceiver", "usher_signaling"]


def instrumented() -> AbstractContextManager[None]:
    """What is imported inside reports its branches to the fuzzer."""
    context: AbstractContextManager[None] = atheris.instrument_imports(include=PACKAGES)
    return context


def main(one_input: Callable[[bytes], None], seeds: Iterable[bytes] = ()) -> None:
    """Fuzz until libFuzzer's limits are reached; the last argument, where it is a folder, gets the seeds."""
    corpus = Path(sys.argv[-1])
    if corpus.is_dir():
        for seed in seeds:
            (corpus / hashlib.sha256(seed).hexdigest()).write_bytes(seed)
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
