"""Splits: any pairs of training rows and test rows, kept in little memory."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from itertools import zip_longest
from typing import NamedTuple
from typing import TypeAlias

import numpy as np

#: Training rows: None for all rows that are not tested, in ascending order; n for the rows 0 to
#: n - 1; a mask of packed bits (uint8) for other ascending rows; else the rows (uint32).
TrainRows: TypeAlias = "None | int | np.ndarray"


class Split(NamedTuple):
    """The training and test rows of one fold, in little memory.

    Attributes
    ----------
    train : TrainRows
    test : ndarray of int
    n_rows : int
        The number of all rows.
    """

    train: TrainRows
    test: np.ndarray
    n_rows: int

    def train_rows(self) -> np.ndarray:
        """Return the numbers of the training rows (intp), in their order."""
        rows = self.train
        if rows is None:
            is_trained = np.ones(self.n_rows, bool)
            is_trained[self.test] = False
            return np.flatnonzero(is_trained)
        if isinstance(rows, int):
            return np.arange(rows)
        if rows.dtype == np.uint8:
            return np.flatnonzero(np.unpackbits(rows, count=self.n_rows))
        return rows.astype(np.intp)


@dataclass(frozen=True)
class Splits:
    """Pairs of training and test rows that are no partition, such as those of a time series.

    Chunk i stands for the i-th split that is evaluated.

    Attributes
    ----------
    order : ndarray of shape (n_rows,), uint32
        Prepared row i is row ``order[i]`` of the data as given.
    trains : tuple of TrainRows
        The training rows of each split, as given by the splitter.
    tests : tuple of ndarray, uint32
        The test rows of each split, likewise.
    numbers : ndarray of shape (n_folds,) or None
        The number of the split of each chunk. None means that chunk i is split i.
    why_no_tree : str
        Why no tree over these splits exists: a clause that says what the splitter does.
    """

    order: np.ndarray
    trains: tuple[TrainRows, ...]
    tests: tuple[np.ndarray, ...]
    numbers: np.ndarray | None = None
    why_no_tree: str = ""

    @property
    def n_rows(self) -> int:
        return len(self.order)

    @property
    def n_folds(self) -> int:
        return len(self.tests)

    @cached_property
    def grows(self) -> bool:
        """Whether the training sets are growing prefixes of the rows, which lie as given.

        A chain trains on the first prepared rows, so in another order it would train on others.
        """
        sizes = [size for size in self.trains if isinstance(size, int)]
        return (
            len(sizes) == self.n_folds
            and all(a < b for a, b in pairwise(sizes))
            and np.array_equal(self.order, np.arange(self.n_rows))
        )

    @property
    def n_tested(self) -> int:
        """The number of test rows of all splits together."""
        return sum(map(len, self.tests))

    @property
    def are_single_rows(self) -> bool:
        """Whether each split tests one row."""
        return self.n_tested == self.n_folds

    @cached_property
    def n_trained(self) -> int:
        """The number of training rows of all splits together."""
        return sum(len(self.train_rows(i)) for i in range(self.n_folds))

    def number(self, chunk: int) -> int:
        """Return the number of the split of a chunk."""
        return chunk if self.numbers is None else int(self.numbers[chunk])

    def test_rows(self, chunk: int) -> np.ndarray:
        """Return the rows, as given, that a chunk's split tests, in the order of the splitter."""
        return self.tests[self.number(chunk)].astype(np.intp)

    def train_rows(self, chunk: int) -> np.ndarray:
        """Return the rows, as given, that a chunk's model is trained on, in their order."""
        return self.split(chunk).train_rows()

    def split(self, chunk: int) -> Split:
        """Return the training and test rows of a chunk."""
        number = self.number(chunk)
        return Split(self.trains[number], self.tests[number], self.n_rows)

    def tested_from(self, first: int, last: int) -> np.ndarray:
        """Return the test rows, as given, of some chunks, one after another."""
        return np.concatenate([self.test_rows(chunk) for chunk in range(first, last)])

    def begins(self) -> np.ndarray:
        """Return where each chunk's rows begin among all that are tested, and their number."""
        sizes = [len(self.tests[self.number(chunk)]) for chunk in range(self.n_folds)]
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def prepared(self, rows: np.ndarray) -> np.ndarray:
        """Return the prepared row numbers of rows as given, uint32."""
        place = np.empty(self.n_rows, np.uint32)
        place[self.order] = np.arange(self.n_rows, dtype=np.uint32)
        return place[rows]

    def one(self) -> Splits:
        """Return split 0 alone; over the rows as given if it trains on the first of them."""
        order = self.order
        if isinstance(self.trains[0], int):
            order = np.arange(self.n_rows, dtype=np.uint32)
        return Splits(order, self.trains[:1], self.tests[:1], why_no_tree=self.why_no_tree)

    def equals(self, other: object) -> bool:
        """Return whether both are the same splits of rows in the same order."""
        return isinstance(other, Splits) and _are_equal(self.arrays(), other.arrays())

    def fits_like(self, other: object) -> bool:
        """Return whether both train on the same rows and test the same rows in each split."""
        return isinstance(other, Splits) and _are_equal(self._rows(), other._rows())

    def arrays(self) -> Iterator[np.ndarray | None]:
        """Yield the arrays that tell these splits from others with as many splits."""
        yield from (self.order, self.numbers)
        yield from self._rows()

    def _rows(self) -> Iterator[np.ndarray | None]:
        yield from self.tests
        for rows in self.trains:
            yield np.array([rows]) if isinstance(rows, int) else rows

    def fewest_rows(self) -> int:
        """Return the number of rows of the smallest test set."""
        return min(map(len, self.tests))

    def has_fewer_of_a_class(self, n: int, codes: np.ndarray) -> bool:
        """Return whether some test set holds fewer than ``n`` rows of some class."""
        n_classes = int(codes.max()) + 1
        return any(np.bincount(codes[test], minlength=n_classes).min() < n for test in self.tests)

    def count(self, is_marked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return how many of the marked rows each chunk's model is trained on, and tested on."""
        chunks = range(self.n_folds)
        n_trained = [np.count_nonzero(is_marked[self.train_rows(chunk)]) for chunk in chunks]
        n_tested = [np.count_nonzero(is_marked[self.test_rows(chunk)]) for chunk in chunks]
        return np.array(n_trained), np.array(n_tested)

    def by_number(self, scores: np.ndarray) -> np.ndarray:
        """Return the scores of the first chunks, ordered by split; NaN for a split without one."""
        return scores_by_number(scores, self.n_folds, self.numbers)


def scores_by_number(scores: np.ndarray, n_folds: int, numbers: np.ndarray | None) -> np.ndarray:
    """Return the scores of the first chunks in the order of the folds; NaN for those without."""
    if numbers is None and len(scores) == n_folds:
        return scores
    in_order = np.full(n_folds, np.nan)
    in_order[slice(len(scores)) if numbers is None else numbers[: len(scores)]] = scores
    return in_order


def _are_equal(these: Iterable[np.ndarray | None], those: Iterable[np.ndarray | None]) -> bool:
    return all(
        one is other or (one is not None and other is not None and np.array_equal(one, other))
        for one, other in zip_longest(these, those)
    )


def packed(rows: np.ndarray, n_rows: int) -> TrainRows:
    """Return training rows in the form that takes least memory; order and repetitions stay."""
    if len(rows) and np.all(rows[1:] > rows[:-1]):
        if rows[-1] == len(rows) - 1:
            return len(rows)
        if 32 * len(rows) > n_rows:
            mask = np.zeros(n_rows, bool)
            mask[rows] = True
            return np.packbits(mask)
    return rows.astype(np.uint32)


def n_bytes_of(rows: TrainRows) -> int:
    """Return the bytes that training rows take."""
    return rows.nbytes if isinstance(rows, np.ndarray) else 8
