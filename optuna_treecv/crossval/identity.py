"""Names for what a cross-validation evaluates: its data, folds, scoring and configuration."""

from __future__ import annotations

from collections.abc import Sequence

from optuna_treecv.crossval.routing import Passed
from optuna_treecv.rows.folds import Cut
from optuna_treecv.scoring import Metric
from optuna_treecv.scoring import Pooled
from optuna_treecv.scoring import Scorer
from optuna_treecv.scoring import Scoring
from optuna_treecv.sharing.data_digest import data_digest
from optuna_treecv.sharing.keys import content_key
from optuna_treecv.sharing.keys import digest
from optuna_treecv.sharing.keys import encode
from optuna_treecv.sharing.keys import lasting_key
from optuna_treecv.sharing.keys import NoKey


def name_of_evaluation(
    data: bytes | None,
    cuts: list[Cut],
    scoring: Scoring,
    n_epochs: int,
    passed: Sequence[bytes | None],
) -> str:
    """Return 16 hexadecimal digits that other data, folds or scoring change.

    Parameters
    ----------
    data : bytes or None
        The digest of X and y; None if they have none.
    cuts : list of Folds or Splits
        How the rows are cut for each repeat.
    scoring : Scoring
    n_epochs : int
    passed : sequence of bytes or None
        The name of weights and arguments of ``fit``, if there are any; None if they have none.

    Raises
    ------
    NoKey
        If a part has no name; its argument is a clause that says which.
    """
    if data is None:
        raise NoKey("X or y holds objects whose content has no digest")
    if None in passed:
        raise NoKey("params holds an object whose content has no digest")
    parts = [data, encode(scoring.names), encode(scoring.optimized), encode(n_epochs)]
    parts += [*map(_name_of_metric, scoring.metrics), *filter(None, passed)]
    for cut in cuts:
        parts += [encode(cut.n_folds), *map(encode, cut.arrays())]
    return digest(*parts).hex()[:16]


def _name_of_metric(metric: Metric) -> bytes:
    if isinstance(metric, Pooled):
        return b"pooled " + _name_of_metric(metric.of)
    if not isinstance(metric, Scorer) or metric.is_registered:
        return f"{metric.direction} {metric.name}".encode()
    try:
        return content_key(metric.score)
    except NoKey as error:
        raise NoKey(f"the code or the state of the scorer {metric.name} has no digest") from error


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
