"""The public functions for studies of Optuna."""

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from typing import Literal
from typing import Unpack
import warnings

import optuna
from optuna.distributions import CategoricalDistribution

from optuna_treecv.caching.caches import ModelCache
from optuna_treecv.caching.caches import StoredModelCache
from optuna_treecv.core.cross_validation import CrossValidation
from optuna_treecv.core.cross_validation import Search
from optuna_treecv.core.settings import Arguments
from optuna_treecv.core.settings import check_choice
from optuna_treecv.core.settings import check_integer
from optuna_treecv.core.settings import Settings
from optuna_treecv.core.settings import takes_settings
from optuna_treecv.crossval.evaluate import run_for
from optuna_treecv.estimators.base import MOST_EPOCHS
from optuna_treecv.estimators.checks import as_estimator
from optuna_treecv.estimators.incremental import check_effect
from optuna_treecv.rows.checks import check_bytes
from optuna_treecv.storage.database import Database
from optuna_treecv.storage.model_store import DEFAULT_MAX_BYTES
from optuna_treecv.storage.model_store import Leases
from optuna_treecv.storage.model_store import ModelStore
from optuna_treecv.study.batches import MOST_SIDE_BY_SIDE
from optuna_treecv.study.choice import Choice
from optuna_treecv.study.choice import choice_of
from optuna_treecv.study.choice import Rule
from optuna_treecv.study.choice import Simpler
from optuna_treecv.study.honest import honest_of
from optuna_treecv.study.objective import TreeCVObjective
from optuna_treecv.study.space import as_space


@takes_settings()
def treecv_objective(
    estimator: Any,
    X: Any,
    y: Any = None,
    *,
    param_distributions: Mapping[str, Any] | Literal["auto"] | None = None,
    param_grid: Mapping[str, Collection[Any]]
    | Sequence[Mapping[str, Collection[Any]]]
    | None = None,
    batch_size: int = 32,
    cache: Literal["memory"] | ModelCache | None = "memory",
    store: Any = None,
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
        The rows, or where they lie, as for ``tree_cross_validate``. They must not be changed while
        the objective is in use.
    y : array-like of shape (n_rows,) or (n_rows, n_targets), or str, default=None
        Labels or targets, as for ``tree_cross_validate``.
    param_distributions : dict of str to distribution or list, "auto" or None, default=None
        The search space, by parameter name: distributions of Optuna, ``uniform``, ``loguniform``
        or ``randint`` of SciPy, or lists of values. With an estimator, either this or
        ``param_grid`` is required; with a callable, neither may be given. "auto" is the
        recommended space of a known estimator, in a Pipeline of its last step. Parameters that the
        estimator has at other values than their defaults keep these values. Categories other than
        numbers, strings, bools and None, such as the tuples of ``ngram_range``, are texts in
        trials, as in ``param_grid``: Optuna cannot store them. Estimators get the values, and
        ``values_of(study.best_params)`` returns them.
    param_grid : dict of str to list, or list of such dicts, default=None
        The grid to search, as ``GridSearchCV`` takes it; use it with
        ``sampler=objective.grid_sampler()``. Points that several dicts share are visited once, and
        a parameter that a dict leaves out keeps the estimator's value there. Estimators get the
        values as they are. In trials, lists of integers or of floats become int or float
        parameters, on a log scale if they are positive and span a factor of more than 100. Other
        lists become categories, of texts where Optuna could not tell values apart.
    batch_size : int, default=32
        The most configurations that are trained side by side in one pass over the rows, 1 to 1024.
        These are points of the grid that have had no trial yet, and trials that run at the same
        time (``study.optimize(n_jobs=...)``). Each configuration gets the same scores as alone.
        Pruning saves no work among them, except with ``report="progressive"`` and a
        ``RacingPruner``.
    cache : {"memory", None} or ModelCache, default="memory"
        Where trials share models. Training that two trials have in common is done once; no score
        depends on this. "memory" makes one cache of 256 MiB for this objective; None switches
        sharing off; one ``ModelCache`` can be given to several objectives.
    store : str, sqlalchemy.URL, sqlalchemy.Engine or callable, default=None
        A SQLite file or a PostgreSQL database, such as ``"sqlite:///treecv_store.db"`` or the URL
        of a study's own PostgreSQL database. It keeps the score of every fold, and the models that
        took long to train, for other workers and later runs. A trial that was killed while its
        folds were fitted can be resumed at the next fold. Read it with ``optuna_treecv.history``.
        If it is lost, trials go on without it. A callable, () -> Engine, keeps a password out of
        the pickles of the objective.
    store_max_bytes : int, default=256 MiB
        Bytes for shared models in the store. When more are written, the oldest models and those
        that took the fewest seconds per byte are deleted. Fold scores are never deleted.
    keep_outputs : {"auto", "all", False}, default="auto"
        Which out-of-fold outputs of trials are held in memory, for ``honest`` and ``ensemble``.
        "auto" holds the predictions and probabilities that the scores need anyway. "all" also
        holds those that only an ensemble needs; each fitted fold predicts once more for this.
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

    While rows are read from a file, the attribute ``treecv_progress`` says how much is done.

    The first fold of a tree is ready after about one pass over the data. With reports of folds,
    pruning saves the work after that; early reports come before. Where folds are fitted, pruning
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
    checked = Settings(**settings)
    report = checked.report
    if report == "auto":  # the first trial chooses
        checked = replace(checked, report=None)
    estimator = as_estimator(estimator)
    batch_size = check_integer("batch_size", batch_size, MOST_SIDE_BY_SIDE)
    space = as_space(estimator, param_distributions, param_grid)
    shown = space.example
    store_max_bytes = check_bytes("store_max_bytes", store_max_bytes)
    database = None if store is None else Database(store)
    models = None if database is None else ModelStore(database, store_max_bytes)
    with_others = isinstance(cache, ModelCache) or database is not None
    check_choice("keep_outputs", keep_outputs, ("auto", "all", False))
    axes, grid = space.axes, {}
    if space.grids is not None:
        grid = {name: tuple(axis.values) for name, axis in axes.items()}
    search = Search({name: axis.ends for name, axis in axes.items()}, grid, keep_outputs)
    made_cache = _make_cache(cache, models)
    cross_validation = CrossValidation.of(X, y, checked, shown, made_cache, with_others, search)
    if axes:
        argument = "param_distributions" if space.grids is None else "param_grid"
        if "n_epochs" in axes and not hasattr(space.estimator, "n_epochs"):
            for value in axes["n_epochs"].ends:
                check_integer(f"{argument}: n_epochs", value, MOST_EPOCHS)
        # Errors are found here and not in the first trial. A categorical parameter may add a
        # method: SGDClassifier has predict_proba with some losses only.
        distributions = {name: axis.distribution for name, axis in axes.items()}
        choices = any(isinstance(d, CategoricalDistribution) for d in distributions.values())
        run = run_for(cross_validation, shown, of_class=choices, searched=axes)
        if run.why_no_early_report:
            raise ValueError(run.why_no_early_report)
        if run.plan.capabilities.is_incremental:
            check_effect(argument, shown, {n: not d.single() for n, d in distributions.items()})
            cross_validation.unused.warn(shown, axes, checked.n_epochs)
            run.plan.prepare()
    leases = None
    if space.grids is not None and batch_size > 1 and models is not None:
        if isinstance(cross_validation.shared.cache_for(shown), StoredModelCache):
            leases = Leases(models)
    return TreeCVObjective(space, cross_validation, report, database, batch_size, leases)


def _make_cache(cache: Any, store: ModelStore | None) -> ModelCache | StoredModelCache | None:
    """Return the cache of models that ``cache`` and ``store`` describe."""
    if cache is None:
        return None
    if isinstance(cache, str) and cache == "memory":
        cache = ModelCache()
    if not isinstance(cache, ModelCache):
        raise ValueError(f"cache must be None, 'memory' or a ModelCache, got {cache!r}.")
    return cache if store is None else StoredModelCache(cache, store)


def select(
    study: optuna.Study,
    objective: TreeCVObjective,
    rule: Rule = "best",
    simpler: Simpler | None = None,
    level: float = 0.95,
) -> Choice:
    """Choose a trial of a study, with the comparisons that defend the choice.

    All trials of an objective have the same folds, so they are compared in pairs. The standard
    error of a paired difference is often a quarter of that of a mean: 0.00014 against 0.00056 on
    Covertype by leave-one-out.

    Parameters
    ----------
    study : optuna.Study
        A study with one objective and at least one complete trial.
    objective : TreeCVObjective
        The objective that the study was run with. It knows the fold scores of the trials that it
        has evaluated itself, up to 256 MiB of the best ones; those of other trials are read from
        its store. With ``row_losses=True`` it compares its trials over rows.
    rule : {"best", "one_se"} or callable, default="best"
        "best" takes the best value. "one_se" takes the simplest of the trials whose paired
        difference from the best one is at most its standard error. A callable gets a list of
        candidates, the best one first, each with its ``trial`` and its ``difference`` from the
        best one, and returns one of them or the number of its trial.
    simpler : dict of str to {"larger", "smaller"}, "n_updates" or callable, default=None
        For "one_se": which values of a parameter make a simpler model, the most important
        parameter first. It may be left out where a single parameter is searched whose name says
        it, such as ``alpha``. For trials of different kinds of estimators: with "n_updates", the
        simplest trial is the one that was trained on the fewest rows; with a callable,
        (params) -> float, it is the one with the smallest number.
    level : float, default=0.95
        The probability with which intervals cover their targets.

    Returns
    -------
    Choice
        The chosen trial, its interval, and how others differ from the best one.

    Raises
    ------
    ValueError
        If an argument is wrong, if the study has another evaluation than the objective, or if the
        fold scores of the best trial are not known.

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
        # Too little is known, or its note says why it may mislead.
        with suppress(ValueError), warnings.catch_warnings(action="ignore"):
            return replace(choice, honest=honest_of(contest, rule, simpler, level))
    return choice
