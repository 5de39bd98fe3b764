"""Skips a test whose tool is missing (fails it under `USHER_REQUIRE_ALL=1`), and sets how Hypothesis draws."""

from collections.abc import Callable, Generator

import hypothesis
import pytest
import structlog

from tests import tools

# The same examples at every run, whatever the speed of the machine; `make test-long` draws new and more ones.
hypothesis.settings.register_profile("usher", deadline=None, derandomize=True)
hypothesis.settings.register_profile("long", deadline=None, max_examples=2000)
hypothesis.settings.load_profile("usher")


def _require(name: str) -> str:
    found = tools.find(name)
    if found is None:
        pytest.skip(f"{name} is missing. To enable this test: {tools.TOOLS[name].enable}")
    return found


@pytest.fixture
def require_tool() -> Callable[[str], str]:
    """`require_tool("chromium")` returns where the tool is, or skips the test."""
    return _require


@pytest.hookimpl(tryfirst=True)  # before fixtures that would need the tool
def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        for name in marker.args:
            _require(name)


@pytest.fixture(autouse=True)
def _log_of_the_process_stays_as_it_is() -> Generator[None]:
    """A program's log, once set up, hides from all later tests of the process what they look for in the log."""
    yield
    assert not structlog.get_config()["cache_logger_on_first_use"], "this test set up a program's log in our process"


def _fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Whatever the reason of a skip: on a machine that has everything nothing may be left out."""
    if tools.all_required() and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"USHER_REQUIRE_ALL is set, but this was to be skipped: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_if_skipped(report)
    return report
