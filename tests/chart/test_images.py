"""Containerfiles, what goes into their context, and the files of `make kind-up`."""

import re
import subprocess

import pytest
import yaml

from tests.chart.rendering import ROOT, template

FILES = {path.name.partition(".")[0]: path.read_text() for path in sorted((ROOT / "deploy").glob("*.Containerfile"))}
COPIED = re.findall(r"^COPY (?!--from)(.+) \S+$", FILES["relay"], re.MULTILINE)


def build_stage(text: str) -> str:
    """The stage that builds, and the last one up to the copy of what was built: by these, layers are shared."""
    build, *_, last = text[text.index("\nARG BASE_IMAGE") :].split("\nFROM ")[1:]
    return build.partition("\n\n")[0].strip() + "\n" + last[: last.index("COPY --from=build")]


def test_there_is_one_image_for_each_program() -> None:
    assert set(FILES) == {"operator", "relay", "signaling", "transceiver"}


def test_all_images_share_their_build() -> None:
    assert len({build_stage(text) for text in FILES.values()}) == 1


@pytest.mark.parametrize("program", FILES)
def test_an_image_runs_its_program_as_nobody(program: str) -> None:
    lines = FILES[program].splitlines()
    assert lines[-3:] == ["USER 65532:65532", 'ENTRYPOINT ["tini", "--", "usher"]', f'CMD ["{program}"]']
    assert "ARG BASE_IMAGE=python:3.11-slim-bookworm" in lines
    assert f'org.opencontainers.image.title="usher-{program}"' in FILES[program]


@pytest.mark.parametrize("program", FILES)
def test_a_program_is_not_process_1_where_a_signal_before_its_handler_is_lost(program: str) -> None:
    final = FILES[program].partition("COPY --from=build")[0].rpartition("FROM ")[2]
    assert "--no-install-recommends tini" in final


def test_only_what_is_copied_is_sent_to_the_builder() -> None:
    wanted = {name for names in COPIED for name in names.split()}
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert ignored[0] == "*"
    assert {line.removeprefix("!") for line in ignored if line.startswith("!")} == wanted
    assert not {".venv", ".git", "tests"} & wanted


def test_make_images_builds_all_with_any_builder() -> None:
    shown = subprocess.run(
        ["make", "-n", "images", "BUILDER=podman", "IMAGE_PREFIX=registry.example.com/usher", "TAG=7"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "podman build --file deploy/$program.Containerfile" in shown
    assert "--tag registry.example.com/usher/usher-$program:7 ." in shown
    assert "for program in relay transceiver signaling operator" in shown


def test_the_ports_of_kind_lead_to_relays_and_signaling() -> None:
    config = yaml.safe_load((ROOT / "kind-config.yaml").read_text())
    roles = [node["role"] for node in config["nodes"]]
    assert roles == ["control-plane", "worker", "worker", "worker"]
    assert len({node["labels"]["topology.kubernetes.io/zone"] for node in config["nodes"][1:]}) == 3
    ports = {each["protocol"]: each for each in config["nodes"][0]["extraPortMappings"]}
    relays, _ = yaml.safe_load_all((ROOT / "deploy" / "kind-pools.yaml").read_text())
    values = yaml.safe_load((ROOT / "deploy" / "kind-values.yaml").read_text())
    assert ports["UDP"]["containerPort"] == relays["spec"]["exposure"]["nodePort"]
    assert relays["spec"]["exposure"]["advertisedAddresses"] == [f"127.0.0.1:{ports['UDP']['hostPort']}"]
    assert ports["TCP"]["containerPort"] == values["signaling"]["service"]["nodePort"]
    # The key in the values is no secret.
    assert {each["listenAddress"] for each in ports.values()} == {"127.0.0.1"}


@pytest.mark.needs("helm")
def test_the_chart_takes_the_values_of_kind() -> None:
    rendered = template(f"--values={ROOT / 'deploy' / 'kind-values.yaml'}")
    assert rendered.returncode == 0, rendered.stderr
    secrets = [one for one in yaml.safe_load_all(rendered.stdout) if one and one["kind"] == "Secret"]
    assert [set(secret["stringData"]) for secret in secrets] == [{"keys", "test-key"}]
