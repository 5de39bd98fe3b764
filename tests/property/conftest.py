"""Property tests run without coverage: to count the lines of hundreds of examples takes as long as to run them."""

import pytest


@pytest.fixture(autouse=True)
def _without_coverage(no_cover: None) -> None:
    """Ask for pytest-cov's fixture, by which it pauses."""
