"""What a model's files are, in a few digits: two nights with the same name and other files are two drafts."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tuner.engines.checkpoint import find_folder

#: Words about a model, and not the model: kinds of files, and names of those that are text. Other text is the model:
#: merges.txt and vocab.txt are a tokenizer.
NOT_THE_MODEL = (".md", ".png", ".jpg", ".jpeg", ".gif", ".svg", ".pdf", ".lock")
WORDS = ("readme", "license", "licence", "notice", "use_policy", "changelog", "authors", "citation", "requirements")
DIGITS = 16
CHUNK = 1 << 20
#: Of a file larger than this only the ends are read when `whole` is not asked for.
LARGE = 64 << 20


def fingerprint(model: str, *, whole: bool) -> str | None:
    """Sixteen hex digits of a model's files; None where this machine has none yet.

    `whole`: every byte, for drafts. Else the names, sizes and ends of large files, for targets, which are read by the
    engine anyway and would take minutes: a target trained further has other ends.
    """
    folder = find_folder(model)
    if folder is None:
        return None
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        inner = path.relative_to(folder)
        if not path.is_file() or _about(path) or any(part.startswith(".") for part in inner.parts):
            continue
        digest.update(f"{inner.as_posix()}\0{path.stat().st_size}\0".encode())
        _read(path, digest, whole)
    return digest.hexdigest()[:DIGITS]


def _about(path: Path) -> bool:
    """Whether a file is about the model: no engine reads it."""
    return path.suffix in NOT_THE_MODEL or (path.suffix in ("", ".txt") and path.stem.lower() in WORDS)


def _read(path: Path, digest: hashlib._Hash, whole: bool) -> None:
    size = path.stat().st_size
    with path.open("rb") as file:
        if not whole and size > LARGE:
            digest.update(file.read(CHUNK))
            file.seek(size - CHUNK)
        while chunk := file.read(CHUNK):
            digest.update(chunk)
