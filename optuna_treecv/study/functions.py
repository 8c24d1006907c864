"""The public functions for studies of Optuna."""

from contextlib import suppress
from dataclasses import replace
from typing import Literal
from typing import Unpack
import warnings

import optuna

from optuna_treecv.caching.caches import ModelCache
from optuna_treecv.core.settings import Arguments
from optuna_treecv.core.settings import takes_settings
from optuna_treecv.storage.database import Given
from optuna_treecv.storage.model_store import DEFAULT_MAX_BYTES
from optuna_treecv.study.choice import Choice
from optuna_treecv.study.choice import choice_of
from optuna_treecv.study.choice import Rule
from optuna_treecv.study.choice import Simpler
from optuna_treecv.study.evaluator import checked_arguments
from optuna_treecv.study.honest import honest_of
from optuna_treecv.study.objective import TreeCVObjective
from optuna_treecv.study.space import Distributions
from optuna_treecv.study.space import Grids
from optuna_treecv.types import Estimator
from optuna_treecv.types import Features
from optuna_treecv.types import Targets


@takes_settings()
def treecv_objective(
    estimator: Estimator,
    X: Features,
    y: Targets = None,
    *,
    param_distributions: Distributions = None,
    param_grid: Grids = None,
    batch_size: int = 32,
    cache: Literal["memory"] | ModelCache | None = "memory",
    store: Given | None = None,
    store_max_bytes: int = DEFAULT_MAX_BYTES,
    keep_outputs: Literal["auto", "all", False] = "auto",
    **settings: Unpack[Arguments],
) -> TreeCVObjective:
    """Make an objective for ``study.optimize`` that evaluates each trial by cross-validation.

    All trials use the same folds and the same orders of rows, so their values can be compared in
    pairs. The objective can be pickled and shared by threads (``study.optimize(n_jobs=2)``). It
    can also be called with ``study.best_trial`` or an ``optuna.trial.FixedTrial``.

    Parameters
    ----------
    estimator : estimator, River model, or callable
        An estimator whose parameters are searched; or a callable ``trial -> estimator`` that
        suggests parameters itself. The parameters of a Pipeline are named ``step__parameter``. The
        tree needs ``partial_fit``, in a Pipeline for each step that is not stateless. The tree's
        score is that of the model after one pass over the training rows, in the order of the tree;
        a search over parameters that ``partial_fit`` does not use is refused. Any other estimator
        is fitted on each fold, also one whose ``fit`` makes other passes than ``partial_fit``.
        Pipelines that differ only in later steps then share the fits of the steps before them.
    X : array-like, sparse matrix, data frame or path, of shape (n_rows, n_features)
        The rows or their path, as for ``tree_cross_validate``. They must not be changed while the
        objective is in use.
    y : array-like of shape (n_rows,) or (n_rows, n_targets), or str, default=None
        Labels or targets, as for ``tree_cross_validate``.
    param_distributions : dict of str to distribution or list, "auto" or None, default=None
        The search space, by parameter name: distributions of Optuna, ``uniform``, ``loguniform``
        or ``randint`` of SciPy, or lists of values. With an estimator, either this or
        ``param_grid`` is required; with a callable, neither may be given. "auto" is the
        recommended space of a known estimator, in a Pipeline of its last step. Parameters of the
        estimator that differ from their defaults keep their values. Categories other than
        numbers, strings, bools and None, such as the tuples of ``ngram_range``, are texts in
        trials, as in ``param_grid``: Optuna cannot store them. Estimators get the values, and
        ``values_of(study.best_params)`` returns them.
    param_grid : dict of str to list, or list of such dicts, default=None
        The grid to search, as ``GridSearchCV`` takes it; use it with
        ``sampler=objective.grid_sampler()``. Points that several dicts share are visited once, and
        a parameter that a dict leaves out keeps the estimator's value there. Estimators get the
        values as given. In trials, lists of integers or of floats become int or float
        parameters, on a log scale if they are positive and span a factor of more than 100. Other
        lists become categories, of texts if Optuna cannot distinguish the values.
    batch_size : int, default=32
        The most candidates that are trained in one batch, in one pass over the rows, 1 to 1024.
        These are points of the grid that have had no trial yet, and trials that run at the same
        time (``study.optimize(n_jobs=...)``). The scores of a candidate do not depend on its
        batch. Pruning saves no work within a batch, except with ``report="progressive"`` and a
        ``RacingPruner``.
    cache : {"memory", None} or ModelCache, default="memory"
        The cache by which trials share models. Training that two trials have in common is done
        once; no score depends on this. "memory" makes one cache of 256 MiB for this objective;
        None switches sharing off; one ``ModelCache`` can be given to several objectives.
    store : str, sqlalchemy.URL, sqlalchemy.Engine or callable, default=None
        A SQLite file or a PostgreSQL database, such as ``"sqlite:///treecv_store.db"`` or the URL
        of the study's PostgreSQL database. It stores the score of every fold, and the models that
        took long to train, for other workers and later runs. A trial that was killed while its
        folds were fitted can be resumed at the next fold. Read it with ``optuna_treecv.history``.
        If it is lost, trials continue without it. A callable, () -> Engine, keeps a password out
        of the pickles of the objective.
    store_max_bytes : int, default=256 MiB
        Bytes for shared models in the store. When more are written, the oldest models and those
        that took the fewest seconds per byte are deleted. Fold scores are never deleted.
    keep_outputs : {"auto", "all", False}, default="auto"
        Which out-of-fold outputs of trials are kept in memory, for ``honest`` and ``ensemble``.
        "auto" keeps the predictions and probabilities that the scores need anyway. "all" also
        keeps those that only an ensemble needs; each fitted fold predicts once more for this.
        Outputs and scores of trials take up to 256 MiB: those of the worst trials are dropped
        first.
    **settings

    Returns
    -------
    TreeCVObjective
        Callable with a trial. ``.direction`` is the direction that the study must have (or
        ``.directions``), ``.evaluate(params)`` returns a ``CVResult`` without a study, and
        ``.best_estimator(study)`` returns the best estimator, fitted on all rows.

    Raises
    ------
    ValueError
        If an argument is wrong.

    See Also
    --------
    tree_cross_validate : One evaluation without Optuna.

    Notes
    -----
    Each trial gets a user attribute ``treecv``, a dict:

    * ``mean_test_score`` and ``std_test_score``, to 6 digits; a pooled score and a hold-out have
      ``std_error`` in place of the latter;
    * ``score_<name>`` for each of several scores;
    * ``folds_scored``, ``n_updates`` (rows trained on), ``method`` and ``seconds``;
    * with a store, ``run`` (the name of the evaluation there) and ``seconds_store``;
    * with ``n_estimators="best"``, ``n_estimators`` and ``curve``; for forests with
      ``oob_score=True``, ``oob_score``;
    * ``diverged_folds``, if there are any.

    While rows are read from a file, the attribute ``treecv_progress`` has the share that is done.

    The first fold of a tree is ready after about one pass over the data. With reports of folds,
    pruning saves the work after that; early reports come before. If folds are fitted, pruning
    saves the fits that have not begun; ``n_jobs`` workers begin as many at once.

    Examples
    --------
    >>> import optuna
    >>> from optuna.distributions import FloatDistribution
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from optuna_treecv import PegasosClassifier, treecv_objective
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> objective = treecv_objective(
    ...     make_pipeline(StandardScaler(), PegasosClassifier()),
    ...     X,
    ...     y,
    ...     param_distributions={
    ...         "pegasosclassifier__alpha": FloatDistribution(1e-5, 1e2, log=True)
    ...     },
    ...     cv="loo",
    ... )
    >>> study = optuna.create_study(direction=objective.direction)
    >>> study.optimize(objective, n_trials=20)
    >>> study.best_value < 0.05
    True
    """
    arguments = checked_arguments(
        estimator,
        X,
        y,
        param_distributions=param_distributions,
        param_grid=param_grid,
        batch_size=batch_size,
        cache=cache,
        store=store,
        store_max_bytes=store_max_bytes,
        keep_outputs=keep_outputs,
        **settings,
    )
    return TreeCVObjective(*arguments)


def select(
    study: optuna.Study,
    objective: TreeCVObjective,
    rule: Rule = "best",
    simpler: Simpler | None = None,
    level: float = 0.95,
) -> Choice:
    """Choose a trial of a study, with the comparisons that support the choice.

    All trials of an objective have the same folds, so they are compared in pairs. The standard
    error of a paired difference is often a quarter of that of a mean: 0.00014 against 0.00056 on
    Covertype by leave-one-out.

    Parameters
    ----------
    study : optuna.Study
        A study with one objective and at least one complete trial.
    objective : TreeCVObjective
        The objective that the study was run with. It has the fold scores of the trials that it
        has evaluated itself in memory, up to 256 MiB of the best ones; those of other trials are
        read from its store. With ``row_losses=True`` it compares its trials over rows.
    rule : {"best", "one_se"} or callable, default="best"
        "best" takes the best value. "one_se" takes the simplest of the trials whose paired
        difference from the best one is at most its standard error. A callable gets a list of
        candidates, the best one first, each with its ``trial`` and its ``difference`` from the
        best one, and returns one of them or the number of its trial.
    simpler : dict of str to {"larger", "smaller"}, "n_updates" or callable, default=None
        For "one_se": which values of a parameter make a simpler model, the most important
        parameter first. It may be omitted if a single parameter with a usual direction is
        searched, such as ``alpha``. For trials of different kinds of estimators: with "n_updates",
        the simplest trial is the one that was trained on the fewest rows; with a callable,
        (params) -> float, it is the one with the smallest number.
    level : float, default=0.95
        The probability with which intervals cover their targets.

    Returns
    -------
    Choice
        The chosen trial, its interval, and the differences of others from the best one.

    Raises
    ------
    ValueError
        If an argument is wrong, if the study has another evaluation than the objective, or if the
        fold scores of the best trial are unknown.

    See Also
    --------
    TreeCVObjective.best_estimator : Fits the chosen model.
    optuna_treecv.report.plot_choice : Draws the comparisons.

    Examples
    --------
    >>> import optuna
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from optuna_treecv import PegasosClassifier, select, treecv_objective
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), PegasosClassifier())
    >>> name = "pegasosclassifier__alpha"
    >>> grid = {name: [1e-4, 1e-3, 1e-2, 1e-1, 1.0]}
    >>> objective = treecv_objective(model, X, y, param_grid=grid, cv="loo")
    >>> study = optuna.create_study(sampler=objective.grid_sampler())
    >>> study.optimize(objective)
    >>> choice = select(study, objective, rule="one_se")
    >>> choice.trial.params[name] >= choice.best.params[name]
    True
    """
    if not isinstance(objective, TreeCVObjective):
        raise ValueError(f"objective must be one of treecv_objective, got {objective!r}.")
    contest = objective.evaluator.contest(study)
    choice = choice_of(contest, rule, simpler, level)
    if isinstance(rule, str):
        # Without the scores for it, there is no correction; its note repeats its warning.
        with suppress(ValueError), warnings.catch_warnings(action="ignore"):
            return replace(choice, honest=honest_of(contest, rule, simpler, level))
    return choice
