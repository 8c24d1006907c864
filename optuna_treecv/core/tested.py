"""The tests of a cross-validation: the properties, besides scores, that decide on intervals."""

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from functools import partial
from typing import Literal

import numpy as np

from optuna_treecv.rows.folds import Cut
from optuna_treecv.rows.folds import Folds
from optuna_treecv.types import Array
from optuna_treecv.types import Targets


@dataclass(frozen=True, eq=False)
class Tested:
    """The tests of one cross-validation.

    The repeats of a hold-out have different test rows. They count as folds with test rows in
    common.

    Attributes
    ----------
    cuts : sequence of Folds or Splits
        The folds or splits of each repeat.
    targets : ndarray or None
        The targets of all rows as given.
    score_weights : ndarray of shape (n_rows,) or None
    method : str
        How the folds were evaluated, as ``CVResult.method``.
    groups : ndarray of shape (n_rows,), int, or None
        The group of each row, if groups were given. The rows of a group are not independent.
    """

    cuts: Sequence[Cut]
    targets: Targets
    score_weights: Array | None
    method: str
    groups: Array | None

    @property
    def n_folds(self) -> int:
        return len(self.cuts) if self._is_repeated_hold_out else self.cuts[0].n_folds

    @property
    def _is_repeated_hold_out(self) -> bool:
        is_hold_out = self.cuts[0].n_folds == 1 and self.method != "progressive"
        return is_hold_out and len(self.cuts) > 1

    @property
    def n_trained(self) -> int:
        """The rows on which a model is trained, on average over the folds of one repeat."""
        return round(self.cuts[0].n_trained / self.cuts[0].n_folds)

    @property
    def test_share(self) -> float:
        """The test rows of a fold, as a share of its training rows."""
        return self.cuts[0].n_tested / self.cuts[0].n_trained

    @cached_property
    def shares_test_rows(self) -> bool:
        """Whether folds of one repeat have test rows in common."""
        if self._is_repeated_hold_out:
            return True
        cut = self.cuts[0]
        return (
            not isinstance(cut, Folds)
            and len(np.unique(cut.tested_from(0, cut.n_folds))) < cut.n_tested
        )

    @cached_property
    def goes_forward(self) -> bool:
        """Whether each model is tested on rows after all of its training rows."""
        is_forward = self._all_splits(lambda train, test: train.max() < test.min())
        return self.method == "chain" or is_forward

    @cached_property
    def is_ordered(self) -> bool:
        """Whether the splits are those of rows in the order of time.

        Either models are tested on later rows, or the training sets lack the rows before or after
        the test rows, as in purged folds.
        """
        is_purged = partial(_is_purged, self.cuts[0].n_rows)
        return self.goes_forward or self._all_splits(is_purged)

    def _all_splits(self, holds: Callable[[Array, Array], bool]) -> bool:
        """Return whether there are several splits, and ``holds(train, test)`` is true for all."""
        cut = self.cuts[0]
        if isinstance(cut, Folds) or cut.n_folds == 1:
            return False
        chunks = range(cut.n_folds)
        return all(holds(cut.split(c).train_rows(), cut.test_rows(c)) for c in chunks)

    @cached_property
    def rows(self) -> Array:
        """The rows that are tested, fold after fold along the tree and repeat after repeat."""
        return np.concatenate([cut.tested_from(0, cut.n_folds) for cut in self.cuts])

    @cached_property
    def test_shares(self) -> Array:
        """The share of each test of a row in the mean, of the shape of ``rows``."""
        shares = []
        for cut in self.cuts:
            begins = cut.begins()
            begins = begins - begins[0]
            weights = np.ones(begins[-1])
            if self.score_weights is not None:
                weights = self.score_weights[cut.tested_from(0, cut.n_folds)]
            totals = np.add.reduceat(weights, begins[:-1])
            share_in_fold = weights / np.repeat(totals, np.diff(begins))
            shares.append(share_in_fold / (cut.n_folds * len(self.cuts)))
        return np.concatenate(shares)

    @cached_property
    def shares(self) -> Array:
        """The share of each row's score in the mean, shape (n_rows,); 0 if it is never tested."""
        shares = np.zeros(self.cuts[0].n_rows)
        np.add.at(shares, self.rows, self.test_shares)
        return shares

    def units(self) -> tuple[Array, Literal["rows", "groups"]]:
        """Return the number of the bootstrap unit of each test of a row, and the kind of units.

        Units are independent of each other: rows, or groups of rows if they were given.
        """
        if self.groups is not None:
            return self.groups[self.rows], "groups"
        return self.rows, "rows"

    def pieces(self, n_strata: int, n_pieces: int) -> Array | None:
        """Return, for each test of a row, the number of its piece of consecutive rows.

        Each of ``n_strata`` runs of consecutive folds is divided into ``n_pieces`` pieces. Return
        None if one of them has fewer rows.
        """
        numbers = []
        for cut in self.cuts:
            rows = cut.tested_from(0, cut.n_folds)
            begins = cut.begins() - cut.begins()[0]
            firsts = np.minimum.reduceat(rows, begins[:-1])
            strata = np.argsort(np.argsort(firsts)) * n_strata // cut.n_folds
            of_rows = np.repeat(strata, np.diff(begins))
            sizes = np.bincount(of_rows)
            if sizes.min() < n_pieces:
                return None
            pieces = [i * n_pieces + np.arange(n) * n_pieces // n for i, n in enumerate(sizes)]
            in_time = np.lexsort((rows, of_rows))
            numbers.append(np.empty(len(rows), np.intp))
            numbers[-1][in_time] = np.concatenate(pieces)
        return np.concatenate(numbers)

    def fewest_effective_rows(self) -> float:
        r"""Return :math:`(\sum w)^2 / \sum w^2` of the smallest fold."""
        if self.score_weights is None:
            return float(min(np.diff(cut.begins()).min() for cut in self.cuts))
        sizes = []
        for cut in self.cuts:
            for chunk in range(cut.n_folds):
                weights = self.score_weights[cut.test_rows(chunk)]
                sizes.append(float(weights.sum() ** 2 / (weights @ weights)))
        return min(sizes)

    def reason_not_comparable(self, other: "Tested") -> str:
        """Return the reason why results on these tests cannot be paired with others; else ""."""
        if self is other:
            return ""
        if self.cuts is not other.cuts and (
            len(self.cuts) != len(other.cuts)
            or not all(c.equals(two) for c, two in zip(self.cuts, other.cuts, strict=True))
        ):
            return "its folds are different"
        if not _are_equal(self.targets, other.targets):
            return "its targets are different"
        if not _are_equal(self.score_weights, other.score_weights):
            return "its score_weight is different"
        return ""


def _is_purged(n_rows: int, train: Array, test: Array) -> bool:
    """Return whether no run of test rows has a training row just before it, or just after it."""
    is_tested, is_trained = np.zeros(n_rows + 2, bool), np.zeros(n_rows + 2, bool)
    is_tested[test + 1] = is_trained[train + 1] = True
    before = np.flatnonzero(is_tested[1:] & ~is_tested[:-1])
    after = np.flatnonzero(is_tested[:-1] & ~is_tested[1:]) + 1
    are_runs = 2 * len(before) <= len(test)  # runs in a random sample are shorter
    return are_runs and not (is_trained[before].any() and is_trained[after].any())


def _are_equal(targets: Targets, other: Targets) -> bool:
    return targets is other or np.array_equal(targets, other)
