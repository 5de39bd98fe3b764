"""What many made-up examples run through, unit tests run through too: to count their lines takes as long again."""

import pytest


@pytest.fixture(autouse=True)
def _without_coverage(no_cover: None) -> None:
    """Ask for pytest-cov's fixture, by which it pauses."""
