"""The base class of ensembles that grow tree by tree, and the lookup of its subclasses."""

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

# The modules with the subclasses of ``Growth``, by the package of the estimator's class.
_MODULES = {name: name for name in ("catboost", "lightgbm", "sklearn", "xgboost")}


#: The numbers of trees at which scores are reported; one fewer than ``LEAD_STEPS``.
BLOCKS = [8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536]

#: The approximate size of a leaf in bytes.
LEAF_BYTES = 100

# The parameter and the value to which grown trees are truncated, such as ("max_depth", 5). None if
# trees are used as they were grown.
TreeLimit = tuple[str, Any] | None


class FoldRows(NamedTuple):
    """The training and test rows of one fold, transformed by the steps that precede the ensemble.

    Attributes
    ----------
    X, y : array-like
        The training rows as they are passed to ``fit`` of the ensemble.
    weights : ndarray of shape (n_train,) or None
        The sample weights of the training rows.
    test : array-like
        The test rows of X.
    classes : ndarray or None
        The sorted classes of all rows, for classifiers. Each class occurs in y.
    """

    X: Any
    y: Any
    weights: np.ndarray | None
    test: Any
    classes: np.ndarray | None


class Prepared(NamedTuple):
    """The rows of a fold in the library's own format, such as binned rows.

    Several ensembles can be grown on them.

    Attributes
    ----------
    rows : object
        The format depends on the subclass of ``Growth``.
    nbytes : int
        The size of ``rows`` in bytes.
    """

    rows: Any
    nbytes: int


class Growth(ABC):
    """The ensemble of one fold, which grows tree by tree.

    Parameters
    ----------
    estimator : estimator
        The unfitted ensemble, in which all seeds are set. It is not changed.
    prepared : object
        The ``rows`` of the result of ``prepare``.
    take : callable
        () -> FoldRows. Computes the rows of the fold.

    Attributes
    ----------
    size : str
        The name of the parameter for the number of trees, such as ``n_estimators``.
    is_boosted : bool
        Whether trees may be fitted to the residuals of the preceding trees.
    has_labels_by_probability : bool
        Whether ``predict`` returns the classes with the largest ``predict_proba``.
    patience_names : tuple of str
        The names of the parameter for early stopping. Its value is the number of trees without a
        better score after which growth stops.
    n_trees : int
        The number of boosting rounds or trees so far. One round of a multiclass model adds one
        tree per class.
    oob_score : float or None
        The out-of-bag score of these trees, if ``estimator`` computes it.
    """

    size: ClassVar[str] = "n_estimators"
    is_boosted: ClassVar[bool] = True
    has_labels_by_probability: ClassVar[bool] = False
    oob_score: float | None = None
    patience_names: ClassVar[tuple[str, ...]] = ()
    n_trees = 0

    def __init__(self, estimator: Any, prepared: Any, take: Callable[[], FoldRows]) -> None:
        self.estimator = estimator
        self.prepared = prepared
        self.take = take

    @classmethod
    @abstractmethod
    def why_not(cls, estimator: Any, searched: Collection[str]) -> str:
        """Return the reason why an estimator cannot be grown tree by tree, or "" if it can.

        ``searched`` has the names of the searched parameters, which ``estimator`` may lack.
        """

    @classmethod
    def limit_of(
        cls, estimator: Any, searched: Mapping[str, Any], truncate: bool, can_share: bool
    ) -> TreeLimit:
        """Return a tree parameter whose values can be evaluated by truncating larger trees.

        Parameters
        ----------
        estimator : estimator
        searched : mapping of str to collection
            For each searched parameter, its values or the bounds of its range.
        truncate : bool
            The argument of ``treecv_objective``.
        can_share : bool
            Whether several trials differ only in this parameter and in the number of trees.

        Returns
        -------
        (str, object) or None
            The name of the parameter, and the value with which the largest trees are grown. None
            if trees cannot be truncated.
        """
        return None

    @classmethod
    def n_trees_of(cls, estimator: Any) -> Any:
        """Return the number of trees of an estimator."""
        return getattr(estimator, cls.size)

    @classmethod
    def blocks(cls, estimator: Any) -> list[int]:
        """Return the numbers of trees at which growth may pause."""
        return BLOCKS

    @classmethod
    def patience(cls, estimator: Any) -> int | None:
        """Return the number of trees without a better score after which training stops.

        Return None if there is no early stopping.
        """
        return next(filter(None, cls._patience_parameters(estimator).values()), None)

    @classmethod
    def without_patience(cls, estimator: Any) -> Any:
        """Return a clone without early stopping."""
        return clone(estimator).set_params(**dict.fromkeys(cls._patience_parameters(estimator)))

    @classmethod
    def _patience_parameters(cls, estimator: Any) -> dict[str, Any]:
        parameters = estimator.get_params()
        return {name: parameters[name] for name in cls.patience_names if name in parameters}

    @classmethod
    def settings(cls, estimator: Any, facts: Any) -> Mapping[str, Any]:
        """Return the parameters on which the result of ``prepare`` depends.

        Parameters
        ----------
        estimator : estimator
        facts : object
            The result of ``facts`` for the rows of the fold.
        """
        return {}

    @classmethod
    def facts(cls, fold_rows: FoldRows) -> Any:
        """Return properties of a fold's rows that ``settings`` needs; None if it needs none."""
        return None

    @classmethod
    def prepare(cls, estimator: Any, settings: Mapping[str, Any], fold_rows: FoldRows) -> Prepared:
        """Convert the rows of a fold to the form that ensembles with equal ``settings`` share."""
        return Prepared(None, 0)

    def forget_rows(self) -> None:  # noqa: B027  # XGBoost stores no rows
        """Release the memory of the rows of the fold, which ``take`` can compute again."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """The approximate size of the trees in bytes."""

    @abstractmethod
    def grow(self, n_trees: int, wanted: Collection[int] = ()) -> Iterator[int]:
        """Grow the ensemble up to ``n_trees`` trees; yield the number of trees after each tree.

        Parameters
        ----------
        n_trees : int
        wanted : collection of int
            The numbers of trees for which ``predict`` will be called.
        """

    @abstractmethod
    def predict(self, method: str, n_trees: int, limit: TreeLimit = None) -> np.ndarray:
        """Return the predictions of the first ``n_trees`` trees for the test rows.

        Parameters
        ----------
        method : {"predict", "predict_proba", "decision_function"}
        n_trees : int
        limit : (str, object) or None
            The parameter of ``limit_of``, and the value to which trees are truncated.

        Returns
        -------
        ndarray of shape (n_test,) or (n_test, n_classes)
            The predictions in the form in which the estimator's ``method`` returns them.
        """


def response_of(outputs: np.ndarray, method: str, classes: np.ndarray | None) -> np.ndarray:
    """Convert the outputs of a booster to the predictions of an estimator's method.

    The outputs of classifiers are class probabilities. For two classes, they are the probabilities
    of the second class.
    """
    if classes is None:
        return outputs
    if outputs.ndim == 1:
        of_second = outputs
        outputs = np.empty((len(of_second), 2), of_second.dtype)
        np.subtract(1.0, of_second, out=outputs[:, 0])
        outputs[:, 1] = of_second
    return outputs if method == "predict_proba" else classes[outputs.argmax(axis=1)]


def kind_of(estimator: Any) -> type[Growth] | None:
    """Return the subclass of ``Growth`` for an estimator, or None if there is none.

    Rankers raise a ValueError.
    """
    package = type(estimator).__module__.partition(".")[0]
    if package not in _MODULES:
        return None
    module = import_module(f"optuna_treecv.engines.ensembles.{_MODULES[package]}")
    if type(estimator).__name__ in ("CatBoostRanker", "LGBMRanker", "XGBRanker"):
        raise ValueError(
            f"estimator must be a classifier or a regressor, got {type(estimator).__name__}, "
            "whose scores need all rows of a query (group or qid) in one fold."
        )
    return module.KINDS.get(type(estimator))


def nests_by(estimator: Any) -> str:
    """Return the name of the parameter for the number of trees, or "" for other estimators."""
    prefix, last = divided(estimator)
    kind = kind_of(last)
    return "" if kind is None else prefix + kind.size


def of_size(estimator: Any, n_trees: int) -> Any:
    """Return a clone of an ensemble with ``n_trees`` trees and without early stopping."""
    _, last = divided(estimator)
    kind = kind_of(last)
    assert kind is not None
    sized = clone(kind.without_patience(last)).set_params(**{kind.size: n_trees})
    return with_last(estimator, sized)


def with_last(estimator: Any, last: Any) -> Any:
    """Return a clone of a Pipeline whose last step is replaced by ``last``.

    For an estimator that is not a Pipeline, this is ``last`` itself.
    """
    prefix, _ = divided(estimator)
    return clone(estimator).set_params(**{prefix.removesuffix("__"): last}) if prefix else last
