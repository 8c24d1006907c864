"""Replacements for scikit-learn's searches and cross-validations, with the same scores.

Each class and function has the same name, arguments and results as the one of scikit-learn that it
replaces. It is evaluated by an engine of this package if the engine is guaranteed to give the same
scores as separate fits. Otherwise scikit-learn runs the call.
"""

from abc import ABC
from abc import ABCMeta
from collections import deque
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from functools import wraps
from inspect import signature
from numbers import Real
import operator
from time import perf_counter
from types import FunctionType
from types import SimpleNamespace
from typing import Any
from typing import ClassVar

import numpy as np
import sklearn
from sklearn import get_config
from sklearn import linear_model
from sklearn import model_selection
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.linear_model import _logistic
from sklearn.metrics import check_scoring
from sklearn.pipeline import Pipeline
from sklearn.utils import check_random_state
from sklearn.utils import indexable
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.parallel import Parallel

from optuna_treecv.caching.keys import encode
from optuna_treecv.caching.keys import first_key
from optuna_treecv.core.batch import evaluate_batch
from optuna_treecv.core.cross_validation import CrossValidation
from optuna_treecv.core.result import CVResult
from optuna_treecv.core.run import Run
from optuna_treecv.core.settings import quietly
from optuna_treecv.core.settings import Settings
from optuna_treecv.core.settings import warn_caller
from optuna_treecv.crossval.evaluate import cross_validation_for
from optuna_treecv.crossval.evaluate import nested_parameter
from optuna_treecv.crossval.evaluate import run_for
from optuna_treecv.crossval.evaluate import runs_for
from optuna_treecv.estimators.base import last_step
from optuna_treecv.estimators.base import name_of
from optuna_treecv.estimators.base import unset_seeds
from optuna_treecv.plans.joint import JointPlan
from optuna_treecv.scoring.metrics import make_scoring
from optuna_treecv.scoring.metrics import Scorer
from optuna_treecv.scoring.metrics import Scoring
from optuna_treecv.search.scores import ranks_of
from optuna_treecv.search.scores import scores_of
from optuna_treecv.search.scores import SearchScores

# The methods that grow each ensemble once. Their scores are equal to those of separate fits.
_GROWING_METHODS = frozenset({"boosting", "bagging"})

# The methods whose scores are equal to those of fits that have converged.
_CONVERGED_METHODS = frozenset({"exact", "kernel", "newton"})

#: All methods that are guaranteed to give scikit-learn's scores.
EQUIVALENT_METHODS = frozenset({"neighbors"}) | _CONVERGED_METHODS | _GROWING_METHODS

# The maximum number of recorded calls; older calls are dropped.
_MAX_CALLS = 10_000

# The columns of ``cv_results_`` that functions for ``refit`` do not get.
_TIMES = ("mean_fit_time", "std_fit_time", "mean_score_time", "std_score_time")

ONE_SHOT_CV = "cv is a generator, which can be iterated only once"

# If X has fewer entries, the paths of ``LassoCV`` are as fast as exact folds.
_MIN_ENTRIES = 2**23


class LeftToSklearn(Exception):
    """Raised if scikit-learn must run a call; the message is the reason."""


@dataclass
class Call:
    """The record of a call of a replaced function, or of ``fit`` of a replaced class.

    Attributes
    ----------
    name : str
        The function or class.
    estimator : str
        The name of the estimator.
    method : str
        The method by which the call was evaluated; "" if scikit-learn ran the call.
    reason : str
        The reason why scikit-learn ran the call; "" if an engine did.
    seconds : float
        The duration of the call.
    seconds_before : float or None
        The duration of the same call in scikit-learn; None if calls are not checked.
    difference : float or None
        The largest difference between a score and the score of scikit-learn; None if calls are not
        checked.
    remark : str
        A description of other differences.
    """

    name: str
    estimator: str
    method: str = ""
    reason: str = ""
    seconds: float = 0.0
    seconds_before: float | None = None
    difference: float | None = None
    remark: str = ""


# The most recent calls, and whether each call is checked, that is, also run by scikit-learn.
RECORD = SimpleNamespace(is_checked=False, calls=deque[Call](maxlen=_MAX_CALLS))


def replace_function(
    original: Callable[..., Any], by_engine: Callable[..., Any], name: str
) -> Any:
    """Return a replacement for a scikit-learn function, evaluated by an engine if possible.

    If the engine raises an error, scikit-learn runs the call, and may raise its own error. If
    calls are checked, scikit-learn also runs the calls that an engine has evaluated. Before each
    run, NumPy's global generator and the generators in the arguments are set to the same state.

    Parameters
    ----------
    original : callable
        The function, or the ``fit`` method of a class.
    by_engine : callable
        Takes a ``Call`` and the arguments of the original. It sets the ``method`` of the call.
    name : str
        The name of the function or class.
    """

    @wraps(original)
    def stand_in(estimator: Any, *args: Any, **options: Any) -> Any:
        fitted = (
            estimator if name == original.__name__ else getattr(estimator, "estimator", estimator)
        )
        call = Call(name, name_of(fitted))
        attributes = (getattr(estimator, name, None) for name in ("cv", "random_state"))
        arguments = options.get("cv"), options.get("random_state")
        start, states = perf_counter(), _random_states(*arguments, *attributes)
        try:
            result = by_engine(call, estimator, *args, **options)
        except Exception as error:
            call.method, call.reason = "", str(error).partition("\n")[0]
        if not call.method:
            _restore(states)
            start = perf_counter()
            result = original(estimator, *args, **options)
        call.seconds = perf_counter() - start
        if call.method and RECORD.is_checked:
            _restore(states)
            start = perf_counter()
            before = original(clone(estimator), *args, **options)
            call.seconds_before = perf_counter() - start
            call.difference = max(
                map(_difference, _arrays_to_compare(result), _arrays_to_compare(before)),
                default=0.0,
            )
            ours, theirs = (repr(getattr(r, "best_params_", None)) for r in (result, before))
            if ours != theirs:
                call.remark = f"best_params_ are {ours}, in scikit-learn {theirs}"
        RECORD.calls.append(call)
        return result

    stand_in.__module__ = __name__  # pickle looks it up in this module
    return stand_in


def _random_states(*random: Any) -> list[tuple[np.random.RandomState, Any]]:
    """Return the states of NumPy's global generator and of the generators in the arguments."""
    values = [getattr(v, "random_state", v) for v in random]
    generators = [v for v in values if isinstance(v, np.random.RandomState)]
    return [(g, g.get_state()) for g in (check_random_state(None), *generators)]


def _restore(states: list[tuple[np.random.RandomState, Any]]) -> None:
    for generator, state in states:
        generator.set_state(state)


def select_method(runs: list[Run]) -> str:
    """Return the method of runs; raise an error if scikit-learn's scores are not guaranteed."""
    methods = {run.plan.name: run for run in runs}
    equivalent = sorted(methods.keys() & EQUIVALENT_METHODS)
    for name, run in methods.items():
        if name not in EQUIVALENT_METHODS and (name != "fit" or not equivalent):
            raise LeftToSklearn(run.reason or f"method={name!r} and fit give different models")
        if name in _GROWING_METHODS and unset_seeds(run.estimator):
            raise LeftToSklearn("random_state is None, so results differ between runs")
        if name in _CONVERGED_METHODS:
            _check_converges(run.estimator)
    is_grown_separately = len({_parameters_except_size(run.estimator) for run in runs}) == len(
        runs
    )
    if is_grown_separately and _GROWING_METHODS & methods.keys():
        raise LeftToSklearn("no two candidates differ only in their number of trees")
    return ", ".join(equivalent)


def _parameters_except_size(estimator: Any) -> str:
    """Return the parameters of an ensemble, except its number of trees, as a string."""
    size = nested_parameter(estimator)
    return repr([item for item in estimator.get_params().items() if item[0] != size])


def _check_converges(estimator: Any) -> None:
    """Raise an error if a solver stops earlier than with its default ``max_iter`` and ``tol``."""
    last = last_step(estimator)
    defaults = type(last)().get_params()
    for name, is_early in (("max_iter", operator.lt), ("tol", operator.gt)):
        value: Any = getattr(last, name, None)
        default: Any = defaults.get(name)
        if value is not None and (default is None or is_early(value, default)):
            raise LeftToSklearn(f"{name}={value!r} may stop fits before they have converged")


def _weights(estimator: Any, params: Mapping[str, Any]) -> Any:
    """Return ``sample_weight``; raise an error if ``fit`` has any other argument."""
    if others := params.keys() - {"sample_weight"}:
        raise LeftToSklearn(f"fit is called with the arguments {', '.join(sorted(others))}")
    weights = params.get("sample_weight")
    if weights is not None and isinstance(estimator, Pipeline):
        raise LeftToSklearn("fit of a Pipeline is called with sample_weight")
    return weights


def scores_for(scoring: Any, estimator: Any, y: Any) -> SearchScores:
    """Return the scores for ``scoring``; raise an error if one is a loss of this package."""
    if scoring is not None and type(scoring) is type(check_scoring(estimator)):
        scoring = None  # RidgeCV passes the estimator's own score to its search
    scores = scores_of(scoring, estimator, has_y=y is not None)
    scoring = make_scoring(scores.requested)
    if scoring is None or not all(isinstance(metric, Scorer) for metric in scoring.metrics):
        raise LeftToSklearn("scoring is a loss of this package")
    return scores


def _settings(
    estimator: Any, y: Any, groups: Any, cv: Any, n_jobs: Any, **options: Any
) -> Settings:
    """Return the settings of a cross-validation with scikit-learn's splits."""
    is_routed = groups is not None or options.get("sample_weight") is not None
    if is_routed and get_config()["enable_metadata_routing"]:
        raise LeftToSklearn("arguments are passed by metadata routing")
    if np.ndim(y) == 2 and np.shape(y)[1] == 1:
        raise LeftToSklearn("y is a column vector, for which scikit-learn warns")
    if hasattr(cv, "__next__"):
        raise LeftToSklearn(ONE_SHOT_CV)
    return Settings(
        cv=model_selection.check_cv(cv, y, classifier=is_classifier(estimator)),
        shuffle=False,
        groups=groups,
        n_jobs=n_jobs,
        random_state=0,
        **options,
    )


def evaluate(
    call: Call, X: Any, y: Any, settings: Settings, estimators: list[Any]
) -> list[CVResult]:
    """Cross-validate estimators by an engine; raise an error if scores might differ."""
    return [run.result() for run in evaluate_runs(call, X, y, settings, estimators)]


def evaluate_runs(
    call: Call, X: Any, y: Any, settings: Settings, estimators: list[Any], *, models: bool = False
) -> list[Run]:
    """Return the complete runs of estimators; raise an error if scores might differ.

    If ``models`` is true, an error is also raised if the models of the folds must be refitted.
    """
    if getattr(getattr(X, "dtype", None), "kind", "f") in "SU":
        raise LeftToSklearn("X contains strings")
    if len({isinstance(name, str) for name in getattr(X, "columns", ())}) > 1:
        raise LeftToSklearn("some column names are not strings")
    with quietly():  # no warnings, because scikit-learn may run the call
        runs = runs_for(cross_validation_for(X, y, settings, estimators), estimators)
        call.method = select_method(runs)
    if models and not all(_solves_for_models(run) for run in runs):
        raise LeftToSklearn("the models of the folds would be refitted")
    evaluate_batch(runs)
    for run in runs:
        run.complete()
    return runs


def _solves_for_models(run: Run) -> bool:
    """Return whether the models of the folds are known without fits."""
    return isinstance(run.plan, JointPlan) and run.plan.parts.family.is_linear


def _need_models(scores: SearchScores) -> bool:
    """Return whether a scorer may use more of a model than its predictions."""
    scoring = make_scoring(scores.requested)
    assert isinstance(scoring, Scoring)
    return any(isinstance(metric, Scorer) and not metric.is_made for metric in scoring.metrics)


def _scores_of_models(
    run: Run, models: Iterable[Any], X: Any, y: Any, scores: SearchScores, *, is_train: bool
) -> list[Any]:
    """Return the scores of each fold's model on its training or test rows.

    The scores of a fold are what scikit-learn's scorer returns: a dict if there are several.
    """
    cut, estimator = run.plan.repeats[0].cut, run.estimator
    chunks = np.argsort([cut.number(chunk) for chunk in range(cut.n_folds)])
    of_folds = []
    for chunk, model in zip(chunks.tolist(), models, strict=True):
        split = cut.split(chunk)
        rows = np.sort(split.train_rows()) if is_train else cut.test_rows(chunk)
        part = _safe_split(estimator, X, y, rows)
        returned = {name: scorer(model, *part) for name, scorer in scores.scorers.items()}
        of_folds.append(returned if scores.is_multiple else returned[scores.names[0]])
    return of_folds


class _StandIn(ABC):
    """A class of scikit-learn whose ``fit`` is evaluated by an engine if possible.

    Objects are pickled as objects of the class that is replaced, so that loading them does not
    need this package. Objects of that class are also instances of this class.
    """

    stands_for: ClassVar[type]

    @classmethod
    def __subclasshook__(cls, subclass: type) -> Any:
        original = vars(cls).get("stands_for")  # a subclass does not have it in its own namespace
        return original in subclass.__mro__ or NotImplemented

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        if "stands_for" not in vars(type(self)):  # a subclass
            return super().__reduce_ex__(protocol)
        state = {**self.__getstate__(), "_sklearn_version": sklearn.__version__}
        return object.__new__, (self.stands_for,), state


def replace_class(original: Any, by_engine: Callable[..., Any]) -> Any:
    """Return a subclass with the same name whose ``fit`` is evaluated by an engine if possible."""
    name = original.__name__
    names = {
        "__doc__": f"``{original.__module__.rpartition('.')[0]}.{name}``, by an engine.",
        "__module__": __name__,
        "stands_for": original,
        "fit": replace_function(original.fit, by_engine, name),
    }
    return ABCMeta(name, (_StandIn, original), names)


def _fit_search(call: Call, search: Any, X: Any, y: Any = None, **params: Any) -> Any:
    """Fit a ``GridSearchCV`` or ``RandomizedSearchCV`` by an engine."""
    if type(search)._run_search is not search.stands_for._run_search:
        raise LeftToSklearn("a subclass overrides _run_search")
    if getattr(search, "_skl_callbacks", None) or search.verbose > 2:
        raise LeftToSklearn("callbacks and verbose > 2 report each single fit")
    groups = params.pop("groups", None)
    weights = _weights(search.estimator, params)
    scorers, refit_metric = search._get_scorers()
    X, y = indexable(X, y)
    scores = scores_for(search.scoring, search.estimator, y)
    folds = groups, search.cv, search.n_jobs
    needs_models = _need_models(scores)
    has_models = search.return_train_score or needs_models
    if has_models and weights is not None:
        raise LeftToSklearn("scorers that are called with models would need the weights of rows")
    metrics = scores_for(None, search.estimator, y) if needs_models else scores
    options = {"sample_weight": weights, "scoring": metrics.requested}
    settings = _settings(search.estimator, y, *folds, **options)
    if hasattr(search, "param_grid"):
        candidates = list(model_selection.ParameterGrid(search.param_grid))
    else:
        space, random_state = search.param_distributions, search.random_state
        drawn = model_selection.ParameterSampler(space, search.n_iter, random_state=random_state)
        candidates = list(drawn)
    keys = [first_key(params, encode) or object() for params in candidates]
    distinct = dict(zip(keys, candidates, strict=True))
    with_params = [
        clone(search.estimator).set_params(**clone(p, safe=False)) for p in distinct.values()
    ]
    runs = evaluate_runs(call, X, y, settings, with_params, models=has_models)
    search.n_splits_ = len(runs[0].result().test_score)
    splits_by_key: dict[Any, list[dict[str, Any]]] = {}
    for key, run in zip(distinct, runs, strict=True):
        models = [*run.fold_models()] if has_models else []
        of_models = partial(_scores_of_models, run, models, X, y, scores)
        tests = of_models(is_train=False) if needs_models else _split_scores(run, scores)
        if isinstance(tests[0], Mapping) and not scores.is_multiple:
            raise LeftToSklearn("the scorer returns several scores")
        times = {"fit_time": run.result().seconds / search.n_splits_, "score_time": 0.0}
        splits_by_key[key] = [{**times, "test_scores": split} for split in tests]
        if search.return_train_score:
            for split, train in zip(splits_by_key[key], of_models(is_train=True), strict=True):
                split["train_scores"] = train
    out = [split for key in keys for split in splits_by_key[key]]
    table = search._format_results(candidates, search.n_splits_, out)
    for name in scores.names:
        table[f"rank_test_{name}"] = ranks_of(table[f"mean_test_{name}"])
    search.multimetric_ = scores.is_multiple
    if search.refit or not search.multimetric_:
        search.best_index_ = _select_best(search, refit_metric, table)
        if not callable(search.refit):
            search.best_score_ = table[f"mean_test_{refit_metric}"][search.best_index_]
        search.best_params_ = table["params"][search.best_index_]
    if search.refit:
        start = perf_counter()
        best = clone(search.estimator).set_params(**clone(search.best_params_, safe=False))
        search.best_estimator_ = best.fit(*((X,) if y is None else (X, y)), **params)
        _warn_if_stopped(best)
        search.refit_time_ = perf_counter() - start
        if hasattr(best, "feature_names_in_"):
            search.feature_names_in_ = best.feature_names_in_
    search.scorer_ = getattr(scorers, "_scorers", scorers)
    search.cv_results_ = table
    return search


def _select_best(search: Any, refit_metric: str, table: Mapping[str, Any]) -> Any:
    """Return the index of the best candidate.

    Candidates share their work, so their times cannot be compared. A function that chooses the
    best candidate gets no times, and scikit-learn runs the search if it needs them.
    """
    if callable(search.refit):
        table = {name: column for name, column in table.items() if name not in _TIMES}
    try:
        return search._select_best_index(search.refit, refit_metric, table)
    except KeyError as error:
        raise LeftToSklearn(
            "times of candidates that share their work cannot be compared"
        ) from error


def _warn_if_stopped(best: Any) -> None:
    """Warn if the refit has not converged, although the models of the folds have."""
    last = last_step(best)
    n_iter, max_iter = getattr(last, "n_iter_", None), getattr(last, "max_iter", None)
    if n_iter is None or max_iter in (None, -1):  # -1 is no limit
        return
    if np.max(n_iter) >= max_iter:
        warn_caller(
            "best_estimator_ has not converged, but the models whose scores are in cv_results_ "
            "have converged, so best_estimator_ may be worse than these scores suggest. Increase "
            "max_iter or scale the columns."
        )


def _split_scores(run: Run, scores: SearchScores) -> list[Any]:
    """Return the score of each split: a float, or a dict if there are several scores."""
    result = run.result()
    if not scores.is_multiple:
        return result.test_score.tolist()
    columns = [result.scores[name].test_score.tolist() for name in scores.names]
    return [dict(zip(scores.names, row, strict=True)) for row in zip(*columns, strict=True)]


def _arrays_to_compare(result: Any) -> list[Any]:
    """Return the arrays to compare with scikit-learn: split scores, predictions or features."""
    result = getattr(result, "cv_results_", result)
    if isinstance(result, tuple):
        return [*result]
    if isinstance(result, Mapping):
        names = [n for n in result if n.startswith(("split", "test_")) and "test_" in n]
        return [result[name] for name in names]
    if hasattr(result, "support_"):
        return [1.0 * result.support_]
    result = getattr(result, "mse_path_", getattr(result, "scores_", result))
    return [*result.values()] if isinstance(result, Mapping) else [result]


def _difference(ours: Any, theirs: Any) -> float:
    """Return the largest difference between two arrays; it is relative for values above 1.

    For labels that are not numbers, return 1 if any label differs, else 0.
    """
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if ours.dtype.kind not in "fiub" or theirs.dtype.kind not in "fiub":
        return float(np.any(ours != theirs))
    with np.errstate(invalid="ignore"):
        differences = np.abs(ours - theirs) / np.maximum(1, np.abs(theirs))
    return float(np.nanmax(differences, initial=0.0))


def _fit_path(
    model: Any, call: Call, path: Any, X: Any, y: Any, sample_weight: Any = None, **params: Any
) -> Any:
    """Fit a ``LassoCV`` or ``ElasticNetCV`` by an engine, with converged models."""
    if path.positive:
        raise LeftToSklearn("positive is True")
    if params or sample_weight is not None:
        raise LeftToSklearn("fit is called with further arguments, such as sample_weight")
    X, y = indexable(X, y)
    if np.size(X) < _MIN_ENTRIES:
        raise LeftToSklearn("X is small, so scikit-learn's paths are as fast")
    targets = np.asarray(y, np.float64)
    if targets.ndim != 1:
        raise LeftToSklearn("y has several columns")
    options = path.get_params()
    common = {name: options[name] for name in model().get_params() if name in options}
    common |= {"precompute": False} if common["precompute"] == "auto" else {}
    ratios = np.atleast_1d(options.get("l1_ratio", 1.0))
    alphas = np.array([_alphas(path, X, targets, ratio) for ratio in ratios])
    models = []
    for ratio, ratio_alphas in zip(ratios, alphas, strict=True):
        common |= {"l1_ratio": ratio} if "l1_ratio" in common else {}
        models += [model(**{**common, "alpha": alpha}) for alpha in ratio_alphas]
    folds = None, path.cv, path.n_jobs
    settings = _settings(models[0], targets, *folds, scoring="neg_mean_squared_error")
    scores = [-result.test_score for result in evaluate(call, X, targets, settings, models)]
    split_errors = np.reshape(scores, (*alphas.shape, -1))
    means = split_errors.mean(axis=2)
    best = np.unravel_index(np.argmin(means), means.shape)
    fitted = models[int(np.ravel_multi_index(best, means.shape))].fit(X, targets)
    vars(path).update({k: v for k, v in vars(fitted).items() if k.endswith("_")})
    path.mse_path_ = np.squeeze(split_errors)
    path.alpha_ = alphas[best]
    path.alphas_ = alphas if len(ratios) > 1 and np.ndim(path.alphas) == 0 else alphas[0]
    if "l1_ratio" in options:
        path.l1_ratio_ = ratios[best[0]]
    return path


def _alphas(path: Any, X: Any, y: np.ndarray, ratio: float) -> np.ndarray:
    """Return the penalties in descending order; the largest default makes all coefficients 0."""
    if np.ndim(path.alphas):
        return np.sort(np.asarray(path.alphas, np.float64))[::-1]
    centred = y - y.mean() if path.fit_intercept else y
    largest = np.abs(np.asarray(X.T @ centred)).max() / (len(y) * ratio)
    return np.geomspace(largest, largest * path.eps, path.alphas)


def _fit_logistic_path(call: Call, path: Any, X: Any, y: Any, *args: Any, **params: Any) -> Any:
    """Fit a ``LogisticRegressionCV`` by an engine, with converged models.

    The models of all folds are solved jointly. The scores, the choice of the penalty and the refit
    are computed by scikit-learn's code. ``n_iter_`` is 0 for each fold.
    """
    path._validate_params()
    if hasattr(path.cv, "__next__"):
        raise LeftToSklearn(ONE_SHOT_CV)
    by_ratio: dict[float | None, dict[bytes, np.ndarray]] = {}

    def score_fold(X: Any, y: Any, train: Any, test: Any, **options: Any) -> Any:
        """Return the coefficients, penalties, scores and numbers of iterations for a fold."""
        penalties = options["Cs"]
        if np.ndim(penalties) == 0:
            penalties = np.logspace(-4, 4, penalties)
        ratio = options["l1_ratio"]
        if ratio not in by_ratio:
            Cs = np.asarray(penalties, np.float64)
            by_ratio[ratio] = _solve_folds(call, path, X, y, Cs, options)
        if (models := by_ratio[ratio].get(_key_of_rows(test))) is None:
            raise LeftToSklearn("cv yields different splits each time")
        solved = models, np.asarray(penalties), np.zeros(len(models), np.int32)
        score = with_globals(
            _logistic._log_reg_scoring_path, _logistic_regression_path=lambda *_, **__: solved
        )
        return score(X, y, train, test, **options)

    fit = with_globals(
        path.stands_for.fit.__wrapped__,
        _log_reg_scoring_path=score_fold,
        Parallel=lambda **options: Parallel(**{**options, "n_jobs": 1}),
    )
    return fit(path, X, y, *args, **params)


def _solve_folds(
    call: Call, path: Any, X: Any, y: Any, penalties: np.ndarray, options: dict[str, Any]
) -> dict[bytes, np.ndarray]:
    """Return the coefficients for all penalties, by the key of a fold's test rows."""
    names = ("class_weight", "dual", "fit_intercept", "intercept_scaling", "l1_ratio", "max_iter")
    common = {name: options[name] for name in (*names, "penalty", "solver", "tol")}
    estimators = [linear_model.LogisticRegression(C=C, **common) for C in penalties]
    folds = None, path.cv, path.n_jobs
    settings = _settings(estimators[0], y, *folds, sample_weight=options["sample_weight"])
    with quietly():
        cross_validation = cross_validation_for(X, y, settings, estimators)
        runs = runs_for(cross_validation, estimators)
        call.method = select_method(runs)
    if other_runs := [run for run in runs if run.plan.name != "newton"]:
        raise LeftToSklearn(other_runs[0].reason)
    plan, candidates = runs[0].plan, [run.estimator for run in runs]
    coefficients_of = plan.capabilities.coefficients
    assert coefficients_of is not None
    by_fold = {}
    for repeat in cross_validation.repeats:
        for fold, models in enumerate(coefficients_of(plan, candidates, repeat)):
            if not np.all(np.isfinite(models)):
                raise LeftToSklearn("the model of a fold has non-finite coefficients")
            coefficients = models[:, 0] if models.shape[1] == 1 else models
            by_fold[_key_of_rows(repeat.cut.tested_from(fold, fold + 1))] = coefficients
    if len(by_fold) < sum(repeat.cut.n_folds for repeat in cross_validation.repeats):
        raise LeftToSklearn("two folds have the same test rows")
    return by_fold


def _key_of_rows(rows: np.ndarray) -> bytes:
    return np.sort(rows).astype(np.int64).tobytes()


def with_globals(function: Any, **replacements: Any) -> Any:
    """Return a copy of a scikit-learn function in which some globals are replaced.

    There is no public way to pass the models to scikit-learn's code, and patching its module would
    affect other threads.
    """
    if missing := replacements.keys() - set(function.__code__.co_names):
        raise LeftToSklearn(f"this version of scikit-learn has no {sorted(missing)[0]}")
    names = {**function.__globals__, **replacements}
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


_cross_validate = model_selection.cross_validate
_cross_val_score = model_selection.cross_val_score
_cross_val_predict = model_selection.cross_val_predict


def settings_for_call(
    function: Any, estimator: Any, y: Any, options: dict[str, Any], **settings: Any
) -> Settings:
    """Return the settings for a call; weights are used only in training, not in scoring."""
    score, verbose = options.get("error_score", np.nan), options.get("verbose", 0)
    if (
        not options.keys() <= signature(function).parameters.keys()
        or isinstance(options.get("scoring"), set | frozenset)
        or not (isinstance(score, Real) or score == "raise")
        or not (isinstance(verbose, int) and verbose >= 0)
    ):
        raise LeftToSklearn("an argument is unknown or invalid")
    weights = _weights(estimator, options.get("params") or {})
    if weights is not None:
        settings |= {"sample_weight": weights, "score_weight": None}
    folds = (options.get(name) for name in ("groups", "cv", "n_jobs"))
    return _settings(estimator, y, *folds, **settings)


def _cross_val_score_by_engine(
    call: Call, estimator: Any, X: Any, y: Any = None, **options: Any
) -> Any:
    """Run ``cross_val_score`` by an engine."""
    scoring = options.get("scoring")
    if not (scoring is None or isinstance(scoring, str) or callable(scoring)):
        raise LeftToSklearn("scoring is not a single score")
    return _cross_validate_by_engine(call, estimator, X, y, **options)["test_score"]


def _cross_validate_by_engine(
    call: Call, estimator: Any, X: Any, y: Any = None, **options: Any
) -> Any:
    """Run ``cross_validate`` by an engine."""
    has_train, has_models, has_indices = (
        bool(options.get(f"return_{name}")) for name in ("train_score", "estimator", "indices")
    )
    scores = scores_for(options.get("scoring"), estimator, y)
    X, y = indexable(X, y)
    if has_indices:
        cv = model_selection.check_cv(options.get("cv"), y, classifier=is_classifier(estimator))
        options["cv"] = [*cv.split(X, y, options.pop("groups", None))]
    needs_models = _need_models(scores)
    metrics = scores_for(None, estimator, y) if needs_models else scores
    settings = settings_for_call(_cross_validate, estimator, y, options, scoring=metrics.requested)
    uses_models = has_train or has_models or needs_models
    (run,) = evaluate_runs(call, X, y, settings, [clone(estimator)], models=uses_models)
    n_splits = run.book.scores.shape[1]
    returned: dict[str, Any] = {
        "fit_time": np.full(n_splits, run.result().seconds / n_splits),
        "score_time": np.zeros(n_splits),
    }
    models = [*run.fold_models()] if uses_models else []
    if has_models:
        returned["estimator"] = models
    if has_indices:
        trains, tests = zip(*options["cv"], strict=True)
        returned["indices"] = {"train": trains, "test": tests}
    of_models = partial(_scores_of_models, run, models, X, y, scores)
    columns = {"test": of_models(is_train=False) if needs_models else _split_scores(run, scores)}
    if has_train:
        columns["train"] = of_models(is_train=True)
    first = columns["test"][0]
    for name in first if isinstance(first, Mapping) else scores.names:
        for subset, splits in columns.items():
            of_splits = [s[name] if isinstance(s, Mapping) else s for s in splits]
            returned[f"{subset}_{name}"] = np.array(of_splits)
    return returned


def _cross_val_predict_by_engine(
    call: Call, estimator: Any, X: Any, y: Any = None, **options: Any
) -> Any:
    """Run ``cross_val_predict`` by an engine."""
    X, y = indexable(X, y)
    settings = settings_for_call(_cross_val_predict, estimator, y, options)
    if getattr(X, "dtype", None) == np.float32:
        raise LeftToSklearn("predictions would be float64 instead of float32")
    with quietly():
        cross_validation = CrossValidation.of(X, y, settings, estimator)
        run = run_for(cross_validation, clone(estimator), is_scored=False)
        call.method = select_method([run])
    return run.predict(options.get("method", "predict"))


GridSearchCV = replace_class(model_selection.GridSearchCV, _fit_search)
RandomizedSearchCV = replace_class(model_selection.RandomizedSearchCV, _fit_search)
LassoCV = replace_class(linear_model.LassoCV, partial(_fit_path, linear_model.Lasso))
ElasticNetCV = replace_class(
    linear_model.ElasticNetCV, partial(_fit_path, linear_model.ElasticNet)
)
LogisticRegressionCV = replace_class(linear_model.LogisticRegressionCV, _fit_logistic_path)
cross_validate = replace_function(_cross_validate, _cross_validate_by_engine, "cross_validate")
cross_val_score = replace_function(_cross_val_score, _cross_val_score_by_engine, "cross_val_score")
cross_val_predict = replace_function(
    _cross_val_predict, _cross_val_predict_by_engine, "cross_val_predict"
)
