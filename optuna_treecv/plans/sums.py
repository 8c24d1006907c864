"""Plans for models behind preprocessing that follows from sums or is done once."""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from scipy import sparse
from sklearn.base import clone
from sklearn.base import is_classifier

from optuna_treecv.caching.keys import first_key
from optuna_treecv.caching.keys import lasting_key
from optuna_treecv.core.engine import Candidate
from optuna_treecv.core.engine import Capabilities
from optuna_treecv.core.engine import Declined
from optuna_treecv.core.engine import TestedFolds
from optuna_treecv.core.repeat import Repeat
from optuna_treecv.core.request import Request
from optuna_treecv.estimators.traits import last_step
from optuna_treecv.numerics.family import Facts
from optuna_treecv.numerics.family import Family
from optuna_treecv.numerics.moments import Chunks
from optuna_treecv.numerics.moments import TestedChunks
from optuna_treecv.plans.joint import chunks_of
from optuna_treecv.plans.joint import JointPlan
from optuna_treecv.plans.joint import KeptSums
from optuna_treecv.plans.joint import why_not_scored
from optuna_treecv.plans.remote_sums import CALLS_IN_FLIGHT
from optuna_treecv.plans.remote_sums import predictions_of_blocks
from optuna_treecv.plans.remote_sums import scores_of_blocks
from optuna_treecv.plans.remote_sums import why_not_of_blocks
from optuna_treecv.preprocessing.divided import Parts
from optuna_treecv.preprocessing.divided import parts_of
from optuna_treecv.preprocessing.kinds import FROM_SUMS
from optuna_treecv.preprocessing.parts import foreign_code
from optuna_treecv.preprocessing.parts import unshared
from optuna_treecv.preprocessing.placeholders import NotAheadError
from optuna_treecv.preprocessing.tables import Table
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import RowLayout
from optuna_treecv.rows.data import take_rows


class SumsPlan(JointPlan):
    """A plan for models behind preprocessing that follows from sums or is done once.

    Attributes
    ----------
    families : dict of type to type
        The family of each estimator.
    takes, foreign : str
        What the engine is for, and why it is not for others.
    relevance : int
        See ``Declined``, for an estimator of no family.
    """

    families: Mapping[type, type[Family]]
    takes: str
    foreign: str
    relevance = 0
    why_one_epoch: str

    def __init__(self, request: Request, parts: Parts) -> None:
        super().__init__(request, parts)
        self.capabilities = Capabilities(
            free_parameters=parts.parameters,
            shared_parameters=parts.parameters,
            is_seeded=False,
            why_one_epoch=self.why_one_epoch,
            falls_back=not request.data.is_remote,
            at_once=True,
            leaves_out_pairs=True,
            preprocessing=FROM_SUMS,
        )

    @classmethod
    def why_not(cls, request: Request, parts: Parts) -> str:
        """Return why an estimator of a family is not evaluated, a clause."""
        return ""

    def check(self, candidate: Candidate) -> None:
        """Refuse wrong parameters, as the estimator's own ``fit`` would."""
        if self.parts.scaler is not None:
            self.parts.scaler._validate_params()
        if not any(name in self.request.searched for name in self.parts.parameters):
            last_step(candidate)._validate_params()

    def rows(self, repeat: Repeat) -> PreparedRows:
        """Return the rows of a repeat after the transformers that are fitted once."""
        parts, cross_validation = self.parts, self.request.cross_validation
        target = "class" if is_classifier(parts.last) else "number"
        layout = RowLayout(padded=True, sparse=True, target=target)
        table = table_of(self.request, parts)
        if not isinstance(table, Table):
            if not parts.steps:
                return cross_validation.rows_in(layout, repeat)
            name = first_key(parts.steps, lasting_key)
            return cross_validation.rows_in(layout, repeat, partial(_after, parts.steps), name)
        rows, maps = cross_validation.rows_in(layout, repeat, table.transform, table.name), None
        if table.has_maps:
            make = partial(table.maps, rows, chunks_of(repeat.cut))
            maps = self.once(("maps", repeat.number), make)
        return replace(rows, n_features=table.n_features, maps=maps)

    def bind(
        self, repeat: Repeat, rows: PreparedRows, candidates: Sequence[Candidate], method: str = ""
    ) -> Family:
        """Return candidates bound to rows."""
        n_threads = self.request.settings.n_threads
        if self.request.data.is_remote:  # they wait for sums
            n_threads = CALLS_IN_FLIGHT * (len(rows.X.bounds) - 1)
        lasts = [last_step(one) for one in candidates]
        return self.parts.family(lasts, rows, self.parts.scaler, n_threads)

    def tested(
        self, family: Family, repeat: Repeat, rows: PreparedRows, chunks: Chunks, sums: KeptSums
    ) -> Iterator[tuple[int, TestedFolds]]:
        """Yield tested folds; those of remote rows as scores unless predictions are needed."""
        if self.request.data.is_remote and not self.request.needs_predictions:
            return scores_of_blocks(self.request, family, rows, chunks, sums)
        return super().tested(family, repeat, rows, chunks, sums)

    def predictions(
        self, family: Family, chunks: Chunks, sums: KeptSums
    ) -> Iterable[TestedChunks]:
        """Yield the outputs for the test rows; those of remote rows come back from the blocks."""
        if self.request.data.is_remote:
            return predictions_of_blocks(family, chunks, sums)
        return super().predictions(family, chunks, sums)


def plan_of_sums(kind: type[SumsPlan], request: Request) -> SumsPlan | Declined:
    """Return a plan of a kind, or why there is none."""
    parts = parts_of(request.estimator, kind.families, kind.foreign)
    is_family = type(last_step(request.estimator)) in kind.families
    why_not = _why_not(kind, request, parts)
    if not why_not and isinstance(parts, Parts):
        why_not = kind.why_not(request, parts)
    if why_not or isinstance(parts, str):
        kinds = ", ".join(one.__name__ for one in kind.families)
        advice = (
            f"method={kind.name!r} must have {kind.takes} ({kinds}), alone or after steps that "
            f"are alike in each fold or learn numbers of columns, but {why_not}; method='auto' "
            "would be right."
        )
        free = request.estimator.get_params() if isinstance(parts, str) else parts.parameters
        return Declined(why_not, advice, free, 2 if is_family else kind.relevance)
    plan = kind(request, parts)
    plan.check(request.estimator)
    return plan


def _why_not(kind: type[SumsPlan], request: Request, parts: Parts | str) -> str:
    """Return why an estimator has no exact folds, a clause."""
    cross_validation, estimator = request.cross_validation, request.estimator
    last, is_remote = last_step(estimator), request.data.is_remote
    if is_remote and (why := why_not_of_blocks(request, parts)):
        return why
    is_asked = request.settings.method == kind.name
    family = kind.families.get(type(last))
    if family is None:
        return str(parts)
    if cross_validation.repeats[0].plan.random and not is_asked:
        return "order='random' has no meaning for sums over rows"
    if why := request.metadata.why_not_by_sums(estimator) or why_not_scored(request):
        return why
    is_asked |= is_remote  # where no other engine takes less time
    is_class = is_classifier(estimator)
    parameters = () if isinstance(parts, str) else parts.parameters
    n_trained, n_of_class = cross_validation.fewest_trained(is_class)
    facts = Facts(
        has_weights=request.metadata.weights is not None,
        n_trained=n_trained,
        n_of_class=n_of_class,
        n_folds=cross_validation.n_folds,
        is_asked=is_asked,
        n_outputs=len(request.data.classes()) if is_class else cross_validation.n_targets,
        is_searched=any(name in cross_validation.search.ends for name in parameters),
    )
    # A step is not the reason if there is one without it. All rows pass those of a table.
    if isinstance(parts, str) or parts.kinds:
        if why := family.why_not(last, facts):
            return why
    if isinstance(parts, str):
        return parts
    try:
        n_features, is_sparse = form_of(request, parts)
    except NotAheadError as error:
        return str(error)
    idle = parts.family.idle_of(parts.last, is_sparse)
    if searched := [name for name in idle if parts.prefix + name in cross_validation.search.ends]:
        return f"{searched[0]} is searched, which does not act on models that have converged"
    if is_sparse and parts.scaler is not None and parts.scaler.with_mean:
        return "a StandardScaler cannot subtract a mean from sparse rows"
    facts = replace(facts, is_sparse=is_sparse, has_scaler=parts.scaler is not None)
    return parts.family.why_not(parts.last, replace(facts, n_features=n_features))


def form_of(request: Request, parts: Parts) -> tuple[int, bool]:
    """Return how many columns rows have after the transformers, and whether they are sparse."""
    table = table_of(request, parts)
    if isinstance(table, str):
        raise NotAheadError(table)
    if table is not None:
        return table.n_features, table.is_sparse
    try:  # what is true of the first row is true of all
        first = _after(parts.steps, take_rows(request.data.X, slice(0, 1)))
    except ValueError as error:  # the fits will raise it again
        raise NotAheadError("the steps cannot transform the first row") from error
    return int(first.shape[1]), sparse.issparse(first)


def table_of(request: Request, parts: Parts) -> Table | str | None:
    """Return the steps of a table, or why they must be fitted by fold; None if there is none."""
    if not parts.kinds:
        return None
    return request.cross_validation.steps.table(parts, request.cross_validation.repeats)


def _after(steps: Sequence[Any], X: Any) -> Any:
    """Return rows after row-wise steps."""
    with foreign_code():
        for step in steps:
            X = unshared(step, X)
            X = clone(step).fit(X).transform(X)
    return X
