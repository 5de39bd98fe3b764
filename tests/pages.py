"""The documentation as tests read it: code blocks, commands and tables of Markdown pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)$")
INDENTED = " " * 4


def pages() -> list[Path]:
    """What people read first, and docs/."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@dataclass(frozen=True)
class Block:
    """A code block. `language` is that of the fence; `indented` where four spaces make the block."""

    page: str
    line: int
    language: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    """Yield the code blocks of a page, in order."""
    lines = page.read_text().splitlines()
    name = str(page.relative_to(ROOT))
    number = 0
    while number < len(lines):
        begin = number
        if fence := FENCE.match(lines[number]):
            indent = fence["indent"]
            number += 1
            while lines[number] != f"{indent}```":
                number += 1
            inside = [line.removeprefix(indent) for line in lines[begin + 1 : number]]
            yield Block(name, begin + 2, fence["language"], "\n".join(inside) + "\n")
        elif lines[number].startswith(INDENTED) and not lines[number - 1]:
            while number < len(lines) and lines[number].startswith(INDENTED):
                number += 1
            inside = [line.removeprefix(INDENTED) for line in lines[begin:number]]
            yield Block(name, begin + 1, "indented", "\n".join(inside) + "\n")
        number += 1


@dataclass(frozen=True)
class Row:
    """A row of a table: the heading above the table, and its cells. A bar within a cell is written `\\|`."""

    heading: str
    cells: tuple[str, ...]


def rows(page: Path) -> Iterator[Row]:
    """Yield the rows of all tables of a page, without their header lines."""
    heading = ""
    body = False
    for line in page.read_text().splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        cells = tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]) if line.startswith("|") else ()
        if not cells:
            body = False
        elif all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            body = True
        elif body:
            yield Row(heading, cells)


def codes(text: str) -> list[str]:
    """Return the code spans of a line."""
    return re.findall(r"`([^`]+)`", text)
