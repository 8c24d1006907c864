"""Metadata of estimators and scorers: weights of the rows, and further arguments of ``fit``.

``params`` is routed as in scikit-learn's ``cross_validate``. All of it is passed to ``fit``, or,
with ``enable_metadata_routing=True``, to the methods that request it.
"""

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from dataclasses import field
import inspect

import numpy as np
from numpy.typing import ArrayLike
from sklearn import config_context
from sklearn import get_config
from sklearn.pipeline import Pipeline
from sklearn.utils.metadata_routing import MetadataRouter
from sklearn.utils.metadata_routing import MethodMapping
from sklearn.utils.metadata_routing import process_routing
from sklearn.utils.validation import _check_method_params

from optuna_treecv.caching.keys import data_digest
from optuna_treecv.caching.keys import digest
from optuna_treecv.caching.keys import encode
from optuna_treecv.caching.keys import lasting_key
from optuna_treecv.caching.keys import NoKey
from optuna_treecv.core.settings import warn_caller
from optuna_treecv.estimators.base import last_step
from optuna_treecv.estimators.base import name_of
from optuna_treecv.estimators.incremental import takes_weights
from optuna_treecv.rows.checks import check_weights
from optuna_treecv.rows.folds import Cut
from optuna_treecv.types import Array
from optuna_treecv.types import Estimator
from optuna_treecv.types import Features
from optuna_treecv.types import Opaque

_WEIGHTS = "sample_weight"


@dataclass(frozen=True)
class Metadata:
    """The metadata of an estimator and its scorers.

    Attributes
    ----------
    weights, score_weights : ndarray of shape (n_rows,), float64, or None
        The weights of the rows as given, in training and in scores; None: all weights are 1.
    others : dict
        Further arguments of ``fit``.
    is_routed : bool
        Whether scikit-learn's metadata routing is enabled.
    """

    weights: Array | None = None
    score_weights: Array | None = None
    others: Mapping[str, object] = field(default_factory=dict)
    is_routed: bool = False

    @property
    def score_weights_name(self) -> str:
        """The name of the argument that sets the weights in scores."""
        return _WEIGHTS if self.score_weights is self.weights else "score_weight"

    def is_empty(self) -> bool:
        """Return whether there are neither weights nor further arguments of ``fit``."""
        return self.weights is None and self.score_weights is None and not self.others

    def equals(self, other: "Metadata") -> bool:
        """Return whether both contain the same objects, compared by identity."""
        return (
            self.weights is other.weights
            and self.score_weights is other.score_weights
            and _identities(self.others) == _identities(other.others)
        )

    def key(self) -> bytes | None:
        """Return a key of the weights and arguments that is valid in other processes, or None."""
        weights = data_digest(self.weights, self.score_weights)
        assert weights is not None  # they are arrays of numbers
        parts = [weights, encode(self.is_routed)]
        for name, value in sorted(self.others.items()):
            content = data_digest(value)
            try:
                parts += [encode(name), lasting_key(value) if content is None else content]
            except NoKey:
                return None
        return digest(*parts)

    def to_fit(self, estimator: Estimator) -> dict[str, object]:
        """Return the arguments besides X and y for fitting an estimator on all rows."""
        if self.weights is None:
            return dict(self.others)
        return {**self.others, _weights_name(estimator, self.is_routed): self.weights}

    def reason_not_incremental(self, estimator: Estimator) -> str:
        """Return the reason why an estimator cannot be trained incrementally; else ""."""
        if self.others:
            others = ", ".join(map(repr, self.others))
            return f"partial_fit does not receive the arguments in params ({others})"
        if self.weights is None:
            return ""
        if not takes_weights(estimator):
            return f"partial_fit of {name_of(last_step(estimator))} takes no sample_weight"
        if self.is_routed and not _reach_only_last_step(estimator, self.weights):
            return "the tree passes weights only to the last step of a Pipeline"
        return ""

    def reason_not_from_sums(self, estimator: Estimator) -> str:
        """Return the reason why sums over weighted rows do not give the models; else ""."""
        if self.others:
            return f"params contains arguments of fit ({', '.join(map(repr, self.others))})"
        if self.weights is None or not self.is_routed:
            return ""
        if not _reach_only_last_step(estimator, self.weights):
            return "weights are routed to steps other than the last one"
        return ""

    def check_fit(self, estimator: Estimator, searched: Collection[str] = ()) -> None:
        """Raise an error for arguments that the ``fit`` of an estimator does not accept.

        Parameters
        ----------
        estimator : estimator
        searched : collection of str
            The names of the parameters that a search sets. If it sets a step of a Pipeline, the
            arguments of this step are not checked.
        """
        arguments = self.to_fit(estimator)
        if self.is_routed and isinstance(estimator, Pipeline):
            _route(_WEIGHTS if self.weights is not None else "params", estimator, arguments)
            return
        for name in arguments:
            owner = _find_owner(estimator, name, searched)
            if owner is not None and not _accepts_argument(owner, name.rpartition("__")[2]):
                if name not in self.others:
                    raise ValueError(
                        f"sample_weight must be None for {name_of(estimator)}, because fit of "
                        f"{name_of(owner)} takes no sample_weight."
                    )
                raise ValueError(
                    f"params must contain only arguments of the fit of {name_of(estimator)}, got "
                    f"{name!r}{_weights_advice(estimator)}."
                )

    def check_fold_weights(self, cut: Cut, of_folds: bool) -> None:
        """Raise an error if all training rows or all test rows of a fold have the weight 0.

        Parameters
        ----------
        cut : Folds or Splits
            The folds or splits.
        of_folds : bool
            Whether any score is computed per fold, so that test rows need a positive weight.
        """
        if self.weights is not None:
            fold = find_empty_fold(cut, cut.count(self.weights > 0)[0])
            if fold is not None:
                raise ValueError(
                    "sample_weight must be above 0 for at least one training row of each fold, "
                    f"but is 0 for all training rows of fold {fold}; use fewer folds instead."
                )
        if of_folds and self.score_weights is not None:
            fold = find_empty_fold(cut, cut.count(self.score_weights > 0)[1])
            if fold is not None:
                raise ValueError(
                    f"{self.score_weights_name} must be above 0 for at least one test row of each "
                    f"fold, but is 0 for all test rows of fold {fold}, whose score would be 0/0; "
                    "use fewer folds or pooled scores instead."
                )

    def warn_if_weights_unused(self, cut: Cut) -> None:
        """Warn if weights have no effect on scores because each fold tests a single row."""
        weights = self.score_weights
        if weights is None or np.all(weights == weights[0]) or cut.n_tested > cut.n_folds:
            return
        warn_caller(
            f"{self.score_weights_name} has no effect on scores if each fold tests one row, "
            "because the weighted mean of one loss is that loss; use, for example, "
            "scoring=pooled('error') to weight all rows in one score."
        )


def find_empty_fold(cut: Cut, counts: Array) -> int | None:
    """Return the index of a fold whose count is 0; None if there is none."""
    return None if np.all(counts) else cut.number(int(np.argmin(counts)))


class MetadataArguments:
    """The arguments ``sample_weight``, ``score_weight`` and ``params`` as given.

    Parameters
    ----------
    sample_weight : array-like of shape (n_rows,) or None
    score_weight : "same", array-like of shape (n_rows,) or None
    params : dict or None
    n_rows : int
    """

    def __init__(
        self, sample_weight: object, score_weight: object, params: Opaque, n_rows: int
    ) -> None:
        if params is not None and not isinstance(params, Mapping):
            raise ValueError(f"params must be None or a dict of arguments of fit, got {params!r}.")
        if params is not None and not all(isinstance(name, str) for name in params):
            raise ValueError(f"params must have names of arguments as keys, got {list(params)}.")
        if isinstance(score_weight, str) and score_weight != "same":
            raise ValueError(
                f"score_weight must be 'same', None or one weight per row, got {score_weight!r}."
            )
        self._n_rows = n_rows
        self._params = {} if params is None else dict(params)
        self._is_routed = bool(get_config()["enable_metadata_routing"])
        self._checked: dict[str, Array] = {}
        self._weights = self._score_weights = None
        if sample_weight is not None:
            self._weights = check_weights(_WEIGHTS, sample_weight, n_rows)
        self._weighs_scores = score_weight is not None
        if isinstance(score_weight, str):
            self._score_weights = self._weights
        elif score_weight is not None:
            self._score_weights = check_weights("score_weight", score_weight, n_rows)

    def metadata_for(self, estimator: Estimator, scorers: Sequence[object]) -> Metadata:
        """Return the metadata of an estimator and its scorers.

        Parameters
        ----------
        estimator : estimator
        scorers : sequence of callable or None
            The scorers. None stands for a loss, whose metadata are those that the estimator's
            ``score`` requests. Scorers get no metadata if ``score_weight`` is None.
        """
        weights, score_weights = self._weights, self._score_weights
        to_fit = self._params
        if weights is None and score_weights is None and not to_fit:
            return Metadata()
        if self._is_routed and self._params:
            to_fit, to_scores = self._route_params(estimator, scorers)
            if to_scores:
                if score_weights is not None:
                    is_same = score_weights is weights
                    raise _error_of_two_weights("params", _WEIGHTS if is_same else "score_weight")
                (name, value), *more = to_scores.items()
                if name != _WEIGHTS or more:
                    raise ValueError(
                        "scorers must request only sample_weight from params, got requests for "
                        f"{', '.join(map(repr, to_scores))}."
                    )
                score_weights = self._check(name, value)
        weights_name = _weights_name(estimator, self._is_routed)
        if to_fit.get(weights_name) is not None:
            if weights is not None:
                raise _error_of_two_weights(f"params[{weights_name!r}]", _WEIGHTS)
            weights = self._check(weights_name, to_fit[weights_name])
        others = {name: value for name, value in to_fit.items() if name != weights_name}
        return Metadata(weights, score_weights, others, self._is_routed)

    def _check(self, name: str, value: ArrayLike) -> Array:
        """Return checked weights; the array is the same if the same object is given again."""
        param = next((key for key, p in self._params.items() if p is value), name)
        if param not in self._checked:
            weights = check_weights(f"params[{param!r}]", value, self._n_rows)
            self._checked.setdefault(param, weights)  # atomic, for trials in several threads
        return self._checked[param]

    def _route_params(
        self, estimator: Estimator, scorers: Sequence[object]
    ) -> tuple[dict[str, Opaque], dict[str, Opaque]]:
        """Return the params that ``fit`` requests, and the params that the scorers request."""
        fit_mapping = MethodMapping().add(caller="fit", callee="fit")
        score_mapping = MethodMapping().add(caller="fit", callee="score")
        router = MetadataRouter(owner="cross_validate")
        names = []
        for number, scorer in enumerate(scorers if self._weighs_scores else ()):
            names.append("estimator" if scorer is None else f"scorer{number}")
            if scorer is not None:
                router.add(**{names[-1]: scorer}, method_mapping=score_mapping)
        if "estimator" in names:
            fit_mapping.add(caller="fit", callee="score")
        router.add(estimator=estimator, method_mapping=fit_mapping)
        routed = _route("params", router, self._params)
        first, *more = [dict(routed[name]["score"]) for name in names] or [{}]
        if any(_identities(x) != _identities(first) for x in more):
            raise ValueError(
                "all scorers must request the same entries of params, because all scores have the "
                "same weights; pass score_weight instead."
            )
        return dict(routed["estimator"]["fit"]), first


def part_of(params: Mapping[str, object], X: Features, rows: Array | None) -> dict[str, object]:
    """Return the arguments of one fit, with rows selected from arrays that have an entry per row.

    Other arguments are copied, because a fit may change them: ``coef_init`` is updated in place,
    and callbacks have state.
    """
    selected: dict[str, object] = _check_method_params(X, params, rows)
    for name, value in params.items():
        if selected[name] is value:
            with suppress(Exception):  # such as an open file, which all fits share
                selected[name] = deepcopy(value)
    return selected


def _route(argument: str, owner: object, params: Mapping[str, object]) -> Opaque:
    """Route params by the metadata requests of an object; errors name ``argument``."""
    try:
        with config_context(enable_metadata_routing=True):
            return process_routing(owner, "fit", **params)
    except (TypeError, ValueError) as error:
        message = str(error).replace("cross_validate.fit", "cross_validate")
        raise ValueError(f"{argument} cannot be routed: {message}") from error


def _identities(params: Mapping[str, object]) -> dict[str, int]:
    return {name: id(value) for name, value in params.items()}


def _error_of_two_weights(argument: str, other: str) -> ValueError:
    return ValueError(
        f"{other} must be None if {argument} gives the weights, because they would be given twice."
    )


def _weights_name(estimator: Estimator, is_routed: bool) -> str:
    """Return the name of the ``fit`` argument for the weights of the rows.

    Without metadata routing, the name for a Pipeline begins with the name of its last step.
    """
    if is_routed or not isinstance(estimator, Pipeline):
        return _WEIGHTS
    name, last = estimator.steps[-1]
    return f"{name}__{_weights_name(last, is_routed)}"


def _reach_only_last_step(estimator: Estimator, weights: Array) -> bool:
    """Return whether a Pipeline routes weights to its last step and to no other."""
    if not isinstance(estimator, Pipeline):
        return True
    routed = _route(_WEIGHTS, estimator, {_WEIGHTS: weights})
    *others, last = [name for name, _ in estimator.steps]
    if any(routed[name][method] for name in others for method in routed[name]):
        return False
    return _WEIGHTS in routed[last]["fit"] and _reach_only_last_step(
        estimator.steps[-1][1], weights
    )


def _find_owner(estimator: Estimator, name: str, searched: Collection[str]) -> Estimator:
    """Return the estimator, or the step of a Pipeline, whose ``fit`` gets the argument ``name``.

    Return None if a search sets the step.
    """
    prefix = ""
    while isinstance(estimator, Pipeline):
        step, _, argument = name.partition("__")
        if not argument or step not in estimator.named_steps:
            raise ValueError(
                f"params must have keys such as 'step__argument', with a step of the Pipeline and "
                f"an argument of its fit, got {name!r}{_weights_advice(estimator)}."
            )
        if (prefix := prefix + step) in searched:
            return None
        estimator, name, prefix = estimator.named_steps[step], argument, f"{prefix}__"
    return estimator


def _accepts_argument(estimator: Estimator, name: str) -> bool:
    """Return whether the ``fit`` of an estimator accepts an argument of this name."""
    try:
        parameters = inspect.signature(estimator.fit).parameters
    except AttributeError:  # a step "passthrough"
        return False
    except ValueError:  # some compiled methods have no signature
        return True
    kinds = [parameter.kind for parameter in parameters.values()]
    return name in parameters or inspect.Parameter.VAR_KEYWORD in kinds


def _weights_advice(estimator: Estimator) -> str:
    """Return advice on the name of the weights argument of a Pipeline; "" for other estimators."""
    if not isinstance(estimator, Pipeline):
        return ""
    return f"; use, for example, {_weights_name(estimator, False)!r} instead"
