"""The keys of a transceiver while their file changes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.transceiver_rig import POD, write_files
from usher_core.errors import LocalError
from usher_core.ids import Route
from usher_transceiver.transceiver_keys import TransceiverKeys

ROUTE = Route(1, POD)
WALL = 1_764_000_000.0

FAULTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no ICE key": lambda keys: keys.update(ice=[]),
    "no hop key": lambda keys: keys.update(hop=[]),
    "ICE keys of another cluster only": lambda keys: keys["ice"][0].update(clusters=[2]),
}


@pytest.mark.parametrize("spoil", FAULTS.values(), ids=FAULTS)
def test_a_file_without_a_key_to_use_is_wrong_and_the_last_good_one_stays(
    tmp_path: Path, spoil: Callable[[dict[str, Any]], Any]
) -> None:
    write_files(tmp_path, bytes(16))
    file = tmp_path / "transceiver.json"
    keys = TransceiverKeys(file, ROUTE, lambda: WALL)
    content = json.loads(file.read_text())
    spoil(content)
    file.write_text(json.dumps(content))
    os.utime(file, (1, 1))
    keys.refresh()
    assert keys.is_wrong
    assert len(keys.make_ufrag(lambda _: False)) == 2
    with pytest.raises(LocalError):
        TransceiverKeys(file, ROUTE, lambda: WALL)
