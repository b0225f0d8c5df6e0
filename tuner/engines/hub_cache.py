"""Where Hugging Face's library keeps what it downloaded; read here, never written."""

from __future__ import annotations

import os
from pathlib import Path

MAIN = "main"


def hub_folder() -> Path:
    """The cache in use, by the library's own order of variables; it need not exist."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if chosen := os.environ.get(name):
            return Path(chosen).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface" / "hub"


def snapshot(hub_id: str, revision: str | None = None) -> Path | None:
    """The downloaded files of `owner/name`; None when this machine does not have them."""
    repository = hub_folder() / f"models--{hub_id.replace('/', '--')}"
    snapshots = repository / "snapshots"
    wanted = revision or MAIN
    try:
        wanted = (repository / "refs" / wanted).read_text(encoding="utf-8").strip()
    except OSError:
        if revision is None:
            return _only(snapshots)
    folder = snapshots / wanted
    return folder if os.path.isdir(folder) else None


def _only(snapshots: Path) -> Path | None:
    """Without a note which is newest, the one snapshot there is; of several none is guessed."""
    found = [path for path in snapshots.glob("*") if path.is_dir()] if os.path.isdir(snapshots) else []
    return found[0] if len(found) == 1 else None
