"""The shipped profiles: where they are, which there are, and a workload of one's own made from one of them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import yaml

from tuner.errors import UserError
from tuner.spec.load import parse_workload, resolve_path
from tuner.spec.yaml_document import Document, parse_document, read_text

SCHEMA_LINE = "# yaml-language-server: $schema="
SCHEMA_FILE = "workload.schema.json"
HOW_TO_COMPLETE = f"""\
# For completion in your editor: `tuner schema --output {SCHEMA_FILE}`, and as the first line of this file
# "{SCHEMA_LINE}{SCHEMA_FILE}".
"""


@dataclass(frozen=True, slots=True)
class Starter:
    """A workload to write. `unfit`: the profile's drafts that belong to its model and are commented out."""

    text: str
    unfit: tuple[str, ...]


def profiles_dir() -> Path:
    """The profiles inside an installed package, or those of the checkout it runs from."""
    package = Path(__file__).parents[1]
    for folder in (package / "profiles", package.parent / "profiles"):
        if (folder / "chat.yaml").is_file():
            return folder
    raise UserError(f"the profiles that come with tuner are not in {package}: install it again")


def profile_paths() -> dict[str, Path]:
    """Every shipped workload by name; other YAML files in the folder do not point to its schema."""
    paths = sorted(profiles_dir().glob("*.yaml"))
    return {path.stem: path for path in paths if SCHEMA_FILE in read_text(path).partition("\n")[0]}


def profile_path(name: str) -> Path:
    known = profile_paths()
    if name not in known:
        close = get_close_matches(name, known, n=1)
        nearest = f"did you mean {close[0]}?" if close else f"use one of {', '.join(known)}"
        raise UserError(f"there is no profile {name}: {nearest}")
    return known[name]


def descriptions() -> dict[str, str]:
    return {name: str(_read(path).data["description"]) for name, path in profile_paths().items()}


def starter(profile: str, target: Path, model: str | None = None, engines: Sequence[str] = ()) -> Starter:
    """The profile's text with its comments, its paths made absolute, for a file that will stand at `target`.

    With a model of your own the profile's heads and draft models do not fit any more: they are commented out.
    """
    document = _read(profile_path(profile))
    text = read_text(document.path)
    edits = [_edit(document, ("name",), _scalar(_name(target, profile)))]
    if model is not None:
        edits.append(_edit(document, ("model",), _scalar(resolve_path(Path.cwd(), model))))
    if engines:
        listed = [_scalar(engine) for engine in engines]
        edits.append(_edit(document, ("engine",), listed[0] if len(listed) == 1 else f"[{', '.join(listed)}]"))
    unfit = []
    for i, draft in enumerate(document.data["drafts"]):
        if "model" not in draft:
            continue
        if model is not None:
            edits.append(_commented(document, text, i))
            unfit.append(f"{draft['method']} {draft['model']}")
        elif draft["model"].startswith("."):
            path = resolve_path(document.path.parent, draft["model"])
            edits.append(_edit(document, ("drafts", i, "model"), _scalar(path)))
    if len(unfit) == len(document.data["drafts"]):
        after = text.index("\ndrafts:") + len("\ndrafts:")
        edits.append((after, after, " auto"))
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    text = HOW_TO_COMPLETE + text.partition("\n")[2]
    parse_workload(text, target)
    return Starter(text, tuple(unfit))


def _read(path: Path) -> Document:
    return parse_document(read_text(path), path)


def _edit(document: Document, place: tuple[str | int, ...], new: str) -> tuple[int, int, str]:
    node = document.value(place)
    return node.start_mark.index, node.end_mark.index, new


def _commented(document: Document, text: str, draft: int) -> tuple[int, int, str]:
    """The lines of one item of `drafts`, behind `#`."""
    start = text.rindex("\n", 0, document.value(("drafts", draft)).start_mark.index) + 1
    end = _end_of(document.value(("drafts", draft)))
    end = text.index("\n", end)
    head = "  # For the profile's model, not for yours: name weights that were trained for it.\n"
    return start, end, head + "\n".join(f"  # {line[2:]}" for line in text[start:end].split("\n"))


def _end_of(node: yaml.Node) -> int:
    """Where its last scalar ends: the end of a block itself lies after the comments and blank lines that follow."""
    if isinstance(node, yaml.MappingNode) and node.value and not node.flow_style:
        return _end_of(node.value[-1][1])
    if isinstance(node, yaml.SequenceNode) and node.value and not node.flow_style:
        return _end_of(node.value[-1])
    return int(node.end_mark.index)


def _name(target: Path, profile: str) -> str:
    """The file's own name, where it says something."""
    stem = target.stem.lower()
    return stem if stem != "workload" and re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,63}", stem) else profile


def _scalar(text: str) -> str:
    """YAML for a text: bare where it cannot be read as anything else."""
    bare = re.fullmatch(r"[A-Za-z/][A-Za-z0-9._/-]*", text) and text.lower() not in ("null", "true", "false")
    return text if bare else json.dumps(text, ensure_ascii=False)
