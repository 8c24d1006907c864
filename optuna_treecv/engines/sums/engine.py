"""The engine "exact": the folds of estimators whose models are computed from sums over their rows.

The sums of all folds take one reading of the rows, and one factorisation per fold serves all
values of the free parameters.
"""

from sklearn.cross_decomposition import PLSRegression
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.linear_model import ElasticNet
from sklearn.linear_model import Lasso
from sklearn.linear_model import LinearRegression
from sklearn.linear_model import Ridge
from sklearn.linear_model import RidgeClassifier

from optuna_treecv.engines.sums.family import LinearDiscriminantFolds
from optuna_treecv.engines.sums.family import QuadraticDiscriminantFolds
from optuna_treecv.engines.sums.pls import PLSFolds
from optuna_treecv.engines.sums.regression import LassoFolds
from optuna_treecv.engines.sums.regression import RidgeFolds
from optuna_treecv.plans.family import describe_ignored
from optuna_treecv.plans.family import Family
from optuna_treecv.plans.joint import form_of
from optuna_treecv.plans.joint import SumsPlan

#: The families of estimators. Subclasses have none, because they may override anything.
FAMILIES: dict[type, type[Family]] = {
    Ridge: RidgeFolds,
    RidgeClassifier: RidgeFolds,
    Lasso: LassoFolds,
    ElasticNet: LassoFolds,
    LinearRegression: LassoFolds,
    PLSRegression: PLSFolds,
    LinearDiscriminantAnalysis: LinearDiscriminantFolds,
    QuadraticDiscriminantAnalysis: QuadraticDiscriminantFolds,
}

# If leave-one-out is slow and has more folds than this, the cost sentence suggests this number.
_FEWER_FOLDS = 1000


class ExactPlan(SumsPlan):
    """Models that are computed from sums over rows."""

    name = "exact"
    reason = "its models are computed from sums over rows"
    families = FAMILIES
    reason_not_finite = "the model of a fold is not finite"
    reason_failed = "its models cannot be computed from sums over rows"
    reason_unsupported = "models of {} are not computed from sums over rows"
    relevance = 1

    one_epoch_reason = (
        "its models are computed from sums over rows, which more passes do not change"
    )

    def cost(self) -> str:
        """Return a sentence: one reading of the rows serves all folds."""
        parts, cross_validation = self.parts, self.request.cross_validation
        n_rows, folds = self.request.data.n_rows, cross_validation.folds_in_words
        reading = f"One reading of the {n_rows:,} rows serves all {folds}"
        is_slow = parts.names and parts.family.is_slow_left_out
        why_slow = "a search for its active columns" if is_slow else ""
        if parts.scaler is not None and parts.scaler.with_std:
            why_slow = "its own scales of the StandardScaler"
        if why_slow and cross_validation.n_folds == n_rows > _FEWER_FOLDS:
            return (
                f"{reading}. Each model needs {why_slow}, which takes most of the time; "
                f"cv={_FEWER_FOLDS} takes a fraction of this time."
            )
        if parts.names:
            reading += f", and further values of {' and '.join(parts.parameters)} are nearly free"
        _, is_sparse = form_of(self.request, parts)
        return f"{reading}.{describe_ignored(parts.family.ignored_by(parts.last, is_sparse))}"
