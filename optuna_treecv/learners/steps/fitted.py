"""Steps before a learner, fitted on all rows, with placeholders for those that run."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Iterable
from contextlib import contextmanager
from contextlib import nullcontext
from copy import copy
import re
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv.learners.steps.messages import naming_steps
from optuna_treecv.learners.steps.running import fewest_known
from optuna_treecv.learners.steps.running import PASSED
from optuna_treecv.learners.steps.running import Placeholder
from optuna_treecv.learners.steps.running import unshared
from optuna_treecv.learners.steps.running import with_running
from optuna_treecv.learners.steps.split import ignores_zero_columns
from optuna_treecv.learners.steps.split import Split
from optuna_treecv.learners.steps.stacked import why_form_varies
from optuna_treecv.rows.data import take_rows
from optuna_treecv.rows.entries import naming_entries
from optuna_treecv.rows.folds import Cut

#: Why the columns of a placeholder are not known.
UNNAMED = "a part of a FeatureUnion does not name its columns"

# In errors about entries.
_COLUMN = re.compile(r"in column (\d+)")


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
        self._X = X
        # A scaler that comes first takes numbers alone, so a wrong entry can be named.
        self._takes_numbers = type(_first_step(found.pipeline)) is StandardScaler
        with self.naming():
            self._fitted = clone(found.before).fit(unshared(found.before, X), y)
            self._first_row = self._transform(take_rows(X, slice(0, 1)))

    def _transform(self, X: Any) -> Any:
        """Return rows after the steps that are done once."""
        return self._fitted.transform(unshared(self._fitted, X))

    @contextmanager
    def naming(self) -> Generator[None]:
        """Name the column, as given or else after the steps, that an error is about."""
        entries = naming_entries(self._X) if self._takes_numbers else nullcontext()
        with naming_steps(self._given, self._X), entries:
            try:
                yield
            except ValueError as error:
                message = _COLUMN.sub(self._renamed, str(error))
                if message == str(error) or self._takes_numbers:
                    raise
                raise ValueError(message) from error

    def _renamed(self, found: re.Match[str]) -> str:
        try:
            names = self._fitted.get_feature_names_out()
        except AttributeError:  # not every transformer names its columns
            return f"{found[0]} after the steps of the Pipeline"
        return f"in column {str(names[int(found[1])])!r}"

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


def _first_step(estimator: Any) -> Any:
    while type(estimator) is Pipeline:
        estimator = next(step for _, step in estimator.steps if step not in PASSED)
    return estimator
