"""An append-only journal of JSON lines that no kill can spoil, and the lock that keeps it to one writer."""

from __future__ import annotations

import fcntl
import json
import os
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from tuner.errors import UserError
from tuner.run.files import json_line, writing

Event = dict[str, Any]
#: A listing holds the lock for an instant to see whether a writer does: try again before saying that one exists.
LOCK_TRIES, LOCK_PAUSE_S = 4, 0.05


class Journal:
    """Events of one study, in order. Every appended event is on the disk when `append` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def open_for_append(self) -> None:
        """Drop the torn line a kill may have left, and take new events from now on."""
        with writing(self.path):
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            whole = self.path.read_bytes().rfind(b"\n") + 1
            os.ftruncate(self._descriptor, whole)
            os.fsync(self._descriptor)

    def append(self, event: str, **fields: Any) -> None:
        if self._descriptor is None:
            raise RuntimeError(f"{self.path} was opened for reading")
        line = json_line({"at": now(), "event": event, **fields})
        before = os.fstat(self._descriptor).st_size
        try:
            while line:
                line = line[os.write(self._descriptor, line) :]
            os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, before)
            raise UserError(f"cannot write {self.path} ({error.strerror}): make room, then resume the study") from None

    def events(self) -> list[Event]:
        """All whole lines; a last line without its newline was never finished and does not count."""
        try:
            lines = self.path.read_bytes().split(b"\n")[:-1]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise UserError(f"cannot read {self.path} ({error.strerror}): name a folder that you can read") from None
        return [self._parse(number, line) for number, line in enumerate(lines, start=1)]

    def _parse(self, number: int, line: bytes) -> Event:
        try:
            event = json.loads(line)
            if isinstance(event, dict) and isinstance(event["event"], str):
                return event
        except (ValueError, KeyError):
            pass
        raise UserError(
            f"{self.path}, line {number} is not an event: the file was changed, restore it or drop the line"
        )

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class WriterLock:
    """Held by the one process that writes a study; the kernel lets go of it however that process ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def take(self) -> None:
        with writing(self.path):
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        for attempt in range(LOCK_TRIES):
            if try_lock(descriptor):
                self._descriptor = descriptor
                with writing(self.path):
                    os.ftruncate(descriptor, 0)
                    os.write(descriptor, str(os.getpid()).encode())
                return
            time.sleep(LOCK_PAUSE_S if attempt < LOCK_TRIES - 1 else 0)
        holder = os.pread(descriptor, 32, 0).decode() or "unknown"
        os.close(descriptor)
        raise UserError(
            f"{self.path.parent} is being written by process {holder}: wait until it ends, or end it, then resume"
        )

    def is_held(self) -> bool:
        """Whether any process holds it now, this one included."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return not try_lock(descriptor)
        finally:
            os.close(descriptor)

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def now() -> str:
    """The wall clock with its zone, to the millisecond."""
    return datetime.now().astimezone().isoformat(timespec="milliseconds")


def try_lock(descriptor: int) -> bool:
    """Take a file's lock without waiting; False where another process has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
