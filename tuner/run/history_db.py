"""The index over all studies as a database: SQLite in a file, or PostgreSQL by URL, with one and the same SQL.

It holds nothing that the journals do not: it can be deleted and made again (`tuner history --rebuild`). Folders of
reports that share a PostgreSQL database have a schema of it each, named after an id that the folder keeps.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tuner.errors import UserError

FILE = "history.sqlite"
#: The URL of a PostgreSQL database; in the environment, since it may hold a password.
URL_VARIABLE = "TUNER_HISTORY_URL"
#: The id of a folder of reports. In the folder, since paths change, and two machines may have the same one.
ID_FILE = "history.id"
BUSY_S = 30.0

#: One tuple of statements a version; a released one is never changed. `{compact}`: a table that is its own index.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE runs (id TEXT PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, folder TEXT NOT NULL, "
        "created TEXT NOT NULL, status TEXT NOT NULL, state TEXT NOT NULL, baseline TEXT NOT NULL, "
        "headline TEXT NOT NULL, tags TEXT NOT NULL, plan TEXT NOT NULL, stamp TEXT NOT NULL)",
        "CREATE INDEX runs_by_name ON runs (name, created)",
        "CREATE TABLE studies (id BIGINT PRIMARY KEY, run TEXT NOT NULL, label TEXT NOT NULL, folder TEXT NOT NULL, "
        "engine TEXT NOT NULL, version TEXT NOT NULL, created TEXT NOT NULL, status TEXT NOT NULL, "
        "question TEXT NOT NULL, facts TEXT NOT NULL, stamp TEXT NOT NULL)",
        "CREATE INDEX studies_by_run ON studies (run)",
        "CREATE TABLE trials (id BIGINT PRIMARY KEY, study BIGINT NOT NULL, number BIGINT NOT NULL, "
        "label TEXT NOT NULL, method TEXT NOT NULL, n BIGINT NOT NULL, draft TEXT NOT NULL, role TEXT NOT NULL, "
        "status TEXT NOT NULL, ready_s DOUBLE PRECISION)",
        "CREATE INDEX trials_by_study ON trials (study)",
        "CREATE TABLE cells (id BIGINT PRIMARY KEY, trial BIGINT NOT NULL, concurrency BIGINT, "
        "rate DOUBLE PRECISION, temperature DOUBLE PRECISION NOT NULL, requests BIGINT NOT NULL, "
        "failed BIGINT NOT NULL, blocked TEXT NOT NULL, seconds DOUBLE PRECISION NOT NULL, "
        "tpot_p50_s DOUBLE PRECISION, ttft_p50_s DOUBLE PRECISION, throughput_tok_s DOUBLE PRECISION, "
        "goodput DOUBLE PRECISION, tau DOUBLE PRECISION)",
        "CREATE INDEX cells_by_trial ON cells (trial)",
        "CREATE TABLE requests (cell BIGINT NOT NULL, i BIGINT NOT NULL, prompt TEXT NOT NULL, "
        "tpot_s DOUBLE PRECISION, ttft_s DOUBLE PRECISION, ended_s DOUBLE PRECISION NOT NULL, n_out BIGINT NOT NULL, "
        "accepted BIGINT, steps BIGINT, good BIGINT, PRIMARY KEY (cell, i)){compact}",
    ),
    (  # Requests that failed are kept too, without figures; everything is read from the journals again.
        "DROP TABLE requests",
        "CREATE TABLE requests (cell BIGINT NOT NULL, i BIGINT NOT NULL, prompt TEXT NOT NULL, "
        "tpot_s DOUBLE PRECISION, ttft_s DOUBLE PRECISION, ended_s DOUBLE PRECISION, n_out BIGINT, "
        "accepted BIGINT, steps BIGINT, good BIGINT, PRIMARY KEY (cell, i)){compact}",
        "DELETE FROM cells",
        "DELETE FROM trials",
        "DELETE FROM studies",
        "DELETE FROM runs",
    ),
)
TABLES = ("runs", "studies", "trials", "cells", "requests")


class Database:
    """An open index. Statements use `?`; every change is made inside `changing`. `driver`: the module, as PEP 249 has
    it. UserError where the database is locked, damaged or gone."""

    def __init__(self, connection: Any, driver: Any) -> None:
        self._connection, self._driver, self._postgres = connection, driver, driver is not sqlite3

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._cursor() as cursor:
            cursor.execute(self._own(sql), tuple(values))
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    def insert(self, table: str, rows: Iterable[Sequence[Any]]) -> None:
        """Whole rows, in the order of the table's columns."""
        listed = [tuple(row) for row in rows]
        if listed:
            places = ", ".join("?" * len(listed[0]))
            with self._cursor() as cursor:
                cursor.executemany(self._own(f"INSERT INTO {table} VALUES ({places})"), listed)

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """All of it or nothing; one writer at a time."""
        self.rows("BEGIN" if self._postgres else "BEGIN IMMEDIATE")
        if self._postgres:
            self.rows("LOCK TABLE schema_version IN EXCLUSIVE MODE")
        try:
            yield
        except BaseException:
            self.rows("ROLLBACK")
            raise
        self.rows("COMMIT")

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _cursor(self) -> Iterator[Any]:
        try:
            with contextlib.closing(self._connection.cursor()) as cursor:
                yield cursor
        except (self._driver.IntegrityError, self._driver.ProgrammingError):
            raise  # a bug of ours
        except self._driver.Error as error:
            raise UserError(
                f"the index over studies cannot be used ({error}): try again, or make it anew with `tuner history "
                "--rebuild`"
            ) from None

    def _own(self, sql: str) -> str:
        if not self._postgres:
            return sql.replace("{compact}", " WITHOUT ROWID")
        return sql.replace("{compact}", "").replace("%", "%%").replace("?", "%s")


def open_database(reports: Path) -> Database:
    """The index of a reports folder, brought to the newest version."""
    url = os.environ.get(URL_VARIABLE)
    database = _postgres(url, _id_of(reports)) if url else _sqlite(reports)
    try:
        _migrate(database)
    except BaseException:
        database.close()
        raise
    return database


def _sqlite(reports: Path) -> Database:
    try:
        reports.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(reports / FILE, timeout=BUSY_S, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        return Database(connection, sqlite3)
    except (OSError, sqlite3.Error) as error:
        todo = (
            "delete it, it is made again from the studies" if (reports / FILE).exists() else "make the folder writable"
        )
        raise UserError(f"cannot open {reports / FILE} ({error}): {todo}") from None


def _postgres(url: str, folder: str) -> Database:
    try:
        import psycopg
    except ImportError:
        raise UserError(f"{URL_VARIABLE} needs psycopg: pip install 'eagle3-tuner[postgres]', or unset it") from None
    try:
        connection = psycopg.connect(url, autocommit=True)
        try:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS tuner_{folder}")
            connection.execute(f"SET search_path TO tuner_{folder}")
        except BaseException:
            connection.close()
            raise
        return Database(connection, psycopg)
    except psycopg.Error as error:
        told = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"cannot open the database of {URL_VARIABLE} ({told}): correct it, or unset it") from None


def _id_of(reports: Path) -> str:
    """Twelve hex digits, made at the folder's first use and kept in it."""
    path = reports / ID_FILE
    try:
        reports.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError), path.open("x", encoding="utf-8") as file:
            file.write(f"{secrets.token_hex(6)}\n")
        told = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UserError(
            f"cannot keep the folder's id for {URL_VARIABLE} in {path} ({error.strerror}): make the folder writable"
        ) from None
    if not re.fullmatch("[0-9a-f]{12}", told):
        raise UserError(f"{path} holds no id: delete it, and `tuner history --rebuild` makes the index anew")
    return told


def _migrate(database: Database) -> None:
    database.rows("CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL)")
    if _version(database) == len(MIGRATIONS):
        return
    with database.changing():
        version = _version(database)
        if version > len(MIGRATIONS):
            raise UserError(f"the index over studies was written by a newer tuner (schema {version}): upgrade this one")
        for statements in MIGRATIONS[version:]:
            for statement in statements:
                database.rows(statement)
        database.rows("DELETE FROM schema_version")
        database.insert("schema_version", [(len(MIGRATIONS),)])


def _version(database: Database) -> int:
    return int(database.rows("SELECT COALESCE(MAX(version), 0) FROM schema_version")[0][0])


def dump(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    """Everything in it, in an order of its own: two indexes of the same studies are equal."""
    return {table: sorted(database.rows(f"SELECT * FROM {table}"), key=repr) for table in TABLES}
