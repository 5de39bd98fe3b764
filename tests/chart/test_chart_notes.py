"""What Helm says after an install, as files to read in a review. To write them anew: USHER_UPDATE_SNAPSHOTS=1."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.rendering import CHART, NAMESPACE, RELEASE, ROOT, SCENARIOS, by_name, helm

pytestmark = pytest.mark.needs("helm")

SNAPSHOTS = ROOT / "tests" / "chart" / "snapshots" / "notes"
URL = "http://fleet-usher-signaling.usher-system:80"
TLS = [{"secretName": "voice-tls", "hosts": ["voice.example.com"]}]
INGRESS = {"enabled": True, "hosts": ["voice.example.com"], "tls": TLS}
ROUTE = {"enabled": True, "parentRefs": [{"name": "public"}], "hostnames": ["voice.example.com"]}
LOAD_BALANCER = {"type": "LoadBalancer", "port": 8443}

EXPOSURES: dict[str, dict[str, Any]] = {
    "cluster-ip": {},
    "cluster-ip-other-port": {"service": {"port": 8081}},
    "node-port": {"service": {"type": "NodePort"}},
    "node-port-fixed": {"service": {"type": "NodePort", "nodePort": 30080}},
    "load-balancer": {"service": LOAD_BALANCER},
    "ingress": {"ingress": INGRESS},
    "ingress-all-paths": {"ingress": {**INGRESS, "paths": ["/"]}},
    "ingress-without-tls": {"ingress": {**INGRESS, "tls": []}},
    "ingress-tls-of-another-host": {"ingress": {**INGRESS, "tls": [{"hosts": ["other.example.com"]}]}},
    "ingress-tls-of-all-hosts": {"ingress": {**INGRESS, "tls": [{"secretName": "all"}]}},
    "ingress-wildcard": {"ingress": {**INGRESS, "hosts": ["*.example.com"], "tls": [{"hosts": ["*.example.com"]}]}},
    "ingress-of-whip-alone": {"ingress": {**INGRESS, "paths": ["/whip"]}, "service": LOAD_BALANCER},
    "http-route": {"httpRoute": ROUTE},
    "http-route-of-all-hosts": {"httpRoute": {**ROUTE, "hostnames": []}},
    "http-route-of-whip-alone": {"httpRoute": {**ROUTE, "paths": ["/whip", "/v1/real"]}},
    "ingress-and-http-route": {"ingress": INGRESS, "httpRoute": {**ROUTE, "hostnames": ["other.example.com"]}},
}
CALLED = {
    "cluster-ip": "http://127.0.0.1:8080",
    "cluster-ip-other-port": "http://127.0.0.1:8080",
    "node-port": "http://$NODE:$PORT",
    "node-port-fixed": "http://$NODE:30080",
    "load-balancer": "http://$HOST:8443",
    "ingress": "https://voice.example.com",
    "ingress-all-paths": "https://voice.example.com",
    "ingress-without-tls": "http://voice.example.com",
    "ingress-tls-of-another-host": "http://voice.example.com",
    "ingress-tls-of-all-hosts": "https://voice.example.com",
    "ingress-wildcard": "https://NAME.example.com",
    "ingress-of-whip-alone": "http://$HOST:8443",
    "http-route": "https://voice.example.com",
    "http-route-of-all-hosts": "https://$HOST",
    "http-route-of-whip-alone": "http://127.0.0.1:8080",
    "ingress-and-http-route": "https://voice.example.com",
}


def notes(folder: Path, *arguments: str) -> str:
    """Helm says it on a cluster only, so a copy of the chart renders it as an object."""
    chart = folder / "usher"
    shutil.copytree(CHART, chart)
    (chart / "templates" / "NOTES.txt").rename(chart / "NOTES.txt")
    (chart / "templates" / "notes.yaml").write_text('notes: {{ tpl (.Files.Get "NOTES.txt") . | toJson }}')
    where = (f"--namespace={NAMESPACE}", "--show-only=templates/notes.yaml")
    outcome = helm("template", RELEASE, str(chart), *where, *arguments)
    assert outcome.returncode == 0, outcome.stderr
    return str(yaml.safe_load(outcome.stdout)["notes"])


def notes_of(exposure: str, folder: Path) -> str:
    values = folder / "values.json"
    values.write_text(json.dumps({"signaling": EXPOSURES[exposure]}))
    return notes(folder, f"--values={values}")


def check(name: str, said: str) -> None:
    path = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("USHER_UPDATE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{said}\n")
    assert f"{said}\n" == path.read_text()


def commands(said: str) -> list[str]:
    return [line.strip() for line in said.splitlines() if line.startswith("  ")]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_notes_are_those_that_were_reviewed(scenario: str, tmp_path: Path) -> None:
    check(scenario, notes(tmp_path, f"--values={SCENARIOS[scenario]}"))


@pytest.mark.parametrize("exposure", EXPOSURES)
def test_the_third_step_is_a_call_from_outside_by_the_way_that_the_values_open(exposure: str, tmp_path: Path) -> None:
    said = notes_of(exposure, tmp_path)
    _, key, pools, call, *_ = said.split("\n\n")
    check(exposure, call)
    assert key.splitlines()[-1].startswith("  KEY=")
    assert "kubectl --namespace usher-system apply" in pools
    assert call.splitlines()[-1].strip() == f'USHER_API_KEY="$KEY" usher call {CALLED[exposure]}'
    assert URL not in call
    assert f"Callers inside the cluster: http://fleet-usher-signaling.{NAMESPACE}:" in said


@pytest.mark.parametrize("exposure", EXPOSURES)
def test_the_commands_of_the_notes_are_a_shell_script(exposure: str, tmp_path: Path) -> None:
    script = "\n".join(commands(notes_of(exposure, tmp_path)))
    checked = subprocess.run(["sh", "-n"], input=script, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_the_ports_of_the_notes_are_those_of_the_service(tmp_path: Path) -> None:
    said = notes(tmp_path, "--set=signaling.service.port=8081")
    [service] = [one for name, one in by_name("defaults").items() if name == "Service/fleet-usher-signaling"]
    assert f"port-forward service/{service['metadata']['name']} 8080:8081 " in said


def test_no_snapshot_of_notes_is_left_of_what_is_gone() -> None:
    assert {path.stem for path in SNAPSHOTS.iterdir()} == {*SCENARIOS, *EXPOSURES}


@pytest.mark.parametrize("deadline", [4500, 60])
def test_the_notes_say_how_long_an_uninstall_has_to_be_given(deadline: int, tmp_path: Path) -> None:
    said = notes(tmp_path, f"--set=uninstall.deadlineSeconds={deadline}")
    [given] = re.findall(rf"^helm uninstall {RELEASE} --namespace {NAMESPACE} --timeout (\d+)s$", said, re.MULTILINE)
    assert int(given) > deadline
    assert "never delete the namespace first" in said


def test_a_test_that_succeeded_leaves_no_pod_and_one_that_failed_leaves_its_logs() -> None:
    hook = by_name("defaults")["Pod/fleet-usher-test"]["metadata"]["annotations"]
    assert set(hook["helm.sh/hook-delete-policy"].split(",")) == {"before-hook-creation", "hook-succeeded"}
    assert set(hook["helm.sh/hook-output-log-policy"].split(",")) == {"hook-succeeded", "hook-failed"}
