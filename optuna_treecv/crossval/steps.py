"""The steps before learners, fitted once for all trials, and the rows after them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Sequence
from threading import Lock
from typing import Any
from typing import NamedTuple

import numpy as np
from sklearn import get_config

from optuna_treecv.crossval.repeat import Repeat
from optuna_treecv.learners.steps.fitted import FittedSteps
from optuna_treecv.learners.steps.placeholders import NotAheadError
from optuna_treecv.learners.steps.split import Split
from optuna_treecv.learners.steps.split import split
from optuna_treecv.learners.steps.split import split_in_python
from optuna_treecv.rows.data import RowLayout
from optuna_treecv.sharing.kept_rows import Made
from optuna_treecv.sharing.keys import digest
from optuna_treecv.sharing.keys import encode
from optuna_treecv.sharing.keys import lasting_key
from optuna_treecv.sharing.keys import NoKey
from optuna_treecv.sharing.keys import token
from optuna_treecv.sharing.memory_cache import ModelCache

# The most fitted steps that are kept, those asked for last, and the most estimators whose steps
# are known: those that are evaluated side by side.
_MOST_FITTED = 16
_MOST_ESTIMATORS = 1024

_NO_NAME = (
    "its steps hold an object, such as a lambda, by which trials could not tell them from others"
)


class Ahead(NamedTuple):
    """The steps of a Pipeline that are done ahead of its learner.

    Attributes
    ----------
    front : FittedSteps
    name : bytes
        Tells them apart.
    layout : RowLayout
        Of the rows that the learner needs.
    why_python : str
        Why the running steps of a compiled learner run in Python, a clause.
    """

    front: FittedSteps
    name: bytes
    layout: RowLayout
    why_python: str


class Steps:
    """The steps before the learners of one evaluation.

    Parameters
    ----------
    X : the rows as given
    y : ndarray or None
        The targets as given.
    cache : ModelCache or None
        Where rows after steps are kept; None: only those asked for last are.
    """

    def __init__(self, X: Any, y: np.ndarray | None, cache: ModelCache | None) -> None:
        self._arguments = X, y, cache
        self._name = token()
        self._last_rows: tuple[Hashable, Made] | None = None
        self._fitted: OrderedDict[bytes, FittedSteps | str] = OrderedDict()
        self._known: OrderedDict[int, tuple[Any, Ahead | str]] = OrderedDict()
        self._most_left_out: int | None = None
        self._fitting = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Steps, self._arguments  # steps and rows are made again

    def ahead(self, estimator: Any, repeats: Sequence[Repeat]) -> Ahead | str:
        """Return the steps of a Pipeline that are done ahead of its learner.

        Return why there are none, a clause, if there are not; it is empty if the estimator has no
        steps that could be.
        """
        _, known = self._known.get(id(estimator), (None, None))
        if known is not None:
            return known
        found = split(estimator)
        if isinstance(found, str):
            return found
        ahead = self._done(found, repeats)
        if isinstance(ahead, str) and found.is_compiled:
            in_python = split_in_python(estimator, ahead)
            other = self._done(in_python, repeats) if isinstance(in_python, Split) else ahead
            ahead = ahead if isinstance(other, str) else other
        # A run asks several times, and naming steps takes time. Estimators need not have a hash;
        # each is kept beside its id, so that no other one gets this id.
        self._known[id(estimator)] = estimator, ahead
        if len(self._known) > _MOST_ESTIMATORS:
            self._known.popitem(last=False)
        return ahead

    def forget(self, estimator: Any) -> None:
        """Look at an estimator's steps anew, since its parameters may have been set."""
        self._known.pop(id(estimator), None)

    def rows(self, name: Hashable, make: Callable[[], Made]) -> Made:
        """Return prepared rows after steps, made if they are not kept; for one thread at a time.

        Those asked for last are always kept. Others are kept in the cache of models while it has
        room for them, and made again otherwise.
        """
        if self._last_rows is None or self._last_rows[0] != name:
            self._last_rows = None  # their memory may be needed for the others
            self._last_rows = name, self._find(name, make)
        return self._last_rows[1]

    def _find(self, name: Hashable, make: Callable[[], Made]) -> Made:
        *_, cache = self._arguments
        if cache is None:
            return make()
        key = b"rows", self._name, name
        found: Made | None = cache.find(key)
        if found is None:
            found = make()
            cache.keep(key, found, found.seconds)
        return found

    def _done(self, found: Split, repeats: Sequence[Repeat]) -> Ahead | str:
        """Return the fitted steps of a divided Pipeline, or why they cannot be done, a clause."""
        try:
            name = _name_of(found)
        except NoKey:
            return _NO_NAME
        with self._fitting:
            if name not in self._fitted:
                self._fitted[name] = self._fit(found, repeats)
            self._fitted.move_to_end(name)
            if len(self._fitted) > _MOST_FITTED:
                self._fitted.popitem(last=False)
            front = self._fitted[name]
        if isinstance(front, str):
            return front
        n_known = front.fewest_known(found.last)
        if n_known is not None and n_known <= self._find_most_left_out(repeats):
            return (
                f"a column that a SimpleImputer fills has values in {n_known} rows, so that a "
                "fold may train on none of them, and keep_empty_features is False"
            )
        return Ahead(front, name, front.layout_for(found.pipeline), found.why_python)

    def _find_most_left_out(self, repeats: Sequence[Repeat]) -> int:
        """Return the most rows that a fold is not trained on."""
        if self._most_left_out is None:
            self._most_left_out = max(repeat.most_left_out for repeat in repeats)
        return self._most_left_out

    def _fit(self, found: Split, repeats: Sequence[Repeat]) -> FittedSteps | str:
        X, y, _ = self._arguments
        try:
            front = FittedSteps(found, X, y)
        except NotAheadError as error:
            return str(error)
        return front.why_form_varies([repeat.cut for repeat in repeats]) or front


def _name_of(found: Split) -> bytes:
    # Kernels do not see whether steps return data frames, but other learners do.
    form = found.last.row_layout.sparse if found.is_compiled else get_config()["transform_output"]
    try:
        steps = encode(found.before)
    except NoKey:
        steps = lasting_key(found.before)
    return digest(steps, found.prefix.encode(), encode(form))
