"""How many epochs models are trained for: the evaluation says it, or the estimator itself."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from optuna_treecv.crossval.arguments import MOST_EPOCHS
from optuna_treecv.crossval.evaluation import Evaluation
from optuna_treecv.crossval.methods import Method
from optuna_treecv.learners.compiled import CompiledEstimator
from optuna_treecv.learners.from_estimator import name_of
from optuna_treecv.learners.incremental import last_step
from optuna_treecv.learners.without_effect import trained_parts
from optuna_treecv.rows.checks import is_integer

# Why several epochs make no sense where models are not trained further.
_WHY_ONE = {
    "fit": "since the estimator's own parameters, such as max_iter, say how many passes fit makes",
    "exact": "since its models follow from sums over rows, which more passes do not change",
    "forest": "since its trees are grown from all rows at once",
}


def epochs_of(
    evaluation: Evaluation,
    estimator: Any,
    method: Method,
    searched: Collection[str] = (),
    n_epochs: int | None = None,
) -> int:
    """Return the number of epochs for which an estimator's models are trained.

    Parameters
    ----------
    evaluation : Evaluation
    estimator : estimator
    method : Method
        The one that evaluates it.
    searched : collection of str
        Parameters that a search sets. Their values are not known yet.
    n_epochs : int or None
        The epochs of a trial; None: those of the evaluation.

    Raises
    ------
    ValueError
        If both the evaluation and the estimator ask for several epochs, or if the method or the
        report cannot have several.
    """
    given = evaluation.n_epochs if n_epochs is None else n_epochs
    asked, own = given or 1, _own_epochs(estimator, searched)
    is_searched = any(name.rpartition("__")[2] == "n_epochs" for name in searched)
    of_trials = "n_epochs" in searched and not hasattr(estimator, "n_epochs")
    if method.name in _WHY_ONE and (asked > 1 or of_trials):
        is_chosen = method.name == "fit" and method.why
        chosen = f"; 'fit' was chosen since {method.why}" if is_chosen else ""
        got = "it is searched" if of_trials else f"got {asked}"
        raise ValueError(
            f"n_epochs must be None for {name_of(estimator)} with method={method.name!r}, "
            f"{_WHY_ONE[method.name]}, but {got}{chosen}."
        )
    if not method.is_one_pass:
        return 1
    if asked > 1 and own > 1:
        raise ValueError(
            f"n_epochs must be given once, got n_epochs={asked} and {name_of(estimator)} with "
            f"n_epochs={own}."
        )
    if asked > 1 and is_searched:
        raise ValueError(f"n_epochs must be None where it is searched, got n_epochs={asked}.")
    n_epochs = max(asked, own)
    last = last_step(estimator)
    if n_epochs > 1 and isinstance(last, CompiledEstimator) and not last.has_epochs:
        raise ValueError(
            f"n_epochs must be 1 for {name_of(estimator)}, whose model is exact after one pass, "
            f"got {n_epochs}."
        )
    if n_epochs > 1 and method.name == "progressive":
        raise ValueError(
            "n_epochs must be 1 with method='progressive', which tests each row before the model "
            f"has seen it, got {n_epochs}."
        )
    if n_epochs > 1 and evaluation.is_early:
        raise ValueError(
            "report must be 'folds', 'mean' or None with several epochs, since rows that are "
            f"replayed have been seen before, got report={evaluation.report!r} with "
            f"n_epochs={n_epochs}."
        )
    return n_epochs


def _own_epochs(estimator: Any, searched: Collection[str]) -> int:
    """Return the ``n_epochs`` of an estimator of this package, also inside of another one."""
    most = 1
    for prefix, part in trained_parts(estimator, "", searched):
        is_open = f"{prefix}n_epochs" in searched
        if not isinstance(part, CompiledEstimator) or not part.has_epochs or is_open:
            continue
        if not is_integer(part.n_epochs) or not 1 <= part.n_epochs <= MOST_EPOCHS:
            raise ValueError(
                f"{prefix}n_epochs must be an integer of 1 to {MOST_EPOCHS}, got "
                f"{part.n_epochs!r}."
            )
        most = max(most, int(part.n_epochs))
    return most
