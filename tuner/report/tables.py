"""A table for people: its columns, its rows, and its Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """Rows are text already; a table without rows is falsy, so that templates can leave it out."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __bool__(self) -> bool:
        return bool(self.rows)

    @property
    def markdown(self) -> str:
        lines = [_line(self.columns), _line(["---"] * len(self.columns)), *(_line(row) for row in self.rows)]
        return "\n".join(lines)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    kept = tuple(tuple(row) for row in rows)
    if any(len(row) != len(columns) for row in kept):
        raise ValueError(f"a row does not have the {len(columns)} columns {columns}")
    return Table(tuple(columns), kept)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_cell(text) for text in cells) + " |"


def one_line(text: str) -> str:
    """Engines' messages hold line breaks and `<class ...>`: the first ends a Markdown item, the second vanishes."""
    return " ".join(text.split()).replace("<", "&lt;")


def _cell(text: str) -> str:
    return one_line(text).replace("|", "\\|")
