"""The steps before learners, fitted once for all trials, and the prepared rows after them."""

from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Sequence
from functools import partial
from threading import Lock
from typing import Any
from typing import NamedTuple
from typing import TypeVar

import numpy as np
from sklearn import get_config

from optuna_treecv.caching.caches import ModelCache
from optuna_treecv.caching.keys import digest
from optuna_treecv.caching.keys import encode
from optuna_treecv.caching.keys import first_key
from optuna_treecv.caching.keys import lasting_key
from optuna_treecv.caching.keys import token
from optuna_treecv.core.repeat import Repeat
from optuna_treecv.preprocessing.decisions import DividedPipeline
from optuna_treecv.preprocessing.decisions import Parts
from optuna_treecv.preprocessing.decisions import split
from optuna_treecv.preprocessing.decisions import split_in_python
from optuna_treecv.preprocessing.fitted import FittedSteps
from optuna_treecv.preprocessing.fitted import Table
from optuna_treecv.preprocessing.placeholders import NotAheadError
from optuna_treecv.preprocessing.placeholders import with_placeholders
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import RowLayout

T = TypeVar("T")

# The most fitted steps that are kept, those asked for last.
_MOST_FITTED = 16

_NO_NAME = (
    "its steps hold an object, such as a lambda, by which trials could not tell them from others"
)


class Front(NamedTuple):
    """The steps of a Pipeline that are done ahead of its learner.

    Attributes
    ----------
    steps : FittedSteps
    name : bytes
        Tells them apart.
    layout : RowLayout
        Of the rows that the learner needs.
    why_python : str
        Why the running steps of a compiled learner run in Python, a clause.
    """

    steps: FittedSteps
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
        self._last_rows: tuple[Hashable, PreparedRows] | None = None
        self._fitted: OrderedDict[bytes, Any] = OrderedDict()
        self._fitting = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Steps, self._arguments  # steps and rows are made again

    def front(self, estimator: Any, repeats: Sequence[Repeat]) -> Front | str:
        """Return the steps of a Pipeline that are done ahead of its learner.

        Return why there are none, a clause, if there are not; it is empty if the estimator has no
        steps that could be.
        """
        parts = split(estimator)
        if isinstance(parts, str):
            return parts
        front = self._done(parts, repeats)
        if isinstance(front, str) and parts.is_compiled:
            in_python = split_in_python(estimator, front)
            if isinstance(in_python, DividedPipeline):
                other = self._done(in_python, repeats)
                front = front if isinstance(other, str) else other
        return front

    def rows(self, name: Hashable, make: Callable[[], PreparedRows]) -> PreparedRows:
        """Return prepared rows after steps, made if they are not kept; for one thread at a time.

        Those asked for last are always kept. Others are kept in the cache of models while it has
        room for them, and made again otherwise.
        """
        if self._last_rows is None or self._last_rows[0] != name:
            self._last_rows = None  # their memory may be needed for the others
            *_, cache = self._arguments
            key = b"rows", self._name, name
            rows: PreparedRows | None = None if cache is None else cache.find(key)
            if rows is None:
                rows = make()
                if cache is not None:
                    cache.keep(key, rows, rows.seconds)
            self._last_rows = name, rows
        return self._last_rows[1]

    def _done(self, parts: DividedPipeline, repeats: Sequence[Repeat]) -> Front | str:
        """Return the fitted steps of a divided Pipeline, or why they cannot be done, a clause."""
        # Kernels do not see whether steps return data frames, but other learners do.
        is_compiled = parts.is_compiled
        form = parts.last.row_layout.sparse if is_compiled else get_config()["transform_output"]
        before = with_placeholders("", parts.before, parts.kinds)
        name = first_key(before, encode, lasting_key)
        if name is None:
            return _NO_NAME
        name = digest(name, parts.prefix.encode(), encode(form))

        def make() -> FittedSteps | str:
            X, y, _ = self._arguments
            fitted = FittedSteps(parts, X, y)
            return fitted.why_form_varies([repeat.cut for repeat in repeats]) or fitted

        steps = self._kept(name, make)
        if isinstance(steps, str):
            return steps
        n_known = steps.fewest_known(parts.last)
        n_rows = repeats[0].cut.n_rows
        if n_known is not None and any(  # a fold may be trained on all rows but these
            one.cut.count(np.ones(n_rows, bool))[0].min() <= n_rows - n_known for one in repeats
        ):
            return (
                f"a column that a SimpleImputer fills has values in {n_known} rows, so that a "
                "fold may train on none of them, and keep_empty_features is False"
            )
        return Front(steps, name, steps.layout_for(parts.pipeline), parts.why_python)

    def table(self, parts: Parts, repeats: Sequence[Repeat]) -> Table | str:
        """Return steps before sums over rows, or why they must be fitted by fold, a clause."""
        steps, kinds, has_one_form = parts.steps[0], parts.kinds, parts.has_one_form
        name = first_key((steps, dict(kinds)), encode, lasting_key)
        if name is None:
            return _NO_NAME
        X, y, _ = self._arguments
        cuts = [repeat.cut for repeat in repeats]
        forms = has_one_form, parts.family.maps_dense_rows
        name = digest(b"table", name, *map(encode, forms))
        return self._kept(name, partial(Table, steps, kinds, X, y, cuts, *forms, name))

    def _kept(self, name: bytes, make: Callable[[], T]) -> T | str:
        """Return fitted steps, made if they are not kept, or why there are none, a clause."""
        with self._fitting:
            if name not in self._fitted:
                try:
                    self._fitted[name] = make()
                except NotAheadError as error:
                    self._fitted[name] = str(error)
            self._fitted.move_to_end(name)
            if len(self._fitted) > _MOST_FITTED:
                self._fitted.popitem(last=False)
            return self._fitted[name]
