"""Transformers that can be done once, on all rows, before the folds are cut.

Only transformers named here are. There are two sorts. Those of ``ROWWISE`` transform each row for
itself, and so do encoders whose columns are given. The others learn from all rows which columns
there are, and nothing else: a column that no training row of a fold has is zero in all of them, so
a linear learner that starts at zero never touches its weight, and its fold scores are those of
encoding inside each fold.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
from sklearn.feature_extraction import FeatureHasher
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import AdditiveChi2Sampler
from sklearn.preprocessing import Binarizer
from sklearn.preprocessing import FunctionTransformer
from sklearn.preprocessing import Normalizer
from sklearn.preprocessing import OneHotEncoder
from sklearn.preprocessing import PolynomialFeatures

#: Transform each row for itself. The tag ``requires_fit=False`` of other transformers says that
#: they learn nothing, but not that they look at one row at a time.
ROWWISE = (
    AdditiveChi2Sampler,
    Binarizer,
    FeatureHasher,
    FunctionTransformer,
    HashingVectorizer,
    Normalizer,
    PolynomialFeatures,
    SimpleImputer,
)


def adds_columns(step: Any) -> bool:
    """Return whether a transformer that is done once makes a column for each value it finds."""
    if type(step) is OneHotEncoder:
        return _finds_categories(step)
    return type(step) is CountVectorizer and step.vocabulary is None


def _finds_categories(encoder: OneHotEncoder) -> bool:
    """Return whether the categories come from the rows; otherwise they are given as lists."""
    return isinstance(encoder.categories, str)


def keeps_zero_columns(step: Any) -> bool:
    """Return whether a row-wise transformer leaves a column of zeros without an effect.

    A column that is zero in all training rows must stay so, and must not change the others.
    """
    if type(step) is SimpleImputer:  # it may take the zeros themselves for missing values
        return not (isinstance(step.missing_values, Real) and step.missing_values == 0)
    if type(step) is FunctionTransformer:
        return step.func is None
    return type(step) is PolynomialFeatures


def why_not_once(step: Any) -> str:
    """Return why a transformer cannot be done once, a clause; an empty string if it can."""
    kind = type(step).__name__
    if type(step) is FunctionTransformer:
        return "" if _is_elementwise(step) else "its function may look at all rows"
    if type(step) is SimpleImputer:
        if step.strategy != "constant":
            return f"its {step.strategy} comes from the rows"
        return "its add_indicator looks at all rows" if step.add_indicator else ""
    if type(step) is OneHotEncoder:
        return _why_not_one_hot(step)
    if type(step) is CountVectorizer and step.vocabulary is None:
        found = _with_other_value(step, max_df=1.0, min_df=1, max_features=None)
        return f"its {found} counts rows" if found else _why_not_text(step)
    if type(step) in (CountVectorizer, HashingVectorizer):
        return _why_not_text(step)
    return "" if type(step) in ROWWISE else f"{kind} learns from the rows"


def why_not_rowwise(step: Any) -> str:
    """Return why a transformer may make other rows or columns of other training rows, a clause.

    Return an empty string if it transforms each row for itself, whatever it is fitted on.
    """
    if adds_columns(step):
        return "it makes a column for each value it finds"
    if type(step) is SimpleImputer and not step.keep_empty_features:
        return "it leaves out columns that have no value in a training set"
    return why_not_once(step)


def _is_elementwise(step: FunctionTransformer) -> bool:
    """Return whether the function sees one number at a time.

    A ufunc with a signature sees whole rows or columns, and arguments may hold an entry per row.
    """
    func = step.func
    is_ufunc = isinstance(func, np.ufunc) and func.signature is None and not step.kw_args
    return func is None or is_ufunc


def _why_not_one_hot(step: OneHotEncoder) -> str:
    if not _finds_categories(step) and step.handle_unknown in ("ignore", "error"):
        found = _with_other_value(step, min_frequency=None, max_categories=None)
        return f"its {found} comes from the rows" if found else ""
    if step.handle_unknown != "ignore":
        return (
            f"handle_unknown={step.handle_unknown!r} treats a category that a fold has not seen "
            "in another way than 'ignore'"
        )
    found = _with_other_value(step, drop=None, min_frequency=None, max_categories=None)
    return f"its {found} comes from the rows" if found else ""


def _why_not_text(step: Any) -> str:
    parts = "preprocessor", "tokenizer", "analyzer"
    own = [name for name in parts if callable(getattr(step, name))]
    return f"its {own[0]} is a function, which may look at other rows" if own else ""


def _with_other_value(step: Any, **values: Any) -> str:
    """Return the first parameter with another value; an empty string if there is none.

    The type counts, since 1 is a number of rows and 1.0 a share of them.
    """
    for name, value in values.items():
        given = getattr(step, name)
        if type(given) is not type(value) or given != value:
            return name
    return ""
