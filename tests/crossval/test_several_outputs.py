"""Targets of several columns, for regressors, against scikit-learn's own scores."""

from __future__ import annotations

from ids import said
import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution
from pairs import pairs
import pandas as pd
import pytest
from sklearn import metrics
from sklearn.base import BaseEstimator
from sklearn.base import RegressorMixin
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.ensemble import RandomForestClassifier
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.linear_model import SGDRegressor
from sklearn.metrics import get_scorer
from sklearn.metrics import make_scorer
from sklearn.model_selection import cross_val_predict
from sklearn.model_selection import cross_val_score
from sklearn.model_selection import cross_validate
from sklearn.model_selection import GridSearchCV
from sklearn.model_selection import KFold
from sklearn.model_selection import LeaveOneOut
from sklearn.model_selection import ShuffleSplit
from sklearn.model_selection import StratifiedKFold
from sklearn.model_selection import TimeSeriesSplit
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVR
from sklearn.utils import all_estimators
from sklearn.utils import get_tags

from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv import pooled
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective
from optuna_treecv.estimators.checks import check_targets
from optuna_treecv.rows.data import Data
from optuna_treecv.scoring.fold_metrics import METRICS
from optuna_treecv.scoring.metrics import LOSSES
from optuna_treecv.scoring.metrics import registered_scorer
from optuna_treecv.scoring.scores import scores_of_folds
from optuna_treecv.scoring.scores import TestedRows

rng = np.random.default_rng(3)
N_ROWS = 150
X = rng.normal(size=(N_ROWS, 4))
# Of different scales, so that means over targets and over rows differ in their order.
Y = (X @ rng.normal(size=(4, 3)) + rng.normal(size=(N_ROWS, 3))) * [0.1, 1, 30] + [5, 0, 100]
WEIGHTS = rng.integers(0, 4, N_ROWS).astype(float)
FRAME = pd.DataFrame(Y, columns=["a", "b", "c"], index=range(7, N_ROWS + 7))

# scikit-learn's scorers of several targets, and the same as losses of this package.
SCORERS = [
    "r2",
    "explained_variance",
    "neg_mean_squared_error",
    "neg_root_mean_squared_error",
    "neg_mean_absolute_error",
    "neg_median_absolute_error",
    "neg_mean_absolute_percentage_error",
]
FAST = sorted(METRICS.keys() & set(SCORERS))
LOSS_OF = {
    "squared_error": metrics.mean_squared_error,
    "absolute_error": metrics.mean_absolute_error,
}
MODELS = [
    Ridge(),
    RandomForestRegressor(3, random_state=0),
    make_pipeline(StandardScaler(), Ridge()),
]


class MeanOfTargets(RegressorMixin, BaseEstimator):
    """Can be trained further, predicts the mean, and does not depend on the order of the rows."""

    def fit(self, X, y, sample_weight=None):
        self.sum_ = 0.0
        return self.partial_fit(X, y, sample_weight)

    def partial_fit(self, X, y, sample_weight=None):
        weights = np.ones(len(y)) if sample_weight is None else sample_weight
        self.sum_ = getattr(self, "sum_", 0.0) + weights @ y
        self.weight_ = getattr(self, "weight_", 0.0) + weights.sum()
        return self

    def predict(self, X):
        return np.tile(self.sum_ / self.weight_, (len(X), 1))


class FirstOfTargets(MeanOfTargets):
    """Answers by one of the columns."""

    def predict(self, X):
        return super().predict(X)[:, 0]


def scores_in_folds(estimator, cv, weights, score_weights):
    """Return the scores by scikit-learn's own loop, a dict by name."""
    scores = {name: [] for name in [*SCORERS, *LOSS_OF]}
    for train, test in cv.split(X, Y):
        params = {} if weights is None else {"sample_weight": weights[train]}
        fitted = estimator.fit(X[train], Y[train], **params)
        scored = {} if score_weights is None else {"sample_weight": score_weights[test]}
        for name in SCORERS:
            scores[name].append(get_scorer(name)(fitted, X[test], Y[test], **scored))
        predicted = fitted.predict(X[test])
        for name, loss in LOSS_OF.items():
            scores[name].append(loss(Y[test], predicted, **scored))
    return scores


CVS = [KFold(3), ShuffleSplit(2, test_size=0.3, random_state=1), TimeSeriesSplit(3)]
FORMS = {"array": Y, "frame": FRAME, "list": Y.tolist()}


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(model=MODELS, form=FORMS, cv=CVS, method=["auto", "fit"]), ids=said
)
def test_scores_are_those_of_cross_validate(model, form, cv, method):
    expected = cross_validate(model, X, FORMS[form], cv=cv, scoring=SCORERS)
    for scoring in (["r2"], [*SCORERS, *LOSS_OF]):  # from sums, or from predictions
        found = tree_cross_validate(
            model, X, FORMS[form], cv=cv, scoring=scoring, method=method, shuffle=False
        )
        assert found.method == ("fit" if method == "fit" or model is MODELS[1] else "exact")
        for name in SCORERS & found.scores.keys():
            scores = found.scores[name].test_score
            np.testing.assert_allclose(scores, expected[f"test_{name}"], rtol=1e-10)
    for loss in LOSS_OF:
        scorer = f"neg_mean_{loss}"
        np.testing.assert_allclose(
            found.scores[loss].test_score, -expected[f"test_{scorer}"], rtol=1e-10
        )


def test_exact_folds_of_single_rows():
    model = Ridge(alpha=0.1)
    found = tree_cross_validate(model, X, Y, cv=LeaveOneOut(), scoring=list(LOSS_OF))
    assert found.method == "exact"
    predicted = cross_val_predict(model, X, Y, cv=LeaveOneOut())
    for name, loss in LOSS_OF.items():
        expected = loss(Y.T, predicted.T, multioutput="raw_values")
        np.testing.assert_allclose(found.scores[name].test_score, expected, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(
        model=[Ridge(), RandomForestRegressor(3, random_state=0)],
        method=["auto", "fit"],
        weighted=[{"sample_weight": WEIGHTS}, {"sample_weight": WEIGHTS, "score_weight": None}],
    ),
    ids=range(4),
)
def test_weights(model, weighted, method):
    cv = KFold(4)
    weights = weighted.get("sample_weight")
    score_weights = weighted.get("score_weight", weights)
    expected = scores_in_folds(model, cv, weights, score_weights)
    found = tree_cross_validate(
        model, X, Y, cv=cv, scoring=list(expected), method=method, **weighted
    )
    for name, scores in expected.items():
        np.testing.assert_allclose(found.scores[name].test_score, scores, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("model", [*MODELS, MeanOfTargets()], ids=lambda e: type(e).__name__)
def test_predictions(model):
    cv = KFold(5)
    expected = cross_val_predict(model, X, Y, cv=cv)
    for form, method in ((Y, "auto"), (FRAME, "fit")):
        found = tree_cross_val_predict(model, X, form, cv=cv, method=method)
        assert found.shape == (N_ROWS, 3)
        np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize(
    *pairs(model=[Ridge(), MeanOfTargets()], method=["auto", "fit"], weights=[None, WEIGHTS]),
    ids=range(4),
)
def test_pooled_scores_are_those_of_all_predictions(model, weights, method):
    cv = KFold(5)
    names = [*SCORERS, *LOSS_OF]
    found = tree_cross_validate(
        model, X, Y, cv=cv, scoring=list(map(pooled, names)), score_weight=weights, method=method
    )
    predicted = cross_val_predict(model, X, Y, cv=cv)
    for name in names:
        metric, sign = LOSS_OF.get(name), 1
        if metric is None:
            metric, sign = get_scorer(name)._score_func, get_scorer(name)._sign
        score = found.scores[f"pooled_{name}"]
        expected = sign * metric(Y, predicted, sample_weight=weights)
        np.testing.assert_allclose(score.mean, expected, rtol=1e-10)
        assert score.std_error > 0


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("weights", [np.ones(N_ROWS), WEIGHTS])
def test_the_influence_of_a_row_is_the_derivative_by_its_weight(name, weights):
    predicted = Y + np.random.default_rng(0).normal(size=Y.shape) * [0.1, 2, 5]

    def score(of_rows):
        return metrics_of(name, predicted, of_rows)

    influence = METRICS[name].influence(predicted, Y, weights)
    assert influence.shape == (N_ROWS,)
    for row in range(0, N_ROWS, 19):
        step = np.zeros(N_ROWS)
        step[row] = 1e-5 * (1 if weights[row] else 0)
        if weights[row]:
            slope = (score(weights + step) - score(weights - step)) / 2e-5
            np.testing.assert_allclose(influence[row], slope, rtol=1e-5, atol=1e-10)


def metrics_of(name, predicted, weights):
    scorer = get_scorer(name)
    return scorer._sign * scorer._score_func(Y, predicted, sample_weight=weights)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
@pytest.mark.parametrize("weights", [None, WEIGHTS + 1])
@pytest.mark.parametrize("name", [*FAST, *LOSS_OF])
def test_scores_of_many_folds_at_once(name, weights):
    """One target is constant in a fold, and predicted exactly in another one."""
    targets = Y.copy()
    begins = np.array([0, 20, 80])
    targets[20:80, 1] = 0.5
    predicted = targets + np.random.default_rng(0).normal(size=Y.shape)
    predicted[80:, 2] = targets[80:, 2]
    rows = TestedRows(predicted, lambda outputs, method: predicted, targets, weights, begins)
    is_loss = name in LOSS_OF
    metric = LOSSES[name] if is_loss else registered_scorer(name)
    found, diverged, _ = scores_of_folds([metric], rows, Ridge(), None)
    sign = 1 if is_loss else get_scorer(name)._sign
    score = LOSS_OF[name] if is_loss else get_scorer(name)._score_func
    expected = []
    for part in (slice(0, 20), slice(20, 80), slice(80, None)):
        own = None if weights is None else weights[part]
        expected.append(sign * score(targets[part], predicted[part], sample_weight=own))
    np.testing.assert_allclose(found[0], expected, rtol=1e-12)
    assert not np.any(diverged)


def test_a_model_that_is_not_finite_in_one_target_has_diverged():
    predicted = Y.copy()
    predicted[70, 2] = np.nan
    rows = TestedRows(
        predicted, lambda outputs, method: predicted, Y, None, np.array([0, 50, 100])
    )
    metric = [LOSSES["squared_error"], registered_scorer("r2")]
    scores, diverged, _ = scores_of_folds(metric, rows, Ridge(), None)
    assert diverged.tolist() == [False, True, False]
    assert scores[0].tolist() == [0, np.inf, 0] and scores[1].tolist() == [1, -np.inf, 1]


@pytest.mark.filterwarnings("ignore:.*is misleading")
def test_r2_of_single_rows_is_undefined_and_warns_once_per_call():
    with pytest.warns(match="r2 is undefined .NaN. for 150 of 150 fold"):
        scores = METRICS["r2"].of_folds(Y + 1, Y, None, np.arange(N_ROWS))
    assert np.all(np.isnan(scores))
    with pytest.raises(ValueError, match="scoring='r2' is undefined .NaN. on a fold of 1 row"):
        tree_cross_validate(Ridge(), X, Y, cv="loo", scoring="r2", method="fit")


# The tree


@pytest.mark.slow
@pytest.mark.parametrize("method", ["treecv", "standard", "fit"])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_the_tree_trains_estimators_of_several_targets(method, weights):
    """A learner that is insensitive to the order has the scores of scikit-learn's own fits."""
    cv, model = KFold(5), DummyRegressor()
    expected = scores_in_folds(model, cv, weights, weights)
    options = {"cv": cv, "scoring": list(expected), "method": method, "sample_weight": weights}
    found = tree_cross_validate(MeanOfTargets(), X, FRAME, **options)
    assert found.method == method
    for name, scores in expected.items():
        np.testing.assert_allclose(found.scores[name].test_score, scores, rtol=1e-9, atol=1e-9)


# Objectives


ALPHA = {"alpha": FloatDistribution(1e-3, 1e3, log=True)}


def test_an_objective_evaluates_refits_and_has_a_baseline():
    study = optuna.create_study()
    options = {"param_distributions": ALPHA, "cv": KFold(3), "sample_weight": WEIGHTS}
    objective = treecv_objective(Ridge(), X, FRAME, **options)
    study.optimize(objective, n_trials=3)
    alpha = study.best_params["alpha"]
    expected = scores_in_folds(Ridge(alpha=alpha), KFold(3), WEIGHTS, WEIGHTS)["squared_error"]
    assert study.best_value == pytest.approx(np.mean(expected), rel=1e-10)
    own = Ridge(alpha=alpha).fit(X, Y, sample_weight=WEIGHTS)
    np.testing.assert_allclose(objective.best_estimator(study).coef_, own.coef_, rtol=1e-10)
    facts = study.user_attrs["treecv_evaluation"]
    means = np.tile(np.average(Y, axis=0, weights=WEIGHTS), (N_ROWS, 1))
    baseline = metrics.mean_squared_error(Y, means, sample_weight=WEIGHTS)
    assert facts["baseline"] == pytest.approx(baseline, rel=1e-12)
    assert facts["baseline_of"] == "the means of y"


def test_the_best_of_a_tree_predicts_all_targets():
    model = MLPRegressor(hidden_layer_sizes=(5,), max_iter=1)
    options = {"param_distributions": ALPHA, "cv": 3, "report": "folds"}
    objective = treecv_objective(model, X, Y, **options)
    study = optuna.create_study()
    study.optimize(objective, n_trials=2)
    assert study.best_trial.user_attrs["treecv"]["method"] == "treecv"
    assert objective.best_estimator(study).predict(X).shape == Y.shape


# Splitters


class Noting(KFold):
    """A splitter that keeps what it gets as y."""

    def split(self, X, y=None, groups=None):
        self.y = y
        return super().split(X, y, groups)


def test_a_splitter_gets_all_columns():
    cv = Noting(3)
    tree_cross_validate(Ridge(), X, FRAME, cv=cv)
    np.testing.assert_array_equal(cv.y, Y)


def test_splitters_and_strata_of_classes_are_refused():
    with pytest.raises(ValueError, match="cv=StratifiedKFold cannot split the rows: Supported"):
        tree_cross_validate(Ridge(), X, Y, cv=StratifiedKFold(3))
    match = (
        r"stratify must be 'auto' or False, got True: y must have one column if it "
        r"contains classes, got shape \(150, 3\)"
    )
    with pytest.raises(ValueError, match=match):
        tree_cross_validate(Ridge(), X, Y, cv=3, stratify=True)


# Refusals


@pytest.mark.parametrize(
    *pairs(
        estimator=[LogisticRegression(), PegasosClassifier()],
        labels=[Y > 0, np.digitize(Y, [0, 5])],
        cv=[3, KFold(3), "loo"],
    ),
    ids=range(6),
)
def test_classifiers_have_one_column(estimator, labels, cv):
    match = r"^y must have one column if it contains classes, got shape \(150, 3\); evaluate"
    for call in (tree_cross_validate, tree_cross_val_predict):
        with pytest.raises(ValueError, match=match):
            call(estimator, X, labels.astype(int), cv=cv)
    with pytest.raises(ValueError, match=match):
        treecv_objective(lambda trial: estimator, X, labels, cv=cv).evaluate({})


@pytest.mark.parametrize("labels", [Y > 0, np.digitize(Y, [0, 5])], ids=["bool", "int"])
def test_classifiers_that_take_columns_are_fitted(labels):
    """They are scored by scorers, and their labels are those of scikit-learn."""
    forest, folds = RandomForestClassifier(5, random_state=0), KFold(3)

    def score(model, X, y):
        return np.mean(model.predict(X) == y)

    found = tree_cross_validate(forest, X, labels, cv=folds, scoring=score)
    assert found.method == "fit"
    theirs = cross_val_score(forest, X, labels, cv=folds, scoring=score)
    assert found.test_score.tolist() == theirs.tolist()
    np.testing.assert_array_equal(
        tree_cross_val_predict(forest, X, labels, cv=folds),
        cross_val_predict(forest, X, labels, cv=folds),
    )
    with pytest.raises(ValueError, match="^response_method must be 'predict' because y has"):
        tree_cross_val_predict(forest, X, labels, cv=folds, response_method="predict_proba")
    with pytest.raises(ValueError, match="^scoring must be the name .* for y of shape"):
        tree_cross_validate(forest, X, labels, cv=folds)


@pytest.mark.slow
@pytest.mark.parametrize(
    "estimator",
    [
        AveragedSGDRegressor(),
        SGDRegressor(),
        GradientBoostingRegressor(),
        make_pipeline(StandardScaler(), SGDRegressor()),
        make_pipeline(StandardScaler(), SVR()),
    ],
    ids=said,
)
@pytest.mark.parametrize("method", ["auto", "fit"])
def test_regressors_of_one_target(estimator, method):
    last = estimator[-1] if isinstance(estimator, Pipeline) else estimator
    name = type(last).__name__
    match = (
        rf"^y must have one column for {name}, got shape \(150, 3\); use "
        rf"MultiOutputRegressor\({name}\(\)\) instead\.$"
    )
    for call in (tree_cross_validate, tree_cross_val_predict):
        with pytest.raises(ValueError, match=match):
            call(estimator, X, FRAME, method=method)
    with pytest.raises(ValueError, match=match):
        treecv_objective(lambda trial: estimator, X, Y, method=method).evaluate({})


def test_models_of_river():
    linear_model = pytest.importorskip("river.linear_model")
    match = r"^y must have one column for LinearRegression, got shape \(150, 3\); use one eval"
    with pytest.raises(ValueError, match=match):
        tree_cross_validate(linear_model.LinearRegression(), X, Y)


@pytest.mark.filterwarnings("ignore:Choices for a categorical")
def test_a_search_may_set_the_estimator():
    steps = Pipeline([("scale", StandardScaler()), ("model", SVR())])
    ridge = Ridge()
    space = {"model": CategoricalDistribution([ridge])}
    options = {"param_distributions": space, "cv": KFold(3), "scoring": "r2"}
    objective = treecv_objective(steps, X, Y, **options)
    expected = cross_validate(steps.set_params(model=ridge), X, Y, cv=KFold(3))
    found = objective.evaluate({"model": ridge})
    np.testing.assert_allclose(found.test_score, expected["test_score"], rtol=1e-10)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_is_refused_cannot_be_fitted_by_scikit_learn():
    for name, kind in all_estimators("regressor"):
        try:
            estimator = kind()
        except TypeError:  # it holds others
            continue
        try:
            predicted = estimator.fit(np.abs(X), np.abs(Y)).predict(np.abs(X))
            takes_several = np.shape(predicted) == Y.shape
        except AttributeError:  # scikit-learn 1.8: it holds another one, and was given none
            continue
        except ValueError:
            takes_several = False
        try:
            check_targets(estimator, Data(X, Y))
            is_refused = False
        except ValueError:
            is_refused = True
        assert is_refused != takes_several, name


def test_meta_estimators_decide_for_themselves():
    search = GridSearchCV(Ridge(), {"alpha": [1, 10]}, cv=2)
    assert not get_tags(search).target_tags.multi_output  # although it takes several
    expected = cross_validate(search, X, Y, cv=KFold(3), scoring="r2")
    found = tree_cross_validate(search, X, Y, cv=KFold(3), scoring="r2")
    np.testing.assert_array_equal(found.test_score, expected["test_score"])


def test_an_estimator_that_answers_by_other_columns():
    match = (
        r"predict of FirstOfTargets must return 3 columns for this y \(one per target\), got 1\."
    )
    for method in ("treecv", "fit"):
        with pytest.raises(ValueError, match=match):
            tree_cross_validate(FirstOfTargets(), X, Y, cv=3, method=method)
        with pytest.raises(ValueError, match=match):
            tree_cross_val_predict(FirstOfTargets(), X, Y, cv=3, method=method)
    with pytest.raises(ValueError, match="predict of Wide must return 1 column for this y"):
        tree_cross_validate(Wide(), X, Y[:, 0], cv=3, method="fit")


class Wide(MeanOfTargets):
    """Answers by two columns where there is one target."""

    def predict(self, X):
        return np.zeros((len(X), 2))


@pytest.mark.parametrize(
    ("y", "match"),
    [
        (np.zeros((N_ROWS, 0)), r"^y must have the shape \(n_rows,\) or \(n_rows, n_targets\), "),
        (np.zeros((N_ROWS, 2, 2)), r"^scoring must be the name .* for y of shape \(150, 2, 2\)"),
        (np.where(Y == Y[5, 1], np.nan, Y), "Input y contains NaN"),
        (Y[:-1], "inconsistent numbers of samples"),
        (Y.astype(str), "y must hold numbers for a regressor"),
        (np.ma.masked_array(Y), "y must not be a masked array"),
        (Y + 1j, "Complex data not supported: y must hold real numbers"),
        (Y.tolist()[:-1] + [[1.0]], "y cannot be used: setting an array element"),
    ],
)
def test_bad_targets(y, match):
    for method in ("auto", "fit"):
        with pytest.raises(ValueError, match=match):
            tree_cross_validate(Ridge(), X, y, cv=3, method=method)


def test_a_scorer_of_one_target_says_so():
    with pytest.raises(ValueError, match="scoring='neg_max_error' cannot score .*Multioutput"):
        tree_cross_validate(Ridge(), X, Y, cv=3, scoring="neg_max_error")


def test_a_scorer_may_weigh_targets():
    cv, own = KFold(3), {"multioutput": [0.2, 0.3, 0.5]}
    scorer = make_scorer(metrics.mean_squared_error, greater_is_better=False, **own)
    expected = cross_validate(Ridge(), X, Y, cv=cv, scoring=scorer)["test_score"]
    found = tree_cross_validate(Ridge(), X, Y, cv=cv, scoring=scorer)
    np.testing.assert_allclose(found.test_score, expected, rtol=1e-10)


def test_a_single_column_is_the_same_as_none():
    """Also where it stands in a table, as before."""
    flat = tree_cross_validate(Ridge(), X, Y[:, 1], cv=KFold(3))
    with pytest.warns(match="column-vector y"):
        column = tree_cross_validate(Ridge(), X, Y[:, 1:2], cv=KFold(3))
    np.testing.assert_allclose(column.test_score, flat.test_score, rtol=1e-12)
