"""Says whether one pass of ``partial_fit`` over the rows makes the model that ``fit`` makes.

``method="auto"`` trains only such estimators further, so that it never changes what one is.
"""

from collections.abc import Collection
from numbers import Real
from typing import Any

from sklearn.naive_bayes import GaussianNB
from sklearn.preprocessing import MaxAbsScaler
from sklearn.preprocessing import MinMaxScaler
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags

from optuna_treecv.estimators.compiled import CompiledEstimator
from optuna_treecv.estimators.incremental import NAIVE_BAYES
from optuna_treecv.estimators.without_effect import OF_PASSES
from optuna_treecv.estimators.without_effect import trained_parts

# Classes of scikit-learn whose ``fit`` forgets the model and does what ``partial_fit`` does.
# tests/test_auto_fits.py compares them.
_SAME = {kind.__name__ for kind in (*NAIVE_BAYES, MaxAbsScaler, MinMaxScaler, StandardScaler)}
# They train the estimators that they hold by the same method.
_AROUND = {
    "MultiOutputClassifier",
    "MultiOutputRegressor",
    "OneVsOneClassifier",
    "OneVsRestClassifier",
}
# Rounding changes a variance of 0 by up to 1e-32 of the squares.
_LEAST_SMOOTHING = 1e-12


def why_fit_differs(estimator: Any, searched: Collection[str] = ()) -> str:
    """Return why one pass of ``partial_fit`` would make another model than ``fit``, a clause.

    It is empty if the models are the same, or if there is no ``fit`` to compare with. Estimators
    of this package are those that one pass makes. Scalers before a learner of one pass may be
    trained along with it.

    Parameters
    ----------
    estimator : estimator
        Possibly a Pipeline, or one of scikit-learn's meta-estimators.
    searched : collection of str
        Parameters that a search sets, so that their values are not known.
    """
    if not hasattr(estimator, "fit"):
        return ""
    for prefix, part in trained_parts(estimator, "", searched):
        if isinstance(part, CompiledEstimator):
            continue
        if not hasattr(part, "partial_fit") or not hasattr(part, "fit"):
            continue
        if get_tags(part).requires_fit and (
            why := _why_part_differs(part, f"{prefix}max_iter" in searched)
        ):
            return why
        if isinstance(part, GaussianNB) and (why := _why_variances_differ(part, prefix, searched)):
            return why
    return ""


def _why_variances_differ(model: GaussianNB, prefix: str, searched: Collection[str]) -> str:
    """Return why the variances of ``GaussianNB`` would not be those of ``fit``, a clause."""
    if prefix.endswith("estimator__"):  # another estimator calls its partial_fit
        return "partial_fit of GaussianNB adds to the variances what follows from its last rows"
    smoothing, is_open = model.var_smoothing, f"{prefix}var_smoothing" in searched
    if not is_open and isinstance(smoothing, Real) and smoothing < _LEAST_SMOOTHING:
        return f"var_smoothing={smoothing} shows the rounding of the variances"
    return ""


def _why_part_differs(part: Any, is_open: bool) -> str:
    """Return why ``fit`` of a single estimator is not one pass; ``is_open``: of ``max_iter``."""
    name, kind = type(part).__name__, ""
    for base in type(part).__mro__:  # the class of scikit-learn that has fit and partial_fit
        if base.__module__.startswith("sklearn."):
            kind = base.__name__
        if kind or vars(base).keys() & {"fit", "partial_fit"}:
            break
    if kind in _SAME or kind in _AROUND:
        return ""
    if kind in OF_PASSES:
        if part.max_iter == 1 and not is_open:
            return ""
        return f"fit of {name} makes up to max_iter={part.max_iter} passes and partial_fit one"
    return f"one pass of partial_fit may make another model than fit of {name}"
