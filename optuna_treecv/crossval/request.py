"""An estimator that an evaluation is asked for, and what of its results is there already."""

from __future__ import annotations

from typing import Any
from typing import NamedTuple

from optuna_treecv.crossval.early_scores import Judge
from optuna_treecv.crossval.evaluation import Evaluation
from optuna_treecv.crossval.repeat import Repeat
from optuna_treecv.scoring import Scoring
from optuna_treecv.sharing.results import Results
from optuna_treecv.sharing.results import RowsIdentity
from optuna_treecv.tree.learner import Learner


class Bound(NamedTuple):
    """An estimator bound to the rows of a repeat.

    Attributes
    ----------
    learner : Learner
    identity : RowsIdentity
        The names of the rows.
    results : Results or None
        Where the results are kept; None if the estimator has no key.
    """

    learner: Learner
    identity: RowsIdentity
    results: Results | None


class Request:
    """An estimator that is to be evaluated.

    Attributes
    ----------
    evaluation : Evaluation
    estimator : estimator
    scoring : Scoring
    cache : ModelCache, StoredModelCache or None
        Where the estimator's models and results are kept.
    ahead : dict
        By repeat, the results that were computed before it is iterated over, with their
        ``n_bytes``. They go when they are used, or with the request.
    bound : Bound or None
        The estimator bound to the rows of the first repeat.
    names : dict
        By repeat, the names of the results, where looking them up takes time.
    is_leased : bool
        Whether other processes may wait for the outputs, so that they go to the store at once.
    needs_rows : bool
        Whether the scores of single rows are asked for, by the first optimised metric.
    judge : Judge or None
        Decides who is left out of those that are evaluated together with it; None: nobody.
    average : FoldAverage or None
        Takes the models of the folds if they are to be averaged; nothing is shared then.
    n_epochs : int
        The number of epochs for which models are trained.
    comes_again : bool
        Whether another run may have the same parameters, so that its results go to the store.
    """

    def __init__(self, evaluation: Evaluation, estimator: Any, scoring: Scoring) -> None:
        self.evaluation = evaluation
        self.estimator = estimator
        self.scoring = scoring
        self.cache = evaluation.shared.cache_for(estimator)
        self.ahead: dict[int, Any] = {}
        self.bound: Bound | None = None
        self.names: dict[int, Any] = {}
        self.is_leased = False
        self.needs_rows = False
        self.judge: Judge | None = None
        self.average: Any = None
        self.n_epochs = 1
        self.comes_again = True

    @property
    def repeats(self) -> list[Repeat]:
        """The repeats of the evaluation, for the epochs of this estimator."""
        return self.evaluation.repeats_for(self.n_epochs)
