"""Creates the learner of an estimator.

Estimators of this package are trained by compiled kernels, all others through an adapter.
"""

from typing import Any

from sklearn.pipeline import Pipeline

from optuna_treecv.engines.treecv.learner import Learner
from optuna_treecv.engines.treecv.learners.adapter import Adapter
from optuna_treecv.engines.treecv.learners.compiled import KernelEstimator
from optuna_treecv.estimators.base import as_given
from optuna_treecv.estimators.base import CompiledEstimator
from optuna_treecv.estimators.base import unset_seeds
from optuna_treecv.preprocessing.fitted import FittedSteps
from optuna_treecv.rows.data import PreparedRows


def forget_seeds(fitted: Any, estimator: Any) -> None:
    """Reset each seed of a fitted estimator to None if it is None in ``estimator``.

    The fitted attributes do not change.
    """
    if isinstance(estimator, CompiledEstimator):
        return  # the parameters of compiled estimators have not been changed
    unset = unset_seeds(estimator)
    if as_given(estimator) is not estimator:
        fitted.forget_seeds(unset)
    elif unset:
        parameters = estimator.get_params(deep=True)
        fitted.set_params(**{name: parameters[name] for name in unset})


def make_learner(
    estimator: Any, rows: PreparedRows, response_methods: tuple[str, ...], seed: int
) -> Learner:
    """Return the learner of an estimator for prepared rows.

    Parameters
    ----------
    estimator : estimator
        An estimator that passes ``check_incremental``.
    rows : PreparedRows
        Rows in the layout that ``layout_for`` returns for the estimator.
    response_methods : tuple of str
        The response methods that the scoring needs: "predict", "decision_function",
        "predict_proba" or "distance" (to the nearest centre). It is empty if all scorers call the
        fitted estimator.
    seed : int
        Replaces each ``random_state=None`` in the estimator.
    """
    if isinstance(estimator, KernelEstimator):
        return estimator.make_learner(rows, seed)
    if as_given(estimator) is not estimator:
        from optuna_treecv.engines.treecv.learners.river import RiverLearner

        return RiverLearner(estimator, rows, response_methods, seed % 2**32)
    return Adapter(estimator, rows, response_methods, seed % 2**32)


def make_pipeline_learner(
    steps: FittedSteps,
    pipeline: Pipeline,
    rows: PreparedRows,
    response_methods: tuple[str, ...],
    seed: int,
) -> Learner:
    """Return the learner of a Pipeline for rows to which ``steps`` have been applied."""
    name, last = pipeline.steps[-1]
    if steps.is_compiled:
        return last.make_learner(rows, seed, steps)
    seed %= 2**32  # scikit-learn requires seeds of 32 bits
    return Adapter(steps.running(name, last, seed), rows, response_methods, seed, steps)
