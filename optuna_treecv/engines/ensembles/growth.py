"""The protocol of an ensemble of one fold that grows tree by tree, and its implementations."""

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

# The modules of growing ensembles, by the package of the estimator's class.
_MODULES = {"lightgbm": "lightgbm", "xgboost": "xgboost", "sklearn": "sklearn"}


#: The numbers of trees at which scores are reported.
BLOCKS = [8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536]

#: The approximate bytes of a leaf.
LEAF_BYTES = 100

# A parameter of trees and the value at which they are cut; None: trees as grown.
TreeLimit = tuple[str, Any] | None


class FoldRows(NamedTuple):
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
    """The rows of a fold in a form that many ensembles share.

    Attributes
    ----------
    rows : object
        The result of ``Growth.prepare``.
    nbytes : int
        The bytes of the rows.
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
        The result of ``prepare`` for the rows of the fold.
    take : callable
        () -> FoldRows: the rows of the fold.

    Attributes
    ----------
    size : str
        The name of the parameter for the number of trees.
    is_boosted : bool
        Whether each tree is grown on the residuals of those before it.
    blocks : list of int
        The numbers of trees at which growth may pause.
    of_patience : tuple of str
        The names of the parameter for early stopping after trees without a better score.
    n_trees : int
        The trees so far, those of one class if there are several.
    oob_score : float or None
        The out-of-bag score of these trees, if ``estimator`` computes it.
    """

    size: ClassVar[str] = "n_estimators"
    is_boosted: ClassVar[bool] = True
    oob_score: float | None = None
    blocks: ClassVar[list[int]] = BLOCKS
    of_patience: ClassVar[tuple[str, ...]] = ()
    n_trees = 0

    def __init__(self, estimator: Any, prepared: Any, take: Callable[[], FoldRows]) -> None:
        self.estimator = estimator
        self.prepared = prepared
        self.take = take

    @classmethod
    @abstractmethod
    def why_not(cls, estimator: Any) -> str:
        """Return the reason why an estimator is fitted as a whole; "" if it can grow."""

    @classmethod
    def limit_of(
        cls, estimator: Any, searched: Mapping[str, Any], truncate: bool, can_share: bool
    ) -> TreeLimit:
        """Return the parameter whose values are cut from the largest trees, and its value there.

        Parameters
        ----------
        estimator : estimator
        searched : mapping of str to collection
            By the parameter, the values of a search, or the ends of their range.
        truncate : bool
            The argument of ``treecv_objective``.
        can_share : bool
            Whether several trials differ in this parameter and the number of trees alone.
        """
        return None

    @classmethod
    def n_trees_of(cls, estimator: Any) -> Any:
        """Return the number of trees of an estimator."""
        return getattr(estimator, cls.size)

    @classmethod
    def patience(cls, estimator: Any) -> int | None:
        """Return the trees without a better score after which it stops early; None: never."""
        return next(filter(None, cls._patience_parameters(estimator).values()), None)

    @classmethod
    def without_patience(cls, estimator: Any) -> Any:
        """Return a clone without early stopping."""
        return clone(estimator).set_params(**dict.fromkeys(cls._patience_parameters(estimator)))

    @classmethod
    def _patience_parameters(cls, estimator: Any) -> dict[str, Any]:
        parameters = estimator.get_params()
        return {name: parameters[name] for name in cls.of_patience if name in parameters}

    @classmethod
    def settings(cls, estimator: Any, facts: Any) -> Mapping[str, Any]:
        """Return the parameters on which the prepared rows depend.

        Parameters
        ----------
        estimator : estimator
        facts : object
            The result of ``facts`` for the rows of the fold.
        """
        return {}

    @classmethod
    def facts(cls, taken: FoldRows) -> Any:
        """Return the properties of the rows of a fold that ``settings`` needs, or None."""
        return None

    @classmethod
    def prepare(cls, estimator: Any, settings: Mapping[str, Any], taken: FoldRows) -> Prepared:
        """Return the rows of a fold for all ensembles with the same ``settings``."""
        return Prepared(None, 0)

    def forget_rows(self) -> None:  # noqa: B027  # most keep none
        """Drop the rows, which ``take`` returns again."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """The approximate bytes of the trees."""

    @abstractmethod
    def grow(self, n_trees: int, wanted: Collection[int] = ()) -> Iterator[int]:
        """Grow up to ``n_trees`` trees; yield their number after each tree that may be scored.

        Parameters
        ----------
        n_trees : int
        wanted : collection of int
            The numbers of trees that will be scored.
        """

    @abstractmethod
    def predict(self, method: str, n_trees: int, limit: TreeLimit = None) -> np.ndarray:
        """Return the predictions of the first trees for the test rows.

        Parameters
        ----------
        method : {"predict", "predict_proba", "decision_function"}
        n_trees : int
        limit : (str, object) or None
            A value of the parameter of ``limit_of``, to which the trees are cut.

        Returns
        -------
        ndarray of shape (n_test,) or (n_test, n_classes)
            Labels, as the estimator's own ``predict`` returns them, or numbers.
        """


def response_of(numbers: np.ndarray, method: str, classes: np.ndarray | None) -> np.ndarray:
    """Return predictions by a method, from a booster's predictions or class probabilities.

    For two classes these are the probabilities of the second.
    """
    if classes is None:
        return numbers
    if numbers.ndim == 1:
        numbers = np.vstack((1.0 - numbers, numbers)).T
    return numbers if method == "predict_proba" else classes[numbers.argmax(axis=1)]


def kind_of(estimator: Any) -> type[Growth] | None:
    """Return the class that grows an estimator, or None. Raise an error for rankers."""
    package = type(estimator).__module__.partition(".")[0]
    if package not in _MODULES:
        return None
    module = import_module(f"optuna_treecv.engines.ensembles.{_MODULES[package]}")
    if type(estimator).__name__ in ("LGBMRanker", "XGBRanker"):
        raise ValueError(
            f"estimator must be a classifier or a regressor, got {type(estimator).__name__}, "
            "whose scores need all rows of a query (group or qid) in one fold."
        )
    return module.KINDS.get(type(estimator))


def nests_by(estimator: Any) -> str:
    """Return the parameter for the number of trees of a growing ensemble; else ""."""
    prefix, last = divided(estimator)
    kind = kind_of(last)
    return "" if kind is None else prefix + kind.size


def of_size(estimator: Any, n_trees: int) -> Any:
    """Return an ensemble of ``n_trees`` trees, without early stopping."""
    _, last = divided(estimator)
    kind = kind_of(last)
    assert kind is not None
    sized = clone(kind.without_patience(last)).set_params(**{kind.size: n_trees})
    return with_last(estimator, sized)


def with_last(estimator: Any, last: Any) -> Any:
    """Return a clone of a Pipeline with another last step; for others, this step alone."""
    prefix, _ = divided(estimator)
    return clone(estimator).set_params(**{prefix.removesuffix("__"): last}) if prefix else last
