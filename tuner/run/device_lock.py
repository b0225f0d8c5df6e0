"""Machine-wide locks on what an engine computes with: no two measurements share a GPU, nor the CPUs of one machine."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from tuner.engines.environments import Environment
from tuner.errors import UserError
from tuner.run.guarded import KEPT_LOCKS
from tuner.run.host import HostFacts
from tuner.run.journal import try_lock

CPU = "cpu"
#: A GPU that no driver tells of: all of them are one.
ANY_GPU = "gpu"
#: Ending an engine whose tuner was killed takes its guard no longer.
PATIENCE_S = 40.0
FOLDER_VARIABLE = "TUNER_LOCKS"


def locks_folder() -> Path:
    """$TUNER_LOCKS, else one in the machine's folder for temporary files, which every user may write."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    return Path(chosen) if chosen else Path(tempfile.gettempdir()) / "tuner-locks"


def devices_of(environments: Sequence[Environment], gpus: int) -> tuple[str, ...]:
    """What these engines will compute with; those that already serve, with what is not ours to hold. `gpus`: how many
    this machine has; CUDA_VISIBLE_DEVICES narrows it."""
    found: set[str] = set()
    for environment in environments:
        if environment.url is not None:
            continue
        found |= {CPU} if environment.device == "cpu" else set(_gpus(gpus))
    return tuple(sorted(found))


def _gpus(count: int) -> list[str]:
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if visible and all(name.isdigit() for name in visible):
        return [f"gpu-{name}" for name in visible]
    return [f"gpu-{i}" for i in range(count)] or [ANY_GPU]  # one named by its UUID may be any of them


def holding_engines(environments: Sequence[Environment], who: str) -> AbstractContextManager[None]:
    """`holding` what these engines will compute with on this machine."""
    return holding(devices_of(environments, len(HostFacts.read().gpus)), who)


@contextlib.contextmanager
def holding(devices: Sequence[str], who: str) -> Iterator[None]:
    """Hold every device, or none: UserError names the one that is taken and by whom.

    The kernel lets go of a lock however its holder ends. The guards of engines keep it too: after a kill it is free
    once the last engine is gone, which `PATIENCE_S` waits for.
    """
    folder = locks_folder()
    _make(folder)
    held: list[int] = []
    try:
        for device in sorted(devices):
            held.append(_take(folder / f"{device}.lock", device, who))
        KEPT_LOCKS.update(held)
        yield
    finally:
        KEPT_LOCKS.difference_update(held)
        for descriptor in held:
            os.close(descriptor)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if folder.stat().st_uid == os.getuid():
            folder.chmod(stat.S_ISVTX | 0o777)
    except OSError as error:
        raise UserError(f"cannot make {folder} for locks ({error.strerror}): set {FOLDER_VARIABLE}") from None


def _take(path: Path, device: str, who: str) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        try:
            # In a sticky folder the kernel lets nobody open another's file with O_CREAT (fs.protected_regular).
            descriptor = os.open(path, flags)
        except FileNotFoundError:
            descriptor = os.open(path, flags | os.O_CREAT, 0o666)
    except OSError as error:
        raise UserError(f"cannot open {path} ({error.strerror}): remove it, or set {FOLDER_VARIABLE}") from None
    holder = os.pread(descriptor, 400, 0).decode(errors="replace")
    give_up_s = time.monotonic() + (0.0 if _runs(holder) else PATIENCE_S)
    while not try_lock(descriptor):
        if time.monotonic() >= give_up_s:
            os.close(descriptor)
            raise UserError(f"{_called(device)} is in use by {holder or 'another'}: wait until it ends, or end it")
        time.sleep(0.1)
    with contextlib.suppress(OSError):
        os.fchmod(descriptor, 0o666)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{who} (process {os.getpid()})".encode(), 0)
    return descriptor


def _runs(holder: str) -> bool:
    """Whether the process that wrote itself into the lock is there; else its engines are being ended."""
    number = holder.rpartition("(process ")[2].rstrip(")")
    return number.isdigit() and Path(f"/proc/{number}").exists()


def _called(device: str) -> str:
    if device == CPU:
        return "this machine's CPU"
    return "the GPU" if device == ANY_GPU else f"GPU {device.removeprefix('gpu-')}"
