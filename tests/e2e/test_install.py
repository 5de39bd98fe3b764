"""From nothing to a call, as the quick start says, in a namespace that enforces Pod Security `restricted`."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import Figure
from tests.e2e.fleet import RELAY_PODS, TRANSCEIVER_PODS, Fleet, is_ready, pod_id
from tests.e2e.kube import kubectl

pytestmark = [pytest.mark.e2e, pytest.mark.needs("kubernetes", "helm"), pytest.mark.timeout(600)]


def test_after_helm_install_and_the_examples_a_call_has_its_audio_back(installed: Fleet, figure: Figure) -> None:
    for step, seconds in installed.figures.items():
        figure(f"{step} after", f"{seconds:.1f} s")
    outcome = installed.call(seconds=3)
    figure("first call", outcome)
    assert outcome.lost == 0
    assert not outcome.wrong


def test_every_pod_runs_under_restricted_and_transceivers_have_ids_of_their_own(installed: Fleet) -> None:
    labels = kubectl("get", "namespace", installed.namespace.name, "--output=jsonpath={.metadata.labels}")
    assert '"pod-security.kubernetes.io/enforce":"restricted"' in labels
    pods = [pod for pod in installed.pods("") if pod["status"]["phase"] != "Succeeded"]
    assert len(pods) >= 8
    assert all(map(is_ready, pods))
    transceivers = installed.pods(TRANSCEIVER_PODS)
    ids = [pod_id(pod) for pod in transceivers]
    assert None not in ids
    assert len(set(ids)) == len(transceivers) >= 2
    assert len(installed.pods(RELAY_PODS)) >= 2


def test_helm_test_places_a_call_inside_the_cluster(installed: Fleet) -> None:
    said = installed.helm("test", "usher")
    assert "Phase:          Succeeded" in said
