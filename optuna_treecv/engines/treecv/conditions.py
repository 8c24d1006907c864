"""Which requests the incremental engines take, and the reasons why they decline others."""

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
from optuna_treecv.preprocessing.decisions import why_rows_age
from optuna_treecv.preprocessing.fitted import FittedSteps
from optuna_treecv.preprocessing.parts import Kind
from optuna_treecv.preprocessing.parts import leaves_of
from optuna_treecv.preprocessing.placeholders import with_placeholders
from optuna_treecv.rows.checks import as_numbers
from optuna_treecv.rows.checks import is_integer
from optuna_treecv.rows.folds import Folds
from optuna_treecv.rows.layout import RowLayout

#: Why an estimator that only has ``fit`` is not trained further.
NO_PARTIAL_FIT = "it has no partial_fit"

# Pairs of neighbouring rows that are looked at.
_PAIRS = 1000

# Neighbours in the tree are near each other in the data as given if their mean distance is below
# this share of the number of rows; in random order it is a third.
_NEAR = 0.25

# Targets of neighbouring rows are alike if they differ by less than this share of what those of
# distant rows differ by, and by this number of standard errors less.
_ALIKE, _ERRORS = 0.8, 4.0


def why_no_tree(request: Request) -> str:
    """Return why the tree does not train an estimator on these folds."""
    cut, why_not = request.cross_validation.repeats[0].cut, why_not_in_tree(request)
    if not why_not and not isinstance(cut, Folds):
        why_not = cut.why_no_tree or "the training sets of its folds grow"
    return why_not


def why_not_in_tree(request: Request) -> str:
    """Return why "auto" does not train an estimator further on these rows and weights."""
    if why := why_not_trained_further(request):
        return why
    if request.settings.method == "treecv" or not hasattr(request.estimator, "fit"):
        return ""
    return request.metadata.why_not_further(request.estimator)


def why_not_trained_further(request: Request) -> str:
    """Return why "auto" does not train an estimator further whatever the rows are, a clause."""
    estimator = request.estimator
    if is_grown(estimator):
        return "its nodes are searched anew and not trained further"
    if request.settings.method == "treecv":
        return ""
    if not request.asks_for_passes:
        # The trials of a search over max_iter are all fitted, those with max_iter=1 too.
        ends = request.cross_validation.search.ends
        others = [name for name in ends if name.endswith("max_iter")]
        if why := why_fit_differs(estimator, request.searched or others):
            return why
    if why := why_rows_age(estimator) or why_counts_differ(request):
        return why
    front = front_of(request)
    if not isinstance(front, str) or is_incremental(estimator):
        return ""
    if is_grown(last_step(estimator)):
        return "the trees of all folds are grown together only without steps before them"
    return front or refused_setting(estimator) or NO_PARTIAL_FIT


def why_not_in_time(request: Request) -> str:
    """Return the reason why "auto" does not train one model forward through time; else "".

    ``fit`` of most learners reads the rows in random order, and the last rows in the order of time
    may count most. Only models that do not depend on the order of the rows are those of ``fit``.
    """
    estimator, last = request.estimator, last_step(request.estimator)
    is_asked = request.settings.method == "treecv" or not hasattr(estimator, "fit")
    # A search over the n_epochs of the estimator itself asks for no other model than fit.
    if is_asked or (request.asks_for_passes and not hasattr(estimator, "n_epochs")):
        return ""
    if not (isinstance(last, NAIVE_BAYES) or getattr(last, "has_epochs", True) is False):
        return (
            f"the model of {name_of(last)} depends on the order of the rows, and a chain trains "
            "it in the order of time"
        )
    if isinstance(estimator, Pipeline):
        for _, step in leaves_of("", Pipeline(estimator.steps[:-1])):
            return (
                f"a chain fits {name_of(step)} to the rows up to each time, and fit to all "
                "training rows before the model"
            )
    return ""


def why_counts_differ(request: Request) -> str:
    """Return why naive Bayes in the tree may be another model than its fit, a clause; else ""."""
    models = [
        part for _, part in trained_parts(request.estimator) if isinstance(part, NAIVE_BAYES)
    ]
    if not models:
        return ""
    cross_validation, weights = request.cross_validation, request.metadata.weights
    if cross_validation.fewest_trained(of_classes=True)[1] == 0:
        return "a training set lacks a class, which fit would not know"
    has_zero = weights is not None and not np.all(weights)
    if has_zero and any(isinstance(one, CategoricalNB) for one in models):
        return "CategoricalNB knows the categories of rows whose weight is 0"
    if any(isinstance(one, GaussianNB) for one in models):
        if cross_validation.fact("squares overflow", lambda: _squares_overflow(request.data.X)):
            return "squares of numbers in X overflow"
    return ""


def _squares_overflow(X: Any) -> bool:
    """Return whether sums of squares may be infinite, if the rows are an array of floats."""
    if not isinstance(X, np.ndarray) or X.dtype.kind != "f":
        return False
    return max(-X.min(), X.max()) > np.sqrt(np.finfo(X.dtype).max / len(X))


def check_incremental_estimator(request: Request) -> None:
    """Refuse metadata, steps and parameters with which an estimator cannot be trained."""
    estimator, searched = request.estimator, request.searched
    if why := request.metadata.why_not_further(estimator):
        argument = "params" if request.metadata.others else "sample_weight"
        right = "; method='fit' would use it" if hasattr(estimator, "fit") else ""
        raise ValueError(
            f"{argument} must be None for {name_of(estimator)}, because {why}{right}."
        )
    parts = split(estimator)
    # Where all steps stand in a row, the error below says which one cannot be trained.
    if not searched and (not isinstance(parts, str) or has_branches(estimator)):
        front = front_of(request)
        if isinstance(front, str) and front and not is_incremental(estimator):
            raise ValueError(
                f"method must be 'fit' or 'auto' for this {name_of(estimator)}, because {front}, "
                f"got {request.settings.method!r}."
            )
    if isinstance(parts, str):
        try:
            check_incremental(estimator, request.of_class)
        except ValueError as error:
            raise ValueError(f"{error} With method='fit' each fold is fitted anew.") from error
        if isinstance(estimator, CompiledEstimator):
            estimator.check_parameters(but=searched)
    elif isinstance(parts.last, CompiledEstimator):
        n_prefix = len(parts.prefix)
        of_last = [name[n_prefix:] for name in searched if name.startswith(parts.prefix)]
        parts.last.check_parameters(but=of_last)


def free_parameters_of(request: Request) -> Collection[str]:
    """Return those of lanes, and all where the last step has no ``partial_fit``.

    There are none of a user's own class, which may decide by their values.
    """
    estimator, last = request.estimator, last_step(request.estimator)
    if isinstance(last, CompiledEstimator):
        return lane_parameters(estimator) if is_ours(type(last)) else ()
    is_open = hasattr(last, "partial_fit") or is_grown(last)
    return () if is_open or as_given(last) is not last else estimator.get_params()


def lane_parameters(estimator: Any) -> tuple[str, ...]:
    """Return the parameters in which estimators on lanes may differ; none: it has no lanes."""
    if isinstance(estimator, CompiledEstimator):
        return estimator.lane_parameters
    parts = split(estimator)
    if isinstance(parts, str) or not parts.is_compiled:
        return ()
    return tuple(parts.prefix + name for name in parts.last.lane_parameters)


def n_epochs_of(request: Request, method: str) -> int:
    """Return the epochs that the settings ask for, or the estimator itself."""
    estimator = request.estimator
    of_request = request.given_epochs or 1
    of_estimator = _epochs_of(estimator, request.searched)
    if of_request > 1 and of_estimator > 1:
        raise ValueError(
            f"n_epochs must be given once, got n_epochs={of_request} and {name_of(estimator)} "
            f"with n_epochs={of_estimator}."
        )
    if of_request > 1 and any(name.rpartition("__")[2] == "n_epochs" for name in request.searched):
        raise ValueError(f"n_epochs must be None where it is searched, got n_epochs={of_request}.")
    n_epochs = max(of_request, of_estimator)
    last, report = last_step(estimator), request.settings.report
    if n_epochs == 1:
        return 1
    if isinstance(last, CompiledEstimator) and not last.has_epochs:
        raise ValueError(
            f"n_epochs must be 1 for {name_of(estimator)}, whose model is exact after one "
            f"pass, got {n_epochs}."
        )
    if method == "progressive":
        raise ValueError(
            "n_epochs must be 1 with method='progressive', which tests each row before the "
            f"model has seen it, got {n_epochs}."
        )
    if request.settings.is_early:
        raise ValueError(
            "report must be 'folds', 'mean' or None with several epochs, because rows that are "
            f"replayed have been seen before, got report={report!r} with n_epochs={n_epochs}."
        )
    return n_epochs


def _epochs_of(estimator: Any, searched: Collection[str]) -> int:
    """Return the ``n_epochs`` of an estimator of this package, also inside of another one."""
    most = 1
    for prefix, part in trained_parts(estimator, "", searched):
        is_open = f"{prefix}n_epochs" in searched
        if not isinstance(part, CompiledEstimator) or not part.has_epochs or is_open:
            continue
        if not is_integer(part.n_epochs) or not 1 <= part.n_epochs <= MOST_EPOCHS:
            raise ValueError(
                f"{prefix}n_epochs must be an integer of 1 to {MOST_EPOCHS}, got "
                f"{part.n_epochs!r}."
            )
        most = max(most, int(part.n_epochs))
    return most


def _why_in_memory(request: Request, n_epochs: int) -> str:
    """Return why rows are not read forwards, a clause; "" if they are."""
    if request.settings.order == "random":
        return "order='random' trains on rows in orders of their own"
    if n_epochs > 1:
        return "several epochs read rows again in any order"
    parts, X = split(request.estimator), request.data.X
    if not isinstance(parts, str) and not {*parts.kinds.values()} <= {Kind.COMPILED}:
        return "its steps are done for all rows at once"
    are_numbers = sparse.issparse(X) or (isinstance(X, np.ndarray) and X.dtype.kind in "biuf")
    if compiled_part(request.estimator) is None and not are_numbers:
        return "its partial_fit gets rows in the form in which they are given"
    return ""


def cost_of_tree(request: Request, n_epochs: int) -> str:
    """Return the row updates of a tree at most, and those of k trainings from scratch."""
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
    """Return the most row updates that the tree takes for one epoch."""
    n_rows, n_folds = cross_validation.data.n_rows, cross_validation.n_folds
    return int(n_rows * log2(2 * n_folds)) * cross_validation.n_repeats


def warning_of_order(request: Request) -> str:
    """Return a warning if the tree trains ordered rows in their order, but ``fit`` shuffles them.

    It is "" if folds or rows are drawn at random, or if neighbouring targets are not alike.
    """
    last, data = last_step(request.estimator), request.data
    cut, y = request.cross_validation.repeats[0].cut, data.y
    shuffles = isinstance(last, CompiledEstimator) and last.has_epochs and last.shuffle
    if not shuffles or request.settings.order == "random" or not isinstance(cut, Folds):
        return ""
    if y is None or y.ndim > 1 or len(y) < 3:
        return ""
    at = np.linspace(0, len(y) - 2, min(len(y) - 1, _PAIRS)).astype(np.intp)
    order = cut.order
    distances = np.abs(order[at + 1].astype(np.int64) - order[at].astype(np.int64))
    if distances.mean() >= _NEAR * len(y):
        return ""
    are_classes = is_classifier(request.estimator)
    targets = data.codes() if are_classes else as_numbers(y)
    if not _are_alike(targets[at], targets[at + 1], are_classes):
        return ""
    return (
        "The rows have an order in which neighbours have similar targets. The tree trains "
        f"{name_of(request.estimator)} in this order, but fit takes the rows in random order, so "
        "the scores may be those of worse models. Use KFold(..., shuffle=True), an int as cv with "
        "shuffle=True, or method='fit' instead."
    )


def _are_alike(targets: np.ndarray, following: np.ndarray, are_classes: bool) -> bool:
    """Return whether targets are more like those of the following rows than like distant ones."""
    differ = np.not_equal if are_classes else np.subtract
    distant = np.roll(targets, len(targets) // 2)
    near, far = (np.abs(differ(targets, other)).astype(float) for other in (following, distant))
    error = np.sqrt((near.var() + far.var()) / len(near))
    gain = far.mean() - near.mean()
    return bool(near.mean() < _ALIKE * far.mean() and gain > _ERRORS * error)


class Front(NamedTuple):
    """The steps of a Pipeline that are done ahead of its learner.

    Attributes
    ----------
    steps : FittedSteps
    name : bytes
        Tells them apart.
    layout : RowLayout
        Of the rows that the learner needs.
    why_python : str
        Why the running steps of a compiled learner run in Python, a clause.
    """

    steps: FittedSteps
    name: bytes
    layout: RowLayout
    why_python: str


def front_of(request: Request) -> Front | str:
    """Return the steps of a Pipeline that are done ahead of its learner.

    Return why there are none, a clause, if there are not; it is empty if the estimator has no
    steps that could be.
    """
    return request.once("front", lambda: _front_of(request))


def _front_of(request: Request) -> Front | str:
    parts = split(request.estimator)
    if isinstance(parts, str):
        return parts
    front = _done(request, parts)
    if isinstance(front, str) and parts.is_compiled:
        in_python = split_in_python(request.estimator, front)
        if isinstance(in_python, DividedPipeline):
            other = _done(request, in_python)
            front = front if isinstance(other, str) else other
    return front


def _done(request: Request, parts: DividedPipeline) -> Front | str:
    """Return the fitted steps of a divided Pipeline, or why they cannot be done, a clause."""
    cross_validation = request.cross_validation
    cuts, of_rows = [one.cut for one in cross_validation.repeats], cross_validation.steps
    # Kernels do not see whether steps return data frames, but other learners do.
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
    if n_known is not None and any(  # a fold may be trained on all rows but these
        cut.count(np.ones(n_rows, bool))[0].min() <= n_rows - n_known for cut in cuts
    ):
        return (
            f"a column that a SimpleImputer fills has values in {n_known} rows, so that a "
            "fold may train on none of them, and keep_empty_features is False"
        )
    return Front(steps, name, steps.layout_for(parts.pipeline), parts.why_python)
