"""The tuner's data folder: where engines and models live, how its files are written, how two tuners take turns."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tuner.errors import UserError

#: No longer than the hub allows: files have more before and behind it, as `.NAME.discarded-12345`.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")


def data_folder() -> Path:
    """$TUNER_HOME, else the user's data folder for `tuner`; not created here."""
    chosen = os.environ.get("TUNER_HOME")
    if chosen:
        return Path(chosen).expanduser().absolute()
    from platformdirs import user_data_dir

    return Path(user_data_dir("tuner"))


def engines_folder() -> Path:
    return data_folder() / "engines"


def models_folder() -> Path:
    return data_folder() / "models"


def checked_name(name: str, kind: str) -> str:
    """The name itself, if it can be a file name; `kind` is what the sentence calls it."""
    if not NAME.fullmatch(name):
        raise UserError(f"{name!r} cannot name {kind}: use letters, digits, '.', '_' and '-', at most 96")
    return name


def entries(folder: Path) -> list[Path]:
    """The JSON files of a registry by name, hidden ones left out; none where there is no folder."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UserError(
            f"cannot read {folder} ({error.strerror}): change its owner, or set TUNER_HOME to a folder of yours"
        ) from None
    return sorted(folder / name for name in names if name.endswith(".json") and not name.startswith("."))


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """UserError where `path` cannot be written, made or deleted: the disk is full, or the folder is not ours."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write {path} ({error.strerror or error}): make room and see that the folder can be written, then "
            "run the command again"
        ) from None


def write_json(path: Path, value: Any) -> None:
    """Write through a temporary file and a rename, so that a reader sees the old text or the new one."""
    with writing(path):
        _write_json(path, value)


def _write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=2, ensure_ascii=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """The object in `path`; a file that is torn or not an object is a UserError that ends in `remedy`."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path} ({error}): {remedy}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} does not hold a JSON object: {remedy}")
    return value


def discard(folder: Path) -> None:
    """Delete a folder; killed half-way, it is gone under its own name and `sweep_discarded` finishes."""
    hidden = folder.with_name(f".{folder.name}.discarded-{os.getpid()}")
    with writing(folder):
        folder.rename(hidden)
        shutil.rmtree(hidden)


def sweep_discarded(folder: Path) -> None:
    """Delete what a killed `discard` of this folder left."""
    with writing(folder):
        for hidden in folder.parent.glob(f".{folder.name}.discarded-*"):
            shutil.rmtree(hidden)


@contextlib.contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[int]:
    """Hold an exclusive lock on `path`; `waiting` is called once if another holds it.

    Yields the lock's descriptor. A child that inherits it keeps the lock for as long as it lives, so that nobody
    rebuilds a folder under an installer whose parent was killed.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)
