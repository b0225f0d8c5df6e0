"""How fast the index over studies answers: 10,000 trials with 1,000,000 requests.

    python benchmarks/history.py [--nights 500] [--folder DIR [--keep-index]] [--json]

Writes that many nights of 20 launches with 100 requests each as studies on the disk (a folder of its own, deleted
afterwards unless --folder names one), has the index made from their journals, and times the commands in processes of
their own: `tuner history`, `tuner compare` of two nights without gates and with four, and `tuner report` of the last
night with its trend. Peak memory is the process's own, as the kernel counted it. Exit code 0: history within 1 s,
report within 30 s and 1 GiB, comparing within 5 s, and what it reads of the index within 0.2 s.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
SETTINGS, REQUESTS = 18, 100
#: Limits of what is shown: seconds and GiB. A comparison with its gates is a process of its own, which imports numpy
#: and resamples every cell; what the index takes of it is timed by itself.
HISTORY_S, REPORT_S, REPORT_GIB, COMPARE_S, INDEX_S = 1.0, 30.0, 1.0, 5.0, 0.2
GATES = ("tpot_p50 regress > 3 %", "tau drop > 5 %", "tpot_p50 > 35 ms", "verify failed")
WORKLOAD: dict[str, Any] = {
    "name": "chat-vllm", "model": "/models/target", "engine": "vllm",
    "drafts": [{"method": "eagle3", "model": "/models/head", "n": list(range(1, SETTINGS + 1))}],
    "traffic": {"concurrency": [8]},
}  # fmt: skip
SWEEP = {
    "name": "night", "studies": [{"workload": "chat.yaml"}], "baseline": "last-green",
    "gates": ["tpot_p50 regress > 3 %", "tau drop > 5 %"],
}  # fmt: skip
ENVIRONMENT = {
    "name": "vllm", "engine": "vllm", "version": "0.32.0", "python": "/envs/vllm/bin/python", "url": None,
    "device": "gpu", "corrections": [], "notes": [],
}  # fmt: skip


def write_nights(reports: Path, nights: int) -> None:
    """Nights of off, 18 settings and off again, in the store's own files. A launch has one of eight kinds of luck, and
    its records are written as they were the first time: making them anew would take most of an hour.
    """
    from tuner.measure.records import Cell, CellKey, ClientHealth, EngineFacts, Load, RequestRecord, SpecSteps
    from tuner.run.cell_files import write_cell
    from tuner.run.host import HostFacts
    from tuner.run.start import RESOLVED, Resolved
    from tuner.run.store import StudyStore
    from tuner.run.study_header import StudyHeader, workload_hash
    from tuner.run.sweep_store import ENDED, STUDY_ENDED, VERDICT, NightHeader, NightStore
    from tuner.spec.candidates import Arm
    from tuner.spec.speculation import OFF, SpecConfig
    from tuner.spec.workload import Workload

    workload = Workload.model_validate(WORKLOAD).model_dump(mode="json")
    resolved = Resolved("/models/target", (Arm("eagle3", "/models/head", ns=tuple(range(1, SETTINGS + 1))),), ())
    host = HostFacts.read()
    start = datetime(2024, 1, 1, 2, tzinfo=UTC)
    rng = np.random.default_rng(0)
    specs = [OFF, *(SpecConfig("eagle3", n=n, draft="/models/head") for n in range(1, SETTINGS + 1)), OFF]
    os.fsync = lambda _descriptor: None  # type: ignore[assignment]  # what is written here is thrown away

    def request(i: int, spec: SpecConfig, luck: float) -> RequestRecord:
        tpot_s = 0.01 * luck * (1 + 0.002 * (i % 17))
        chunks = tuple((0.1 + tpot_s * 8 * k, 1 + 8 * k) for k in range(5))
        steps = None if spec.is_off else SpecSteps((8,) + (1,) * spec.n, drafted=spec.n * (8 + spec.n))
        return RequestRecord(i, f"chat/{i:03d}", "chat", "measured", 0.0, 0.0, chunks[-1][0], chunks, 40, 33, "length",
                             spec=steps)  # fmt: skip

    written: dict[tuple[str, int], tuple[dict[str, Any], bytes]] = {}

    def records(spec: SpecConfig, luck: int) -> tuple[dict[str, Any], bytes]:
        """(the cell's line in the journal, its file), both as the store writes them."""
        if (spec.label, luck) not in written:
            requests = tuple(request(i, spec, float(np.exp(0.003 * (luck - 3.5)))) for i in range(REQUESTS))
            cell = Cell(CellKey(Load(8), 0.0), (0.0, 10.0), requests, ClientHealth(0.001, 0.001, 0.1))
            with tempfile.TemporaryDirectory() as folder:
                short = write_cell(Path(folder), cell, None)
                written[spec.label, luck] = short, next(Path(folder).iterdir()).read_bytes()
        return written[spec.label, luck]

    for number in range(nights):
        created = start + timedelta(days=number)
        name = f"{created:%Y%m%d-%H%M%S}-night"
        study = {"label": "chat-vllm", "folder": "01-chat-vllm", "engine": "vllm", "version": "0.32.0",
                 "models": [["/models/target", "t1"], ["/models/head", "d1"]]}  # fmt: skip
        header = NightHeader(name, created.isoformat(), "night", "plan", SWEEP, "", "sweep.yaml", (study,), host)
        with NightStore.create(reports, header) as night:
            at = StudyHeader(name, created.isoformat(), "chat-vllm", workload_hash(workload), workload, "", 0, host,
                             (ENVIRONMENT,))  # fmt: skip
            with StudyStore.create(night.study_folder(0), at) as store:
                store.note(RESOLVED, **resolved.to_dict())
                for place, spec in enumerate(specs, 1):
                    role = "explore" if not spec.is_off else "baseline" if place == 1 else "baseline-again"
                    store.trial_started(place, spec, "vllm", role, "", (), ())
                    store.trial_ready(place, 30.0, EngineFacts(version="0.32.0"))
                    short, lines = records(spec, int(rng.integers(8)))
                    (store.trial_folder(place) / f"requests-{short['label']}.jsonl").write_bytes(lines)
                    store.note("cell_done", number=place, **short)
                    store.trial_ended(place, "ok")
                store.study_ended("complete")
            night.note(STUDY_ENDED, folder="01-chat-vllm", status="complete")
            night.note(VERDICT, state="green", baseline=None, headline="", gates=[])
            night.note(ENDED, status="complete")


#: Runs a command and tells its own wall seconds, CPU seconds and peak KiB, without what this process needs.
CHILD = """
import json, resource, subprocess, sys, time
began = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
wall, used = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([wall, used.ru_utime + used.ru_stime, used.ru_maxrss]))
sys.exit(done.returncode)
"""


def timed(argv: list[str], codes: tuple[int, ...] = (0,)) -> dict[str, float]:
    """Wall seconds, CPU seconds and peak GiB of one command, which may end with any of these exit codes."""
    done = subprocess.run([sys.executable, "-c", CHILD, *argv], capture_output=True, text=True, check=False)
    if done.returncode not in codes:
        raise RuntimeError(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr}")
    wall_s, cpu_s, peak_kib = json.loads(done.stdout)
    return {"wall_s": round(wall_s, 3), "cpu_s": round(cpu_s, 3), "peak_gib": round(peak_kib / 2**20, 3)}


def measure(reports: Path, again: bool) -> dict[str, Any]:
    from tuner.run.history_db import FILE, open_database
    from tuner.run.history_index import rebuild
    from tuner.run.history_query import figures, find_run, night_sample

    rebuild_s = None
    if again or not (reports / FILE).exists():
        started_s = time.perf_counter()
        rebuild(reports)
        rebuild_s = round(time.perf_counter() - started_s, 1)
    with open_database(reports) as database:
        counts = {t: database.rows(f"SELECT COUNT(*) FROM {t}")[0][0] for t in ("runs", "trials", "cells", "requests")}
        ids = [row[0] for row in database.rows("SELECT id FROM runs ORDER BY id DESC LIMIT 2")]
        started_s = time.perf_counter()
        for one in ids:
            run = find_run(database, one)
            night_sample(database, run)
            figures(database, run)
        index_s = round(time.perf_counter() - started_s, 3)
    tuner = [sys.executable, "-m", "tuner"]
    where = ["--reports", str(reports)]
    gates = [word for gate in GATES for word in ("--gate", gate)]
    return {
        "counts": counts,
        "index_mib": round((reports / FILE).stat().st_size / 2**20, 1),
        "rebuild_s": rebuild_s,
        "history": timed([*tuner, "history", *where]),
        "compare": timed([*tuner, "compare", ids[1], ids[0], *where]),
        "compare_with_gates": timed([*tuner, "compare", ids[1], ids[0], *where, *gates], codes=(0, 1)),
        "index_of_a_comparison_s": index_s,
        "report": timed([*tuner, "report", str(reports / ids[0])]),
        "python_start": timed([*tuner, "--help"]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nights", type=int, default=500)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--keep-index", action="store_true", help="of a --folder that was measured before")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="tuner-history-"))
    try:
        if not any(folder.glob("*/sweep.json")):
            write_nights(folder, args.nights)
        told = measure(folder, not args.keep_index)
    finally:
        if args.folder is None:
            shutil.rmtree(folder)
    ok = told["history"]["wall_s"] < HISTORY_S and told["report"]["wall_s"] < REPORT_S
    ok = ok and told["report"]["peak_gib"] < REPORT_GIB
    ok = ok and max(told["compare"]["wall_s"], told["compare_with_gates"]["wall_s"]) < COMPARE_S
    ok = ok and told["index_of_a_comparison_s"] < INDEX_S
    told["holds"] = ok
    if args.json:
        print(json.dumps(told, indent=2))
    else:
        for name, value in told.items():
            print(f"{name}: {value}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
