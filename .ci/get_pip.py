"""Puts pip into the .venv whose Python runs this, where the system's Python has no ensurepip.

Debian keeps ensurepip in a package of its own. pip can run from its own wheel: fetched, checked, run.
"""

import hashlib
import json
import runpy
import sys
import tempfile
import urllib.request
from pathlib import Path
from urllib.parse import urljoin

INDEX = "https://pypi.org/pypi/pip/json"


def fetch(url: str) -> bytes:
    """What is behind `url`, in memory: pip is 2 MB."""
    with urllib.request.urlopen(url, timeout=120) as answer:  # noqa: S310 - https: INDEX
        body: bytes = answer.read()
    return body


wheel = next(file for file in json.loads(fetch(INDEX))["urls"] if file["packagetype"] == "bdist_wheel")
content = fetch(urljoin(INDEX, wheel["url"]))
if hashlib.sha256(content).hexdigest() != wheel["digests"]["sha256"]:
    sys.exit(f"{wheel['url']} does not have the checksum that the package index states")

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, wheel["filename"])
    path.write_bytes(content)
    sys.path.insert(0, str(path))
    sys.argv = ["pip", "install", "--quiet", str(path)]
    runpy.run_module("pip", run_name="__main__")
