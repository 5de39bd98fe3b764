"""One install for the whole run; scenarios change it, and put it back.

What it needs: KUBECONFIG, kubectl and helm in PATH, and images on the nodes (see images.py). Of the environment also:

* `USHER_E2E_ADDRESSES`: a network whose addresses lead to the nodes, such as 10.97.0.0/24; the tests then play the load
  balancer. Without it relays are reached at node ports.
* `USHER_E2E_ON_NODE`: runs a command on a node, called as `COMMAND NODE WORD...`; with kind: `docker exec`. Tests kill
  containers by it, which no client of the API server can.
* `USHER_E2E_NAMESPACE`: where to install; with a name that is there already its install is used and left.
* `USHER_E2E_KEEP`: a folder for what there was to see when a test failed (`e2e-failures`).
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from tests.e2e import images
from tests.e2e.fleet import CHART, RELEASE, Fleet, say, values
from tests.e2e.kube import Namespace, kubectl

FIGURES = pytest.StashKey[list[str]]()
FLEET = pytest.StashKey[Fleet]()

Figure = Callable[[str, object], None]


@pytest.fixture(scope="session")
def provided() -> images.Images:
    return images.provide()


@pytest.fixture(scope="session")
def second_images(provided: images.Images) -> images.Images:
    """What programs are updated to."""
    return images.provide_second(provided)


@pytest.fixture(scope="session")
def installed(request: pytest.FixtureRequest, provided: images.Images) -> Iterator[Fleet]:
    """An install with the pools of examples/, small requests apart."""
    name = os.environ.get("USHER_E2E_NAMESPACE") or f"usher-e2e-{uuid.uuid4().hex[:6]}"
    fleet = Fleet(Namespace(name), provided)
    request.config.stash[FLEET] = fleet
    if kubectl("get", "namespace", name, "--ignore-not-found"):
        fleet.helm("upgrade", RELEASE, CHART, "--take-ownership", given=values(name, provided))
        fleet.adopt()
        yield fleet
        return
    try:
        fleet.install()
        yield fleet
    except BaseException:
        fleet.collect(_folder() / "install")
        raise
    finally:
        if "USHER_E2E_NAMESPACE" not in os.environ:
            fleet.remove()


@pytest.fixture(scope="session")
def small(installed: Fleet) -> Fleet:
    installed.shrink()
    return installed


@pytest.fixture
def fleet(small: Fleet) -> Fleet:
    """The install with small pools: two relays, two transceivers, all of them ready and nothing under way."""
    small.shrink()
    return small


@pytest.fixture
def figure(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Figure:
    """Tell a number that a scenario saw: it stands in the JUnit report and in the summary."""
    found = request.config.stash.setdefault(FIGURES, [])

    def tell(name: str, value: object) -> None:
        record_property(name, str(value))
        found.append(f"{request.node.name}: {name}: {value}")
        say(f"  {name}: {value}")

    return tell


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what needs the install that others share last: an operator of the whole cluster must not find its pools."""
    items.sort(key=lambda item: "installed" in getattr(item, "fixturenames", ()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    fleet = item.config.stash.get(FLEET, None)
    if report.failed and fleet is not None and {"installed", "fleet"} & set(getattr(item, "fixturenames", ())):
        fleet.collect(_folder() / re.sub(r"[^A-Za-z0-9_-]+", "-", item.name))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if found := config.stash.get(FIGURES, None):
        terminalreporter.section("figures")
        for line in found:
            terminalreporter.line(line)


def _folder() -> Path:
    return Path(os.environ.get("USHER_E2E_KEEP", "e2e-failures"))
