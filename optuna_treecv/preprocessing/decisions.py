"""Decides how each transformer of a Pipeline is fitted, and divides Pipelines accordingly.

Only the transformers named here are evaluated once, on all rows, before the split into folds.
Those of ``ROWWISE`` are stateless: they transform each row independently, and so do encoders with
given categories. The others are fitted once. They learn only the set of columns from all rows: a
column that no training row of a fold has is zero in all of them, so a linear learner that starts
at zero never changes its weight, and the fold scores are the same as if rows were encoded within
each fold.
"""

from collections.abc import Iterator
from collections.abc import Sequence
from copy import copy
from numbers import Real
from typing import Any
from typing import NamedTuple

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.compose import make_column_selector
from sklearn.feature_extraction import FeatureHasher
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import AdditiveChi2Sampler
from sklearn.pipeline import FeatureUnion
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

from optuna_treecv.estimators.base import CompiledEstimator
from optuna_treecv.estimators.base import last_step
from optuna_treecv.estimators.incremental import check_incremental
from optuna_treecv.estimators.incremental import is_incremental
from optuna_treecv.estimators.incremental import NAIVE_BAYES
from optuna_treecv.preprocessing.parts import adds_columns
from optuna_treecv.preprocessing.parts import COMPOSED
from optuna_treecv.preprocessing.parts import fills_categories
from optuna_treecv.preprocessing.parts import is_passed
from optuna_treecv.preprocessing.parts import is_running_imputer
from optuna_treecv.preprocessing.parts import Kind
from optuna_treecv.preprocessing.parts import leaves_of
from optuna_treecv.preprocessing.parts import ModelsFrom
from optuna_treecv.preprocessing.parts import parts_of
from optuna_treecv.preprocessing.parts import path_to
from optuna_treecv.preprocessing.reducers import split_linear
from optuna_treecv.preprocessing.reducers import why_not_linear

#: Transformers that transform each row independently. The tag ``requires_fit=False`` of other
#: transformers means that they learn nothing, but not that they process each row independently.
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

# The parameters by which vectorizers and encoders drop infrequent values, and the settings with
# which they drop none.
_NO_FREQUENCIES: dict[type, dict[str, Any]] = {
    OneHotEncoder: {"min_frequency": None, "max_categories": None},
    CountVectorizer: {"max_df": 1.0, "min_df": 1, "max_features": None},
}


# Learners of scikit-learn whose weights start at 0, are changed by a row only in its nonzero
# columns, and do not depend on the number of columns. So a column that is zero in all training
# rows has no effect. In other learners, it has one: naive Bayes divides by the number of columns,
# and an MLP draws initial weights for each column, so the weights of later columns would change.
_LINEAR = {
    "PassiveAggressiveClassifier",
    "PassiveAggressiveRegressor",
    "Perceptron",
    "SGDClassifier",
    "SGDRegressor",
}

# Models that penalize coefficients, with the name of the penalty parameter. They give the
# coefficient 0 to a column that is absent from all training rows.
_PENALISED = {
    "ElasticNet": "alpha",
    "Lasso": "alpha",
    "LogisticRegression": "C",
    "PoissonRegressor": "alpha",
    "Ridge": "alpha",
    "RidgeClassifier": "alpha",
}


_EACH_ROW = "it transforms each row independently"
_MEANS = "they give the means and scales of each training set"
_MOMENTS = "the moments of each training set give the columns that it keeps or computes"


class Decision(NamedTuple):
    """The kind of a transformer, and the reason for it.

    Attributes
    ----------
    path : str
        The path of the transformer in the form of parameter names, such as "a__b".
    step : transformer
    kind : Kind
    reason : str
        The reason for the kind; for incremental transformers, how they are trained.
    """

    path: str
    step: Any
    kind: Kind
    reason: str

    def __str__(self) -> str:
        is_incremental = self.kind in (Kind.COMPILED, Kind.INCREMENTAL)
        reason = self.reason if is_incremental else f"because {self.reason}"
        return f"{self.path} ({type(self.step).__name__}): {self.kind.value}, {reason}"


def decisions_for(pipeline: Pipeline, models: ModelsFrom) -> list[Decision]:
    """Return a decision for each transformer of a Pipeline, in order.

    Parameters
    ----------
    pipeline : Pipeline
    models : ModelsFrom
        How the models of the last step are trained.
    """
    *before, (_, last) = pipeline.steps
    linear: list[tuple[str, Any]] = []
    if models is ModelsFrom.SUMS:
        before, linear = split_linear(before)
    # Selectors count columns, so an encoder must not add any that a training set lacks.
    learner = None if linear else last
    decisions = list(_decisions("", Pipeline(before), models, learner, ()))
    for name, step in linear:
        reason = why_not_linear(step, last)
        kind = Kind.PER_FOLD if reason else Kind.FROM_SUMS
        reason = reason or (_MEANS if type(step) is StandardScaler else _MOMENTS)
        decisions.append(Decision(name, step, kind, reason))
    return decisions


def why_not_ahead(decisions: Sequence[Decision], models: ModelsFrom, learner: Any) -> str:
    """Return the reasons why transformers must be fitted per fold; "" if there are none.

    A transformer that must be fitted per fold only because of a later one, such as a scaler that
    precedes SelectKBest, is mentioned only if there is no other reason.

    Parameters
    ----------
    decisions : sequence of Decision
    models : ModelsFrom
    learner : estimator
    """
    per_fold = [d for d in decisions if d.kind is Kind.PER_FOLD]
    alone = [d for d in per_fold if decide(d.step, models, learner)[0] is Kind.PER_FOLD]
    reasons = [f"{d.path!r} must be fitted per fold: {d.reason}" for d in alone]
    reasons = reasons or [f"{d.path!r} must be fitted per fold: {d.reason}" for d in per_fold[-1:]]
    return "the step " + ", and the step ".join(reasons) if reasons else ""


def _decisions(
    path: str, step: Any, models: ModelsFrom, learner: Any, later_steps: tuple[Any, ...]
) -> Iterator[Decision]:
    """Yield a decision for each transformer in a step, except composed ones."""
    if is_passed(step):
        return
    if type(step) not in COMPOSED:
        yield Decision(path, step, *decide(step, models, learner, later_steps))
        return
    is_row = type(step) is Pipeline
    if models in (ModelsFrom.KERNEL, ModelsFrom.PARTIAL_FIT, ModelsFrom.SUMS) and not is_row:
        reason = (
            f"{type(step).__name__} has transformer_weights" if step.transformer_weights else ""
        )
        if models is ModelsFrom.SUMS and not reason and type(step) is ColumnTransformer:
            reason = _why_columns_vary(step)
        if reason:
            yield Decision(path, step, Kind.PER_FOLD, reason)
            return
    parts = parts_of(step)
    for number, (name, part, *_) in enumerate(parts, 1):
        others = (other for _, other, *_ in parts[number:] if is_row and not is_passed(other))
        yield from _decisions(path_to(path, name), part, models, learner, (*others, *later_steps))


def decide(
    step: Any, models: ModelsFrom, learner: Any = None, later_steps: Sequence[Any] = ()
) -> tuple[Kind, str]:
    """Return the kind of a transformer and the reason for it, see ``Decision``.

    Parameters
    ----------
    step : transformer
        Not composed of others.
    models : ModelsFrom
    learner : estimator
    behind : sequence of transformers
        The transformers between this one and the learner.
    """
    if models is ModelsFrom.FIT:
        reason = "" if hasattr(step, "partial_fit") else why_not_once(step)
        return Kind.PER_FOLD, reason or "the models are refitted per fold"
    if models is ModelsFrom.PARTIAL_FIT_IN_ORDER:
        return Kind.INCREMENTAL, _how_it_runs(step)
    if models is ModelsFrom.SUMS:
        return _decide_for_sums(step, learner, later_steps)
    if models is ModelsFrom.PARTIAL_FIT and runs_in_python(step):
        kind, how = Kind.INCREMENTAL, _how_it_runs(step)
        why_not = _why_not_trained(step, later_steps)
    elif type(step) is StandardScaler:
        kind, how = (Kind.COMPILED, "by the mean and scale of the rows that a model has seen")
        why_not = _why_not_compiled(step, models, learner, later_steps)
    elif is_running_imputer(step) and isinstance(learner, CompiledEstimator):
        kind, how = Kind.COMPILED, "by the means of the values that a model has seen"
        why_not = _why_not_compiled(step, models, learner, later_steps)
    elif adds_columns(step):
        kind, how = Kind.FITTED_ONCE, "columns that are 0 in all training rows have no effect"
        why_not = why_not_once(step) or _why_columns_act(learner, later_steps)
    else:
        kind, how = Kind.STATELESS, _EACH_ROW
        why_not = why_not_once(step)
    return (Kind.PER_FOLD, why_not) if why_not else (kind, how)


def _decide_for_sums(step: Any, learner: Any, later_steps: Sequence[Any]) -> tuple[Kind, str]:
    """Return (kind, reason) for models from sums; ``ONCE_IF_EQUAL`` still depends on the rows."""
    kind, why_not = type(step), why_not_rowwise(step)
    # An imputer by sums leaves missing values in the rows, which an indicator would still find.
    leaves = [leaf for part in later_steps for _, leaf in leaves_of("", part)]
    marks_missing = kind is SimpleImputer and any(
        getattr(leaf, "add_indicator", False) for leaf in leaves
    )
    if acts_on_columns(step) and all(map(acts_on_columns, later_steps)) and not marks_missing:
        if kind is StandardScaler:
            return Kind.FROM_SUMS, _MEANS
        statistic = step.strategy if kind is SimpleImputer else "range"
        return (Kind.FROM_SUMS, f"a training set changes only the {statistic} of each column")
    if why_not and acts_on_columns(step) and kind is not SimpleImputer:
        other = next(part for part in later_steps if not acts_on_columns(part))
        return Kind.PER_FOLD, (
            f"its statistics differ between folds, and the later {type(other).__name__} uses them"
        )
    if why_not and kind is SimpleImputer:
        or_else = (
            ", or the next step encodes the category that each fold fills in"
            if later_steps and fills_categories(step, later_steps[0])
            else ""
        )
        return Kind.ONCE_IF_EQUAL, f"each training set gives the same value{or_else}"
    if why_not and kind is OneHotEncoder:
        if not later_steps and not why_not_once(step) and ignores_zero_columns(learner):
            reason = "the coefficient of a category that occurs in no training row is 0"
            return Kind.FITTED_ONCE, reason
        return Kind.ONCE_IF_EQUAL, "each training set has the same categories"
    return (Kind.PER_FOLD, why_not) if why_not else (Kind.STATELESS, _EACH_ROW)


def acts_on_columns(step: Any) -> bool:
    """Return whether a step imputes, centers or scales columns by training statistics."""
    if type(step) in COMPOSED:
        if getattr(step, "transformer_weights", None):
            return False
        return all(is_passed(part) or acts_on_columns(part) for _, part, *_ in parts_of(step))
    if type(step) is SimpleImputer:
        return step.strategy in ("mean", "median", "most_frequent") and _fills_nan(step)
    return type(step) is StandardScaler or (type(step) is MinMaxScaler and not step.clip)


def _fills_nan(step: SimpleImputer) -> bool:
    missing = step.missing_values
    is_nan = isinstance(missing, Real) and bool(missing != missing)
    return is_nan or repr(missing) == "<NA>"


def _why_columns_vary(step: ColumnTransformer) -> str:
    """Return the reason why the columns of a branch may depend on the rows; "" if they do not."""
    for name, _, columns in step.transformers:
        if callable(columns) and type(columns) is not make_column_selector:
            return f"a function, which may use all rows, selects the columns of {name!r}"
    return ""


def _how_it_runs(step: Any) -> str:
    """Return a description of how a transformer is run in Python."""
    if hasattr(step, "partial_fit"):
        return "by partial_fit on each training phase"
    if type(step) is FunctionTransformer and why_not_once(step):
        return "on the rows of each training phase separately"
    if get_tags(step).requires_fit:
        return "on each phase"
    return "on each training phase, because it is stateless"


def runs_in_python(step: Any) -> bool:
    """Return whether a transformer is trained in Python by ``partial_fit``."""
    return hasattr(step, "partial_fit") and type(step) not in ROWWISE


def ignores_zero_columns(learner: Any) -> bool:
    """Return whether columns that are zero in all training rows have no effect on a learner."""
    if isinstance(learner, CompiledEstimator):
        return learner.is_linear
    name = type(learner).__name__
    if not type(learner).__module__.startswith("sklearn.linear_model."):
        return False
    penalty = getattr(learner, _PENALISED.get(name, ""), None)
    return name in _LINEAR or (isinstance(penalty, Real) and 0 < float(penalty) < np.inf)


def _why_not_trained(step: Any, later_steps: Sequence[Any]) -> str:
    if not all(map(_only_runs, later_steps)):
        return "it changes during training, but a later step is fitted only once"
    try:
        check_incremental(step, of_class=False, called="it", transforms=True)
    except ValueError as error:
        return str(error).removesuffix(".")
    return ""


def _why_not_compiled(
    step: Any, models: ModelsFrom, learner: CompiledEstimator, later_steps: Sequence[Any]
) -> str:
    """Return the reason why a kernel cannot run a scaler or mean imputer; "" if it can."""
    is_scaler, is_supported = type(step) is StandardScaler, not later_steps
    if not is_scaler:
        if step.add_indicator:
            return "add_indicator=True uses all rows"
        if not _fills_nan(step):
            return f"its missing_values is {step.missing_values!r} instead of NaN"
        run_in_python = models is ModelsFrom.PARTIAL_FIT and all(map(_only_runs, later_steps))
        is_supported = run_in_python or [type(part) for part in later_steps] in (
            [],
            [StandardScaler],
        )
    if not is_supported:
        statistics = "scales" if is_scaler else "means"
        return f"its {statistics} change during training, but a later step is fitted only once"
    if models is ModelsFrom.PARTIAL_FIT:
        return "its means are computed only in the kernels, but other steps run in Python"
    if learner.settles_on_rows:
        rows = "scaled rows" if is_scaler else "rows"
        return f"{type(learner).__name__} derives its step size from the {rows}"
    return ""


def _why_columns_act(learner: Any, later_steps: Sequence[Any]) -> str:
    """Return the reason why a column of zeros affects the learner; "" if it does not."""
    if not ignores_zero_columns(learner):
        return f"a category without training rows would affect {type(learner).__name__}"
    if not all(map(_keeps_zeros, later_steps)):
        return "a later step would use categories without training rows"
    return ""


def _only_runs(step: Any) -> bool:
    """Return whether a step, or each step of a Pipeline, is trained by ``partial_fit``."""
    if type(step) is Pipeline:
        return all(is_passed(part) or _only_runs(part) for _, part in step.steps)
    return runs_in_python(step)


def _keeps_zeros(step: Any) -> bool:
    """Return whether a transformer keeps columns of zeros, and they affect no other column."""
    if type(step) in COMPOSED:
        return all(_keeps_zeros(part) for _, part, *_ in parts_of(step))
    if type(step) is MinMaxScaler:  # turns a column of zeros into its minimum
        return bool(step.feature_range[0] == 0)
    if is_passed(step) or type(step) in (StandardScaler, MaxAbsScaler, PolynomialFeatures):
        return True
    if type(step) is SimpleImputer:  # zeros may be its missing_values
        return not (isinstance(step.missing_values, Real) and step.missing_values == 0)
    return type(step) is FunctionTransformer and step.func is None


def why_not_once(step: Any) -> str:
    """Return the reason why a transformer cannot be fitted once for all folds; "" if it can."""
    kind = type(step)
    if kind is FunctionTransformer:
        # A ufunc with a signature sees whole rows or columns, and arguments may contain an entry
        # per row; without either, a function sees one number at a time.
        func = step.func
        is_ufunc = isinstance(func, np.ufunc) and func.signature is None and not step.kw_args
        return "" if func is None or is_ufunc else "its function may use all rows"
    if kind is SimpleImputer:
        if step.strategy != "constant":
            return f"strategy={step.strategy!r} depends on the rows"
        return "add_indicator=True uses all rows" if step.add_indicator else ""
    if kind is OneHotEncoder:
        adds = adds_columns(step)
        if step.handle_unknown != "ignore" and (adds or step.handle_unknown != "error"):
            return (
                f"handle_unknown={step.handle_unknown!r} does not ignore categories that are "
                "absent from a training set"
            )
        if adds and step.drop is not None:
            return f"drop={step.drop!r} depends on the rows"
    if kind is OneHotEncoder or (kind is CountVectorizer and adds_columns(step)):
        for name, value in _NO_FREQUENCIES[kind].items():
            setting = getattr(step, name)
            # The type is compared, too, because 1 is a number of rows, whereas 1.0 is a share of
            # the rows.
            if type(setting) is not type(value) or setting != value:
                effect = "depends on the rows" if kind is OneHotEncoder else "counts rows"
                return f"its {name} {effect}"
    if kind in (CountVectorizer, HashingVectorizer):
        for name in ("preprocessor", "tokenizer", "analyzer"):
            if callable(getattr(step, name)):
                return f"its {name} is a function, which may use other rows"
    is_once = kind in (CountVectorizer, OneHotEncoder, *ROWWISE)
    return "" if is_once else f"{kind.__name__} learns from the rows"


def why_not_rowwise(step: Any) -> str:
    """Return the reason why the output of a transformer depends on its training rows.

    The reason is "" if the transformer transforms each row independently of the rows on which it
    is fitted.
    """
    if adds_columns(step):
        return "it creates a column for each value in the training rows"
    if type(step) is SimpleImputer and not step.keep_empty_features:
        return "it drops columns without values in a training set"
    return why_not_once(step)


class DividedPipeline(NamedTuple):
    """A Pipeline that is divided into preprocessing and learner.

    If the learner is compiled and its kernel supports all incremental transformers, the kernel
    runs them. Otherwise each transformer with ``partial_fit`` is trained in Python on the rows of
    each phase.

    Attributes
    ----------
    pipeline : Pipeline
    before : Pipeline
        The preprocessing, not fitted.
    kinds : dict
        The kinds of transformers by path, see ``Decision``.
    last : estimator
        The learner.
    prefix : str
        The prefix of the learner's parameters.
    is_compiled : bool
        Whether the learner is a CompiledEstimator whose kernel runs the incremental transformers.
        Otherwise they run in Python.
    why_python : str
        The reason why the transformers of a compiled learner run in Python; "" if they do not.
    """

    pipeline: Pipeline
    before: Pipeline
    kinds: dict[str, Kind]
    last: Any
    prefix: str
    is_compiled: bool
    why_python: str = ""


def compiled_part(estimator: Any) -> CompiledEstimator | None:
    """Return the compiled learner if a kernel can run the whole estimator or Pipeline, or None."""
    if isinstance(estimator, CompiledEstimator):
        return estimator
    parts = split(estimator)
    return parts.last if isinstance(parts, DividedPipeline) and parts.is_compiled else None


def split(estimator: Any) -> DividedPipeline | str:
    """Divide a Pipeline, or return the reason why its preprocessing must be refitted per fold.

    The reason is "" if there is no Pipeline, if its learner has no ``partial_fit``, or if the
    whole Pipeline can be trained incrementally, step by step.
    """
    if type(estimator) is not Pipeline or all(is_passed(step) for _, step in estimator.steps[:-1]):
        return ""
    if not isinstance(estimator.steps[-1][1], CompiledEstimator):
        return split_in_python(estimator)
    by_kernel = _split(estimator, ModelsFrom.KERNEL)
    if isinstance(by_kernel, DividedPipeline):
        return by_kernel
    in_python = split_in_python(estimator, by_kernel)
    if isinstance(in_python, DividedPipeline):
        return in_python
    # The reason why a kernel does not support a step is irrelevant if the step can run in Python.
    steps = (step for _, step in leaves_of("", Pipeline(estimator.steps[:-1])))
    needs_python = any(runs_in_python(s) and type(s) is not StandardScaler for s in steps)
    return in_python if in_python and needs_python else by_kernel


def split_in_python(pipeline: Pipeline, why_python: str = "") -> DividedPipeline | str:
    """Divide a Pipeline whose incremental transformers run in Python, see ``split``."""
    last = pipeline.steps[-1][1]
    if is_incremental(pipeline) or not hasattr(last, "partial_fit") or not is_incremental(last):
        return ""
    return _split(pipeline, ModelsFrom.PARTIAL_FIT, why_python)


def _split(pipeline: Pipeline, models: ModelsFrom, why_python: str = "") -> DividedPipeline | str:
    *before, (name, last) = pipeline.steps
    decisions = decisions_for(pipeline, models)
    if reason := why_not_ahead(decisions, models, last):
        return reason
    steps = copy(pipeline)
    steps.steps, steps.memory = before, None
    kinds = {d.path: d.kind for d in decisions}
    return DividedPipeline(
        pipeline, steps, kinds, last, f"{name}__", models is ModelsFrom.KERNEL, why_python
    )


def why_not_incremental_transformers(estimator: Any) -> str:
    """Return the reason why a learner must not use incremental transformers; "" if it may.

    The first rows are scaled by the statistics of only a few rows. Learners that take gradient
    steps forget these rows, but naive Bayes gives all rows the same weight.
    """
    last = last_step(estimator)
    if isinstance(last, NAIVE_BAYES):
        for path, leaf in leaves_of("", estimator):
            if leaf is not last and runs_in_python(leaf):
                kind = type(last).__name__
                return (
                    f"the step {path!r} would transform the first rows by the statistics of only "
                    f"a few rows, and {kind} gives these rows the same weight as all others"
                )
    return ""


def has_branches(estimator: Any) -> bool:
    """Return whether a step of a Pipeline has branches."""
    steps = estimator.steps if type(estimator) is Pipeline else ()
    return any(type(step) in (ColumnTransformer, FeatureUnion) for _, step in steps)
