"""What tests of relays share."""

from collections.abc import Iterator

import pytest

from tests.relay_network import FakeTransceiver, Network
from tests.relay_rig import POD_A


@pytest.fixture
def net() -> Iterator[Network]:
    network = Network()
    yield network
    network.close()


@pytest.fixture
def pod(net: Network) -> FakeTransceiver:
    return net.pod(POD_A)
