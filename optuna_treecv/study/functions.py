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
    """Create an objective for ``study.optimize`` that evaluates each trial by cross-validation.

    All trials use the same folds and process the rows in the same order, so their fold scores can
    be compared in pairs. The objective can be pickled, and threads can share it
    (``study.optimize(n_jobs=2)``). It can also be called with ``study.best_trial`` or an
    ``optuna.trial.FixedTrial``.

    Parameters
    ----------
    estimator : estimator, River model, or callable
        An estimator whose parameters are searched, or a callable ``trial -> estimator`` that
        suggests the parameters and creates the estimator. The parameters of a Pipeline are named
        ``step__parameter``. TreeCV requires ``partial_fit``; in a Pipeline, each step must have it
        or be stateless. It scores the model after one pass over the training rows, in the order of
        the tree, and raises an error if a searched parameter has no effect on ``partial_fit``.
        Estimators for which there is no faster method are refitted on each fold, including those
        whose ``fit`` differs from one pass of ``partial_fit``. Pipelines that differ only in later
        steps then share the fits of the earlier steps.
    X : array-like, sparse matrix, data frame or path, of shape (n_rows, n_features)
        The rows, or the path of a file with rows, as for ``tree_cross_validate``. They must not be
        modified while the objective is in use.
    y : array-like of shape (n_rows,) or (n_rows, n_targets), or str, default=None
        Labels or targets, as for ``tree_cross_validate``.
    param_distributions : dict of str to distribution or list, "auto" or None, default=None
        The search space, by parameter name: distributions of Optuna, ``uniform``, ``loguniform``
        or ``randint`` of SciPy, or lists of values. If ``estimator`` is an estimator, either this
        or ``param_grid`` is required; if it is a callable, neither may be given. "auto" selects
        the recommended search space of the estimator, or of the last step of a Pipeline;
        parameters that differ from their defaults are not searched. Optuna can only store numbers,
        strings, bools and None. Other categories, such as the tuples of ``ngram_range``, are
        stored as strings. Estimators receive the original values, which
        ``values_of(study.best_params)`` returns.
    param_grid : dict of str to list, or list of such dicts, default=None
        The grid to search, as for ``GridSearchCV``; use it with
        ``sampler=objective.grid_sampler()``. Points that occur in several dicts are visited once,
        and a parameter that is missing in a dict keeps the estimator's value. Estimators receive
        the values as given. In trials, a list of integers or floats becomes an int or float
        parameter, on a log scale if all values are positive and the largest is more than 100 times
        the smallest. Any other list becomes a categorical parameter; its values are stored as
        strings if Optuna cannot distinguish them.
    batch_size : int, default=32
        The maximum number of candidates that are trained in one pass over the rows, 1 to 1024. A
        batch consists of grid points that have no trial yet, and of concurrent trials
        (``study.optimize(n_jobs=...)``). The scores of a candidate do not depend on its batch.
        Pruning saves no work within a batch, except with ``report="progressive"`` and a
        ``RacingPruner``.
    cache : {"memory", None} or ModelCache, default="memory"
        The cache through which trials share models, so that training that several trials have in
        common is done only once. Scores do not depend on the cache. "memory" creates a cache of
        256 MiB for this objective, None disables caching, and a ``ModelCache`` can be passed to
        several objectives.
    store : str, sqlalchemy.URL, sqlalchemy.Engine or callable, default=None
        A SQLite file or a PostgreSQL database, such as ``"sqlite:///treecv_store.db"`` or the URL
        of the study's PostgreSQL database. It stores the score of every fold, and the models that
        took long to train, for other workers and later runs. A trial that was killed while its
        folds were fitted can be resumed at the next fold. Read the store with
        ``optuna_treecv.history``. If the connection is lost, trials continue without the store.
        Pass a callable, () -> Engine, to keep a password out of pickles of the objective.
    store_max_bytes : int, default=256 MiB
        The maximum number of bytes of the models in the store. Beyond it, old models and models
        that took the fewest seconds per byte to train are deleted. Fold scores are never deleted.
    keep_outputs : {"auto", "all", False}, default="auto"
        Which out-of-fold outputs of trials are kept for ``predict_oof``, ``threshold``,
        ``honest`` and ``ensemble``. "auto" keeps the outputs that are computed for the scores,
        and labels and probabilities (or decision values) of classifiers. Exceptions are
        classifiers that take long to predict, such as ``NuSVC``, outputs of more than 64 MiB per
        trial, rows on other machines, and ``method="treecv"`` with ``partial_fit`` of another
        library; "all" makes only the last exception. False keeps none. In memory, the outputs and
        scores of trials take up to 256 MiB; those of the worst trials are dropped first. With a
        store, it has the outputs of the 20 best trials.
    **settings

    Returns
    -------
    TreeCVObjective
        The objective, to be called with a trial. Its attribute ``direction`` is the direction that
        the study must have (``directions`` if there are several), ``evaluate(params)`` returns a
        ``CVResult`` without a study, and ``best_estimator(study)`` returns the estimator of the
        best trial, fitted on all rows.

    Raises
    ------
    ValueError
        If an argument is invalid.

    See Also
    --------
    tree_cross_validate : Cross-validates one estimator without Optuna.

    Notes
    -----
    Each trial gets a user attribute ``treecv``, a dict:

    * ``mean_test_score`` and ``std_test_score``, rounded to 6 digits; for a pooled score and a
      hold-out, ``std_error`` replaces the latter;
    * ``score_<name>``, the mean of each score, if there are several scores;
    * ``folds_scored``, ``n_updates`` (the number of rows trained on), ``method`` and ``seconds``;
    * with a store, ``run`` (the name of the evaluation in the store) and ``seconds_store``;
    * with ``n_estimators="best"``, ``n_estimators`` and ``curve``; for forests with
      ``oob_score=True``, ``oob_score``;
    * ``diverged_folds``, if any fold diverged.

    While rows are read from a file, the attribute ``treecv_progress`` shows the progress.

    With TreeCV, the first fold score is available after about one pass over the data. If fold
    scores are reported, pruning saves only the work after this pass; with
    ``report="progressive"``, a trial can be pruned during the pass. If the estimator is refitted
    on each fold, pruning saves the fits that have not started yet; ``n_jobs`` workers start that
    many fits at the same time.

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
    """Choose a trial of a study, and compare it with the other trials.

    All trials of an objective use the same folds, so their scores are compared in pairs. The
    standard error of a paired difference is often much smaller than the standard error of a mean:
    0.00014 versus 0.00056 for leave-one-out on Covertype.

    Parameters
    ----------
    study : optuna.Study
        A study with one objective and at least one complete trial.
    objective : TreeCVObjective
        The objective with which the study was run. It keeps the fold scores of the trials that it
        has evaluated in memory, up to 256 MiB for the best ones; the fold scores of other trials
        are read from its store. If it has ``row_losses=True``, trials are compared over rows.
    rule : {"best", "one_se"} or callable, default="best"
        "best" selects the trial with the best value. "one_se" selects the simplest trial among
        those whose paired difference from the best trial is at most the standard error of this
        difference. A callable takes a list of candidates, the best one first, with the attributes
        ``trial`` and ``difference`` (the paired difference from the best trial). It returns one of
        them, or the number of its trial.
    simpler : dict of str to {"larger", "smaller"}, "n_updates" or callable, default=None
        Used if rule="one_se". A dict tells for each parameter whether larger or smaller values
        make a model simpler; the most important parameter comes first. It may be omitted if the
        only searched parameter has a usual direction, such as ``alpha``. To compare different
        kinds of estimators, use "n_updates", by which the simplest model is the one trained on the
        fewest rows, or a callable, (params) -> float, which returns the smallest number for the
        simplest model.
    level : float, default=0.95
        The coverage probability of the intervals.

    Returns
    -------
    Choice
        The chosen trial, its interval, and the differences of other trials from the best one.

    Raises
    ------
    ValueError
        If an argument is invalid, if the study was run with other data, folds or scoring than
        those of the objective, or if the fold scores of the best trial are unknown.

    See Also
    --------
    TreeCVObjective.best_estimator : Fits the estimator of the chosen trial.
    optuna_treecv.report.plot_choice : Plots the comparisons.

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
        raise ValueError(
            f"objective must be an objective that treecv_objective returned, got {objective!r}."
        )
    contest = objective.evaluator.contest(study)
    choice = choice_of(contest, rule, simpler, level)
    if isinstance(rule, str):
        # The correction is omitted if its scores are unknown. Its warnings are also in its note.
        with suppress(ValueError), warnings.catch_warnings(action="ignore"):
            return replace(choice, honest=honest_of(contest, rule, simpler, level))
    return choice
