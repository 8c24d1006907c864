"""The arguments of a cross-validation: defaults, checks and documentation."""

from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Hashable
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from functools import wraps
from inspect import getdoc
from inspect import Signature
from inspect import signature
from numbers import Real
import os
from os import PathLike
import re
import sys
from typing import get_args
from typing import Literal
from typing import ParamSpec
from typing import TypedDict
from typing import TypeVar
import warnings

from joblib import effective_n_jobs
import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state

from optuna_treecv.estimators.base import MOST_EPOCHS
from optuna_treecv.rows.checks import is_integer
from optuna_treecv.rows.checks import naming
from optuna_treecv.rows.row_file import LEAST_BYTES
from optuna_treecv.rows.row_file import Room
from optuna_treecv.scoring.metrics import make_scoring
from optuna_treecv.scoring.metrics import Pooled
from optuna_treecv.scoring.metrics import Scoring
from optuna_treecv.types import Splitter

P = ParamSpec("P")
T = TypeVar("T")

Report = Literal["auto", "folds", "mean", "progressive", "blocks", "trees"] | None
MethodName = Literal[
    "auto",
    "exact",
    "newton",
    "neighbors",
    "kernel",
    "boosting",
    "bagging",
    "forest",
    "treecv",
    "fit",
    "standard",
    "holdout",
    "progressive",
]

#: The maximum of ``n_repeats``. The mean of this many repeats has a hundredth of the standard
#: deviation of a single repeat.
MAX_REPEATS = 10_000

#: The values of ``method``.
METHODS = get_args(MethodName)

#: Settings that only some engines support, see ``Capabilities.settings``.
ENGINE_SETTINGS = ("n_estimators", "truncate")


class Arguments(TypedDict, total=False):
    """The arguments of a cross-validation, see ``Settings``; the last three are for trials."""

    cv: Splitter
    groups: ArrayLike | None
    stratify: Literal["auto"] | bool
    shuffle: bool
    order: Literal["fixed", "random"]
    method: MethodName
    n_repeats: int
    n_epochs: int | None
    n_estimators: Literal["best"] | None
    truncate: bool
    scoring: object
    sample_weight: ArrayLike | None
    score_weight: ArrayLike | None
    params: Mapping[str, object] | None
    random_state: int | np.random.RandomState | None
    n_jobs: int | None
    row_losses: bool
    max_memory: int | str | None
    spill_dir: str | PathLike[str] | None
    verbose: int
    optimize: str | list[str] | None
    pooled: bool
    report: Report


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The checked arguments of a cross-validation.

    Parameters
    ----------
    cv : int, float, "loo", splitter, array-like or iterable of pairs, default=10
        Determines the splits. Possible values are: the number of folds, from 2 to n_rows; a float
        between 0 and 1, the share of test rows of a single hold-out; "loo" for leave-one-out; a
        splitter of scikit-learn or an object with its methods; an array of shape (n_rows,) with
        the fold of each row, or -1 for rows that are only trained on; or an iterable of (train,
        test) pairs of row indices. "exact" and "fit" support any splitter. The tree supports two
        kinds of splits. In the first kind, each model is trained on all rows that its fold does
        not test, and each row is tested at most once per repetition of the folds. In the second
        kind, each model is trained on the first n rows, and n grows from split to split, as in
        ``TimeSeriesSplit``.
    groups : array-like of shape (n_rows,), default=None
        The group of each row, for splitters that need groups. If groups are given, an int as
        ``cv`` means ``GroupKFold(cv)``, or ``StratifiedGroupKFold(cv)`` if folds are stratified.
    stratify : {"auto", True, False}, default="auto"
        Whether to preserve the class frequencies in each fold, as ``StratifiedKFold`` does, if
        ``cv`` is an int or a float. "auto" stratifies the folds of classifiers. If a class has
        fewer members than there are folds, the folds are not stratified, and there is a warning.
    shuffle : bool, default=True
        Whether to shuffle the rows before they are split into folds, if ``cv`` is an int, a float
        or "loo". For any other ``cv``, the folds stay the same; only their order and the order of
        the rows in each training phase are shuffled. Time series are not shuffled.
    order : {"fixed", "random"}, default="fixed"
        Whether a training phase reads its rows in a fixed order, or in a new random order. A
        random order takes more time (1.6 times as much on Covertype).
    method : {"auto", "exact", "newton", "neighbors", "kernel", "boosting", "bagging", "forest", \
            "treecv", "fit", "standard", "holdout", "progressive"}
        "exact" computes all folds from sums over the rows, for ``Ridge``, ``RidgeClassifier``,
        ``Lasso``, ``ElasticNet``, ``LinearRegression``, ``PLSRegression`` and discriminant
        analysis of scikit-learn, alone or after encoders, imputers, scalers and transformers that
        reduce columns, such as ``PCA``. "newton" solves for the models of all folds jointly, for
        ``LogisticRegression``, ``PoissonRegressor``, ``LinearSVC`` and others, with the same
        preprocessing. "neighbors" searches for neighbours only once per fold, for
        ``KNeighborsClassifier`` and ``KNeighborsRegressor``. "kernel" solves ``SVC``, ``SVR``,
        ``KernelRidge`` and Gaussian processes without an optimizer from one Gram matrix per
        kernel, or per kernel and fold. "boosting" and "bagging" grow the ensembles of LightGBM,
        XGBoost and scikit-learn tree by tree, so that one ensemble per fold gives the scores of
        all smaller ones. "forest" grows the trees of all folds jointly, for ``HistTreeClassifier``
        and ``HistTreeRegressor``. "treecv" trains models incrementally along a tree; for time
        series it is a chain, in which one model walks forward. "fit" calls ``fit`` of any
        estimator on each fold's training rows. "auto", the default, uses the first of these
        methods that is possible and gives the same models as ``fit``. "standard" is k trainings
        from scratch of one pass each, the baseline of the paper; for decision trees, k trees that
        are grown one by one. "holdout" is "auto" on the first fold alone. "progressive" is
        progressive validation: one pass, in which each row after the first eighth is tested before
        the model learns it. ``CVResult.method`` is the method that was used, and
        ``CVResult.reason`` the reason for it.
    n_repeats : int, default=1
        The number of times that cross-validation is repeated, at most 10,000; the scores are
        averaged. If ``cv`` is an int, a float or "loo", repeats differ in how the rows are
        shuffled; if it is a splitter, each repeat calls ``split`` again. Repeats also differ in
        random orders and in the seeds that replace ``random_state=None`` in the estimator. If all
        repeats would be identical, there is an error.
    n_epochs : int, default=None
        The number of updates per training row for models that are trained incrementally, at most
        10,000; None means 1. If it is given, "auto" calls ``partial_fit`` even if ``fit`` would
        train differently. In the tree, a learner of this package makes ``n_epochs - 1`` further
        updates with rows of its training set after each new row; for other estimators,
        ``partial_fit`` is called ``n_epochs`` times per training phase. "standard" makes
        ``n_epochs`` shuffled passes. Instead, the parameter ``n_epochs`` of an estimator of this
        package may be set or searched.
    n_estimators : {"best", None}, default=None
        If "best", an ensemble gets the number of trees with the best mean score over the folds, up
        to the number that is set in the estimator. ``CVResult.curve`` has the mean scores for all
        numbers of trees. If the estimator has a parameter for early stopping, such as
        ``early_stopping_round``, it limits the number of trees without a better mean over the
        folds.
    truncate : bool, default=False
        Whether to grow the trees of a forest only once, to the largest ``max_depth`` of a search,
        and to truncate them for smaller depths. The scores are not identical to those of separate
        fits, because a fit with a smaller depth draws other columns for its nodes, but they have
        the same distribution. Not supported together with ``max_leaf_nodes`` or ``ccp_alpha``.
    scoring : str, callable, ``pooled(...)``, list or dict of these, or None, default=None
        A loss, or a scorer of scikit-learn by name or as a callable. Callables get plain arrays if
        the estimator is a compiled learner. The losses are "error", "hinge" and "log_loss" for
        classifiers, "squared_error" and "absolute_error" for regressors, "squared_distance" (to
        the nearest centre) for clusterers, and "neg_log_density" for density estimators. None
        means the first loss that fits the estimator. Several scores can be computed in one
        evaluation by passing a list, or a dict of names to scores. ``CVResult.scores`` then
        contains all of them, and ``CVResult.mean`` is the mean of the first.
    optimize : str, list of str or None, default=None
        The name of the score whose mean the objective returns; None means the first score. With a
        list of names, the objective returns a tuple, for a multi-objective study:
        ``optuna.create_study(directions=objective.directions)``.
    pooled : bool, default=False
        Whether to compute each score once, on the out-of-fold predictions of all rows; see
        ``optuna_treecv.pooled``.
    sample_weight : array-like of shape (n_rows,), default=None
        The weights of the rows, finite and not negative. They are used in training and in scores.
        They are passed to ``partial_fit`` or ``fit``; in a Pipeline, to that of the last step. If
        metadata routing of scikit-learn is enabled, a Pipeline with ``method="fit"`` routes them
        as its steps request.
    score_weight : "same", array-like of shape (n_rows,) or None, default="same"
        The weights of the rows in scores. "same" means ``sample_weight``; None gives all rows the
        same weight.
    params : dict, default=None
        Further arguments of ``fit``, as in scikit-learn's ``cross_validate``. Arrays with an entry
        for each row are indexed by the rows of each fit. If metadata routing is enabled, arguments
        are passed to the steps and scorers that request them. ``sample_weight`` in ``params``, or
        ``step__sample_weight`` for the last step of a Pipeline, is used only in training. Other
        arguments need ``method="fit"``, which "auto" then chooses.
    random_state : int, RandomState instance or None, default=0
        Seeds the shuffling of rows, random orders, and every ``random_state=None`` in the
        estimator.
    n_jobs : int or None, default=1
        The number of threads among which the branches of the tree are distributed, or, if folds
        are fitted one by one, the number of joblib workers; their backend is set by
        ``joblib.parallel_config``. -1 means all cores. Results do not depend on ``n_jobs``.
    row_losses : bool, default=False
        Whether to return the score of each row, as float32, in ``CVResult.row_losses``.
        ``CVResult.compare`` then pairs scores by row. In a study, the row scores of the best
        trials are stored, so that ``optuna_treecv.select`` can compare trials over rows instead of
        folds.
    max_memory : int or str, default=None
        The maximum memory for prepared rows, in bytes or as a string such as "2GB", at least 1
        MiB. If the rows need more memory, they are written to a file in tree order and then read
        block by block. None means that all rows are in memory. Scores of estimators from other
        libraries may depend on this limit, because ``partial_fit`` is then called for one block at
        a time; other scores do not depend on it.
    spill_dir : str or path, default=None
        The folder for the file of prepared rows, which is deleted when the process ends. None
        means the system's folder for temporary files.
    verbose : int, default=0
        If positive, show a progress bar of the folds of an evaluation that takes more than two
        seconds, and print the progress and the remaining time every few seconds while prepared
        rows are read from a file.
    report : {None, "auto", "progressive", "blocks", "trees", "folds", "mean"}, default=None
        Which scores to pass to ``trial.report`` for pruning; there are at most 32 reports per
        trial. "auto" chooses the reports that the pruner of the study needs; ``.pruner()`` of the
        objective returns a suitable pruner. There is a warning if the pruner does not suit the
        reports. "progressive" and "blocks" report during the first pass of the tree over the data,
        after each sixteenth of the pass from the second on. Each row is tested before the model is
        trained on it. "progressive" reports the mean score over the second half of the rows so
        far, for ``RacingPruner``, ``MedianPruner``, ``SuccessiveHalvingPruner`` and
        ``HyperbandPruner``; "blocks" reports the mean score over the rows since the previous
        report, for ``WilcoxonPruner``. With 32 folds or more, the report of step 64 is the mean
        score of 16 folds. The last report is the value of the trial. "trees" reports while
        ensembles grow: first the best score so far of the first fold, after each of up to 16
        blocks of trees, and then, after each further fold, the best mean score of the folds so
        far. "folds" reports the mean score of each part of the tree, or of each fold if folds are
        fitted one by one; "mean" reports the mean score of all folds so far. An infinite mean is
        reported as 1e300 or -1e300.

    Attributes
    ----------
    scored_by : Scoring or None
        The metrics given by ``scoring``, ``optimize`` and ``pooled``; None: the default of the
        estimator.
    n_threads : int
        The number of threads given by ``n_jobs``.
    seed : int
        The seed given by ``random_state``.
    room : Room
        The limits given by ``max_memory``, ``spill_dir`` and ``verbose``.
    is_growing : bool
        Whether scores are reported while ensembles grow.
    is_early : bool
        Whether scores are reported before any fold score is known.
    reports_parts : bool
        Whether scores are reported after each part of the folds.
    """

    cv: Splitter = 10
    groups: ArrayLike | None = None
    stratify: Literal["auto"] | bool = "auto"
    shuffle: bool = True
    order: Literal["fixed", "random"] = "fixed"
    method: MethodName = "auto"
    n_repeats: int = 1
    n_epochs: int | None = None
    n_estimators: Literal["best"] | None = None
    truncate: bool = False
    scoring: object = None
    optimize: str | list[str] | None = None
    pooled: bool = False
    sample_weight: ArrayLike | None = None
    score_weight: ArrayLike | None = "same"
    params: Mapping[str, object] | None = None
    random_state: int | np.random.RandomState | None = 0
    n_jobs: int | None = 1
    row_losses: bool = False
    max_memory: int | str | None = None
    spill_dir: str | PathLike[str] | None = None
    verbose: int = 0
    report: Report = None
    scored_by: Scoring | None = field(init=False)
    n_threads: int = field(init=False)
    seed: int = field(init=False)
    room: Room = field(init=False)
    is_early: bool = field(init=False)
    is_growing: bool = field(init=False)
    reports_parts: bool = field(init=False)

    def __post_init__(self) -> None:
        check_choice("report", self.report, (None, *get_args(get_args(Report)[0])))
        check_choice("row_losses", self.row_losses, (True, False))
        check_choice("stratify", self.stratify, ("auto", True, False))
        check_choice("shuffle", self.shuffle, (True, False))
        check_choice("order", self.order, ("fixed", "random"))
        check_choice("method", self.method, METHODS)
        self._set("n_repeats", check_integer("n_repeats", self.n_repeats, MAX_REPEATS))
        check_choice("n_estimators", self.n_estimators, ("best", None))
        check_choice("truncate", self.truncate, (True, False))
        if self.n_epochs is not None:
            self._set("n_epochs", check_integer("n_epochs", self.n_epochs, MOST_EPOCHS))
        self._set("n_threads", count_threads(self.n_jobs))
        check_choice("pooled", self.pooled, (True, False))
        self._set("scored_by", make_scoring(self.scoring, self.optimize, self.pooled))
        check_verbose(self.verbose)
        room = check_room(self.max_memory, self.spill_dir)
        self._set("room", replace(room, is_verbose=self.verbose > 0))
        self._set("spill_dir", room.folder)  # absolute, because the working directory may change
        self._set("seed", draw_seed(self.random_state))
        self._set("random_state", self.seed)
        self._set("is_early", self.report in ("progressive", "blocks"))
        self._set("is_growing", self.report == "trees")
        self._set("reports_parts", self.report in ("folds", "mean"))
        if isinstance(self.cv, Iterator):
            self._set("cv", list(self.cv))
        if self.report is not None and self.report != "auto" and self.no_report_reason is not None:
            raise ValueError(f"report must be None if {self.no_report_reason}")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # the instance is frozen

    @property
    def no_report_reason(self) -> str | None:
        """The reason why trials cannot be pruned, or None."""
        scored_by = self.scored_by
        if scored_by is not None and scored_by.returns_tuple:
            return (
                "optimize is a list, because Optuna cannot prune studies with several objectives, "
                f"got optimize={scored_by.optimized_names}."
            )
        if self.pooled or (scored_by is not None and isinstance(scored_by.first, Pooled)):
            return (
                "the optimised score is pooled, because it has no fold scores; use a score of "
                "folds instead."
            )
        return None

    @property
    def may_stratify(self) -> bool:
        """Whether ``cv`` is an int or a float, so that folds can be stratified."""
        return is_integer(self.cv) or isinstance(self.cv, float | np.floating)


def takes_settings(*left_out: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator that replaces ``**settings`` by the arguments of ``Settings``.

    The arguments are added to the signature, and to the docstring in place of the line
    ``**settings``. Any other keyword argument raises a TypeError.

    Parameters
    ----------
    *left_out : str
        The arguments of ``Settings`` that the function does not accept.
    """
    parameters = dict(signature(Settings).parameters)
    for name in left_out:
        del parameters[name]

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        *own_parameters, _ = signature(function).parameters.values()
        whole = Signature([*own_parameters, *parameters.values()])

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            unknown = kwargs.keys() - whole.parameters.keys()
            if unknown:
                raise TypeError(
                    f"{function.__name__}() got an unexpected keyword argument {min(unknown)!r}"
                )
            return function(*args, **kwargs)

        text = str(getdoc(Settings)).partition("----------\n")[2].partition("\n\nAttributes")[0]
        parts = filter(None, re.split(r"^(?=\w+ : )", text, flags=re.MULTILINE))
        texts = {part.partition(" : ")[0]: part.rstrip() + "\n" for part in parts}
        docs = "".join(texts[name] for name in parameters)
        checked.__doc__ = f"{getdoc(function)}\n".replace("**settings\n", docs, 1)
        checked.__signature__ = whole  # type: ignore[attr-defined]
        return checked

    return decorate


def check_verbose(verbose: int) -> None:
    """Raise an error unless ``verbose`` is a bool or a non-negative integer."""
    if not (isinstance(verbose, bool) or is_integer(verbose)) or verbose < 0:
        raise ValueError(f"verbose must be 0 or a positive integer, got {verbose!r}.")


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise an error unless a value is hashable and one of the choices."""
    if not isinstance(value, Hashable) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")


def check_integer(name: str, value: int, maximum: int) -> int:
    """Return an integer argument as an int; raise an error unless it is from 1 to ``maximum``."""
    if not is_integer(value) or not 1 <= value <= maximum:
        raise ValueError(f"{name} must be an integer from 1 to {maximum}, got {value!r}.")
    return int(value)


def check_room(max_memory: int | str | None, spill_dir: str | PathLike[str] | None) -> Room:
    """Check ``max_memory`` and ``spill_dir``, and return them as a ``Room``."""
    n_bytes = max_memory
    if isinstance(max_memory, str):
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([kMGT]i?)?B\s*", max_memory)
        if match is not None:
            number, prefix = float(match[1]), match[2] or ""
            power = " kMGT".index(prefix[:1] or " ")
            n_bytes = int(number * (1024 if prefix.endswith("i") else 1000) ** power)
    is_number = is_integer(n_bytes) and n_bytes >= LEAST_BYTES
    if max_memory is not None and not is_number:
        raise ValueError(
            f"max_memory must be either None or at least {LEAST_BYTES} bytes, given as an integer "
            f"or as a text such as '2GB' or '500MB', got {max_memory!r}."
        )
    n_bytes = None if n_bytes is None else int(n_bytes)
    if spill_dir is None:
        return Room(n_bytes)
    if not isinstance(spill_dir, str | PathLike) or not os.path.isdir(spill_dir):
        raise ValueError(f"spill_dir must be a folder that exists, got {spill_dir!r}.")
    if max_memory is None:
        raise ValueError(
            f"spill_dir must be None if max_memory is None, got {spill_dir!r}: files "
            "are written to spill_dir only if max_memory is given."
        )
    return Room(n_bytes, os.path.abspath(spill_dir))


def count_threads(n_jobs: int | None) -> int:
    """Return the number of threads for ``n_jobs``, as joblib counts them."""
    if n_jobs is not None and not (is_integer(n_jobs) and n_jobs != 0):
        raise ValueError(
            f"n_jobs must be None, a number of workers or -1 for all cores, got {n_jobs!r}."
        )
    return effective_n_jobs(None if n_jobs is None else int(n_jobs))


def draw_seed(random_state: int | np.random.RandomState | None) -> int:
    """Return ``random_state`` if it is an int; otherwise, draw a seed from it."""
    if is_integer(random_state):
        if not 0 <= random_state < 2**64:
            raise ValueError(
                "random_state must be from 0 to 2**64 - 1 if it is an integer, "
                f"got {random_state}."
            )
        return int(random_state)
    with naming("random_state"):
        generator = check_random_state(random_state)
    return int(generator.randint(np.iinfo(np.int32).max))


def is_number(value: object) -> bool:
    """Return whether a value is a real number, but not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


@contextmanager
def quietly() -> Generator[None]:
    """Return a context in which ``warn_caller`` does not warn in the current thread.

    ``warnings.catch_warnings`` would affect all threads. If two threads left it in a different
    order than they entered it, warnings would remain suppressed.
    """
    before = _IS_QUIET.set(True)
    try:
        yield
    finally:
        _IS_QUIET.reset(before)


_IS_QUIET = ContextVar("is_quiet", default=False)


def warn_caller(message: str) -> None:
    """Warn with the location of the code that called this package."""
    if _IS_QUIET.get():
        return
    level, frame, ours = 1, sys._getframe(), "optuna_treecv."
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(ours):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
