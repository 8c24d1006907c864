"""Trials that share work: the same results bit for bit, and no row update twice."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from threading import Event
from threading import Thread

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from pairs import pairs
import pytest
from scipy import sparse
from sklearn.base import is_classifier
from sklearn.base import is_regressor
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import make_scorer
from sklearn.metrics import zero_one_loss
from sklearn.model_selection import KFold
from sklearn.naive_bayes import GaussianNB

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import ModelCache
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import StreamingSVRGRegressor
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective
from optuna_treecv.caching.prefix import Prefix
from optuna_treecv.caching.results import SharedBetweenRuns
from optuna_treecv.crossval.evaluate import run_for
from optuna_treecv.engines.treecv.learners.from_estimator import make_learner
from optuna_treecv.engines.treecv.shared_learner import SharedLearner
from optuna_treecv.estimators.base import layout_for
from optuna_treecv.paper import StreamingGaussianDensity
from optuna_treecv.paper import StreamingKMeans
from optuna_treecv.rows.data import Data
from optuna_treecv.rows.partition import Phase

# Families of configurations that can share models.
FAMILIES = {
    "PEGASOS": [PegasosClassifier(alpha) for alpha in (1e-3, 1e-2, 0.011, 0.1, 1.0, 30.0)],
    "averaged PEGASOS": [PegasosClassifier(alpha, average=True) for alpha in (0.01, 0.0101, 1)],
    "projected PEGASOS": [PegasosClassifier(alpha, project=True) for alpha in (0.01, 0.0101)],
    "without intercept": [PegasosClassifier(alpha, fit_intercept=False) for alpha in (0.01, 1)],
    "tail averaging": [
        *(AveragedSGDClassifier(average_start=start) for start in (0, 30, 77, 500)),
        AveragedSGDClassifier(average=False),
    ],
    "regression": [AveragedSGDRegressor(loss, alpha=0.1) for loss in ("huber", "squared_error")],
    "SVRG": [
        *(StreamingSVRGClassifier(step_size=eta, initial_batch_size=40) for eta in (0.1, 0.2)),
        StreamingSVRGClassifier(step_size=0.1, initial_batch_size=40, batch_growth=3.0),
        StreamingSVRGClassifier(step_size=0.1, initial_batch_size=20, inner_steps=20),
        StreamingSVRGClassifier(
            step_size=0.1, initial_batch_size=20, inner_steps=20, batch_growth=3.0
        ),
        StreamingSVRGClassifier(step_size=0.1, initial_batch_size=40, schedule="factorial"),
        StreamingSVRGClassifier(step_size=0.1, initial_batch_size=40, random_state=5),
    ],
    "SVRG regression": [StreamingSVRGRegressor(alpha=a, initial_batch_size=9) for a in (0, 1)],
    "K-means": [StreamingKMeans(3), StreamingKMeans(4)],
    "density": [StreamingGaussianDensity(), StreamingGaussianDensity()],
}
N_ROWS = 150


def make(estimator, dtype=np.float64, is_sparse=False, n_classes=3, n_rows=N_ROWS, n_features=9):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n_rows, n_features)).astype(dtype)
    if is_sparse:
        X[rng.uniform(size=X.shape) < 0.6] = 0
    scores = X @ rng.normal(size=(n_features, n_classes)) + rng.normal(size=(n_rows, n_classes))
    y = None
    if is_classifier(estimator):
        y = scores.argmax(axis=1)
    elif is_regressor(estimator):
        y = scores[:, 0]
    return (sparse.csr_array(X) if is_sparse else X), y


def objective_of(X, y, cache, **options):
    return treecv_objective(lambda trial: None, X, y, cache=cache, **options)


def evaluate(objective, estimator):
    objective.evaluator.space.estimator = lambda trial: estimator
    return objective.evaluate({})


def assert_same(found, expected):
    np.testing.assert_array_equal(found.test_score, expected.test_score)
    assert (found.mean, found.std) == (expected.mean, expected.std)
    assert found.diverged_folds == expected.diverged_folds
    assert found.n_updates + found.n_updates_saved == expected.n_updates


def check(cache, estimator, X, y, **options):
    """Return the result with a cache, which is checked to be that without one."""
    found = evaluate(objective_of(X, y, cache, **options), estimator)
    assert_same(found, tree_cross_validate(estimator, X, y, **options))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(
        order=["fixed", "random"],
        dtype=[np.float64, np.float32],
        is_sparse=[False, True],
        family=FAMILIES,
        where=lambda family, is_sparse, **_: (
            layout_for(FAMILIES[family][0]).sparse or not is_sparse
        ),
    )
)
def test_sharing_changes_no_bit(family, is_sparse, dtype, order):
    estimators = FAMILIES[family]
    X, y = make(estimators[0], dtype, is_sparse)
    cache = ModelCache()
    for cv in (3, 40, "loo"):
        n_saved = 0
        alone = [tree_cross_validate(each, X, y, cv=cv, order=order) for each in estimators]
        for n_jobs in (1, 2):
            objective = objective_of(X, y, cache, cv=cv, order=order, n_jobs=n_jobs)
            for estimator, expected in zip(estimators, alone, strict=True):
                found = evaluate(objective, estimator)
                assert_same(found, expected)
                if n_jobs == 2:
                    assert found.n_updates == 0  # the same configuration again
                n_saved += found.n_updates_saved
        assert n_saved > 0


@pytest.mark.slow
@settings(max_examples=12)
@given(
    st.integers(0, 200_000),
    st.lists(
        st.tuples(
            st.sampled_from([name for name in FAMILIES if "regression" not in name]),
            st.integers(0, 5),
            st.sampled_from([2, 4, 5, 8, 16, 32, 100, N_ROWS]),
            st.sampled_from(["fixed", "random"]),
            st.integers(1, 2),
            st.sampled_from(["error", None]),
        ),
        max_size=8,
    ),
)
def test_nothing_that_was_kept_or_lost_matters(max_bytes, calls):
    # Results do not depend on earlier evaluations or on the size of the cache.
    cache = ModelCache(max_bytes)
    for family, which, cv, order, n_jobs, scoring in calls:
        estimator = FAMILIES[family][which % len(FAMILIES[family])]
        X, y = make(estimator)
        options = {"cv": cv, "order": order}
        if y is not None:
            options["scoring"] = scoring
        objective = objective_of(X, y, cache, n_jobs=n_jobs, **options)
        expected = tree_cross_validate(estimator, X, y, **options)
        assert_same(evaluate(objective, estimator), expected)
        assert cache.n_bytes <= max_bytes


# What is shared, counted in row updates.


def test_the_same_configuration_again_costs_nothing():
    X, y = make(PegasosClassifier())
    for estimator in (
        PegasosClassifier(0.1),
        SGDClassifier(random_state=0, max_iter=1),
        GaussianNB(),
    ):
        objective = objective_of(X, y, "memory", cv=7)
        first, again = evaluate(objective, estimator), evaluate(objective, estimator)
        assert first.n_updates > 0 and again.n_updates == 0
        assert_same(again, tree_cross_validate(estimator, X, y, cv=7))


def test_scores_that_outlive_their_outputs():
    estimator = PegasosClassifier(0.1)
    X, y = make(estimator, n_rows=4000)
    cache = ModelCache(20_000)  # outputs take 32 kB
    for _ in range(2):
        evaluate(objective_of(X, y, cache, cv=8, scoring="accuracy"), estimator)
        cache.max_bytes = 2**20
    check(cache, estimator, X, y, cv=8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "scoring", "change"),
    [
        (PegasosClassifier(0.1), "f1", lambda y: y + 1),
        (StreamingKMeans(3), "adjusted_rand_score", lambda y: y[::-1]),
        (AveragedSGDRegressor(), "neg_mean_squared_error", lambda y: y + 1e-9),
        (GaussianNB(), "f1", lambda y: y + 1),
    ],
)
def test_scores_belong_to_their_targets(estimator, scoring, change):
    X, y = make(AveragedSGDRegressor(), np.float32, n_rows=100)
    y = y.astype(float) if is_regressor(estimator) else (y > 0.8).astype(int)
    cache = ModelCache()
    values = []
    for targets in [y, change(y)] * 2:
        found = check(cache, estimator, X, targets, scoring=scoring)
        values.append(found.mean)
    assert values[0] != values[1]


def test_a_metric_may_write_into_predictions():
    kept = []

    def metric(y, predicted):
        kept.append(predicted)
        predicted[predicted < 0] = 0
        return float(np.abs(y - predicted).mean())

    estimator = AveragedSGDRegressor()
    X, y = make(estimator, n_rows=100)
    scorer = make_scorer(metric)
    cache = ModelCache()
    for scoring in (scorer, None, scorer, None):
        check(cache, estimator, X, y, scoring=scoring)
        for predicted in kept:
            predicted[:] = 7


def asks_the_model(estimator, X, y):
    return estimator.score(X, y)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scoring", "cv"),
    [
        ("accuracy", 8),
        ("neg_log_loss", 100),
        (make_scorer(zero_one_loss), 100),
        (asks_the_model, 8),
    ],
)
def test_a_scorer_after_a_loss_costs_nothing(cv, scoring):
    estimator = AveragedSGDClassifier("log_loss")
    X, y = make(estimator, n_rows=1000)
    cache = ModelCache()
    evaluate(objective_of(X, y, cache, cv=cv), estimator)
    for _ in range(2):
        found = check(cache, estimator, X, y, cv=cv, scoring=scoring)
        assert found.n_updates == 0


def test_late_averaging_costs_what_follows():
    X, y = make(PegasosClassifier(), n_classes=2)
    objective = objective_of(X, y, "memory", cv=2)
    n = N_ROWS // 2
    assert evaluate(objective, AveragedSGDClassifier(average_start=n)).n_updates == 2 * n
    # No state after 30 rows was kept, so this one is trained from the start.
    assert evaluate(objective, AveragedSGDClassifier(average_start=30)).n_updates == 2 * n
    # Now the state after 30 rows is kept. A model that averages from row 50 on can start there.
    assert evaluate(objective, AveragedSGDClassifier(average_start=50)).n_updates <= 2 * n
    # A model that would average only after the last row equals the first one.
    assert evaluate(objective, AveragedSGDClassifier(average_start=n + 1)).n_updates == 0


@pytest.mark.parametrize("k_0", [30, 75])
def test_svrg_shares_the_first_batch(k_0):
    X, y = make(PegasosClassifier(), n_classes=2)
    objective = objective_of(X, y, "memory", cv=2)
    for eta in (0.1, 0.2, 0.4):
        result = evaluate(
            objective, StreamingSVRGClassifier(step_size=eta, initial_batch_size=k_0)
        )
        saved = 0 if eta == 0.1 else 2 * k_0
        assert result.n_updates_saved == saved


@pytest.mark.parametrize(
    ("stratify", "n_rows"),
    [(False, 1024), ("auto", 2**16)],  # stratified folds share models of at least 1024 rows
)
def test_twice_the_folds_cost_one_level(stratify, n_rows):
    estimator = AveragedSGDClassifier()
    X, y = make(estimator, n_rows=n_rows)
    cache = ModelCache()
    done, alone = [], []
    for cv in (8, 16, 32, 64):
        result = evaluate(objective_of(X, y, cache, cv=cv, stratify=stratify), estimator)
        done.append(result.n_updates)
        alone.append(result.n_updates + result.n_updates_saved)
    assert alone == [n_rows * levels for levels in (3, 4, 5, 6)]
    assert done == [n_rows * levels for levels in (3, 1, 1, 1)]
    assert sum(done) <= 0.4 * sum(alone)


@pytest.mark.slow
@pytest.mark.parametrize(
    "estimator", [PegasosClassifier(), SGDClassifier(random_state=0, max_iter=1)]
)
def test_other_data_share_nothing(estimator):
    X, y = make(PegasosClassifier())
    X = np.abs(X)
    cache = ModelCache()
    one_value = X.copy()
    one_value[-1, -1] = np.nextafter(one_value[-1, -1], 9)
    one_label = y.copy()
    one_label[-1] = (y[-1] + 1) % 3
    intercept = np.hstack([X, np.ones((len(X), 1))])
    for rows, labels, options in (
        (X, y, {}),
        (one_value, y, {}),
        (X, one_label, {}),
        (X.astype(np.float32), y, {}),
        (sparse.csr_array(X), y, {}),
        (intercept, y, {}),
        (X, y, {"random_state": 1}),
        (X, y, {"shuffle": False}),
        (X, y, {"order": "random"}),
        (X, y, {"order": "random", "shuffle": False}),
        (X, y, {"order": "random", "shuffle": False, "random_state": 1}),
    ):
        objective = objective_of(rows, labels, cache, cv=5, **options)
        result = evaluate(objective, estimator)
        assert result.n_updates_saved == 0
        assert_same(result, tree_cross_validate(estimator, rows, labels, cv=5, **options))
    assert evaluate(objective_of(X, y == 1, cache, cv=5), estimator).n_updates_saved == 0


DRAWS = StreamingSVRGClassifier(initial_batch_size=10, inner_steps=30)
ADAPTED = SGDClassifier(loss="log_loss", random_state=0, max_iter=1)
# Evaluations that share a cache, one after the other.
SEQUENCES = {
    "seeds of a learner": [(DRAWS, {"shuffle": False, "random_state": i}) for i in range(3)],
    "responses": [(ADAPTED, {"scoring": name}) for name in ("error", "hinge", "log_loss")],
    "random orders": [(PegasosClassifier(), {"order": "random", "n_repeats": 3})] * 2,
    "repeats": [(PegasosClassifier(), {"n_repeats": n}) for n in (1, 3)],
    "an alpha that is too large for float32": [
        (StreamingSVRGClassifier(alpha, initial_batch_size=100), {}) for alpha in (1e39, 0.01)
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cv"),
    [(name, cv) for i, name in enumerate(SEQUENCES) for cv in [[5, KFold(5)][i % 2]]],
)
def test_what_was_evaluated_before_changes_no_score(name, cv):
    X, y = make(PegasosClassifier(), np.float32)
    cache = ModelCache()
    for estimator, options in SEQUENCES[name]:
        found = check(cache, estimator, X, y, cv=cv, **options)
    if name in ("random orders", "repeats"):
        assert found.n_updates_saved > 0


def test_another_class_shares_nothing():
    class Other(GaussianNB):
        def predict(self, X):
            return np.zeros(len(X), int)

    X, y = make(PegasosClassifier())
    cache = ModelCache()
    for estimator in (GaussianNB(), Other()):
        found = check(cache, estimator, X, y, cv=5)
        assert found.n_updates_saved == 0


@pytest.mark.slow
def test_only_models_that_are_worth_it_are_kept(monkeypatch):
    monkeypatch.setattr("optuna_treecv.engines.treecv.shared_learner._MIN_PHASE_BYTES", 2**12)
    X, y = make(PegasosClassifier(), n_rows=4200)
    cache = ModelCache()
    for cv in (2048, "loo"):
        for alpha in (0.1, 0.1 * (1 + 1e-9), 0.2):
            estimator = PegasosClassifier(alpha)
            check(cache, estimator, X, y, cv=cv, scoring="hinge")
    # Rows of ten numbers: models of at least 4096 / (10 * 8 * 3) = 17 rows, and results.
    assert 2 * 3 * 2 * 128 < len(cache) < 2 * 3 * (2 * 256 + 40)


def test_prefixes_are_not_remembered_without_end(monkeypatch):
    monkeypatch.setattr("optuna_treecv.caching.results._MAX_PREFIXES", 40)
    X, y = make(AveragedSGDClassifier())
    objective = objective_of(X, y, "memory", cv=16)
    shared = objective.evaluator.cross_validation.shared
    for start in range(20, 60):  # each value cuts a phase elsewhere
        estimator = AveragedSGDClassifier(average_start=start)
        found = evaluate(objective, estimator)
        assert_same(found, tree_cross_validate(estimator, X, y, cv=16))
        assert max(root.n_prefixes[0] for root in shared._roots.values()) < 80
    assert evaluate(objective, estimator).n_updates == 0


def test_estimators_that_cannot_be_told_apart_share_nothing():
    class Odd(GaussianNB):
        def __init__(self, what=None):
            super().__init__()
            self.what = what

    X, y = make(PegasosClassifier())
    objective = objective_of(X, y, "memory", cv=5)
    for what in (object(), lambda: 1):
        assert evaluate(objective, Odd(what)).n_updates_saved == 0
    assert evaluate(objective, Odd(3)).n_updates_saved == 0
    assert evaluate(objective, Odd(4)).n_updates_saved == 0
    assert evaluate(objective, Odd(4)).n_updates == 0


def test_a_pruned_trial_leaves_its_models(results):
    X, y = make(PegasosClassifier(), n_rows=400)

    class Prune(optuna.pruners.BasePruner):
        on = True

        def prune(self, study, trial):
            return self.on and trial.last_step == 3

    pruner = Prune()
    objective = treecv_objective(
        PegasosClassifier(),
        X,
        y,
        param_distributions={"alpha": CategoricalDistribution([0.01])},
        cv=16,
        report="mean",
    )
    study = optuna.create_study(pruner=pruner)
    study.optimize(objective, n_trials=1)
    pruner.on = False
    study.optimize(objective, n_trials=2)
    pruned, whole, again = results.values()
    assert pruned.n_updates_saved == 0 < pruned.n_updates
    assert whole.n_updates_saved >= pruned.n_updates
    assert whole.n_updates + whole.n_updates_saved == 1600
    assert again.n_updates == 0
    reports = [trial.intermediate_values for trial in study.trials]
    assert reports[1] == reports[2] and len(reports[1]) == 16
    assert study.trials[1].value == study.trials[2].value


@pytest.mark.slow
def test_threads_train_nothing_twice():
    X, y = make(PegasosClassifier(), n_rows=1000)
    for cv in (8, 700):
        objective = objective_of(X, y, "memory", cv=cv)
        objective.evaluator.space.estimator = lambda trial: AveragedSGDClassifier("log_loss")
        barrier, results = Barrier(4), []

        def run(objective=objective, barrier=barrier, results=results):
            barrier.wait()
            results.append(objective.evaluate({}))

        threads = [Thread(target=run, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        expected = tree_cross_validate(AveragedSGDClassifier("log_loss"), X, y, cv=cv)
        assert len(results) == 4
        assert sum(result.n_updates for result in results) == expected.n_updates
        for result in results:
            np.testing.assert_array_equal(result.test_score, expected.test_score)


class Interleaving(ModelCache):
    """A cache without room that interleaves two threads which need the same model.

    One thread looks for the model and finds none. It learns so only after the other thread has
    trained the model.
    """

    def __init__(self):
        super().__init__(0)
        self.looking = Barrier(2)
        self.is_made, self.is_wanted = Event(), Event()

    def find(self, key):
        if self.looking.wait(120) == 1:
            assert self.is_made.wait(120)
        return None

    def claim(self, key):
        if self.is_made.is_set():
            self.is_wanted.set()
        return super().claim(key)

    def release(self, key):
        super().release(key)
        if not self.is_made.is_set():
            self.is_made.set()
            assert self.is_wanted.wait(120)


def test_a_model_is_never_lost_to_who_looked_for_it_too_early():
    X, y = make(PegasosClassifier(), n_classes=2)
    cache = Interleaving()
    evaluation = objective_of(X, y, cache).evaluator.cross_validation
    estimator = PegasosClassifier()
    run = run_for(evaluation, estimator)
    learner = run.plan.learner(run.estimator, run.plan.rows(run.plan.repeats[0]))
    shared = SharedLearner(learner, cache, Prefix(b"rows"))
    branch = shared.start()
    shared.update(branch, Phase(0, N_ROWS))
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(shared.estimator, [branch] * 2)
    np.testing.assert_array_equal(one.coef_, other.coef_)
    assert shared.n_updates == N_ROWS


def test_from_scratch_shares_whole_results_only():
    X, y = make(PegasosClassifier())
    cache = ModelCache()
    evaluate(objective_of(X, y, cache, cv=5), PegasosClassifier())
    for n_updates in (4 * N_ROWS, 0):
        objective = objective_of(X, y, cache, cv=5, method="standard")
        found = evaluate(objective, PegasosClassifier())
        assert found.n_updates == n_updates
        expected = tree_cross_validate(PegasosClassifier(), X, y, cv=5, method="standard")
        assert_same(found, expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_any_bytes_are_a_state_that_harms_nobody(family):
    # A store may hold any bytes. Results may then be wrong, but memory must not be corrupted.
    estimator = FAMILIES[family][0]
    X, y = make(estimator)
    rows = Data(X, y).prepare(layout_for(estimator), np.arange(N_ROWS, dtype=np.uint32))
    learner = make_learner(estimator, rows, "predict", 0)
    rng = np.random.default_rng(0)
    out = np.empty((N_ROWS, learner.n_outputs), learner.dtype)
    for fill in (0, 255, 127, None, None, None):
        state = learner.start()
        state[:] = rng.integers(0, 256, len(state)) if fill is None else fill
        learner.outputs(state, 0, N_ROWS, out)
        learner.update(state, Phase(0, 60))
        learner.outputs(state, 0, N_ROWS, out)


def test_a_name_is_looked_for_without_a_lock():
    """Else two threads that name data and prepare rows would wait for each other."""
    shared = SharedBetweenRuns(ModelCache(), with_others=True)
    inner = lambda: shared.key_for("inner", lambda: b"of inner")[0]  # noqa: E731
    assert shared.key_for("outer", inner) == (b"of inner", True)
    assert shared.key_for("outer", lambda: b"another") == (b"of inner", True)
    name, lasts = shared.key_for("nameless", lambda: None)
    assert not lasts and shared.key_for("nameless", lambda: None) == (name, False)
