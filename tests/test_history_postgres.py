"""The same index in a real PostgreSQL server, made from wheels for this test. Opt-in: `-m postgres`."""

from __future__ import annotations

from pathlib import Path

import pytest
from study_fixture import study_trials
from test_history import FIRST, SECOND, write_study

from tuner.errors import UserError
from tuner.run.history import compare_asked, runs_of
from tuner.run.history_db import FILE, URL_VARIABLE, dump, open_database
from tuner.run.history_index import rebuild, refresh

pytestmark = pytest.mark.postgres


def test_one_sql_for_both_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pgserver = pytest.importorskip("pgserver")
    pytest.importorskip("psycopg")
    reports = tmp_path / "reports"
    for name in (FIRST, SECOND):
        write_study(reports, name).close()
    rebuild(reports)
    with open_database(reports) as database:
        in_sqlite = dump(database)
    (reports / FILE).unlink()
    server = pgserver.get_server(tmp_path / "pg")
    try:
        monkeypatch.setenv(URL_VARIABLE, server.get_uri())
        runs, unreadable = runs_of(reports)
        assert [(run.id, run.cells, run.failed) for run in runs] == [(SECOND, 27, 1), (FIRST, 27, 1)]
        assert unreadable == []
        with open_database(reports) as database:
            assert dump(database) == in_sqlite
            assert refresh(database, reports).studies == 0
        told = compare_asked(reports, FIRST, SECOND, ["tau drop > 5 %"])
        assert told.gates[0].state == "passed"
        assert rebuild(reports).studies == 2
        assert not (reports / FILE).exists()
        assert sum(len(trial.cells) for trial in study_trials()) == 27
    finally:
        server.cleanup()


def test_folders_of_reports_that_share_a_server_leave_each_others_runs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two folders, a study of the same name in each and one of its own in the second."""
    pgserver = pytest.importorskip("pgserver")
    pytest.importorskip("psycopg")
    one, two = tmp_path / "one", tmp_path / "two"
    for reports, name in ((one, FIRST), (two, FIRST), (two, SECOND)):
        write_study(reports, name).close()
    server = pgserver.get_server(tmp_path / "pg")
    try:
        monkeypatch.setenv(URL_VARIABLE, server.get_uri())
        listed = {reports: [run.id for run in runs_of(reports)[0]] for reports in (one, two)}
        assert listed == {one: [FIRST], two: [SECOND, FIRST]}
        assert rebuild(two).studies == 2
        with open_database(one) as database:
            assert database.rows("SELECT id FROM runs") == [(FIRST,)]
            told = refresh(database, one)
        assert (told.studies, told.forgotten) == (0, 0)
        moved = one.rename(tmp_path / "elsewhere")
        with open_database(moved) as database:
            assert refresh(database, moved).studies == 0
    finally:
        server.cleanup()


def test_a_server_that_is_not_there_is_one_sentence_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("psycopg")
    monkeypatch.setenv(URL_VARIABLE, "postgresql://tuner:not-for-eyes@127.0.0.1:9/none?connect_timeout=2")
    with pytest.raises(UserError, match=URL_VARIABLE) as told:
        runs_of(tmp_path)
    assert "not-for-eyes" not in str(told.value)
