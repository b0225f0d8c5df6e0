"""Reads one YAML file into plain data, and remembers on which line everything stands.

The scalars of YAML 1.2 only: `off`, `no`, `1_000`, `12:30` and dates are text, as editors that follow 1.2 show them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tuner.errors import UserError

Place = tuple[str | int, ...]
#: No workload is longer; a checkpoint given by mistake is not read into memory.
MOST_BYTES = 1 << 20


class _Loader(yaml.SafeLoader):
    """Safe construction, with the implicit types below alone."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML's own attribute)


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(0|[1-9][0-9]*)", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+.0123456789")),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", list("-+.")),
    ("merge", r"<<", ["<"]),
):  # fmt: skip
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)


@dataclass(frozen=True, slots=True)
class Document:
    """A mapping read from `path`. Lines count from 1."""

    path: Path
    data: dict[str, Any]
    root: yaml.MappingNode

    def at(self, place: Place) -> str:
        """`file:line`, what compilers print and editors open."""
        return f"{self.path}:{self.line(place)}"

    def line(self, place: Place) -> int:
        """Where the key or list item stands; of a key that is missing, where its mapping begins."""
        return int(self._walk(place)[0].start_mark.line) + 1

    def typed(self, place: Place) -> str | None:
        """The scalar as it was typed, None where there is no scalar."""
        value = self.value(place)
        return value.value if isinstance(value, yaml.ScalarNode) else None

    def value(self, place: Place) -> yaml.Node:
        """The node of a value, whose marks say where its text begins and ends."""
        return self._walk(place)[1]

    def _walk(self, place: Place) -> tuple[yaml.Node, yaml.Node]:
        shown: yaml.Node = self.root
        value: yaml.Node = self.root
        for step in place:
            found = _child(value, step)
            if found is None:
                break
            shown, value = found
        return shown, value


def _child(node: yaml.Node, step: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
        return node.value[step], node.value[step]
    if isinstance(node, yaml.MappingNode):
        # The last one: keys that a merge brought stand before the mapping's own.
        return next(((k, v) for k, v in reversed(node.value) if k.value == step), None)
    return None


def read_text(path: Path) -> str:
    """UserError for everything a path can be but a text file."""
    try:
        if path.is_dir():
            raise UserError(f"{path} is a folder: give the file in it")
        if path.is_file() and path.stat().st_size > MOST_BYTES:
            raise UserError(f"{path} has {path.stat().st_size:,} bytes: that is not a file written by hand")
        raw = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path} does not exist{_neighbour(path)}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error})") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: this is not UTF-8 text: save the file as UTF-8") from None


def _neighbour(path: Path) -> str:
    from difflib import get_close_matches

    near = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
    close = get_close_matches(path.name, near, n=1) or get_close_matches(f"{path.name}.yaml", near, n=1, cutoff=0.9)
    return f": did you mean {path.parent / close[0]}?" if close else ": give the path of a YAML file"


def parse_document(text: str, path: Path) -> Document:
    """UserError with file and line for what is not YAML, and for a key that stands twice in its mapping."""
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UserError(f"{path}:{line}: there is a control character (code {error.character}): remove it") from None
    try:
        root = loader.get_single_node()
        if root is None or (isinstance(root, yaml.ScalarNode) and root.tag.endswith(":null")):
            raise UserError(f"{path} is empty: `tuner init` writes a workload to start from")
        if not isinstance(root, yaml.MappingNode):
            kind = "a list" if isinstance(root, yaml.SequenceNode) else "one text"
            raise UserError(f"{path}:{root.start_mark.line + 1}: this is {kind}: write lines of `key: value`")
        _check_keys(root, path, set())
        return Document(path, loader.construct_document(root), root)
    except yaml.MarkedYAMLError as error:
        raise UserError(_invalid(error, path)) from None
    except (RecursionError, ValueError) as error:
        raise UserError(f"{path} cannot be read as YAML ({error}): correct it") from None
    finally:
        loader.dispose()


def _check_keys(node: yaml.Node, path: Path, seen: set[int]) -> None:
    """Every key is text and stands once in its mapping. `seen`: nodes done, which anchors can share."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check_keys(item, path, seen)
    elif isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or key.tag.rpartition(":")[2] not in ("str", "merge"):
                raise UserError(f"{path}:{line}: a key must be text: put it in quotes")
            if key.value in lines:
                raise UserError(
                    f"{path}:{line}: the key {key.value} stands on line {lines[key.value]} already: keep one of them"
                )
            lines[key.value] = line
            _check_keys(value, path, seen)


def _invalid(error: yaml.MarkedYAMLError, path: Path) -> str:
    mark = error.problem_mark or error.context_mark
    where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
    problem = (error.problem or error.context or "it cannot be parsed").replace("\n", " ")
    if "'\\t'" in problem:
        return f"{where}: there is a tab: YAML is indented with spaces"
    if "mapping values" in problem:
        remedy = "check the indentation, and put a text that holds ': ' in quotes"
    elif "<block end>" in problem:
        remedy = "check the indentation of this line and the ones above"
    else:
        remedy = "correct it; texts with special characters go in quotes"
    return f"{where}: this is not valid YAML ({problem}): {remedy}"
