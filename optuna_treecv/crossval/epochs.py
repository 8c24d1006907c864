"""How many epochs models are trained for: the settings say it, or the estimator itself."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from typing import TYPE_CHECKING

from optuna_treecv.crossval.settings import MOST_EPOCHS
from optuna_treecv.learners.compiled import CompiledEstimator
from optuna_treecv.learners.incremental import last_step
from optuna_treecv.learners.names import name_of
from optuna_treecv.learners.without_effect import trained_parts
from optuna_treecv.rows.checks import is_integer

if TYPE_CHECKING:
    from optuna_treecv.crossval.job import Job


def epochs_of(job: Job) -> int:
    """Return the number of epochs for which an estimator's models are trained.

    Raises
    ------
    ValueError
        If both the settings and the estimator ask for several epochs, or if the engine or the
        report cannot have several.
    """
    estimator, engine, searched = job.estimator, job.engine, job.searched
    asked, own = job.given_epochs or 1, _own_epochs(estimator, searched)
    is_searched = any(name.rpartition("__")[2] == "n_epochs" for name in searched)
    of_trials = "n_epochs" in searched and not hasattr(estimator, "n_epochs")
    if engine.why_one_epoch and (asked > 1 or of_trials):
        is_chosen = engine.name == "fit" and job.why
        chosen = f"; 'fit' was chosen since {job.why}" if is_chosen else ""
        got = "it is searched" if of_trials else f"got {asked}"
        raise ValueError(
            f"n_epochs must be None for {name_of(estimator)} with method={engine.name!r}, "
            f"since {engine.why_one_epoch}, but {got}{chosen}."
        )
    if not engine.trains_further:
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
    if n_epochs > 1 and engine.name == "progressive":
        raise ValueError(
            "n_epochs must be 1 with method='progressive', which tests each row before the model "
            f"has seen it, got {n_epochs}."
        )
    if n_epochs > 1 and job.task.settings.is_early:
        raise ValueError(
            "report must be 'folds', 'mean' or None with several epochs, since rows that are "
            f"replayed have been seen before, got report={job.task.settings.report!r} with "
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
