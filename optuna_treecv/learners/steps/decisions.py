"""Decides for each step of a Pipeline how it is treated: once, on sums, running or by fold.

Only the transformers named here are done once, on all rows, before the folds are cut. There are
two sorts. Those of ``ROWWISE`` transform each row for itself, and so do encoders whose columns are
given. The others learn from all rows which columns there are, and nothing else: a column that no
training row of a fold has is zero in all of them, so a linear learner that starts at zero never
touches its weight, and its fold scores are those of encoding inside each fold.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from numbers import Real
from typing import Any
from typing import NamedTuple

import numpy as np
from sklearn.feature_extraction import FeatureHasher
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import AdditiveChi2Sampler
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import Binarizer
from sklearn.preprocessing import FunctionTransformer
from sklearn.preprocessing import MaxAbsScaler
from sklearn.preprocessing import MinMaxScaler
from sklearn.preprocessing import Normalizer
from sklearn.preprocessing import OneHotEncoder
from sklearn.preprocessing import PolynomialFeatures
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags

from optuna_treecv.learners.compiled import CompiledEstimator
from optuna_treecv.learners.incremental import check_incremental
from optuna_treecv.learners.linear import LinearEstimator
from optuna_treecv.learners.steps.parts import COMPOSED
from optuna_treecv.learners.steps.parts import is_passed
from optuna_treecv.learners.steps.parts import parts_of

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

# Learners of scikit-learn whose weights start at 0, are changed by a row only where the row is not
# 0, and do not depend on the number of columns. So a column that no training row has changes
# nothing. It does in others: naive Bayes divides by the number of columns, an MLP draws its first
# weights, and the random numbers of each column would move those of the next.
_LINEAR = {
    "PassiveAggressiveClassifier",
    "PassiveAggressiveRegressor",
    "Perceptron",
    "SGDClassifier",
    "SGDRegressor",
}

ONCE = "once"
ON_SUMS = "on sums"
COMPILED = "running, compiled"
PYTHON = "running, in Python"
BY_FOLD = "by fold"

_EACH_ROW = "it transforms each row for itself"


# How the models behind the steps are made.
BY_KERNEL = "by a kernel, which may run steps too"
BY_PARTIAL_FIT = "by partial_fit, behind steps that are done once or run in Python"
IN_ROW = "by partial_fit, as all steps before them are, one after the other"
FROM_SUMS = "from sums over rows"
BY_FIT = "by fit, on the training rows of each fold"


class Decision(NamedTuple):
    """How a step is treated.

    Attributes
    ----------
    path : str
        Its name, as in the names of parameters.
    step : transformer
    kind : str
        ``ONCE``, ``ON_SUMS``, ``COMPILED``, ``PYTHON`` or ``BY_FOLD``.
    why : str
        A clause; of steps that run, by what they do so.
    """

    path: str
    step: Any
    kind: str
    why: str

    def __str__(self) -> str:
        since = "" if self.kind in (COMPILED, PYTHON) else "since "
        return f"{self.path} ({type(self.step).__name__}): {self.kind}, {since}{self.why}"


def decisions_for(pipeline: Pipeline, models: str) -> list[Decision]:
    """Return how the steps before the last one of a Pipeline are treated, in their order.

    Parameters
    ----------
    pipeline : Pipeline
    models : str
        How the models of its last step are made, as in ``decide``.
    """
    *before, (_, last) = pipeline.steps
    return list(_in_row("", before, models, last, ()))


def _in_row(
    inside: str, steps: list[tuple[str, Any]], models: str, learner: Any, behind: tuple[Any, ...]
) -> Iterator[Decision]:
    """Yield how steps are treated that stand one behind the other."""
    for number, (name, step) in enumerate(steps, 1):
        others = tuple(other for _, other in steps[number:] if not is_passed(other))
        yield from _of_parts(inside + name, step, models, learner, (*others, *behind))


def _of_parts(
    path: str, step: Any, models: str, learner: Any, behind: tuple[Any, ...]
) -> Iterator[Decision]:
    """Yield how the parts of a step are treated that hold no others."""
    if is_passed(step):
        return
    if type(step) is Pipeline:
        yield from _in_row(f"{path}__", step.steps, models, learner, behind)
    elif type(step) not in COMPOSED:
        yield Decision(path, step, *decide(step, models, learner, behind))
    elif step.transformer_weights and models in (BY_KERNEL, BY_PARTIAL_FIT):
        yield Decision(path, step, BY_FOLD, f"{_name(step)} has transformer_weights")
    else:
        for name, part, *_ in parts_of(step):
            yield from _of_parts(f"{path}__{name}", part, models, learner, behind)


def decide(
    step: Any, models: str, learner: Any = None, behind: Sequence[Any] = ()
) -> tuple[str, str]:
    """Return how a step before a learner is treated, and why, as in ``Decision``.

    Parameters
    ----------
    step : transformer
        It holds no others.
    models : str
        How the learner's models are made: ``BY_KERNEL``, ``BY_PARTIAL_FIT``, ``IN_ROW``,
        ``FROM_SUMS`` or ``BY_FIT``.
    learner : estimator
    behind : sequence of transformers
        The steps between this one and the learner.
    """
    if models == BY_FIT:
        why = "" if hasattr(step, "partial_fit") else why_not_once(step)
        return BY_FOLD, why or "the models are fitted by fold"
    if models == IN_ROW:
        return PYTHON, _how_it_runs(step)
    if models == FROM_SUMS:
        if type(step) is StandardScaler and not behind:
            return ON_SUMS, "the means and scales of each training set follow from them"
        kind, how = ONCE, _EACH_ROW
        why_not = why_not_rowwise(step)
    elif models == BY_PARTIAL_FIT and runs_in_python(step):
        kind, how = PYTHON, _how_it_runs(step)
        why_not = _why_not_trained(step, behind)
    elif type(step) is StandardScaler:
        kind, how = COMPILED, "by the mean and scale of the rows that a model has seen"
        why_not = _why_not_scaled(learner, behind)
    elif is_running_imputer(step) and isinstance(learner, CompiledEstimator):
        kind, how = COMPILED, "by the means of the values that a model has seen"
        why_not = _why_not_imputed(step, models, learner, behind)
    elif adds_columns(step):
        kind, how = ONCE, "a column that only test rows have touches no weight in training"
        why_not = why_not_once(step) or _why_columns_act(learner, behind)
    else:
        kind, how = ONCE, _EACH_ROW
        why_not = why_not_once(step)
    return (BY_FOLD, why_not) if why_not else (kind, how)


def _how_it_runs(step: Any) -> str:
    """Return by what a step runs in Python."""
    if hasattr(step, "partial_fit"):
        return "by partial_fit on each training phase"
    if type(step) is FunctionTransformer and why_not_once(step):
        return "on the rows of each training phase, and its function sees no others"
    if get_tags(step).requires_fit:
        return "on each phase"
    return "on each training phase, since it is stateless"


def runs_in_python(step: Any) -> bool:
    """Return whether a step is one that ``partial_fit`` trains."""
    return hasattr(step, "partial_fit") and type(step) not in ROWWISE


def is_running_imputer(step: Any) -> bool:
    """Return whether a step is an imputer by means."""
    return type(step) is SimpleImputer and step.strategy == "mean"


def ignores_zero_columns(learner: Any) -> bool:
    """Return whether a column that is zero in all training rows changes nothing in a learner."""
    kind = type(learner)
    from_sklearn = kind.__module__.startswith("sklearn.linear_model.")
    return isinstance(learner, LinearEstimator) or (from_sklearn and kind.__name__ in _LINEAR)


def _why_not_trained(step: Any, behind: Sequence[Any]) -> str:
    if not all(map(_only_runs, behind)):
        return "it changes with the rows seen, and a later step would be done once"
    try:
        check_incremental(step, of_class=False, called="it", transforms=True)
    except ValueError as error:
        return str(error).removesuffix(".")
    return ""


def _why_not_scaled(learner: CompiledEstimator, behind: Sequence[Any]) -> str:
    if behind:
        return "its scales change with the rows seen, and a later step would be done once"
    if learner.settles_on_rows:
        return f"{_name(learner)} derives its step size from the scaled rows"
    return ""


def _why_not_imputed(
    imputer: SimpleImputer, models: str, learner: CompiledEstimator, behind: Sequence[Any]
) -> str:
    if imputer.add_indicator:
        return "its add_indicator looks at all rows"
    missing = imputer.missing_values
    is_nan = isinstance(missing, Real) and bool(missing != missing)
    if repr(missing) != "<NA>" and not is_nan:
        return f"it takes {missing!r} for a missing value, and not NaN"
    runs_behind = models == BY_PARTIAL_FIT and all(map(_only_runs, behind))
    if not runs_behind and [type(part) for part in behind] not in ([], [StandardScaler]):
        return "its means change with the rows seen, and a later step would be done once"
    if models == BY_PARTIAL_FIT:
        return "its means run in the kernels alone, and other steps run in Python"
    if learner.settles_on_rows:
        return f"{_name(learner)} derives its step size from the rows"
    return ""


def _why_columns_act(learner: Any, behind: Sequence[Any]) -> str:
    """Return why a column that is zero in all training rows has an effect, a clause."""
    if not ignores_zero_columns(learner):
        return f"a category that no training row has would count in {_name(learner)}"
    if not all(map(_keeps_zeros, behind)):
        return "a later step would mix in categories that no training row has"
    return ""


def _only_runs(step: Any) -> bool:
    """Return whether a step is one that runs in Python, or a Pipeline of such steps."""
    if type(step) is Pipeline:
        return all(is_passed(part) or _only_runs(part) for _, part in step.steps)
    return runs_in_python(step)


def _keeps_zeros(step: Any) -> bool:
    """Return whether a column of zeros stays one and does not change the others."""
    if type(step) in COMPOSED:
        return all(_keeps_zeros(part) for _, part, *_ in parts_of(step))
    if type(step) is MinMaxScaler:  # it makes a column of zeros one of its least value
        return bool(step.feature_range[0] == 0)
    if is_passed(step) or type(step) in (StandardScaler, MaxAbsScaler, PolynomialFeatures):
        return True
    if type(step) is SimpleImputer:  # it may take the zeros themselves for missing values
        return not (isinstance(step.missing_values, Real) and step.missing_values == 0)
    return type(step) is FunctionTransformer and step.func is None


def adds_columns(step: Any) -> bool:
    """Return whether a transformer that is done once makes a column for each value it finds."""
    if type(step) is OneHotEncoder:
        return isinstance(step.categories, str)  # otherwise they are given as lists
    return type(step) is CountVectorizer and step.vocabulary is None


def why_not_once(step: Any) -> str:
    """Return why a transformer cannot be done once, a clause; an empty string if it can."""
    kind = type(step).__name__
    if type(step) is FunctionTransformer:
        # A ufunc with a signature sees whole rows or columns, and arguments may hold an entry per
        # row; without either, a function sees one number at a time.
        func = step.func
        is_ufunc = isinstance(func, np.ufunc) and func.signature is None and not step.kw_args
        return "" if func is None or is_ufunc else "its function may look at all rows"
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


def _why_not_one_hot(step: OneHotEncoder) -> str:
    if not adds_columns(step) and step.handle_unknown in ("ignore", "error"):
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


def _name(estimator: Any) -> str:
    return type(estimator).__name__
