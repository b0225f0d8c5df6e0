"""A checkpoint as its own files describe it: config.json and the headers of its safetensors. No weights, no torch."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from tuner.engines.hub_cache import snapshot
from tuner.errors import UserError

INDEX = "model.safetensors.index.json"
MOST_HEADER_BYTES = 100_000_000  # the format's own limit
LFS_POINTER = b"version https://git-lfs"
OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".gguf")


class Unreadable(ValueError):
    """A weights file that is not what its name says; the message is a sentence's end."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor as its file's header has it; `begin` and `end` are places in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.begin

    def read(self) -> bytes | None:
        """This tensor's bytes alone; None from a file that holds headers only."""
        with self.file.open("rb") as file:
            file.seek(self.begin)
            data = file.read(self.nbytes)
        return data if len(data) == self.nbytes else None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`name`: as it was asked for. `others`: weights in formats that cannot be read without running their code.

    `problems`: sentences on weight files that are missing, torn or pointers to files elsewhere.
    """

    name: str
    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    others: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def architectures(self) -> tuple[str, ...]:
        names = self.config.get("architectures")
        return tuple(map(str, names)) if isinstance(names, list) else ()

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())


def find_folder(model: str, revision: str | None = None) -> Path | None:
    """The folder of a model given by path or hub id; None for a hub id that was not downloaded here."""
    folder = Path(model).expanduser()
    if os.path.isdir(folder):
        return folder
    return snapshot(model, revision) if model.count("/") == 1 and not model.startswith((".", "/", "~")) else None


def read_checkpoint(model: str, revision: str | None = None) -> Checkpoint | None:
    """A checkpoint by path or from the hub cache; None where this machine has none. UserError on its config.json."""
    folder = find_folder(model, revision)
    if folder is None:
        return None
    in_cache = not os.path.isdir(Path(model).expanduser())
    if in_cache and not os.path.isfile(folder / "config.json"):
        return None
    try:
        files = [(path.name, path.stat()) for path in sorted(folder.iterdir()) if path.is_file()]
    except OSError as error:
        raise UserError(f"cannot read {folder} ({error.strerror}): let this user read the model's files") from None
    found = _read(model, folder, tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in files))
    # A download that was broken off is gone on with by the engine; what is there of it tells nothing yet.
    return replace(found, tensors={}, problems=()) if in_cache and found.problems else found


@lru_cache(maxsize=8)
def _read(model: str, folder: Path, files: tuple[tuple[str, int, int], ...]) -> Checkpoint:
    """Read once for all settings of a study; `files` with their times and sizes make a changed folder another key."""
    config = read_config(folder, model)
    tensors, problems = _read_tensors(folder)
    others = tuple(name for name, *_ in files if name.endswith(OTHER_WEIGHTS))
    return Checkpoint(model, folder, config, tensors, others, problems)


def read_config(folder: Path, shown: str) -> Mapping[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise UserError(f"{shown} has no config.json: give the folder of a saved model") from None
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}): save the model again") from None
    if not isinstance(config, dict):
        raise UserError(f"{path} does not hold an object: save the model again")
    return config


def read_header(path: Path) -> dict[str, Tensor]:
    """The tensors of one safetensors file. Format: u64 length, that many bytes of JSON, then the data."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if start + file.read(len(LFS_POINTER) - 8) == LFS_POINTER:
            raise Unreadable("is a Git LFS pointer and not the weights: run `git lfs pull` in its folder")
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(MOST_HEADER_BYTES, size - 8):
            raise Unreadable("is no safetensors file: download it again")
        file.seek(8)
        text = file.read(length)
    tensors = dict(_parsed(path, text, 8 + length))
    described = max((tensor.end for tensor in tensors.values()), default=size)
    # A file of headers alone tells all that is checked here; half of the data is a broken download.
    if size not in (described, 8 + length):
        raise Unreadable(f"has {size:,} bytes and its header tells of {described:,}: download it again")
    return tensors


def _parsed(path: Path, text: bytes, data_at: int) -> Iterator[tuple[str, Tensor]]:
    try:
        for name, entry in json.loads(text).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                shape = tuple(int(size) for size in entry["shape"])
                yield name, Tensor(name, entry["dtype"], shape, path, data_at + begin, data_at + end)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Unreadable("has a header that cannot be read: download it again") from None


def _read_tensors(folder: Path) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    index = folder / INDEX
    listed: dict[str, str] = {}
    problems: list[str] = []
    if index.is_file():
        try:
            listed = dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
        except (OSError, ValueError, KeyError, TypeError):
            problems.append(f"{index} is no index of weights: download it again")
    files = sorted({folder / name for name in listed.values()} or set(folder.glob("*.safetensors")))
    tensors: dict[str, Tensor] = {}
    for path in files:
        try:
            tensors |= read_header(path)
        except OSError:
            problems.append(f"{path.name}, which {INDEX} names, is not in {folder}: download it")
        except Unreadable as error:
            problems.append(f"{path} {error}")
    lost = [] if problems else sorted(set(listed) - set(tensors))
    if lost:
        problems.append(f"{INDEX} in {folder} lists {lost[0]}, which no file holds ({len(lost)} in all): save it again")
    return tensors, tuple(problems)
