"""The final fit of an estimator on all rows."""

from contextlib import nullcontext
from typing import Any

from sklearn import config_context
from sklearn.base import clone

from optuna_treecv.core.routing import Metadata
from optuna_treecv.core.routing import part_of
from optuna_treecv.core.settings import Settings
from optuna_treecv.core.settings import warn_caller
from optuna_treecv.estimators.names import name_of
from optuna_treecv.estimators.seeds import seeded
from optuna_treecv.estimators.seeds import unset_seeds
from optuna_treecv.preprocessing.parts import unshared
from optuna_treecv.rows.data import Data


def fit_on_all_rows(estimator: Any, data: Data, metadata: Metadata, settings: Settings) -> Any:
    """Return a clone of an estimator, fitted on all rows as they were given.

    The seeds that it lacks are those of the cross-validation while it is fitted. Warn before
    ``fit`` reads more rows into memory than ``max_memory`` allows.
    """
    if data.is_large:
        warn_caller(
            f"max_memory does not limit the final fit: fit of {name_of(estimator)} takes all "
            f"rows at once, {data.n_bytes / 1e6:,.0f} MB, and mostly copies them."
        )
    fitted = seeded(clone(estimator), settings.seed)
    X, y = unshared(estimator, data.X_given), data.y_given
    params = part_of(metadata.to_fit(estimator), X, None)
    routing = config_context(enable_metadata_routing=metadata.is_routed)
    with routing if params else nullcontext():
        fitted.fit(X, *(() if y is None else (y,)), **params)
    if unset := unset_seeds(estimator):
        parameters = estimator.get_params(deep=True)
        fitted.set_params(**{name: parameters[name] for name in unset})
    return fitted
