"""Names for types that libraries define by a protocol, which type checkers cannot check."""

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]  # of any number of dimensions and any type of numbers
Estimator = Any  # an object with scikit-learn's estimator protocol, of any library
Features = Any  # X, as given or prepared: an array, a sparse matrix, a DataFrame or remote rows
Targets = Any  # y, as given or prepared: an array, a list, a Series or remote targets
Splitter = Any  # cv: a number of folds, a splitter of any library, or pairs of rows
ParamValue = Any  # a value of a parameter of an estimator
AnyTrial = Any  # Optuna's Trial, or a FixedTrial or FrozenTrial, which have no study
Opaque = Any  # an object whose type only its writer and reader know: from JSON, a pickle, a cache
