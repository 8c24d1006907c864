"""The tree, the chain and separate trainings against trainings by hand with ``partial_fit``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import reference
from scipy import sparse
from sklearn import linear_model as lm
from sklearn import naive_bayes as nb
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.model_selection import TimeSeriesSplit
from sklearn.neural_network import MLPClassifier
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler
from sklearn.preprocessing import MinMaxScaler
from sklearn.preprocessing import StandardScaler
from sklearn.utils import _safe_indexing

from differential_cases import draws
from differential_cases.case import Case
from differential_cases.case import outcome
from differential_cases.draws import chance
from differential_cases.draws import pick
from differential_cases.draws import Problem
from differential_cases.folds import direct_fits
from differential_cases.folds import is_single
from differential_cases.folds import losses_of
from differential_cases.folds import piped
from differential_cases.folds import steps_of
import optuna_treecv as ot
from optuna_treecv import paper
from optuna_treecv.core.cross_validation import CrossValidation
from optuna_treecv.core.repeat import Repeat
from optuna_treecv.core.settings import Settings
from optuna_treecv.engines.treecv.passes import _training_rows
from optuna_treecv.rows.folds import Folds


def learner(rng: draws.Rng, given: Problem) -> Any:
    """Return an estimator whose training depends on the order of the rows."""
    seed, alpha = int(rng.integers(9)), float(10 ** rng.uniform(-4, 0))
    plain: dict[str, Any] = {"shuffle": False, "fit_intercept": chance(rng, 0.7)}
    if given.codes is None:
        made = [
            lm.SGDRegressor(alpha=alpha, average=pick(rng, (False, 5)), random_state=seed),
            MLPRegressor(hidden_layer_sizes=(3,), random_state=seed),
            ot.AveragedSGDRegressor(alpha=alpha, **plain),
            ot.StreamingSVRGRegressor(random_state=seed, **plain),
            paper.LSQSGDRegressor(step_size=0.01, **plain),
        ]
    else:
        loss = pick(rng, ("hinge", "log_loss"))
        flags = {"average": chance(rng, 0.5), "project": chance(rng, 0.5)}
        made = [
            lm.SGDClassifier(loss=loss, alpha=alpha, random_state=seed),
            lm.Perceptron(random_state=seed),
            ot.PegasosClassifier(alpha=alpha, **flags, **plain),
            ot.AveragedSGDClassifier(loss, class_weight=pick(rng, (None, "balanced")), **plain),
            ot.StreamingSVRGClassifier(random_state=seed, **plain),
        ]
    return pick(rng, made)


def replays(case: Case) -> None:
    """Train models along the tree, the chain or one by one, and compare them with those by hand.

    Counts would make ties, which kernels and ``predict`` may decide otherwise
    (how_it_works/numerics).
    """
    rng = case.rng
    given = draws.problem(rng, ("normal", "sparse"))
    if chance(rng, 0.7):  # some learners diverge on rows as they are
        given = given._replace(X=given.X / (1e-9 + np.abs(given.X).max(axis=0)))
    steps = [one for one in (StandardScaler(), MinMaxScaler(), MaxAbsScaler()) if chance(rng, 0.2)]
    estimator = piped(steps, learner(rng, given))
    cut = pick(rng, (draws.partition, draws.partition, draws.splits))(rng, given)
    cv, groups = cut.cv, cut.groups
    if chance(rng, 0.2):
        cv, groups = TimeSeriesSplit(int(rng.integers(2, 6)), gap=int(rng.integers(2))), None
    X = draws.container(rng, given.X, is_dense=bool(steps))
    options: dict[str, Any] = {
        "cv": cv,
        "groups": groups,
        "method": pick(rng, ("treecv", "treecv", "standard")),
        "order": pick(rng, ("fixed", "random")),
        "shuffle": chance(rng, 0.5),
        "random_state": int(rng.integers(9)),
        "sample_weight": draws.weights(rng, len(given.X)) if chance(rng, 0.3) else None,
        "n_epochs": 1 if steps else pick(rng, (1, 1, 2, 3)),
    }
    scoring, n_jobs = "squared_error" if given.codes is None else "error", pick(rng, (1, 2))
    case.note(estimator=estimator, X=X, y=given.y, **options)
    ours = outcome(
        lambda: (
            ot.tree_cross_validate(
                estimator, X, given.y, scoring=scoring, n_jobs=n_jobs, **options
            ).test_score
        )
    )
    theirs = outcome(lambda: by_hand(estimator, X, given, options))
    # predict of a float32 model rounds, and the walk does not.
    case.compare("losses", ours, theirs, 1e-5 if is_single(X) else 1e-9)


def tables(case: Case) -> None:
    """Evaluate learners behind steps of a table with rare values; compare by hand.

    By hand, the steps are fitted on all training rows of each fold.
    """
    rng = case.rng
    given = draws.problem(rng, ("normal",))
    X, y, last = draws.rare_table(rng, np.abs(given.X)), np.asarray(given.y), learner(rng, given)
    if given.codes is not None and chance(rng, 0.4):
        network = MLPClassifier(hidden_layer_sizes=(3,), random_state=0)
        last = pick(rng, (nb.MultinomialNB(), nb.BernoulliNB(), nb.ComplementNB(), network))
    estimator = make_pipeline(draws.steps_of_rare_table(rng), last)
    cut = draws.partition(rng, given)
    options = {"cv": cut.cv, "groups": cut.groups, "shuffle": not isinstance(cut.cv, int)}
    scoring = "squared_error" if given.codes is None else "error"
    case.note(estimator=estimator, X=X, y=given.y, cut=cut)
    ours = outcome(lambda: ot.tree_cross_validate(estimator, X, y, scoring=scoring, **options))
    case.note(chosen=getattr(ours, "method", None))
    if getattr(ours, "method", None) == "treecv":
        more = {"method": "treecv", "order": "fixed", "random_state": 0, "sample_weight": None}
        theirs = outcome(lambda: by_hand(estimator, X, given, options | more | {"n_epochs": 1}))
    else:
        splits = outcome(lambda: list(cut.same.split(X, y, cut.groups)))
        theirs = outcome(lambda: direct_fits(estimator, X, given, splits, None)[1])
    case.compare("losses", getattr(ours, "test_score", ours), theirs, 1e-9)


def by_hand(estimator: Any, X: Any, given: Problem, options: dict[str, Any]) -> list[float]:
    """Train each fold's model phase by phase with ``partial_fit``; return the mean losses."""
    cross_validation = CrossValidation.of(X, given.y, Settings(**options), estimator)
    y, w = np.asarray(given.y), options["sample_weight"]
    rows = np.array(X, float) if isinstance(X, list) else X
    if isinstance(rows, np.ndarray) and rows.dtype == object:
        rows = rows.astype(float)
    rows = rows.tocsr() if sparse.issparse(rows) else rows
    found: list[float] = []
    for repeat in cross_validation.repeats_for(options["n_epochs"]):
        losses = {}
        for chunk in range(repeat.cut.n_folds):
            model = clone(estimator)
            is_table = isinstance(steps_of(model)[0], ColumnTransformer)
            if is_table:
                steps_of(model)[0].fit(_safe_indexing(rows, repeat.cut.split(chunk).train_rows()))
            known = {} if given.codes is None else {"classes": np.unique(y)}
            for part in calls_of(repeat, chunk, options["method"], steps_of(estimator)[-1]):
                passed = known if w is None else known | {"sample_weight": w[part]}
                *steps, last = steps_of(model)
                now = _safe_indexing(rows, part)
                for one in steps:
                    now = (one if is_table else one.partial_fit(now)).transform(now)
                last.partial_fit(now, y[part], **passed)
                known = {}
            test = repeat.cut.test_rows(chunk)
            wrong = losses_of(given, model.predict(_safe_indexing(rows, test)), y[test])
            own = None if w is None else w[test]
            losses[repeat.cut.number(chunk)] = float(np.average(wrong, weights=own))
        found += [losses[number] for number in sorted(losses)]
    return found


def calls_of(repeat: Repeat, chunk: int, method: str, last: Any) -> Iterator[np.ndarray]:
    """Yield the rows, as given, of each call of ``partial_fit`` for a fold's model.

    Replays follow each new row in a compiled learner, and all new rows of a phase in others.
    """
    n_epochs, order = repeat.plan.n_epochs, repeat.cut.order
    is_compiled = type(last).__module__.startswith("optuna_treecv")
    for part in phases_of(repeat, chunk, method):
        if method == "standard" or n_epochs == 1 or is_compiled:
            yield order[part]
            continue
        by_row = part.reshape(-1, n_epochs)
        yield order[by_row[:, 0]]
        for replayed in by_row[:, 1:].reshape(n_epochs - 1, -1):
            yield order[replayed]


def phases_of(repeat: Repeat, chunk: int, method: str) -> Iterator[np.ndarray]:
    """Yield the prepared rows of each phase of a fold's training, in their order."""
    cut, plan = repeat.cut, repeat.plan
    if method == "standard":
        trained = np.sort(np.argsort(cut.order)[cut.split(chunk).train_rows()])
        for epoch in range(plan.n_epochs):
            rows = _training_rows(repeat, chunk, epoch)
            is_in_order = epoch == 0 and not plan.random
            assert np.array_equal(rows if is_in_order else np.sort(rows), trained)
            yield rows
    elif isinstance(cut, Folds):
        begins, (first, last) = cut.begins().tolist(), (0, cut.n_folds)
        if begins[0]:
            yield ordered(repeat, (0, begins[0]), 0, (begins[0], cut.n_rows))
        while last - first > 1:  # Algorithm 1 of the paper
            n_seen = cut.n_rows - (begins[last] - begins[first])
            middle = (first + last + 1) // 2
            new = (first, middle) if chunk >= middle else (middle, last)
            first, last = (middle, last) if chunk >= middle else (first, middle)
            rows = begins[new[0]], begins[new[1]]
            yield ordered(repeat, rows, n_seen, (begins[first], begins[last]))
    elif cut.grows:
        n_seen = 0
        for split in range(chunk + 1):
            stop = len(cut.split(split).train_rows())
            yield ordered(repeat, (n_seen, stop), n_seen, (stop, cut.n_rows))
            n_seen = stop
    else:
        raise ValueError("these splits have no tree and no chain")


def ordered(repeat: Repeat, rows: tuple[int, int], n_seen: int, held: tuple[int, int]) -> Any:
    """Return a range of rows in the order of a phase, with the replays that follow each."""
    plan = repeat.plan
    if plan.n_epochs > 1:
        size = repeat.cut.n_rows, plan.n_epochs
        order = reference.order_with_replays(
            plan.seed, *rows, n_seen, plan.random, range(*held), *size
        )
        return np.array(order, int)
    return np.array(
        reference.random_order(plan.seed, *rows, n_seen) if plan.random else range(*rows)
    )
