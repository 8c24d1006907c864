"""The arguments of a cross-validation: their defaults, their checks and their documentation."""

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
    "boosting",
    "bagging",
    "forest",
    "treecv",
    "fit",
    "standard",
    "holdout",
    "progressive",
]

#: The most repeats: their mean has a hundredth of the standard deviation of a single repeat.
MAX_REPEATS = 10_000

#: The values of ``method``.
METHODS = get_args(MethodName)

#: Settings that only some engines take, see ``Capabilities.settings``.
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
        The number of folds, from 2 to n_rows; a share between 0 and 1, which a single hold-out
        tests; "loo" for leave-one-out; a splitter of scikit-learn or an object like one; the fold
        of each row, shape (n_rows,), -1 for rows that are only trained on; or pairs of training
        and test rows. Exact folds and fits take any splitter. The tree takes two kinds. The first
        kind trains on all rows that it does not test, and tests no row twice, or all rows equally
        often in repetitions. The second kind trains on growing first parts of the rows, as
        ``TimeSeriesSplit`` does.
    groups : array-like of shape (n_rows,), default=None
        The groups, for splitters that need them. An int as ``cv`` then means ``GroupKFold(cv)``,
        or ``StratifiedGroupKFold(cv)`` where folds are stratified.
    stratify : {"auto", True, False}, default="auto"
        For an int or a share: give each fold its share of every class, as ``StratifiedKFold``
        does. "auto" does so for classifiers. If a class has fewer members than there are folds,
        the folds are not stratified, with a warning.
    shuffle : bool, default=True
        For an int, a share or "loo", permute the rows once before they are cut into folds.
        For any other ``cv``, permute the order of the folds and of the rows in each training
        phase; the folds themselves stay the same. Time series keep their order.
    order : {"fixed", "random"}, default="fixed"
        Whether a training phase reads its rows in a fixed order, or in a new random order. The
        random order takes longer (1.6 times on Covertype).
    method : {"auto", "exact", "newton", "neighbors", "boosting", "bagging", "forest", "treecv", \
            "fit", "standard", "holdout", "progressive"}
        "exact" computes all folds from sums over the rows, for ``Ridge``, ``RidgeClassifier``,
        ``Lasso``, ``ElasticNet``, ``LinearRegression`` and discriminant analysis of scikit-learn,
        alone or after encoders, imputers and scalers. "newton" solves for the models of all folds
        jointly, for ``LogisticRegression``, ``PoissonRegressor``, ``LinearSVC`` and others, with
        the same preprocessing.
        "neighbors" searches once per fold for the neighbours of ``KNeighborsClassifier`` and
        ``KNeighborsRegressor``.
        "boosting" and "bagging" grow the ensembles of LightGBM, XGBoost and scikit-learn tree by
        tree, so that one ensemble per fold gives the scores of all smaller ones.
        "forest" grows the trees of all folds jointly, for ``HistTreeClassifier`` and
        ``HistTreeRegressor``. "treecv" trains models incrementally along a tree; for time series
        it is a chain, in which one model walks forward. "fit" calls ``fit`` of any estimator on
        each fold's training rows. "auto", the default, takes the first of these that is possible
        and makes the models of ``fit``. "standard" is k trainings from scratch of one pass each,
        the baseline of the paper; for decision trees, k trees that are grown one by one. "holdout"
        is "auto" on the first fold alone. "progressive" is progressive validation: one pass, in
        which each row after the first eighth is tested before the model learns it.
        ``CVResult.method`` is the method that was used, and ``CVResult.why`` the reason for it.
    n_repeats : int, default=1
        Cross-validate this many times and average. The repeats differ in their permutations for an
        int, a share or "loo", in what further calls of ``split`` return for a splitter, in random
        orders, and in every ``random_state=None`` of the estimator. It is refused if nothing makes
        the repeats differ. At most 10,000.
    n_epochs : int, default=None
        The updates per row, for incremental models; None means 1. If it is given, "auto" calls
        ``partial_fit`` even if ``fit`` makes other passes. In the tree, a learner of this package
        sees ``n_epochs - 1`` replays after each new row, of rows that the model may see; the
        ``partial_fit`` of another estimator is called ``n_epochs`` times per training phase.
        "standard" makes ``n_epochs`` shuffled passes. The ``n_epochs`` of an estimator of this
        package may be set or searched instead. At most 10,000.
    n_estimators : {"best", None}, default=None
        "best": an ensemble gets the number of trees whose mean score over the folds is best, up to
        the number that is set in the estimator. ``CVResult.curve`` has the means. A parameter of
        the estimator for early stopping, such as ``early_stopping_round``, then counts trees
        without a better mean over the folds.
    truncate : bool, default=False
        Where the ``max_depth`` of a forest is searched: grow its trees once to the largest depth,
        and cut them for smaller ones. The scores have the same distribution as those of fits, but
        not the same digits, because a fit to a smaller depth draws other columns for its nodes. It
        is refused with ``max_leaf_nodes`` or ``ccp_alpha``.
    scoring : str, callable, ``pooled(...)``, list or dict of these, or None, default=None
        A loss of rows, or a scikit-learn scorer, to which compiled learners pass plain arrays. The
        losses are "error", "hinge" and "log_loss" for classifiers, "squared_error" and
        "absolute_error" for regressors, "squared_distance" (to the nearest centre) for clusterers,
        and "neg_log_density" for density estimators. None means the first loss that fits the
        estimator. Several scores, in a list or as a dict of names to scores, take one training:
        ``CVResult.scores`` has them all, and ``mean`` is that of the first.
    optimize : str, list of str or None, default=None
        The name of the score whose mean the objective returns; None: the first. With a list of
        names, the objective returns a tuple for a study of several objectives:
        ``optuna.create_study(directions=objective.directions)``.
    pooled : bool, default=False
        Compute each score once over the out-of-fold outputs of all rows, see
        ``optuna_treecv.pooled``.
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
        pairs rows. In a study, the best trials keep theirs, so that ``optuna_treecv.select``
        compares trials over rows and not over folds.
    max_memory : int or str, default=None
        The memory that prepared rows may take, in bytes or as in "2GB", at least 1 MiB. If they
        need more, they are written once to a file, in the order of the tree, and read again block
        by block. Scores of estimators of other libraries may depend on it, because their
        ``partial_fit`` gets a block at a time; other scores do not. None: rows are in memory.
    spill_dir : str or path, default=None
        The folder of that file, which is deleted when the process ends; None: the system's folder
        for temporary files.
    verbose : int, default=0
        1: while that file is read, print every few seconds how much is done and the time left.
    report : {None, "auto", "progressive", "blocks", "trees", "folds", "mean"}, default=None
        What to pass to ``trial.report``, for pruning: at most 32 numbers per trial.
        "auto" takes what the pruner of the first trial's study needs; ``.pruner()`` returns a
        pruner that fits. A warning names a pruner that does not fit the reports.
        "progressive" and "blocks" report inside the tree's first pass over the data, at each
        sixteenth of a pass from the second on. Each row is tested before the model learns it.
        "progressive" reports the mean score over the second half of the rows so far, for
        ``RacingPruner``, ``MedianPruner``, ``SuccessiveHalvingPruner`` and ``HyperbandPruner``;
        "blocks" reports that over the rows since the last report, for ``WilcoxonPruner``. With 32
        folds or more, step 64 is the mean score of 16 folds. The last report is the trial's value.
        "trees" reports while ensembles grow: the best score so far of the first fold after up to
        16 blocks of its trees, and then the best mean of the folds so far, as each one is done.
        "folds" reports the mean score of each part of the tree, or of each fold that is fitted, at
        the part's number, and "mean" the mean of all folds so far. An infinite mean is reported as
        1e300 or -1e300.

    Attributes
    ----------
    scored_by : Scoring or None
        What ``scoring``, ``optimize`` and ``pooled`` mean; None is left to the estimator.
    n_threads : int
        What ``n_jobs`` means.
    seed : int
        What ``random_state`` means.
    room : Room
        What ``max_memory``, ``spill_dir`` and ``verbose`` mean.
    is_growing : bool
        Whether scores are reported while ensembles grow.
    is_early : bool
        Whether scores are reported before those of folds are known.
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
        self._set("spill_dir", room.folder)  # whatever the working directory will be
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
        if self.scored_by is not None and self.scored_by.returns_tuple:
            return (
                "optimize is a list, because Optuna cannot prune studies with several objectives, "
                f"got optimize={self.scored_by.optimized_names}."
            )
        if self.pooled or (
            self.scored_by is not None and isinstance(self.scored_by.first, Pooled)
        ):
            return (
                "the optimised score is pooled, because it has no fold scores; use a score of "
                "folds instead."
            )
        return None

    @property
    def may_stratify(self) -> bool:
        """Whether ``cv`` is a number of folds or a share, which can be stratified."""
        return is_integer(self.cv) or isinstance(self.cv, float | np.floating)


def takes_settings(*left_out: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator that replaces ``**settings`` of a function by ``Settings``' arguments.

    The signature lists them, the docstring explains them in place of the line ``**settings``, and
    any other name is refused.

    Parameters
    ----------
    *left_out : str
        The arguments that the function does not take.
    """
    of_settings = {
        name: parameter
        for name, parameter in signature(Settings).parameters.items()
        if name not in left_out
    }

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        *of_function, _ = signature(function).parameters.values()
        whole = Signature([*of_function, *of_settings.values()])

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
        docs = "".join(texts[name] for name in of_settings)
        checked.__doc__ = f"{getdoc(function)}\n".replace("**settings\n", docs, 1)
        checked.__signature__ = whole  # type: ignore[attr-defined]
        return checked

    return decorate


def check_verbose(verbose: int) -> None:
    """Refuse a ``verbose`` that is neither a bool nor an integer of at least 0."""
    if not (isinstance(verbose, bool) or is_integer(verbose)) or verbose < 0:
        raise ValueError(f"verbose must be 0 or a positive integer, got {verbose!r}.")


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Refuse a value that is none of the choices; objects without a hash are never choices."""
    if not isinstance(value, Hashable) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")


def check_integer(name: str, value: int, most: int) -> int:
    """Return an integer argument as an int; refuse values outside of 1 to ``most``."""
    if not is_integer(value) or not 1 <= value <= most:
        raise ValueError(f"{name} must be an integer of 1 to {most}, got {value!r}.")
    return int(value)


def check_room(max_memory: int | str | None, spill_dir: str | PathLike[str] | None) -> Room:
    """Return the checked ``max_memory`` and ``spill_dir``."""
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
            f"max_memory must be None, or at least {LEAST_BYTES} bytes as an integer or as a text "
            f"such as '2GB' or '500MB', got {max_memory!r}."
        )
    n_bytes = None if n_bytes is None else int(n_bytes)
    if spill_dir is None:
        return Room(n_bytes)
    if not isinstance(spill_dir, str | PathLike) or not os.path.isdir(spill_dir):
        raise ValueError(f"spill_dir must be a folder that exists, got {spill_dir!r}.")
    if max_memory is None:
        raise ValueError(
            "spill_dir must be None if max_memory is None, because nothing is written, got "
            f"{spill_dir!r}."
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
    """Return the seed of a ``random_state``, drawn for None and RandomState instances."""
    if is_integer(random_state):
        if not 0 <= random_state < 2**64:
            raise ValueError(
                f"random_state must be an integer of 0 to 2**64 - 1, got {random_state}."
            )
        return int(random_state)
    with naming("random_state"):
        generator = check_random_state(random_state)
    return int(generator.randint(np.iinfo(np.int32).max))


def is_number(value: object) -> bool:
    """Return whether a value is a real number; bools are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


@contextmanager
def quietly() -> Generator[None]:
    """Return a context in which ``warn_caller`` is silent, in this thread alone.

    ``warnings.catch_warnings`` affects all threads, and if two of them exit it in another order
    than they entered it, warnings remain suppressed.
    """
    before = _IS_QUIET.set(True)
    try:
        yield
    finally:
        _IS_QUIET.reset(before)


_IS_QUIET = ContextVar("is_quiet", default=False)


def warn_caller(message: str) -> None:
    """Warn with the location of the line that called this package."""
    if _IS_QUIET.get():
        return
    level, frame, ours = 1, sys._getframe(), "optuna_treecv."
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(ours):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
