"""The house's order: imports point down, and the pure rooms touch no clock, socket, file or process."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tuner

ROOT = Path(tuner.__file__).parent
#: From the top down; a room imports from itself and from rooms below it.
ORDER = ("cli", "report", "run", "engines", "decide", "measure", "theory", "spec", "prompts")
PURE = ("theory", "measure", "decide")
IMPURE = {"asyncio", "aiohttp", "subprocess", "time", "os", "socket", "pathlib", "shutil", "threading", "urllib"}


def modules(room: str) -> list[Path]:
    # Scripts that engines run in their own environments are data here: they import nothing of tuner.
    return [p for p in (ROOT / room).rglob("*.py") if p.relative_to(ROOT).parts[:2] not in RUN_ELSEWHERE]


RUN_ELSEWHERE = {
    ("engines", "corrections"),
    ("engines", "sglang_cpu"),
    ("engines", "training_scripts"),
    ("engines", "convert_gguf.py"),
}


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively: write the whole name"
            yield node.module or ""


@pytest.mark.parametrize("room", ORDER)
def test_imports_point_down(room: str) -> None:
    below = ORDER[ORDER.index(room) :]
    paths = modules(room)
    assert paths, f"room {room} is empty"
    for path in paths:
        for name in imported(path):
            if name.startswith("tuner.") and name.split(".")[1] != "errors":
                assert name.split(".")[1] in below, f"{path.relative_to(ROOT)} imports {name}, which is above it"


@pytest.mark.parametrize("room", PURE)
def test_pure_rooms_do_no_io(room: str) -> None:
    for path in modules(room):
        roots = {name.split(".")[0] for name in imported(path)}
        assert not roots & IMPURE, f"{path.relative_to(ROOT)} imports {sorted(roots & IMPURE)}"


def test_every_module_is_in_a_room() -> None:
    loose = {p.name for p in ROOT.glob("*.py")} - {"__init__.py", "__main__.py", "errors.py"}
    assert not loose
    assert {p.name for p in ROOT.iterdir() if p.is_dir() and p.name != "__pycache__"} == set(ORDER)


@pytest.mark.parametrize("text", ['"baseline-again"', '.get("type") == "text"'])
def test_what_several_modules_must_agree_on_is_written_once(text: str) -> None:
    """The role of off's last run, and what binds an answer to a grammar."""
    found = [path for room in ORDER for path in modules(room) if text in path.read_text(encoding="utf-8")]
    assert len(found) == 1, found
