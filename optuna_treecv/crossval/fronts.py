"""The steps before compiled learners, fitted once for all trials."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from optuna_treecv.learners.steps.front import Front
from optuna_treecv.learners.steps.front import Split
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
    """The fitted steps before compiled learners, by their names.

    Parameters
    ----------
    X : the rows as given
    """

    def __init__(self, X: Any) -> None:
        self._X = X
        self._kept: OrderedDict[bytes, Front] = OrderedDict()

    def of(self, found: Split) -> tuple[Front, bytes] | str:
        """Return the fitted steps and their name, or why there are none, a clause."""
        try:
            name = _name_of(found)
        except NoKey:
            return _NO_NAME
        if name in self._kept:
            self._kept.move_to_end(name)
        else:
            self._kept[name] = Front(found, self._X)
            if len(self._kept) > _MOST:
                self._kept.popitem(last=False)
        front = self._kept[name]
        return front.why_not or (front, name)


def _name_of(found: Split) -> bytes:
    takes_sparse = found.last.row_layout.sparse
    try:
        steps = encode(found.before)
    except NoKey:
        steps = lasting_key(found.before)
    return digest(steps, found.prefix.encode(), encode(takes_sparse))
