"""Metrics of many folds at once, compared with scikit-learn's scorers, called fold by fold."""

from __future__ import annotations

import re
import warnings

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest
from sklearn.base import BaseEstimator
from sklearn.base import ClassifierMixin
from sklearn.base import RegressorMixin
from sklearn.metrics import get_scorer

from optuna_treecv.scoring import fold_metrics
from optuna_treecv.scoring.fold_metrics import fold_metric
from optuna_treecv.scoring.fold_metrics import METRICS
from optuna_treecv.scoring.metrics import registered_scorer

OF_NUMBERS = ["neg_mean_squared_error", "neg_mean_absolute_error", "r2"]
OF_NUMBERS += ["neg_root_mean_squared_error"]
OF_LABELS = ["accuracy", "balanced_accuracy", "f1"]
RANKING = ["roc_auc", "average_precision"]
OF_PROBABILITIES = ["neg_log_loss", "neg_brier_score"]
OF_TWO_CLASSES = ["f1", "roc_auc", "average_precision"]

ONE, PAIRS, OTHERS = [[1]], [[0, 1], [-1, 1], [False, True]], [[1, 2], ["a", "b"]]
FAR, MANY = [[-3, 1]], [[0, 1, 2], ["a", "b", "c"]]
CLASSES = ONE + PAIRS + OTHERS + FAR + MANY

# The classes that each metric is for. Three scorers want the label 1 for the positive class. For
# the Brier score scikit-learn takes -3 for the positive class in a fold without 1.
TAKEN = {
    "accuracy": CLASSES,
    "balanced_accuracy": CLASSES,
    "f1": PAIRS + FAR,
    "neg_log_loss": PAIRS + OTHERS + FAR + MANY,
    "neg_brier_score": PAIRS + MANY,
    "roc_auc": PAIRS + OTHERS + FAR,
    "average_precision": PAIRS + FAR,
}
TAKEN |= {name: [None] for name in OF_NUMBERS}

# What scikit-learn says of folds for which a score is undefined or replaced. It says other things
# of folds with one class, which have no effect on the score.
SAID = "well-defined|ill-defined|not in y_true|No positive|No negative|Only one class"


class Answers(BaseEstimator):
    """Answers with a row of ``answers`` for each row, which X names by its number."""

    def __init__(self, answers):
        self.answers = answers

    def __sklearn_is_fitted__(self):
        return True


class AnswersNumbers(RegressorMixin, Answers):
    def predict(self, X):
        return self.answers[X[:, 0]]


class AnswersClasses(ClassifierMixin, Answers):
    def predict(self, X):
        return self.answers[X[:, 0]]


class AnswersDecisions(ClassifierMixin, Answers):
    def decision_function(self, X):
        return self.answers[X[:, 0]]


class AnswersProbabilities(ClassifierMixin, Answers):
    def predict_proba(self, X):
        return self.answers[X[:, 0]]


CLASSIFIERS = {
    "predict": AnswersClasses,
    "decision_function": AnswersDecisions,
    "predict_proba": AnswersProbabilities,
}


class Case:
    """Outputs for the rows of several folds, as a metric and as scikit-learn take them."""

    def __init__(self, name, method, classes, response, targets, weights, sizes):
        self.metric = fold_metric(registered_scorer(name), classes)
        self.arguments = (response, targets, weights)
        for array in self.arguments:
            if array is not None:
                array.flags.writeable = False
        self.bounds = np.append(0, np.cumsum(sizes))
        self.weights = weights
        self._scorer = get_scorer(name)
        if classes is None:
            self._estimator, self._y = AnswersNumbers(response), targets
        else:
            self._y = classes[targets]
            if method == "predict":
                other = "other" if classes.dtype.kind == "U" else 99
                response = np.append(classes, other)[response]
            self._estimator = CLASSIFIERS[method](response)
            self._estimator.classes_ = classes

    def ours(self):
        """Return the scores of all folds and the sentences that were warned of."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with np.errstate(all="ignore"):
                scores = self.metric.of_folds(*self.arguments, self.bounds[:-1])
        assert scores.dtype == np.float64
        assert all(warning.filename == __file__ for warning in caught)
        return scores, [str(warning.message) for warning in caught]

    def theirs(self):
        """Return scikit-learn's scores, and which folds it warns of."""
        folds = [np.arange(*pair) for pair in zip(self.bounds[:-1], self.bounds[1:], strict=True)]
        scores, is_said = zip(*[self.one(rows, self.weights) for rows in folds], strict=True)
        return np.array(scores), np.array(is_said)

    def one(self, rows, weights):
        """Return scikit-learn's score of some rows, and whether it warns of it."""
        options = {}
        if weights is not None:
            if not weights[rows].any():  # scikit-learn's versions differ
                return np.nan, False
            options["sample_weight"] = weights[rows]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                score = self._scorer(self._estimator, rows[:, None], self._y[rows], **options)
            except ValueError:
                return np.nan, False
        return score, any(re.search(SAID, str(warning.message)) for warning in caught)


def check(case, tolerance=1e-12):
    scores, said = case.ours()
    expected, is_said = case.theirs()
    np.testing.assert_allclose(scores, expected, rtol=tolerance, atol=tolerance)
    counts = [f"for {is_said.sum()} of {len(is_said)} fold(s)"] if is_said.any() else []
    assert len(said) == len(counts)
    assert all(count in sentence for count, sentence in zip(counts, said, strict=True))


# Dyadic numbers: their sums are exact, so that scikit-learn finds no spread where there is none.
WEIGHTS = st.sampled_from([0.0, 0.0, 0.5, 1.0, 3.0])
PROBABILITIES = {
    # In float64, 1 - (1 - 1e-12) is not 1e-12.
    2: [[1, 0], [0.9, 0.1], [0.5, 0.5], [1e-12, 1 - 1e-12], [0, 1]],
    3: [[1, 0, 0], [0.25, 0.25, 0.5], [0.2, 0.3, 0.5], [0, 0.125, 0.875]],
}


@st.composite
def cases(draw, name):
    sizes = draw(st.lists(st.integers(1, 7), min_size=1, max_size=6))
    n = sum(sizes)

    def rows_of(values):
        return draw(st.lists(values, min_size=n, max_size=n))

    weights = np.array(rows_of(WEIGHTS)) if draw(st.booleans()) else None
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    if name in OF_NUMBERS:
        y = np.array(rows_of(st.sampled_from([-1.0, 0.0, 0.5, 2.0])))
        response = np.array(rows_of(st.sampled_from([-1.0, 0.1, 0.5])), dtype)
        return Case(name, "predict", None, response, y, weights, sizes)
    classes = np.array(draw(st.sampled_from(TAKEN[name])))
    n_classes = len(classes)
    codes = np.array(rows_of(st.integers(0, n_classes - 1)), np.int32)
    if name in OF_LABELS:
        least = 0 if classes.dtype == bool else -1  # there is no other label
        predicted = np.array(rows_of(st.integers(least, n_classes - 1)), np.int32)
        return Case(name, "predict", classes, predicted, codes, weights, sizes)
    if name in RANKING and draw(st.booleans()):
        decision = rows_of(st.sampled_from([-1.5, -0.0, 0.0, 1e-9, 0.25, 7.0]))
        return Case(
            name, "decision_function", classes, np.array(decision, dtype), codes, weights, sizes
        )
    values = PROBABILITIES[n_classes]
    probabilities = np.array(rows_of(st.sampled_from(values)), dtype)
    return Case(name, "predict_proba", classes, probabilities, codes, weights, sizes)


@pytest.mark.slow
@pytest.mark.parametrize("name", METRICS)
def test_scores_equal_those_of_scikit_learn(name):
    @given(cases(name))
    @settings(max_examples=25)
    def compare(case):
        # scikit-learn sums float32 losses in float32.
        is_narrow = case.arguments[0].dtype == np.float32 and name in OF_PROBABILITIES
        check(case, 1e-6 if is_narrow else 1e-12)

    compare()


def random_case(name, n, n_folds, seed, weighted=True):
    """Return a case of numbers without a pattern, in folds of all sizes; some weights are 0."""
    rng = np.random.default_rng(seed)
    cuts = np.sort(rng.choice(np.arange(1, n), n_folds - 1, replace=False))
    sizes = np.diff(cuts, prepend=0, append=n)
    weights = rng.exponential(size=n) * (rng.random(n) < 0.9) if weighted else None
    if name in OF_NUMBERS:
        y = 100 + rng.normal(size=n)
        return Case(name, "predict", None, y + rng.normal(size=n), y, weights, sizes)
    n_classes = 2 if name in OF_TWO_CLASSES or name == "neg_brier_score" else 4
    classes = np.arange(n_classes)
    codes = rng.integers(0, n_classes, n).astype(np.int32)
    if name in OF_LABELS:
        predicted = np.where(rng.random(n) < 0.5, codes, rng.integers(0, n_classes, n))
        return Case(name, "predict", classes, predicted.astype(np.int32), codes, weights, sizes)
    if name in RANKING:
        decision = np.round(rng.normal(size=n) + codes, 1)  # with ties
        return Case(name, "decision_function", classes, decision, codes, weights, sizes)
    probabilities = rng.dirichlet(np.ones(n_classes), n)
    return Case(name, "predict_proba", classes, probabilities, codes, weights, sizes)


@pytest.mark.slow
@pytest.mark.parametrize("name", METRICS)
def test_larger_folds_of_all_sizes(name, monkeypatch):
    monkeypatch.setattr(fold_metrics, "_ROWS_PER_BATCH", 30)  # which parts folds of a size
    is_weighted = list(METRICS).index(name) % 2 == 0
    for weighted, n_folds in ((is_weighted, 60), (not is_weighted, 20)):
        check(random_case(name, 10 * n_folds, n_folds, seed=3, weighted=weighted))


@pytest.mark.parametrize("name", METRICS)
def test_weights_of_one_fold_do_not_change_another(name):
    """Sums that run on from fold to fold would lose the digits of folds with small weights."""
    case = random_case(name, 300, 4, seed=4)
    response, targets, weights = case.arguments
    begins = case.bounds[:-1]
    scores = case.metric.of_folds(response, targets, weights, begins)
    heavy = np.where(np.arange(300) < begins[1], 1e12 * weights, weights)
    changed = case.metric.of_folds(response, targets, heavy, begins)
    np.testing.assert_allclose(changed, scores, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", METRICS)
def test_influence_is_the_derivative_by_the_weight(name, weighted):
    n = 24
    case = random_case(name, n, 1, seed=5, weighted=weighted)
    weights = case.arguments[2] if weighted else np.ones(n)
    rows, h = np.arange(n), 1e-6
    derivatives = np.empty(n)
    for row in rows:
        more, less = weights.copy(), weights.copy()
        more[row] += h
        less[row] = max(0, less[row] - h)  # a weight of 0 has a derivative to one side
        difference = case.one(rows, more)[0] - case.one(rows, less)[0]
        derivatives[row] = difference / (more[row] - less[row])
    influence = case.metric.influence(*case.arguments)
    np.testing.assert_allclose(influence, derivatives, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "response", "targets"),
    [
        ("neg_root_mean_squared_error", [1.0, 2.0], [1.0, 2.0]),
        ("balanced_accuracy", [0, 1, 1], [0, 0, 1]),
        ("average_precision", [0.1, 0.2, 0.3], [0, 1, 1]),
    ],
)
def test_a_row_without_weight_has_a_finite_influence(name, response, targets):
    """Otherwise the standard error of the other rows would be lost."""
    weights = np.ones(len(targets))
    weights[-1] = 0  # the only row of its class, without an error, or the first one by rank
    influence = METRICS[name].influence(np.array(response), np.array(targets), weights)
    assert np.all(np.isfinite(influence))


@pytest.mark.parametrize("predicted", [[0, 0, 0], [0, 2, 0], [0, -1, 0], [1, 1, 1]])
def test_balanced_accuracy_leaves_out_classes_without_weight(predicted):
    """Class 1 has no weight, class 2 no row; predictions name one of them, or neither."""
    codes, predicted = np.array([0, 1, 0], np.int32), np.array(predicted, np.int32)
    weights = np.array([1.0, 0.0, 2.0])
    check(Case("balanced_accuracy", "predict", np.arange(3), predicted, codes, weights, [2, 1]))


def test_equal_targets_have_no_spread():
    """Here scikit-learn's r2 may be -1e30, because a mean of equal numbers is rounded."""
    of_folds, y = METRICS["r2"].of_folds, np.array([0.1, 0.1, 0.1, 0.2])
    assert y[:3].mean() != 0.1
    begins, weights = np.zeros(1, np.int64), np.array([1.0, 1.0, 1.0, 0.0])
    assert of_folds(np.ones(3), y[:3], None, begins) == 0
    assert of_folds(np.ones(4), y, weights, begins) == 0
    assert of_folds(y, y, weights, begins) == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log_loss_of_certain_predictions_is_that_of_clipped_ones(dtype):
    probabilities, codes = np.eye(2, dtype=dtype), np.array([0, 1], np.int32)
    weights = np.ones(2)  # with weights, scikit-learn sums in float64
    case = Case("neg_log_loss", "predict_proba", codes, probabilities, codes, weights, [2])
    np.testing.assert_allclose(case.ours()[0], case.theirs()[0], rtol=1e-6, atol=0)


@pytest.mark.parametrize("column", [0, 1, 2])
@pytest.mark.parametrize("number", [-0.5, 1.5])
@pytest.mark.parametrize("name", OF_PROBABILITIES)
def test_a_fold_with_numbers_that_are_no_probabilities_has_no_score(name, number, column):
    probabilities = np.tile([0.25, 0.25, 0.5], (9, 1))
    probabilities[4, column] = number
    codes = np.tile([0, 1, 2], 3).astype(np.int32)
    case = Case(name, "predict_proba", np.arange(3), probabilities, codes, None, [3, 3, 3])
    np.testing.assert_array_equal(np.isnan(case.ours()[0]), [False, True, False])
    check(case)


@pytest.mark.parametrize("name", [*TAKEN, "precision"])
def test_which_classes_a_metric_is_for(name):
    for classes in [None, *CLASSES]:
        given = None if classes is None else np.array(classes)
        expected = METRICS[name] if classes in TAKEN.get(name, []) else None
        assert fold_metric(registered_scorer(name), given) is expected
