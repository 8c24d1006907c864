"""Every estimator of scikit-learn has the scores of ``cross_validate``."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.base import is_regressor
from sklearn.datasets import load_iris
from sklearn.ensemble import BaggingClassifier
from sklearn.ensemble import StackingClassifier
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Perceptron
from sklearn.linear_model import Ridge
from sklearn.model_selection import cross_validate
from sklearn.model_selection import KFold
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeRegressor
from sklearn.utils import all_estimators
from sklearn.utils import get_tags

from optuna_treecv import pooled
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate

CV = KFold(2, shuffle=True, random_state=0)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))
CLASSES = np.argmax(X[:, :3] + 0.7 * RNG.normal(size=(60, 3)), axis=1)
NUMBERS = X @ [1.0, -0.5, 0.2, 0.0] + 0.3 * RNG.normal(size=60)
TWO_CLASSES = (X[:, 0] + 0.5 * RNG.normal(size=60) > 0).astype(int)
TWO_NUMBERS = np.c_[NUMBERS, X @ [0.0, 1.0, 1.0, 0.1] + 0.2 * RNG.normal(size=60)]
TWO_LABELS = np.c_[TWO_CLASSES, (X[:, 1] > 0).astype(int)]

CLASSIFIER, REGRESSOR = LogisticRegression(C=0.5), Ridge(0.5)
CLASSIFIERS = [("a", CLASSIFIER), ("b", GaussianNB())]
REGRESSORS = [("a", REGRESSOR), ("b", DecisionTreeRegressor(max_depth=2, random_state=0))]
GRID = {"C": [0.1, 1.0]}

#: What estimators cannot do without, and what makes slow ones fast.
ARGUMENTS = {
    **dict.fromkeys(("StackingClassifier", "VotingClassifier"), {"estimators": CLASSIFIERS}),
    **dict.fromkeys(("StackingRegressor", "VotingRegressor"), {"estimators": REGRESSORS}),
    **dict.fromkeys(("ClassifierChain", "MultiOutputClassifier"), {"estimator": CLASSIFIER}),
    **dict.fromkeys(("RegressorChain", "MultiOutputRegressor"), {"estimator": REGRESSOR}),
    **dict.fromkeys(("OneVsOneClassifier", "OneVsRestClassifier"), {"estimator": CLASSIFIER}),
    **dict.fromkeys(("OutputCodeClassifier", "RFE"), {"estimator": CLASSIFIER}),
    "RFECV": {"estimator": CLASSIFIER, "cv": 2},
    "GraphicalLassoCV": {"alphas": 2, "cv": 2},
    "LogisticRegressionCV": {"Cs": 2, "cv": 2, "use_legacy_attributes": False},
    "MeanShift": {"bandwidth": 2.0},
    **dict.fromkeys(
        ("HistGradientBoostingClassifier", "HistGradientBoostingRegressor"), {"max_iter": 10}
    ),
    **dict.fromkeys(("MLPClassifier", "MLPRegressor"), {"max_iter": 20}),
    **dict.fromkeys(("AdaBoostClassifier", "AdaBoostRegressor"), {"n_estimators": 10}),
    "FixedThresholdClassifier": {"estimator": CLASSIFIER},
    "TunedThresholdClassifierCV": {"estimator": CLASSIFIER, "thresholds": 10, "cv": 2},
    "SelfTrainingClassifier": {"estimator": GaussianNB()},
    "FrozenEstimator": {"estimator": clone(CLASSIFIER).fit(X, CLASSES)},
    **dict.fromkeys(("GridSearchCV", "HalvingGridSearchCV"), (CLASSIFIER, GRID)),
    **dict.fromkeys(("RandomizedSearchCV", "HalvingRandomSearchCV"), (CLASSIFIER, GRID)),
    "Pipeline": {"steps": [("model", CLASSIFIER)]},
    **dict.fromkeys(("RadiusNeighborsClassifier", "RadiusNeighborsRegressor"), {"radius": 5.0}),
    "CategoricalNB": {"min_categories": 20},
    "LocalOutlierFactor": {"novelty": True},
    "IsotonicRegression": {"out_of_bounds": "clip"},
    "TheilSenRegressor": {"max_subpopulation": 100},
    **dict.fromkeys(
        ("GradientBoostingClassifier", "GradientBoostingRegressor", "IsolationForest"),
        {"n_estimators": 10},
    ),
    **dict.fromkeys(("ExtraTreesClassifier", "ExtraTreesRegressor"), {"n_estimators": 10}),
    **dict.fromkeys(("RandomForestClassifier", "RandomForestRegressor"), {"n_estimators": 10}),
}
NEWTON = {"tol": 1e-14, "max_iter": 100, "solver": "newton-cholesky"}
#: The parameters of converged fits, for estimators whose models ``method="auto"`` solves to
#: convergence, and whose default ``tol`` does not.
CONVERGED = {
    **dict.fromkeys(("GammaRegressor", "PoissonRegressor", "TweedieRegressor"), NEWTON),
    "SVR": {"tol": 1e-8},
}
COUNTS = ("CategoricalNB", "ComplementNB", "LatentDirichletAllocation", "MiniBatchNMF", "NMF")


def is_evaluated(kind):
    return hasattr(kind, "score") or hasattr(kind, "predict")


def make(name, kind):
    """Return an estimator with a seed."""
    arguments = ARGUMENTS.get(name, {})
    estimator = kind(**arguments) if isinstance(arguments, dict) else kind(*arguments)
    if name.startswith(("Randomized", "HalvingRandom")) and name.endswith("SearchCV"):
        estimator.set_params(**{"n_iter" if name == "RandomizedSearchCV" else "n_candidates": 2})
    if "random_state" in estimator.get_params():
        estimator.set_params(random_state=0)
    return estimator


def rows_for(name, estimator):
    """Return rows and targets that suit an estimator."""
    tags = get_tags(estimator)
    rows = X
    if tags.input_tags.positive_only or name in COUNTS:
        rows = np.floor(np.abs(2 * X))
    elif name == "IsotonicRegression":
        rows = X[:, :1]
    takes_several = tags.target_tags.multi_output and not tags.target_tags.single_output
    if name in ("ClassifierChain", "MultiOutputClassifier"):
        return rows, TWO_LABELS
    if name in ("FixedThresholdClassifier", "TunedThresholdClassifierCV"):
        return rows, TWO_CLASSES
    if takes_several or name in ("CCA", "PLSCanonical", "PLSRegression", "RegressorChain"):
        return rows, TWO_NUMBERS
    if CONVERGED.get(name) is NEWTON:
        return rows, np.exp(NUMBERS)
    if is_regressor(estimator):
        return rows, NUMBERS
    return rows, CLASSES if is_classifier(estimator) or tags.target_tags.required else None


def own_score(estimator, X, y=None):
    """Return the score of ``score`` if an estimator has one, else the mean of its predictions."""
    if not hasattr(estimator, "score"):
        return float(np.mean(estimator.predict(X)))
    try:
        return estimator.score(X) if y is None else estimator.score(X, y)
    except TypeError:  # EllipticEnvelope needs labels
        return float(np.mean(estimator.decision_function(X)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "kind"), [pair for pair in all_estimators() if is_evaluated(pair[1])], ids=str
)
def test_equals_cross_validate(name, kind):
    estimator = make(name, kind)
    rows, y = rows_for(name, estimator)
    scoring = own_score
    if is_classifier(estimator) and name not in ("MultiOutputClassifier",):
        scoring = "accuracy"
    elif is_regressor(estimator):
        scoring = "r2"
    expected = cross_validate(estimator, rows, y, cv=CV, scoring=scoring, error_score="raise")
    auto = tree_cross_validate(estimator, rows, y, cv=CV, scoring=scoring)
    tolerance = 1e-9
    if name in CONVERGED:
        tolerance = 1e-6  # as documented of Newton's method
        estimator.set_params(**CONVERGED[name])
        expected = cross_validate(estimator, rows, y, cv=CV, scoring=scoring)
    np.testing.assert_allclose(auto.test_score, expected["test_score"], rtol=0, atol=tolerance)


IRIS = load_iris(return_X_y=True)
STACK = StackingClassifier([("a", CLASSIFIER), ("b", GaussianNB())], cv=2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("estimator", "method"),
    [(STACK, "fit"), (make_pipeline(StandardScaler(), STACK), "auto")],
    ids=["alone", "in a Pipeline"],
)
def test_methods_of_a_final_estimator_that_fit_chooses(estimator, method):
    rows, y = IRIS[0], (IRIS[1] == 1).astype(int)
    names = ["accuracy", "neg_log_loss", "roc_auc"]
    result = tree_cross_validate(
        estimator, rows, y, cv=CV, scoring=[*names, pooled("neg_log_loss")], method=method
    )
    expected = cross_validate(
        estimator, rows, y, cv=CV, scoring=names, return_estimator=True, return_indices=True
    )
    for name in names:
        np.testing.assert_allclose(
            result.scores[name].test_score, expected[f"test_{name}"], atol=1e-12
        )
    predicted = tree_cross_val_predict(
        estimator, rows, y, cv=CV, response_method="predict_proba", method=method
    )
    for fitted, tested in zip(expected["estimator"], expected["indices"]["test"], strict=True):
        np.testing.assert_allclose(
            predicted[tested], fitted.predict_proba(rows[tested]), atol=1e-12
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "scoring", "lacks"),
    [
        (BaggingClassifier(n_estimators=2, random_state=0), "hinge", "decision_function"),
        (STACK.set_params(final_estimator=None), "hinge", ""),
        (clone(STACK).set_params(final_estimator=Perceptron()), "log_loss", "predict_proba"),
    ],
    ids=["chosen by fit, lacks it", "chosen by fit, has it", "given, lacks it"],
)
def test_an_estimator_that_lacks_a_method_is_refused(estimator, scoring, lacks):
    if not lacks:
        assert tree_cross_validate(estimator, *IRIS, cv=CV, scoring=scoring).mean < 1
        return
    with pytest.raises(ValueError, match=f"needs an estimator with {lacks}; .* has none"):
        tree_cross_validate(estimator, *IRIS, cv=CV, scoring=scoring)
