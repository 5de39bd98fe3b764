"""A backend that fails where a file says, and a distribution that has it, for `PYTHONPATH`."""

from pathlib import Path

CODE = """
from pathlib import Path

MOOD = Path(__file__).with_name("mood")


class Fickle:
    audio = "pcm"

    def __init__(self, config):
        self.mood = MOOD.read_text()
        self.fail("made")

    def fail(self, when):
        if self.mood == when:
            raise RuntimeError("model server is down")

    async def start(self, call):
        self.fail("started")

    def on_audio(self, frame):
        self.fail("spoken to")

    def on_event(self, event):
        return False

    async def close(self, reason):
        pass
"""


class FickleBackend:
    """In `folder`; fails when it is `made`, `started` or `spoken to`, and never when its mood is another one."""

    name = "fickle"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fail_when("")
        (folder / "fickle.py").write_text(CODE)
        facts = folder / "fickle-1.0.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: fickle\nVersion: 1.0\n")
        (facts / "entry_points.txt").write_text("[usher.backends]\nfickle = fickle:Fickle\n")

    def fail_when(self, mood: str) -> None:
        """Of the calls that come."""
        (self.folder / "mood").write_text(mood)
