"""The protocol of an ensemble of one fold that grows tree by tree, and the list of its kinds."""

from abc import ABC
from abc import abstractmethod
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from importlib import import_module
from typing import Any
from typing import ClassVar
from typing import NamedTuple

import numpy as np
from sklearn.base import clone

from optuna_treecv.estimators.base import divided

# By the package of an estimator's class: the module here that knows how such ensembles grow.
_MODULES = {"lightgbm": "lightgbm", "xgboost": "xgboost", "sklearn": "sklearn"}


#: After so many trees reports are due; at most 16 numbers, each at most 1.5 times the one before.
BLOCKS = [8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536]

#: What a leaf takes, about.
LEAF_BYTES = 100

# A parameter of trees and its value; None: trees are as they were grown.
TreeLimit = tuple[str, Any] | None


class Taken(NamedTuple):
    """The rows of one fold, after the steps before the ensemble.

    Attributes
    ----------
    X, y : the training rows as ``fit`` of the ensemble takes them
    weights : ndarray of shape (n_train,) or None
    test : the test rows
    classes : ndarray or None
        The sorted classes of all rows, for classifiers; each is in y.
    """

    X: Any
    y: Any
    weights: np.ndarray | None
    test: Any
    classes: np.ndarray | None


class Prepared(NamedTuple):
    """What can be made of the rows of a fold once for many ensembles.

    Attributes
    ----------
    rows : object
        What ``Growth.prepare`` has made.
    nbytes : int
        The bytes that it takes.
    """

    rows: Any
    nbytes: int


class Growth(ABC):
    """The ensemble of one fold while it grows.

    Parameters
    ----------
    estimator : estimator
        Unfitted, with all its seeds. It is not changed.
    prepared : object
        What ``prepare`` has made of the rows of the fold.
    take : callable
        () -> Taken: the rows of the fold.

    Attributes
    ----------
    size : str
        The name of the parameter that says how many trees there are.
    is_boosted : bool
        Whether each tree is grown on what those before it have left.
    blocks : list of int
        After so many trees it is left for a while.
    of_patience : tuple of str
        The names of the parameter that says after how many trees without a better score it ends.
    n_trees : int
        The trees so far, of one class where there are several.
    oob_score : float or None
        The score of these trees on the training rows that they have not drawn, if asked for.
    """

    size: ClassVar[str] = "n_estimators"
    is_boosted: ClassVar[bool] = True
    oob_score: float | None = None
    blocks: ClassVar[list[int]] = BLOCKS
    of_patience: ClassVar[tuple[str, ...]] = ()
    n_trees = 0

    def __init__(self, estimator: Any, prepared: Any, take: Callable[[], Taken]) -> None:
        self.estimator = estimator
        self.prepared = prepared
        self.take = take

    @classmethod
    @abstractmethod
    def why_not(cls, estimator: Any) -> str:
        """Return why an estimator is only fitted as a whole, a clause; "" if it can grow."""

    @classmethod
    def limit_of(
        cls, estimator: Any, searched: Mapping[str, Any], truncate: bool, can_share: bool
    ) -> TreeLimit:
        """Return the parameter whose values are had from the largest trees, and its value there.

        Parameters
        ----------
        estimator : estimator
        searched : mapping of str to collection
            By the parameter, the values of a search, or the ends of their range.
        truncate : bool
            That of ``treecv_objective``.
        can_share : bool
            Whether several trials differ in this parameter and the number of trees alone.
        """
        return None

    @classmethod
    def n_trees_of(cls, estimator: Any) -> Any:
        """Return how many trees an estimator asks for."""
        return getattr(estimator, cls.size)

    @classmethod
    def patience(cls, estimator: Any) -> int | None:
        """Return after how many trees without a better score it would end; None: never."""
        return next(filter(None, cls._patience_given(estimator).values()), None)

    @classmethod
    def without_patience(cls, estimator: Any) -> Any:
        """Return a clone that does not end early."""
        return clone(estimator).set_params(**dict.fromkeys(cls._patience_given(estimator)))

    @classmethod
    def _patience_given(cls, estimator: Any) -> dict[str, Any]:
        parameters = estimator.get_params()
        return {name: parameters[name] for name in cls.of_patience if name in parameters}

    @classmethod
    def settings(cls, estimator: Any, facts: Any) -> Mapping[str, Any]:
        """Return the parameters on which the prepared rows depend.

        Parameters
        ----------
        estimator : estimator
        facts : object
            What ``facts`` has returned for the rows of the fold.
        """
        return {}

    @classmethod
    def facts(cls, taken: Taken) -> Any:
        """Return an array of facts about the rows of a fold, which ``settings`` needs; or None."""
        return None

    @classmethod
    def prepare(cls, estimator: Any, settings: Mapping[str, Any], taken: Taken) -> Prepared:
        """Return what ensembles with the same ``settings`` share of the rows of a fold."""
        return Prepared(None, 0)

    def forget_rows(self) -> None:  # noqa: B027  # most hold none
        """Forget the rows that can be taken again."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """The bytes that the trees take, about."""

    @abstractmethod
    def grow(self, n_trees: int, asked: Collection[int] = ()) -> Iterator[int]:
        """Grow to so many trees; yield their number after each tree that may be asked about.

        Parameters
        ----------
        n_trees : int
        asked : collection of int
            The numbers that will be asked about.
        """

    @abstractmethod
    def respond(self, method: str, n_trees: int, limit: TreeLimit = None) -> np.ndarray:
        """Return the response to the test rows of the first trees.

        Parameters
        ----------
        method : {"predict", "predict_proba", "decision_function"}
        n_trees : int
        limit : (str, object) or None
            A value of the parameter of ``limit_of``: its trees are cut from those that are there.

        Returns
        -------
        ndarray of shape (n_test,) or (n_test, n_classes)
            Labels, as the estimator's own ``predict`` returns them, or numbers.
        """


def response_of(numbers: np.ndarray, method: str, classes: np.ndarray | None) -> np.ndarray:
    """Return a response from a booster's targets, or from its probabilities of classes.

    Of two classes it has the probabilities of the second.
    """
    if classes is None:
        return numbers
    if numbers.ndim == 1:
        numbers = np.vstack((1.0 - numbers, numbers)).T
    return numbers if method == "predict_proba" else classes[numbers.argmax(axis=1)]


def kind_of(estimator: Any) -> type[Growth] | None:
    """Return how an estimator grows; None if it is no ensemble that does. Refuse rankers."""
    package = type(estimator).__module__.partition(".")[0]
    if package not in _MODULES:
        return None
    module = import_module(f"optuna_treecv.engines.ensembles.{_MODULES[package]}")
    if type(estimator).__name__ in ("LGBMRanker", "XGBRanker"):
        raise ValueError(
            f"estimator must be a classifier or a regressor, got {type(estimator).__name__}, "
            "whose scores need all rows of a query in one fold, and say so by group or qid."
        )
    return module.KINDS.get(type(estimator))


def nests_by(estimator: Any) -> str:
    """Return the parameter that is the number of trees, if an ensemble grows; else ""."""
    prefix, last = divided(estimator)
    kind = kind_of(last)
    return "" if kind is None else prefix + kind.size


def of_size(estimator: Any, n_trees: int) -> Any:
    """Return an ensemble of so many trees, which does not end early by other rows."""
    _, last = divided(estimator)
    kind = kind_of(last)
    assert kind is not None
    sized = clone(kind.without_patience(last)).set_params(**{kind.size: n_trees})
    return with_last(estimator, sized)


def with_last(estimator: Any, last: Any) -> Any:
    """Return a clone of a Pipeline with another last step; of others, this step alone."""
    prefix, _ = divided(estimator)
    return clone(estimator).set_params(**{prefix.removesuffix("__"): last}) if prefix else last
