"""Children of an installation: their output is kept, and no way of ending the tuner leaves one to collide with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tuner.engines.child import error_line, last_line, run_logged
from tuner.engines.home import locked

# Runs a child that starts a child of its own, both asleep, and writes their ids; holds a lock as `add` does.
PARENT = """
import sys
from pathlib import Path
from tuner.engines.child import run_logged, termination_unwinds
from tuner.engines.home import locked
folder = Path(sys.argv[1])
script = "sleep 300 & echo $! > ids; echo $$ >> ids; mv ids ids.done; sleep 300"
with termination_unwinds(), locked(folder / "lock", lambda: None) as lock:
    run_logged(["sh", "-c", f"cd {folder}; {script}"], folder / "log", inherit=(lock,))
"""


def start_parent(folder: Path) -> tuple[subprocess.Popen[bytes], list[int]]:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(folder)], stderr=subprocess.DEVNULL)
    wait_until((folder / "ids.done").is_file)
    return parent, [int(line) for line in (folder / "ids.done").read_text().split()]


def wait_until(condition: object, patience_s: float = 30.0) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it never became so"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    """False for a process that is gone or only waits to be reaped by a parent that is no longer ours."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_whole_group(tmp_path: Path, number: int) -> None:
    parent, ids = start_parent(tmp_path)
    assert all(alive(pid) for pid in ids)
    parent.send_signal(number)
    assert parent.wait(30) != 0
    wait_until(lambda: not any(alive(pid) for pid in ids), 10)


def test_a_killed_tuners_installer_keeps_the_lock_until_it_ends(tmp_path: Path) -> None:
    parent, ids = start_parent(tmp_path)
    parent.kill()
    parent.wait()
    waited = []

    def end_the_orphans() -> None:
        waited.append(True)
        os.killpg(ids[1], signal.SIGKILL)

    with locked(tmp_path / "lock", end_the_orphans):
        assert waited == [True]


def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.engines.child.HEARTBEAT_S", 0.2)
    monkeypatch.setattr("tuner.engines.child.TERMINATION_S", 0.5)

    def give_up() -> None:
        if (tmp_path / "id").is_file():
            raise KeyboardInterrupt

    script = (
        f"trap '' TERM; echo $$ > {tmp_path}/id.new; mv {tmp_path}/id.new {tmp_path}/id; while true; do sleep 1; done"
    )
    with pytest.raises(KeyboardInterrupt):
        run_logged(["sh", "-c", script], tmp_path / "log", waiting=give_up)
    assert not alive(int((tmp_path / "id").read_text()))


def test_the_log_keeps_commands_and_both_streams(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert run_logged(["sh", "-c", "echo out; echo err >&2; exit 7"], log) == 7
    assert run_logged(["sh", "-c", "echo $SECRETS"], log, extra_env={"SECRETS": "kept apart"}) == 0
    text = log.read_text()
    assert text.count("\n$ sh -c") == 2
    assert "out\nerr\n" in text
    assert last_line(log) == "kept apart"


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (
            "Collecting a\nERROR: first\nERROR: No matching distribution found for a\n[notice] new pip",
            "ERROR: No matching",
        ),
        ("Traceback (most recent call last):\n  File x\nImportError: libgomp is missing\n\n", "ImportError: libgomp"),
        ("", "no output"),
        (
            "WARNING: Retrying after connection broken by 'NameResolutionError(x)'\nERROR: No matching distribution",
            "ERROR: No matching distribution ('NameResolutionError(x)')",
        ),
    ],
)
def test_the_error_line_is_the_cause_of_the_last_command(tmp_path: Path, said: str, line: str) -> None:
    log = tmp_path / "log"
    log.write_text(f"\n$ pip install x\nERROR: of a command before\n\n$ pip install a\n{said}\n")
    assert error_line(log).startswith(line)


def test_the_last_line_is_no_warning(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("\n$ pip install a\nCollecting a\nWARNING: index is slow\n")
    assert last_line(log) == "Collecting a"
    log.write_text("\n$ pip install a\n")
    assert last_line(log) == "still working"
