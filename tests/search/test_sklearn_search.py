"""scikit-learn's own tests of its searches, run with ``TreeCVSearchCV`` in their place.

The tests are those of the installed scikit-learn. ``GridSearchCV`` and ``RandomizedSearchCV`` are
replaced by subclasses of ``TreeCVSearchCV`` that map the signatures. ``EXPECTED`` says which cases
fail, and why. A case that fails and is not there is an error, and so is one that passes and is
there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn_cases import cases_with

from optuna_treecv import TreeCVSearchCV

pytestmark = pytest.mark.slow

WORDS = "a message has other words"
TRIALS = "a trial is evaluated as a whole, so that no task of a fold is told to callbacks of a fit"
ROUTES = "all scores of a search have the same weights, and get no other metadata"


class GridSearchCV(TreeCVSearchCV):
    """``TreeCVSearchCV`` with the arguments of ``GridSearchCV``."""

    def __init__(
        self,
        estimator: Any,
        param_grid: Any,
        *,
        scoring: Any = None,
        n_jobs: int | None = None,
        refit: Any = True,
        cv: Any = None,
        verbose: int = 0,
        pre_dispatch: Any = "2*n_jobs",
        error_score: Any = np.nan,
        return_train_score: bool = False,
    ) -> None:
        super().__init__(
            estimator,
            None,
            param_grid,
            scoring=scoring,
            n_jobs=n_jobs,
            refit=refit,
            cv=cv,
            shuffle=False,
            verbose=verbose,
            error_score=error_score,
            return_train_score=return_train_score,
        )
        self.pre_dispatch = pre_dispatch


class RandomizedSearchCV(TreeCVSearchCV):
    """``TreeCVSearchCV`` with the arguments of ``RandomizedSearchCV``."""

    def __init__(
        self,
        estimator: Any,
        param_distributions: Any,
        *,
        n_iter: int = 10,
        scoring: Any = None,
        n_jobs: int | None = None,
        refit: Any = True,
        cv: Any = None,
        verbose: int = 0,
        pre_dispatch: Any = "2*n_jobs",
        random_state: Any = None,
        error_score: Any = np.nan,
        return_train_score: bool = False,
    ) -> None:
        super().__init__(
            estimator,
            param_distributions,
            n_iter=n_iter,
            scoring=scoring,
            n_jobs=n_jobs,
            refit=refit,
            cv=cv,
            shuffle=False,
            verbose=verbose,
            random_state=random_state,
            error_score=error_score,
            return_train_score=return_train_score,
        )
        self.pre_dispatch = pre_dispatch


#: The cases that fail.
EXPECTED = {
    "test_grid_search_no_score": WORDS,
    "test_no_refit": WORDS,
    "test_grid_search_failing_classifier": WORDS,
    "test_callable_multimetric_error_on_invalid_key": WORDS,
    "test_callable_multimetric_error_failing_clf": WORDS,
    "test_empty_cv_iterator_error": WORDS,
    "test_random_search_bad_cv": "get_n_splits is not asked",
    "test_custom_run_search": "a search has more attributes, such as study_",
    "test_unsupported_sample_weight_scorer": "a scorer without weights is refused with them",
    "test_multi_metric_search_forwards_metadata[GridSearchCV-param_grid]": ROUTES,
    "test_multi_metric_search_forwards_metadata[RandomizedSearchCV-param_distributions]": ROUTES,
    **{
        f"test_search_callbacks_propagation[search{search}-{refit}]": TRIALS
        for search in (0, 1)
        for refit in (True, False)
    },
}


class _Searches:
    @pytest.fixture(autouse=True)
    def expect(self, request: pytest.FixtureRequest) -> None:
        """Expect the failures of the table, and no others."""
        reason = EXPECTED.get(request.node.name)
        if reason is not None:
            request.applymarker(pytest.mark.xfail(reason=reason, strict=True))


TestSearches = type("TestSearches", (_Searches,), cases_with(GridSearchCV, RandomizedSearchCV))
