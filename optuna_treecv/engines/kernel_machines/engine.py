"""The engine "kernel": kernel machines from one Gram matrix per kernel, or per kernel and fold."""

from collections.abc import Mapping
from collections.abc import Sequence
from math import isqrt

from sklearn.base import is_classifier
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.kernel_ridge import KernelRidge
from sklearn.svm import SVC
from sklearn.svm import SVR

from optuna_treecv.core.engine import Capabilities
from optuna_treecv.core.engine import Declined
from optuna_treecv.core.engine import Plan
from optuna_treecv.core.repeat import Repeat
from optuna_treecv.core.request import Candidate
from optuna_treecv.core.request import Request
from optuna_treecv.engines.kernel_machines.folds import KernelFolds
from optuna_treecv.engines.kernel_machines.regression import GaussianProcessFolds
from optuna_treecv.engines.kernel_machines.regression import KernelRidgeFolds
from optuna_treecv.engines.kernel_machines.svm import SVMFolds
from optuna_treecv.plans.family import Facts
from optuna_treecv.plans.family import Parts
from optuna_treecv.plans.joint import why_not_scored
from optuna_treecv.plans.per_fold import PerFoldPlan
from optuna_treecv.plans.per_fold import plan_per_fold
from optuna_treecv.rows.checks import count_targets
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.scoring.metrics import response_of

#: The family of each estimator. Subclasses have none, because they may override any method.
FAMILIES: Mapping[type, type[KernelFolds]] = {
    SVC: SVMFolds,
    SVR: SVMFolds,
    KernelRidge: KernelRidgeFolds,
    GaussianProcessRegressor: GaussianProcessFolds,
}

# The limit of the memory for matrices in bytes, unless max_memory is given.
_MAX_BYTES = 2**32

# The bytes that matrices take in each thread for n rows, divided by n^2: the Gram matrix and up to
# three matrices of the solver.
_BYTES_PER_ENTRY = 32


def plan_kernel_machine(request: Request) -> Plan | Declined:
    """Return a plan for a kernel machine, or the reason why it is declined."""
    unsupported = "{} is not a supported kernel machine"
    return plan_per_fold(request, KernelPlan, FAMILIES, unsupported, _find_reason_declined)


def _find_reason_declined(request: Request, parts: Parts) -> str:
    """Return the reason why folds are not evaluated from Gram matrices; "" if they are."""
    data, last = request.data, parts.last
    if data.y is None or data.y.dtype.kind not in "biufUSO":
        return "y is missing or has an unsupported dtype"
    if not is_classifier(last) and data.y.dtype.kind not in "biuf":
        return "y is not numeric"
    if why := request.metadata.reason_not_from_sums(request.estimator) or why_not_scored(request):
        return why
    if "predict_proba" in [response_of(metric, last) for metric in request.scoring.metrics]:
        return f"{type(last).__name__} does not predict probabilities"
    if is_classifier(last) and data.y.ndim > 1:
        return "y has several columns"
    n_trained, n_of_class = request.cross_validation.smallest_training_set(is_classifier(last))
    facts = Facts(
        n_trained=n_trained,
        n_of_class=n_of_class,
        has_weights=request.metadata.weights is not None,
        n_outputs=count_targets(data.y),
    )
    if why := parts.family.why_not(last, facts):
        return why
    if last.kernel == "precomputed" and parts.steps:
        return "X holds kernel values, which transformers would change"
    is_multiclass = is_classifier(last) and len(data.classes()) > 2
    if is_multiclass and getattr(last, "decision_function_shape", "ovr") != "ovr":
        return "its decision function has a column per pair of classes"
    limit = request.settings.room.max_bytes or _MAX_BYTES
    n_rows = isqrt(limit // (_BYTES_PER_ENTRY * request.settings.n_threads))
    if data.n_rows > n_rows:
        return f"Gram matrices of at most {n_rows:,} rows fit in {limit / 1e9:.3g} GB of memory"
    return ""


class KernelPlan(PerFoldPlan):
    """The plan of kernel machines on Gram matrices."""

    name = "kernel"
    reason = "candidates share Gram matrices"
    reason_not_finite = "the solver does not converge in a fold"
    reason_failed = "its folds cannot be computed from Gram matrices"

    def __init__(self, request: Request, parts: Parts) -> None:
        super().__init__(request, parts)
        self.capabilities = Capabilities(
            free_parameters=parts.parameters,
            shared_parameters=parts.parameters,
            one_epoch_reason="its models are solved to convergence",
            in_memory_reason="a Gram matrix has an entry for each pair of rows",
            falls_back=True,
            evaluates_jointly=True,
            keeps_outputs=True,
        )

    def bind(
        self, repeat: Repeat, rows: PreparedRows, candidates: Sequence[Candidate], method: str = ""
    ) -> KernelFolds:
        """Return candidates bound to the rows of a repeat."""
        family = FAMILIES[type(self.parts.last)]
        return family(self.request, self.parts, repeat, rows, candidates, method)

    def cost(self) -> str:
        """Return the sentences about the cost, for ``explain()``."""
        names = " and ".join(self.parts.parameters)
        return (
            f"For {self.request.cross_validation.folds_in_words}, a Gram matrix is computed per "
            "kernel, and per fold if the preprocessing or the kernel depends on the training "
            f"rows. Values of {names} share it."
        )
