"""Reads prompt sets: the vendored ones by name, people's own JSON-lines files by path."""

import json
import os
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from tuner.errors import UserError
from tuner.prompts.rows import Prompt, prompt_from_row


def vendored_sets() -> tuple[str, ...]:
    """The names of the sets that come with tuner, sorted."""
    return tuple(sorted(f.name.removesuffix(".jsonl") for f in _package().iterdir() if f.name.endswith(".jsonl")))


def load_set(name_or_path: str, base: Path | None = None, *, all_turns: bool = False) -> tuple[Prompt, ...]:
    """A vendored set by name, or a file by path: absolute, or relative to `base` (the working folder if None).

    Rows may be ours, MT-Bench's and Spec-Bench's, OpenAI messages or batch requests, ShareGPT's
    conversations, HumanEval's or GSM8K's.
    Later user turns are kept, as `further_turns`, only with `all_turns`. Raises UserError.
    """
    source, shown = _find(name_or_path, base)
    stem = Path(source.name).stem
    prompts: list[Prompt] = []
    line_of_id: dict[str, int] = {}
    # Not splitlines(): it also breaks at U+2028 and its like, which may stand inside a JSON string.
    for line, text in enumerate(_read(source, shown).split("\n"), 1):
        if not text.strip():
            continue
        where = f"{shown} line {line}"
        prompt = prompt_from_row(_parse(text, where), stem, line, where, all_turns)
        if prompt.id in line_of_id:
            raise UserError(
                f"{where}: the id {prompt.id!r} is already used on line {line_of_id[prompt.id]}; "
                "give every row an id of its own."
            )
        line_of_id[prompt.id] = line
        prompts.append(prompt)
    if not prompts:
        raise UserError(f"{shown} has no prompts; write one JSON object a line.")
    return tuple(prompts)


def _package() -> Traversable:
    return files("tuner.prompts")


def _find(name_or_path: str, base: Path | None) -> tuple[Traversable, str]:
    if name_or_path in vendored_sets():
        return _package() / f"{name_or_path}.jsonl", f"the prompt set {name_or_path}"
    folder = base or Path.cwd()
    path = folder / Path(name_or_path).expanduser()
    if os.path.isfile(path):
        return path, str(path)
    if os.path.isdir(path) and name_or_path:
        raise UserError(f"{path} is a folder; name the prompt file in it.")
    if "/" in name_or_path or Path(name_or_path).suffix:
        raise UserError(
            f"the prompt file {path} does not exist; give its absolute path or one relative to {folder}, "
            f"or use a set of tuner's own: {', '.join(vendored_sets())}."
        )
    raise UserError(
        f"there is no prompt set {name_or_path!r}{_nearest(name_or_path)}; the sets are "
        f"{', '.join(vendored_sets())}, and a file of your own is given by its path."
    )


def _nearest(name: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name.lower(), vendored_sets(), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _read(source: Traversable, shown: str) -> str:
    try:
        raw = source.read_bytes()
    except OSError as error:
        raise UserError(f"{shown} cannot be read ({error.strerror}); check its permissions.") from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(f"{shown} line {line}: this is not UTF-8 text; save the file as plain UTF-8.") from error


def _parse(text: str, where: str) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise UserError(f"{where}: {constant} is no number in JSON; write a finite one, or null.")

    try:
        row = json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{where}: this is not valid JSON ({error.msg} at column {error.colno}); write one JSON object a line."
        ) from error
    except (ValueError, RecursionError) as error:  # ValueError: an integer of more digits than Python takes
        raise UserError(
            f"{where}: a number has thousands of digits, or lists are nested hundreds deep; remove the row."
        ) from error
    if not isinstance(row, dict):
        raise UserError(f"{where}: a row must be a JSON object, and this is a {type(row).__name__}.")
    return row
