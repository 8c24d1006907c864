"""Names of types in annotations that libraries settle by protocol, which no checker can see."""

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]  # of any number of dimensions and any type of numbers
Estimator = Any  # what has scikit-learn's estimator protocol, of any library
Features = Any  # X, as given or prepared: an array, a sparse matrix, a DataFrame or remote rows
Targets = Any  # y, as given or prepared: an array, a list, a Series or remote targets
Splitter = Any  # cv: a number of folds, a splitter of any library, or pairs of rows
ParamValue = Any  # what a parameter of an estimator can be set to
AnyTrial = Any  # Optuna's Trial, or a FixedTrial or FrozenTrial, which have no study
Opaque = Any  # what only its maker and its reader know the type of: from JSON, a pickle, a cache
