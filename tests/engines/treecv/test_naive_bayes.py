"""Naive Bayes by ``method="auto"``: the scores of ``cross_validate``, in the tree or by fits."""

from __future__ import annotations

import warnings

from ids import said
import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.metrics import make_scorer
from sklearn.model_selection import cross_val_predict
from sklearn.model_selection import cross_validate
from sklearn.model_selection import GroupKFold
from sklearn.model_selection import KFold
from sklearn.model_selection import LeaveOneOut
from sklearn.model_selection import PredefinedSplit
from sklearn.model_selection import ShuffleSplit
from sklearn.model_selection import StratifiedKFold
from sklearn.model_selection import TimeSeriesSplit
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import BernoulliNB
from sklearn.naive_bayes import CategoricalNB
from sklearn.naive_bayes import ComplementNB
from sklearn.naive_bayes import GaussianNB
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Binarizer
from sklearn.preprocessing import MinMaxScaler
from sklearn.preprocessing import StandardScaler

from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv.engines.treecv.learners.adapter import Adapter
from optuna_treecv.rows.data import Data
from optuna_treecv.rows.layout import RowLayout

N_ROWS = 60
PRIORS = [0.2, 0.3, 0.5]
OF_COUNTS = {
    "multinomial": MultinomialNB(),
    "multinomial, equal priors": MultinomialNB(alpha=1e-3, fit_prior=False),
    "multinomial, alpha by column": MultinomialNB(alpha=np.linspace(0.1, 2, 17)),
    "complement": ComplementNB(alpha=0.3),
    "complement, norm": ComplementNB(norm=True),
    "Bernoulli": BernoulliNB(alpha=3),
    "Bernoulli, priors": BernoulliNB(class_prior=PRIORS, binarize=1.0),
}
OTHERS = {
    "Gaussian": GaussianNB(),
    "Gaussian, smooth": GaussianNB(var_smoothing=0.1),
    "Gaussian, priors": GaussianNB(priors=PRIORS, var_smoothing=1e-6),
    "categorical": CategoricalNB(),
    "categorical, priors": CategoricalNB(alpha=0.2, class_prior=PRIORS, min_categories=9),
}
SPLITTERS = {
    "2": KFold(2),
    "10": KFold(10),
    "mixed": KFold(7, shuffle=True, random_state=0),
    "stratified": StratifiedKFold(4),
    "groups": GroupKFold(5),
    "leave one out": LeaveOneOut(),
    "hold-out": PredefinedSplit(np.where(np.arange(N_ROWS) < 45, -1, 0)),
    "some untested": PredefinedSplit(np.clip(np.arange(N_ROWS) // 15 - 1, -1, 2)),
    "growing": TimeSeriesSplit(3),
    "random": ShuffleSplit(3, random_state=0),
}

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is fitted .* times:UserWarning"),
    pytest.mark.filterwarnings("ignore:scoring='scorer' may not be a mean over rows:UserWarning"),
]


def rows_for(estimator):
    """Return rows of which an estimator of scikit-learn can be fitted on every fold."""
    if isinstance(estimator, GaussianNB):
        return NUMBERS
    return CATEGORIES if isinstance(estimator, CategoricalNB) else X


def counts(seed=0, rate=0.7):
    """Return counts with a column for all, one for no and one for a single row, and labels."""
    rng = np.random.default_rng(seed)
    X = rng.poisson(rate, (N_ROWS, 17)).astype(np.float64)
    X[:, 0], X[:, 1:3] = 1, 0
    X[7, 2] = 3
    codes = rng.integers(0, 3, N_ROWS)
    codes[:6] = codes[-6:] = [0, 1, 2, 0, 1, 2]
    codes[20:26] = codes[40:46] = [2, 1, 0, 2, 1, 0]
    return X, np.array(["ham", "jam", "spam"])[codes]


X, Y = counts()
CATEGORIES = np.minimum(X, 1) * (np.arange(17) != 2)
RNG = np.random.default_rng(1)
WEIGHTS = RNG.choice([0, 0.5, 1, 2.25, 7], N_ROWS)
GROUPS = np.arange(N_ROWS) // 7
# Columns of several scales, a rare dummy, one that is set once, and a constant.
NUMBERS = RNG.normal(size=X.shape) * 10.0 ** RNG.integers(-1, 2, 17) + X[:, [3]]
NUMBERS[:, 3] = RNG.random(N_ROWS) < 0.15
NUMBERS[:, 4] = np.arange(N_ROWS) == 7
NUMBERS[:, 5] = 0.1


def in_sum(y, probabilities):
    """Return a number that changes with every probability, whatever the order of the rows."""
    columns = np.square(probabilities).reshape(len(y), -1)
    return float(np.mean(columns @ np.arange(1.0, columns.shape[1] + 1)))


SCORERS = {"accuracy": "accuracy", "in_sum": make_scorer(in_sum, response_method="predict_proba")}
SUM = {"in_sum": SCORERS["in_sum"]}
# Each estimator without and with weights, and each splitter, too.
CASES = [
    (name, list(SPLITTERS)[(3 * number + 5 * is_weighted) % len(SPLITTERS)], is_weighted)
    for number, name in enumerate(OF_COUNTS | OTHERS)
    for is_weighted in (False, True)
]


def compare(estimator, rows, y=Y, weights=None, cv=SPLITTERS["10"], rtol=1e-10, scorers=SCORERS):
    """Compare the scores of "auto" with those of fits, and return the method."""
    kind = {"cv": cv, "groups": GROUPS if isinstance(cv, GroupKFold) else None}
    params = None if weights is None else {"sample_weight": weights}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        expected = cross_validate(
            estimator, rows, y, **kind, scoring=scorers, error_score="raise", params=params
        )
        for name, scoring in scorers.items():
            options = {"scoring": scoring, "sample_weight": weights, "score_weight": None}
            ours = tree_cross_validate(estimator, rows, y, **kind, **options)
            np.testing.assert_allclose(ours.test_score, expected[f"test_{name}"], rtol=rtol)
    return ours.method


@pytest.mark.slow
@pytest.mark.parametrize(("name", "splitter", "is_weighted"), CASES)
def test_scores_are_those_of_fits(name, splitter, is_weighted):
    estimator, cv = (OF_COUNTS | OTHERS)[name], SPLITTERS[splitter]
    rows, weights = rows_for(estimator), WEIGHTS if is_weighted else None
    # The weights change nothing in the scorers.
    method = compare(
        estimator, rows, weights=weights, cv=cv, scorers=SUM if is_weighted else SCORERS
    )
    # No tree trains random splits, nor on categories that only rows of weight 0 have.
    is_far = isinstance(estimator, CategoricalNB) and is_weighted
    if isinstance(cv, ShuffleSplit) or is_far:
        assert method == "fit"
    else:
        assert method == ("chain" if isinstance(cv, TimeSeriesSplit) else "treecv")


@pytest.mark.slow
def test_numbers_far_from_1_or_from_0_and_weights_of_different_sizes_cost_no_digits():
    first = np.where(np.arange(17) < 3, 1.0, 0)
    for rows in (NUMBERS * 1e-50**first, NUMBERS * 1e50**first):
        found = compare(GaussianNB(), rows, cv=SPLITTERS["leave one out"], scorers=SUM)
        assert found == "treecv"
    weights = np.ones(N_ROWS)
    weights[[3, 5, 9]] = 1e13, 1e-13, 1e6
    assert compare(GaussianNB(), NUMBERS, weights=weights) == "treecv"
    assert compare(GaussianNB(), NUMBERS + 1e6, rtol=1e-7) == "treecv"
    rows = NUMBERS.astype(np.float32)  # both sum in float32, one in parts
    assert compare(GaussianNB(var_smoothing=1e-3), rows, rtol=1e-4) == "treecv"


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [MultinomialNB(), ComplementNB(), BernoulliNB()], ids=said)
def test_steps_that_transform_each_row_for_itself(estimator):
    whole = make_pipeline(Binarizer(threshold=1.0), estimator)
    for rows in (X, sparse.csr_array(X)):
        assert compare(whole, rows, cv=StratifiedKFold(4)) == "treecv"


@pytest.mark.slow
@pytest.mark.parametrize(
    "estimator",
    [
        make_pipeline(StandardScaler(), GaussianNB()),
        make_pipeline(MinMaxScaler(), MultinomialNB()),
        make_pipeline(make_pipeline(MinMaxScaler(), ComplementNB())),
        make_pipeline(MinMaxScaler(), make_pipeline(Binarizer(threshold=0.5), BernoulliNB())),
        GaussianNB(var_smoothing=0),
        GaussianNB(var_smoothing=1e-14),
        OneVsRestClassifier(GaussianNB(var_smoothing=0.1)),
    ],
    ids=said,
)
def test_what_the_tree_would_make_otherwise_is_fitted(estimator):
    rows = np.abs(NUMBERS + RNG.random(X.shape))
    assert compare(estimator, rows, cv=SPLITTERS["2"], scorers=SUM) == "fit"


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [*OF_COUNTS.values(), *OTHERS.values()], ids=str)
def test_training_sets_without_a_class_are_fitted(estimator):
    y = np.where(np.arange(N_ROWS) < 6, "rare", "usual")
    y[10:40:2] = "other"
    if getattr(estimator, "class_prior", getattr(estimator, "priors", None)) is not None:
        with pytest.raises(ValueError, match="umber of priors must match"):
            tree_cross_validate(estimator, rows_for(estimator), y, cv=KFold(10))
        return
    options = {"cv": KFold(10), "scoring": "accuracy"}
    rows = rows_for(estimator)
    found = tree_cross_validate(estimator, rows, y, **options)
    assert (found.method, found.reason[:28]) == ("fit", "a training set lacks a class")
    expected = cross_validate(estimator, rows, y, **options)["test_score"]
    assert np.array_equal(found.test_score, expected)


def test_squares_that_overflow_are_fitted():
    rows, options = NUMBERS * 1e160, {"cv": KFold(10), "scoring": "accuracy"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found = tree_cross_validate(GaussianNB(), rows, Y, **options)
        expected = cross_validate(GaussianNB(), rows, Y, **options)["test_score"]
    assert (found.method, found.reason) == (
        "fit",
        "the sums of squares of the values in X overflow",
    )
    assert np.array_equal(found.test_score, expected)


@pytest.mark.slow
# Without "complement, norm", for which scikit-learn divides by an infinite sum.
@pytest.mark.parametrize("name", sorted(OF_COUNTS.keys() - {"complement, norm"}))
def test_alpha_zero_of_sparse_rows(name):
    model, rows = clone(OF_COUNTS[name]).set_params(alpha=0.0), sparse.csr_array(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        options = {"cv": KFold(10), "scoring": "accuracy"}
        found = tree_cross_validate(model, rows, Y, **options)
        expected = cross_validate(model, rows, Y, **options)
    assert np.array_equal(found.test_score, expected["test_score"])


def test_a_threshold_is_compared_in_the_type_of_the_rows():
    """0.1 is larger in float32 than in float64."""
    assert compare(BernoulliNB(binarize=0.1), (X * 0.1).astype(np.float32)) == "treecv"


def test_small_alphas_are_raised_unless_forced():
    models = [MultinomialNB(alpha=alpha, force_alpha=False) for alpha in (0.0, 1e-10)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        one, other = tree_cross_validate_many(models, X, Y, cv=KFold(10), scoring="log_loss")
    assert np.array_equal(one.test_score, other.test_score)


@pytest.mark.parametrize("estimator", [MultinomialNB(), ComplementNB()], ids=said)
def test_negative_numbers_are_refused(estimator):
    rows = X.copy()
    rows[3, 4] = -2
    for form in (rows, sparse.csr_array(rows)):
        for cv in (KFold(10), TimeSeriesSplit(3)):
            with pytest.raises(ValueError, match="Negative values in data"):
                tree_cross_validate(estimator, form, Y, cv=cv)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [BernoulliNB(), MultinomialNB(), ComplementNB()], ids=said)
@pytest.mark.parametrize(
    "cv",
    [
        KFold(4),
        PredefinedSplit(np.where(np.arange(40) < 30, -1, 0)),
        PredefinedSplit(np.r_[np.full(30, -1), np.zeros(5), np.ones(5)]),
        TimeSeriesSplit(2, test_size=5),
    ],
    ids=["folds", "hold-out", "some untested", "growing"],
)
def test_tested_rows_without_any_number(cv, estimator):
    rows = np.random.default_rng(0).poisson(0.5, (40, 5)) + 0.0
    rows[30:] = 0
    compare(estimator, sparse.csr_array(rows), np.arange(40) % 2, cv=cv)


def test_classes_without_weight_in_a_training_set():
    rows, y = np.random.default_rng(0).poisson(1.0, (40, 3)), np.arange(40) // 20
    weights = np.where((y == 1) & (np.arange(40) < 30), 0.0, 1.0)
    cv = PredefinedSplit(np.where(np.arange(40) < 30, -1, 0))
    for estimator in (MultinomialNB(), MultinomialNB(fit_prior=False)):
        options = {"cv": cv, "scoring": "accuracy"}
        found = tree_cross_validate(
            estimator, rows, y, sample_weight=weights, score_weight=None, **options
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            fitted = clone(estimator).fit(rows[:30], y[:30], sample_weight=weights[:30])
        assert found.mean == fitted.score(rows[30:], y[30:])


def test_equal_rows_of_a_fold_get_equal_outputs():
    """Ties between rows, as an area under a curve counts them, must not be broken by rounding."""
    rng = np.random.default_rng(0)
    rows = (rng.random((200, 5)) > 0.5).astype(float)
    y = (rows[:, 0] + rng.random(200) > 1).astype(int)
    found = tree_cross_val_predict(
        GaussianNB(var_smoothing=0.1), rows, y, cv=KFold(3), response_method="predict_proba"
    )
    for _, test in KFold(3).split(rows):
        distinct, group = np.unique(rows[test], axis=0, return_inverse=True)
        for number in range(len(distinct)):
            assert len(np.unique(found[test][group.ravel() == number], axis=0)) == 1


# GaussianNB trained phase by phase is the model of one fit on the same rows.

NB = GaussianNB(var_smoothing=0.1)


class TrainedNB(GaussianNB):
    """A subclass is trained further as its class is."""


@pytest.fixture(scope="module")
def cover():
    """Columns of very different scales, rare indicators and classes of very different sizes."""
    rng = np.random.default_rng(0)
    n = 700
    y = rng.choice(5, n, p=[0.45, 0.35, 0.1, 0.07, 0.03])
    large = rng.gamma(2 + y[:, None], [280, 110, 7, 1500, 600], (n, 5))
    rare = rng.random((n, 6)) < 0.05 + 0.1 * (y[:, None] == np.arange(6))
    return np.c_[large, rare], y


def test_a_missing_number_in_a_row_without_weight_is_refused(cover):
    X, y = cover[0].copy(), cover[1]
    X[7, 3] = np.nan
    weights = np.ones(len(y))
    weights[:350] = 0
    options = {"sample_weight": weights, "score_weight": None, "method": "treecv"}
    with pytest.raises(ValueError, match="Input X contains NaN"):
        tree_cross_validate(NB, X, y, cv=4, shuffle=False, stratify=False, **options)


def test_growing_training_sets(cover):
    cv = TimeSeriesSplit(4)
    X, y = cover
    found = tree_cross_validate(TrainedNB(var_smoothing=0.1), X, y, cv=cv, scoring="accuracy")
    assert found.method == "chain"
    expected = cross_validate(NB, X, y, cv=cv, scoring="accuracy")["test_score"]
    assert np.array_equal(found.test_score, expected)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_model_is_that_of_a_fit_after_each_phase(cover, dtype):
    X, y = cover[0].astype(dtype), cover[1]
    rows = Data(X, y).prepare(RowLayout(target="class"), np.arange(len(y), dtype=np.uint32))
    learner = Adapter(NB, rows, (), seed=0)
    state, old, n_old = learner.start(), None, 0
    for start, stop in [(0, 1), (1, 3), (3, 200), (200, 201), (201, 700)]:
        old, n_old = learner.snapshot(state), start
        learner.update(state, slice(start, stop))
        for model, n in ((learner.estimator(state), stop), (learner.estimator(old), n_old)):
            if n == 0:
                continue
            fitted = clone(NB).fit(X[:n], y[:n])
            seen = np.isin(model.classes_, fitted.classes_)
            assert type(model) is GaussianNB and model.var_smoothing == NB.var_smoothing
            assert model.var_.dtype == fitted.var_.dtype
            tolerance = {"rtol": 1e-12 if dtype == np.float64 else 1e-3}
            for name in ("theta_", "var_", "class_count_", "class_prior_"):
                ours, theirs = getattr(model, name)[seen], getattr(fitted, name)
                np.testing.assert_allclose(ours, theirs, **tolerance, err_msg=name)
            assert model.epsilon_ == pytest.approx(fitted.epsilon_, rel=tolerance["rtol"])


@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")  # log(0), also in its fits
@pytest.mark.parametrize("n_folds", [2, 9])
def test_classes_that_come_late(n_folds, cover):
    order = np.argsort(cover[1], kind="stable")
    X, y = cover[0][order], np.array(list("dbcae"))[cover[1][order]]
    cv = KFold(n_folds)
    options = {"shuffle": False, "response_method": "predict_proba"}
    ours = tree_cross_val_predict(NB, X, y, cv=cv, method="treecv", **options)
    for train, test in cv.split(X):
        fitted = clone(NB).fit(X[train], y[train])
        theirs = np.zeros((len(test), 5))
        theirs[:, np.isin(list("abcde"), fitted.classes_)] = fitted.predict_proba(X[test])
        np.testing.assert_allclose(ours[test], theirs, rtol=1e-10, atol=1e-14)


def test_a_subclass_trains_in_its_own_way(cover):
    calls = []

    class Watching(GaussianNB):
        def partial_fit(self, X, y, classes=None, sample_weight=None):
            calls.append(self.var_smoothing)
            return super().partial_fit(X, y, classes, sample_weight)

    tree_cross_validate(Watching(var_smoothing=0.5), *cover, cv=2, method="treecv")
    assert set(calls) == {0.5}


def test_a_column_within_one_fold_leaves_nothing():
    """With a tiny alpha, the rest of a rounded difference would be seen."""
    rows = X * np.random.default_rng(5).random(X.shape) * 1e6
    rows[:, 5] = 0
    rows[12:14, 5] = 1e9 / 3
    model, options = MultinomialNB(alpha=1e-10), {"cv": KFold(10)}
    ours = tree_cross_val_predict(model, rows, Y, **options)
    assert np.array_equal(ours, cross_val_predict(model, rows, Y, **options))
