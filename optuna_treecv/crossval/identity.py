"""Names for what a cross-validation evaluates: its data, folds, scoring and configuration."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn import get_config

from optuna_treecv.crossval.routing import Passed
from optuna_treecv.rows.data import Data
from optuna_treecv.rows.data import take_rows
from optuna_treecv.rows.folds import Cut
from optuna_treecv.sharing.data_digest import data_digest
from optuna_treecv.sharing.keys import digest
from optuna_treecv.sharing.keys import encode
from optuna_treecv.sharing.keys import lasting_key
from optuna_treecv.sharing.keys import NoKey

# Only so many rows of X are read, so that large data cost next to nothing; y is read as a whole.
_MOST_ROWS = 100


def name_of_evaluation(
    data: Data, cuts: list[Cut], scoring: str, passed: bytes | None = None
) -> str:
    """Return 16 hexadecimal digits that other data, folds or scoring change.

    Objects other than numbers and strings in X or y have no bytes of their own and are left out.

    Parameters
    ----------
    data : Data
        The rows as given.
    cuts : list of Folds or Splits
        How the rows are cut for each repeat.
    scoring : str
        The name of the loss or scorer.
    passed : bytes or None
        The name of weights and arguments of ``fit``; None if there are none, or if they have none.
    """
    some = np.unique(np.linspace(0, data.n_rows - 1, _MOST_ROWS).astype(np.intp))
    rows = take_rows(data.X, some)
    if hasattr(rows, "tocsr"):
        arrays = [rows.data, rows.indices.astype(np.int64), rows.indptr.astype(np.int64)]
    else:
        arrays = [np.asarray(rows)]
    parts = [encode(tuple(data.X.shape)), *map(_bytes, arrays), _bytes(data.y), encode(scoring)]
    for cut in cuts:
        parts += [encode(cut.n_folds), *map(_bytes, cut.arrays())]
    if passed is not None:
        parts.append(passed)
    return digest(*parts).hex()[:16]


def name_of_passed(passed: Passed) -> bytes | None:
    """Return a name for weights and arguments of ``fit`` that later processes give them too.

    None if there is no such name.
    """
    weights = data_digest(passed.weights, passed.score_weights)
    assert weights is not None  # they are arrays of numbers
    parts = [weights, encode(passed.is_routed)]
    for name, value in sorted(passed.others.items()):
        own = data_digest(value)
        try:
            parts += [encode(name), lasting_key(value) if own is None else own]
        except NoKey:
            return None
    return digest(*parts)


def under_configuration(name: bytes) -> bytes:
    """Return a name of results, changed where scikit-learn's configuration changes them.

    The steps of a Pipeline may get data frames in place of arrays.
    """
    output = get_config()["transform_output"]
    return name if output == "default" else digest(name, encode(output))


def _bytes(values: Any) -> bytes:
    if values is not None and values.dtype.kind in "SU":
        values = np.ascontiguousarray(values).view(np.uint8)
    elif values is not None and values.dtype.kind not in "biuf":
        values = values.tolist()
    try:
        return encode(values)
    except (NoKey, UnicodeEncodeError):
        return b""
