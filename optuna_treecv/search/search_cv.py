"""``TreeCVSearchCV``: a search by cross-validation as an estimator of scikit-learn."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import KW_ONLY
from functools import partial
from numbers import Integral
from operator import attrgetter
from os import PathLike
from time import perf_counter
from typing import Any
from typing import Literal
from typing import Self
import warnings

import numpy as np
import optuna
from optuna.trial import FrozenTrial
from sklearn.metrics import get_scorer_names
from sklearn.metrics._scorer import _MultimetricScorer
from sklearn.model_selection import ParameterGrid
from sklearn.model_selection._search import BaseSearchCV
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags
from sklearn.utils import indexable
from sklearn.utils import Tags
from sklearn.utils._set_output import _safe_set_output
from sklearn.utils.metaestimators import available_if

from optuna_treecv.core.cross_validation import as_remote_rows
from optuna_treecv.core.request import OutputMethod
from optuna_treecv.core.settings import check_choice
from optuna_treecv.core.settings import check_integer
from optuna_treecv.core.settings import check_room
from optuna_treecv.core.settings import check_verbose
from optuna_treecv.core.settings import draw_seed
from optuna_treecv.core.settings import is_number
from optuna_treecv.core.settings import MethodName
from optuna_treecv.rows.checks import is_dask
from optuna_treecv.rows.checks import is_integer
from optuna_treecv.rows.sources import opened
from optuna_treecv.search.points import is_sampled
from optuna_treecv.search.points import Points
from optuna_treecv.search.scores import Row
from optuna_treecv.search.scores import scores_of
from optuna_treecv.search.scores import SearchScores
from optuna_treecv.search.scores import table
from optuna_treecv.search.trials import check_earlier_scores
from optuna_treecv.search.trials import check_one_se
from optuna_treecv.search.trials import finished_trials
from optuna_treecv.search.trials import N_TRIALS
from optuna_treecv.search.trials import row_by_one_se
from optuna_treecv.search.trials import run_trials
from optuna_treecv.search.trials import study_for
from optuna_treecv.search.trials import Trials
from optuna_treecv.study.choice import Simpler
from optuna_treecv.study.ensemble import MAX_MEMBERS
from optuna_treecv.study.evaluator import checked_arguments
from optuna_treecv.study.evaluator import Evaluator
from optuna_treecv.study.honest import correction_of
from optuna_treecv.study.objective import TreeCVObjective
from optuna_treecv.study.racing import RacingPruner
from optuna_treecv.study.records import STUDY_ATTRIBUTE
from optuna_treecv.study.space import Space

_NO_HONEST_SCORE = (
    "honest_score_ is available after fit if refit is True, 'one_se' or the name of a score."
)
_UNAVAILABLE = "honest_score_ is not available"


@dataclass(repr=False, eq=False)
class TreeCVSearchCV(BaseSearchCV):
    """Search for the best parameters by fast cross-validation, and refit the best estimator.

    A drop-in replacement for ``GridSearchCV``, ``RandomizedSearchCV`` and ``OptunaSearchCV``,
    which runs an Optuna study with a ``treecv_objective``. Incremental learners are
    cross-validated by TreeCV, and the candidates of a grid are trained in one batch if possible.

    Parameters
    ----------
    estimator : estimator
        The estimator whose parameters are searched.
    param_distributions : dict, callable, "auto" or None, default=None
        The search space: for each parameter, an Optuna distribution, ``uniform``, ``loguniform``
        or ``randint`` of SciPy, or a list of values. If all are lists, combinations are sampled
        without replacement, as in ``RandomizedSearchCV``, unless ``sampler`` or ``study`` is
        given. A list of dicts of lists or SciPy distributions is sampled in the same way. A
        callable, (trial) -> dict of parameter values, suggests the values; a value may depend on
        others. "auto" selects the recommended search space of the estimator, see
        ``treecv_objective``. Either this or ``param_grid`` is required.
    param_grid : dict of str to list, or list of such dicts, default=None
        The grid. All its points are evaluated, unless ``n_trials`` or ``timeout`` ends the search
        earlier.
    n_trials : int, default=None
        The number of trials. None means all points of the grid, or 10 trials without a grid.
        Finished trials of the same search in ``storage`` are counted, but trials of ``study`` are
        not.
    n_iter : int, default=None
        An alias of ``n_trials``, as in ``RandomizedSearchCV``.
    timeout : float, default=None
        The number of seconds after which no further trial is started.
    cv : int, float, "loo", splitter, array-like, iterable of pairs or None, default=10
        The folds, see ``treecv_objective``. None means 5 folds, as for ``GridSearchCV``.
    shuffle : bool, default=True
        Whether to shuffle the rows before splitting if ``cv`` is an int or a share.
        ``KFold(5)`` or ``StratifiedKFold(5)`` as ``cv`` gives the folds of ``GridSearchCV``.
    scoring : str, callable, ``pooled(...)``, list or dict of these, or None, default=None
        A scorer of scikit-learn, or a loss of this package, which is negated so that larger scores
        are better. A callable may return a dict of scores. None means the ``score`` method of the
        estimator. If there are several scores, ``refit`` must not be True.
    refit : bool, str, callable or "one_se", default=True
        Whether to refit the best estimator on all rows; learners that were cross-validated in one
        pass are refitted in one pass. If there are several scores, the name of the score by which
        the best trial is chosen. A callable takes ``cv_results_`` and returns ``best_index_``.
        "one_se" chooses the simplest trial within one standard error of the best one, see
        ``optuna_treecv.select``.
    simpler : dict of str to {"larger", "smaller"}, "n_updates" or callable, default=None
        Used if ``refit="one_se"``: which values make a model simpler, see
        ``optuna_treecv.select``.
    ensemble : int, default=None
        If given, ``best_estimator_`` is an ensemble of the trials with at most this number of
        members, see ``TreeCVObjective.ensemble``; 25 is a good choice. None: ``best_estimator_``
        is the estimator of the best trial.
    sampler : optuna.samplers.BaseSampler, default=None
        The sampler; None means ``TPESampler``. Must be None if ``param_grid`` is given.
    pruner : optuna.pruners.BasePruner, default=None
        The pruner, such as ``RacingPruner``. None: no trial is pruned.
    study : optuna.Study, default=None
        A study to continue. Its trials must have been evaluated with the same data, folds and
        scoring.
    storage : str or optuna.storages.BaseStorage, default=None
        The Optuna storage for a new study. If the same search, with an int as ``random_state``, is
        run again, it continues the study in the storage. A callable as ``param_distributions`` is
        identified by its code.
    store : str, sqlalchemy.URL, sqlalchemy.Engine or callable, default=None
        The database for fold scores and models, see ``treecv_objective``.
    callbacks : list of callable, default=None
        (study, trial) -> None, called after each trial.
    order : {"fixed", "random"}, default="fixed"
        The order of the rows in training, see ``treecv_objective``.
    method : {"auto", "exact", "newton", "neighbors", "kernel", "boosting", "bagging", "forest", \
            "treecv", "fit", "standard", "holdout", "progressive"}
        How the folds are evaluated, see ``treecv_objective``.
    n_repeats : int, default=1
        The number of times that the cross-validation of each trial is repeated, with different
        folds.
    n_epochs : int, default=None
        The number of epochs of incremental training, see ``treecv_objective``.
    n_estimators : {"best", None}, default=None
        "best": the number of trees of an ensemble with the best mean score over the folds is
        chosen, see ``treecv_objective``.
    truncate : bool, default=False
        Whether to grow the trees of a forest only once for all values of ``max_depth``, and to
        truncate them, see ``treecv_objective``.
    max_memory : int or str, default=None
        The maximum memory for prepared rows, see ``treecv_objective``.
    spill_dir : str or path, default=None
        The folder for prepared rows that exceed ``max_memory``.
    n_jobs : int or None, default=1
        The number of threads, or of joblib workers by which folds are fitted.
    random_state : int, RandomState instance or None, default=None
        The seed of the folds, of the order of the rows, and of the sampler if neither ``sampler``
        nor ``study`` is given.
    error_score : "raise" or float, default="raise"
        The score of a fold whose fit raises an error, or of all folds of the trial if the folds
        are not fitted separately. If a scorer raises an error, only the score of this scorer for
        the fold is set to this number, with a warning. With "raise", an error ends the search.
    return_train_score : bool, default=False
        Whether ``cv_results_`` includes training scores. The estimator is then refitted on each
        fold, so ``method`` must be "auto" or "fit".
    verbose : int, default=0
        0: only warnings. 1 and 2: also the messages of Optuna, at the level set by
        ``optuna.logging``, and the progress of long evaluations. 3 and more: also the scores of
        each fold.
    progress : bool, default=False
        Whether to show a progress bar.

    Attributes
    ----------
    cv_results_ : dict of str to ndarray or list
        The same columns as for ``GridSearchCV``, from which a ``pandas.DataFrame`` can be created.
        The rows have the order of ``ParameterGrid``, or of the trials if there is no grid. Folds
        are not timed separately, so ``mean_fit_time`` is the duration of the trial, including
        scoring, divided by the number of folds. There are columns for split scores only if there
        are at most 100 splits.
    best_estimator_ : estimator
        The best estimator, refitted on all rows; not available if ``refit=False``.
    best_params_ : dict
        The parameters of the best trial.
    best_score_ : float
        The mean score of the best trial; not available if ``refit`` is a callable.
    honest_score_ : float
        ``best_score_``, or the score of the ensemble, corrected for the optimism of choosing the
        best, see ``TreeCVObjective.honest``. It is computed on first access, or when the search is
        pickled or copied; until then, up to 256 MiB of losses are kept in memory. If it cannot be
        computed, or if ``refit`` is a callable, accessing it raises an AttributeError that gives
        the reason.
    oof_predictions_ : ndarray of shape (n_rows,), (n_rows, n_classes) or (n_rows, n_targets)
        The out-of-fold outputs of the best trial, in the order of X: probabilities, or decision
        values, or predictions, whichever of them the estimator has. Unless they were kept, they
        are computed on first access, as by ``TreeCVObjective.predict_oof``; until then, the search
        refers to X and to its caches. A search that is pickled before that does not have them.
    best_index_ : int
        The index of the row of ``cv_results_`` with the best trial.
    study_ : optuna.Study
        The study. Its values are losses if ``scoring`` is a loss.
    n_splits_ : int
        The number of folds, over all repeats.
    refit_time_ : float
        The duration of the refit on all rows, in seconds.
    scorer_ : callable, or dict of str to callable
        The scorer, or a dict of the scorers, by which ``score`` evaluates the best estimator.
    multimetric_ : bool
        Whether there are several scores.
    classes_ : ndarray of shape (n_classes,)
        The class labels; only for classifiers.
    n_features_in_ : int
        The number of columns of X.
    feature_names_in_ : ndarray of shape (n_features,)
        The column names of X, if all of them are strings.

    See Also
    --------
    treecv_objective : Creates an objective for an Optuna study.
    tree_cross_validate : Cross-validates one estimator.

    Notes
    -----
    Ctrl-C ends the search early with a warning. The best estimator of the finished trials is then
    refitted. Messages are logged through ``optuna.logging``.

    Examples
    --------
    >>> from scipy.stats import loguniform
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from optuna_treecv import PegasosClassifier, TreeCVSearchCV
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), PegasosClassifier())
    >>> grid = {"pegasosclassifier__alpha": [1e-3, 1e-2, 1e-1, 1.0]}
    >>> search = TreeCVSearchCV(model, param_grid=grid, cv="loo", random_state=0)
    >>> search.fit(X, y).best_params_
    {'pegasosclassifier__alpha': 0.1}
    >>> round(search.best_score_, 3)
    0.968
    """

    estimator: Any
    param_distributions: (
        Mapping[str, Any]
        | Sequence[Mapping[str, Any]]
        | Callable[..., Mapping[str, Any]]
        | Literal["auto"]
        | None
    ) = None
    param_grid: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]] | None = None
    _: KW_ONLY
    n_trials: int | None = None
    n_iter: int | None = None
    timeout: float | None = None
    cv: Any = 10
    shuffle: bool = True
    scoring: Any = None
    refit: bool | str | Callable[[dict[str, Any]], int] = True
    simpler: Simpler | None = None
    ensemble: int | None = None
    sampler: optuna.samplers.BaseSampler | None = None
    pruner: optuna.pruners.BasePruner | None = None
    study: optuna.Study | None = None
    storage: Any = None
    store: Any = None
    callbacks: Sequence[Callable[[optuna.Study, FrozenTrial], None]] | None = None
    order: Literal["fixed", "random"] = "fixed"
    method: MethodName = "auto"
    n_repeats: int = 1
    n_epochs: int | None = None
    n_estimators: Literal["best"] | None = None
    truncate: bool = False
    max_memory: int | str | None = None
    spill_dir: str | PathLike[str] | None = None
    n_jobs: int | None = 1
    random_state: Any = None
    error_score: Literal["raise"] | float = "raise"
    return_train_score: bool = False
    verbose: int = 0
    progress: bool = False

    # --- The search ---

    def fit(
        self, X: Any, y: Any = None, groups: Any = None, sample_weight: Any = None, **params: Any
    ) -> Self:
        """Run the search, and refit the best estimator on all rows.

        Parameters
        ----------
        X : array-like, sparse matrix, data frame or path, of shape (n_samples, n_features)
            The rows, or the path of a file, as for ``tree_cross_validate``.
        y : array-like of shape (n_samples,) or (n_samples, n_targets), or str, default=None
            Labels or targets.
        groups : array-like of shape (n_samples,), default=None
            The group of each row, for splitters that keep groups together.
        sample_weight : array-like of shape (n_samples,), default=None
            The weights of the rows, used in training and in scoring.
        **params : dict
            Further arguments for the ``fit`` method of the estimator. Arrays with one entry per
            row are split like the rows.

        Returns
        -------
        self
            The fitted search.

        Raises
        ------
        ValueError
            If an argument is invalid, or no trial succeeds.
        """
        self._check_arguments()
        X, y = as_remote_rows(X, y)
        if not is_dask(X):  # the objective warns about these
            X, y, _ = opened(X, y, check_room(self.max_memory, self.spill_dir))
        X, y, sample_weight = indexable(X, y, sample_weight)
        self._check_numbers(X)
        scores = scores_of(self.scoring, self.estimator, has_y=y is not None)
        self._check_refit(scores)
        seed = draw_seed(self.random_state)
        points = self._points(seed)
        arguments = {"X": X, "y": y, "groups": groups, "sample_weight": sample_weight}
        arguments |= {"params": params or None, "random_state": seed}
        build = partial(self._objective, arguments, points)
        objective = build(scores)
        if self.refit == "one_se":
            check_one_se(objective.evaluator, self.simpler)
        study = study_for(self, objective.evaluator, seed)
        if self.refit == "one_se":
            check_earlier_scores(finished_trials(study), self.store)
        metadata = None if sample_weight is None else {"sample_weight": sample_weight}

        def with_names(names: Sequence[str]) -> Evaluator:
            nonlocal scores, objective
            if self.study is not None or self.storage is not None:
                raise ValueError(
                    "scoring must be a dict of scorers if study or storage is given, got a "
                    f"callable that returns several scores: {', '.join(names)}."
                )
            scores = scores.for_names(names)
            self._check_refit(scores)
            # The attribute describes the scoring, which has changed.
            study.set_user_attr(STUDY_ATTRIBUTE, None)
            objective = build(scores)
            return objective.evaluator

        data = {"X": X, "y": y, "metadata": metadata}
        with Trials(self, objective.evaluator, scores.names, with_names, data) as trials:
            run_trials(trials, study, points)
            optimized = self._optimized(scores)
            rows = trials.rows(study, points, optimized)
            results = table(rows, scores.names, objective.n_splits, self.return_train_score)
            # These are set even if the choice or the fit on all rows fails.
            for name in [name for name in vars(self) if name.endswith("_")]:
                delattr(self, name)  # an attribute of an earlier fit
            # The score, a function that computes it, or the reason why there is none.
            self._honest: float | str | Callable[[], float] = _NO_HONEST_SCORE
            self._oof: Any = None
            self.study_, self.n_splits_ = study, objective.n_splits
            self.multimetric_ = scores.is_multiple
            self.scorer_ = scores.scorers if scores.is_multiple else scores.scorers["score"]
            self.cv_results_ = results
            if self.refit or not scores.is_multiple:
                name = scores.names[optimized]
                self.best_index_ = self._best_index(rows, objective, name)
                self.best_params_ = results["params"][self.best_index_]
                self._prepare_oof_predictions(objective, rows[self.best_index_].trial)
                if not callable(self.refit):
                    self.best_score_ = float(results[f"mean_test_{name}"][self.best_index_])
                    if self.ensemble is None:
                        self._prepare_honest_score(objective, study)
            if self.refit:
                start = perf_counter()
                with trials.within("refit-with-best-params"):
                    if self.ensemble is None:
                        best = rows[self.best_index_].trial
                        self.best_estimator_ = objective.best_estimator(best)
                    else:
                        self.best_estimator_ = objective.ensemble(study, self.ensemble)
                        sign = 1 if objective.direction == "maximize" else -1
                        self._honest = sign * self.best_estimator_.honest_score_
                self.refit_time_ = perf_counter() - start
                if hasattr(self.best_estimator_, "feature_names_in_"):
                    self.feature_names_in_ = self.best_estimator_.feature_names_in_
        return self

    def _check_arguments(self) -> None:
        """Check the arguments that do not depend on the data."""
        if not hasattr(self.estimator, "get_params") or isinstance(self.estimator, type):
            raise ValueError(
                f"estimator must be an instance of an estimator, got {self.estimator!r}."
            )
        if (self.param_grid is None) == (self.param_distributions is None):
            given = "neither" if self.param_grid is None else "both"
            raise ValueError(
                f"param_grid or param_distributions must be given, but not both, got {given}."
            )
        if self.param_grid is not None:
            ParameterGrid(self.param_grid)  # raises the same errors as GridSearchCV
        for name, value in (("n_trials", self.n_trials), ("n_iter", self.n_iter)):
            if value is not None and not (is_integer(value) and value > 0):
                raise ValueError(f"{name} must be None or a positive integer, got {value!r}.")
        if self.n_trials is not None and self.n_iter is not None:
            raise ValueError(
                "n_iter must be None if n_trials is given, because they have the same meaning."
            )
        check_verbose(self.verbose)
        if self.timeout is not None and not (is_number(self.timeout) and self.timeout > 0):
            raise ValueError(
                f"timeout must be None or a positive number of seconds, got {self.timeout!r}."
            )
        if self.error_score != "raise" and not is_number(self.error_score):
            raise ValueError(f"error_score must be 'raise' or a number, got {self.error_score!r}.")
        if self.ensemble is not None:
            check_integer("ensemble", self.ensemble, MAX_MEMBERS)
            if self.refit is False or callable(self.refit) or self.refit == "one_se":
                raise ValueError(
                    "ensemble must be None unless refit is True or the name of the score by which "
                    f"members are selected, got refit={self.refit!r}."
                )
        if self.simpler is not None and not self.refit == "one_se":
            raise ValueError(
                f"simpler must be None unless refit is 'one_se', got {self.simpler!r}."
            )
        check_choice("progress", self.progress, (True, False))
        check_choice("return_train_score", self.return_train_score, (True, False))
        if self.return_train_score and self.method not in ("auto", "fit"):
            raise ValueError(
                "return_train_score must be False unless method is 'auto' or 'fit', because other "
                f"methods do not predict the training rows, got True with method={self.method!r}; "
                "use method='auto' or 'fit' instead."
            )
        kinds: dict[str, tuple[Any, type, str]] = {
            "sampler": (self.sampler, optuna.samplers.BaseSampler, "a sampler of Optuna"),
            "pruner": (self.pruner, optuna.pruners.BasePruner, "a pruner of Optuna"),
            "study": (self.study, optuna.Study, "an optuna.Study"),
        }
        for name, (value, kind, expected) in kinds.items():
            if value is not None and not isinstance(value, kind):
                raise ValueError(f"{name} must be None or {expected}, got {value!r}.")
        for name in ("sampler", "pruner", "storage"):
            if self.study is not None and getattr(self, name) is not None:
                raise ValueError(
                    f"{name} must be None if study is given, because a study has its own {name}."
                )
        if self.param_grid is not None and self.sampler is not None:
            raise ValueError(
                "sampler must be None if param_grid is given, because all candidates of the grid "
                f"are evaluated, got {type(self.sampler).__name__}; use param_distributions with "
                "lists instead."
            )

    def _check_numbers(self, X: Any) -> None:
        """Raise NumPy's error if an object array cannot be converted to numbers."""
        tags = get_tags(self.estimator).input_tags
        if (
            isinstance(X, np.ndarray)
            and X.dtype == object
            and not (tags.string or tags.categorical)
            and not isinstance(self.estimator, Pipeline)  # its tags do not describe its steps
        ):
            X.astype(np.float64)

    def _check_refit(self, scores: SearchScores) -> None:
        """Raise ValueError if ``refit`` does not select one of the scores."""
        refit = self.refit
        if isinstance(refit, bool | np.bool_) and not (refit and scores.is_multiple):
            return
        if callable(refit) or self.refit == "one_se":
            return
        names = scores.names if scores.is_multiple else []
        # For a single score, any scorer name is accepted and has no effect. The names of the
        # scores of a callable may be unknown before the first trial.
        is_known = not scores.is_multiple and (
            callable(self.scoring) or refit in get_scorer_names()
        )
        if not isinstance(refit, str) or not (is_known or refit in names):
            values = ", ".join(map(repr, [False, *names] if names else [True, False]))
            condition = " if there are several scores" if names else ""
            raise ValueError(
                f"refit must be {values}, 'one_se' or a callable{condition}, got {refit!r}."
            )

    def _optimized(self, scores: SearchScores) -> int:
        """Return the index of the score that the study optimizes."""
        refit = self.refit
        return scores.names.index(refit) if refit in scores.names and scores.is_multiple else 0

    def _objective(
        self, arguments: dict[str, Any], points: Points | None, scores: SearchScores
    ) -> TreeCVObjective:
        """Return the objective; ``arguments`` are the arguments of ``fit`` and the seed."""
        estimator, space = self.estimator, {}
        if self.error_score != "raise":
            scores = scores.with_error_score(float(self.error_score))
        if points is not None:
            space = {"param_grid": points.grid}
        elif callable(self.param_distributions):
            estimator = Space(estimator, suggest=self.param_distributions)
        else:
            space = {"param_distributions": self.param_distributions}
        row_options = ("shuffle", "order", "max_memory", "spill_dir", "verbose")
        model_options = ("n_epochs", "n_estimators", "truncate")
        passed_options = (*row_options, *model_options, "n_repeats", "n_jobs", "store")
        options = {
            **space,
            **{name: getattr(self, name) for name in passed_options},
            "cv": 5 if self.cv is None else self.cv,
            "method": "fit" if self.return_train_score else self.method,
            "scoring": scores.with_train if self.return_train_score else scores.requested,
            "keep_outputs": "auto" if self.ensemble is None else "all",
        }
        if scores.is_multiple or self.return_train_score:
            options["optimize"] = scores.names[self._optimized(scores)]
        objective = TreeCVObjective(*checked_arguments(estimator, **arguments, **options))
        evaluator = objective.evaluator
        if self.error_score != "raise":
            evaluator.use(evaluator.cross_validation.with_all_folds_tried())
        pruner = self.pruner if self.study is None else self.study.pruner
        # Every study has a default pruner, of which the user may not be aware. Therefore the
        # pruner of a given study is used only if it is a RacingPruner.
        if pruner is not None and (self.study is None or isinstance(pruner, RacingPruner)):
            evaluator.report_for(pruner)
        return objective

    def _points(self, seed: int) -> Points | None:
        """Return the points of a grid or a random sample; None if a sampler suggests them."""
        if self.param_grid is not None:
            return Points(self.param_grid, self.estimator)
        has_sampler = self.sampler is not None or self.study is not None
        if has_sampler or not is_sampled(self.param_distributions):
            return None
        random_state = self.random_state if is_integer(self.random_state) else seed
        return Points(
            self.param_distributions,
            self.estimator,
            self.n_trials or self.n_iter or N_TRIALS,
            random_state,
        )

    # --- The results ---

    def _prepare_honest_score(self, objective: TreeCVObjective, study: optuna.Study) -> None:
        """Store a function that computes ``honest_score_``, or the reason why it cannot."""
        rule: Literal["best", "one_se"] = "one_se" if self.refit == "one_se" else "best"
        try:
            with warnings.catch_warnings(action="ignore"):
                contest = objective.evaluator.contest(study)
                self._honest = correction_of(contest, rule, self.simpler, 0.95)[-1]
        except ValueError as error:
            self._honest = f"{_UNAVAILABLE}: {error}"

    def _prepare_oof_predictions(self, objective: TreeCVObjective, trial: FrozenTrial) -> None:
        """Store ``oof_predictions_`` if they were kept, or a function that computes them."""
        run = objective.evaluator.run_of(trial)
        method: OutputMethod = next(iter(run.request.best_methods), "predict")
        self._oof = partial(objective.predict_oof, trial, method)
        is_recomputed = run.plan.capabilities.computes_outputs  # because kept ones are rounded
        if not is_recomputed and objective.evaluator.has_outputs(trial, run, method):
            with suppress(ValueError):  # some row is tested several times or not at all
                self._oof = self._oof()

    @property
    def oof_predictions_(self) -> Any:
        """The out-of-fold outputs of the best trial."""
        oof = getattr(self, "_oof", None)
        if oof is None:
            raise AttributeError(
                "oof_predictions_ is not available, because the search is not fitted, has no best "
                "trial, or was pickled before they were computed."
            )
        if callable(oof):
            try:
                self._oof = oof = oof()
            except ValueError as error:
                raise AttributeError(f"oof_predictions_ is not available: {error}") from error
        return oof

    @property
    def honest_score_(self) -> float:
        """The score of the best trial, corrected for the optimism of choosing the best."""
        honest = getattr(self, "_honest", _NO_HONEST_SCORE)
        if callable(honest):
            try:
                honest = -honest()
            except ValueError as error:
                honest = f"{_UNAVAILABLE}: {error}"
            self._honest = honest
        if isinstance(honest, str):
            raise AttributeError(honest)
        return honest

    def __getstate__(self) -> dict[str, Any]:
        hasattr(self, "honest_score_")  # computes it, so that losses need not be pickled
        state = super().__getstate__()
        return {name: x for name, x in state.items() if name != "_oof" or not callable(x)}

    def _best_index(self, rows: list[Row], objective: TreeCVObjective, name: str) -> int:
        """Return the index of the best trial's row in ``cv_results_``."""
        if callable(self.refit):
            index = self.refit(self.cv_results_)
            if not isinstance(index, Integral):
                raise TypeError(
                    "refit must return an integer; the best_index_ returned is not an integer: "
                    f"{index!r}."
                )
            if not 0 <= index < len(rows):
                raise IndexError(
                    f"refit must return the index of a row of cv_results_, 0 to {len(rows) - 1}; "
                    f"best_index_ index out of range: {index}."
                )
            return int(index)
        if self.refit == "one_se":
            numbers = [row.trial.number for row in rows]
            return row_by_one_se(objective.evaluator, self.study_, numbers, self.simpler)
        return int(self.cv_results_[f"rank_test_{name}"].argmin())

    # --- The methods of the best estimator, most of which are those of scikit-learn's searches ---

    def score(self, X: Any, y: Any = None, **params: Any) -> float:
        """Return the score of the best estimator on the given rows, by ``scorer_``.

        If there are several scores, the score that ``refit`` names is returned; for "one_se", the
        first one.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The rows to predict.
        y : array-like of shape (n_samples,) or (n_samples, n_targets), default=None
            Labels or targets.
        **params : dict
            Arguments for the scorer, if metadata routing is enabled.

        Returns
        -------
        float
            The score; larger values are better.
        """
        scorers: Any = self.scorer_ if getattr(self, "multimetric_", False) else {}
        if scorers and callable(self.refit):
            raise ValueError(
                "refit must be the name of a score if there are several scores, got "
                f"{self.refit!r}."
            )
        if scorers and self.refit == "one_se":
            return float(next(iter(scorers.values()))(self.best_estimator_, X, y))
        return float(super().score(X, y, **params))

    @available_if(attrgetter("transform"))
    def set_output(self, *, transform: Any = None) -> Self:
        """Set the output container of ``transform``.

        Parameters
        ----------
        transform : {"default", "pandas", "polars"}, default=None
            The container; None leaves it unchanged.

        Returns
        -------
        self
            The search; its ``estimator`` and ``best_estimator_`` are configured.
        """
        for name in ("estimator", "best_estimator_"):
            if hasattr(self, name):
                _safe_set_output(getattr(self, name), transform=transform)
        return self

    def __getattr__(self, name: str) -> Any:
        """Raise an AttributeError whose message includes its cause."""
        try:
            return super().__getattribute__(name)
        except AttributeError as error:
            if name in ("best_estimator_", "n_features_in_") and not self.refit:
                raise AttributeError(
                    f"This {type(self).__name__} instance was initialized with `refit=False`. "
                    f"{name} is available only if refit is not False."
                ) from None
            if error.__cause__ is None:
                raise
            message = f"{str(error).rstrip('.')}: {error.__cause__}"
            raise AttributeError(message) from error.__cause__

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.array_api_support = False  # folds are evaluated in NumPy
        return tags

    def _get_scorers(self) -> tuple[Any, str]:
        """Return the scorers to which scikit-learn routes metadata."""
        scores = scores_of(self.scoring, self.estimator, has_y=False)
        if scores.is_multiple:
            return _MultimetricScorer(scorers=scores.scorers), "score"
        return scores.scorers["score"], "score"
