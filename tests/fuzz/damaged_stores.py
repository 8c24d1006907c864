"""Damage the rows, the tables and the bytes of stores, and then use them.

    python tests/fuzz/damaged_stores.py [SEED [ROUNDS]]

Each round damages a copy of a SQLite store in one to four random ways, in half of the rounds while
it is in use. As many rounds write hostile values into the rows of a store on PostgreSQL. Then
trials run with it, the loaders read it, and the command line shows it. The script fails if a value
differs from that without a store, if a trial raises, if opening or loading raises anything but a
ValueError about the store, if a warning does not name the store, or if a round takes too long.
"""

from __future__ import annotations

from contextlib import closing
from contextlib import redirect_stderr
from contextlib import redirect_stdout
from functools import cache
import io
from pathlib import Path
import random
import shutil
import sqlite3
import sys
import tempfile
import time
import warnings

import numpy as np
import optuna
from sqlalchemy import Engine
from sqlalchemy import inspect
from sqlalchemy.exc import DBAPIError

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import treecv_objective
from optuna_treecv.history import load_evaluations
from optuna_treecv.history import load_fold_scores
from optuna_treecv.reporting.cli import main as command

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from postgres_server import postgres_binaries  # noqa: E402
from postgres_server import PostgresServer  # noqa: E402

GRID = {"alpha": [0.0, 1e-3, 1e-1], "step_size": [0.01, 0.1]}
#: Seconds that the trials and loaders of a round may take: several waits for a lock.
LIMIT = 60

VALUES = [
    None,
    -1,
    0,
    5,
    2**40,
    2**62,
    -(2**63),
    0.5,
    float("inf"),
    -1e308,
    "",
    "x",
    "{",
    "[1, 2]",
    '{"a": NaN}',
    "[" * 5000,
    "1970-01-01",
    "99999-01-01 00:00:00",
    "\0",
    "\ud7ff" * 50,
    b"",
    b"\xff" * 32,
    bytes(2000),
]

# For each type of a column on PostgreSQL: what it takes, but we do not write.
LITERALS = {
    "JSON": [
        "'[]'",
        "'null'",
        '\'{"a": "\\ud800"}\'',
        "(repeat('[', 3000) || repeat(']', 3000))::json",
        "('{\"a\": ' || repeat('1', 6000) || '}')::json",
    ],
    "VARCHAR": ["''", "'-'", "repeat('x', 8)"],
    "DOUBLE PRECISION": ["'nan'", "'inf'", "'-inf'", "-1", "1e308", "5e-324"],
    "INTEGER": ["-2147483648", "-1", "0", "2147483647"],
    "BIGINT": ["-9223372036854775808", "-1", "0", "4611686018427387904", "9223372036854775806"],
    "TIMESTAMP": ["'infinity'", "'-infinity'", "'4000-01-01 BC'", "'99999-01-01'"],
    "BYTEA": ["''", "'\\x00'", "decode(repeat('ff', 2000), 'hex')"],
}


def make_objective(cv: int | str, store: str | None):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1200, 5))
    y = X[:, 0] > rng.normal(size=1200)
    return treecv_objective(
        AveragedSGDClassifier(), X, y, param_grid=GRID, cv=cv, batch_size=3, store=store
    )


@cache
def expected(cv: int | str, alpha: float, step_size: float) -> float:
    return make_objective(cv, None).evaluate({"alpha": alpha, "step_size": step_size}).mean


def run_trials(objective, cv: int | str, n_trials: int) -> None:
    """Run trials, and compare their values."""
    study = optuna.create_study(sampler=objective.grid_sampler(seed=0))
    study.optimize(objective, n_trials=n_trials)
    for trial in study.trials:
        assert trial.value == expected(cv, **trial.params), f"trial {trial.number}: a wrong value"


def damage_rows(connection: sqlite3.Connection) -> str:
    tables = [name for (name,) in connection.execute(_TABLES)]
    table = random.choice(tables)
    columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
    column, value = random.choice(columns), random.choice(VALUES)
    rows = random.choice(["1", "rowid % 3 = 0", "rowid = (SELECT max(rowid) FROM {})"])
    if random.random() < 0.2:
        value, what = None, "CAST(x'ff41' AS TEXT)"
    else:
        what = "?"
    query = f'UPDATE OR IGNORE "{table}" SET "{column}" = {what} WHERE {rows.format(table)}'
    connection.execute(query, [value] if what == "?" else [])
    return f"{query.replace('?', repr(value)[:30])}"


def damage_schema(connection: sqlite3.Connection) -> str:
    table = random.choice([name for (name,) in connection.execute(_TABLES)])
    columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
    query = random.choice(
        [
            f'DROP TABLE "{table}"',
            f'DELETE FROM "{table}"',
            f'ALTER TABLE "{table}" RENAME TO "other_{table}"',
            f'ALTER TABLE "{table}" RENAME COLUMN "{random.choice(columns)}" TO "other"',
            # Without types and constraints, a table takes everything.
            f'ALTER TABLE "{table}" RENAME TO "old";CREATE TABLE "{table}" AS SELECT * FROM "old"',
        ]
    )
    connection.executescript(query)
    return query


def damage_bytes(path: Path) -> str:
    found = bytearray(path.read_bytes())
    if not found:
        return "nothing"
    kind = random.choice(["bits", "zeros", "end", "more", "header", "all", "gone"])
    if kind == "bits":
        for _ in range(random.choice([1, 10, 1000])):
            found[random.randrange(len(found))] ^= 1 << random.randrange(8)
    elif kind == "zeros":
        start = 4096 * random.randrange(1 + len(found) // 4096)
        found[start : start + 4096] = bytes(len(found[start : start + 4096]))
    elif kind == "end":
        del found[random.randrange(len(found)) :]
    elif kind == "more":
        found += random.randbytes(5000)
    elif kind == "header":
        found[:100] = random.randbytes(min(100, len(found)))
    elif kind == "all":
        found = bytearray(random.randbytes(3000))
    if kind == "gone":
        path.unlink()
    else:
        path.write_bytes(found)
    return f"{kind} of {path.name}"


_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'treecv%'"


def damage(path: Path, is_in_use: bool) -> str:
    """Damage a store in a random way, and return which."""
    kind = random.choice([damage_rows, damage_rows, damage_schema, damage_bytes])
    try:
        if kind is damage_bytes:
            files = sorted(path.parent.iterdir())
            if is_in_use:  # a process dies if the shared memory that it has mapped is cut off
                files = [file for file in files if not file.name.endswith("-shm")]
            return damage_bytes(random.choice(files))
        with closing(sqlite3.connect(path, timeout=1)) as connection:
            connection.execute("PRAGMA foreign_keys = OFF")
            done = kind(connection)
            connection.commit()
            return done
    except (sqlite3.Error, IndexError, UnicodeError) as error:
        return f"nothing ({error})"


def use(url: str) -> str:
    """Use a store in all ways, and return what was refused."""
    refused = []
    for cv in (5, "loo"):
        try:
            objective = make_objective(cv, url)
        except ValueError as error:
            assert str(error).startswith("store must"), error
            refused.append(str(error))
        else:
            run_trials(objective, cv, 4)
            objective.evaluator.database.close()
    for load in (load_evaluations, load_fold_scores):
        try:
            load(url)
        except ValueError as error:
            assert str(error).startswith("store must"), error
            refused.append(str(error))
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = command(["store", url])
    assert code in (0, 2), said.getvalue()
    return refused[0] if refused else "nothing"


def attack_server(seed: int, n_rounds: int, server: PostgresServer) -> None:
    """Run the rounds on PostgreSQL."""
    random.seed(seed)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for i in range(n_rounds):
        url = server.new_schema()
        objective = make_objective(5, url)
        run_trials(objective, 5, 3)
        done = [
            damage_server(objective.evaluator.database.engine) for _ in range(random.randint(1, 4))
        ]
        try:
            with warnings.catch_warnings(record=True):
                warnings.simplefilter("always")
                run_trials(objective, 5, 6)
                refused = use(url)
        except BaseException:
            print(f"round {i} of seed {seed}: {done}", file=sys.stderr, flush=True)
            raise
        objective.evaluator.database.close()
        print(f"{i}: {done}; refused: {refused[:150]}", flush=True)


def damage_server(engine: Engine) -> str:
    """Write a hostile value into some rows, and return which."""
    tables = [name for name in inspect(engine).get_table_names() if name.startswith("treecv")]
    table = random.choice(tables)
    column = random.choice(inspect(engine).get_columns(table))
    literal = random.choice(LITERALS[str(column["type"]).partition("(")[0]])
    some = f"(SELECT ctid FROM {table} ORDER BY random() LIMIT {random.choice([1, 1000])})"
    query = f'UPDATE {table} SET "{column["name"]}" = {literal} WHERE ctid IN {some}'
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql(query)
    except DBAPIError as error:
        return f"nothing ({str(error.orig).splitlines()[0]})"
    return query


def attack(seed: int, n_rounds: int, folder: Path) -> None:
    """Run the rounds on SQLite, in a folder that is to be empty."""
    random.seed(seed)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    template = folder / "template"
    template.mkdir()
    for cv in (5, "loo"):
        objective = make_objective(cv, f"sqlite:///{template / 'store.db'}")
        run_trials(objective, cv, 6)
        objective.evaluator.database.close()
    for i in range(n_rounds):
        path = folder / f"{i}" / "store.db"
        shutil.copytree(template, path.parent)
        url = f"sqlite:///{path}"
        open_objective = make_objective(5, url) if random.random() < 0.5 else None
        is_in_use = open_objective is not None
        done = [damage(path, is_in_use) for _ in range(random.randint(1, 4))]
        begin = time.monotonic()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                if open_objective is not None:
                    run_trials(open_objective, 5, 4)
                    open_objective.evaluator.database.close()
                refused = use(url)
            except BaseException:
                print(f"round {i} of seed {seed}: {done}", file=sys.stderr, flush=True)
                raise
        said = [str(one.message) for one in caught if one.category is RuntimeWarning]
        seconds = time.monotonic() - begin
        where = f"round {i} of seed {seed}: {done}, {said}"
        assert all(one.startswith("store ") and str(path) in one for one in said), where
        assert seconds < LIMIT, f"{where}: {seconds:.0f} seconds"
        print(f"{i}: {done}; {len(said)} warnings, refused: {refused[:150]}", flush=True)
        shutil.rmtree(path.parent)


def main(seed: int = 0, n_rounds: int = 100) -> None:
    with tempfile.TemporaryDirectory() as folder:
        attack(seed, n_rounds, Path(folder))
    binaries = postgres_binaries()
    if binaries is None:
        print("PostgreSQL is left out: there is no server here")
        return
    server = PostgresServer(binaries)
    try:
        server.start()
        attack_server(seed, n_rounds, server)
    finally:
        server.stop()
        server.remove()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
