"""Trials with a store: what they write, what they find, and what happens when it fails."""

from __future__ import annotations

from contextlib import closing
import pickle
import sqlite3

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
import pytest
from sklearn.linear_model import SGDClassifier
from sklearn.tree import DecisionTreeClassifier
from sqlalchemy import create_engine
from sqlalchemy import delete
from sqlalchemy import event
from sqlalchemy import func
from sqlalchemy import select
from sqlalchemy import text

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import ModelCache
from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective
from optuna_treecv._kernels import FORMAT
import optuna_treecv.caching.keys
from optuna_treecv.history import load_evaluations
from optuna_treecv.history import load_fold_scores
from optuna_treecv.storage.database import Database
from optuna_treecv.storage.evaluations import MAX_SCORE_ROWS
from optuna_treecv.storage.model_store import ModelStore
from optuna_treecv.storage.model_store import NewModel
from optuna_treecv.storage.tables import METADATA
from optuna_treecv.storage.tables import MODELS

STEP = {"step_size": FloatDistribution(1e-3, 1.0, log=True)}
AT = {"step_size": 0.1}
# For what does not depend on the kind of the database.
on_sqlite = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
ALPHAS = [0.0, 1e-3, 1e-2, 0.1, 1.0]
ALPHAS_OF_GRID = np.geomspace(1e-3, 1.0, 16).tolist()


@pytest.fixture(autouse=True)
def all_is_worth_writing(monkeypatch):
    """Also store models whose training takes only microseconds."""
    for name in ("_SECONDS_PER_WRITE", "_SECONDS_PER_MODEL", "_SECONDS_PER_BYTE"):
        monkeypatch.setattr(f"optuna_treecv.caching.caches.{name}", 0.0)
    monkeypatch.setattr("optuna_treecv.storage.model_store.NEWS_SECONDS", 0.0)
    monkeypatch.setattr("optuna_treecv.storage.outages.RETRY_SECONDS", 0.0)


def make(n_rows=120, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, 5))
    return X, (X[:, 0] + rng.normal(size=n_rows) > 0).astype(int)


def objective_with(store, data=None, estimator=None, **options):
    X, y = make() if data is None else data
    estimator = AveragedSGDClassifier() if estimator is None else estimator
    options = {"param_distributions": STEP, "cv": 8} | options
    return treecv_objective(estimator, X, y, store=store, **options)


def expected(data=None, cv=8):
    return tree_cross_validate(AveragedSGDClassifier(**AT), *(data or make()), cv=cv)


def run(objective, n_trials=3, **options):
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1), **options)
    study.optimize(objective, n_trials=n_trials)
    return study


@pytest.mark.slow
@pytest.mark.parametrize(("cv", "n_rows"), [(5, 30), ("loo", MAX_SCORE_ROWS + 1)])
def test_every_fold_score_is_in_the_store(store_url, cv, n_rows, monkeypatch):
    if n_rows > MAX_SCORE_ROWS:  # many models would be written and looked up besides
        monkeypatch.setattr("optuna_treecv.caching.caches._SECONDS_PER_MODEL", 1e9)
        monkeypatch.setattr("optuna_treecv.storage.model_store.NEWS_SECONDS", 1e9)
    data = make(n_rows)
    objective = objective_with(store_url, data, cv=cv)
    study = run(objective)
    evaluations = load_evaluations(store_url, study=study)
    scores = load_fold_scores(store_url, study=study)
    assert list(evaluations.run) == [trial.user_attrs["treecv"]["run"] for trial in study.trials]
    for trial, row in zip(study.trials, evaluations.itertuples(), strict=True):
        result = tree_cross_validate(AveragedSGDClassifier(**trial.params), *data, cv=cv)
        found = scores[scores.trial_number == trial.number].sort_values("fold").score
        assert found.tolist() == result.test_score.tolist()
        assert (row.mean, row.std, row.n_folds) == (result.mean, result.std, result.n_folds)
        assert row.n_updates + row.n_updates_saved == result.n_updates
        assert row.params_step_size == trial.params["step_size"]
        assert (row.learner, row.cv, row.scoring) == ("AveragedSGDClassifier", str(cv), "error")
        assert (row.n_rows, row.n_features, row.state) == (n_rows, 5, "complete")
        assert len(row.fingerprint) == 32 and len(row.key) == 32
    assert evaluations.fingerprint.nunique() == 1 and evaluations.key.nunique() == 3


def test_a_pruned_trial_is_in_the_store(store_url):
    class Prune(optuna.pruners.BasePruner):
        def prune(self, study, trial):
            return trial.last_step == 3

    study = run(objective_with(store_url, report="mean"), n_trials=1, pruner=Prune())
    row = load_evaluations(store_url, study=study).iloc[0]
    assert (row.state, row.folds_scored) == ("pruned", 4)
    assert len(load_fold_scores(store_url, study=study)) == 4


@on_sqlite
@pytest.mark.slow
def test_the_record_survives_copies_new_names_and_deletion(store_url, tmp_path):
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    study = run(objective_with(store_url), storage=storage, study_name="one")
    before = load_evaluations(store_url, study=study)
    optuna.copy_study(
        from_study_name="one", from_storage=storage, to_storage=storage, to_study_name="two"
    )
    optuna.delete_study(study_name="one", storage=storage)
    copy = optuna.load_study(study_name="two", storage=storage)
    after = load_evaluations(store_url, study=copy)
    assert list(after.run) == list(before.run) and set(after.study_name) == {"two"}
    assert set(load_evaluations(store_url, study_name="one").run) == set(before.run)


@pytest.mark.slow
@pytest.mark.usefixtures("_real_queue")
@pytest.mark.parametrize(
    ("estimator", "options"),
    [
        (PegasosClassifier(), {"param_distributions": {"alpha": FloatDistribution(1e-3, 1.0)}}),
        (
            PegasosClassifier(),
            {
                "param_distributions": None,
                "param_grid": {"alpha": ALPHAS_OF_GRID},
                "batch_size": 8,
            },
        ),
        (
            DecisionTreeClassifier(random_state=0),
            {"param_distributions": {"min_samples_leaf": FloatDistribution(0.01, 0.4)}},
        ),
    ],
)
def test_a_worker_takes_two_connections_and_three_commits_per_trial(
    store_url, monkeypatch, estimator, options
):
    monkeypatch.setattr("optuna_treecv.caching.caches._SECONDS_PER_WRITE", 2.0)
    objective = objective_with(store_url, make(1000), estimator, cv=10, **options)
    objective.evaluator.database.close()  # it has made the tables
    connections, commits = [], []
    event.listen(
        objective.evaluator.database.engine, "connect", lambda *args: connections.append(args)
    )
    event.listen(objective.evaluator.database.engine, "commit", commits.append)
    is_grid = "param_grid" in options
    sampler = objective.grid_sampler() if is_grid else optuna.samplers.RandomSampler(seed=0)
    study = optuna.create_study(sampler=sampler)
    study.optimize(objective, n_trials=None if is_grid else 8)
    objective.evaluator.cross_validation.shared.cache._store.queue.wait()
    n_trials = len(study.trials)
    assert n_trials >= 8
    assert 1 <= len(connections) <= 2
    assert n_trials <= len(commits) <= 3 * n_trials  # the third one: outputs of the best trials


@on_sqlite
@pytest.mark.slow
@pytest.mark.parametrize("cv", [8, 1100])
def test_a_later_run_finds_the_models(store_url, cv):
    data = make(1200)
    first = objective_with(store_url, data, cv=cv).evaluate(AT)
    again = objective_with(store_url, data, cv=cv).evaluate(AT)
    assert first.n_updates > 0 == again.n_updates
    assert again.n_updates_saved == first.n_updates
    np.testing.assert_array_equal(again.test_score, first.test_score)
    other = objective_with(store_url, data, cv=cv, scoring="hinge").evaluate(AT)
    assert other.n_updates == 0


def n_models(store_url):
    with Database(store_url).reading() as session:
        return session.scalar(select(func.count(MODELS.c.id)))


@on_sqlite
@pytest.mark.slow
@pytest.mark.parametrize(
    ("space", "is_written"),
    [
        ({"param_distributions": STEP}, False),
        ({"param_distributions": {"step_size": FloatDistribution(0.1, 0.5, step=0.1)}}, True),
        ({"param_grid": {"step_size": [0.1, 0.2, 0.3]}}, True),
    ],
)
def test_only_what_may_come_again_is_written(store_url, tmp_path, space, is_written, monkeypatch):
    def objective_at(url):
        return treecv_objective(AveragedSGDClassifier(), *make(), store=url, cv=8, **space)

    alone = f"sqlite:///{tmp_path / 'alone.db'}"
    objective_at(alone).evaluate({"step_size": 0.4})
    # A trial takes less than the two seconds of training after which its models are written.
    monkeypatch.setattr("optuna_treecv.caching.caches._SECONDS_PER_WRITE", 2.0)
    objective = objective_at(store_url)
    run(objective)
    monkeypatch.setattr("optuna_treecv.caching.caches._SECONDS_PER_WRITE", 0.0)
    objective.evaluate({"step_size": 0.4})  # writes what waits, and its own models
    assert (n_models(store_url) >= 3 * n_models(alone)) == is_written
    assert n_models(alone) > 8


def test_a_long_trial_is_written_while_it_runs(store_url):
    run(objective_with(store_url), n_trials=1)
    assert n_models(store_url) > 8


@on_sqlite
def test_shared_models_have_room_for_what_was_asked(store_url):
    data = make(2000)
    for max_bytes in (100_000, 0):
        objective = objective_with(store_url, data, store_max_bytes=max_bytes, cv=16)
        for step in (0.1, 0.2, 0.3, 0.4, 0.5):
            objective.evaluate({"step_size": step})
        with Database(store_url).reading() as session:
            n_bytes = session.scalar(select(func.sum(MODELS.c.n_bytes)))
        assert 50_000 < n_bytes <= 100_000  # with no room at all, nothing is written or deleted


@pytest.mark.parametrize("room", [-1, 1.5, "256MB", None])
def test_room_in_the_store_must_be_a_number_of_bytes(tmp_path, room):
    with pytest.raises(ValueError, match="store_max_bytes must be a number of bytes"):
        objective_with(f"sqlite:///{tmp_path / 'store.db'}", store_max_bytes=room)
    assert not list(tmp_path.iterdir())


@on_sqlite
def test_models_of_another_length_are_not_taken(store_url):
    objective_with(store_url).evaluate(AT)
    store = ModelStore(Database(store_url))
    known = store.read_new()
    with store.database.writing() as session:
        session.execute(delete(MODELS))
    store.write([NewModel(one.key, np.zeros(64, np.uint8), 1.0) for one in known])
    result = objective_with(store_url).evaluate(AT)
    assert result.n_updates_saved == 0
    np.testing.assert_array_equal(result.test_score, expected().test_score)


@on_sqlite
def test_code_that_is_not_ours_is_not_stored(store_url):
    class Mine(AveragedSGDClassifier):
        pass

    for estimator in (Mine(), SGDClassifier(random_state=0, max_iter=1)):
        objective = objective_with(
            store_url,
            estimator=estimator,
            param_distributions={"alpha": FloatDistribution(1e-5, 1)},
        )
        assert objective.evaluate({"alpha": 0.1}).n_updates > 0
        assert objective.evaluate({"alpha": 0.1}).n_updates == 0
    with Database(store_url).reading() as session:
        assert session.scalar(select(func.count(MODELS.c.id))) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "purpose"), [("models", "shared models"), ("evaluations", "records of evaluations")]
)
def test_a_table_that_is_lost_stops_what_needs_it(store_url, table, purpose):
    objective = objective_with(store_url)
    run(objective, n_trials=1)
    with objective.evaluator.database.engine.begin() as connection:
        connection.execute(text("DROP TABLE treecv_fold_scores"))
        connection.execute(text("DROP TABLE treecv_fold_score_blocks"))
        connection.execute(text(f"DROP TABLE treecv_{table}"))
        for name in ("fold_scores", "fold_score_blocks") if table == "models" else ():
            METADATA.tables[f"treecv_{name}"].create(connection)
    with pytest.warns(RuntimeWarning, match=f"treecv_{table}.*continue without {purpose}.$") as w:
        study = run(objective, n_trials=3)
    assert len([one for one in w if "trials continue" in str(one.message)]) == 1
    is_recorded = ["run" in trial.user_attrs["treecv"] for trial in study.trials]
    assert is_recorded == [table == "models"] * 3
    found = ModelStore(Database(store_url)).read_new() if table == "evaluations" else []
    assert bool(found) == (table == "evaluations")


def test_an_error_whose_message_is_no_text(tmp_path):
    """SQLite's driver raises a UnicodeDecodeError for it."""
    path = tmp_path / "store.db"
    objective = objective_with(f"sqlite:///{path}")
    run(objective, n_trials=1)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        query = "UPDATE sqlite_master SET name = CAST(x'cf28' AS TEXT), sql = 'CREATE x'"
        connection.execute(f"{query} WHERE name = 'treecv_leases'")
        connection.commit()
    objective.evaluator.database.engine.dispose()
    with pytest.warns(RuntimeWarning, match="store sqlite.*decode.*trials continue without"):
        study = run(objective, n_trials=2)
    assert study.trials[0].value == objective_with(None).evaluate(study.trials[0].params).mean
    for use in (objective_with, load_evaluations):
        with pytest.raises(ValueError, match="store must be .*decode"):
            use(f"sqlite:///{path}")
    with pytest.raises(ValueError, match="store must be .*decode"):
        load_evaluations(objective.evaluator.database)


@pytest.mark.slow
def test_a_full_disk_is_a_warning(tmp_path):
    url = f"sqlite:///{tmp_path / 'small.db'}"
    Database(url)
    engine = create_engine(url)

    @event.listens_for(engine, "connect")
    def bound(connection, _):
        n_pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {n_pages + 2}")

    data = make(1200)
    objective = objective_with(engine, data, cv="loo")
    with pytest.warns(RuntimeWarning, match="full"):
        study = run(objective, n_trials=2)
    for trial in study.trials:
        result = tree_cross_validate(AveragedSGDClassifier(**trial.params), *data, cv="loo")
        assert trial.value == result.mean
    with sqlite3.connect(tmp_path / "small.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        runs = connection.execute("SELECT count(*) FROM treecv_evaluations").fetchone()
        blocks = connection.execute("SELECT count(*) FROM treecv_fold_score_blocks").fetchone()
    assert runs == blocks  # nothing is half-written


def test_a_pickled_objective_finds_its_store(store_url):
    objective = objective_with(store_url)
    first = objective.evaluate(AT)
    result = pickle.loads(pickle.dumps(objective)).evaluate(AT)
    assert result.n_updates == 0
    np.testing.assert_array_equal(result.test_score, first.test_score)


def test_a_cache_and_a_store_together(store_url):
    cache = ModelCache()
    objective_with(store_url, cache=cache).evaluate(AT)
    assert len(cache) > 0
    assert objective_with(None, cache=cache).evaluate(AT).n_updates == 0
    assert objective_with(store_url, cache=None).evaluate(AT).n_updates > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE treecv_models RENAME COLUMN payload TO packed",
        "ALTER TABLE treecv_evaluations ADD COLUMN more INTEGER NOT NULL DEFAULT NULL",
        "ALTER TABLE treecv_evaluations RENAME TO treecv_trials",
        "DROP TABLE treecv_leases",
    ],
)
def test_a_newer_version_changes_the_tables_meanwhile(store_url, change):
    options = {"param_distributions": None, "param_grid": {"alpha": ALPHAS}, "batch_size": 2}
    objective = objective_with(store_url, **options)
    study = optuna.create_study(sampler=objective.grid_sampler(seed=0))
    study.optimize(objective, n_trials=2)
    with objective.evaluator.database.engine.begin() as connection:
        if "NOT NULL" in change and store_url.startswith("sqlite"):  # which refuses no default
            connection.execute(text("DELETE FROM treecv_fold_scores"))
            connection.execute(text("DELETE FROM treecv_evaluations"))
        elif "NOT NULL" in change:
            connection.execute(text("TRUNCATE treecv_evaluations CASCADE"))
        connection.execute(text(change))
        connection.execute(text("UPDATE treecv_schema SET version = version + 1"))
    with pytest.warns(RuntimeWarning, match="which a newer optuna_treecv has created; tri") as w:
        study.optimize(objective)
    assert len([one for one in w if "trials continue without" in str(one.message)]) == 1
    assert len(study.trials) == len(ALPHAS)
    for trial in study.trials:
        result = tree_cross_validate(AveragedSGDClassifier(**trial.params), *make(), cv=8)
        assert trial.value == result.mean


@on_sqlite
@pytest.mark.slow
def test_two_versions_share_a_store_but_no_model(store_url, monkeypatch):
    """Each finds its own models, and both read all records."""
    assert f"format {FORMAT}" in optuna_treecv.caching.keys.BUILD
    objectives = {}
    for build in (optuna_treecv.caching.keys.BUILD, "9.9.9 format 99 little"):
        monkeypatch.setattr(optuna_treecv.caching.keys, "BUILD", build)
        objectives[build] = objective_with(store_url)
        assert objectives[build].evaluate(AT).n_updates_saved == 0
    for build, objective in objectives.items():
        monkeypatch.setattr(optuna_treecv.caching.keys, "BUILD", build)
        study = run(objective)
        assert len(load_evaluations(store_url, study=study)) == 3
        again = objective_with(store_url).evaluate(AT)
        assert again.n_updates == 0
        np.testing.assert_array_equal(again.test_score, expected().test_score)
    assert len(load_evaluations(store_url)) == 6
