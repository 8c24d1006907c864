"""scikit-learn's searches and cross-validations, by engines that promise the same numbers.

Each class and function here stands in for the one of scikit-learn that has its name. It has the
same arguments and results. Where no engine promises the scores of the estimator's own fits, it
hands the call back.
"""

from abc import ABCMeta
from collections import deque
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field
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
from optuna_treecv.scoring.metrics import make_scoring
from optuna_treecv.scoring.metrics import Scorer
from optuna_treecv.search.scores import ranks_of
from optuna_treecv.search.scores import scores_of
from optuna_treecv.search.scores import SearchScores

# What the scores of each engine equal: those of fits that have converged ("exact", "newton"), or
# of fits ("neighbors", and ensembles that grow once).
_GROWN = frozenset({"boosting", "bagging"})
_CONVERGED = frozenset({"exact", "newton"})
PROMISED = frozenset({"neighbors"}) | _CONVERGED | _GROWN

# The calls that are noted, those that came last.
_MOST_CALLS = 10_000

_ONCE = "cv is a generator, which yields its splits once"

# With fewer numbers in X, the paths of ``LassoCV`` are sooner than exact folds.
_LEAST_NUMBERS = 2**23


class LeftToSklearn(Exception):
    """Says why a call runs as before."""


@dataclass
class Call:
    """A call that might go through an engine.

    Attributes
    ----------
    name : str
        What was called.
    estimator : str
        The name of the estimator.
    method : str
        The method that evaluated it; "" if scikit-learn did.
    why : str
        Why scikit-learn did.
    seconds : float
    seconds_before : float or None
        Those of scikit-learn, where both have run.
    difference : float or None
        The largest difference of a score, where both have run.
    remark : str
        What else differs.
    """

    name: str
    estimator: str
    method: str = ""
    why: str = ""
    seconds: float = 0.0
    seconds_before: float | None = None
    difference: float | None = None
    remark: str = ""


# The last calls, and whether scikit-learn runs each of them too.
RECORD = SimpleNamespace(is_checked=False, calls=deque[Call](maxlen=_MOST_CALLS))


def _run(
    call: Call,
    by_engine: Callable[[Call], Any],
    as_before: Callable[[], Any],
    again: Callable[[], Any],
    difference: Callable[[Any, Any], float],
    *random: Any,
) -> Any:
    """Return what an engine finds, or else what scikit-learn does, and note which it was.

    ``again`` lets scikit-learn do what an engine has done, to compare both. It draws the same
    random numbers, from NumPy's generator and those among ``random``.
    """
    began, states = perf_counter(), _states(random)
    try:
        found = by_engine(call)
    except LeftToSklearn as why:
        call.method, call.why = "", str(why)
    if not call.method:
        _restore(states)
        began = perf_counter()
        found = as_before()
    call.seconds = perf_counter() - began
    if call.method and RECORD.is_checked:
        _restore(states)
        began = perf_counter()
        before = again()
        call.seconds_before = perf_counter() - began
        call.difference = difference(found, before)
    RECORD.calls.append(call)
    return found


def _states(random: tuple[Any, ...]) -> list[tuple[np.random.RandomState, Any]]:
    """Return the states of NumPy's own generator and of those that are given."""
    given = [getattr(one, "random_state", one) for one in random]
    generators = [one for one in given if isinstance(one, np.random.RandomState)]
    return [(one, one.get_state()) for one in (check_random_state(None), *generators)]


def _restore(states: list[tuple[np.random.RandomState, Any]]) -> None:
    for generator, state in states:
        generator.set_state(state)


@contextmanager
def _left_if_it_fails() -> Iterator[None]:
    """Leave what an engine cannot do to scikit-learn, which may do it or say what is wrong."""
    try:
        yield
    except LeftToSklearn:
        raise
    except Exception as error:
        raise LeftToSklearn(str(error).partition("\n")[0]) from error


def _checked(runs: list[Run]) -> str:
    """Return the method of runs whose scores are promised, or leave them to scikit-learn."""
    methods = {run.plan.name: run for run in runs}
    promised = sorted(methods.keys() & PROMISED)
    for name, run in methods.items():
        if name not in PROMISED and (name != "fit" or not promised):
            raise LeftToSklearn(run.reason or f"method={name!r} makes other models than fit")
        if name in _GROWN and _is_random(run.estimator):
            raise LeftToSklearn("random_state is None, so that no two runs have equal results")
        if name in _CONVERGED:
            _check_converges(run.estimator)
    grows_alone = len({_without_size(run.estimator) for run in runs}) == len(runs)
    if grows_alone and _GROWN & methods.keys():
        raise LeftToSklearn("no two ensembles differ in their number of trees alone")
    return ", ".join(promised)


def _without_size(estimator: Any) -> str:
    """Return the parameters of an ensemble but for its number of trees, as text."""
    size = nested_parameter(estimator)
    return repr([item for item in estimator.get_params().items() if item[0] != size])


def _check_converges(estimator: Any) -> None:
    """Leave a solver that is told to stop earlier than by default, as ours does not."""
    last = last_step(estimator)
    by_default = type(last)().get_params()
    for name, is_early in (("max_iter", operator.lt), ("tol", operator.gt)):
        value: Any = getattr(last, name, None)
        usual: Any = by_default.get(name)
        if value is not None and (usual is None or is_early(value, usual)):
            raise LeftToSklearn(f"{name}={value!r} may end fits before they have converged")


def _is_random(estimator: Any) -> bool:
    params = estimator.get_params()
    return any(value is None for name, value in params.items() if name.endswith("random_state"))


def _weights(estimator: Any, params: Mapping[str, Any]) -> Any:
    """Return the weights of rows among the arguments of ``fit``, which may have no others."""
    if others := params.keys() - {"sample_weight"}:
        raise LeftToSklearn(f"fit gets {', '.join(sorted(others))}")
    weights = params.get("sample_weight")
    if weights is not None and isinstance(estimator, Pipeline):
        raise LeftToSklearn("fit of a Pipeline gets sample_weight")
    return weights


def _scores(scoring: Any, estimator: Any, y: Any) -> SearchScores:
    """Return the scores that scikit-learn would compute; the losses of this package are none."""
    if scoring is not None and type(scoring) is type(check_scoring(estimator)):
        scoring = None  # RidgeCV gives the estimator's own score to its search
    scores = scores_of(scoring, estimator, has_y=y is not None)
    scoring = make_scoring(scores.requested)
    if scoring is None or not all(isinstance(metric, Scorer) for metric in scoring.metrics):
        raise LeftToSklearn("scoring is one of this package")
    return scores


def _settings(
    estimator: Any, y: Any, groups: Any, cv: Any, n_jobs: Any, **options: Any
) -> Settings:
    """Return the settings of a cross-validation on the splits of scikit-learn."""
    if get_config()["enable_metadata_routing"]:
        raise LeftToSklearn("metadata routing is enabled")
    if np.ndim(y) == 2 and np.shape(y)[1] == 1:
        raise LeftToSklearn("y has one column, of which scikit-learn warns")
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
    """Return the results of estimators by engines that promise them."""
    if getattr(getattr(X, "dtype", None), "kind", "f") in "SU":
        raise LeftToSklearn("X holds strings")
    if len({isinstance(name, str) for name in getattr(X, "columns", ())}) > 1:
        raise LeftToSklearn("some names of columns are no strings")
    with quietly():  # scikit-learn may do it in the end
        runs = runs_for(cross_validation_for(X, y, settings, estimators), estimators)
        call.method = _checked(runs)
    evaluate_batch(runs)
    return [run.finish() for run in runs]


class _Kind(ABCMeta):
    """The type of stand-ins: an object of the class that one stands for counts as its own."""

    def __instancecheck__(cls: Any, instance: Any) -> bool:
        own = vars(cls).get("stands_for")
        return super().__instancecheck__(instance) or (own and isinstance(instance, own))


class _StandIn(metaclass=_Kind):
    """Fits by an engine where one promises the same.

    Pickled, it is what it stands in for, so that a model needs no other package.
    """

    stands_for: ClassVar[type]

    def _fit_by_either(self: Any, X: Any, y: Any, params: dict[str, Any]) -> Any:
        """Fit by ``_by_engine``, or as scikit-learn does."""
        call = Call(self.stands_for.__name__, name_of(getattr(self, "estimator", self)))
        return _run(
            call,
            partial(self._by_engine, X, y, params),
            partial(self.stands_for.fit, self, X, y, **params),
            lambda: self.stands_for.fit(clone(self), X, y, **params),
            partial(self._compare, call),
            *(self.cv, getattr(self, "random_state", None)),
        )

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        if "stands_for" not in vars(type(self)):  # a subclass
            return super().__reduce_ex__(protocol)
        state = {**self.__getstate__(), "_sklearn_version": sklearn.__version__}
        return object.__new__, (self.stands_for,), state


class _Search(_StandIn):
    def fit(self: Any, X: Any, y: Any = None, **params: Any) -> Any:
        """Search as scikit-learn does, with the same results."""
        return self._fit_by_either(X, y, params)

    def _compare(self, call: Call, found: Any, before: Any) -> float:
        """Return the largest difference of scores; the call gets a remark on the choices."""
        ours, theirs = (repr(getattr(one, "best_params_", None)) for one in (found, before))
        if ours != theirs:
            call.remark = f"best_params_ are {ours}, and by scikit-learn {theirs}"
        return _largest(found.cv_results_, before.cv_results_, "split")

    @_left_if_it_fails()
    def _by_engine(self: Any, X: Any, y: Any, params: dict[str, Any], call: Call) -> Any:
        if type(self)._run_search is not self.stands_for._run_search:
            raise LeftToSklearn("a subclass searches in a way of its own")
        if self.return_train_score:
            raise LeftToSklearn("return_train_score is True")
        if getattr(self, "_skl_callbacks", None) or self.verbose > 2:
            raise LeftToSklearn("each fit is told")
        params = dict(params)
        groups = params.pop("groups", None)
        weights = _weights(self.estimator, params)
        scorers, refit_metric = self._get_scorers()
        X, y = indexable(X, y)
        scores = _scores(self.scoring, self.estimator, y)
        folds = groups, self.cv, self.n_jobs
        options = {"sample_weight": weights, "scoring": scores.requested}
        settings = _settings(self.estimator, y, *folds, **options)
        candidates = list(self._drawn())
        keys = [first_key(one, encode) or object() for one in candidates]
        distinct = dict(zip(keys, candidates, strict=True))
        with_params = [
            clone(self.estimator).set_params(**clone(one, safe=False)) for one in distinct.values()
        ]
        evaluated = _results(call, X, y, settings, with_params)
        of_key = dict(zip(distinct, evaluated, strict=True))
        results = [of_key[key] for key in keys]
        self.n_splits_ = len(results[0].test_score)
        out = [
            {"fit_time": result.seconds / self.n_splits_, "score_time": 0.0, "test_scores": one}
            for result in results
            for one in _by_split(result, scores)
        ]
        found = self._format_results(candidates, self.n_splits_, out)
        for name in scores.names:
            found[f"rank_test_{name}"] = ranks_of(found[f"mean_test_{name}"])
        self.multimetric_ = scores.is_multiple
        if self.refit or not self.multimetric_:
            self.best_index_ = self._select_best_index(self.refit, refit_metric, found)
            if not callable(self.refit):
                self.best_score_ = found[f"mean_test_{refit_metric}"][self.best_index_]
            self.best_params_ = found["params"][self.best_index_]
        if self.refit:
            began = perf_counter()
            best = clone(self.estimator).set_params(**clone(self.best_params_, safe=False))
            self.best_estimator_ = best.fit(*((X,) if y is None else (X, y)), **params)
            _warn_if_stopped(best)
            self.refit_time_ = perf_counter() - began
            if hasattr(best, "feature_names_in_"):
                self.feature_names_in_ = best.feature_names_in_
        self.scorer_ = getattr(scorers, "_scorers", scorers)
        self.cv_results_ = found
        return self


def _warn_if_stopped(best: Any) -> None:
    """Say what it means beside scores of folds if the last fit has not converged."""
    last = last_step(best)
    n_iter, most = getattr(last, "n_iter_", None), getattr(last, "max_iter", None)
    if n_iter is not None and most is not None and np.max(n_iter) >= most:
        warn_caller(
            "best_estimator_ has not converged, and the models behind cv_results_ have: their "
            "scores may be better than its own; a larger max_iter, or scaled columns, would be "
            "right."
        )


def _by_split(result: CVResult, scores: SearchScores) -> list[Any]:
    """Return the scores of splits: numbers, or dicts where there are several scores."""
    if not scores.is_multiple:
        return [float(one) for one in result.test_score]
    columns = [result.scores[name].test_score.tolist() for name in scores.names]
    return [dict(zip(scores.names, row, strict=True)) for row in zip(*columns, strict=True)]


def _largest(found: Mapping[str, Any], before: Mapping[str, Any], prefix: str) -> float:
    """Return the largest difference of the scores of splits in two dicts of columns."""
    names = [name for name in before if name.startswith(prefix) and "test_" in name]
    largest = [_difference(found[name], before[name]) for name in names]
    return max(largest, default=0.0)


def _difference(found: Any, before: Any) -> float:
    """Return the largest difference of two arrays, relative where numbers are larger than 1.

    Of labels that are no numbers, return whether any differs.
    """
    found, before = np.asarray(found), np.asarray(before)
    if found.dtype.kind not in "fiub" or before.dtype.kind not in "fiub":
        return float(np.any(found != before))
    with np.errstate(invalid="ignore"):
        apart = np.abs(found - before) / np.maximum(1, np.abs(before))
    return float(np.nanmax(apart, initial=0.0))


class GridSearchCV(_Search, model_selection.GridSearchCV):
    """``sklearn.model_selection.GridSearchCV``."""

    stands_for = model_selection.GridSearchCV

    def _drawn(self: Any) -> Iterable[dict[str, Any]]:
        """Return the candidates."""
        return model_selection.ParameterGrid(self.param_grid)


class RandomizedSearchCV(_Search, model_selection.RandomizedSearchCV):
    """``sklearn.model_selection.RandomizedSearchCV``."""

    stands_for = model_selection.RandomizedSearchCV

    def _drawn(self: Any) -> Iterable[dict[str, Any]]:
        """Return the candidates."""
        of_search = self.param_distributions, self.n_iter
        return model_selection.ParameterSampler(*of_search, random_state=self.random_state)


class _PenaltySearch(_StandIn):
    def fit(self: Any, X: Any, y: Any, sample_weight: Any = None, **params: Any) -> Any:
        """Choose the penalty as scikit-learn does, from models that have converged."""
        params |= {} if sample_weight is None else {"sample_weight": sample_weight}
        return self._fit_by_either(X, y, params)


class _Path(_PenaltySearch):
    model: ClassVar[type]

    def _compare(self, call: Call, found: Any, before: Any) -> float:
        return _difference(found.mse_path_, before.mse_path_)

    @_left_if_it_fails()
    def _by_engine(self: Any, X: Any, y: Any, params: dict[str, Any], call: Call) -> Any:
        if params or self.positive:
            raise LeftToSklearn("positive is True" if self.positive else "fit gets sample_weight")
        X, y = indexable(X, y)
        if np.size(X) < _LEAST_NUMBERS:
            raise LeftToSklearn("X is small, so that paths take no longer")
        targets = np.asarray(y, np.float64)
        if targets.ndim != 1:
            raise LeftToSklearn("y has several columns")
        given = self.get_params()
        same = {name: given[name] for name in self.model().get_params() if name in given}
        same |= {"precompute": False} if same["precompute"] == "auto" else {}
        ratios = np.atleast_1d(given.get("l1_ratio", 1.0))
        alphas = np.array([self._alphas(X, targets, ratio) for ratio in ratios])
        models = []
        for ratio, of_ratio in zip(ratios, alphas, strict=True):
            same |= {"l1_ratio": ratio} if "l1_ratio" in same else {}
            models += [self.model(**{**same, "alpha": alpha}) for alpha in of_ratio]
        folds = None, self.cv, self.n_jobs
        settings = _settings(models[0], targets, *folds, scoring="neg_mean_squared_error")
        results = _results(call, X, targets, settings, models)
        scores = [-result.test_score for result in results]
        of_splits = np.reshape(scores, (*alphas.shape, -1))
        means = of_splits.mean(axis=2)
        best = np.unravel_index(np.argmin(means), means.shape)
        fitted = models[int(np.ravel_multi_index(best, means.shape))].fit(X, targets)
        vars(self).update({k: v for k, v in vars(fitted).items() if k.endswith("_")})
        self.mse_path_ = np.squeeze(of_splits)
        self.alpha_ = alphas[best]
        self.alphas_ = alphas if len(ratios) > 1 and np.ndim(self.alphas) == 0 else alphas[0]
        if "l1_ratio" in given:
            self.l1_ratio_ = ratios[best[0]]
        return self

    def _alphas(self: Any, X: Any, y: np.ndarray, ratio: float) -> np.ndarray:
        """Return the penalties, the largest first: from the least without any coefficient."""
        if np.ndim(self.alphas):
            return np.sort(np.asarray(self.alphas, np.float64))[::-1]
        centred = y - y.mean() if self.fit_intercept else y
        largest = np.abs(np.asarray(X.T @ centred)).max() / (len(y) * ratio)
        return np.geomspace(largest, largest * self.eps, self.alphas)


class LassoCV(_Path, linear_model.LassoCV):
    """``sklearn.linear_model.LassoCV``."""

    stands_for = linear_model.LassoCV
    model = linear_model.Lasso


class ElasticNetCV(_Path, linear_model.ElasticNetCV):
    """``sklearn.linear_model.ElasticNetCV``."""

    stands_for = linear_model.ElasticNetCV
    model = linear_model.ElasticNet


class LogisticRegressionCV(_PenaltySearch, linear_model.LogisticRegressionCV):
    """``sklearn.linear_model.LogisticRegressionCV``.

    The models of all folds are solved for together. What follows from them, the scores, the choice
    and the last fit, is scikit-learn's own code, in which ``n_iter_`` is 0 for each fold.
    """

    stands_for = linear_model.LogisticRegressionCV

    def _compare(self, call: Call, found: Any, before: Any) -> float:
        return _difference(_all_scores(found), _all_scores(before))

    @_left_if_it_fails()
    def _by_engine(self: Any, X: Any, y: Any, params: dict[str, Any], call: Call) -> Any:
        self._validate_params()
        if hasattr(self.cv, "__next__"):
            raise LeftToSklearn(_ONCE)
        fit = _with_others(
            self.stands_for.fit.__wrapped__,
            _log_reg_scoring_path=_Paths(self, call),
            Parallel=lambda **options: Parallel(**{**options, "n_jobs": 1}),
        )
        fit(self, X, y, **params)
        return self


@dataclass
class _Paths:
    """Answers for scikit-learn's solver along a path of penalties, once for all folds.

    Parameters
    ----------
    searcher : LogisticRegressionCV
    call : Call
        Receives the method.
    """

    searcher: Any
    call: Call
    _models: dict[bytes, np.ndarray] = field(default_factory=dict, init=False)

    def __call__(self, X: Any, y: Any, train: Any, test: Any, **options: Any) -> Any:
        """Return the coefficients, penalties, scores and iterations of one fold."""
        penalties = options["Cs"]
        if np.ndim(penalties) == 0:
            penalties = np.logspace(-4, 4, penalties)
        if not self._models:
            self._solve(X, y, np.asarray(penalties, np.float64), options)
        if (models := self._models.get(_named(test))) is None:
            raise LeftToSklearn("cv makes other splits each time")
        answer = models, np.asarray(penalties), np.zeros(len(models), np.int32)
        path = _with_others(
            _logistic._log_reg_scoring_path, _logistic_regression_path=lambda *_, **__: answer
        )
        return path(X, y, train, test, **options)

    def _solve(self, X: Any, y: Any, penalties: np.ndarray, options: dict[str, Any]) -> None:
        if options["penalty"] != "l2":
            raise LeftToSklearn("the penalty is not l2 alone")
        names = ("class_weight", "dual", "fit_intercept", "intercept_scaling")
        same = {name: options[name] for name in (*names, "max_iter", "solver", "tol")}
        estimators = [linear_model.LogisticRegression(C=C, **same) for C in penalties]
        folds = None, self.searcher.cv, self.searcher.n_jobs
        settings = _settings(estimators[0], y, *folds, sample_weight=options["sample_weight"])
        with quietly():
            cross_validation = cross_validation_for(X, y, settings, estimators)
            runs = runs_for(cross_validation, estimators)
            self.call.method = _checked(runs)
        if others := [run for run in runs if run.plan.name != "newton"]:
            raise LeftToSklearn(others[0].reason)
        plan, candidates = runs[0].plan, [run.estimator for run in runs]
        fold_models = plan.capabilities.fold_models
        assert fold_models is not None
        for repeat in cross_validation.repeats:
            for fold, models in enumerate(fold_models(plan, candidates, repeat)):
                if not np.all(np.isfinite(models)):
                    raise LeftToSklearn("a model of a fold was not found")
                of_classes = models[:, 0] if models.shape[1] == 1 else models
                self._models[_named(repeat.cut.tested_from(fold, fold + 1))] = of_classes
        if len(self._models) < sum(repeat.cut.n_folds for repeat in cross_validation.repeats):
            raise LeftToSklearn("two folds have the same test rows")


def _named(rows: np.ndarray) -> bytes:
    return np.sort(rows).astype(np.int64).tobytes()


def _with_others(function: Any, **others: Any) -> Any:
    """Return a copy of a function of scikit-learn in which some names mean something else.

    There is no public way to give its path of penalties other models. Patching its module would
    act on other threads.
    """
    if missing := others.keys() - set(function.__code__.co_names):
        raise LeftToSklearn(f"this version of scikit-learn has no {sorted(missing)[0]}")
    names = {**function.__globals__, **others}
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _all_scores(found: Any) -> np.ndarray:
    scores = found.scores_
    return np.array([*scores.values()] if isinstance(scores, dict) else scores)


_cross_validate = model_selection.cross_validate
_cross_val_score = model_selection.cross_val_score
_cross_val_predict = model_selection.cross_val_predict


def _settings_of(
    function: Any, estimator: Any, y: Any, options: dict[str, Any], **settings: Any
) -> Settings:
    """Return the settings of a function, in which weights act in training alone."""
    score, verbose = options.get("error_score", np.nan), options.get("verbose", 0)
    if (
        not options.keys() <= signature(function).parameters.keys()
        or isinstance(options.get("scoring"), set | frozenset)
        or not (isinstance(score, Real) or score == "raise")
        or not (isinstance(verbose, int) and verbose >= 0)
    ):
        raise LeftToSklearn("an argument is unknown or wrong")
    weights = _weights(estimator, options.get("params") or {})
    if weights is not None:
        settings |= {"sample_weight": weights, "score_weight": None}
    folds = (options.get(name) for name in ("groups", "cv", "n_jobs"))
    return _settings(estimator, y, *folds, **settings)


def _one_column(estimator: Any, X: Any, y: Any, options: dict[str, Any], call: Call) -> Any:
    scoring = options.get("scoring")
    if not (scoring is None or isinstance(scoring, str) or callable(scoring)):
        raise LeftToSklearn("scoring is no single score")
    return _columns(estimator, X, y, options, call)["test_score"]


@_left_if_it_fails()
def _columns(estimator: Any, X: Any, y: Any, options: dict[str, Any], call: Call) -> Any:
    """Return the columns of ``cross_validate``."""
    for name in ("return_train_score", "return_estimator", "return_indices"):
        if options.get(name):
            raise LeftToSklearn(f"{name} is True")
    scores = _scores(options.get("scoring"), estimator, y)
    X, y = indexable(X, y)
    settings = _settings_of(_cross_validate, estimator, y, options, scoring=scores.requested)
    result = _results(call, X, y, settings, [clone(estimator)])[0]
    n_splits = len(result.test_score)
    found = {
        "fit_time": np.full(n_splits, result.seconds / n_splits),
        "score_time": np.zeros(n_splits),
    }
    if not scores.is_multiple:
        return {**found, "test_score": np.array(result.test_score)}
    by_name = {f"test_{name}": np.array(result.scores[name].test_score) for name in scores.names}
    return {**found, **by_name}


@_left_if_it_fails()
def _predictions(estimator: Any, X: Any, y: Any, options: dict[str, Any], call: Call) -> Any:
    """Return out-of-fold predictions."""
    X, y = indexable(X, y)
    settings = _settings_of(_cross_val_predict, estimator, y, options)
    if getattr(X, "dtype", None) == np.float32:
        raise LeftToSklearn("predictions would have another dtype")
    with quietly():
        cross_validation = CrossValidation.of(X, y, settings, estimator)
        run = run_for(cross_validation, clone(estimator), is_scored=False)
        call.method = _checked([run])
    return run.predict(options.get("method", "predict"))


def _in_place_of(
    original: Callable[..., Any],
    by_engine: Callable[..., Any],
    difference: Callable[[Any, Any], float],
) -> Any:
    """Return a function with the name of one of scikit-learn's, which evaluates by an engine."""

    @wraps(original)
    def stand_in(estimator: Any, X: Any, y: Any = None, **options: Any) -> Any:
        again = partial(original, estimator, X, y, **options)
        call = Call(original.__name__, name_of(estimator))
        evaluate = partial(by_engine, estimator, X, y, options)
        return _run(call, evaluate, again, again, difference, options.get("cv"))

    stand_in.__module__ = __name__  # where pickle finds it
    return stand_in


cross_validate = _in_place_of(_cross_validate, _columns, partial(_largest, prefix="test_"))
cross_val_score = _in_place_of(_cross_val_score, _one_column, _difference)
cross_val_predict = _in_place_of(_cross_val_predict, _predictions, _difference)
