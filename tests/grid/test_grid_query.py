"""Lines of a grid from a database: SQLite, and a real PostgreSQL."""

from __future__ import annotations

import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy
from grids import grid_of, problems_of
from postgresql import PASSWORD, Server, postgresql

from headrace.errors import StorageError, UsageError
from headrace.grid.load_grid import Grid
from needs import require

ROWS = [("us-west-1", "s3://sf/1", "2026-11-01", 0.5), ("eu-central-1", "s3://stuttgart/1", "2026-11-02", 0.25)]
TABLE = "create table campaigns (region text, place text, day date, lr numeric(4, 2))"
QUERY = """{query: 'select region, place as "inputs.train.path", lr as "hyperparameters.lr" from campaigns \
where day >= :since order by day', database: 'URL', parameters: {since: DAY}}"""


def grid_query(folder: Path, url: str, day: str = "2026-11-01", **changes: str) -> Grid:
    text = QUERY.replace("URL", url).replace("DAY", f"'{day}'")
    for old, new in changes.items():
        text = text.replace(old, new)
    return grid_of(folder, text)


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "campaigns.db")
    connection.execute(TABLE)
    connection.executemany("insert into campaigns values (?, ?, ?, ?)", ROWS)
    connection.commit()
    yield connection
    connection.close()


def assert_lines(grid: Grid, number: int) -> None:
    assert len(grid.lines) == number
    last = grid.lines[-1]
    fields = {"region": "eu-central-1", "inputs.train.path": "s3://stuttgart/1", "hyperparameters.lr": 0.25}
    assert dict(last.fields) == fields
    assert last.place == f"row {number} of the query"


def test_rows_of_a_query_are_lines_and_parameters_are_bound(tmp_path: Path, sqlite: sqlite3.Connection) -> None:
    assert_lines(grid_query(tmp_path, "sqlite:///campaigns.db"), 2)
    assert_lines(grid_query(tmp_path, "sqlite:///campaigns.db", "2026-11-02"), 1)
    assert "query: has no rows" in problems_of(
        tmp_path, QUERY.replace("URL", "sqlite:///campaigns.db").replace("DAY", "\"x' or 'a' < 'b\"")
    )[0]  # fmt: skip


@pytest.mark.promise("grid-reference", "a query can write nothing")
def test_a_query_can_write_nothing(tmp_path: Path, sqlite: sqlite3.Connection) -> None:
    before = sorted(tmp_path.iterdir())
    for query in (
        "delete from campaigns returning region",
        "attach database ''new.db'' as new",
        "attach database ''campaigns.db'' as other",
        "vacuum into ''new.db''",
        "create temp table t as select region from campaigns",
        "pragma user_version = 7",
    ):
        with pytest.raises(UsageError, match=r"refused by sqlite:///campaigns\.db: it may only read"):
            grid_of(tmp_path, f"{{query: '{query}', database: 'sqlite:///campaigns.db'}}")
    assert {path.name for path in tmp_path.iterdir()} == {"array.yaml", "job.yaml", "code", *(p.name for p in before)}
    assert not Path("new.db").exists()
    assert sqlite.execute("select count(*) from campaigns").fetchone() == (2,)


@pytest.mark.promise("grid", "whatever is wrong in a grid's lines is told at once, line by line")
def test_wrong_rows_are_all_named(tmp_path: Path, sqlite: sqlite3.Connection) -> None:
    sqlite.execute("insert into campaigns values (null, 's3://x', '2026-11-03', 1), ('here', x'00', '2026-11-04', 2)")
    sqlite.commit()
    text = QUERY.replace("URL", "sqlite:///campaigns.db").replace("DAY", "'2026-11-01'")
    assert problems_of(tmp_path, text) == [
        "row 3 of the query: region: must be a region",
        "row 4 of the query: region: must be a region (got 'here')",
        "row 4 of the query: inputs.train.path: must be a finite number, text, true, false, a date, a list or a "
        "mapping (got b'\\x00')",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{query: select 1, database: 'sqlite:///no.db'}", "no.db does not exist"),
        ("{query: select 1, database: 'sqlite://'}", "must be an SQLite file"),
        ("{query: select 1, database: campaigns}", "is no URL"),
        ("{query: select 1, database: 'sqlite:///${NO_SUCH_THING}'}", "the environment has no NO_SUCH_THING"),
        ("{query: select 1, database: 'nosuch://x/y'}", "nosuch"),
        ("{query: selec, database: 'sqlite:///campaigns.db'}", "syntax error"),
        ("{query: select 1, database: 'postgresql+psycopg://x/y'}", "the driver psycopg is not used here"),
        ("{query: select 1, database: 'mysql+pymysql://x/y'}", "the driver pymysql is not used here"),
    ],
)
def test_a_database_or_query_that_cannot_be_read_is_refused(
    tmp_path: Path, sqlite: sqlite3.Connection, text: str, said: str
) -> None:
    with pytest.raises((UsageError, StorageError), match=said) as raised:
        grid_of(tmp_path, text)
    assert raised.type is UsageError or sys.version_info < (3, 11), "the query is wrong, and not the database"
    assert not (tmp_path / "no.db").exists()


def test_a_query_of_sqlite_takes_no_longer_than_it_may(tmp_path: Path, sqlite: sqlite3.Connection) -> None:
    endless = "with recursive n(i) as (select 1 union all select i + 1 from n) select count(i) from n"
    before = time.monotonic()
    with pytest.raises(StorageError, match=r"interrupted: it took longer than 0\.3 s"):
        grid_of(tmp_path, f"{{query: '{endless}', database: 'sqlite:///campaigns.db', timeout: 0.3}}")
    assert time.monotonic() - before < 20


def test_a_query_whose_parameters_do_not_fit_is_refused(tmp_path: Path, sqlite: sqlite3.Connection) -> None:
    text = "{query: 'select :a', database: 'sqlite:///campaigns.db', parameters: {b: 1}}"
    assert problems_of(tmp_path, text) == ["array.yaml: parameters: the query lacks a and has no :b"]


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    require("postgresql")
    monkeypatch.setenv("CAMPAIGNS_PASSWORD", PASSWORD)
    with postgresql(tmp_path_factory.mktemp("postgresql")) as started:
        with _engine(started).begin() as connection:
            connection.exec_driver_sql(TABLE)
            connection.exec_driver_sql("insert into campaigns values (%s, %s, %s, %s), (%s, %s, %s, %s)", sum(ROWS, ()))
        yield started


@pytest.mark.promise("grid-reference", "a query can write nothing")
def test_postgresql_in_one_transaction_that_reads_and_when_it_goes_away_in_the_middle(
    tmp_path: Path, server: Server
) -> None:
    assert_lines(grid_query(tmp_path, server.url), 2)
    with pytest.raises(UsageError, match="read-only transaction"):
        grid_of(tmp_path, f"{{query: 'delete from campaigns returning region', database: '{server.url}'}}")
    for several in ("commit; delete from campaigns", "select region from campaigns; commit; delete from campaigns"):
        with pytest.raises(UsageError, match="multiple commands"):
            grid_of(tmp_path, f"{{query: '{several}', database: '{server.url}'}}")
    for condition, parameters in (("", "{}"), ("where day >= :since", "{since: '2026-11-01'}")):
        query = f"select region, 7 % 4 as lr from campaigns {condition}"
        columns = "columns: {lr: hyperparameters.odd}"
        odd = grid_of(tmp_path, f'{{query: "{query}", database: "{server.url}", parameters: {parameters}, {columns}}}')
        assert [line.fields["hyperparameters.odd"] for line in odd.lines] == [3, 3]
    with pytest.raises(UsageError, match="statement timeout"):
        grid_of(tmp_path, f"{{query: select pg_sleep(60), database: '{server.url}', timeout: 0.5}}")
    slow = f"{{query: 'select region, pg_sleep(60) from campaigns', database: '{server.url}'}}"
    errors: list[Exception] = []

    def read() -> None:
        try:
            grid_of(tmp_path, slow)
        except StorageError as error:
            errors.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    while not _sleeps(server):
        assert reader.is_alive()
        time.sleep(0.05)
    server.kill()
    reader.join(30)
    assert not reader.is_alive()
    assert PASSWORD not in str(errors[0])
    assert f"postgresql://campaigns:***@127.0.0.1:{server.port}/postgres" in str(errors[0])
    with pytest.raises(StorageError):  # nobody answers now
        grid_query(tmp_path, server.url)


def _engine(server: Server) -> sqlalchemy.Engine:
    url = sqlalchemy.URL.create("postgresql+pg8000", "campaigns", PASSWORD, "127.0.0.1", server.port, "postgres")
    return sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)


def _sleeps(server: Server) -> bool:
    with _engine(server).connect() as connection:
        asked = "select count(*) from pg_stat_activity where wait_event = 'PgSleep'"
        return connection.exec_driver_sql(asked).scalar() == 1
