"""Steps before a learner, fitted on all rows, with placeholders for those that run."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from contextlib import AbstractContextManager
from copy import copy
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.pipeline import Pipeline

from optuna_treecv.learners.steps.errors import naming_step
from optuna_treecv.learners.steps.running import fewest_known
from optuna_treecv.learners.steps.running import Placeholder
from optuna_treecv.learners.steps.running import unshared
from optuna_treecv.learners.steps.running import with_running
from optuna_treecv.learners.steps.split import ignores_zero_columns
from optuna_treecv.learners.steps.split import Split
from optuna_treecv.learners.steps.stacked import why_form_varies
from optuna_treecv.rows.data import take_rows
from optuna_treecv.rows.folds import Cut

#: Why the columns of a placeholder are not known.
UNNAMED = "a part of a FeatureUnion does not name its columns"


class FittedSteps:
    """Steps before a learner, fitted on all rows, with placeholders for those that run.

    Parameters
    ----------
    found : Split
    X : the rows as given
    y : ndarray or None
        The targets as given.

    Attributes
    ----------
    why_not : str
        Why the learner cannot stand behind these steps, a clause; empty if it can.
    """

    def __init__(self, found: Split, X: Any, y: np.ndarray | None) -> None:
        self.why_not = ""
        # Copies, since the caller may change these steps, or fit them to other rows.
        self._given = clone(found.pipeline)
        self._X, self._y = X, y
        with self.naming():
            self._fitted = clone(found.before).fit(unshared(found.before, X), y)
            self._first_row = self._transform(take_rows(X, slice(0, 1)))

    def _transform(self, X: Any) -> Any:
        """Return rows after the steps that are done once."""
        return self._fitted.transform(unshared(self._fitted, X))

    def naming(self) -> AbstractContextManager[None]:
        """Name the step, or the column after the steps, that an error is about."""
        return naming_step(self._given, self._X, self._y)

    def fewest_known(self, learner: Any) -> int | None:
        """Return in how few rows a column that is filled has values; None: it does not matter."""
        return fewest_known(self._fitted, ignores_zero_columns(learner))

    def why_form_varies(self, cuts: Iterable[Cut]) -> str:
        """Return why some folds would get sparse rows and others not, a clause; "" if not."""
        return why_form_varies(self._fitted, self._X, cuts)

    def as_given(self, order: np.ndarray) -> Any:
        """Return rows as they were given."""
        return take_rows(self._X, order)

    def _with(self, last: Any, put_back: Callable[[Placeholder, slice], Any]) -> Pipeline:
        """Return a fitted Pipeline of these steps and a fitted learner.

        ``put_back`` is as in ``with_running``.
        """
        given = copy(self._given)
        given.steps = given.steps[:-1]
        columns = slice(0, self._first_row.shape[1])
        steps = with_running(given, self._fitted, columns, put_back)
        whole = copy(self._given)
        whole.steps = [*steps.steps, (self._given.steps[-1][0], last)]
        return whole
