"""A trial -> an estimator -> a value: what ``study.optimize`` calls."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from itertools import product
from math import isfinite
import re
from typing import Any
from typing import TypeAlias

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
from sklearn.base import clone

from optuna_treecv.batches import Batches
from optuna_treecv.cache import ModelCache
from optuna_treecv.cache import StoredModelCache
from optuna_treecv.claims import Claims
from optuna_treecv.database import Database
from optuna_treecv.evaluation import check_choice
from optuna_treecv.evaluation import Evaluation
from optuna_treecv.evaluation import MAX_BLOCKS
from optuna_treecv.grid_sampler import GridSampler
from optuna_treecv.history import record
from optuna_treecv.history import RUN_ATTRIBUTE
from optuna_treecv.keys import encode
from optuna_treecv.keys import NoKey
from optuna_treecv.learners import as_estimator
from optuna_treecv.learners import name_of
from optuna_treecv.records import EvaluationRow
from optuna_treecv.run import CVResult
from optuna_treecv.run import mean_and_std
from optuna_treecv.run import Run
from optuna_treecv.stores import ModelStore

# What FixedTrial and FrozenTrial say when they are asked for a parameter that they do not have.
_NOT_FOUND = re.compile("value of the parameter '(.+)' is not found")

_VERSIONS = {name: version(name) for name in ("optuna-treecv", "optuna", "scikit-learn", "numpy")}

# What is reported in place of an infinite mean: pruners rank it last, and sums of 32 are finite.
_HUGE = 1e300

#: Optuna's Trial, FixedTrial and FrozenTrial share no base that can be named in public.
AnyTrial: TypeAlias = Any


class TreeCVObjective:
    """The objective that ``treecv_objective`` makes.

    Attributes
    ----------
    direction : {"minimize", "maximize"}
        What a study must do with its values.
    param_grid : dict of str to list, or None
        The points that trials may have.
    """

    def __init__(
        self,
        estimator: Any,
        param_distributions: Mapping[str, BaseDistribution] | None,
        evaluation: Evaluation,
        report: str | None,
        database: Database | None = None,
        param_grid: Mapping[str, list[Any]] | None = None,
        batch_size: int = 1,
        claims: Claims | None = None,
    ) -> None:
        self.direction: str = (
            "minimize" if evaluation.scoring is None else evaluation.scoring.direction
        )
        self._estimator = estimator
        self._param_distributions = param_distributions
        self._evaluation = evaluation
        self._report = report
        self._database = database
        self.param_grid = param_grid
        self._batches = Batches(evaluation, batch_size, claims)
        self._ahead: dict[bytes, Run] = {}  # by their points: made before their trials

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ahead": {}}  # runs are bound to prepared rows

    def __call__(self, trial: AnyTrial) -> float:
        """Evaluate a trial.

        Parameters
        ----------
        trial : optuna.trial.Trial, FixedTrial or FrozenTrial
            Asked for parameters, told of the results.

        Returns
        -------
        float
            The mean of the fold scores, never NaN. A diverged fold scores 1 for "error", inf for
            other losses and -inf for scorers.

        Raises
        ------
        optuna.TrialPruned
            If ``report`` is set and the study's pruner says so.
        ValueError
            If the study's direction contradicts the scoring, or an argument turns out to be wrong.
        """
        self._check_direction(trial)
        try:
            with self._batches.call():
                run = self._run(trial)
                if hasattr(trial, "study"):  # FixedTrial and FrozenTrial are alone
                    others = None if self.param_grid is None else partial(self._unseen, trial)
                    self._batches.find(run, others)
                with self._batches.claimed(run):
                    if self._report is None:
                        run.finish()
                    else:
                        self._run_reporting(trial, run)
        except optuna.TrialPruned:
            raise
        except Exception as error:
            error.add_note(
                f"This happened in trial {trial.number} with parameters {trial.params}."
            )
            raise
        return self._record(trial, run).mean

    def evaluate(self, params: Mapping[str, Any]) -> CVResult:
        """Cross-validate at given parameters, without a study.

        Parameters
        ----------
        params : dict
            A value for each name that a trial would be asked for.

        Returns
        -------
        CVResult
            The same numbers as a trial with these parameters.
        """
        if not isinstance(params, Mapping):
            raise ValueError(f"params must be a dict of parameter values, got {params!r}.")
        trial = optuna.trial.FixedTrial(dict(params))
        estimator = self._suggest_given(trial, "params", params)
        _check_names("params", params, trial.params)
        return Run(self._evaluation, estimator).finish()

    def best_estimator(self, study: optuna.Study) -> Any:
        """The estimator of a study's best trial, fitted on all rows in prepared order.

        Parameters
        ----------
        study : optuna.Study
            With at least one completed trial of this objective.

        Returns
        -------
        estimator
            Fitted.
        """
        trial = study.best_trial
        argument = "study must be one of this objective: its best trial"
        if self._param_distributions is None:
            return self._evaluation.fit(self._suggest_given(trial, argument, trial.params))
        _check_names(argument, trial.params, self._param_distributions)
        return self._evaluation.fit(self._with(trial.params))

    def grid_sampler(self, seed: int | None = None) -> optuna.samplers.GridSampler:
        """A sampler of the points of ``param_grid``.

        Parameters
        ----------
        seed : int, default=None
            Of the order in which the points come.

        Returns
        -------
        optuna.samplers.GridSampler
            For ``optuna.create_study(sampler=...)``; it stops the study after the last point. It
            does what Optuna's does, in less time where points are many.

        Raises
        ------
        ValueError
            If the objective has no ``param_grid``.
        """
        if self.param_grid is None:
            raise ValueError("grid_sampler needs an objective with a param_grid.")
        return GridSampler(dict(self.param_grid), seed=seed)

    def _unseen(self, trial: optuna.Trial) -> Iterator[Run]:
        """Runs at points of the grid that no trial has, and that can be trained beside this
        one's; none if it is not at a point of the grid itself.
        """
        grid = self.param_grid
        assert grid is not None
        mine = {name: trial.params[name] for name in grid}
        if any(mine[name] not in values for name, values in grid.items()):
            return
        lanes = getattr(self._estimator, "lane_parameters", ())
        beside = {name: values if name in lanes else [mine[name]] for name, values in grid.items()}
        trials = trial.study.get_trials(deepcopy=False)
        seen = [tuple(one.params.get(name) for name in beside) for one in trials]
        points = (point for point in product(*beside.values()) if point not in seen)
        for point in points:
            values = dict(zip(beside, point, strict=True))
            name = _name_of(values)
            run = None if name is None else self._ahead.get(name)
            if run is None:
                try:
                    run = Run(self._evaluation, self._with(values))
                except Exception:  # noqa: BLE001  # of another trial, which will raise it
                    continue
                if name is not None:
                    self._ahead[name] = run
            yield run

    def _run(self, trial: AnyTrial) -> Run:
        """The trial's run: that of its point, if it was made when others were walked."""
        if self._param_distributions is None:
            return Run(self._evaluation, self._estimator(trial))
        values = self._values(trial)
        name = _name_of(values) if self._ahead else None
        run = None if name is None else self._ahead.pop(name, None)
        return Run(self._evaluation, self._with(values)) if run is None else run

    def _suggest(self, trial: AnyTrial) -> Any:
        """The trial's estimator."""
        if self._param_distributions is None:
            return self._estimator(trial)
        return self._with(self._values(trial))

    def _values(self, trial: AnyTrial) -> dict[str, Any]:
        assert self._param_distributions is not None
        distributions = self._param_distributions.items()
        return {name: _suggest(trial, name, distribution) for name, distribution in distributions}

    def _suggest_given(self, trial: AnyTrial, argument: str, given: Mapping[str, Any]) -> Any:
        """The estimator of a trial that can only suggest what an argument gave it."""
        try:
            return self._suggest(trial)
        except ValueError as error:
            if (missing := _NOT_FOUND.search(str(error))) is None:
                raise
            raise _lacks(argument, missing[1], given) from error

    def _with(self, values: Mapping[str, Any]) -> Any:
        """The estimator with these values; estimators among them are copied, never shared."""
        own = {name: clone(value, safe=False) for name, value in values.items()}
        return clone(self._estimator).set_params(**own)

    def _check_direction(self, trial: AnyTrial) -> None:
        study = getattr(trial, "study", None)  # FixedTrial and FrozenTrial have none
        if study is None:
            return
        wanted = self.direction
        given = [direction.name.lower() for direction in study.directions]
        if len(given) > 1:
            raise ValueError(f"the study must have one objective, got {len(given)}.")
        if given != [wanted]:
            raise ValueError(
                f"the study's direction must be {wanted!r}, since scoring is to be {wanted}d, "
                f"got {', '.join(given)}: "
                "optuna.create_study(direction=objective.direction)."
            )

    def _run_reporting(self, trial: AnyTrial, run: Run) -> None:
        """Walk, report after each part, and stop if the pruner says so."""
        n_before = 0
        for part in run:
            scores = run.walked[(n_before if self._report == "folds" else 0) : run.n_scored]
            n_before = run.n_scored
            trial.report(float(np.clip(mean_and_std(scores)[0], -_HUGE, _HUGE)), part)
            if run.n_scored < len(run.walked) and trial.should_prune():
                self._record(trial, run)
                raise optuna.TrialPruned(f"pruned after {run.n_scored} of {len(run.walked)} folds")

    def _record(self, trial: AnyTrial, run: Run) -> CVResult:
        """Everything into the store, plain numbers for the dashboard."""
        result = run.result()
        if self._database is not None:
            whole = run.n_scored == len(run.walked)
            row = EvaluationRow(
                **run.about(),
                study_name=getattr(getattr(trial, "study", None), "study_name", None),
                trial_number=trial.number,
                state="complete" if whole else "pruned",
                parameters=trial.params,
                mean=result.mean,
                std=result.std,
                folds_scored=run.n_scored,
                diverged_folds=result.diverged_folds,
                n_updates=result.n_updates,
                n_updates_saved=result.n_updates_saved,
                n_updates_standard=result.n_updates_standard,
                seconds=result.seconds,
                seconds_prepare=result.seconds_prepare,
                versions=_VERSIONS,
            )
            if record(self._database, row, run.by_fold()):
                trial.set_user_attr(RUN_ATTRIBUTE, row.run)
        trial.set_user_attr("mean_test_score", _readable(result.mean))
        if result.std is not None:
            trial.set_user_attr("std_test_score", _readable(result.std))
        trial.set_user_attr("folds_scored", run.n_scored)
        trial.set_user_attr("n_updates", result.n_updates)
        trial.set_user_attr("n_updates_saved", result.n_updates_saved)
        trial.set_user_attr("seconds", round(result.seconds, 6))
        if result.diverged_folds:
            trial.set_user_attr("diverged_folds", result.diverged_folds)
        return result


def treecv_objective(
    estimator: Any,
    X: Any,
    y: Any = None,
    *,
    param_distributions: Mapping[str, BaseDistribution] | None = None,
    param_grid: Mapping[str, Collection[Any]] | None = None,
    batch_size: int = 32,
    cv: Any = 10,
    groups: Any = None,
    shuffle: bool = True,
    order: str = "fixed",
    method: str = "treecv",
    n_repeats: int = 1,
    scoring: Any = None,
    random_state: Any = 0,
    n_jobs: int | None = 1,
    report: str | None = None,
    cache: str | ModelCache | None = "memory",
    store: Any = None,
) -> TreeCVObjective:
    """An objective for ``study.optimize``: each trial is a cross-validation by TreeCV.

    All trials see the same folds and orders, so their values are paired. The objective can be
    pickled, shared by threads (``study.optimize(n_jobs=2)``) and called with ``study.best_trial``
    or an ``optuna.trial.FixedTrial``.

    Parameters
    ----------
    estimator : estimator with ``partial_fit``, Pipeline, River model, or callable
        An estimator whose parameters are searched (``step__parameter`` in a Pipeline, its steps
        with ``partial_fit`` or stateless); or ``trial -> estimator``, which suggests for itself.
    X : array-like, sparse matrix or data frame of shape (n_rows, n_features)
        Must not be changed while the objective is in use.
    y : array-like of shape (n_rows,), default=None
        Labels or targets; None for unsupervised estimators.
    param_distributions : dict of str to optuna distribution, default=None
        What to search, by parameter name; with an estimator this or ``param_grid`` is needed, with
        a callable refused.
    param_grid : dict of str to list, default=None
        What to search point by point, as ``GridSearchCV`` takes it, with
        ``sampler=objective.grid_sampler()``. Numbers are suggested as such (on a log scale if they
        are positive and span a factor of more than 100), other values as categories.
    batch_size : int, default=32
        The most configurations that are trained side by side, in one reading of the rows: points
        of the grid that have had no trial yet, and trials that run at the same time
        (``study.optimize(n_jobs=...)``). Each gets the numbers that it gets alone, and pruning
        saves nothing among them. 1: one by one.
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
    report : {None, "folds", "mean"}, default=None
        What goes to ``trial.report``, for pruning: at most 32 numbers a trial, one for each part
        of the tree. "folds": the mean score of the part's folds at the part's number, which
        ``WilcoxonPruner`` pairs with the best trial's. "mean": the mean of all folds so far, which
        ``MedianPruner``, ``SuccessiveHalvingPruner`` and ``HyperbandPruner`` expect. 1e300 (or
        -1e300) stands for an infinite mean.
    cache : {"memory", None} or ModelCache, default="memory"
        Where trials share models: what the training of two has in common is done once, and no
        number depends on it. One cache for all trials of this objective (256 MiB), none, or one
        that several objectives share.
    store : str, sqlalchemy.URL or sqlalchemy.Engine, default=None
        A SQLite file or PostgreSQL database (``"sqlite:///treecv_store.db"``; the URL of a study's
        own PostgreSQL database, too) for the score of every fold, and for models that took long to
        train, so that other workers and later runs share them and a killed trial goes on. Read it
        by ``optuna_treecv.history``. If it is lost, trials go on without it.

    Returns
    -------
    TreeCVObjective
        Callable with a trial. ``.direction`` is what the study must do with it,
        ``.evaluate(params)`` gives a ``CVResult`` without a study, ``.best_estimator(study)`` the
        best estimator fitted on all rows.

    Raises
    ------
    ValueError
        If an argument is wrong.

    See Also
    --------
    tree_cross_validate : One evaluation without Optuna.

    Notes
    -----
    Each trial gets these attributes: ``mean_test_score`` and ``std_test_score`` to 6 digits,
    ``folds_scored``, ``n_updates`` (rows trained on), ``n_updates_saved`` (rows that shared models
    made unnecessary), ``seconds``, with a store ``treecv_run`` (the evaluation's name there) and,
    if there are any, ``diverged_folds``.

    A tree's first fold is ready after about one reading of the data; pruning saves what follows.

    Examples
    --------
    >>> import optuna
    >>> from optuna.distributions import FloatDistribution
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.preprocessing import scale
    >>> from optuna_treecv import PegasosClassifier, treecv_objective
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> objective = treecv_objective(
    ...     PegasosClassifier(),
    ...     scale(X),
    ...     y,
    ...     param_distributions={"alpha": FloatDistribution(1e-5, 1e2, log=True)},
    ...     cv="loo",
    ... )
    >>> study = optuna.create_study(direction=objective.direction)
    >>> study.optimize(objective, n_trials=20)
    >>> study.best_value < 0.05
    True
    """
    check_choice("report", report, (None, "folds", "mean"))
    estimator = as_estimator(estimator)
    is_estimator = hasattr(estimator, "get_params") and not isinstance(estimator, type)
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise ValueError(f"batch_size must be an integer of at least 1, got {batch_size!r}.")
    grid = None
    if param_grid is not None:
        if param_distributions is not None:
            raise ValueError("param_grid must be None where param_distributions is given.")
        if not is_estimator:
            raise ValueError("param_grid must be None when estimator suggests for itself.")
        grid = _as_lists(param_grid)
        param_distributions = {name: _distribution_of(values) for name, values in grid.items()}
        _check_distributions("param_grid", estimator, param_distributions)
    elif is_estimator:
        _check_distributions("param_distributions", estimator, param_distributions)
    elif not callable(estimator) or isinstance(estimator, type):
        raise ValueError(
            "estimator must be an estimator instance or a callable trial -> estimator, got "
            f"{estimator!r}."
        )
    elif param_distributions is not None:
        raise ValueError(
            "param_distributions must be None when estimator is a callable, which suggests for "
            "itself."
        )
    database = None if store is None else Database(store)
    models = None if database is None else ModelStore(database)
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
        cache=_make_cache(cache, models),
        is_shared=isinstance(cache, ModelCache) or database is not None,
        reports=report is not None,
    )
    if report is not None and evaluation.n_repeats > MAX_BLOCKS:
        raise ValueError(
            f"report={report!r} needs n_repeats of at most {MAX_BLOCKS}, got {n_repeats}."
        )
    if param_distributions is not None:
        # What is wrong is found here and not in the first trial. A choice may bring a method:
        # SGDClassifier has predict_proba with some losses.
        distributions = param_distributions.values()
        choices = any(isinstance(d, CategoricalDistribution) for d in distributions)
        evaluation.scoring_of(estimator, of_class=choices)
        evaluation.rows(estimator)
    claims = None
    if grid is not None and batch_size > 1 and models is not None:
        if isinstance(evaluation.cache_for(estimator), StoredModelCache):
            claims = Claims(models)
    if is_estimator:
        estimator = clone(estimator)  # whatever becomes of the caller's
    return TreeCVObjective(
        estimator, param_distributions, evaluation, report, database, grid, batch_size, claims
    )


def _name_of(values: Mapping[str, Any]) -> bytes | None:
    """A point's name; None if its values cannot be told from others."""
    try:
        return encode(dict(values))
    except NoKey:
        return None


def _as_lists(param_grid: Any) -> dict[str, list[Any]]:
    """``param_grid`` as given -> Python values in lists."""
    if not isinstance(param_grid, Mapping) or not param_grid:
        raise ValueError(
            f"param_grid must be a dict such as {{'alpha': [0.01, 0.1, 1.0]}}, got {param_grid!r}."
        )
    grid = {}
    for name, values in param_grid.items():
        if isinstance(values, str) or not isinstance(values, Collection | np.ndarray):
            raise ValueError(f"param_grid: {name!r} must have a list of values, got {values!r}.")
        grid[name] = [value.item() if isinstance(value, np.generic) else value for value in values]
        if not grid[name]:
            raise ValueError(f"param_grid: {name!r} must have at least one value.")
    return grid


def _distribution_of(values: list[Any]) -> BaseDistribution:
    """Of which a list of values is a sample."""
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    if not numbers or not all(map(isfinite, values)):
        return CategoricalDistribution(values)
    low, high = min(values), max(values)
    log = low > 0 and high > 100 * low
    if all(isinstance(value, int) for value in values):
        return IntDistribution(low, high, log=log)
    return FloatDistribution(low, high, log=log)


def _check_distributions(
    argument: str, estimator: Any, distributions: Mapping[str, BaseDistribution] | None
) -> None:
    if not distributions:
        raise ValueError(
            "param_distributions must name at least one parameter to search, such as "
            "{'alpha': ...}; or param_grid, such as {'alpha': [0.01, 0.1, 1.0]}."
        )
    if not isinstance(distributions, Mapping):
        raise ValueError(
            "param_distributions must be a dict such as {'alpha': FloatDistribution(1e-5, 1e2)}, "
            f"got {distributions!r}."
        )
    known = estimator.get_params(deep=True)
    for name, distribution in distributions.items():
        if name not in known:
            raise ValueError(
                f"{argument}: {name_of(estimator)} has no parameter {name!r}; it "
                f"has {', '.join(known)}."
            )
        if not isinstance(
            distribution, FloatDistribution | IntDistribution | CategoricalDistribution
        ):
            raise ValueError(
                f"param_distributions: {name!r} must have a FloatDistribution, IntDistribution or "
                f"CategoricalDistribution of optuna.distributions, got {distribution!r}."
            )


def _make_cache(cache: Any, store: ModelStore | None) -> ModelCache | StoredModelCache | None:
    """``cache`` and ``store`` as given -> what keeps models."""
    if not isinstance(cache, ModelCache) and cache is not None and cache != "memory":
        raise ValueError(f"cache must be None, 'memory' or a ModelCache, got {cache!r}.")
    if cache is None:
        return None
    memory = cache if isinstance(cache, ModelCache) else ModelCache()
    return memory if store is None else StoredModelCache(memory, store)


def _readable(score: float) -> float:
    """As many digits as a table column has room for; all of them are in the store."""
    return float(f"{score:.6g}")


def _check_names(argument: str, given: Mapping[str, Any], wanted: Collection[str]) -> None:
    """Refuse parameter values that are not those of the search space."""
    for name in wanted:
        if name not in given:
            raise _lacks(argument, name, given)
    for name in given:
        if name not in wanted:
            names = ", ".join(map(repr, wanted))
            raise ValueError(f"{argument} must hold {names} and nothing else, got {name!r} too.")


def _lacks(argument: str, name: str, given: Mapping[str, Any]) -> ValueError:
    return ValueError(f"{argument} must hold a value for {name!r}, got only {dict(given)}.")


def _suggest(trial: AnyTrial, name: str, distribution: BaseDistribution) -> Any:
    """What OptunaSearchCV does by a private method, in public ones."""
    if isinstance(distribution, FloatDistribution):
        low, high = distribution.low, distribution.high
        return trial.suggest_float(name, low, high, step=distribution.step, log=distribution.log)
    if isinstance(distribution, IntDistribution):
        low, high = distribution.low, distribution.high
        return trial.suggest_int(name, low, high, step=distribution.step, log=distribution.log)
    assert isinstance(distribution, CategoricalDistribution)
    return trial.suggest_categorical(name, distribution.choices)
