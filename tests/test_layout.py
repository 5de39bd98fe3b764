"""The shape of the repository: what a newcomer relies on and no compiler checks."""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAX_LINES = 600
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = [ROOT / folder for folder in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


@cache
def kept_files() -> list[Path]:
    """What git knows or would take in; without git, as in a source archive, every file that no tool made."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
        found = [ROOT / name for name in names if name]
    except (OSError, subprocess.CalledProcessError):
        found = [path for path in ROOT.rglob("*") if not {".venv", "node_modules"} & set(path.parts)]
    return [path for path in found if path.is_file()]


def kept(suffix: str) -> Iterator[Path]:
    return (path for path in kept_files() if path.suffix == suffix)


def short(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_nothing_shadows_the_standard_library() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists()


def test_every_package_says_that_it_is_typed() -> None:
    assert [short(package) for package in PACKAGES if not (package / "py.typed").is_file()] == []


def test_every_package_is_built_typed_and_layered() -> None:
    found = {path.parent for path in kept(".typed")}
    assert found == set(PACKAGES), "add the package to [tool.hatch.build.targets.wheel]"
    assert {ROOT / file for file in PROJECT["tool"]["mypy"]["files"]} >= found
    assert set(PROJECT["tool"]["importlinter"]["root_packages"]) == {package.name for package in found}
    assert set(PROJECT["tool"]["coverage"]["run"]["source_pkgs"]) == {package.name for package in found}


def test_no_module_is_too_long_to_read() -> None:
    lengths = {short(path): len(path.read_text().splitlines()) for path in kept(".py")}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_patterns_that_ignore_case_know_ascii_letters_only() -> None:
    """Else `s` is also U+017F, and `k` the sign of kelvin."""
    for package in PACKAGES:
        for path in package.rglob("*.py"):
            for line in path.read_text().splitlines():
                assert not re.search(r"\bre\.(I|IGNORECASE)\b", line) or "re.ASCII" in line, (path, line)
                assert not re.search(r"\(\?[a-z]*i[a-z]*[:)]", line) or "re.ASCII" in line, (path, line)


def test_every_to_do_has_an_owner() -> None:
    lonely = re.compile(r"\b(?:TODO|FIXME|XXX)\b(?!\(\w+\))")
    own = Path(__file__)
    found = [
        f"{short(path)}:{number}"
        for path in (*kept(".py"), *kept(".js"), *kept(".md"))
        if path != own
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if lonely.search(line)
    ]
    assert found == []


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings: lower case, blanks to hyphens, other signs dropped."""
    headings = re.findall(
        r"^#+\s+(.*)$", CODE.sub(lambda m: m[0] if "\n" not in m[0] else "", page.read_text()), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def is_broken(link: str, page: Path) -> bool:
    target, _, anchor = link.partition("#")
    path = (page.parent / target).resolve() if target else page
    return not path.exists() or bool(anchor and path.suffix == ".md" and anchor not in anchors(path))


def test_links_between_pages_lead_somewhere() -> None:
    links = [
        (page, link)
        for page in kept(".md")
        for link in LINK.findall(CODE.sub("", page.read_text()))
        if not re.match(r"[a-z]+:", link)
    ]
    assert links
    assert [(short(page), link) for page, link in links if is_broken(link, page)] == []


def test_every_page_of_docs_is_in_an_index() -> None:
    docs = ROOT / "docs"
    for index in (docs / "README.md", docs / "decisions" / "README.md"):
        text = index.read_text()
        pages = {path.name for path in index.parent.glob("*.md")} - {"README.md"}
        assert {name for name in pages if f"]({name})" not in text} == set(), f"list it in {short(index)}"


def test_make_commands_in_pages_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        (short(page), target)
        for page in kept(".md")
        for code in CODE.findall(page.read_text())
        for target in re.findall(r"(?:^|`|\$ )make ([a-z0-9-]+)", code, re.MULTILINE)
    }
    assert {(page, target) for page, target in named if target not in targets} == set()


def test_make_help_explains_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = next(line for line in makefile.splitlines() if line.startswith(".PHONY:")).split()[1:]
    shown = subprocess.run(["make", "-s"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"make ([a-z0-9-]+) ", shown) == phony


def test_make_test_looks_for_whole_programs_where_they_are_tested() -> None:
    found = re.search(r"^WHOLE := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found
    folders = tuple(f"{folder}/" for folder in found[1].split())
    marker = re.compile(r"\bmark\.(programs|timed)\b")
    marked = [short(path) for path in (ROOT / "tests").rglob("test_*.py") if marker.search(path.read_text())]
    assert marked
    assert [name for name in marked if not name.startswith(folders)] == []


def test_changelog_has_the_version_of_the_project() -> None:
    headings = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] in {"Unreleased", PROJECT["project"]["version"]}
    assert PROJECT["project"]["version"] in headings
