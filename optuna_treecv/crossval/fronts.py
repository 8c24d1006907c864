"""The steps before learners, fitted once for all trials."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
from sklearn import get_config

from optuna_treecv.learners.steps.front import Front
from optuna_treecv.learners.steps.in_python import PythonFront
from optuna_treecv.learners.steps.split import Split
from optuna_treecv.sharing.keys import digest
from optuna_treecv.sharing.keys import encode
from optuna_treecv.sharing.keys import lasting_key
from optuna_treecv.sharing.keys import NoKey

# The most fitted steps that are kept: those asked for last.
_MOST = 16

_NO_NAME = (
    "its steps hold an object, such as a lambda, by which trials could not tell them from others"
)


class Fronts:
    """The fitted steps before learners, by their names.

    Parameters
    ----------
    X : the rows as given
    y : ndarray or None
        The targets as given.
    """

    def __init__(self, X: Any, y: np.ndarray | None) -> None:
        self._X = X
        self._y = y
        self._kept: OrderedDict[bytes, Front | PythonFront] = OrderedDict()

    def of(self, found: Split) -> tuple[Front | PythonFront, bytes] | str:
        """Return the fitted steps and their name, or why there are none, a clause."""
        try:
            name = _name_of(found)
        except NoKey:
            return _NO_NAME
        if name in self._kept:
            self._kept.move_to_end(name)
        else:
            kind = Front if found.is_compiled else PythonFront
            self._kept[name] = kind(found, self._X, self._y)
            if len(self._kept) > _MOST:
                self._kept.popitem(last=False)
        front = self._kept[name]
        return front.why_not or (front, name)


def _name_of(found: Split) -> bytes:
    # Kernels do not see whether steps return data frames, but other learners do.
    form = found.last.row_layout.sparse if found.is_compiled else get_config()["transform_output"]
    try:
        steps = encode(found.before)
    except NoKey:
        steps = lasting_key(found.before)
    return digest(steps, found.prefix.encode(), encode(form))
