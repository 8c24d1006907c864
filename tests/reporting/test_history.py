"""Evaluations and fold scores: recording, reading as frames and by SQL, and deletion."""

from __future__ import annotations

from datetime import datetime
from datetime import timedelta
from datetime import timezone
from datetime import UTC
import json
from pathlib import Path
import re
import sys
import warnings
import zlib

import numpy as np
import optuna
import pandas as pd
import pytest
from sqlalchemy import create_engine
from sqlalchemy import event
from sqlalchemy import func
from sqlalchemy import select
from sqlalchemy import text
from sqlalchemy import update

from optuna_treecv.history import forget
from optuna_treecv.history import iter_fold_scores
from optuna_treecv.history import load_evaluations
from optuna_treecv.history import load_fold_scores
from optuna_treecv.storage.database import Database
from optuna_treecv.storage.evaluations import MAX_SCORE_ROWS
from optuna_treecv.storage.evaluations import record
from optuna_treecv.storage.tables import EVALUATIONS
from optuna_treecv.storage.tables import FOLD_SCORE_BLOCKS
from optuna_treecv.storage.tables import FOLD_SCORES

SQL_PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "sql.rst"


@pytest.fixture
def database(store_url):
    return Database(store_url)


@pytest.fixture
def recorded(database, make_evaluation):
    """Return a function that records an evaluation and returns its run."""

    def do(scores=(0.25,) * 10, **fields) -> str:
        evaluation = make_evaluation(**fields)
        assert record(database, evaluation, np.asarray(scores, float))
        return evaluation["run"]

    return do


def rows_in(database: Database) -> dict[str, int]:
    with database.reading() as session:
        return {
            table.name.removeprefix("treecv_"): session.scalar(
                select(func.count()).select_from(table)
            )
            for table in (EVALUATIONS, FOLD_SCORES, FOLD_SCORE_BLOCKS)
        }


# Recording and reading.


def test_what_is_recorded_comes_back(database, recorded, make_evaluation):
    moment = datetime(2026, 11, 21, 12, 30, 15, 123456, tzinfo=UTC)
    fields = {
        "key": "ab" * 32,
        "fingerprint": "cd" * 32,
        "study_name": "lämbda",
        "trial_number": 3,
        "n_rows": 2**40,
        "random_state": str(2**64 - 1),
        "mean": 0.1 + 0.2,
        "std": 5e-324,
        "diverged_folds": 1,
        "n_updates": 2**53 + 1,
        "n_updates_saved": 2**62,
        "created_at": moment,
        "versions": {"optuna_treecv": "0.1.0"},
    }
    run = recorded(**fields)
    frame = load_evaluations(database)
    (row,) = frame.to_dict("records")
    for name, value in (fields | {"run": run, "params_alpha": 0.1, "order": "fixed"}).items():
        assert row[name] == value, name
    names = [column.name for column in EVALUATIONS.columns]
    names.remove("parameters")
    assert list(frame.columns) == [*names, "params_alpha"]
    assert isinstance(frame["created_at"].dtype, pd.DatetimeTZDtype)


def test_numbers_of_numpy_are_numbers_in_sql(database, recorded):
    recorded(
        n_folds=np.int64(10),
        n_rows=np.int64(100),
        folds_scored=np.int32(10),
        n_updates=np.uint64(12),
        mean=np.float64(0.5),
        std=np.float32(0.25),
        seconds=np.float64(0.1),
    )
    with database.reading() as session:
        numbers = "n_folds + n_rows + folds_scored + n_updates, mean + std"
        query = text(f"SELECT {numbers} FROM treecv_evaluations")
        assert session.execute(query).one() == (132, 0.75)


def test_infinite_means(database, recorded):
    for trial_number, mean in enumerate([np.inf, -np.inf, None, np.nan, 0.5]):
        recorded(mean=mean, std=None, trial_number=trial_number)
    frame = load_evaluations(database)
    np.testing.assert_array_equal(frame["mean"], [np.inf, -np.inf, np.nan, np.nan, 0.5])
    assert frame["std"].isna().all() and frame["std"].dtype == float
    with database.reading() as session:
        query = select(EVALUATIONS.c.trial_number).where(EVALUATIONS.c.mean > 1e308)
        assert session.scalars(query).all() == [0]


def test_any_parameters(database, recorded):
    parameters = {
        "alpha": np.float32(0.5),
        "n": np.int64(3),
        "flag": np.bool_(True),
        "nothing": None,
        "kind": "l1",
        "large": float("inf"),
        "small": -np.inf,
        "missing": float("nan"),
        "pair": (1, np.inf),
        "array": np.arange(2.0),
        "nested": {"a": np.nan, 2: "b"},
        "thing": int,
        "unicode": "λ \" ' \\ {x} %s :y",
        "huge": 2**70,
    }
    recorded(parameters=parameters)
    recorded(parameters={})
    recorded(parameters={"alpha": 1e-7})
    frame = load_evaluations(database)
    plain = {
        "alpha": 0.5,
        "n": 3,
        "flag": True,
        "kind": "l1",
        "large": "inf",
        "small": "-inf",
        "missing": "nan",
        "pair": [1, "inf"],
        "array": [0.0, 1.0],
        "nested": {"a": "nan", "2": "b"},
        "thing": "<class 'int'>",
        "unicode": parameters["unicode"],
        "huge": 2**70,
    }
    first = frame.iloc[0]
    for name, value in plain.items():
        assert first[f"params_{name}"] == value, name
    assert pd.isna(first["params_nothing"])
    np.testing.assert_array_equal(frame["params_alpha"], [0.5, np.nan, 1e-7])
    with database.reading() as session:
        stored = session.scalars(text("SELECT CAST(parameters AS TEXT) FROM treecv_evaluations"))
        for document in stored:
            json.loads(document, parse_constant=pytest.fail)


@pytest.mark.parametrize("n_scores", [MAX_SCORE_ROWS, MAX_SCORE_ROWS + 1])
def test_fold_scores_come_back_bit_by_bit(database, recorded, n_scores):
    scores = np.random.default_rng(0).standard_normal(n_scores)
    scores[:4] = [np.inf, -np.inf, 5e-324, 1e308]
    run = recorded(scores, n_folds=n_scores, trial_number=4, study_name="s")
    assert rows_in(database) == {
        "evaluations": 1,
        "fold_scores": n_scores if n_scores <= 1000 else 0,
        "fold_score_blocks": int(n_scores > 1000),
    }
    frame = load_fold_scores(database)
    assert list(frame.columns) == ["run", "study_name", "trial_number", "repeat", "fold", "score"]
    np.testing.assert_array_equal(frame["score"], scores)
    np.testing.assert_array_equal(frame["fold"], range(n_scores))
    assert set(frame["run"]) == {run}
    assert set(frame["study_name"]) == {"s"}
    assert set(frame["trial_number"]) == {4}


@pytest.mark.parametrize("n_folds", [10, 700])
def test_folds_of_repeats_and_of_pruned_trials(database, recorded, n_folds):
    scores = np.arange(2.0 * n_folds)
    recorded(scores, n_folds=n_folds, n_repeats=2)
    pruned = scores.copy()
    pruned[3:] = np.nan
    recorded(pruned, n_folds=n_folds, n_repeats=2, state="pruned", folds_scored=3)
    recorded([], n_folds=n_folds, n_repeats=2, state="pruned", folds_scored=0, mean=None)
    frame = load_fold_scores(database)
    whole, part = frame[: 2 * n_folds], frame[2 * n_folds :]
    np.testing.assert_array_equal(whole["repeat"], np.repeat([0, 1], n_folds))
    np.testing.assert_array_equal(whole["fold"], np.tile(np.arange(n_folds), 2))
    np.testing.assert_array_equal(whole["score"], scores)
    np.testing.assert_array_equal(part["score"], [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(part["fold"], [0, 1, 2])


def test_leave_one_out_of_half_a_million_rows(tmp_path, make_evaluation):
    path = tmp_path / "store.db"
    database = Database(f"sqlite:///{path}")
    scores = np.random.default_rng(0).random(581_012)
    assert record(database, make_evaluation(n_folds=581_012), scores)
    database.engine.dispose()
    assert path.stat().st_size < 6e6
    frame = load_fold_scores(f"sqlite:///{path}")
    np.testing.assert_array_equal(frame["score"], scores)
    assert frame.memory_usage(deep=True).sum() < 50 * 581_012


@pytest.mark.parametrize("n_scores", [0, 10, 2000])
def test_recording_is_one_commit(database, make_evaluation, n_scores):
    commits = []
    event.listen(database.engine, "commit", commits.append)
    assert record(database, make_evaluation(n_folds=n_scores or 1), np.zeros(n_scores))
    assert len(commits) == 1
    load_evaluations(database)
    load_fold_scores(database)
    assert len(commits) == 1


def test_the_oldest_first(database, recorded):
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    for hours in (3, 1, 2):
        moment = (begin + timedelta(hours=hours)).astimezone(timezone(timedelta(hours=-5 * hours)))
        recorded(trial_number=hours, created_at=moment)
    assert load_evaluations(database)["trial_number"].tolist() == [1, 2, 3]
    assert load_fold_scores(database)["trial_number"].tolist() == [1] * 10 + [2] * 10 + [3] * 10


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
@pytest.mark.slow
def test_more_evaluations_than_one_statement_names(database, recorded):
    runs = [recorded([i], trial_number=i, n_folds=1) for i in range(520)]
    assert load_fold_scores(database)["score"].tolist() == list(range(520))
    assert forget(database, keep_runs=runs[5:10]) == 515
    assert load_evaluations(database)["run"].tolist() == runs[5:10]


def test_only_some_runs(database, recorded):
    evaluations, scores = load_evaluations(database), load_fold_scores(database)
    assert len(evaluations) == len(scores) == 0
    assert {"run", "mean", "n_updates_saved"} <= set(evaluations.columns)
    assert list(scores.columns) == ["run", "study_name", "trial_number", "repeat", "fold", "score"]
    runs = [recorded([i], n_folds=1) for i in range(4)]
    assert load_fold_scores(database, runs=runs[1:3])["score"].tolist() == [1.0, 2.0]
    assert len(load_fold_scores(database, runs=[])) == 0


# Studies.


def test_evaluations_have_the_numbers_and_the_name_of_the_given_study(database, recorded):
    study = optuna.create_study(study_name="new")
    runs = [recorded([i] * 10, study_name="old", trial_number=i) for i in range(3)]
    recorded(study_name="new", trial_number=7)  # of another study of the name
    for run in (*reversed(runs), runs[0], "gone", [runs[0]]):
        study.add_trial(optuna.trial.create_trial(value=1.0, user_attrs={"treecv": {"run": run}}))
    study.add_trial(optuna.trial.create_trial(value=1.0))  # from another objective
    evaluations = load_evaluations(database, study=study)
    assert evaluations["run"].tolist() == runs
    assert evaluations["trial_number"].tolist() == [2, 1, 0]
    scores = load_fold_scores(database, study=study)
    assert scores["trial_number"].tolist() == [2] * 10 + [1] * 10 + [0] * 10
    assert scores["score"].tolist() == [0.0] * 10 + [1.0] * 10 + [2.0] * 10
    assert set(evaluations["study_name"]) == set(scores["study_name"]) == {"new"}
    assert len(load_evaluations(database, study_name="old")) == 3


def test_a_study_and_a_name_are_one_too_many(database):
    study = optuna.create_study()
    for load in (load_evaluations, load_fold_scores):
        with pytest.raises(ValueError, match="study_name must be None if study is given, got 'x"):
            load(database, study=study, study_name="x")


# Deletion.


def test_forget(database, recorded):
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    for study_name in ("a", "b"):
        for i in range(4):
            n_scores = 10 if i % 2 else 2000
            moment = begin + timedelta(days=i)
            recorded(np.zeros(n_scores), study_name=study_name, trial_number=i, created_at=moment)
    assert forget(database, study_name="nothing") == 0
    assert forget(database, study_name="a", before=begin + timedelta(days=2)) == 2
    assert load_evaluations(database, study_name="a")["trial_number"].tolist() == [2, 3]
    assert forget(database, study_name="a") == 2
    assert rows_in(database) == {"evaluations": 4, "fold_scores": 20, "fold_score_blocks": 2}
    kept = load_evaluations(database)["run"].tolist()[1:3]
    assert forget(database, keep_runs={*kept, "unknown"}) == 2
    assert load_evaluations(database)["run"].tolist() == kept
    assert forget(database, before=datetime.now()) == 2
    assert rows_in(database) == {"evaluations": 0, "fold_scores": 0, "fold_score_blocks": 0}


def test_forget_without_foreign_keys(tmp_path, make_evaluation):
    engine = create_engine(f"sqlite:///{tmp_path / 'store.db'}")
    database = Database(engine)
    record(database, make_evaluation(), np.zeros(10))
    record(database, make_evaluation(), np.zeros(2000))
    assert forget(engine, keep_runs=[]) == 2
    assert rows_in(database) == {"evaluations": 0, "fold_scores": 0, "fold_score_blocks": 0}


def test_forget_is_told_what(database, recorded):
    run = recorded()
    with pytest.raises(ValueError, match="forget needs at least one of keep_runs"):
        forget(database)
    with pytest.raises(ValueError, match="keep_runs must be a collection of run names"):
        forget(database, keep_runs=run)
    with pytest.raises(ValueError, match="before must be a datetime.datetime, got '2026'"):
        forget(database, before="2026")
    with pytest.raises(ValueError, match="runs must be a collection of run names"):
        load_fold_scores(database, runs=run)
    assert rows_in(database)["evaluations"] == 1


# Failures.


def test_loading_does_not_make_a_store(tmp_path):
    path = tmp_path / "typo.db"
    for call in (load_evaluations, load_fold_scores, lambda s: forget(s, keep_runs=[])):
        with pytest.raises(ValueError, match="store must be .*typo.db: there is no such file"):
            call(f"sqlite:///{path}")
    assert not path.exists()


def test_without_pandas(store_url, make_evaluation, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    database = Database(store_url)
    assert record(database, make_evaluation(), np.zeros(10))
    for load in (load_evaluations, load_fold_scores):
        with pytest.raises(ImportError, match=rf"{load.__name__} .*'optuna-treecv\[pandas\]'"):
            load(database)
    assert forget(database, keep_runs=[]) == 1


def test_what_a_store_refuses_is_no_outage(database, make_evaluation):
    evaluation = make_evaluation()
    assert record(database, evaluation, np.zeros(10))
    with pytest.warns(RuntimeWarning, match="trials continue without records of evaluations"):
        assert not record(database, evaluation, np.ones(10))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert record(database, make_evaluation(), np.zeros(10))
    assert rows_in(database) == {"evaluations": 2, "fold_scores": 20, "fold_score_blocks": 0}


def test_nothing_is_half_written(database, make_evaluation):
    """If the database refuses the scores, the evaluation is not recorded either."""
    with database.writing() as session:
        session.execute(text("DROP TABLE treecv_fold_scores"))
    with pytest.warns(RuntimeWarning, match="treecv_fold_scores"):
        assert not record(database, make_evaluation(), np.zeros(10))
    with database.reading() as session:
        assert session.scalar(select(func.count()).select_from(EVALUATIONS)) == 0


def test_damaged_scores_are_left_out(database, recorded):
    scores = np.arange(2000.0)
    runs = [recorded(scores, n_folds=2000) for _ in range(5)]
    packed = zlib.compress(scores.tobytes())
    flipped = bytearray(packed)
    flipped[len(packed) // 2] ^= 1
    bomb = zlib.compress(bytes(10**7))
    with database.writing() as session:
        for run, damaged in zip(runs, [packed[:-3], bytes(flipped), bomb, b""], strict=False):
            row = update(FOLD_SCORE_BLOCKS).where(FOLD_SCORE_BLOCKS.c.run == run)
            session.execute(row.values(scores=damaged))
    with pytest.warns(RuntimeWarning, match="treecv_fold_score_blocks are omitted") as w:
        frame = load_fold_scores(database)
    assert len(w) == 1
    assert [run for run in runs if run in str(w[0].message)] == runs[:4]
    assert frame["score"].tolist() == scores.tolist()
    assert set(frame["run"]) == {runs[4]}
    assert len(load_evaluations(database)) == 5


def good_and_bad(url, make_evaluation, column, value, n_folds=10):
    """Record two evaluations, set a column of the second by SQL, and return their runs."""
    good, bad = make_evaluation(n_folds=n_folds), make_evaluation(n_folds=n_folds)
    for row in (good, bad):
        assert record(Database(url), row, np.arange(float(n_folds)))
    table, column = column.rsplit(".", 1) if "." in column else ("treecv_evaluations", column)
    with Database(url).writing() as session:
        query = f"UPDATE {table} SET {column} = {value} WHERE run = '{bad['run']}'"
        session.exec_driver_sql(query)
    return good["run"], bad["run"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("parameters", "'{'"),
        ("parameters", "'[1]'"),
        ("parameters", f"'{'[' * 10_000}'"),
        ("versions", "'no'"),
        ("created_at", "'x'"),
        ("created_at", "'99999-01-01 00:00:00'"),
        ("n_folds", "'a'"),
        ("n_folds", "0"),
        ("n_folds", f"{2**31}"),
        ("n_repeats", f"{2**30}"),
        ("n_rows", "0.5"),
        ("trial_number", f"{2**40}"),
        ("mean", "'low'"),
        ("learner", "x'ff'"),
        ("learner", "CAST(x'ff' AS TEXT)"),
    ],
)
def test_an_impossible_value_of_an_evaluation(tmp_path, make_evaluation, column, value):
    url = f"sqlite:///{tmp_path / 'store.db'}"
    good, bad = good_and_bad(url, make_evaluation, column, value)
    wrong = f"({column}|n_folds .* n_repeats) must be"
    message = f"treecv_evaluations are omitted: run '{bad}' .{wrong}"
    for load in (load_evaluations, load_fold_scores):
        with pytest.warns(RuntimeWarning, match=message) as w:
            assert set(load(url)["run"]) == {good}
        assert len(w) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("parameters", "(repeat('[', 3000) || repeat(']', 3000))::json"),
        ("versions", """('{"a": ' || repeat('1', 6000) || '}')::json"""),
        ("n_repeats", "2147483647"),
        *(("created_at", f"'{time}'") for time in ("infinity", "20000-01-01", "0044-03-15 BC")),
    ],
)
def test_what_postgresql_takes_and_python_does_not_is_omitted(
    postgres_url, make_evaluation, column, value
):
    good, _ = good_and_bad(postgres_url, make_evaluation, column, value)
    for load in (load_evaluations, load_fold_scores):
        with pytest.warns(RuntimeWarning, match="treecv_evaluations are omitted"):
            assert set(load(postgres_url)["run"]) == {good}


@pytest.mark.slow
def test_scores_take_the_room_that_they_need(postgres_url, make_evaluation):
    """However many folds an evaluation says that it had."""
    for _ in range(40):
        assert record(Database(postgres_url), make_evaluation(n_folds=2**31 - 1), np.arange(3.0))
    assert load_fold_scores(postgres_url)["score"].tolist() == 40 * [0.0, 1.0, 2.0]


def test_a_damaged_name_is_forgotten_with_the_others(tmp_path, make_evaluation):
    url = f"sqlite:///{tmp_path / 'store.db'}"
    rows = [make_evaluation() for _ in range(3)]
    for row in rows:
        assert record(Database(url), row, np.zeros(10))
    with Database(url).writing() as session:
        session.execute(text("DELETE FROM treecv_fold_scores"))
        query = text("UPDATE treecv_evaluations SET run = x'ff' WHERE run = :run")
        session.execute(query, {"run": rows[0]["run"]})
    assert forget(url, keep_runs=[rows[1]["run"]]) == 2
    assert load_evaluations(url)["run"].tolist() == [rows[1]["run"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "value"), [("score", b"x"), ("fold", "x"), ("fold", 10), ("fold", -1)]
)
def test_an_impossible_fold_score_is_left_out(tmp_path, make_evaluation, column, value):
    url = f"sqlite:///{tmp_path / 'store.db'}"
    row = make_evaluation()
    assert record(Database(url), row, np.arange(10.0))
    with Database(url).writing() as session:
        query = f"UPDATE treecv_fold_scores SET {column} = :value WHERE fold = 3"
        session.execute(text(query), {"value": value})
    message = f"treecv_fold_scores are omitted: run '{row['run']}' .(fold|score) "
    with pytest.warns(RuntimeWarning, match=message) as w:
        frame = load_fold_scores(url)
    assert len(w) == 1
    assert frame["score"].tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("n_scores", [-1, 0, 1999, 2**62, 2**63 - 1, "'x'"])
def test_an_impossible_number_of_scores(tmp_path, make_evaluation, n_scores):
    url = f"sqlite:///{tmp_path / 'store.db'}"
    column = "treecv_fold_score_blocks.n_scores"
    _, bad = good_and_bad(url, make_evaluation, column, n_scores, n_folds=2000)
    message = f"treecv_fold_score_blocks are omitted: run '{bad}'"
    with pytest.warns(RuntimeWarning, match=message) as w:
        assert load_fold_scores(url)["score"].tolist() == list(range(2000))
    assert len([x for x in w if x.category is RuntimeWarning]) == 1


def test_a_file_that_is_damaged_is_named(tmp_path, make_evaluation):
    path = tmp_path / "store.db"
    database = Database(f"sqlite:///{path}")
    assert record(database, make_evaluation(), np.zeros(10))
    database.close()
    path.write_bytes(path.read_bytes()[:4096] + bytes(path.stat().st_size - 4096))
    with pytest.raises(ValueError, match="store must be a database that can be .*malformed"):
        load_evaluations(f"sqlite:///{path}")


# SQL.


def test_queries_of_the_docs(database, recorded):
    for trial_number, alpha, mean in ((0, 1e-3, 0.5), (1, 1e-1, 0.25), (2, 10.0, np.inf)):
        recorded(
            [mean] * 10,
            study_name="lambda",
            trial_number=trial_number,
            parameters={"alpha": alpha},
            mean=mean,
            n_updates_saved=100 * trial_number,
        )
    recorded(study_name="lambda", trial_number=3, state="pruned", mean=0.0)
    recorded(study_name="other", trial_number=0)
    blocks = SQL_PAGE.read_text().split(".. code-block:: sql\n")[1:]
    queries = [re.match(r"(\n|   .*\n)+", block)[0] for block in blocks]
    assert len(queries) == 3
    with database.reading() as session:
        best, pairs, work = (session.execute(text(query)).all() for query in queries)
    assert best == [(1, 0.1, 0.25, None), (0, 0.001, 0.5, None), (2, 10.0, np.inf, None)]
    assert pairs == [(10, 0.25)]
    assert work == [("lambda", 4, 1360, 300, 3600), ("other", 1, 340, 0, 900)]


def test_all_columns_are_in_the_docs():
    page = SQL_PAGE.read_text()
    for table in (EVALUATIONS, FOLD_SCORES, FOLD_SCORE_BLOCKS):
        assert f"``{table.name}``" in page
        for column in table.columns:
            assert re.search(rf"``\"?{column.name}\"?``", page), column


def test_fold_scores_come_piece_by_piece(fill, monkeypatch):
    monkeypatch.setattr("optuna_treecv.reporting.history._MAX_SCORES_PER_QUERY", 1200)
    filled = fill()
    rng = np.random.default_rng(0)
    for n_folds in (5, 10, 1100, 100, 1500, 3):
        filled.add(rng.uniform(size=n_folds))
    whole = load_fold_scores(filled.store)
    pieces = list(iter_fold_scores(filled.store))
    assert 3 <= len(pieces) < 6
    assert all(len(piece) <= 1200 or piece["run"].nunique() == 1 for piece in pieces)
    joined = pd.concat(pieces, ignore_index=True)
    pd.testing.assert_frame_equal(joined, whole)
    assert whole.memory_usage(index=False).sum() <= 24 * len(whole) + 2000
    assert list(iter_fold_scores(filled.store, runs=[])) == []


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("scores", "n_bytes"),
    [
        (np.arange(2000) % 256, 1),
        (np.arange(2000) % 256 + 1, 8),
        *((np.where(np.arange(2000) == 7, x, 1.0), 8) for x in (np.nan, np.inf, -0.0, 0.5, -1.0)),
    ],
)
def test_whole_numbers_take_a_byte(database, recorded, scores, n_bytes):
    run = recorded(scores, n_folds=2000)
    with database.reading() as session:
        block = session.scalar(select(FOLD_SCORE_BLOCKS.c.scores))
    data = zlib.decompress(block)
    assert len(data) == n_bytes * 2000
    # As the documentation says.
    np.testing.assert_array_equal(
        np.frombuffer(data, "u1" if len(data) == 2000 else "<f8"), scores
    )
    found = load_fold_scores(database, runs=[run])
    expected = scores[~np.isnan(scores)]
    assert found["score"].to_numpy().tobytes() == expected.astype(float).tobytes()
