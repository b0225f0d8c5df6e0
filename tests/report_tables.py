"""Tables of a Markdown report, read as a person reads them: by their columns, not by tuner's code."""

from __future__ import annotations

import re

Row = dict[str, str]

#: A figure for people: the value, its interval and, where it is not the row's, its n.
_NUMBER = r"-?[\d.,]+[x%]?"
FIGURE = re.compile(rf"({_NUMBER}) \[{_NUMBER}, {_NUMBER}\](, n = \d+)?")


def table(report: str, *columns: str) -> list[Row]:
    """Rows of the first table in the report that has these columns."""
    for block in re.findall(r"(?:^\|.*\|\n?)+", report, re.M):
        head, _, *rows = [line.strip("| \n").split(" | ") for line in block.splitlines()]
        if set(columns) <= set(head):
            return [dict(zip(head, row, strict=False)) for row in rows]
    raise AssertionError(f"the report has no table with {columns}")


def find(rows: list[Row], where: Row) -> Row:
    """The one row with these values."""
    (row,) = [row for row in rows if where.items() <= row.items()]
    return row


def number(text: str) -> str:
    """The value of a printed figure, which must have its interval."""
    found = FIGURE.fullmatch(text)
    assert found, text
    return found.group(1).rstrip("x%")
