"""Type aliases for objects that are defined by a protocol which type checkers cannot check."""

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]  # with any number of dimensions and any dtype
Estimator = Any  # an object with scikit-learn's estimator protocol, of any library
Features = Any  # X, as given or prepared: an array, a sparse matrix, a DataFrame or remote rows
Targets = Any  # y, as given or prepared: an array, a list, a Series or remote targets
Splitter = Any  # cv: the number of folds, a splitter of any library, or pairs of row indices
ParamValue = Any  # the value of an estimator's parameter
AnyTrial = Any  # Optuna's Trial, or a FixedTrial or FrozenTrial, which have no study
Opaque = Any  # an object whose type only its writer and reader know: from JSON, a pickle, a cache
