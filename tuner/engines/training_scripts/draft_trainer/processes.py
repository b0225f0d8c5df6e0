"""Ranks of one stage: started, tied to their parent, ended together; lines that say how far it is."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Linux: the kernel ends this process when its parent is gone, however that ended."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        raise SystemExit(143)


@contextmanager
def other_ranks(stage: str, job: Path, ranks: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Ranks 1 and up as children; leaving on an error ends them, leaving well waits for them."""
    script = str(Path(__file__).parents[1] / "run.py")
    started: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(1, ranks):
            started.append(subprocess.Popen([sys.executable, "-I", script, stage, str(job), str(rank)]))
        yield started
        failed = [child.wait() for child in started]
        if any(failed):
            raise RuntimeError(f"a rank of {stage} ended with exit code {max(failed, key=abs)}")
    finally:
        for child in started:
            if child.poll() is None:
                child.terminate()
                child.wait()


def say(line: str) -> None:
    print(line, flush=True)


def minutes_left(seconds: float | None) -> str:
    return "" if seconds is None else f", {max(0.0, seconds) / 60:.1f} min left"
