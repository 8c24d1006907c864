"""Which rows a cross-validation tests: the properties of splits that intervals depend on."""

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
    """Describes which rows are tested in a cross-validation.

    The repeats of a hold-out have different test rows. Therefore, they are treated as folds that
    have test rows in common.

    Attributes
    ----------
    cuts : sequence of Folds or Splits
        The folds or splits of each repeat.
    targets : ndarray or None
        The targets of all rows as given.
    score_weights : ndarray of shape (n_rows,) or None
    method : str
        How the folds were evaluated, see ``CVResult.method``.
    groups : ndarray of shape (n_rows,), int, or None
        The group of each row, if groups were given. Rows of the same group are not independent.
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
        """The mean number of training rows per fold, rounded."""
        return round(self.cuts[0].n_trained / self.cuts[0].n_folds)

    @property
    def test_share(self) -> float:
        """The ratio of test rows to training rows."""
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
        """Whether the splits indicate that the rows are in the order of time.

        Either models are tested only on later rows, or the training sets exclude the rows just
        before or after the test rows, as in purged folds.
        """
        is_purged = partial(_is_purged, self.cuts[0].n_rows)
        return self.goes_forward or self._all_splits(is_purged)

    def _all_splits(self, holds: Callable[[Array, Array], bool]) -> bool:
        """Return whether there are several splits, and all satisfy ``holds(train, test)``."""
        cut = self.cuts[0]
        if isinstance(cut, Folds) or cut.n_folds == 1:
            return False
        chunks = range(cut.n_folds)
        return all(holds(cut.split(c).train_rows(), cut.test_rows(c)) for c in chunks)

    @cached_property
    def rows(self) -> Array:
        """The indices of the tested rows, in tree order, one repeat after the other."""
        return np.concatenate([cut.tested_from(0, cut.n_folds) for cut in self.cuts])

    @cached_property
    def fold_numbers(self) -> Array:
        """The index of the fold of each tested row, in the order of ``rows``."""
        numbers = []
        for cut in self.cuts:
            of_chunks = [cut.number(chunk) for chunk in range(cut.n_folds)]
            numbers.append(np.repeat(of_chunks, np.diff(cut.begins())))
        return np.concatenate(numbers)

    @cached_property
    def test_shares(self) -> Array:
        """The share of each tested row in the mean score; it has the shape of ``rows``."""
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
        """The share of each row in the mean score, (n_rows,); 0 for rows that are not tested."""
        shares = np.zeros(self.cuts[0].n_rows)
        np.add.at(shares, self.rows, self.test_shares)
        return shares

    def units(self) -> tuple[Array, Literal["rows", "groups"]]:
        """Return the index of the bootstrap unit of each tested row, and the kind of units.

        Units are drawn independently of each other. They are groups of rows, if given, and
        otherwise single rows.
        """
        if self.groups is not None:
            return self.groups[self.rows], "groups"
        return self.rows, "rows"

    def pieces(self, n_strata: int, n_pieces: int) -> Array | None:
        """Divide consecutive rows into pieces; return the index of the piece of each tested row.

        The folds are divided into ``n_strata`` runs of consecutive folds. The rows of each run are
        divided into ``n_pieces`` pieces. Return None if a run has fewer rows than this.
        """
        indices = []
        for cut in self.cuts:
            rows = cut.tested_from(0, cut.n_folds)
            begins = cut.begins() - cut.begins()[0]
            firsts = np.minimum.reduceat(rows, begins[:-1])
            strata = np.argsort(np.argsort(firsts)) * n_strata // cut.n_folds
            row_strata = np.repeat(strata, np.diff(begins))
            sizes = np.bincount(row_strata)
            if sizes.min() < n_pieces:
                return None
            pieces = [i * n_pieces + np.arange(n) * n_pieces // n for i, n in enumerate(sizes)]
            in_time = np.lexsort((rows, row_strata))
            indices.append(np.empty(len(rows), np.intp))
            indices[-1][in_time] = np.concatenate(pieces)
        return np.concatenate(indices)

    def fewest_effective_rows(self) -> float:
        r"""Return the smallest effective sample size :math:`(\sum w)^2 / \sum w^2` of any fold."""
        if self.score_weights is None:
            return float(min(np.diff(cut.begins()).min() for cut in self.cuts))
        sizes = []
        for cut in self.cuts:
            for chunk in range(cut.n_folds):
                weights = self.score_weights[cut.test_rows(chunk)]
                sizes.append(float(weights.sum() ** 2 / (weights @ weights)))
        return min(sizes)

    def reason_not_comparable(self, other: "Tested") -> str:
        """Return the reason why scores on these rows cannot be paired with others; else ""."""
        if self is other:
            return ""
        if self.cuts is not other.cuts and (
            len(self.cuts) != len(other.cuts)
            or not all(
                ours.equals(theirs) for ours, theirs in zip(self.cuts, other.cuts, strict=True)
            )
        ):
            return "its folds are different"
        if not _are_equal(self.targets, other.targets):
            return "its targets are different"
        if not _are_equal(self.score_weights, other.score_weights):
            return "its score_weight is different"
        return ""


def _is_purged(n_rows: int, train: Array, test: Array) -> bool:
    """Return whether no run of test rows is preceded or followed directly by a training row."""
    is_tested, is_trained = np.zeros(n_rows + 2, bool), np.zeros(n_rows + 2, bool)
    is_tested[test + 1] = is_trained[train + 1] = True
    before = np.flatnonzero(is_tested[1:] & ~is_tested[:-1])
    after = np.flatnonzero(is_tested[:-1] & ~is_tested[1:]) + 1
    are_runs = 2 * len(before) <= len(test)  # in a random sample, runs are shorter
    return are_runs and not (is_trained[before].any() and is_trained[after].any())


def _are_equal(targets: Targets, other: Targets) -> bool:
    return targets is other or np.array_equal(targets, other)
