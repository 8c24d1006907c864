"""The public functions that do not need Optuna, and the creation of runs."""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence
from copy import copy
from math import inf
from math import prod
from types import NoneType
from typing import Any
from typing import Literal
from typing import Unpack

import numpy as np
from sklearn.pipeline import Pipeline

from optuna_treecv import engines
from optuna_treecv.caching.caches import ModelCache
from optuna_treecv.caching.keys import encode
from optuna_treecv.caching.keys import first_key
from optuna_treecv.caching.keys import lasting_key
from optuna_treecv.core.batch import evaluate_batch
from optuna_treecv.core.choose import ask_engines
from optuna_treecv.core.choose import plan_for
from optuna_treecv.core.choose import request_for
from optuna_treecv.core.cross_validation import CrossValidation
from optuna_treecv.core.cross_validation import Search
from optuna_treecv.core.engine import Declined
from optuna_treecv.core.result import CVResult
from optuna_treecv.core.run import Run
from optuna_treecv.core.settings import Arguments
from optuna_treecv.core.settings import check_choice
from optuna_treecv.core.settings import Settings
from optuna_treecv.core.settings import takes_settings
from optuna_treecv.core.settings import warn_caller
from optuna_treecv.estimators.base import name_of
from optuna_treecv.estimators.checks import check_clone
from optuna_treecv.estimators.checks import checked_estimator
from optuna_treecv.preprocessing.decisions import decisions_for


def run_for(
    cross_validation: CrossValidation, estimator: Any, n_epochs: int | None = None, **wants: Any
) -> Run:
    """Return a run that evaluates an estimator, with the plan of the first suitable engine.

    Parameters
    ----------
    cross_validation : CrossValidation
    estimator : estimator
    n_epochs : int or None
        The number of epochs for this estimator; None: that of the settings.
    **wants : Any
        As for ``request_for``.
    """
    request = request_for(cross_validation, estimator, n_epochs, **wants)
    return Run(plan_for(request, engines.ENGINES), request.estimator)


def cross_validation_for(
    X: Any, y: Any, settings: Settings, estimators: Sequence[Any]
) -> CrossValidation:
    """Create a cross-validation for several estimators, which may form a grid of parameters.

    If they form a grid, ensembles that differ only in their size are grown only once.
    """
    grow = any(map(nested_parameter, estimators))
    grid = _grid_of(estimators)
    search = Search(ends=grid, grid=grid if grow else {})
    cache = ModelCache() if grow else None
    return CrossValidation.of(X, y, settings, cache=cache, search=search)


def nested_parameter(estimator: Any) -> str:
    """Return the name of the parameter that sets the number of trees of an ensemble; else ""."""
    nests = (engine.nests_by(estimator) for engine in engines.ENGINES if engine.nests_by)
    return next(filter(None, nests), "")


# The types of parameter values in which the estimators of a grid may differ.
_PLAIN = (int, float, str, NoneType)


def _grid_of(estimators: Sequence[Any]) -> dict[str, tuple[Any, ...]]:
    """Return a grid with the values of the parameters in which estimators differ.

    It is empty if the estimators are not all combinations of these values.
    """
    params = [estimator.get_params() for estimator in estimators]
    if any(param.keys() != params[0].keys() for param in params):
        return {}
    grid: dict[str, tuple[Any, ...]] = {}
    for name in params[0]:
        values = dict.fromkeys(p[name] for p in params if isinstance(p.get(name), _PLAIN))
        if len(values) > 1:
            grid[name] = tuple(values)
    return grid if prod(map(len, grid.values())) == len(estimators) else {}


def runs_for(cross_validation: CrossValidation, estimators: Iterable[Any]) -> list[Run]:
    """Return one run per estimator; runs share plans if only free parameters differ."""
    runs: list[Run] = []
    plans: dict[bytes, Run] = {}
    free: dict[type, Collection[str]] = {}
    for estimator in estimators:
        key = _key_of_plan(estimator, free.get(type(estimator), ()))
        if key in plans:
            runs.append(plans[key].with_estimator(estimator))
            continue
        run = run_for(cross_validation, estimator)
        free[type(estimator)] = run.plan.capabilities.free_parameters
        if key := _key_of_plan(estimator, free[type(estimator)]):
            plans[key] = run
        runs.append(run)
    return runs


def _key_of_plan(estimator: Any, free: Collection[str]) -> bytes:
    """Return a key for the plan of an estimator, without free parameters; b"" if there is no key.

    Free parameters are included in the key unless they are positive and finite numbers.
    """
    if not free:
        return b""
    fixed = last = copy(estimator)
    prefix = ""
    while type(last) is Pipeline:
        *before, (name, inner) = last.steps
        last.steps, prefix = [*before, (name, copy(inner))], f"{prefix}{name}__"
        last = last.steps[-1][1]
    for name in free:
        value: Any = getattr(last, parameter := name.removeprefix(prefix), None)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if name.startswith(prefix) and is_number and 0 < value < inf:
            setattr(last, parameter, None)
    return first_key(fixed, encode, lasting_key) or b""


def explain(cross_validation: CrossValidation, estimator: Any, n_epochs: int | None = None) -> str:
    """Explain how an estimator will be evaluated, why in this way, and at what cost.

    ``n_epochs`` is the number of epochs of a trial; None: that of the settings.
    """
    request = request_for(cross_validation, estimator, n_epochs, is_scored=False)
    plan = plan_for(request, engines.ENGINES)
    reason = f", because {plan.reason}" if plan.reason else ", as requested"
    choice = f"{name_of(request.estimator)} is evaluated by method={plan.name!r}{reason}."
    epochs = f" Models are trained for {plan.n_epochs} epochs." if plan.n_epochs > 1 else ""
    by_reason: dict[str, str] = {}
    offers = []
    for engine, answer in ask_engines(request, engines.ENGINES):
        if not isinstance(answer, Declined):
            continue
        if plan.reason and answer.reason == plan.reason:
            offers.append(answer.offer)
        elif answer.relevance == 2:
            by_reason.setdefault(answer.reason, engine.name)
    offer = next(filter(None, offers), "")
    in_file, steps, data, capabilities = "", [], request.data, plan.capabilities
    if data.is_large:
        size = f"{data.n_bytes / 1e9:,.2f} GB"
        in_file = f" The prepared rows, {size}, are in a file{capabilities.readings}."
    if isinstance(request.estimator, Pipeline):
        decisions = decisions_for(request.estimator, capabilities.models_from)
        steps = [f"  {decision}" for decision in decisions]
    others = [f"  not by method={name!r}: {reason}" for reason, name in by_reason.items()]
    summary = f"{choice}{epochs} {plan.cost()}{in_file}{offer}"
    return "\n".join([summary, *steps, *(others if plan.reason else [])])


# The public functions.


@takes_settings("optimize", "pooled", "truncate", "report")
def tree_cross_validate(
    estimator: Any,
    X: Any,
    y: Any = None,
    *,
    kfold_models: bool = False,
    **settings: Unpack[Arguments],
) -> CVResult:
    r"""Evaluate an estimator by k-fold cross-validation for the cost of about log2(k) trainings.

    The estimate is the mean of the fold scores. For chunks :math:`Z_1, \dots, Z_k` of the rows,
    with the model :math:`f_i` trained on all rows outside :math:`Z_i`, it is

    .. math:: R = \frac{1}{k} \sum_{i=1}^{k} \frac{1}{|Z_i|} \sum_{(x, y) \in Z_i} \ell(f_i(x), y).

    For estimators with ``partial_fit``, TreeCV (Joulani, Gyorgy & Szepesvari 2015, Algorithm 1)
    [1]_ shares the training steps that the models have in common. It needs at most :math:`n
    \log_2(2k)` row updates instead of :math:`n (k - 1)`. Each model is trained on every row
    outside its own chunk exactly once, or ``n_epochs`` times on average; the order of the rows
    differs between folds. Other estimators are evaluated by other fast methods, or fitted on each
    fold; see ``method``.

    Parameters
    ----------
    estimator : estimator or River model
        The estimator, which is cloned. With ``method="treecv"``, it must have ``partial_fit``, and
        each preprocessing step of a Pipeline must have ``partial_fit`` or be stateless. The scores
        are then those of models after one pass over their training rows, in tree order. The
        learners of this package are trained in compiled code. Estimators for which no faster
        method gives the models of ``fit`` are fitted on each fold.
    X : array-like, sparse matrix, data frame or path, of shape (n_rows, n_features)
        The features. float32 is not converted to float64. On sparse rows, the training time of the
        linear learners of this package is proportional to the number of nonzero entries, except
        with mini-batches. Estimators that are fitted on each fold get rows of X as given, in
        read-only arrays. X may also be the path of a ``.npy`` file, a Parquet file or a folder of
        Parquet files, a ``pyarrow.dataset.Dataset`` or a polars ``LazyFrame``. If such rows need
        more memory than ``max_memory``, they are read in pieces.
    y : array-like of shape (n_rows,) or (n_rows, n_targets), or str, default=None
        The class labels, or one or several targets for regressors; None for unsupervised
        estimators. The loss of a row is averaged over its targets. y may also be the name of a
        column of X, which is then not used as a feature, or the path of a ``.npy`` file.
    kfold_models : bool, default=False
        Whether to average the models of all folds, for ``CVResult.kfold_estimator``. Only linear
        learners with ``method="treecv"`` support this.
    **settings

    Returns
    -------
    CVResult
        The fold scores, their mean and standard error, and the cost of the evaluation.

    Raises
    ------
    ValueError
        If an argument is invalid, or if the estimator or the scorer does not support it.

    See Also
    --------
    treecv_objective : Cross-validation as an objective for Optuna.
    tree_cross_val_predict : Out-of-fold predictions.

    References
    ----------
    .. [1] P. Joulani, A. Gyorgy and C. Szepesvari, "Fast cross-validation for incremental
       learning", IJCAI 2015.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from optuna_treecv import PegasosClassifier, tree_cross_validate
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), PegasosClassifier(alpha=0.01))
    >>> result = tree_cross_validate(model, X, y, cv="loo")
    >>> result.n_folds, result.n_updates, result.n_updates_standard
    (569, 5235, 323192)
    >>> round(result.mean, 2)
    0.04
    """
    check_choice("kfold_models", kfold_models, (True, False))
    estimator = checked_estimator(estimator)
    check_clone(estimator)
    cross_validation = CrossValidation.of(X, y, Settings(**settings), estimator)
    average = "kfold_models must be False" if kfold_models else ""
    return run_for(cross_validation, estimator, wants_average=average).finish()


@takes_settings("optimize", "pooled", "truncate", "report")
def tree_cross_validate_many(
    estimators: Iterable[Any], X: Any, y: Any = None, **settings: Unpack[Arguments]
) -> list[CVResult]:
    """Evaluate several estimators by cross-validation on the same folds, in batches if possible.

    Estimators of the same class that differ only in certain parameters, such as ``alpha`` of
    ``PegasosClassifier``, are trained in one batch, so that the rows are read once for the whole
    batch. The attribute ``lane_parameters`` of a learner lists these parameters. Results are
    identical to those of ``tree_cross_validate``, except for rounding errors with
    ``method="exact"``, which uses BLAS.

    Parameters
    ----------
    estimators : iterable of estimators
        The estimators, as for ``tree_cross_validate``. Estimators that cannot be trained in a
        batch are evaluated one after the other.
    X : array-like, sparse matrix, data frame or path, of shape (n_rows, n_features)
        The features, as for ``tree_cross_validate``.
    y : array-like of shape (n_rows,) or (n_rows, n_targets), or str, default=None
        Labels or targets, as for ``tree_cross_validate``.
    **settings

    Returns
    -------
    list of CVResult
        One result per estimator, in the order of ``estimators``. The time of a batch is divided
        equally among the ``seconds`` of its estimators.

    Raises
    ------
    ValueError
        As for ``tree_cross_validate``.

    See Also
    --------
    treecv_objective : Evaluates the candidates of a grid, with the argument ``param_grid``.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from optuna_treecv import PegasosClassifier, tree_cross_validate_many
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> models = [
    ...     make_pipeline(StandardScaler(), PegasosClassifier(alpha=alpha))
    ...     for alpha in (1e-4, 1e-3, 1e-2, 1e-1)
    ... ]
    >>> results = tree_cross_validate_many(models, X, y, cv="loo")
    >>> [round(result.mean, 3) for result in results]
    [0.049, 0.046, 0.035, 0.032]
    """
    if not isinstance(estimators, Iterable):
        raise ValueError(f"estimators must be a list of estimators, got {estimators!r}.")
    estimators = list(estimators)
    runs = runs_for(cross_validation_for(X, y, Settings(**settings), estimators), estimators)
    if len({run.plan.capabilities.is_incremental for run in runs}) == 2:
        warn_caller(
            "method='auto' calls fit for some estimators and partial_fit for others (see "
            "CVResult.method), so their scores are hardly comparable; use method='fit' to fit all "
            "of them."
        )
    evaluate_batch(runs)
    return [run.finish() for run in runs]


@takes_settings(
    *("scoring", "optimize", "pooled", "score_weight", "n_repeats", "row_losses", "report"),
    *("n_estimators", "truncate"),
)
def tree_cross_val_predict(
    estimator: Any,
    X: Any,
    y: Any = None,
    *,
    response_method: Literal[
        "predict", "decision_function", "predict_proba", "score_samples"
    ] = "predict",
    **settings: Unpack[Arguments],
) -> np.ndarray:
    """Return out-of-fold predictions for all rows.

    Each row is predicted by the model that was trained without the fold of this row.

    Parameters
    ----------
    estimator : estimator or River model
        As for ``tree_cross_validate``.
    X : array-like, sparse matrix, data frame or path, of shape (n_rows, n_features)
        The features, as for ``tree_cross_validate``. Each row must be tested exactly once.
    y : array-like of shape (n_rows,) or (n_rows, n_targets), or str, default=None
        Labels or targets, as for ``tree_cross_validate``.
    response_method : {"predict", "decision_function", "predict_proba", "score_samples"}, \
            default="predict"
        The method of the estimator whose output is returned; "score_samples" is for density
        estimators.
    **settings

    Returns
    -------
    ndarray of shape (n_rows,), (n_rows, n_classes) or (n_rows, n_targets)
        The predictions, in the order of the rows of X.

    Raises
    ------
    ValueError
        If an argument is invalid, or if class labels are requested and a model diverges.

    See Also
    --------
    tree_cross_validate : Cross-validated scores.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from optuna_treecv import PegasosClassifier, tree_cross_val_predict
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), PegasosClassifier(alpha=0.01))
    >>> decision = tree_cross_val_predict(
    ...     model, X, y, cv="loo", response_method="decision_function"
    ... )
    >>> decision.shape
    (569,)
    """
    estimator = checked_estimator(estimator)
    check_clone(estimator)
    settings["score_weight"] = None
    cross_validation = CrossValidation.of(X, y, Settings(**settings), estimator)
    return run_for(cross_validation, estimator, is_scored=False).predict(response_method)
