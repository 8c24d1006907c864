"""The repeats of a cross-validation: their folds, and the tree over these folds."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import is_classifier
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import _num_samples

from optuna_treecv._kernels.order import derive_seed
from optuna_treecv.caching.keys import digest
from optuna_treecv.caching.keys import encode
from optuna_treecv.caching.prefix import plan_key
from optuna_treecv.core.settings import Settings
from optuna_treecv.core.settings import warn_caller
from optuna_treecv.rows.checks import check_array_kind
from optuna_treecv.rows.checks import check_no_missing
from optuna_treecv.rows.checks import is_integer
from optuna_treecv.rows.checks import naming
from optuna_treecv.rows.cv import make_cuts
from optuna_treecv.rows.cv import ToCut
from optuna_treecv.rows.data import Data
from optuna_treecv.rows.folds import Cut
from optuna_treecv.rows.folds import first_split
from optuna_treecv.rows.folds import Folds
from optuna_treecv.rows.folds import one_pass
from optuna_treecv.rows.partition import Node
from optuna_treecv.rows.partition import Partition
from optuna_treecv.types import Array
from optuna_treecv.types import Estimator
from optuna_treecv.types import Features

#: The maximum number of reports of one trial, and the maximum number of blocks of a tree.
MAX_BLOCKS = 32

# Blocks are subtrees that are walked without Python. Nodes above them are walked in Python, where
# siblings are not trained jointly if there is a cache. Without reports, therefore, one thread
# walks a tree with fewer rows than this as a single block.
_ROWS_IN_ONE_BLOCK = 2**22
# The number of blocks for each of several threads.
_BLOCKS_PER_THREAD = 4


class Repeat(NamedTuple):
    """One of the ``n_repeats`` repetitions of a cross-validation.

    Attributes
    ----------
    number : int
        The index of the repeat: 0, 1, ....
    cut : Folds or Splits
        The folds or splits.
    plan : Partition
        The tree over the folds. For ``Splits``, only its nodes are meaningful: its rows are the
        concatenated test rows of all splits.
    key : bytes
        A digest of the tree or of the splits.
    blocks, parts : list of Node
        ``blocks`` are the runs of folds that are evaluated in one step. A report is due after each
        run of folds in ``parts``.
    """

    number: int
    cut: Cut
    plan: Partition
    key: bytes
    blocks: list[Node]
    parts: list[Node]


def divide(data: Data, settings: Settings, cv_in_words: str, estimator: Estimator) -> list[Cut]:
    """Return the folds or splits of each repeat for this type of estimator.

    Raises
    ------
    ValueError
        If ``cv``, ``stratify`` or ``groups`` is invalid.
    """
    if settings.may_stratify and settings.shuffle and settings.groups is None:
        if warning := _time_order_warning(data.X):
            warn_caller(warning)
    codes = _stratification_codes(data, settings, cv_in_words, estimator)
    rows = ToCut(data.X, data.y, settings.groups, data.n_rows, settings.shuffle, codes)
    seed_of = partial(derive_seed, settings.seed)
    cuts = make_cuts(settings.cv, rows, seed_of, settings.n_repeats)
    if settings.method == "holdout":
        cuts = [
            first_split(cut, settings.shuffle, seed_of(number)) for number, cut in enumerate(cuts)
        ]
    if settings.method == "progressive":
        cuts = [one_pass(cut) for cut in cuts]
    if any(cut.n_folds != cuts[0].n_folds for cut in cuts):
        raise ValueError(
            "cv must yield the same number of folds in each of the n_repeats calls of cv.split."
        )
    return cuts


def make_repeats(cuts: Sequence[Cut], settings: Settings) -> list[Repeat]:
    """Return the repeats with these folds or splits, divided into the parts that are reported."""
    n_reported_repeats = len(cuts) if settings.reports_parts else None
    if n_reported_repeats is not None and n_reported_repeats > MAX_BLOCKS:
        raise ValueError(
            f"report={settings.report!r} needs at most {MAX_BLOCKS} repeats (n_repeats, or the "
            f"repeats of cv), got {len(cuts)}."
        )
    repeats = [
        _repeat(number, cut, settings, n_reported_repeats) for number, cut in enumerate(cuts)
    ]
    # With early reports, fold scores are only reported after all folds of the repeat.
    if settings.is_early or settings.is_growing:
        repeats = [repeat._replace(parts=[repeat.plan.root]) for repeat in repeats]
    return repeats


def _repeat(number: int, cut: Cut, settings: Settings, n_reported_repeats: int | None) -> Repeat:
    """Return a repeat, divided into parts so that all repeats report at most 32 times in total.

    If ``n_reported_repeats``, the number of repeats, is None, nothing is reported.
    """
    is_random, seed = settings.order == "random", derive_seed(settings.seed, number)
    n_jobs = settings.n_threads
    if isinstance(cut, Folds):
        plan = Partition(cut.n_rows, cut.n_folds, cut.bounds, is_random, seed)
        key = plan_key(plan)
    else:
        bounds = cut.begins()
        plan = Partition(int(bounds[-1]), cut.n_folds, bounds, is_random, seed)
        key = digest(plan_key(plan), *map(encode, cut.arrays()))
    n_blocks = 1 if n_jobs == 1 else min(_BLOCKS_PER_THREAD * n_jobs, MAX_BLOCKS)
    if n_reported_repeats is not None or plan.n_rows >= _ROWS_IN_ONE_BLOCK:
        n_blocks = MAX_BLOCKS
    blocks = plan.blocks(n_blocks)
    parts = blocks if n_reported_repeats is None else plan.blocks(MAX_BLOCKS // n_reported_repeats)
    return Repeat(number, cut, plan, key, blocks, parts)


def encode_groups(groups: ArrayLike, n_rows: int) -> Array:
    """Return the group of each row, encoded as 0, 1, ...."""
    check_array_kind("groups", groups)
    with naming("groups"):
        n_entries = _num_samples(groups)
    if n_entries != n_rows:
        raise ValueError(
            f"groups must have one entry per row: X has {n_rows} rows, groups {n_entries} entries."
        )
    check_no_missing("groups", groups)
    return np.unique(np.asarray(groups), return_inverse=True)[1]


def can_stratify(data: Data, settings: Settings) -> bool:
    """Return whether the folds can be stratified by y."""
    return (
        data.y is not None
        and settings.may_stratify
        and settings.cv != data.n_rows
        and (data.y.ndim == 1 or settings.stratify is True)
    )


def _stratification_codes(
    data: Data, settings: Settings, cv_in_words: str, estimator: Estimator
) -> Array | None:
    """Return the class code of each row if the folds are to be stratified; else None."""
    cv, stratify, is_possible = settings.cv, settings.stratify, can_stratify(data, settings)
    if stratify is True and data.y is None:
        raise ValueError("stratify must be 'auto' or False if y is None, got True.")
    if stratify is True and not is_possible:
        raise ValueError(
            "stratify=True needs an int below the number of rows, or a fraction of test rows, as "
            f"cv, got cv={cv_in_words}."
        )
    if stratify is False or not is_possible:
        return None
    if not is_classifier(estimator):
        if stratify == "auto":
            return None
        if data.y.ndim == 1 and type_of_target(data.y) == "continuous":
            raise ValueError(
                "stratify must be 'auto' or False if y contains real numbers instead of class "
                "labels, got True."
            )
    try:
        codes = data.codes()
    except ValueError as error:
        if stratify == "auto":
            raise
        raise ValueError(f"stratify must be 'auto' or False, got True: {error}") from error
    smallest_class = int(np.bincount(codes).min())
    if is_integer(cv) and smallest_class < cv:
        warn_caller(
            f"The least populated class in y has only {smallest_class} members, fewer than "
            f"cv={cv}, so the folds are not stratified."
        )
        return None
    return codes


def _time_order_warning(X: Features) -> str:
    """Return a warning against shuffling if the rows of X are in the order of time; else ""."""
    if not hasattr(X, "iloc"):
        return ""
    names = getattr(X, "columns", ())
    columns = {"index": X.index}
    columns |= {f"column {name!r}": X.iloc[:, index] for index, name in enumerate(names)}
    for name, values in columns.items():
        is_time = getattr(values.dtype, "kind", "") == "M"
        if is_time and values.is_monotonic_increasing and values.nunique() > 1:
            return (
                f"the rows are in the order of time (the {name} of X), but the folds are "
                "shuffled, so models are trained on later rows than those on which they are "
                "tested; use cv=TimeSeriesSplit() or shuffle=False instead."
            )
    return ""


def divide_nodes(plan: Partition, nodes: list[Node], n_jobs: int) -> list[Node]:
    """Split nodes of the tree until there are enough subtrees for ``n_jobs`` threads."""
    blocks = list(nodes)
    while n_jobs > 1 and len(blocks) < _BLOCKS_PER_THREAD * n_jobs:
        largest = max(blocks, key=lambda node: node.n_folds)
        if largest.n_folds == 1:
            break
        index = blocks.index(largest)
        blocks[index : index + 1] = plan.split(largest)
    return blocks
