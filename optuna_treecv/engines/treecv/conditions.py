"""Decides which requests the incremental engines accept, and gives reasons to decline others."""

from collections.abc import Collection
from math import log2
from typing import Any
from typing import NamedTuple

import numpy as np
from scipy import sparse
from sklearn import get_config
from sklearn.base import is_classifier
from sklearn.naive_bayes import CategoricalNB
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import Pipeline

from optuna_treecv.caching.keys import digest
from optuna_treecv.caching.keys import encode
from optuna_treecv.caching.keys import first_key
from optuna_treecv.caching.keys import is_ours
from optuna_treecv.caching.keys import lasting_key
from optuna_treecv.core.cross_validation import CrossValidation
from optuna_treecv.core.request import Request
from optuna_treecv.estimators.base import as_given
from optuna_treecv.estimators.base import CompiledEstimator
from optuna_treecv.estimators.base import is_grown
from optuna_treecv.estimators.base import last_step
from optuna_treecv.estimators.base import MOST_EPOCHS
from optuna_treecv.estimators.base import name_of
from optuna_treecv.estimators.incremental import check_incremental
from optuna_treecv.estimators.incremental import is_incremental
from optuna_treecv.estimators.incremental import NAIVE_BAYES
from optuna_treecv.estimators.incremental import refused_setting
from optuna_treecv.estimators.incremental import trained_parts
from optuna_treecv.estimators.incremental import why_fit_differs
from optuna_treecv.preprocessing.decisions import compiled_part
from optuna_treecv.preprocessing.decisions import DividedPipeline
from optuna_treecv.preprocessing.decisions import has_branches
from optuna_treecv.preprocessing.decisions import split
from optuna_treecv.preprocessing.decisions import split_in_python
from optuna_treecv.preprocessing.decisions import why_not_incremental_transformers
from optuna_treecv.preprocessing.fitted import FittedSteps
from optuna_treecv.preprocessing.parts import Kind
from optuna_treecv.preprocessing.parts import leaves_of
from optuna_treecv.preprocessing.placeholders import with_placeholders
from optuna_treecv.rows.checks import as_numbers
from optuna_treecv.rows.checks import is_integer
from optuna_treecv.rows.folds import Folds
from optuna_treecv.rows.layout import RowLayout

#: The reason for declining an estimator that has ``fit`` but no ``partial_fit``.
NO_PARTIAL_FIT = "it has no partial_fit"

# The maximal number of pairs of consecutive rows whose targets are compared.
_MAX_PAIRS = 1000

# If rows that follow each other in the tree are, on average, less than this fraction of n_rows
# apart in X, the folds count as keeping the order of X. In a random order, this distance is n_rows
# / 3.
_MAX_MEAN_DISTANCE = 0.25

# Targets of consecutive rows are similar if their mean difference is below this fraction of the
# mean difference between the targets of distant rows.
_MAX_RATIO = 0.8

# The difference between these two means must also exceed this number of standard errors.
_MIN_ERRORS = 4.0


def why_no_tree(request: Request) -> str:
    """Return the reason why the tree cannot evaluate the request; "" if it can."""
    cut, why_not = request.cross_validation.repeats[0].cut, why_no_passes(request)
    if not why_not and not isinstance(cut, Folds):
        why_not = cut.why_no_tree or "its training sets grow from fold to fold"
    return why_not


def why_no_passes(request: Request) -> str:
    """Return why "auto" does not train incrementally, considering the metadata, too; else ""."""
    if why := why_not_incremental(request):
        return why
    if request.settings.method == "treecv" or not hasattr(request.estimator, "fit"):
        return ""
    return request.metadata.reason_not_incremental(request.estimator)


def why_not_incremental(request: Request) -> str:
    """Return the reason why "auto" does not train the estimator incrementally; else "".

    The reason does not depend on the folds or on metadata such as weights.
    """
    estimator = request.estimator
    if is_grown(estimator):
        return "the splits of its nodes are searched again for each training set"
    if request.settings.method == "treecv":
        return ""
    if not request.asks_for_passes:
        # All trials of a search over max_iter are refit per fold, even those with max_iter=1.
        ends = request.cross_validation.search.ends
        others = [name for name in ends if name.endswith("max_iter")]
        if why := why_fit_differs(estimator, request.searched or others):
            return why
    if why := why_not_incremental_transformers(estimator) or why_naive_bayes_differs(request):
        return why
    before = preprocessing_of(request)
    if not isinstance(before, str) or is_incremental(estimator):
        return ""
    if is_grown(last_step(estimator)):
        return "the trees of all folds are grown together only without preprocessing"
    return before or refused_setting(estimator) or NO_PARTIAL_FIT


def why_no_chain(request: Request) -> str:
    """Return the reason why "auto" does not train one model forward in time; else "".

    Most learners shuffle the rows in ``fit``, but a chain trains in the order of time, so the last
    rows may have the largest influence. The models of a chain equal those of ``fit`` only if they
    do not depend on the order of the rows.
    """
    estimator, last = request.estimator, last_step(request.estimator)
    is_requested = request.settings.method == "treecv" or not hasattr(estimator, "fit")
    # If n_epochs is a parameter of the estimator itself, its ``fit`` makes the same passes.
    if is_requested or (request.asks_for_passes and not hasattr(estimator, "n_epochs")):
        return ""
    if not (isinstance(last, NAIVE_BAYES) or getattr(last, "has_epochs", True) is False):
        return (
            f"the model of {name_of(last)} depends on the order of the rows, and a chain would "
            "train it in the order of time"
        )
    if isinstance(estimator, Pipeline):
        if first := next(leaves_of("", Pipeline(estimator.steps[:-1])), None):
            return (
                f"a chain would fit {name_of(first[1])} only to the rows seen so far, but fit of "
                "the Pipeline first fits it to all training rows"
            )
    return ""


def why_naive_bayes_differs(request: Request) -> str:
    """Return why naive Bayes models in the tree may differ from those of ``fit``; else ""."""
    models = [
        part for _, part in trained_parts(request.estimator) if isinstance(part, NAIVE_BAYES)
    ]
    if not models:
        return ""
    cross_validation, weights = request.cross_validation, request.metadata.weights
    if cross_validation.smallest_training_set(of_classes=True)[1] == 0:
        return "a training set lacks a class, so fit would not learn this class"
    has_zero = weights is not None and not np.all(weights)
    if has_zero and any(isinstance(model, CategoricalNB) for model in models):
        return "fit of CategoricalNB also learns the categories of rows with weight 0"
    if any(isinstance(model, GaussianNB) for model in models):
        if cross_validation.fact("squares overflow", lambda: _squares_overflow(request.data.X)):
            return "the sums of squares of the values in X overflow"
    return ""


def _squares_overflow(X: Any) -> bool:
    """Return whether sums of squares may overflow; False for X other than arrays of floats."""
    if not isinstance(X, np.ndarray) or X.dtype.kind != "f":
        return False
    return max(-X.min(), X.max()) > np.sqrt(np.finfo(X.dtype).max / len(X))


def check_incremental_estimator(request: Request) -> None:
    """Raise if metadata, preprocessing or parameters prevent incremental training."""
    estimator, searched = request.estimator, request.searched
    if why := request.metadata.reason_not_incremental(estimator):
        argument = "params" if request.metadata.others else "sample_weight"
        hint = "; use method='fit' instead" if hasattr(estimator, "fit") else ""
        raise ValueError(f"{argument} must be None for {name_of(estimator)}, because {why}{hint}.")
    parts = split(estimator)
    # For a Pipeline without branches (ColumnTransformer, FeatureUnion), the error of
    # check_incremental below names the step that has no partial_fit.
    if not searched and (not isinstance(parts, str) or has_branches(estimator)):
        before = preprocessing_of(request)
        if isinstance(before, str) and before and not is_incremental(estimator):
            raise ValueError(
                f"method must be 'fit' or 'auto' for this {name_of(estimator)}, got "
                f"{request.settings.method!r}: {before}."
            )
    if isinstance(parts, str):
        try:
            check_incremental(estimator, request.of_class)
        except ValueError as error:
            raise ValueError(f"{error} Use method='fit' to refit it on each fold.") from error
        if isinstance(estimator, CompiledEstimator):
            estimator.check_parameters(but=searched)
    elif isinstance(parts.last, CompiledEstimator):
        n_prefix = len(parts.prefix)
        searched_of_last = [name[n_prefix:] for name in searched if name.startswith(parts.prefix)]
        parts.last.check_parameters(but=searched_of_last)


def free_parameters_of(request: Request) -> Collection[str]:
    """Return the parameters that a candidate may change without a new plan.

    These are the parameters in which the candidates of a batch may differ. They are all parameters
    if the last step has no ``partial_fit``, because then the request is declined whatever their
    values. A user's own class has no such parameters, because its behaviour may depend on their
    values.
    """
    estimator, last = request.estimator, last_step(request.estimator)
    if isinstance(last, CompiledEstimator):
        return lane_parameters(estimator) if is_ours(type(last)) else ()
    may_be_trained = hasattr(last, "partial_fit") or is_grown(last)
    return () if may_be_trained or as_given(last) is not last else estimator.get_params()


def lane_parameters(estimator: Any) -> tuple[str, ...]:
    """Return the parameters in which the candidates of a batch may differ; () without batches."""
    if isinstance(estimator, CompiledEstimator):
        return estimator.lane_parameters
    parts = split(estimator)
    if isinstance(parts, str) or not parts.is_compiled:
        return ()
    return tuple(parts.prefix + name for name in parts.last.lane_parameters)


def n_epochs_of(request: Request, method: str) -> int:
    """Return the number of epochs that the request or the estimator's ``n_epochs`` gives."""
    estimator = request.estimator
    requested = request.given_epochs or 1
    own_epochs = _epochs_of(estimator, request.searched)
    if requested > 1 and own_epochs > 1:
        raise ValueError(
            "n_epochs must be given either to the evaluation or to the estimator, got n_epochs="
            f"{requested} for the evaluation and n_epochs={own_epochs} for {name_of(estimator)}."
        )
    if requested > 1 and any(name.rpartition("__")[2] == "n_epochs" for name in request.searched):
        raise ValueError(f"n_epochs must be None if n_epochs is searched, got {requested}.")
    n_epochs = max(requested, own_epochs)
    last, report = last_step(estimator), request.settings.report
    if n_epochs == 1:
        return 1
    if isinstance(last, CompiledEstimator) and not last.has_epochs:
        raise ValueError(
            f"n_epochs must be 1 for {name_of(estimator)}, got {n_epochs}: the model is "
            "exact after one pass over the rows."
        )
    if method == "progressive":
        raise ValueError(
            f"n_epochs must be 1 with method='progressive', got {n_epochs}: each row must "
            "be tested before the model is trained on that row."
        )
    if request.settings.is_early:
        raise ValueError(
            f"report must be 'folds', 'mean' or None with several epochs, got {report!r} with "
            f"n_epochs={n_epochs}: early scores need rows on which the model has not been "
            "trained, but later epochs repeat rows."
        )
    return n_epochs


def _epochs_of(estimator: Any, searched: Collection[str]) -> int:
    """Return the largest ``n_epochs`` of this package's estimators in an estimator, at least 1."""
    most = 1
    for prefix, part in trained_parts(estimator, "", searched):
        is_searched = f"{prefix}n_epochs" in searched
        if not isinstance(part, CompiledEstimator) or not part.has_epochs or is_searched:
            continue
        if not is_integer(part.n_epochs) or not 1 <= part.n_epochs <= MOST_EPOCHS:
            raise ValueError(
                f"{prefix}n_epochs must be an integer from 1 to {MOST_EPOCHS}, got "
                f"{part.n_epochs!r}."
            )
        most = max(most, int(part.n_epochs))
    return most


def why_in_memory(request: Request, n_epochs: int) -> str:
    """Return why the rows must be in memory; "" if a few sequential readings suffice."""
    if request.settings.order == "random":
        return "order='random' reads the rows of each phase in a random order"
    if n_epochs > 1:
        return "several epochs read the rows again in random order"
    parts, X = split(request.estimator), request.data.X
    if not isinstance(parts, str) and not {*parts.kinds.values()} <= {Kind.COMPILED}:
        return "its preprocessing transforms all rows before training begins"
    is_numeric = sparse.issparse(X) or (isinstance(X, np.ndarray) and X.dtype.kind in "biuf")
    if compiled_part(request.estimator) is None and not is_numeric:
        return "its partial_fit takes rows of X as they were passed, not rows from a file"
    return ""


def cost_of_tree(request: Request, n_epochs: int) -> str:
    """Return a sentence that compares the row updates of a tree with those of k trainings."""
    cross_validation = request.cross_validation
    n_standard = n_epochs * cross_validation.n_updates_standard
    if cross_validation.n_folds == 1:
        return f"One model is trained, in {n_standard:,} row updates, and tested on other rows."
    return (
        f"A tree over {cross_validation.folds_in_words} of {request.data.n_rows:,} rows takes at "
        f"most {n_epochs * most_updates(cross_validation):,} row updates; k trainings from "
        f"scratch take {n_standard:,}."
    )


def most_updates(cross_validation: CrossValidation) -> int:
    """Return an upper bound of the row updates per epoch, for the trees of all repeats."""
    n_rows, n_folds = cross_validation.data.n_rows, cross_validation.n_folds
    return int(n_rows * log2(2 * n_folds)) * cross_validation.n_repeats


def warning_of_order(request: Request) -> str:
    """Return a warning if the tree trains in the order of sorted rows, but ``fit`` shuffles them.

    Return "" if folds or rows are drawn at random, or if consecutive targets are not similar.
    """
    last, data = last_step(request.estimator), request.data
    cut, y = request.cross_validation.repeats[0].cut, data.y
    shuffles = isinstance(last, CompiledEstimator) and last.has_epochs and last.shuffle
    if not shuffles or request.settings.order == "random" or not isinstance(cut, Folds):
        return ""
    if y is None or y.ndim > 1 or len(y) < 3:
        return ""
    positions = np.linspace(0, len(y) - 2, min(len(y) - 1, _MAX_PAIRS)).astype(np.intp)
    order = cut.order
    distances = np.abs(order[positions + 1].astype(np.int64) - order[positions].astype(np.int64))
    if distances.mean() >= _MAX_MEAN_DISTANCE * len(y):
        return ""
    are_classes = is_classifier(request.estimator)
    targets = data.codes() if are_classes else as_numbers(y)
    if not _are_similar(targets[positions], targets[positions + 1], are_classes):
        return ""
    return (
        "The rows have an order in which consecutive rows have similar targets. The tree trains "
        f"{name_of(request.estimator)} in this order, but fit shuffles the rows. The models of "
        "fit may therefore be better than the scores suggest. Use KFold(..., shuffle=True), an "
        "int as cv with shuffle=True, or method='fit' instead."
    )


def _are_similar(targets: np.ndarray, following: np.ndarray, are_classes: bool) -> bool:
    """Return whether targets are more similar to the next row's target than to distant targets."""
    differ = np.not_equal if are_classes else np.subtract
    distant = np.roll(targets, len(targets) // 2)
    near, far = (np.abs(differ(targets, other)).astype(float) for other in (following, distant))
    error = np.sqrt((near.var() + far.var()) / len(near))
    gain = far.mean() - near.mean()
    return bool(near.mean() < _MAX_RATIO * far.mean() and gain > _MIN_ERRORS * error)


class Preprocessing(NamedTuple):
    """The preprocessing of a Pipeline, which is prepared before the last step is trained.

    Attributes
    ----------
    steps : FittedSteps
    name : bytes
        The key of the steps.
    layout : RowLayout
        The layout of the rows that the last step needs.
    why_python : str
        The reason why transformers that are fitted per fold run in Python although the last step
        is compiled; "" if no transformer does.
    """

    steps: FittedSteps
    name: bytes
    layout: RowLayout
    why_python: str


def preprocessing_of(request: Request) -> Preprocessing | str:
    """Return the prepared preprocessing of a Pipeline, or the reason why it cannot be prepared.

    The reason is "" for an estimator without preprocessing.
    """
    return request.once("preprocessing", lambda: _preprocessing_of(request))


def _preprocessing_of(request: Request) -> Preprocessing | str:
    parts = split(request.estimator)
    if isinstance(parts, str):
        return parts
    before = _fit_preprocessing(request, parts)
    if isinstance(before, str) and parts.is_compiled:
        in_python = split_in_python(request.estimator, before)
        if isinstance(in_python, DividedPipeline):
            other = _fit_preprocessing(request, in_python)
            before = before if isinstance(other, str) else other
    return before


def _fit_preprocessing(request: Request, parts: DividedPipeline) -> Preprocessing | str:
    """Return the fitted preprocessing of a divided Pipeline, or the reason why there is none."""
    cross_validation = request.cross_validation
    cuts, of_rows = [repeat.cut for repeat in cross_validation.repeats], cross_validation.steps
    # Learners in Python depend on whether transformers return data frames, kernels do not.
    form: Any = get_config()["transform_output"]
    if parts.is_compiled:
        form = parts.last.row_layout.sparse
    before = with_placeholders("", parts.before, parts.kinds)
    name = first_key(before, encode, lasting_key)
    name = name and digest(name, parts.prefix.encode(), encode(form))

    def make() -> FittedSteps | str:
        fitted = FittedSteps(parts, of_rows.X, of_rows.y)
        return fitted.why_form_varies(cuts) or fitted

    steps = of_rows.fitted(name, make)
    if isinstance(steps, str):
        return steps
    assert name is not None
    n_known, n_rows = steps.fewest_known(parts.last), cuts[0].n_rows
    # Each training set must contain, for each column, at least one row with a value.
    if n_known is not None and any(
        cut.count(np.ones(n_rows, bool))[0].min() <= n_rows - n_known for cut in cuts
    ):
        return (
            f"a fold may hold out all {n_known} rows in which some column of a SimpleImputer "
            "has a value, and keep_empty_features is False"
        )
    return Preprocessing(steps, name, steps.layout_for(parts.pipeline), parts.why_python)
