"""The request to evaluate an estimator in a cross-validation, and which results are needed."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from functools import cached_property
from functools import partial
from typing import Literal
from typing import TypeVar

import numpy as np
from sklearn import config_context
from sklearn.base import clone
from sklearn.base import is_classifier

from optuna_treecv.caching.keys import digest
from optuna_treecv.caching.results import ScoreCache
from optuna_treecv.core.cross_validation import CrossValidation
from optuna_treecv.core.repeat import Repeat
from optuna_treecv.core.routing import Metadata
from optuna_treecv.core.routing import part_of
from optuna_treecv.core.settings import Settings
from optuna_treecv.core.settings import warn_caller
from optuna_treecv.estimators.base import may_have
from optuna_treecv.estimators.base import n_columns
from optuna_treecv.estimators.base import name_of
from optuna_treecv.estimators.base import seeded
from optuna_treecv.estimators.base import unset_seeds
from optuna_treecv.preprocessing.parts import unshared
from optuna_treecv.rows.data import Data
from optuna_treecv.scoring.metrics import Loss
from optuna_treecv.scoring.metrics import Metric
from optuna_treecv.scoring.metrics import Pooled
from optuna_treecv.scoring.metrics import range_of
from optuna_treecv.scoring.metrics import response_of
from optuna_treecv.scoring.metrics import Scoring
from optuna_treecv.scoring.metrics import scoring_for
from optuna_treecv.scoring.scores import can_score_rows
from optuna_treecv.scoring.scores import FoldScores
from optuna_treecv.scoring.scores import pooled_score
from optuna_treecv.scoring.scores import scores_of_folds
from optuna_treecv.scoring.scores import scores_of_rows
from optuna_treecv.scoring.scores import SPREAD_SIZE
from optuna_treecv.scoring.scores import TestedRows
from optuna_treecv.types import Array
from optuna_treecv.types import Estimator
from optuna_treecv.types import Opaque

T = TypeVar("T")

OutputMethod = Literal["predict_proba", "decision_function", "predict"]

#: The maximum number of bytes of a trial's outputs, unless a score needs them: 64 MiB.
MAX_OUTPUT_BYTES = 2**26

#: An estimator of any library, with the parameter values to evaluate.
Candidate = Estimator


@dataclass(frozen=True, eq=False)
class Request:
    """The request to evaluate one estimator in a cross-validation.

    Attributes
    ----------
    cross_validation : CrossValidation
        The cross-validation, whose rows have been split.
    estimator : estimator
    metadata : Metadata
        The metadata, such as weights, that ``fit`` and the scorers get.
    given_epochs : int or None
        The requested number of epochs; None: no number was requested.
    asks_for_passes : bool
        Whether incrementally trained models are requested instead of the models of ``fit``.
    searched : collection of str
        The names of the parameters that a search sets. Their values in ``estimator`` are not
        checked.
    of_class : bool
        Whether to raise only errors that apply to this class of estimator with any parameters.
    is_scored : bool
        Whether the estimator is scored; otherwise it is only fitted or used for predictions.
    wants_rows : bool
        Whether the row scores of the first optimised metric are needed, if it has any.
    keeps_best : bool
        Whether the outputs of ``best_methods`` are stored although no score may need them.
    first_optimized : int
        The index of the optimised metric that is used as the first one.
    wants_average : str
        If the models of all folds are to be averaged, the beginning of the error message for
        models that cannot be averaged; otherwise "". If models are to be averaged, they are not
        shared with other runs.
    """

    cross_validation: CrossValidation
    estimator: Estimator
    metadata: Metadata
    given_epochs: int | None
    asks_for_passes: bool
    searched: Collection[str] = ()
    of_class: bool = False
    is_scored: bool = True
    wants_rows: bool = False
    keeps_best: bool = False
    wants_average: str = ""
    first_optimized: int = 0
    _found: dict[str, Opaque] = field(default_factory=dict, init=False)

    @property
    def settings(self) -> Settings:
        return self.cross_validation.settings

    @property
    def data(self) -> Data:
        return self.cross_validation.data

    @cached_property
    def classes(self) -> Array | None:
        """The sorted classes, if y is a single column of classes; else None."""
        has_one_column = self.data.y is None or self.data.y.ndim == 1
        return self.data.classes() if is_classifier(self.estimator) and has_one_column else None

    @cached_property
    def scoring(self) -> Scoring:
        """The metrics; empty if the estimator is not scored."""
        if not self.is_scored:
            return Scoring((), ())
        scoring = scoring_for(self.settings.scored_by, self.estimator, self.settings.pooled)
        return replace(scoring, optimized=scoring.optimized[self.first_optimized :])

    def once(self, name: str, compute: Callable[[], T]) -> T:
        """Return the value of ``compute()``, which is called once per request for each name."""
        if name not in self._found:
            self._found[name] = compute()
        value: T = self._found[name]
        return value

    @property
    def is_pooled(self) -> bool:
        """Whether the first optimised score is pooled, in which case it has no fold scores."""
        return isinstance(self.scoring.first, Pooled)

    @property
    def score_range(self) -> tuple[float, float] | None:
        """The bounds of the first optimised score, if it has any."""
        first = self.scoring.first
        return None if isinstance(first, Pooled) else range_of(first)

    @cached_property
    def pools(self) -> bool:
        """Whether some score is pooled."""
        return any(isinstance(metric, Pooled) for metric in self.scoring.metrics)

    @cached_property
    def needs_rows(self) -> bool:
        """Whether the scores of rows by the first optimised metric are needed."""
        # If each fold is a single row, its fold score is the row score.
        is_requested = self.settings.row_losses and not self.cross_validation.tests_single_rows
        return self.is_scored and (is_requested or (self.wants_rows and self.has_row_scores))

    @property
    def has_row_scores(self) -> bool:
        """Whether the first optimised metric is a mean over the scores of rows."""
        return can_score_rows(self.scoring.first, self.classes)

    @property
    def scored_by_row(self) -> Sequence[Metric]:
        """The metrics whose scores of single rows are needed."""
        if self.settings.method == "progressive":
            return self.scoring.metrics
        is_requested = self.settings.is_early or self.settings.row_losses
        return (self.scoring.first,) if is_requested else ()

    @cached_property
    def best_methods(self) -> tuple[OutputMethod, ...]:
        """The response methods from whose outputs everything else follows.

        These are ``predict`` and, for classifiers, ``predict_proba`` or else
        ``decision_function``.
        """
        of_classes: tuple[OutputMethod, ...] = ("predict_proba", "decision_function")
        methods = [name for name in of_classes if may_have(self.estimator, name)][:1]
        has_labels: list[OutputMethod] = ["predict"] * may_have(self.estimator, "predict")
        return (*(methods if self.classes is not None else ()), *has_labels)

    @cached_property
    def stored_methods(self) -> tuple[str, ...]:
        """The response methods whose out-of-fold outputs are stored.

        These are the methods that a score needs, and those of ``best_methods`` if ``keeps_best``
        is true and a trial's outputs take at most 64 MiB, or if all outputs are to be stored.
        """
        wanted = self.cross_validation.search.keep_outputs
        if not wanted or not self.is_scored or self.settings.method == "progressive":
            return ()
        metrics = [m.of if isinstance(m, Pooled) else m for m in self.scoring.metrics]
        metrics = [m for m in metrics if isinstance(m, Loss) or m.is_made]
        scored = {response_of(metric, self.estimator) for metric in metrics}
        names = ("predict_proba", "decision_function", "predict")
        methods = tuple(n for n in names if n in scored or n in self.best_methods)
        n_rows = sum(repeat.cut.n_tested for repeat in self.cross_validation.repeats)
        is_small = n_rows * self.bytes_per_row(methods) <= MAX_OUTPUT_BYTES
        if wanted == "all" or (self.keeps_best and is_small and not self.data.is_remote):
            return methods
        return tuple(name for name in names if name in scored)

    @property
    def needs_predictions(self) -> bool:
        """Whether the predictions for all rows are needed in addition to fold scores."""
        return self.pools or self.needs_rows or bool(self.stored_methods)

    def bytes_per_row(self, methods: Sequence[str]) -> int:
        """Return the number of bytes per row that the stored outputs of these methods take."""
        n_targets = self.cross_validation.n_targets
        n_outputs = sum(n_columns(method, self.classes, n_targets) for method in methods)
        return self.cross_validation.output_type.itemsize * n_outputs

    def compact_output(self, response: Array, method: str) -> Array:
        """Convert outputs to the compact dtype in which they are stored."""
        with np.errstate(over="ignore", invalid="ignore"):
            return response.astype(self._stored_dtype(method))

    def _stored_dtype(self, method: str) -> np.dtype[Opaque]:
        if self.classes is None:
            return self.cross_validation.output_type
        is_code = method == "predict"
        return np.dtype(np.min_scalar_type(-len(self.classes)) if is_code else np.float32)

    def empty_outputs(self, method: str) -> Array:
        """Return an uninitialized array for the stored outputs of all tested rows."""
        n_rows = sum(repeat.cut.n_tested for repeat in self.cross_validation.repeats)
        n_outputs = n_columns(method, self.classes, self.cross_validation.n_targets)
        shape = (n_rows,) if n_outputs == 1 else (n_rows, n_outputs)
        return np.empty(shape, self._stored_dtype(method))

    def fit_on_all_rows(self, candidate: Candidate) -> Estimator:
        """Return a clone of a candidate that is fitted on all rows as given.

        During ``fit``, the seed of the cross-validation replaces each ``random_state=None``. Warn
        if ``fit`` will read more rows into memory than ``max_memory`` allows.
        """
        data = self.data
        data.require_local(f"fit of {name_of(candidate)}", "; use refit=False instead")
        if data.is_large:
            warn_caller(
                f"max_memory does not limit the final fit: fit of {name_of(candidate)} needs all "
                f"rows in memory, {data.n_bytes / 1e6:,.0f} MB, and usually copies them."
            )
        fitted = seeded(clone(candidate), self.settings.seed)
        X, y = unshared(candidate, data.X_given), data.y_given
        params = part_of(self.metadata.to_fit(candidate), X, None)
        routing = config_context(enable_metadata_routing=self.metadata.is_routed)
        with routing if params else nullcontext():
            fitted.fit(X, *(() if y is None else (y,)), **params)
        if unset := unset_seeds(candidate):
            parameters = candidate.get_params(deep=True)
            fitted.set_params(**{name: parameters[name] for name in unset})
        return fitted


@dataclass(frozen=True)
class FoldScorer:
    """Scores the predictions of a candidate by the metrics of a request.

    Attributes
    ----------
    request : Request
    estimator : estimator
        The candidate.
    """

    request: Request
    estimator: Estimator

    def score_folds(
        self, rows: TestedRows, called: Mapping[int, Array] | None = None
    ) -> FoldScores:
        """Return the fold scores by all metrics.

        ``called`` has the scores by the scorers that are called once per fold, by metric index.
        """
        request = self.request
        metrics, classes = request.scoring.metrics, request.classes
        return scores_of_folds(metrics, rows, self.estimator, classes, called)

    def score_rows(self, rows: TestedRows) -> Array:
        """Return the score of each row by the first optimised metric, as float64."""
        request = self.request
        return scores_of_rows(request.scoring.first, rows, self.estimator, request.classes)

    def score_pooled(self, rows: TestedRows) -> Array:
        """Return the pooled scores of a repeat and their standard errors, (n_metrics, 2)."""
        metrics = self.request.scoring.metrics
        scores = np.full((len(metrics), 2), np.nan)
        for number, metric in enumerate(metrics):
            if isinstance(metric, Pooled):
                scores[number] = pooled_score(metric, rows, self.estimator, self.request.classes)
        return scores


def folds_key(request: Request, repeat: Repeat) -> bytes:
    """Return a key for the folds of a repeat and the order of their rows."""
    name = partial(digest, repeat.key, repeat.cut.order.tobytes())
    return request.cross_validation.fact(("folds", repeat.number), name)


def score_cache(
    request: Request, repeat: Repeat, engine: str, parts: Sequence[object]
) -> ScoreCache:
    """Return the cache for the scores of a repeat.

    ``ScoreCache.for_candidate`` adds the free parameters of a candidate to its key.
    """
    cross_validation = request.cross_validation
    cache, data = cross_validation.shared.cache, cross_validation.data_key()
    folds = folds_key(request, repeat)
    return ScoreCache.of(cache, data, folds, engine, parts, request.scoring)


def packed_sizes(request: Request, repeat: Repeat) -> list[int]:
    """Return the lengths of the arrays that ``scorebook.pack`` stores for a repeat."""
    n_metrics, n_folds = len(request.scoring.metrics), repeat.cut.n_folds
    has_spreads = not request.cross_validation.tests_single_rows
    n_spreads = SPREAD_SIZE * n_metrics * n_folds * has_spreads
    return [n_metrics * n_folds, n_spreads, n_folds, 2 * n_metrics, 1]
