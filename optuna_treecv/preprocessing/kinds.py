"""How transformers are treated, by their kinds, and what some of them do to columns."""

from typing import Any

from sklearn.feature_extraction.text import CountVectorizer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder

# How a transformer is treated.
ONCE = "once"
ALIKE = "once, as in each fold"
ON_SUMS = "on sums"
COMPILED = "running, compiled"
PYTHON = "running, in Python"
BY_FOLD = "by fold"

# How the models behind the steps are made.
BY_KERNEL = "by a kernel, which may run steps too"
BY_PARTIAL_FIT = "by partial_fit, behind steps that are done once or run in Python"
IN_ROW = "by partial_fit, as all steps before them are, one after the other"
FROM_SUMS = "from sums over rows"
BY_FIT = "by fit, on the training rows of each fold"


def fills_categories(imputer: Any, encoder: Any) -> bool:
    """Return whether what an imputer fills in is one of the columns of the encoder behind it."""
    return (
        type(imputer) is SimpleImputer
        and imputer.strategy == "most_frequent"
        and not (imputer.add_indicator or imputer.keep_empty_features)
        and type(encoder) is OneHotEncoder
        and adds_columns(encoder)
        and (encoder.drop, encoder.min_frequency, encoder.max_categories) == (None, None, None)
    )


def is_running_imputer(step: Any) -> bool:
    """Return whether a step is an imputer by means."""
    return type(step) is SimpleImputer and step.strategy == "mean"


def adds_columns(step: Any) -> bool:
    """Return whether a transformer that is done once makes a column for each value it finds."""
    if type(step) is OneHotEncoder:
        return isinstance(step.categories, str)  # otherwise they are given as lists
    return type(step) is CountVectorizer and step.vocabulary is None
