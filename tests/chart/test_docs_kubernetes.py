"""Commands, values and names on the pages about Kubernetes are those of the chart."""

import itertools
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.rendering import RELEASE, ROOT, helm, objects, pods, template
from tests.pages import Block, blocks, codes, pages

PAGE = ROOT / "docs" / "kubernetes.md"
COMMANDS = [
    line.strip()
    for page in pages()
    for block in blocks(page)
    if block.language == "sh"
    for line in block.text.replace("\\\n", " ").splitlines()
]
HELM = sorted({line for line in COMMANDS if line.startswith("helm ")})
KUBECTL = sorted({line for line in COMMANDS if line.startswith("kubectl ")})
VALUES: Any = yaml.safe_load((ROOT / "charts" / "usher" / "values.yaml").read_text())


def named(block: Block) -> str:
    return f"{block.page}:{block.line}"


@pytest.mark.needs("helm")
@pytest.mark.parametrize("block", [block for block in blocks(PAGE) if block.language == "yaml"], ids=named)
def test_examples_of_values_are_taken(block: Block, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(block.text)
    outcome = template(f"--values={values}")
    assert outcome.returncode == 0, outcome.stderr


@pytest.mark.needs("helm")
@pytest.mark.parametrize("command", [line for line in HELM if " charts/usher " in f"{line} "])
def test_the_chart_takes_the_values_of_a_command(command: str) -> None:
    words = shlex.split(command)
    given = [word for flag, word in itertools.pairwise(words) if flag == "--set"]
    outcome = template(*(f"--set={value}" for value in given))
    assert outcome.returncode == 0, outcome.stderr


@pytest.mark.needs("helm")
@pytest.mark.parametrize("command", HELM)
def test_helm_knows_the_flags_of_a_command(command: str) -> None:
    words = shlex.split(command)
    told = helm(words[1], "--help").stdout
    assert [word for word in words if word.startswith("--") and f"{word} " not in told] == []


@pytest.mark.needs("helm")
def test_relays_of_other_clusters_are_told_to_signaling() -> None:
    outcome = template(f"--values={ROOT / 'examples' / 'two-regions' / 'home-values.yaml'}")
    assert outcome.returncode == 0, outcome.stderr
    (container,) = (
        pod["containers"][0]
        for one in yaml.safe_load_all(outcome.stdout)
        if one and one["kind"] == "Deployment" and one["metadata"]["name"].endswith("-signaling")
        for pod in pods(one)
    )
    told = {each["name"]: each.get("value") for each in container["env"]}
    assert told["USHER_ADVERTISE"] == "9=192.0.2.20:3478@us"
    assert told["USHER_REGION_FALLBACK"] == "*"


def test_files_and_pools_of_commands_exist() -> None:
    files = {word for line in KUBECTL for word in shlex.split(line) if word.startswith("examples/")}
    assert files
    made = {
        (one["kind"], one["metadata"]["name"])
        for file in files
        for one in yaml.safe_load_all((ROOT / file).read_text())
    }
    kinds = {"rpool": "RelayPool", "tpool": "TransceiverPool"}
    asked = {(kinds[kind], name) for line in KUBECTL for kind, name in re.findall(r"\b([rt]pool)/(\w+)", line)}
    assert asked <= made


def test_the_patch_of_the_rescue_is_json() -> None:
    (patch,) = (word for line in KUBECTL for word in shlex.split(line) if word.startswith("--patch="))
    assert json.loads(patch.removeprefix("--patch=")) == {"metadata": {"finalizers": None}}


@pytest.mark.needs("helm")
@pytest.mark.parametrize("scenario", ["defaults", "everything", "namespaced"])
def test_what_a_hook_may_leave_has_the_labels_that_the_page_deletes_by(scenario: str) -> None:
    """After a failed uninstall the account of the Job must not be forgotten: it may delete pools and keys."""
    deletions = [line for line in KUBECTL if "component=uninstall" in line]
    kinds = {kind for line in deletions for kind in shlex.split(line)[2].split(",")}
    hooks = [one for one in objects(scenario) if "helm.sh/hook" in one["metadata"].get("annotations", {})]
    left = [one for one in hooks if one["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"]
    assert {one["kind"] for one in left} >= {"Job", "ServiceAccount", "Role", "RoleBinding"}
    assert {one["kind"].lower() for one in left} <= kinds
    for one in left:
        labels = one["metadata"]["labels"]
        assert (labels["app.kubernetes.io/instance"], labels["app.kubernetes.io/component"]) == (RELEASE, "uninstall")


def test_the_page_gives_an_uninstall_more_time_than_its_job_has_and_warns_of_deleting_the_namespace() -> None:
    [command] = [line for line in HELM if line.startswith("helm uninstall")]
    minutes = re.search(r"--timeout (\d+)m", command)
    assert minutes is not None
    assert int(minutes[1]) * 60 > VALUES["uninstall"]["deadlineSeconds"]
    assert "Uninstall before you delete the namespace" in " ".join(PAGE.read_text().split())


@pytest.mark.needs("helm")
def test_the_page_says_that_ipv6_alone_is_not_supported_while_programs_bind_ipv4() -> None:
    bound = [
        each["value"]
        for one in objects("defaults")
        for pod in pods(one)
        for each in pod["containers"][0].get("env", ())
        if each["name"] == "USHER_HTTP"
    ]
    assert bound
    assert all(each.startswith("0.0.0.0:") for each in bound)
    assert "IPv6-only clusters are not supported yet" in PAGE.read_text()


def test_values_named_in_the_page_exist() -> None:
    paths = {
        code.partition("=")[0]
        for code in codes(re.sub(r"^```.*?^```", "", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL))
        if code.partition(".")[0] in VALUES and "/" not in code and " " not in code
    }
    assert len(paths) > 20
    for path in paths:
        value = VALUES
        for name in path.split("."):
            # What a program's settings may be is in the schema.
            if isinstance(value, dict) and name not in value and "settings" in path:
                break
            value = value[name]


def test_the_example_key_is_read_where_signaling_and_the_test_look() -> None:
    (create,) = {line for line in COMMANDS if "create secret generic usher-api-keys" in line}
    keys = {
        word.partition("=")[2].partition("=")[0] for word in shlex.split(create) if word.startswith("--from-literal")
    }
    assert VALUES["signaling"]["apiKeys"]["existingSecret"] in create
    assert keys == {VALUES["signaling"]["apiKeys"]["key"], VALUES["tests"]["apiKey"]["key"]}
