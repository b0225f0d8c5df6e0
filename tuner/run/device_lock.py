"""Machine-wide locks on what an engine computes with: no two measurements share a GPU, nor the CPUs of one machine."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from tuner.engines.base import LaunchOptions
from tuner.engines.environments import Environment
from tuner.errors import UserError
from tuner.run.guarded import KEPT_LOCKS
from tuner.run.host import HostFacts
from tuner.run.journal import try_lock

CPU = "cpu"
#: Where no driver tells how many there are, as without nvidia-smi: one that may be any of them holds so many.
MOST_GPUS = 64
#: What narrows the GPUs that an engine sees. The last renumbers them beneath the others.
VISIBLE, BENEATH = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"), "ROCR_VISIBLE_DEVICES"
Engines = Iterable[tuple[Environment, LaunchOptions]]
#: Ending an engine whose tuner was killed takes its guard no longer.
PATIENCE_S = 40.0
FOLDER_VARIABLE = "TUNER_LOCKS"


def locks_folder() -> Path:
    """$TUNER_LOCKS, else one in the machine's folder for temporary files, which every user may write."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    return Path(chosen) if chosen else Path(tempfile.gettempdir()) / "tuner-locks"


def devices_of(engines: Engines, gpus: int) -> tuple[str, ...]:
    """What these engines will compute with; those that already serve, with what is not ours to hold. `gpus`: how many
    this machine has, 0 where that is not known; what each engine may see of them narrows it."""
    found: set[str] = set()
    for environment, options in engines:
        if environment.url is None:
            found |= {CPU} if environment.device == "cpu" else set(_gpus(gpus, dict(options.env)))
    return tuple(sorted(found))


def chosen_gpus(options: LaunchOptions) -> str | None:
    """The variable of engine_options.env that chooses GPUs, if one does."""
    return next((name for name, _ in options.env if name in (*VISIBLE, BENEATH)), None)


def _gpus(count: int, env: Mapping[str, str]) -> list[str]:
    """By index. One named by its UUID, or by numbers that something renumbers, may be any of them."""
    seen = {name: env.get(name, os.environ.get(name, "")) for name in (*VISIBLE, BENEATH)}
    lists = {seen[name] for name in VISIBLE if seen[name].strip()}
    visible = [name.strip() for one in lists for name in one.split(",") if name.strip()]
    if len(lists) == 1 and not seen[BENEATH] and all(name.isdigit() for name in visible):
        return [f"gpu-{int(name)}" for name in visible]
    return [f"gpu-{i}" for i in range(count or MOST_GPUS)]


def holding_engines(engines: Engines, who: str) -> AbstractContextManager[None]:
    """`holding` what these engines will compute with on this machine."""
    return holding(devices_of(engines, len(HostFacts.read().gpus)), who)


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
    return "this machine's CPU" if device == CPU else f"GPU {device.removeprefix('gpu-')}"
