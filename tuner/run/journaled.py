"""What a study and a night have in common on disk: a header written once, a journal, and a lock for the one writer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tuner.errors import UserError
from tuner.run.journal import Event, Journal, WriterLock

Header = TypeVar("Header")


def read_header(path: Path, kind: str, schema: int, parse: Callable[[dict[str, Any]], Header]) -> Header:
    """The header at `path` of a `kind` of folder; UserError where it is missing, torn, or of a newer schema."""
    try:
        data = json.loads(path.read_bytes())
        if data["schema"] > schema:
            raise UserError(f"{path} was written by a newer tuner (schema {data['schema']}): upgrade this one")
        return parse(data)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{path.parent} holds no {kind} ({path.name} is missing): name the folder of one") from None
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror or error}): name a folder that you can read") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} does not describe a {kind} ({error!r}): restore it from a copy") from None


class JournaledFolder:
    """Closing lets go of the journal and of the lock, held or not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._journal = Journal(folder / "journal.jsonl")
        self._lock = WriterLock(folder / "lock")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._journal.close()
        self._lock.release()

    def events(self) -> list[Event]:
        return self._journal.events()
