"""The engines "boosting" and "bagging": ensembles of other libraries that grow tree by tree.

The first trees of an ensemble are the ensemble that a fit with fewer trees makes. So one growth
per fold tells the scores for all numbers of trees, and a trial can be left while its trees grow.
"""

from collections.abc import Generator
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.base import is_classifier

from optuna_treecv.core.engine import Capabilities
from optuna_treecv.core.engine import Declined
from optuna_treecv.core.engine import Event
from optuna_treecv.core.engine import Failed
from optuna_treecv.core.engine import Plan
from optuna_treecv.core.engine import Results
from optuna_treecv.core.engine import results_of
from optuna_treecv.core.engine import Work
from optuna_treecv.core.repeat import Repeat
from optuna_treecv.core.request import Candidate
from optuna_treecv.core.request import kept_scores
from optuna_treecv.core.request import Request
from optuna_treecv.core.settings import OF_ENGINES
from optuna_treecv.engines.ensembles.growing_folds import GrowingFolds
from optuna_treecv.engines.ensembles.growing_folds import of_size
from optuna_treecv.engines.ensembles.growing_folds import seed_of
from optuna_treecv.engines.ensembles.growth import Growth
from optuna_treecv.engines.ensembles.growth import kind_of
from optuna_treecv.estimators.base import divided
from optuna_treecv.estimators.base import name_of
from optuna_treecv.estimators.base import seeded
from optuna_treecv.plans.fits import cost_of_trainings
from optuna_treecv.plans.fits import responses_of_fits
from optuna_treecv.plans.joint import why_not_scored
from optuna_treecv.rows.checks import is_integer
from optuna_treecv.scoring.metrics import Pooled


def plan_growth(name: str, request: Request) -> Plan | Declined:
    """Return a plan for an ensemble that grows tree by tree."""
    prefix, last = divided(request.estimator)
    kind = kind_of(last)
    is_mine = kind is not None and kind.is_boosted == (name == "boosting")
    why_not = f"{type(last).__name__} does not grow tree by tree"
    if kind is not None and is_mine:
        why_not = _why_not(request, kind, last)
    if kind is None or why_not:
        advice = (
            f"method={name!r} must have an ensemble that grows tree by tree, alone or at "
            f"the end of a Pipeline, but {why_not}; method='auto' would be right."
        )
        free = () if kind else request.estimator.get_params(deep=True)
        return Declined(why_not, advice, free, 2 if is_mine else 0)
    _check(request, kind, prefix, last)
    return GrowingPlan(request, name)


plan_boosting, plan_bagging = partial(plan_growth, "boosting"), partial(plan_growth, "bagging")


def _why_not(request: Request, kind: type[Growth], last: Any) -> str:
    """Return why an ensemble does not grow here, a clause."""
    data, size = request.data, kind.n_trees_of(last)
    if not is_integer(size) or size < 1:
        return f"{kind.size} is no positive integer"
    if why := kind.why_not(last) or request.metadata.why_not_by_sums(request.estimator):
        return why
    if data.y is None or data.y.ndim > 1:
        return "y has several columns" if data.y is not None else "y is missing"
    fewest = request.cross_validation.fewest_trained
    if is_classifier(last) and fewest(of_classes=True)[1] == 0:
        return "a training set lacks a class"
    return why_not_scored(request)


def _check(request: Request, kind: type[Growth], prefix: str, last: Any) -> None:
    """Refuse early stopping on rows that there are not; the library refuses the rest."""
    settings, n_repeats = request.settings, request.cross_validation.n_repeats
    is_best = settings.n_estimators is not None
    if not is_best and (patience := kind.patience(last)):
        raise ValueError(
            f"n_estimators must be 'best' for {name_of(last)} that stops after {patience} "
            "trees without a better score, since it is the mean score of the folds that "
            "decides then, and fit would need further rows; got None."
        )
    if settings.truncate:
        _check_truncated(request, kind, prefix, last)
    scoring = settings.scored_by
    pools = scoring is not None and isinstance(scoring.first, Pooled)
    if is_best and (n_repeats > 1 or pools):
        given = "a pooled score" if pools else f"{n_repeats} repeats"
        raise ValueError(
            "n_estimators='best' needs one repeat and a score of each fold, since it takes "
            f"the best mean over the folds, got {given}."
        )


def _check_truncated(request: Request, kind: type[Growth], prefix: str, last: Any) -> None:
    """Refuse cuts at a depth where trees of this depth would differ by more than chance."""
    searched = request.cross_validation.search.ends
    if kind.is_boosted or f"{prefix}max_depth" not in searched:
        raise ValueError(
            "truncate must be False unless max_depth of a forest is searched, got True for "
            f"{name_of(request.estimator)}."
        )
    for name in ("max_leaf_nodes", "ccp_alpha"):
        if getattr(last, name) or prefix + name in searched:
            raise ValueError(
                f"truncate must be False where {name} is given or searched, since it gives "
                "trees of less depth that cuts of deeper ones are not; got True."
            )


class GrowingPlan(Plan):
    """One ensemble per fold, scored along the way."""

    reason = "one growth per fold tells the scores of all numbers of trees"

    def __init__(self, request: Request, name: str) -> None:
        super().__init__(request)
        self.name = name
        self.capabilities = Capabilities(
            early_reports="trees",
            caches_responses=True,
            why_one_epoch="its trees grow once",
            needs_memory="its library takes them as arrays",
            falls_back=request.settings.n_estimators is None,
            settings=OF_ENGINES,
            with_size=of_size,
        )

    def cost(self) -> str:
        """Return the number of growths and of their rows."""
        return cost_of_trainings(self.request, "growths")

    def results(self, candidate: Candidate, repeat: Repeat) -> Results:
        """Return what names the scores of all folds; for the best number of trees, none."""
        request, settings = self.request, self.request.settings
        parts = [seeded(clone(candidate), seed_of(request, self.repeats[0]))]
        point = settings.n_estimators, settings.truncate, seed_of(request, repeat)
        kept = kept_scores(request, repeat, self.name, parts).at(point)
        results = results_of(request, repeat, kept)
        return results if settings.n_estimators is None else results._replace(specs={})

    def evaluate(self, work: Work) -> Generator[Event]:
        """Grow the trees of the folds; if the library refuses something, they are refitted."""
        (candidate,), (sink,), repeat, _, watch, _ = work
        growing = GrowingFolds(self.request, self.name, candidate, repeat, sink)
        try:
            with closing(growing):
                if watch is not None:
                    yield from growing.events(watch)
                for part in repeat.parts:
                    yield from growing.tested(part)
        except ValueError as error:
            yield Failed(error, f"growing its trees has failed: {error}", stands=False)

    def predict(self, candidate: Candidate, repeat: Repeat, method: str) -> np.ndarray:
        """Return the responses of the fits of the folds."""
        return responses_of_fits(self.request, candidate, repeat, method)
