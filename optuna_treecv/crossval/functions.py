"""The public functions for cross-validation without Optuna."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from functools import partial
from typing import Any
from typing import Literal

import numpy as np

from optuna_treecv.crossval.arguments import check_choice
from optuna_treecv.crossval.arguments import check_estimator
from optuna_treecv.crossval.arguments import warn_caller
from optuna_treecv.crossval.evaluation import Evaluation
from optuna_treecv.crossval.predict import predict_out_of_fold
from optuna_treecv.crossval.result import CVResult
from optuna_treecv.crossval.run import Run
from optuna_treecv.crossval.side_by_side import evaluate_side_by_side
from optuna_treecv.learners.from_estimator import as_estimator


def tree_cross_validate(
    estimator: Any,
    X: Any,
    y: Any = None,
    *,
    cv: Any = 10,
    groups: Any = None,
    stratify: Literal["auto"] | bool = "auto",
    shuffle: bool = True,
    order: Literal["fixed", "random"] = "fixed",
    method: Literal[
        "auto", "exact", "forest", "treecv", "fit", "standard", "holdout", "progressive"
    ] = "auto",
    n_repeats: int = 1,
    n_epochs: int | None = None,
    scoring: Any = None,
    sample_weight: Any = None,
    score_weight: Any = "same",
    params: Mapping[str, Any] | None = None,
    random_state: Any = 0,
    n_jobs: int | None = 1,
    row_losses: bool = False,
    kfold_models: bool = False,
) -> CVResult:
    r"""Cross-validate an estimator, for about log2(k) trainings if it can be trained further.

    With chunks :math:`Z_1, \dots, Z_k` of the rows and :math:`f_i` the model trained on all but
    :math:`Z_i`, the estimate is

    .. math:: R = \frac{1}{k} \sum_{i=1}^{k} \frac{1}{|Z_i|} \sum_{(x, y) \in Z_i} \ell(f_i(x), y).

    TreeCV (Joulani, Gyorgy & Szepesvari 2015, Algorithm 1) does the training that the :math:`f_i`
    have in common only once. It needs at most :math:`n \log_2(2k)` row updates instead of
    :math:`n (k - 1)`. Each model sees every row outside its own chunk exactly once; the order of
    the rows differs from fold to fold. With several epochs it sees them again and again.

    Parameters
    ----------
    estimator : estimator or River model
        It is cloned. The tree needs ``partial_fit``; the learners of this package run compiled,
        without the interpreter. Each step of a Pipeline must then have ``partial_fit`` or be
        stateless. The tree's estimate is that of the model after one pass over the training rows,
        in the order of the tree. Any other estimator is fitted on each fold, also one whose
        ``fit`` makes other passes than ``partial_fit``.
    X : array-like, sparse matrix or data frame of shape (n_rows, n_features)
        The rows; float32 stays float32. The linear learners of this package train on sparse rows
        in time proportional to the nonzeros, except for ROOT-SGD and mini-batches. Estimators that
        are fitted get slices of X as given, whose arrays are read-only.
    y : array-like of shape (n_rows,) or (n_rows, n_targets), default=None
        Labels, or one or several targets of regressors; None for unsupervised estimators. The loss
        of a row is the mean over its targets.
    cv : int, float, "loo", splitter, array-like or iterable of pairs, default=10
        The number of folds, from 2 to n_rows; a share between 0 and 1, which a single hold-out
        tests; "loo" for leave-one-out; a splitter of scikit-learn or an object like one; the fold
        of each row, shape (n_rows,), -1 for rows that are only trained on; or pairs of training
        and test rows. Exact folds and fits take any splitter. The tree takes those that train on
        all rows which they do not test and test no row twice, or all rows equally often in
        repetitions; and those whose training sets are growing first parts of the rows, such as
        ``TimeSeriesSplit``.
    groups : array-like of shape (n_rows,), default=None
        The groups, for splitters that need them. With an int, ``cv`` means ``GroupKFold(cv)``, or
        ``StratifiedGroupKFold(cv)`` where folds are stratified.
    stratify : {"auto", True, False}, default="auto"
        For an int or a share: give each fold its share of every class, as ``StratifiedKFold``
        does. "auto" does so for classifiers. Where a class has fewer members than there are folds,
        the folds are plain, with a warning.
    shuffle : bool, default=True
        For an int, a share or "loo", permute the rows once before they are cut into folds.
        Otherwise permute the order of the folds, and the rows that a model is trained on phase by
        phase; the folds themselves stay the same. Time series keep their order.
    order : {"fixed", "random"}, default="fixed"
        Whether a training phase reads its rows in the order in which they lie, or in a new random
        order. The random order takes longer (1.6 times on Covertype).
    method : {"auto", "exact", "forest", "treecv", "fit", "standard", "holdout", "progressive"}
        "exact" computes all folds from sums over the rows, for ``Ridge``, ``RidgeClassifier`` and
        discriminant analysis of scikit-learn, alone or after row-wise steps or a
        ``StandardScaler``. "forest" grows the trees of all folds together, for
        ``HistTreeClassifier`` and ``HistTreeRegressor``. "treecv" trains models further along a
        tree; for time series it is a chain, in which one model walks forward. "fit" calls ``fit``
        of any estimator on each fold's training rows. "auto", the default, takes the first of
        these that is possible and makes the models of ``fit``. "standard" is k trainings from
        scratch of one pass each, the baseline of the paper; of decision trees, k trees that are
        grown one by one. "holdout" is "auto" on the first fold alone. "progressive" is progressive
        validation: one pass, in which each row is tested before the model learns it, but for the
        first eighth. ``CVResult.method`` says what was done, and ``CVResult.why`` why.
    n_repeats : int, default=1
        Cross-validate this many times and average. The repeats differ in their permutations for an
        int, a share or "loo", in what further calls of ``split`` return for a splitter, in random
        orders, and in every ``random_state=None`` of the estimator. It is refused if nothing makes
        the repeats differ. At most 10,000.
    n_epochs : int, default=None
        The updates per row, for models that are trained further; None means 1. Where it is given,
        "auto" trains estimators with ``partial_fit`` further whose ``fit`` makes other passes. In
        the tree, each new row is followed by ``n_epochs - 1`` replays of rows that the model may
        see; ``partial_fit`` of other estimators gets as many calls per training phase. "standard"
        makes as many shuffled passes. The ``n_epochs`` of an estimator of this package may be set
        or searched instead. At most 10,000.
    scoring : str, callable, ``pooled(...)``, list or dict of these, or None, default=None
        A loss of rows, or a scikit-learn scorer, to which compiled learners pass plain arrays. The
        losses are "error", "hinge" and "log_loss" for classifiers, "squared_error" and
        "absolute_error" for regressors, "squared_distance" (to the nearest centre) for clusterers,
        and "neg_log_density" for density estimators. None means the first loss that fits the
        estimator. Several scores, in a list or as a dict of names to scores, take one training:
        ``CVResult.scores`` has them all, and ``mean`` is that of the first.
    sample_weight : array-like of shape (n_rows,), default=None
        The weights of the rows, finite and not negative. They act in training and in scores. They
        go to ``partial_fit`` or ``fit``, in a Pipeline to those of the last step. Where metadata
        routing of scikit-learn is enabled, a Pipeline that is fitted routes them by its requests.
    score_weight : "same", array-like of shape (n_rows,) or None, default="same"
        The weights of the rows in scores. "same" means ``sample_weight``; None weighs all rows
        alike.
    params : dict, default=None
        Further arguments of ``fit``, as for scikit-learn's ``cross_validate``. Arrays with an
        entry for each row are cut into folds. Where metadata routing is enabled, arguments go to
        the ``fit`` and to the scorers that request them. ``sample_weight``, in a Pipeline
        ``step__sample_weight`` of the last step, acts in training alone; others need
        ``method="fit"``, which "auto" then takes.
    random_state : int, RandomState instance or None, default=0
        The seed of permutations and random orders, and of every ``random_state=None`` in the
        estimator.
    n_jobs : int or None, default=1
        The number of threads that share the branches of the tree, or of joblib's workers that fit
        folds, which ``joblib.parallel_config`` chooses; -1 means all cores. No result depends on
        it.
    row_losses : bool, default=False
        Keep the score of each row, float32, as ``CVResult.row_losses``. ``CVResult.compare`` then
        pairs rows.
    kfold_models : bool, default=False
        Average the models of the folds, for ``CVResult.kfold_estimator``. This is for linear
        learners that are trained along the tree.

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
    check_choice("kfold_models", kfold_models, (True, False))
    estimator = as_estimator(estimator)
    check_estimator(estimator)
    evaluation = Evaluation(
        X,
        y,
        cv=cv,
        groups=groups,
        stratify=stratify,
        shuffle=shuffle,
        order=order,
        method=method,
        n_repeats=n_repeats,
        n_epochs=n_epochs,
        scoring=scoring,
        sample_weight=sample_weight,
        score_weight=score_weight,
        params=params,
        random_state=random_state,
        n_jobs=n_jobs,
        row_losses=row_losses,
        estimator=estimator,
    )
    run = Run(evaluation, estimator)
    if kfold_models:
        run.average_models()
    return run.finish()


def tree_cross_validate_many(
    estimators: Iterable[Any],
    X: Any,
    y: Any = None,
    *,
    cv: Any = 10,
    groups: Any = None,
    stratify: Literal["auto"] | bool = "auto",
    shuffle: bool = True,
    order: Literal["fixed", "random"] = "fixed",
    method: Literal[
        "auto", "exact", "forest", "treecv", "fit", "standard", "holdout", "progressive"
    ] = "auto",
    n_repeats: int = 1,
    n_epochs: int | None = None,
    scoring: Any = None,
    sample_weight: Any = None,
    score_weight: Any = "same",
    params: Mapping[str, Any] | None = None,
    random_state: Any = 0,
    n_jobs: int | None = 1,
    row_losses: bool = False,
) -> list[CVResult]:
    """Cross-validate several estimators on the same folds, side by side where possible.

    Estimators of one class that differ only in certain parameters, such as ``alpha`` of
    ``PegasosClassifier`` (``lane_parameters`` of the class), are trained together, row by row: the
    rows are read once for all of them. Each estimator gets the same result as from
    ``tree_cross_validate``, bit for bit; by exact folds, which go through BLAS, but for rounding
    errors.

    Parameters
    ----------
    estimators : iterable of estimators
        Any estimators that ``tree_cross_validate`` takes. Those that cannot be trained side by
        side are evaluated one by one.
    X : array-like, sparse matrix or data frame of shape (n_rows, n_features)
        The rows, as for ``tree_cross_validate``, like all further parameters.
    y : array-like of shape (n_rows,) or (n_rows, n_targets), default=None
        Labels or targets.
    cv : int, float, "loo", splitter, array-like or iterable of pairs, default=10
        The folds.
    groups : array-like of shape (n_rows,), default=None
        The groups.
    stratify : {"auto", True, False}, default="auto"
        Whether folds are stratified. The first estimator decides for all.
    shuffle : bool, default=True
        Permute the rows once.
    order : {"fixed", "random"}, default="fixed"
        The order of the rows in a training phase.
    method : {"auto", "exact", "forest", "treecv", "fit", "standard", "holdout", "progressive"}
        How the folds are evaluated. Only "exact" and the tree evaluate estimators side by side.
    n_repeats : int, default=1
        Cross-validate that many times and average.
    n_epochs : int, default=None
        The updates per row, for models that are trained further.
    scoring : str, callable, ``pooled(...)``, list or dict of these, or None, default=None
        A loss or a scorer, or several.
    sample_weight : array-like of shape (n_rows,), default=None
        The weights of the rows in training and in scores.
    score_weight : "same", array-like of shape (n_rows,) or None, default="same"
        Other weights in scores.
    params : dict, default=None
        Further arguments of ``fit``. All estimators get the same.
    random_state : int, RandomState instance or None, default=0
        The seed of permutations and random orders, and of every ``random_state=None`` in an
        estimator.
    n_jobs : int or None, default=1
        The number of threads, or of joblib's workers.
    row_losses : bool, default=False
        Keep the score of each row.

    Returns
    -------
    list of CVResult
        One result per estimator. For estimators trained side by side, ``seconds`` is an equal
        share of the time.

    Raises
    ------
    ValueError
        As for ``tree_cross_validate``.

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
        stratify=stratify,
        shuffle=shuffle,
        order=order,
        method=method,
        n_repeats=n_repeats,
        n_epochs=n_epochs,
        scoring=scoring,
        sample_weight=sample_weight,
        score_weight=score_weight,
        params=params,
        random_state=random_state,
        n_jobs=n_jobs,
        row_losses=row_losses,
    )
    if not isinstance(estimators, Iterable):
        raise ValueError(f"estimators must be a list of estimators, got {estimators!r}.")
    runs = list(map(partial(Run, evaluation), estimators))
    if len({run.method.is_one_pass for run in runs}) == 2:
        warn_caller(
            "method='auto' fits some estimators and trains others by passes of partial_fit, which "
            "CVResult.method tells apart and whose scores compare badly; method='fit' fits all."
        )
    evaluate_side_by_side(runs)
    return [run.finish() for run in runs]


def tree_cross_val_predict(
    estimator: Any,
    X: Any,
    y: Any = None,
    *,
    cv: Any = 10,
    groups: Any = None,
    stratify: Literal["auto"] | bool = "auto",
    shuffle: bool = True,
    order: Literal["fixed", "random"] = "fixed",
    method: Literal["auto", "exact", "forest", "treecv", "fit", "standard", "holdout"] = "auto",
    n_epochs: int | None = None,
    sample_weight: Any = None,
    params: Mapping[str, Any] | None = None,
    random_state: Any = 0,
    n_jobs: int | None = 1,
    response_method: Literal[
        "predict", "decision_function", "predict_proba", "score_samples"
    ] = "predict",
) -> np.ndarray:
    """Return out-of-fold predictions: each row's prediction by a model that has not seen its fold.

    Parameters
    ----------
    estimator, X, y : see tree_cross_validate
        The learner and the rows.
    cv, groups, stratify, shuffle, order, method, n_epochs : see tree_cross_validate
        How the rows are cut and fed. Each row must be tested once.
    sample_weight, params : see tree_cross_validate
        The weights of the rows in training, and further arguments of ``fit``.
    random_state, n_jobs : see tree_cross_validate
        The seed, and the number of threads or workers.
    response_method : {"predict", "decision_function", "predict_proba", "score_samples"}, \
            default="predict"
        The method of the estimator whose response is returned. Density estimators have
        "score_samples".

    Returns
    -------
    ndarray of shape (n_rows,), (n_rows, n_classes) or (n_rows, n_targets)
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
    estimator = as_estimator(estimator)
    check_estimator(estimator)
    evaluation = Evaluation(
        X,
        y,
        cv=cv,
        groups=groups,
        stratify=stratify,
        shuffle=shuffle,
        order=order,
        method=method,
        n_repeats=1,
        n_epochs=n_epochs,
        scoring=None,
        sample_weight=sample_weight,
        score_weight=None,
        params=params,
        random_state=random_state,
        n_jobs=n_jobs,
        estimator=estimator,
    )
    return predict_out_of_fold(evaluation, estimator, response_method)
