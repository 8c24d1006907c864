"""scikit-learn's searches and cross-validations, evaluated by engines that give the same scores.

Each class and function here replaces the one of scikit-learn with the same name, arguments and
results. If no engine is guaranteed to give the scores of the estimator's own fits, scikit-learn
runs the call.
"""

from abc import ABC
from abc import ABCMeta
from collections import deque
from collections.abc import Callable
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
from optuna_treecv.scoring.metrics import make_scoring
from optuna_treecv.scoring.metrics import Scorer
from optuna_treecv.search.scores import ranks_of
from optuna_treecv.search.scores import scores_of
from optuna_treecv.search.scores import SearchScores

# Engines with the scores of converged fits ("exact", "newton"), or of the estimator's own fits
# ("neighbors", and ensembles that grow once).
_GROWN = frozenset({"boosting", "bagging"})
_CONVERGED = frozenset({"exact", "newton"})
PROMISED = frozenset({"neighbors"}) | _CONVERGED | _GROWN

# At most this many calls are recorded, the last ones.
_MOST_CALLS = 10_000

_ONCE = "cv is a generator, which yields its splits once"

# With fewer numbers in X, the paths of ``LassoCV`` are faster than exact folds.
_LEAST_NUMBERS = 2**23


class LeftToSklearn(Exception):
    """The reason why scikit-learn runs a call."""


@dataclass
class Call:
    """The record of a call of a replaced function or search.

    Attributes
    ----------
    name : str
        The function or class.
    estimator : str
        The name of the estimator.
    method : str
        The method that evaluated it; "" if scikit-learn ran the call.
    reason : str
        The reason why scikit-learn ran the call.
    seconds : float
        The duration.
    seconds_before : float or None
        The duration in scikit-learn, if both have run.
    difference : float or None
        The largest difference of a score, if both have run.
    remark : str
        Other differences.
    """

    name: str
    estimator: str
    method: str = ""
    reason: str = ""
    seconds: float = 0.0
    seconds_before: float | None = None
    difference: float | None = None
    remark: str = ""


# The last calls, and whether scikit-learn runs each of them too.
RECORD = SimpleNamespace(is_checked=False, calls=deque[Call](maxlen=_MOST_CALLS))


def _replaced(original: Callable[..., Any], by_engine: Callable[..., Any], name: str) -> Any:
    """Return a replacement of a function of scikit-learn that evaluates by an engine.

    If the engine raises an error, scikit-learn runs the call, or raises its own error. If calls
    are checked, scikit-learn also runs the calls of engines. Both draw the same random numbers,
    from NumPy's generator and those in the arguments.

    Parameters
    ----------
    original : callable
        A function, or ``fit`` of a class.
    by_engine : callable
        Takes a ``Call``, whose ``method`` it sets, and the same arguments.
    name : str
        The name of the function or class.
    """

    @wraps(original)
    def stand_in(estimator: Any, *args: Any, **options: Any) -> Any:
        fitted = (
            estimator if name == original.__name__ else getattr(estimator, "estimator", estimator)
        )
        call = Call(name, name_of(fitted))
        of_estimator = (getattr(estimator, attr, None) for attr in ("cv", "random_state"))
        began, states = perf_counter(), _random_states(options.get("cv"), *of_estimator)
        try:
            result = by_engine(call, estimator, *args, **options)
        except Exception as error:
            call.method, call.reason = "", str(error).partition("\n")[0]
        if not call.method:
            _restore(states)
            began = perf_counter()
            result = original(estimator, *args, **options)
        call.seconds = perf_counter() - began
        if call.method and RECORD.is_checked:
            _restore(states)
            began = perf_counter()
            before = original(clone(estimator), *args, **options)
            call.seconds_before = perf_counter() - began
            call.difference = max(
                map(_difference, _scores_in(result), _scores_in(before)), default=0.0
            )
            ours, theirs = (repr(getattr(r, "best_params_", None)) for r in (result, before))
            if ours != theirs:
                call.remark = f"best_params_ are {ours}, in scikit-learn {theirs}"
        RECORD.calls.append(call)
        return result

    stand_in.__module__ = __name__  # where pickle finds it
    return stand_in


def _random_states(*random: Any) -> list[tuple[np.random.RandomState, Any]]:
    """Return the states of NumPy's global generator and of the generators in arguments."""
    values = [getattr(v, "random_state", v) for v in random]
    generators = [v for v in values if isinstance(v, np.random.RandomState)]
    return [(g, g.get_state()) for g in (check_random_state(None), *generators)]


def _restore(states: list[tuple[np.random.RandomState, Any]]) -> None:
    for generator, state in states:
        generator.set_state(state)


def _promised_method(runs: list[Run]) -> str:
    """Return the method of runs that is guaranteed to give scikit-learn's scores, or raise."""
    methods = {run.plan.name: run for run in runs}
    promised = sorted(methods.keys() & PROMISED)
    for name, run in methods.items():
        if name not in PROMISED and (name != "fit" or not promised):
            raise LeftToSklearn(run.reason or f"method={name!r} makes other models than fit")
        if name in _GROWN and unset_seeds(run.estimator):
            raise LeftToSklearn("random_state is None, so no two runs give equal results")
        if name in _CONVERGED:
            _check_converges(run.estimator)
    grows_alone = len({_without_size(run.estimator) for run in runs}) == len(runs)
    if grows_alone and _GROWN & methods.keys():
        raise LeftToSklearn("no two ensembles differ only in their number of trees")
    return ", ".join(promised)


def _without_size(estimator: Any) -> str:
    """Return the parameters of an ensemble except its number of trees, as text."""
    size = nested_parameter(estimator)
    return repr([item for item in estimator.get_params().items() if item[0] != size])


def _check_converges(estimator: Any) -> None:
    """Refuse a solver that stops earlier than by default, because engines solve to convergence."""
    last = last_step(estimator)
    by_default = type(last)().get_params()
    for name, is_early in (("max_iter", operator.lt), ("tol", operator.gt)):
        value: Any = getattr(last, name, None)
        usual: Any = by_default.get(name)
        if value is not None and (usual is None or is_early(value, usual)):
            raise LeftToSklearn(f"{name}={value!r} may end fits before they have converged")


def _weights(estimator: Any, params: Mapping[str, Any]) -> Any:
    """Return ``sample_weight`` of the arguments of ``fit``; refuse any other argument."""
    if others := params.keys() - {"sample_weight"}:
        raise LeftToSklearn(f"fit gets {', '.join(sorted(others))}")
    weights = params.get("sample_weight")
    if weights is not None and isinstance(estimator, Pipeline):
        raise LeftToSklearn("fit of a Pipeline gets sample_weight")
    return weights


def _scores(scoring: Any, estimator: Any, y: Any) -> SearchScores:
    """Return the scores of ``scoring``; refuse losses of this package."""
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
    """Return the settings of a cross-validation on scikit-learn's splits."""
    if get_config()["enable_metadata_routing"]:
        raise LeftToSklearn("metadata routing is enabled")
    if np.ndim(y) == 2 and np.shape(y)[1] == 1:
        raise LeftToSklearn("y is a column vector, for which scikit-learn warns")
    if hasattr(cv, "__next__"):
        raise LeftToSklearn(_ONCE)
    return Settings(
        cv=model_selection.check_cv(cv, y, classifier=is_classifier(estimator)),
        shuffle=False,
        groups=groups,
        n_jobs=n_jobs,
        random_state=0,
        **options,
    )


def _results(
    call: Call, X: Any, y: Any, settings: Settings, estimators: list[Any]
) -> list[CVResult]:
    """Return the results of estimators by an engine with scikit-learn's scores, or raise."""
    if getattr(getattr(X, "dtype", None), "kind", "f") in "SU":
        raise LeftToSklearn("X holds strings")
    if len({isinstance(name, str) for name in getattr(X, "columns", ())}) > 1:
        raise LeftToSklearn("some column names are not strings")
    with quietly():  # scikit-learn may run the call
        runs = runs_for(cross_validation_for(X, y, settings, estimators), estimators)
        call.method = _promised_method(runs)
    evaluate_batch(runs)
    return [run.finish() for run in runs]


class _StandIn(ABC):
    """A search of scikit-learn that is fitted by an engine if one gives the same scores.

    It is pickled as the class that it replaces, so that models need no other package. Objects of
    that class are instances of this one, too.
    """

    stands_for: ClassVar[type]

    @classmethod
    def __subclasshook__(cls, subclass: type) -> Any:
        original = vars(cls).get("stands_for")  # a subclass has none
        return original in subclass.__mro__ or NotImplemented

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        if "stands_for" not in vars(type(self)):  # a subclass
            return super().__reduce_ex__(protocol)
        state = {**self.__getstate__(), "_sklearn_version": sklearn.__version__}
        return object.__new__, (self.stands_for,), state


def _replace_class(original: Any, by_engine: Callable[..., Any]) -> Any:
    """Return a subclass of a class of scikit-learn, with its name, fitted by an engine."""
    name = original.__name__
    names = {
        "__doc__": f"``{original.__module__.rpartition('.')[0]}.{name}``, by an engine.",
        "__module__": __name__,
        "stands_for": original,
        "fit": _replaced(original.fit, by_engine, name),
    }
    return ABCMeta(name, (_StandIn, original), names)


def _search(call: Call, search: Any, X: Any, y: Any = None, **params: Any) -> Any:
    """Run a search of scikit-learn with the same results."""
    if type(search)._run_search is not search.stands_for._run_search:
        raise LeftToSklearn("a subclass overrides _run_search")
    if search.return_train_score:
        raise LeftToSklearn("return_train_score is True")
    if getattr(search, "_skl_callbacks", None) or search.verbose > 2:
        raise LeftToSklearn("callbacks and verbose output need every fit")
    groups = params.pop("groups", None)
    weights = _weights(search.estimator, params)
    scorers, refit_metric = search._get_scorers()
    X, y = indexable(X, y)
    scores = _scores(search.scoring, search.estimator, y)
    folds = groups, search.cv, search.n_jobs
    options = {"sample_weight": weights, "scoring": scores.requested}
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
    evaluated = _results(call, X, y, settings, with_params)
    of_key = dict(zip(distinct, evaluated, strict=True))
    results = [of_key[key] for key in keys]
    search.n_splits_ = len(results[0].test_score)
    out = [
        {"fit_time": result.seconds / search.n_splits_, "score_time": 0.0, "test_scores": split}
        for result in results
        for split in _by_split(result, scores)
    ]
    table = search._format_results(candidates, search.n_splits_, out)
    for name in scores.names:
        table[f"rank_test_{name}"] = ranks_of(table[f"mean_test_{name}"])
    search.multimetric_ = scores.is_multiple
    if search.refit or not search.multimetric_:
        search.best_index_ = search._select_best_index(search.refit, refit_metric, table)
        if not callable(search.refit):
            search.best_score_ = table[f"mean_test_{refit_metric}"][search.best_index_]
        search.best_params_ = table["params"][search.best_index_]
    if search.refit:
        began = perf_counter()
        best = clone(search.estimator).set_params(**clone(search.best_params_, safe=False))
        search.best_estimator_ = best.fit(*((X,) if y is None else (X, y)), **params)
        _warn_if_stopped(best)
        search.refit_time_ = perf_counter() - began
        if hasattr(best, "feature_names_in_"):
            search.feature_names_in_ = best.feature_names_in_
    search.scorer_ = getattr(scorers, "_scorers", scorers)
    search.cv_results_ = table
    return search


def _warn_if_stopped(best: Any) -> None:
    """Warn if the last fit has not converged, unlike the models behind the fold scores."""
    last = last_step(best)
    n_iter, most = getattr(last, "n_iter_", None), getattr(last, "max_iter", None)
    if n_iter is not None and most is not None and np.max(n_iter) >= most:
        warn_caller(
            "best_estimator_ has not converged, but the models behind cv_results_ have, so their "
            "scores may be better than its own. Increase max_iter or scale the columns."
        )


def _by_split(result: CVResult, scores: SearchScores) -> list[Any]:
    """Return the score of each split: a number, or a dict of several scores."""
    if not scores.is_multiple:
        return [float(score) for score in result.test_score]
    columns = [result.scores[name].test_score.tolist() for name in scores.names]
    return [dict(zip(scores.names, row, strict=True)) for row in zip(*columns, strict=True)]


def _scores_in(result: Any) -> list[Any]:
    """Return the arrays to compare: split scores, or predictions."""
    result = getattr(result, "cv_results_", result)
    if isinstance(result, Mapping):
        names = [n for n in result if n.startswith(("split", "test_")) and "test_" in n]
        return [result[name] for name in names]
    result = getattr(result, "mse_path_", getattr(result, "scores_", result))
    return [*result.values()] if isinstance(result, Mapping) else [result]


def _difference(ours: Any, theirs: Any) -> float:
    """Return the largest difference of two arrays, relative for numbers above 1.

    For labels that are not numbers, return 1 if any differs, else 0.
    """
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if ours.dtype.kind not in "fiub" or theirs.dtype.kind not in "fiub":
        return float(np.any(ours != theirs))
    with np.errstate(invalid="ignore"):
        apart = np.abs(ours - theirs) / np.maximum(1, np.abs(theirs))
    return float(np.nanmax(apart, initial=0.0))


def _path(
    model: Any, call: Call, path: Any, X: Any, y: Any, sample_weight: Any = None, **params: Any
) -> Any:
    """Select the penalty of a model as scikit-learn does, with converged models."""
    if path.positive:
        raise LeftToSklearn("positive is True")
    if params or sample_weight is not None:
        raise LeftToSklearn("fit gets sample_weight")
    X, y = indexable(X, y)
    if np.size(X) < _LEAST_NUMBERS:
        raise LeftToSklearn("X is small, so scikit-learn's paths are as fast")
    targets = np.asarray(y, np.float64)
    if targets.ndim != 1:
        raise LeftToSklearn("y has several columns")
    options = path.get_params()
    same = {name: options[name] for name in model().get_params() if name in options}
    same |= {"precompute": False} if same["precompute"] == "auto" else {}
    ratios = np.atleast_1d(options.get("l1_ratio", 1.0))
    alphas = np.array([_alphas(path, X, targets, ratio) for ratio in ratios])
    models = []
    for ratio, of_ratio in zip(ratios, alphas, strict=True):
        same |= {"l1_ratio": ratio} if "l1_ratio" in same else {}
        models += [model(**{**same, "alpha": alpha}) for alpha in of_ratio]
    folds = None, path.cv, path.n_jobs
    settings = _settings(models[0], targets, *folds, scoring="neg_mean_squared_error")
    scores = [-result.test_score for result in _results(call, X, targets, settings, models)]
    of_splits = np.reshape(scores, (*alphas.shape, -1))
    means = of_splits.mean(axis=2)
    best = np.unravel_index(np.argmin(means), means.shape)
    fitted = models[int(np.ravel_multi_index(best, means.shape))].fit(X, targets)
    vars(path).update({k: v for k, v in vars(fitted).items() if k.endswith("_")})
    path.mse_path_ = np.squeeze(of_splits)
    path.alpha_ = alphas[best]
    path.alphas_ = alphas if len(ratios) > 1 and np.ndim(path.alphas) == 0 else alphas[0]
    if "l1_ratio" in options:
        path.l1_ratio_ = ratios[best[0]]
    return path


def _alphas(path: Any, X: Any, y: np.ndarray, ratio: float) -> np.ndarray:
    """Return the penalties, largest first; the default starts where all coefficients are 0."""
    if np.ndim(path.alphas):
        return np.sort(np.asarray(path.alphas, np.float64))[::-1]
    centred = y - y.mean() if path.fit_intercept else y
    largest = np.abs(np.asarray(X.T @ centred)).max() / (len(y) * ratio)
    return np.geomspace(largest, largest * path.eps, path.alphas)


def _logistic_path(call: Call, path: Any, X: Any, y: Any, *args: Any, **params: Any) -> Any:
    """Select the penalty of logistic regression, with converged models.

    The models of all folds are solved jointly. Scores, choice and last fit are computed by
    scikit-learn's own code, in which ``n_iter_`` is 0 for each fold.
    """
    path._validate_params()
    if hasattr(path.cv, "__next__"):
        raise LeftToSklearn(_ONCE)
    by_fold: dict[bytes, np.ndarray] = {}

    def score_fold(X: Any, y: Any, train: Any, test: Any, **options: Any) -> Any:
        """Return the coefficients, penalties, scores and iterations of one fold."""
        penalties = options["Cs"]
        if np.ndim(penalties) == 0:
            penalties = np.logspace(-4, 4, penalties)
        if not by_fold:
            by_fold.update(_solve(call, path, X, y, np.asarray(penalties, np.float64), options))
        if (models := by_fold.get(_key_of_rows(test))) is None:
            raise LeftToSklearn("cv yields other splits each time")
        solved = models, np.asarray(penalties), np.zeros(len(models), np.int32)
        score = _with_globals(
            _logistic._log_reg_scoring_path, _logistic_regression_path=lambda *_, **__: solved
        )
        return score(X, y, train, test, **options)

    fit = _with_globals(
        path.stands_for.fit.__wrapped__,
        _log_reg_scoring_path=score_fold,
        Parallel=lambda **options: Parallel(**{**options, "n_jobs": 1}),
    )
    return fit(path, X, y, *args, **params)


def _solve(
    call: Call, path: Any, X: Any, y: Any, penalties: np.ndarray, options: dict[str, Any]
) -> dict[bytes, np.ndarray]:
    """Return the coefficients of each fold at all penalties, by the key of its test rows."""
    if options["penalty"] != "l2":
        raise LeftToSklearn("the penalty is not only l2")
    names = ("class_weight", "dual", "fit_intercept", "intercept_scaling")
    same = {name: options[name] for name in (*names, "max_iter", "solver", "tol")}
    estimators = [linear_model.LogisticRegression(C=C, **same) for C in penalties]
    folds = None, path.cv, path.n_jobs
    settings = _settings(estimators[0], y, *folds, sample_weight=options["sample_weight"])
    with quietly():
        cross_validation = cross_validation_for(X, y, settings, estimators)
        runs = runs_for(cross_validation, estimators)
        call.method = _promised_method(runs)
    if others := [run for run in runs if run.plan.name != "newton"]:
        raise LeftToSklearn(others[0].reason)
    plan, candidates = runs[0].plan, [run.estimator for run in runs]
    fold_models = plan.capabilities.fold_models
    assert fold_models is not None
    by_fold = {}
    for repeat in cross_validation.repeats:
        for fold, models in enumerate(fold_models(plan, candidates, repeat)):
            if not np.all(np.isfinite(models)):
                raise LeftToSklearn("no finite model of a fold was found")
            of_classes = models[:, 0] if models.shape[1] == 1 else models
            by_fold[_key_of_rows(repeat.cut.tested_from(fold, fold + 1))] = of_classes
    if len(by_fold) < sum(repeat.cut.n_folds for repeat in cross_validation.repeats):
        raise LeftToSklearn("two folds have the same test rows")
    return by_fold


def _key_of_rows(rows: np.ndarray) -> bytes:
    return np.sort(rows).astype(np.int64).tobytes()


def _with_globals(function: Any, **others: Any) -> Any:
    """Return a copy of a function of scikit-learn with other values of some global names.

    There is no public way to pass other models to its path of penalties, and patching its module
    would affect other threads.
    """
    if missing := others.keys() - set(function.__code__.co_names):
        raise LeftToSklearn(f"this version of scikit-learn has no {sorted(missing)[0]}")
    names = {**function.__globals__, **others}
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


_cross_validate = model_selection.cross_validate
_cross_val_score = model_selection.cross_val_score
_cross_val_predict = model_selection.cross_val_predict


def _settings_of(
    function: Any, estimator: Any, y: Any, options: dict[str, Any], **settings: Any
) -> Settings:
    """Return the settings of a call, in which weights are used only in training."""
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


def _one_column(call: Call, estimator: Any, X: Any, y: Any = None, **options: Any) -> Any:
    """Return the scores of ``cross_val_score``."""
    scoring = options.get("scoring")
    if not (scoring is None or isinstance(scoring, str) or callable(scoring)):
        raise LeftToSklearn("scoring is not a single score")
    return _columns(call, estimator, X, y, **options)["test_score"]


def _columns(call: Call, estimator: Any, X: Any, y: Any = None, **options: Any) -> Any:
    """Return the columns of ``cross_validate``."""
    for name in ("return_train_score", "return_estimator", "return_indices"):
        if options.get(name):
            raise LeftToSklearn(f"{name} is True")
    scores = _scores(options.get("scoring"), estimator, y)
    X, y = indexable(X, y)
    settings = _settings_of(_cross_validate, estimator, y, options, scoring=scores.requested)
    result = _results(call, X, y, settings, [clone(estimator)])[0]
    n_splits = len(result.test_score)
    times = {
        "fit_time": np.full(n_splits, result.seconds / n_splits),
        "score_time": np.zeros(n_splits),
    }
    if not scores.is_multiple:
        return {**times, "test_score": np.array(result.test_score)}
    by_name = {f"test_{name}": np.array(result.scores[name].test_score) for name in scores.names}
    return {**times, **by_name}


def _predictions(call: Call, estimator: Any, X: Any, y: Any = None, **options: Any) -> Any:
    """Return out-of-fold predictions."""
    X, y = indexable(X, y)
    settings = _settings_of(_cross_val_predict, estimator, y, options)
    if getattr(X, "dtype", None) == np.float32:
        raise LeftToSklearn("predictions would be float64 instead of float32")
    with quietly():
        cross_validation = CrossValidation.of(X, y, settings, estimator)
        run = run_for(cross_validation, clone(estimator), is_scored=False)
        call.method = _promised_method([run])
    return run.predict(options.get("method", "predict"))


GridSearchCV = _replace_class(model_selection.GridSearchCV, _search)
RandomizedSearchCV = _replace_class(model_selection.RandomizedSearchCV, _search)
LassoCV = _replace_class(linear_model.LassoCV, partial(_path, linear_model.Lasso))
ElasticNetCV = _replace_class(linear_model.ElasticNetCV, partial(_path, linear_model.ElasticNet))
LogisticRegressionCV = _replace_class(linear_model.LogisticRegressionCV, _logistic_path)
cross_validate = _replaced(_cross_validate, _columns, "cross_validate")
cross_val_score = _replaced(_cross_val_score, _one_column, "cross_val_score")
cross_val_predict = _replaced(_cross_val_predict, _predictions, "cross_val_predict")
