"""Parameters of scikit-learn's estimators that ``fit`` uses and ``partial_fit`` does not.

Models are trained by ``partial_fit``, in one pass. Such a parameter changes no score, so a search
over it compares equal models, and ``max_iter`` promises passes that are not made.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from sklearn.pipeline import Pipeline

#: Learners that take steps along gradients. ``fit`` makes at most ``max_iter`` passes;
#: ``partial_fit`` makes one and refuses early_stopping.
OF_PASSES = (
    "MLPClassifier",
    "MLPRegressor",
    "PassiveAggressiveClassifier",
    "PassiveAggressiveRegressor",
    "Perceptron",
    "SGDClassifier",
    "SGDOneClassSVM",
    "SGDRegressor",
)
_STOPPING = {
    "early_stopping",  # True is an error in partial_fit
    "max_iter",
    "n_iter_no_change",
    "tol",
    "validation_fraction",
    "warm_start",
}
# tests/test_without_effect.py compares this table with what scikit-learn does.
_UNUSED = {
    **dict.fromkeys(OF_PASSES, _STOPPING),
    "MiniBatchKMeans": {"max_iter", "max_no_improvement", "n_init", "tol"},
    "MiniBatchDictionaryLearning": {
        "batch_size",
        "max_iter",
        "max_no_improvement",
        "shuffle",
        "tol",
    },
    "MiniBatchNMF": {"max_iter", "max_no_improvement"},
    "LatentDirichletAllocation": {"evaluate_every", "learning_method", "max_iter", "perp_tol"},
    "BernoulliRBM": {"n_iter"},
}
_PASSES = {"max_iter", "n_iter"}


def without_effect(
    estimator: Any, searched: Collection[str] = ()
) -> dict[str, tuple[str, str, Any]]:
    """Return the parameters of an estimator that its training does not use.

    Parameters
    ----------
    estimator : estimator
        Possibly a Pipeline or another of scikit-learn's meta-estimators.
    searched : collection of str
        The parameters that a search may change. What depends on them is left out.

    Returns
    -------
    dict of str to (str, str, value)
        By the name that ``set_params`` of the estimator takes: the name of the class to which the
        parameter belongs, its name there, and its value.
    """
    by_name = {}
    for prefix, part in trained_parts(estimator, "", searched):
        kind = kind_in_table(part)
        if kind is None:
            continue
        known = part.get_params(deep=False)
        open_ones = {name for name in known if prefix + name in searched}
        unused = (_UNUSED[kind] & known.keys()) - _exceptions(kind, known, open_ones)
        for parameter in sorted(unused):
            by_name[prefix + parameter] = kind, parameter, known[parameter]
    return by_name


def trained_parts(
    estimator: Any, prefix: str = "", searched: Collection[str] = ()
) -> Iterator[tuple[str, Any]]:
    """Yield the estimators that ``partial_fit`` trains, and the prefixes of their parameters."""
    if prefix.removesuffix("__") in searched:  # another estimator takes its place
        return
    if isinstance(estimator, Pipeline):
        for name, step in estimator.steps:
            yield from trained_parts(step, f"{prefix}{name}__", searched)
        return
    yield prefix, estimator
    # A user's meta-estimator may train what it holds in its own way.
    if type(estimator).__module__.startswith("sklearn.") and hasattr(estimator, "estimator"):
        yield from trained_parts(estimator.estimator, f"{prefix}estimator__", searched)


def kind_in_table(estimator: Any) -> str | None:
    """Return the class whose ``partial_fit`` trains an estimator, if the table has it."""
    for kind in type(estimator).__mro__:
        if kind.__name__ in _UNUSED and kind.__module__.startswith("sklearn."):
            return kind.__name__
        if "partial_fit" in vars(kind):  # a user's own may use any parameter
            return None
    return None


def _exceptions(kind: str, known: dict[str, Any], open_ones: set[str]) -> set[str]:
    """Return the parameters that ``partial_fit`` does use because of the values of others.

    The values of ``open_ones`` are not known yet.
    """

    def may_be(name: str, value: Any) -> bool:
        return name in open_ones or str(known[name]) == str(value)

    if kind in ("MLPClassifier", "MLPRegressor"):
        # Calls without improvement are counted, and lower an adaptive learning rate.
        if may_be("solver", "sgd") and may_be("learning_rate", "adaptive"):
            return {"n_iter_no_change", "tol"}
    if kind == "MiniBatchNMF" and may_be("transform_max_iter", None):
        return {"max_iter"}  # transform uses it instead
    return set()


def check_effect(argument: str, estimator: Any, searched: Mapping[str, bool]) -> None:
    """Refuse a search over parameters without effect.

    Parameters
    ----------
    argument : str
        Where the search was given.
    estimator : estimator
    searched : dict of str to bool
        For each parameter whether it has several values; a single one may stay.
    """
    unused = without_effect(estimator, searched)
    for name, varies in searched.items():
        if varies and name in unused:
            kind, parameter, _ = unused[name]
            raise ValueError(
                f"{argument}: {name!r} must not be searched, since {kind} is trained by "
                f"partial_fit, {_does_not_use(parameter)}; method='fit' would use it."
            )


def _does_not_use(parameter: str) -> str:
    return f"which makes one pass over the rows and does not use {parameter}"


class UnusedWarnings:
    """Warns once of each parameter that promises what the training does not do.

    Parameters
    ----------
    say : callable
        (sentence) -> None, makes a warning of a sentence.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._first: dict[str, Any] = {}  # values
        self._claims: dict[tuple[str, ...], object] = {}

    def warn(
        self, estimator: Any, searched: Collection[str] = (), n_epochs: int | None = None
    ) -> None:
        """Warn if an estimator asks for several passes, or differs from others without effect.

        Parameters
        ----------
        estimator : estimator
        searched : collection of str
            As for ``without_effect``.
        n_epochs : int or None
            The epochs that were asked for, if any.
        """
        has_epochs = n_epochs is not None or "n_epochs" in searched
        for name, (kind, parameter, value) in without_effect(estimator, searched).items():
            if parameter in _PASSES and not has_epochs and str(value) != "1":
                self._warn_once(
                    (kind, parameter),
                    f"{kind}({parameter}={value!r}) is evaluated after one pass over the training "
                    "rows, in the order of the tree, and fitted on all rows in one pass too, "
                    f"since its partial_fit does not use {parameter}; set {parameter}=1 if one "
                    "pass is meant, n_epochs of the evaluation for several, or method='fit'.",
                )
            first = self._first.setdefault(f"{kind} {name}", value)
            if str(first) != str(value):
                self._warn_once(
                    (kind, name, "differs"),
                    f"estimators differ in {name!r} ({first!r} and {value!r}), which has no "
                    f"effect, since {kind} is trained by partial_fit, {_does_not_use(parameter)}.",
                )

    def _warn_once(self, key: tuple[str, ...], sentence: str) -> None:
        claim = object()
        if self._claims.setdefault(key, claim) is claim:  # atomic, for trials in several threads
            self._say(sentence)
