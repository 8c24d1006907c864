"""Cross-validation by the tree: from an estimator and rows to fold scores or out-of-fold
predictions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from optuna_treecv.evaluation import Evaluation
from optuna_treecv.run import CVResult
from optuna_treecv.run import Run
from optuna_treecv.together import walk_together


def tree_cross_validate(
    estimator: Any,
    X: Any,
    y: Any = None,
    *,
    cv: Any = 10,
    groups: Any = None,
    shuffle: bool = True,
    order: str = "fixed",
    method: str = "treecv",
    n_repeats: int = 1,
    scoring: Any = None,
    random_state: Any = 0,
    n_jobs: int | None = 1,
) -> CVResult:
    r"""Cross-validate an incremental estimator for about log2(k) trainings.

    With chunks :math:`Z_1, \dots, Z_k` of the rows and :math:`f_i` the model trained on all but
    :math:`Z_i`, the estimate is

    .. math:: R = \frac{1}{k} \sum_{i=1}^{k} \frac{1}{|Z_i|} \sum_{(x, y) \in Z_i} \ell(f_i(x), y).

    TreeCV (Joulani, Gyorgy & Szepesvari 2015, Algorithm 1) trains what the :math:`f_i` have in
    common once, in at most :math:`n \log_2(2k)` row updates in place of :math:`n (k - 1)`. A model
    sees all rows but its own chunk, each once; which come first differs from fold to fold.

    Parameters
    ----------
    estimator : estimator with ``partial_fit``, Pipeline or River model
        It is cloned. The learners of this package are compiled down to the leaves. The steps of a
        Pipeline must have ``partial_fit`` or be stateless.
    X : array-like, sparse matrix or data frame of shape (n_rows, n_features)
        Rows; float32 stays float32. Sparse ones are trained in the time of their nonzeros by the
        linear learners of this package, but for ROOT-SGD and mini-batches.
    y : array-like of shape (n_rows,), default=None
        Labels or targets; None for unsupervised estimators.
    cv : int, "loo", scikit-learn splitter or array-like of shape (n_rows,), default=10
        The number of folds, 2 to n_rows; leave one out; a splitter whose test sets partition the
        rows; or the fold of each row. Folds of an int are not stratified.
    groups : array-like of shape (n_rows,), default=None
        For splitters that need them.
    shuffle : bool, default=True
        For an int or "loo": permute the rows once before they are cut. Otherwise permute the folds
        along the tree, and the rows in each; who is tested with whom stays.
    order : {"fixed", "random"}, default="fixed"
        Feed a training phase its rows as they lie, or in a fresh random order, which takes
        longer (1.6 times on Covertype).
    method : {"treecv", "standard"}, default="treecv"
        The tree, or k trainings from scratch.
    n_repeats : int, default=1
        Cross-validate that many times and average: with other permutations for an int or "loo",
        with what further calls of its ``split`` give for a splitter, and with other random orders.
        Refused where none of this, nor a ``random_state=None`` of the estimator, makes repeats
        differ.
    scoring : str, callable or None, default=None
        A loss of rows ("error", "hinge", "log_loss" for classifiers, "squared_error",
        "absolute_error" for regressors, "squared_distance" to the nearest centre for clusterers),
        or a scikit-learn scorer, which compiled learners hand plain arrays. None: the first of
        those losses.
    random_state : int, RandomState instance or None, default=0
        Of permutation, orders and of whatever in the estimator has ``random_state=None``.
    n_jobs : int or None, default=1
        Threads that share the branches of the tree; -1 for all cores. The numbers do not depend on
        it.

    Returns
    -------
    CVResult
        Fold scores, their mean and the work done.

    Raises
    ------
    ValueError
        If an argument is wrong, or an estimator or scorer cannot do what is asked.

    See Also
    --------
    treecv_objective : The same as an objective for Optuna.
    tree_cross_val_predict : Out-of-fold predictions.

    References
    ----------
    .. [1] P. Joulani, A. Gyorgy and C. Szepesvari, "Fast cross-validation for incremental
       learning", IJCAI 2015.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.preprocessing import scale
    >>> from optuna_treecv import PegasosClassifier, tree_cross_validate
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> result = tree_cross_validate(PegasosClassifier(alpha=0.01), scale(X), y, cv="loo")
    >>> result.n_folds, result.n_updates, result.n_updates_standard
    (569, 5235, 323192)
    >>> round(result.mean, 2)
    0.04
    """
    evaluation = Evaluation(
        X,
        y,
        cv=cv,
        groups=groups,
        shuffle=shuffle,
        order=order,
        method=method,
        n_repeats=n_repeats,
        scoring=scoring,
        random_state=random_state,
        n_jobs=n_jobs,
    )
    return Run(evaluation, estimator).finish()


def tree_cross_validate_many(
    estimators: Iterable[Any],
    X: Any,
    y: Any = None,
    *,
    cv: Any = 10,
    groups: Any = None,
    shuffle: bool = True,
    order: str = "fixed",
    method: str = "treecv",
    n_repeats: int = 1,
    scoring: Any = None,
    random_state: Any = 0,
    n_jobs: int | None = 1,
) -> list[CVResult]:
    """Cross-validate several estimators on the same folds, side by side where that can be.

    Estimators of one class that differ in parameters such as ``alpha`` of ``PegasosClassifier``
    (``lane_parameters`` of the class) are trained together, row by row: the rows are read once for
    all. Each gets the result that ``tree_cross_validate`` gives it, bit for bit.

    Parameters
    ----------
    estimators : iterable of estimators
        Any that ``tree_cross_validate`` takes; those that cannot be trained side by side are
        evaluated one by one.
    X : array-like, sparse matrix or data frame of shape (n_rows, n_features)
        As of ``tree_cross_validate``, like all that follows.
    y : array-like of shape (n_rows,), default=None
        Labels or targets.
    cv : int, "loo", scikit-learn splitter or array-like of shape (n_rows,), default=10
        The folds.
    groups : array-like of shape (n_rows,), default=None
        For splitters that need them.
    shuffle : bool, default=True
        Permute the rows once.
    order : {"fixed", "random"}, default="fixed"
        Of the rows in a training phase.
    method : {"treecv", "standard"}, default="treecv"
        The tree, or k trainings from scratch, one by one.
    n_repeats : int, default=1
        Cross-validate that many times and average.
    scoring : str, callable or None, default=None
        A loss or a scorer.
    random_state : int, RandomState instance or None, default=0
        Of permutation, orders and of whatever in an estimator has ``random_state=None``.
    n_jobs : int or None, default=1
        Threads.

    Returns
    -------
    list of CVResult
        One for each estimator. ``seconds`` of those trained side by side are shares.

    Raises
    ------
    ValueError
        As of ``tree_cross_validate``.

    See Also
    --------
    treecv_objective : The same for the points of a grid, by ``param_grid``.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.preprocessing import scale
    >>> from optuna_treecv import PegasosClassifier, tree_cross_validate_many
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> models = [PegasosClassifier(alpha=alpha) for alpha in (1e-4, 1e-3, 1e-2, 1e-1)]
    >>> results = tree_cross_validate_many(models, scale(X), y, cv="loo")
    >>> [round(result.mean, 3) for result in results]
    [0.039, 0.04, 0.039, 0.032]
    """
    evaluation = Evaluation(
        X,
        y,
        cv=cv,
        groups=groups,
        shuffle=shuffle,
        order=order,
        method=method,
        n_repeats=n_repeats,
        scoring=scoring,
        random_state=random_state,
        n_jobs=n_jobs,
    )
    runs = [Run(evaluation, estimator) for estimator in estimators]
    walk_together(runs)
    return [run.finish() for run in runs]


def tree_cross_val_predict(
    estimator: Any,
    X: Any,
    y: Any = None,
    *,
    cv: Any = 10,
    groups: Any = None,
    shuffle: bool = True,
    order: str = "fixed",
    method: str = "treecv",
    random_state: Any = 0,
    n_jobs: int | None = 1,
    response_method: str = "predict",
) -> np.ndarray:
    """Out-of-fold predictions: what each row's model, trained on the rows of all other folds, says
    of it.

    Parameters
    ----------
    estimator, X, y : see tree_cross_validate
        The learner and the rows.
    cv, groups, shuffle, order, method, random_state, n_jobs : see tree_cross_validate
        How the rows are cut and fed.
    response_method : {"predict", "decision_function", "predict_proba"}, default="predict"
        What to ask the models for.

    Returns
    -------
    ndarray of shape (n_rows,) or (n_rows, n_classes)
        In the order of the rows of X.

    Raises
    ------
    ValueError
        If an argument is wrong, or a model diverges whose labels are asked for.

    See Also
    --------
    tree_cross_validate : Scores in place of predictions.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.preprocessing import scale
    >>> from optuna_treecv import PegasosClassifier, tree_cross_val_predict
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = PegasosClassifier(alpha=0.01)
    >>> decision = tree_cross_val_predict(
    ...     model, scale(X), y, cv="loo", response_method="decision_function"
    ... )
    >>> decision.shape
    (569,)
    """
    evaluation = Evaluation(
        X,
        y,
        cv=cv,
        groups=groups,
        shuffle=shuffle,
        order=order,
        method=method,
        n_repeats=1,
        scoring=None,
        random_state=random_state,
        n_jobs=n_jobs,
    )
    return evaluation.predict(estimator, response_method)
