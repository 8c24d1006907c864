"""Scores before those of folds: each row is tested before it acts, and no fold's score changes."""

from __future__ import annotations

from functools import partial
from math import ceil
from typing import Any

from early_scores import evaluation_of
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from pairs import pairs
import pytest
import reference
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.base import ClassifierMixin
from sklearn.cluster import MiniBatchKMeans
from sklearn.linear_model import SGDClassifier
from sklearn.linear_model import SGDRegressor
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from small_data import data_of
from spread import spread

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import ModelCache
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective
from optuna_treecv.core.engine import RowProgress
from optuna_treecv.core.engine import Watch
from optuna_treecv.core.row_scores import NESTED_STEP
from optuna_treecv.core.row_scores import spine_length
from optuna_treecv.core.row_scores import spine_steps
from optuna_treecv.crossval.evaluate import run_for
from optuna_treecv.engines.treecv.learners.compiled import CompiledLearner
from optuna_treecv.engines.treecv.walk import spine_phases
from optuna_treecv.paper import StreamingGaussianDensity
from optuna_treecv.paper import StreamingKMeans
from optuna_treecv.rows.memory import pad_rows
from optuna_treecv.rows.partition import Partition

ALPHA = {"alpha": FloatDistribution(1e-4, 10.0, log=True)}


def evaluated_early(estimator, evaluation):
    """Return the scores of the first pass, those of 16 folds or None, and the result."""
    run = run_for(evaluation, estimator)
    early = [event for event in run.events(Watch()) if isinstance(event, RowProgress)]
    steps = [event for event in early if event.step != NESTED_STEP]
    nested = next((event.scores for event in early if event.step == NESTED_STEP), None)
    return steps[-1].scores, nested, run.result(), [event.step for event in steps]


# The spine.


@st.composite
def plans(draw):
    n_folds = draw(st.integers(2, 40))
    sizes = draw(st.lists(st.integers(1, 9), min_size=n_folds, max_size=n_folds))
    first = draw(st.integers(0, 20))
    bounds = np.cumsum([first, *sizes])
    return Partition(
        int(bounds[-1]), n_folds, bounds, draw(st.booleans()), draw(st.integers(0, 99))
    )


@given(plans())
def test_the_spine_sees_all_rows_but_those_of_the_first_chunk(plan):
    rows = [np.arange(plan.n_rows)[phase.rows] for _, phase in spine_phases(plan) if phase.n_rows]
    seen = np.concatenate(rows) if rows else np.empty(0, int)
    assert len(seen) == spine_length(plan)
    held_out = range(plan.begin(0), plan.begin(1))
    assert sorted(seen) == [row for row in range(plan.n_rows) if row not in held_out]
    n_seen = 0
    for _, phase in spine_phases(plan)[1:]:
        assert phase.n_seen == (n_seen or plan.begin(0))
        n_seen = phase.n_seen + phase.n_rows


@given(plans())
def test_steps_are_sixteenths_of_a_pass(plan):
    steps = spine_steps(plan)
    assert list(steps) == sorted(steps)
    assert max(steps) == spine_length(plan)
    for n_rows, step in steps.items():
        assert n_rows == min(ceil(step * plan.n_rows / 16), spine_length(plan))


# Progressive losses are those of a plain loop.


def losses_of_a_loop(X, y, order, alpha, average, is_random, cv, seed):
    """Return the 0/1 losses along the spine, by the NumPy twin of PEGASOS."""
    rows = pad_rows(X, order, True)
    signs = np.where(y[order] == 1, 1, -1)
    model = reference.Pegasos(alpha, average, False, np.zeros(rows.shape[1], rows.dtype))
    first, last, losses = 1, cv, []
    while first < last:  # as in Algorithm 1, with chunks numbered from 1
        middle = (first + last) // 2
        start, stop = middle * len(y) // cv, last * len(y) // cv
        n_seen = len(y) - (stop - (first - 1) * len(y) // cv)
        phase = range(start, stop)
        if is_random:
            phase = reference.random_order(seed, start, stop, n_seen)
        for row in phase:
            said = model.train(rows[row], int(signs[row]))
            losses.append(int((said > 0) != (signs[row] > 0)))
        last = middle
    return np.array(losses)


@pytest.mark.parametrize(
    *pairs(
        order=["fixed", "random"],
        average=[False, True],
        cv=[2, 10, 37, 103],
        kind=["dense", "float32", "sparse"],
        cache=[None, "memory"],
    )
)
def test_progressive_losses_are_those_of_a_loop(order, average, cv, kind, cache):
    X, y = data_of(103, 6)
    given = {"dense": X, "float32": X.astype(np.float32), "sparse": sparse.csr_array(X)}[kind]
    evaluation = evaluation_of(
        given, y, cv=cv, order=order, stratify=False, cache=cache and ModelCache()
    )
    estimator = PegasosClassifier(0.03, average=average)
    scores, _, result, steps = evaluated_early(estimator, evaluation)
    (repeat,) = evaluation.repeats
    X = X.astype(np.float32) if kind == "float32" else X
    expected = losses_of_a_loop(
        X, y, repeat.cut.order, 0.03, average, order == "random", cv, repeat.plan.seed
    )
    assert np.array_equal(scores.values, expected)
    assert steps == list(spine_steps(repeat.plan).values())
    alone = tree_cross_validate(estimator, given, y, cv=cv, order=order, stratify=False)
    assert np.array_equal(result.test_score, alone.test_score)


# Nothing else changes.

ESTIMATORS = {
    "PEGASOS": PegasosClassifier(0.01),
    "averaged PEGASOS": PegasosClassifier(0.01, average=True, class_weight="balanced"),
    "SGD": AveragedSGDClassifier(alpha=0.01),
    "SVRG": StreamingSVRGClassifier(initial_batch_size=5),
    "K-means": StreamingKMeans(3),
    "density": StreamingGaussianDensity(),
    "regression": AveragedSGDRegressor(),
    "SGDClassifier": SGDClassifier(max_iter=1, random_state=3),
    "SGDRegressor": SGDRegressor(max_iter=1),
    "Pipeline": make_pipeline(StandardScaler(), SGDClassifier(max_iter=1)),
    "compiled Pipeline": make_pipeline(StandardScaler(), PegasosClassifier(0.01)),
    "MiniBatchKMeans": MiniBatchKMeans(3, n_init=1, max_iter=1, batch_size=8),
}


def data_for(name):
    X, y = data_of(97, 5, 3)
    if name in ("K-means", "density", "MiniBatchKMeans"):
        return X, None
    return X, X[:, 0] - X[:, 1] if name in ("regression", "SGDRegressor") else y


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*one pass", "ignore:The least populated class")
@pytest.mark.parametrize(
    *spread(
        name=ESTIMATORS,
        cv=[2, 10, 33, "loo"],
        order=["fixed", "random"],
        cache=[None, "memory"],
        n_jobs=[1, 2],
    )
)
def test_early_scores_change_no_score(name, cv, order, cache, n_jobs):
    X, y = data_for(name)
    estimator = ESTIMATORS[name]
    options = {"cv": cv, "order": order, "n_jobs": n_jobs}
    evaluation = evaluation_of(X, y, cache=cache and ModelCache(), **options)
    scores, nested, result, _ = evaluated_early(estimator, evaluation)
    alone = tree_cross_validate(estimator, X, y, method="treecv", **options)
    assert np.array_equal(result.test_score, alone.test_score)
    assert np.all(np.isfinite(scores.values[scores.tail]))
    assert scores.n_rows == spine_length(evaluation.repeats[0].plan)
    is_compiled = type(estimator).__module__.startswith("optuna_treecv")
    again = 0 if is_compiled else scores.n_rows  # other phases are never cut
    assert result.n_updates == alone.n_updates + again
    assert result.n_updates_saved == 0
    if nested is not None:
        assert nested.n_rows == 97
    assert (nested is None) == (cv in (2, 10))


@pytest.mark.parametrize(
    "options",
    [
        {"n_repeats": 3, "order": "random"},
        {"n_repeats": 2, "cv": 33},
        {"method": "holdout"},
        {"cv": 0.3},
        {"cv": np.repeat([-1, 0, 1, 2, 3], [17, 20, 20, 20, 20])},
    ],
)
def test_repeats_and_hold_outs_have_early_scores(options):
    X, y = data_of(97, 5)
    evaluation = evaluation_of(X, y, **options)
    scores, _, result, steps = evaluated_early(PegasosClassifier(0.01), evaluation)
    alone = tree_cross_validate(PegasosClassifier(0.01), X, y, **options)
    assert np.array_equal(result.test_score, alone.test_score)
    assert result.n_updates == alone.n_updates
    assert scores.n_rows == spine_length(evaluation.repeats[0].plan)
    assert steps[-1] == next(s for s in range(1, 17) if ceil(s * 97 / 16) >= scores.n_rows)


def test_the_nested_folds_are_those_of_16_folds():
    X, y = data_of(320, 6)
    for order in ("fixed", "random"):
        evaluation = evaluation_of(X, y, cv=32, order=order, stratify=False)
        _, nested, _, _ = evaluated_early(PegasosClassifier(0.01), evaluation)
        alone = tree_cross_validate(
            PegasosClassifier(0.01), X, y, cv=16, order=order, stratify=False
        )
        assert np.array_equal(nested.values.reshape(16, 20).mean(axis=1), alone.test_score)


def test_weights_act_on_means():
    X, y = data_of(100, 6)
    weights = np.random.default_rng(0).choice([0.5, 1.0, 5.0], 100)
    evaluation = evaluation_of(X, y, cv=40, stratify=False, sample_weight=weights)
    scores, nested, result, _ = evaluated_early(PegasosClassifier(0.01), evaluation)
    order = evaluation.repeats[0].cut.order
    plan = evaluation.repeats[0].plan
    along = np.concatenate(
        [np.arange(100)[phase.rows] for _, phase in spine_phases(plan) if phase.n_rows]
    )
    assert np.array_equal(scores.weights, weights[order][along])
    tail = scores.tail
    expected = np.average(scores.values[tail], weights=weights[order][along][tail])
    assert scores.mean(tail) == pytest.approx(expected, rel=1e-12)
    assert np.array_equal(nested.weights, weights[order])
    assert np.isnan(scores.mean(slice(0, 0)))
    alone = tree_cross_validate(
        PegasosClassifier(0.01), X, y, cv=40, stratify=False, sample_weight=weights
    )
    assert np.array_equal(result.test_score, alone.test_score)


class Remembers(ClassifierMixin, BaseEstimator):
    """Predicts 1 for rows that it was trained on, and 0 for others."""

    def partial_fit(self, X, y, classes=None):
        if classes is not None:
            self.classes_ = classes
        self.seen_ = getattr(self, "seen_", frozenset()) | set(X[:, 0])
        return self

    def predict(self, X):
        return np.array([int(x in self.seen_) for x in X[:, 0]])


@pytest.mark.parametrize("method", ["progressive", "treecv"])
@pytest.mark.parametrize("order", ["fixed", "random"])
@pytest.mark.parametrize("cv", [2, 7, 40, "loo"])
def test_no_row_is_tested_by_a_model_that_has_seen_it(order, cv, method):
    X = np.arange(80.0)[:, None]
    y = np.arange(80) % 2  # both classes exist; only a prediction of 1 for a seen row could tell
    if method == "progressive":
        found = tree_cross_validate(Remembers(), X, y, cv=cv, order=order, method=method)
        assert found.mean == np.mean(y[np.isin(np.arange(80), untrained_first(X, y, cv, order))])
        return
    evaluation = evaluation_of(X, y, cv=cv, order=order)
    scores, nested, _, _ = evaluated_early(Remembers(), evaluation)
    (repeat,) = evaluation.repeats
    along = np.concatenate(
        [np.arange(80)[p.rows] for _, p in spine_phases(repeat.plan) if p.n_rows]
    )
    truth = y[repeat.cut.order][along]
    assert np.array_equal(scores.values[scores.tail], truth[scores.tail])
    if nested is not None:
        assert np.array_equal(nested.values, y[repeat.cut.order])


def untrained_first(X, y, cv, order):
    """Return the rows that progressive validation tests: all but the first eighth."""
    evaluation = evaluation_of(X, y, cv=cv, order=order, method="progressive", report=None)
    evaluation.divide_for(Remembers())
    return evaluation.repeats[0].cut.order[10:]


# What is kept.


def test_what_is_kept_is_replayed():
    X, y = data_of(200, 6)
    cache = ModelCache()
    for estimator in (PegasosClassifier(0.01), AveragedSGDClassifier(alpha=0.01)):
        first = evaluated_early(estimator, evaluation_of(X, y, cv=50, cache=cache))
        again = evaluated_early(estimator, evaluation_of(X, y, cv=50, cache=cache))
        assert first[2].n_updates > 0
        assert again[2].n_updates == 0
        assert np.array_equal(first[0].values, again[0].values)
        assert np.array_equal(first[1].values, again[1].values)
        assert np.array_equal(first[2].test_score, again[2].test_score)


def test_losses_of_another_alpha_are_not_taken():
    # The state may be the same for two values of alpha, but its margins are not.
    X, y = data_of(200, 6)
    cache = ModelCache()
    options = {"cv": 10, "scoring": "hinge", "cache": cache}
    alone = {}
    for alpha in (1e-9, 1.0001e-9):
        evaluation = evaluation_of(X, y, **{**options, "cache": None})
        alone[alpha] = evaluated_early(PegasosClassifier(alpha), evaluation)[0].values
    for alpha in alone:
        shared = evaluated_early(PegasosClassifier(alpha), evaluation_of(X, y, **options))
        assert np.array_equal(shared[0].values, alone[alpha])
    assert not np.array_equal(*alone.values())


def test_an_interrupt_within_a_pass_leaves_nothing_wrong(monkeypatch):
    """A signal is raised when the compiled call has ended, before its rows are counted."""
    X, y = data_of(160, 6)
    cache, calls = ModelCache(), []
    estimator = AveragedSGDClassifier(alpha=0.01)
    expected = evaluated_early(estimator, evaluation_of(X, y, cv=10))
    train = CompiledLearner.test_then_train

    def interrupted(*args):
        train(*args)
        calls.append(args)
        if len(calls) == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(CompiledLearner, "test_then_train", interrupted)
        with pytest.raises(KeyboardInterrupt):
            evaluated_early(estimator, evaluation_of(X, y, cv=10, cache=cache))
    again = evaluated_early(estimator, evaluation_of(X, y, cv=10, cache=cache))
    assert np.array_equal(expected[0].values, again[0].values)
    assert np.array_equal(expected[2].test_score, again[2].test_score)


@pytest.mark.parametrize("left_at", [1, 2, 7, 14])
def test_a_pass_that_was_left_goes_on_where_it_ended(left_at):
    X, y = data_of(160, 6)
    cache = ModelCache()
    estimator = AveragedSGDClassifier(alpha=0.01)
    expected = evaluated_early(estimator, evaluation_of(X, y, cv=10))
    run = run_for(evaluation_of(X, y, cv=10, cache=cache), estimator)
    events = run.events(Watch())
    early = next(event for event in events if event.step == left_at)
    events.close()
    done = run.cost.n_updates
    assert done == early.scores.n_rows == 10 * left_at
    again = evaluated_early(estimator, evaluation_of(X, y, cv=10, cache=cache))
    assert np.array_equal(expected[0].values, again[0].values)
    assert np.array_equal(expected[2].test_score, again[2].test_score)
    assert again[2].n_updates == expected[2].n_updates - done
    assert again[2].n_updates_saved == done


# Reports.


def objective_of(X, y, estimator=None, report="progressive", **options):
    options = {"report": report, "param_distributions": ALPHA} | options
    return treecv_objective(estimator or PegasosClassifier(), X, y, **options)


def random_study(objective, n_trials):
    """Return a study of random trials, none of which is pruned."""
    sampler, pruner = optuna.samplers.RandomSampler(seed=0), optuna.pruners.NopPruner()
    study = optuna.create_study(direction=objective.direction, sampler=sampler, pruner=pruner)
    study.optimize(objective, n_trials=n_trials)
    return study


@pytest.mark.parametrize("cv", [10, 40])
def test_what_is_reported(cv):
    X, y = data_of(160, 6)
    studies = [
        random_study(objective_of(X, y, report=report, cv=cv, stratify=False), 3).trials
        for report in ("progressive", "blocks", None)
    ]
    for tails, blocks, silent in zip(*studies, strict=True):
        assert tails.value == blocks.value == silent.value
        evaluation = evaluation_of(X, y, cv=cv, stratify=False)
        scores, nested, result, _ = evaluated_early(PegasosClassifier(**silent.params), evaluation)
        ends = spine_steps(evaluation.repeats[0].plan)
        losses, n_rows = scores.values, list(ends)
        of_tails = {step: losses[(n + 1) // 2 : n].mean() for n, step in ends.items() if step > 1}
        of_blocks = {
            ends[n]: losses[before:n].mean()
            for before, n in zip(n_rows[:-1], n_rows[1:], strict=True)
        }
        rest = {} if nested is None else {64: nested.values.mean()}
        rest[ceil(16 * result.n_updates / 160)] = silent.value
        assert tails.intermediate_values == pytest.approx(of_tails | rest, abs=1e-15)
        assert blocks.intermediate_values == pytest.approx(of_blocks | rest, abs=1e-15)
        assert len(tails.intermediate_values) <= 32


def test_scores_that_are_maximised_are_reported_as_they_are():
    X, y = data_of(160, 6)
    study = random_study(objective_of(X, y, scoring="accuracy"), 1)
    by_error = evaluated_early(
        PegasosClassifier(**study.trials[0].params), evaluation_of(X, y, cv=10)
    )[0]
    reported = study.trials[0].intermediate_values[15]
    assert reported == pytest.approx(1 - by_error.mean(by_error.tail), abs=1e-12)


def test_a_pruned_trial_is_recorded(tmp_path):
    X, y = data_of(160, 6)
    store = f"sqlite:///{tmp_path}/store.db"
    study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=-1.0))
    study.optimize(objective_of(X, y, store=store), n_trials=2)
    for trial in study.trials:
        assert trial.state == optuna.trial.TrialState.PRUNED
        assert list(trial.intermediate_values) == [2]
        assert trial.user_attrs["treecv"]["folds_scored"] == 0
        assert trial.user_attrs["treecv"]["n_updates"] == 20
        assert "mean_test_score" not in trial.user_attrs["treecv"]
    from optuna_treecv import history

    rows = history.load_evaluations(store)
    assert rows["state"].tolist() == ["pruned"] * 2
    assert rows["mean"].isna().all()


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value", "ignore:.*diverge")
def test_a_diverged_model_is_reported_as_the_worst():
    X, y = data_of(100, 6)
    objective = objective_of(
        *(X, X[:, 0], AveragedSGDRegressor(step_size=1e200)),
        param_distributions={"alpha": FloatDistribution(0.1, 1.0)},
    )
    (trial,) = random_study(objective, 1).trials
    assert trial.value == np.inf
    assert set(trial.intermediate_values.values()) == {1e300}


# Batches.


@pytest.mark.slow
@pytest.mark.parametrize("cv", [10, 40])
@pytest.mark.parametrize(
    "estimator", [PegasosClassifier(), AveragedSGDClassifier(), StreamingSVRGClassifier()]
)
def test_a_batch_reports_what_each_point_would_alone(estimator, cv):
    X, y = data_of(160, 6, 3)
    grid = {"alpha": np.geomspace(1e-4, 1.0, 9).tolist()}
    found = []
    for batch_size in (1, 32):
        options = {"param_grid": grid, "cv": cv, "batch_size": batch_size, "cache": None}
        objective = treecv_objective(estimator, X, y, report="progressive", **options)
        study = optuna.create_study(
            sampler=objective.grid_sampler(seed=0), pruner=optuna.pruners.NopPruner()
        )
        study.optimize(objective)
        found.append({t.params["alpha"]: (t.value, t.intermediate_values) for t in study.trials})
    assert found[0] == found[1]
    assert len(found[0]) == 9


# Bad input.


@pytest.mark.parametrize("report", ["progressive", "blocks"])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"scoring": "roc_auc"}, "mean over rows.*scoring='roc_auc'"),
        ({"method": "fit"}, "needs method=.treecv..*method='fit'"),
        ({"method": "standard"}, "needs method=.treecv..*method='standard'"),
        ({"method": "holdout", "scoring": "f1"}, "mean over rows"),
        ({"pooled": True}, "report must be None"),
        ({"scoring": lambda estimator, X, y: 0.0}, "mean over rows"),
    ],
)
def test_early_reports_need_the_tree_and_a_mean_over_rows(report, options, said):
    X, y = data_of(60, 4)
    with pytest.raises(ValueError, match=said):
        treecv_objective(
            PegasosClassifier(), X, y, param_distributions=ALPHA, report=report, **options
        )


def test_predictions_are_not_progressive():
    from optuna_treecv import tree_cross_val_predict

    X, y = data_of(60, 4)
    with pytest.raises(ValueError, match="method must not be 'progressive'"):
        tree_cross_val_predict(PegasosClassifier(), X, y, method="progressive")


# Progressive validation.


@pytest.mark.parametrize("order", ["fixed", "random"])
@pytest.mark.parametrize("n_rows", [8, 50, 101])
def test_progressive_validation_is_a_loop(order, n_rows):
    X, y = data_of(n_rows, 4)
    y[:2] = 0, 1
    options = {"cv": 2, "order": order, "stratify": False, "method": "progressive"}
    found = tree_cross_validate(PegasosClassifier(0.05), X, y, **options)
    evaluation = evaluation_of(X, y, report=None, **options)
    (repeat,) = evaluation.repeats
    first = ceil(n_rows / 8)
    rows = pad_rows(X, repeat.cut.order, True)
    signs = np.where(y[repeat.cut.order] == 1, 1, -1)
    model = reference.Pegasos(0.05, False, False, np.zeros(rows.shape[1]))
    phases: list[Any] = [range(first), range(first, n_rows)]
    if order == "random":
        seed = repeat.plan.seed
        phases = [
            reference.random_order(seed, 0, first, 0),
            reference.random_order(seed, first, n_rows, first),
        ]
    losses = [[(model.train(rows[i], signs[i]) > 0) != (signs[i] > 0) for i in p] for p in phases]
    assert found.mean == np.mean(losses[1])
    assert found.n_updates == n_rows
    assert found.test_score.shape == (1,)
    assert found.method == "progressive"
    half = np.sqrt(np.log(40) / (2 * (n_rows - first)))
    interval = found.interval("hoeffding")
    assert interval.high == pytest.approx(min(1.0, found.mean + half))
    assert interval.target == "the mean score of the models along the pass on new rows"


def test_progressive_validation_of_blocks():
    X, y = data_of(160, 4)
    model = MultinomialNB()
    found = tree_cross_validate(model, np.abs(X), y, method="progressive", shuffle=False)
    evaluation = evaluation_of(X, y, report=None, method="progressive", shuffle=False)
    evaluation.divide_for(model)
    order = evaluation.repeats[0].cut.order
    rows, labels = np.abs(X)[order], y[order]
    model.partial_fit(rows[:20], labels[:20], classes=[0, 1])
    wrong = []
    ends = [20 + ceil(step * 140 / 16) for step in range(17)]
    for begin, end in zip(ends[:-1], ends[1:], strict=True):
        wrong.extend(model.predict(rows[begin:end]) != labels[begin:end])
        model.partial_fit(rows[begin:end], labels[begin:end])
    assert found.mean == np.mean(wrong)


def test_scores_of_rows_need_no_second_class():
    """scikit-learn refuses the log loss of rows of one class; the mean over a pass has both."""
    evaluate = partial(
        tree_cross_validate,
        AveragedSGDClassifier(loss="log_loss"),
        *data_of(160, 4),
        method="progressive",
    )
    loss = evaluate(scoring="log_loss")
    assert evaluate(scoring="neg_log_loss").mean == pytest.approx(-loss.mean, rel=1e-12)
    assert loss.std_error == pytest.approx(evaluate(scoring="neg_log_loss").std_error)
    assert -1 < evaluate(scoring="neg_brier_score").mean < 0


def test_the_interval_of_progressive_validation_counts_its_rows():
    X, y = data_of(160, 4)
    weights = np.linspace(0.5, 2.0, 160)
    evaluate = partial(tree_cross_validate, PegasosClassifier(), X, y, method="progressive")
    with pytest.raises(ValueError, match="loss_range must be given"):
        evaluate(scoring="hinge").interval("hoeffding")
    found, accuracy = (
        evaluate(scoring=one).interval("hoeffding") for one in ("error", "accuracy")
    )
    assert accuracy.high == pytest.approx(1 - found.low)
    weighted = evaluate(sample_weight=weights, shuffle=False, stratify=False)
    tested = weights[20:]
    n_rows = tested.sum() ** 2 / (tested @ tested)
    half = np.sqrt(np.log(40) / (2 * n_rows))
    assert weighted.interval("hoeffding").high == pytest.approx(weighted.mean + half)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"scoring": "roc_auc"}, "mean over rows.*'roc_auc'"),
        ({"scoring": ["error", "f1"]}, "mean over rows.*'f1'"),
        ({"cv": [([0, 1, 2, 3], [4]), ([0, 1], [2])]}, "^method='progressive' goes .* cv must be"),
    ],
)
def test_progressive_validation_needs_means_over_rows_in_one_order(options, said):
    X, y = data_of(60, 4)
    with pytest.raises(ValueError, match=said):
        tree_cross_validate(PegasosClassifier(), X, y, method="progressive", **options)
