"""Lines from a database: the rows of one query, in one transaction that can change no table, through SQLAlchemy."""

from __future__ import annotations

import io
import re
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import StorageError, UsageError
from headrace.grid.line import MAX_LINES, LineTable
from headrace.install_hint import install_hint

if TYPE_CHECKING:
    from sqlalchemy.engine import URL, Connection, Engine

GRACE_SECONDS = 10
"""How much longer than a query may take the database is waited for."""

SQLITE_STEPS = 10_000
"""Instructions of SQLite's machine between two looks at the clock: less than a millisecond."""

_READING = frozenset(
    (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE,
     sqlite3.SQLITE_TRANSACTION)
)  # fmt: skip
"""What a statement of SQLite may do."""

_SQLITE_ERROR = 1
"""Result code of SQLite for a statement that is wrong."""

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_DRIVERS = {"postgresql": "postgresql+pg8000"}
"""Drivers that the extra has, for databases that are named without one."""
_ONE_STATEMENT = ("pysqlite", "pg8000")
"""Drivers that send one statement only: a second one could end the transaction that only reads."""


@dataclass
class _Refused:
    """Why SQLite did not finish a statement.

    Attributes:
        actions: that it wanted and may not: a file that is opened for reading can still attach others, and make them.
        late: it took too long.
    """

    actions: list[int] = field(default_factory=list)
    late: bool = False


def read_rows(
    url: str,
    query: str,
    parameters: Mapping[str, object],
    table: LineTable,
    *,
    columns: Mapping[str, str],
    base: Path,
    variables: Mapping[str, str],
    timeout: float,
) -> None:
    """Reads the rows of a query into the table.

    Args:
        url: of the database, as SQLAlchemy has it; ``${NAME}`` stands for a variable of the environment.
        query: with ``:name`` for a parameter.
        parameters: bound by the database, never put into the text.
        table: what takes lines and problems.
        columns: field of a column that has another name.
        base: what the path of an SQLite file is relative to.
        variables: of the environment.
        timeout: seconds that the query may take.

    Raises:
        UsageError: no such database, driver or parameter, or a query that the database refuses.
        StorageError: the database does not answer, or went away.
    """
    try:
        import sqlalchemy
    except ImportError:
        raise UsageError("lines of a query need SQLAlchemy", hint=install_hint("grid")) from None
    found, shown = _url(url, base, variables)
    engine = _engine(found, timeout)
    # pg8000 takes a single % for the place of a parameter, and SQLAlchemy does not double it for this driver.
    statement = sqlalchemy.text(query.replace("%", "%%") if engine.dialect.driver == "pg8000" else query)
    wanted = set(statement.compile().params)
    if wanted != set(parameters):
        lacking, more = sorted(wanted - set(parameters)), sorted(set(parameters) - wanted)
        said = [f"lacks {', '.join(lacking)}"] if lacking else []
        said += [f"has no :{', :'.join(more)}"] if more else []
        table.refuse("parameters", f"the query {' and '.join(said)}", hint="each :name of the query needs a value")
        return
    refused = _Refused()
    try:
        with engine.connect() as connection, _read_only(connection, timeout, refused):
            rows = connection.execute(statement, dict(parameters))
            names = tuple(columns.get(name, name) for name in rows.keys())  # noqa: SIM118  # no mapping
            if table.columns(names) is None:
                return
            for number, row in enumerate(rows, start=1):
                if number > MAX_LINES:
                    table.refuse("query", f"must have at most {MAX_LINES} rows")
                    return
                table.add(dict(zip(names, row, strict=True)), f"row {number} of the query")
    except (OSError, sqlalchemy.exc.SQLAlchemyError) as error:
        if refused.actions:
            hint = "it selects rows; it attaches, sets and makes nothing"
            raise UsageError(f"the query is refused by {shown}: it may only read", hint) from None
        if refused.late:
            hint = f"{table.source}: lines.timeout gives it more seconds"
            raise StorageError(f"{shown}: the query was interrupted: it took longer than {timeout:g} s", hint) from None
        result = getattr(getattr(error, "orig", None), "sqlite_errorcode", None)  # Python 3.10 does not tell it
        connects = isinstance(error, (OSError, sqlalchemy.exc.OperationalError, sqlalchemy.exc.InterfaceError))
        if result == _SQLITE_ERROR or not connects:
            message = f"the query is refused by {shown}: {_words(error)}"
            raise UsageError(message, hint=f"{table.source}: lines.query") from None
        raise StorageError(f"{shown}: {_words(error)}", hint="is the database there, and may you read it?") from None
    finally:
        engine.dispose()
    if not table.lines and not table.problems:
        table.refuse("query", "has no rows")


def _url(written: str, base: Path, variables: Mapping[str, str]) -> tuple[URL, str]:
    """Returns what is opened, and how messages name it."""
    import sqlalchemy

    lacking = [name for name in _VARIABLE.findall(written) if name not in variables]
    if lacking:
        raise UsageError(f"database: the environment has no {', '.join(lacking)}", hint=f"export {lacking[0]}=...")

    def number(found: re.Match[str]) -> str:
        value = variables[found[1]]
        return value if value.isdecimal() else found[0]

    def filled(part: str | None) -> str | None:
        return part and _VARIABLE.sub(lambda found: variables[found[1]], part)

    try:
        # A port must be one already; a password may hold what divides a URL.
        url = sqlalchemy.make_url(_VARIABLE.sub(number, written))
    except sqlalchemy.exc.ArgumentError:
        raise UsageError("database: is no URL", hint="such as sqlite:///campaigns.db") from None
    url = url.set(
        username=filled(url.username),
        password=filled(str(url.password) if url.password is not None else None),
        host=filled(url.host),
        database=filled(url.database),
    )
    shown = url.render_as_string(hide_password=True)
    if url.get_backend_name() != "sqlite":
        return url.set(drivername=_DRIVERS.get(url.drivername, url.drivername)), shown
    if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        raise UsageError("database: must be an SQLite file", hint="such as sqlite:///campaigns.db")
    path = base / url.database
    if not path.is_file():
        raise UsageError(f"database: {path} does not exist")  # SQLite would make an empty one
    opened = url.set(database=f"{path.absolute().as_uri()}").update_query_dict({"mode": "ro", "uri": "true"})
    return opened, shown


def _engine(url: URL, timeout: float) -> Engine:
    import sqlalchemy

    try:
        driver = url.get_driver_name()
        if driver not in _ONE_STATEMENT:
            raise UsageError(f"database: the driver {driver} is not used here", hint="sqlite:/// and postgresql:// are")
        waits = {"timeout": timeout + GRACE_SECONDS}
        engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool, connect_args=waits)
    except (ImportError, sqlalchemy.exc.ArgumentError) as error:
        raise UsageError(f"database: {error}", hint="pip install the driver that the URL names") from None
    if driver == "pg8000":
        sqlalchemy.event.listen(engine, "do_execute", _prepared)
    return engine


def _prepared(cursor: Any, statement: str, parameters: Any, _: object) -> bool:
    """Has the server prepare a statement, which it does with one only; without parameters pg8000 would just send the
    text. A stream, which is there for COPY, makes it do so."""
    cursor.execute(statement, parameters, stream=io.BytesIO())
    return True


@contextmanager
def _read_only(connection: Connection, timeout: float, refused: _Refused) -> Iterator[None]:
    """One transaction, which sees one state of the data and in which the database refuses to write.

    Args:
        connection: to the database.
        timeout: seconds that a statement may take.
        refused: is told what SQLite has refused.
    """
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = {int(timeout * 1000)}")
    else:
        latest = time.monotonic() + timeout
        opened = connection.connection.driver_connection

        def is_late() -> bool:
            refused.late = time.monotonic() > latest
            return refused.late

        opened.set_progress_handler(is_late, SQLITE_STEPS)  # type: ignore[union-attr]

        def allow(action: int, *_: object) -> int:
            if action in _READING:
                return sqlite3.SQLITE_OK
            refused.actions.append(action)
            return sqlite3.SQLITE_DENY

        opened.set_authorizer(allow)  # type: ignore[union-attr]
    try:
        yield
    finally:
        if not connection.invalidated:
            connection.rollback()


def _words(error: Exception) -> str:
    """Returns what the database said, in one line; the query is the user's own and is left out."""
    original = getattr(error, "orig", None) or error
    given = original.args[0] if original.args else original
    text = given.get("M", given) if isinstance(given, dict) else given  # PostgreSQL's fields of an error
    return " ".join(str(text).split())
