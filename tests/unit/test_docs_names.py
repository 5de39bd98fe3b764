"""Flags, files, error codes and end reasons that pages name exist."""

import re
from collections.abc import Iterator

import click
import pytest

from tests.pages import ROOT, blocks, codes, pages, rows
from usher_cli.call.command import call
from usher_cli.keys_command import keys
from usher_cli.ufrag_command import ufrag
from usher_cli.up.settings import UpSettings
from usher_cli.wan.settings import WanSettings
from usher_core.settings import ProgramSettings
from usher_operator.settings import OperatorSettings
from usher_relay.settings import RelaySettings
from usher_signaling.settings import SignalingSettings
from usher_transceiver.session import EndReason
from usher_transceiver.settings import TransceiverSettings

FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
FOREIGN_FLAGS = {
    "--atomic": "helm",
    "--wait": "helm",
    "--data-binary": "curl",
    "--overwrite": "kubectl annotate",
    "--create-namespace": "helm",
    "--all-namespaces": "kubectl",
    "--context": "kubectl",
    "--output": "kubectl get",
    "--filename": "kubectl",
    "--selector": "kubectl",
    "--for": "kubectl",
    "--force": "kubectl delete",
    "--from-file": "kubectl create secret",
    "--from-literal": "kubectl create secret",
    "--logs": "helm test",
    "--namespace": "kubectl and helm",
    "--no-hooks": "helm uninstall",
    "--patch": "kubectl patch",
    "--reset-then-reuse-values": "helm upgrade",
    "--set": "helm",
    "--take-ownership": "helm upgrade",
    "--timeout": "kubectl wait and helm",
    "--type": "kubectl patch",
    "--help": "click and argparse",
}
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}


def flags_of(command: click.Command) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name in command.commands:
            yield from flags_of(command.commands[name])
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)


def flags_of_settings(settings: type[ProgramSettings]) -> Iterator[str]:
    for name, field in settings.model_fields.items():
        flag = name.replace("_", "-")
        yield f"--{flag}"
        if field.annotation is bool:
            yield f"--no-{flag}"


def code_of(page_text: str) -> Iterator[str]:
    yield from codes(re.sub(r"^ *```.*?^ *```", "", page_text, flags=re.MULTILINE | re.DOTALL))


def test_flags_exist() -> None:
    known = set(FOREIGN_FLAGS)
    for settings in (RelaySettings, TransceiverSettings, SignalingSettings, OperatorSettings, UpSettings, WanSettings):
        known.update(flags_of_settings(settings))
    for command in (call, keys, ufrag):
        known.update(flags_of(command))
    for page in [*pages(), *(ROOT / "docs" / "decisions").glob("*.md")]:
        inside = [*code_of(page.read_text()), *(block.text for block in blocks(page))]
        unknown = {flag for text in inside for flag in FLAG.findall(text) if flag not in known}
        assert unknown == set(), page.name


def test_files_exist() -> None:
    for page in pages():
        words = [word for code in code_of(page.read_text()) for word in code.split()]
        named = {word for word in words if re.fullmatch(r"[\w.-]+(/[\w.-]+)+/?", word)}
        ours = {path for path in named if path.split("/")[0] in FOLDERS}
        # clients.md leaves out the suffix of test files.
        assert {path for path in ours if not (ROOT / path).exists() and not (ROOT / f"{path}.py").exists()} == set()


@pytest.mark.parametrize("page", ["troubleshooting.md", "operations.md"])
def test_error_codes_are_those_of_the_http_apis(page: str) -> None:
    apis = [row for name in ("http-api.md", "internal-api.md") for row in rows(ROOT / "docs" / name)]
    known = {(row.cells[0], code) for row in apis if row.cells[0].isdigit() for code in codes(row.cells[1])}
    named = set(re.findall(r"\b([45]\d\d) `(\w+)`", (ROOT / "docs" / page).read_text()))
    assert named
    assert named <= known


def test_end_reasons_exist() -> None:
    named = set(re.findall(r"the call ends.*? as `(\w+)`", (ROOT / "docs" / "troubleshooting.md").read_text()))
    assert named
    assert named <= set(EndReason)


def test_tests_that_the_page_on_clients_names_exist() -> None:
    text = (ROOT / "docs" / "clients.md").read_text()
    files = {path.stem: path.read_text() for path in (ROOT / "tests").glob("*/test_*.py")}
    named = re.findall(r"`(?:[a-z]+/)*(test_\w+)`(?:: ((?:\*[^*]+\*(?:, )?)+))?", text)
    assert named
    for file, names in named:
        assert file in files
        # A second word is a parameter, "…" what was left out.
        for name in re.findall(r"\*([^* ]+)[^*]*\*", names):
            assert re.search(f"def test_{name.replace('…', '.*')}", files[file]), (file, name)


def test_every_bench_is_explained() -> None:
    listed = {name for row in rows(ROOT / "benches" / "README.md") for name in codes(row.cells[0])}
    assert listed == {path.name for path in (ROOT / "benches").glob("[a-z]*.py")}
