"""Replacements for scikit-learn's feature selectors, evaluated from sums over rows.

The sums give the models of all subsets of features, see ``selection/sums.py``. As far as possible,
the code of scikit-learn decides on the features, as described in ``stand_ins``.
"""

from collections import deque
from collections.abc import Mapping
from itertools import chain
from numbers import Integral
from typing import Any

import numpy as np
from sklearn import feature_selection
from sklearn import model_selection
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.utils.validation import validate_data

from optuna_treecv.core.settings import quietly
from optuna_treecv.crossval.evaluate import cross_validation_for
from optuna_treecv.crossval.evaluate import run_for
from optuna_treecv.search.stand_ins import Call
from optuna_treecv.search.stand_ins import LeftToSklearn
from optuna_treecv.search.stand_ins import ONE_SHOT_CV
from optuna_treecv.search.stand_ins import replace_class
from optuna_treecv.search.stand_ins import scores_for
from optuna_treecv.search.stand_ins import select_method
from optuna_treecv.search.stand_ins import settings_for_call
from optuna_treecv.search.stand_ins import with_globals
from optuna_treecv.selection.sums import collect_sums
from optuna_treecv.selection.sums import eliminate
from optuna_treecv.selection.sums import FoldSums
from optuna_treecv.selection.sums import ranks_of_features
from optuna_treecv.selection.sums import squared_errors
from optuna_treecv.selection.sums import Walk

# The number of folds from whose sums those of all rows are merged.
_N_FOLDS_OF_WHOLE = 5

# The function of scikit-learn whose arguments ``settings_for_call`` checks.
_cross_validate = model_selection.cross_validate


def _feature_sums(
    call: Call, estimator: Any, X: Any, y: Any, pairs: Any, scoring: Any
) -> FoldSums:
    """Return the sums from which an estimator is trained and scored on any subset of features."""
    scores = scores_for(scoring, estimator, y)
    options = {"scoring": scores.requested, "method": "exact"}
    with quietly():
        settings = settings_for_call(_cross_validate, estimator, y, {"cv": pairs}, **options)
        run = run_for(cross_validation_for(X, y, settings, [estimator]), estimator)
        sums = collect_sums(run)
        call.method = select_method([run])
    return sums


def _fit_sequential_selector(
    call: Call, selector: Any, X: Any, y: Any = None, **params: Any
) -> Any:
    """Fit a ``SequentialFeatureSelector`` by scikit-learn's code, with scores from sums."""
    original, name = selector.stands_for, "_get_best_new_feature_score"
    if params or getattr(type(selector), name) is not getattr(original, name):
        raise LeftToSklearn("fit has further arguments, or a subclass overrides a method")
    if hasattr(selector.cv, "__next__"):
        raise LeftToSklearn(ONE_SHOT_CV)
    walks: list[Walk] = []

    def step(estimator: Any, X: Any, y: Any, cv: Any, *args: Any) -> tuple[int, float]:
        """Return the best feature to add or remove, and the mean score with or without it."""
        if not walks:
            pairs, same_pairs = list(cv.split(X, y)), list(cv.split(X, y))
            if not all(map(np.array_equal, chain(*pairs), chain(*same_pairs))):
                raise LeftToSklearn("cv yields different splits each time")
            sums = _feature_sums(call, estimator, X, y, pairs, selector.scoring)
            walks.append(Walk(sums, selector.direction == "forward"))
        feature, scores = walks[0].step()
        return feature, float(scores.mean())

    setattr(selector, name, step)
    try:
        return original.fit(selector, X, y)
    finally:
        delattr(selector, name)


def _check_eliminates_by_coef(selector: Any, params: Mapping[str, Any]) -> None:
    """Raise an error unless an ``RFE`` or ``RFECV`` ranks features by their coefficients alone."""
    if params or selector.verbose:
        raise LeftToSklearn("fit is called with further arguments, or verbose is above 0")
    if selector.importance_getter not in ("auto", "coef_") or not hasattr(
        selector.estimator, "fit_intercept"
    ):
        raise LeftToSklearn("features are not ranked by coef_")
    if type(selector)._fit is not feature_selection.RFE._fit:
        raise LeftToSklearn("a subclass overrides _fit")


def _n_eliminated_per_step(selector: Any, n_features: int) -> int:
    step = selector.step
    return int(max(1, step * n_features)) if step < 1 else int(step)


def _eliminate(selector: Any, sums: FoldSums) -> Any:
    """Set the attributes of an ``RFE`` that describe its features, from the sums of all rows."""
    n_features, number = len(sums.whole) - 1, selector.n_features_to_select
    if number is None or not isinstance(number, Integral):
        number = n_features // 2 if number is None else int(n_features * number)
    if not 1 <= number <= n_features:
        raise LeftToSklearn("n_features_to_select is not between 1 and the number of features")
    step = _n_eliminated_per_step(selector, n_features)
    supports, _ = eliminate(sums.whole[None], int(number), step)
    selector.support_, selector.ranking_ = supports[0, -1], ranks_of_features(supports)[0, -1]
    selector.n_features_ = selector.support_.sum()
    return selector


def _fit_eliminator(call: Call, selector: Any, X: Any, y: Any, **params: Any) -> Any:
    """Fit an ``RFE`` from sums over all rows."""
    selector._validate_params()
    _check_eliminates_by_coef(selector, params)
    X, y = validate_data(selector, X, y, ensure_min_features=2, multi_output=True)
    folds = model_selection.KFold(_N_FOLDS_OF_WHOLE)
    _eliminate(selector, _feature_sums(call, selector.estimator, X, y, folds, "r2"))
    selector.estimator_ = clone(selector.estimator).fit(X[:, selector.support_], y)
    return selector


def _fit_eliminator_cv(
    call: Call, selector: Any, X: Any, y: Any, groups: Any = None, **params: Any
) -> Any:
    """Fit an ``RFECV`` by scikit-learn's code, with eliminations and scores from sums."""
    _check_eliminates_by_coef(selector, params)
    if hasattr(selector.cv, "__next__"):
        raise LeftToSklearn(ONE_SHOT_CV)
    is_class = is_classifier(selector.estimator)
    splitter = model_selection.check_cv(selector.cv, y, classifier=is_class)
    pairs = list(splitter.split(X, y, groups))
    all_sums: list[FoldSums] = []
    by_fold: deque[tuple[np.ndarray, ...]] = deque()

    def score_fold(rfe: Any, estimator: Any, X: Any, y: Any, *args: Any) -> tuple[Any, ...]:
        """Return the scores, features, ranks and numbers of features of the fits on a fold."""
        if not all_sums:
            sums = _feature_sums(call, estimator, X, y, pairs, selector.scoring)
            step = _n_eliminated_per_step(rfe, X.shape[1])
            supports, coefs = eliminate(sums.trains, rfe.n_features_to_select, step)
            scores = sums.scores(squared_errors(sums.tests, coefs))
            ranks, counts = ranks_of_features(supports), supports.sum(axis=2)
            by_fold.extend(zip(scores, supports, ranks, counts, strict=True))
            all_sums.append(sums)
        return by_fold.popleft()

    def make_rfe(**options: Any) -> Any:
        rfe: Any = feature_selection.RFE(**options)
        rfe.fit = lambda X, y: _eliminate(rfe, all_sums[0])
        return rfe

    fit = with_globals(
        selector.stands_for.fit.__wrapped__,
        _rfe_single_fit=score_fold,
        RFE=make_rfe,
        check_cv=lambda *_, **__: model_selection.check_cv(pairs),
        effective_n_jobs=lambda _: 1,
    )
    selector._validate_params()
    return fit(selector, X, y)


SequentialFeatureSelector = replace_class(
    feature_selection.SequentialFeatureSelector, _fit_sequential_selector
)
RFE = replace_class(feature_selection.RFE, _fit_eliminator)
RFECV = replace_class(feature_selection.RFECV, _fit_eliminator_cv)
for _kind in (SequentialFeatureSelector, RFE, RFECV):
    _kind.__module__ = __name__  # pickle looks them up in this module
