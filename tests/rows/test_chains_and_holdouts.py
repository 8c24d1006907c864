"""Chains, hold-outs, rows that are only trained on, groups, splitters that are no partition."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from ids import said
import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from pairs import pairs
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import cross_validate
from sklearn.model_selection import GroupKFold
from sklearn.model_selection import GroupShuffleSplit
from sklearn.model_selection import KFold
from sklearn.model_selection import LeavePGroupsOut
from sklearn.model_selection import PredefinedSplit
from sklearn.model_selection import RepeatedKFold
from sklearn.model_selection import ShuffleSplit
from sklearn.model_selection import StratifiedGroupKFold
from sklearn.model_selection import TimeSeriesSplit
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from studies import searched

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import ModelCache
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective
from optuna_treecv.paper import StreamingGaussianDensity

pytestmark = pytest.mark.filterwarnings("ignore:scoring=.*may not be a mean over rows")

N_ROWS = 120
X, Y = make_classification(N_ROWS, 6, n_informative=4, flip_y=0.2, random_state=0)


class TrainedNB(GaussianNB):
    """A subclass is trained further as its class is."""


LEARNERS = [
    PegasosClassifier(alpha=0.1),
    PegasosClassifier(alpha=0.1, average=True),
    AveragedSGDClassifier(),
    StreamingSVRGClassifier(),
    TrainedNB(),
    SGDClassifier(max_iter=1, tol=None, random_state=0),
]


def response(estimator, rows, _):
    """Score a model by what it says of the rows, whatever their labels are."""
    if hasattr(estimator, "decision_function"):
        return float(estimator.decision_function(rows).sum())
    return float(estimator.predict_proba(rows)[:, 0].sum())


def labels_changed(rows):
    y = Y.copy()
    y[rows] = 1 - y[rows]
    return y


def ids_of(*sizes):
    """Return fold ids in a mixed order; the first size is that of the rows with id -1."""
    ids = np.repeat(np.arange(-1, len(sizes) - 1), sizes)
    return np.random.default_rng(1).permutation(ids)


# Chains.


@pytest.mark.parametrize(
    "learner",
    [
        AveragedSGDClassifier(random_state=0),
        PegasosClassifier(random_state=0),
        make_pipeline(StandardScaler(), AveragedSGDClassifier(random_state=0)),
        make_pipeline(StandardScaler(), TrainedNB()),
        SGDClassifier(max_iter=1, tol=None, random_state=0),
        AveragedSGDClassifier(n_epochs=2, random_state=0),
    ],
    ids=said,
)
def test_auto_scores_fit_where_rows_drift(learner):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 4))
    labels = (rows[:, 0] + np.linspace(-2, 2, 400) * rows[:, 1] > 0).astype(int)
    cv = TimeSeriesSplit(4)
    found = tree_cross_validate(learner, rows, labels, cv=cv, scoring="accuracy")
    theirs = cross_validate(learner, rows, labels, cv=cv, scoring="accuracy")
    assert found.method == "fit"
    np.testing.assert_array_equal(found.test_score, theirs["test_score"])
    chain = tree_cross_validate(learner, rows, labels, cv=cv, scoring="accuracy", method="treecv")
    assert chain.method == "chain" and np.any(chain.test_score != found.test_score)
    lines = treecv_objective(lambda _: learner, rows, labels, cv=cv).explain({})
    assert "method='fit', because" in lines
    is_forward = "With method='treecv', one model is trained forward through time" in lines
    assert is_forward or "would transform the first rows by the statistics" in lines


def test_auto_takes_a_chain_only_of_models_that_no_order_changes():
    cv = TimeSeriesSplit(4)
    options = {"param_grid": {"var_smoothing": [1e-9, 1e-3]}, "cv": cv}
    objective = treecv_objective(GaussianNB(), X, Y, **options)
    assert "method='chain'" in objective.explain()
    found = tree_cross_validate(GaussianNB(), X, Y, cv=cv, scoring="accuracy")
    theirs = cross_validate(GaussianNB(), X, Y, cv=cv, scoring="accuracy")
    np.testing.assert_allclose(found.test_score, theirs["test_score"], atol=1e-12)
    density = make_pipeline(MaxAbsScaler(), StreamingGaussianDensity())
    assert tree_cross_validate(density[-1], X, cv=cv).method == "chain"
    assert "only to the rows seen so far" in tree_cross_validate(density, X, cv=cv).reason


@pytest.mark.slow
@pytest.mark.parametrize("learner", LEARNERS, ids=said)
@pytest.mark.parametrize(
    "cv",
    [TimeSeriesSplit(7), TimeSeriesSplit(4, gap=3), TimeSeriesSplit(3, test_size=5)],
    ids=said,
)
def test_a_chain_equals_trainings_from_scratch(learner, cv):
    found = tree_cross_validate(learner, X, Y, cv=cv, method="treecv")
    standard = tree_cross_validate(learner, X, Y, cv=cv, method="standard")
    assert (found.method, standard.method) == ("chain", "standard")
    sizes = [len(train) for train, _ in cv.split(X)]
    assert found.n_updates == sizes[-1]
    assert standard.n_updates == found.n_updates_standard == sum(sizes)
    if isinstance(learner, SGDClassifier):  # its phases count as passes of their own
        return
    np.testing.assert_array_equal(found.test_score, standard.test_score)
    for score, (train, test) in zip(found.test_score, cv.split(X), strict=True):
        plain = clone(learner)
        if not isinstance(learner, GaussianNB):
            plain.set_params(shuffle=False)
        plain.partial_fit(X[train], Y[train], classes=[0, 1])
        assert score == pytest.approx(1 - plain.score(X[test], Y[test]), abs=1e-12)


@pytest.mark.parametrize(
    "rows", [X, X.astype(np.float32), sparse.csr_array(X)], ids=["64", "32", "csr"]
)
@pytest.mark.parametrize("order", ["fixed", "random"])
def test_a_chain_with_a_cache_changes_no_bit(rows, order):
    cv = TimeSeriesSplit(6, gap=2)
    _, study = searched(
        PegasosClassifier(),
        (rows, Y),
        {"alpha": FloatDistribution(1e-3, 1.0, log=True)},
        5,
        cv=cv,
        method="treecv",
        order=order,
        report="folds",
        cache=ModelCache(),
    )
    for trial in study.trials:
        plain = tree_cross_validate(
            PegasosClassifier(**trial.params), rows, Y, cv=cv, order=order, method="treecv"
        )
        assert trial.value == plain.mean
        assert list(trial.intermediate_values.values()) == plain.test_score.tolist()


@pytest.mark.parametrize("scoring", ["error", "hinge", "roc_auc", response])
def test_overlapping_tests_of_a_chain(scoring):
    cv = [(np.arange(40), np.arange(50, 90)), (np.arange(60), np.arange(100, 60, -1))]
    chain = tree_cross_validate(PegasosClassifier(), X, Y, cv=cv, scoring=scoring, method="treecv")
    standard = tree_cross_validate(
        PegasosClassifier(), X, Y, cv=cv, scoring=scoring, method="standard"
    )
    assert (chain.method, chain.n_updates) == ("chain", 60)
    np.testing.assert_array_equal(chain.test_score, standard.test_score)


@pytest.mark.parametrize("learner", [TrainedNB(), PegasosClassifier()], ids=said)
def test_a_scorer_that_trains_further_changes_no_later_model_of_a_chain(learner):
    def greedy(estimator, rows, labels):
        before = response(estimator, rows, labels)
        estimator.partial_fit(rows, 1 - labels)
        return before

    options = {"cv": TimeSeriesSplit(4), "scoring": greedy}
    chain = tree_cross_validate(learner, X, Y, **options, method="treecv")
    standard = tree_cross_validate(learner, X, Y, method="standard", **options)
    np.testing.assert_allclose(chain.test_score, standard.test_score, rtol=1e-8)


# Hold-outs and rows that are only trained on.


def test_a_share_is_stratified_for_classifiers():
    y = np.repeat([0, 1, 2], [90, 20, 10])

    def shares(estimator, rows, labels):
        counts = np.bincount(labels, minlength=3)
        return float(counts[1] * 100 + counts[2])

    for stratify in ("auto", False):
        options = {"cv": 0.2, "scoring": shares, "stratify": stratify}
        means = {
            tree_cross_validate(TrainedNB(), X, y, random_state=seed, **options).mean
            for seed in range(5)
        }
        assert (means == {402}) == (stratify == "auto")


def test_a_share_is_held_out():
    for share, n_test in ((0.2, 24), (0.01, 2), (0.999, 119)):
        found = tree_cross_validate(PegasosClassifier(), X, Y, cv=share)
        assert (found.n_folds, len(found.test_score), found.std) == (1, 1, None)
        assert found.n_updates == found.n_updates_standard == N_ROWS - n_test
    groups = np.repeat(np.arange(12), 10)
    found = tree_cross_validate(PegasosClassifier(), X, Y, cv=0.25, groups=groups)
    assert (found.n_folds, found.n_updates) == (1, 90)
    last = tree_cross_validate(PegasosClassifier(), X, Y, cv=0.25, shuffle=False)
    pair = [(np.arange(90), np.arange(90, 120))]
    for method in ("auto", "standard"):
        same = tree_cross_validate(
            PegasosClassifier(), X, Y, cv=pair, shuffle=False, method=method
        )
        assert same.mean == last.mean


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(learner=LEARNERS, order=["fixed", "random"], shuffle=[True, False]), ids=said
)
def test_rows_that_are_only_trained_on(learner, order, shuffle):
    ids = ids_of(37, 20, 11, 30, 22)
    options = {"shuffle": shuffle, "order": order, "random_state": 5}
    found = tree_cross_validate(learner, X, Y, cv=PredefinedSplit(ids), **options)
    assert (found.method, found.n_folds) == ("treecv", 4)
    assert found.n_updates_standard == 4 * N_ROWS - 83
    assert found.n_updates < found.n_updates_standard
    same = tree_cross_validate(learner, X, Y, cv=ids, **options)
    np.testing.assert_array_equal(found.test_score, same.test_score)
    two = tree_cross_validate(learner, X, Y, cv=ids, n_jobs=2, **options)
    np.testing.assert_array_equal(found.test_score, two.test_score)
    if isinstance(learner, GaussianNB):  # the order of the rows does not matter
        for score, fold in zip(found.test_score, range(4), strict=True):
            plain = GaussianNB().fit(X[ids != fold], Y[ids != fold])
            expected = 1 - plain.score(X[ids == fold], Y[ids == fold])
            assert score == pytest.approx(expected, abs=1e-12)


def test_rows_that_are_only_trained_on_in_lanes_and_with_a_cache():
    ids = ids_of(50, 20, 20, 10, 20)
    alphas = np.logspace(-3, 0, 9)
    models = [PegasosClassifier(alpha=alpha) for alpha in alphas]
    alone = [tree_cross_validate(model, X, Y, cv=ids).test_score for model in models]
    together = tree_cross_validate_many(models, X, Y, cv=ids)
    np.testing.assert_array_equal([one.test_score for one in together], alone)
    _, study = searched(PegasosClassifier(), (X, Y), {"alpha": alphas}, cv=ids, batch_size=1)
    for trial in study.trials:
        at = np.argmin(np.abs(alphas - trial.params["alpha"]))
        assert trial.value == alone[at].mean()


@pytest.mark.slow
@given(
    ids=st.lists(st.integers(-1, 4), min_size=20, max_size=60).filter(
        lambda ids: len(set(ids) - {-1}) > 1 and ids.count(-1) > 0
    ),
    shuffle=st.booleans(),
    order=st.sampled_from(["fixed", "random"]),
    method=st.sampled_from(["treecv", "standard", "fit", "holdout"]),
    learner=st.sampled_from([*LEARNERS[:2], LEARNERS[4]]),
)
@settings(max_examples=30)
def test_no_label_of_a_fold_reaches_its_own_model(ids, shuffle, order, method, learner):
    n_rows, ids = len(ids), np.array(ids)
    rows, y = X[:n_rows], np.arange(n_rows) % 2
    if method == "fit":
        order = "fixed"
    options = {
        "cv": ids,
        "shuffle": shuffle,
        "order": order,
        "method": method,
        "scoring": response,
    }

    def scores(labels):
        with np.errstate(all="ignore"):
            return tree_cross_validate(learner, rows, labels, **options).test_score

    try:
        before = scores(y)
    except ValueError as error:  # "fit" on one class, or variances of 0 that make a response NaN
        one_class = method == "fit" and "class" in str(error)
        assert one_class or (isinstance(learner, GaussianNB) and "(NaN)" in str(error))
        return
    for number, fold in enumerate(np.unique(ids[ids >= 0])[: len(before)]):
        try:
            after = scores(np.where(ids == fold, 1 - y, y))
        except ValueError:
            continue
        assert after[number] == before[number]


@pytest.mark.parametrize("learner", [PegasosClassifier(), DecisionTreeClassifier(random_state=0)])
def test_a_holdout_is_the_first_fold(learner):
    cv = KFold(5, shuffle=True, random_state=0)
    found = tree_cross_validate(learner, X, Y, cv=cv, method="holdout", shuffle=False)
    assert (found.method, found.n_folds, len(found.test_score)) == ("holdout", 1, 1)
    assert found.n_updates == 96
    train, test = next(cv.split(X))
    expected = tree_cross_validate(learner, X, Y, cv=[(train, test)], shuffle=False)
    assert found.mean == expected.mean
    repeated = tree_cross_validate(learner, X, Y, cv=5, method="holdout", n_repeats=3)
    assert repeated.test_score.shape == (3,)
    first = tree_cross_validate(learner, X, Y, cv=TimeSeriesSplit(5), method="holdout")
    assert first.n_updates == 20


# One split alone, whose training set is the first part of the rows, with others that do not grow.
ONE_BEFORE_A_GAP = [(np.arange(60), np.arange(80, 120))]
ONE_TESTED_TWICE = [(np.arange(60), np.append(np.arange(60, 120), 60))]
FORGETTING = TimeSeriesSplit(4, max_train_size=30)


@pytest.mark.slow
@pytest.mark.parametrize("learner", LEARNERS[::2], ids=said)
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(
    ("cv", "method"),
    [
        (ONE_BEFORE_A_GAP, "auto"),
        (ONE_BEFORE_A_GAP, "holdout"),
        (ONE_TESTED_TWICE, "auto"),
        (ONE_TESTED_TWICE, "holdout"),
        ([*ONE_TESTED_TWICE, (np.arange(60, 120), np.arange(60))], "holdout"),
        (FORGETTING, "holdout"),
    ],
    ids=["gap", "first-gap", "twice", "first-twice", "first-of-two", "first-of-forgetting"],
)
def test_one_split_trains_on_its_own_rows_alone(learner, shuffle, cv, method):
    options = {"cv": cv, "method": method, "shuffle": shuffle, "scoring": response}
    found = tree_cross_validate(learner, X, Y, **options)
    train, _ = next(iter(cv if isinstance(cv, list) else cv.split(X)))
    others = np.setdiff1d(np.arange(N_ROWS), train)
    changed = tree_cross_validate(learner, X, labels_changed(others), **options)
    np.testing.assert_array_equal(changed.test_score, found.test_score)
    assert found.n_updates == len(train)


# Splitters that are no partition.


def test_repeated_splitters_become_repeats():
    cv = RepeatedKFold(n_splits=4, n_repeats=3, random_state=1)
    tree = tree_cross_validate(TrainedNB(), X, Y, cv=cv)
    fits = tree_cross_validate(TrainedNB(), X, Y, cv=cv, method="fit")
    assert (tree.method, tree.n_folds, fits.n_folds) == ("treecv", 4, 4)
    np.testing.assert_allclose(tree.test_score, fits.test_score, atol=1e-12)
    assert tree.n_updates < fits.n_updates == 3 * 3 * N_ROWS


@pytest.mark.parametrize(
    "cv", [ShuffleSplit(4, random_state=0), TimeSeriesSplit(4, max_train_size=20)], ids=said
)
def test_standard_trains_on_just_the_given_rows(cv):
    found = tree_cross_validate(TrainedNB(), X, Y, cv=cv, method="standard")
    fits = tree_cross_validate(TrainedNB(), X, Y, cv=cv, method="fit")
    assert found.n_updates == fits.n_updates == sum(len(train) for train, _ in cv.split(X))
    np.testing.assert_allclose(found.test_score, fits.test_score, atol=1e-12)
    with pytest.warns(UserWarning, match=r"^TrainedNB is fitted 4 times \(method='fit'\), "):
        auto = tree_cross_validate(TrainedNB(), X, Y, cv=cv)
    np.testing.assert_array_equal(auto.test_score, fits.test_score)


def test_the_rows_of_standard_are_permuted_unless_time_goes_on():
    y = np.sort(Y)  # a model that reads them in order has forgotten the first class
    cv = ShuffleSplit(5, random_state=0)
    options = {"cv": cv, "method": "standard", "scoring": "error"}
    permuted = tree_cross_validate(PegasosClassifier(), X, y, **options)
    in_order = tree_cross_validate(PegasosClassifier(), X, y, shuffle=False, **options)
    assert permuted.mean != in_order.mean


# Groups.


def test_groups_with_an_int():
    groups = np.random.default_rng(0).integers(0, 17, N_ROWS)

    def alone(estimator, rows, labels):
        return float(rows[:, 0].sum())

    def tested(**options):
        return tree_cross_validate(
            TrainedNB(), X, Y, cv=4, groups=groups, scoring=alone, **options
        ).test_score

    for stratify, cv in ((False, GroupKFold(4)), ("auto", StratifiedGroupKFold(4))):
        expected = [X[test, 0].sum() for _, test in cv.split(X, Y, groups)]
        np.testing.assert_allclose(tested(shuffle=False, stratify=stratify), expected)
    assert np.any(tested() != tested(random_state=1))


def test_groups_that_nothing_uses_are_refused():
    for cv in ("loo", np.arange(N_ROWS) % 3):
        with pytest.raises(ValueError, match="^groups must be None with"):
            tree_cross_validate(TrainedNB(), X, Y, cv=cv, groups=np.arange(N_ROWS) % 9)
    with pytest.raises(ValueError, match="^groups must be None if cv is a float"):
        tree_cross_validate(TrainedNB(), X, Y, cv=0.2, groups=Y, shuffle=False)
    with pytest.raises(ValueError, match="^groups must be given with cv=GroupShuffleSplit"):
        tree_cross_validate(TrainedNB(), X, Y, cv=GroupShuffleSplit(2))
    with pytest.raises(ValueError, match="^groups must be given with cv=LeavePGroupsOut"):
        tree_cross_validate(TrainedNB(), X, Y, cv=LeavePGroupsOut(2))


# Bad input.


@pytest.mark.parametrize("method", ["auto", "holdout"])
@pytest.mark.parametrize(
    ("cv", "message"),
    [
        (0.0, "^cv must be either an int or a float between 0 and 1, .* got 0.0"),
        (1.0, "^cv must be either an int or a float between 0 and 1, .* got 1.0"),
        (float("nan"), "^cv must be either an int or a float between 0 and 1, .* got nan"),
        (np.float32(2), "^cv must be either an int or a float between 0 and 1"),
        (b"loo", "^cv must be an int, .* got b'loo'"),
        (np.full(N_ROWS, -1), "^cv must make at least 2 folds, got 0"),
        (np.arange(N_ROWS) - 2, "^cv must not contain fold ids below -1"),
    ],
)
def test_bad_splits(cv, message, method):
    with pytest.raises(ValueError, match=message):
        tree_cross_validate(TrainedNB(), X, Y, cv=cv, method=method)


def test_stratify_without_effect():
    given = ("loo", "loo"), (KFold(3), r"KFold\(.*\)"), (N_ROWS, str(N_ROWS))
    for cv, words in (*given, (np.arange(N_ROWS) % 3, "fold ids")):
        with pytest.raises(ValueError, match=f"^stratify=True needs .* as cv, got cv={words}\\.$"):
            tree_cross_validate(TrainedNB(), X, Y, cv=cv, stratify=True)


def test_several_estimators_are_stratified_on_request():
    estimators = [TrainedNB(), TrainedNB(var_smoothing=1e-3)]
    many = tree_cross_validate_many(estimators, X, Y, cv=3, stratify=True)
    for one, estimator in zip(many, estimators, strict=True):
        alone = tree_cross_validate(estimator, X, Y, cv=3, stratify=True)
        assert np.array_equal(one.test_score, alone.test_score)
    study = optuna.create_study()
    study.optimize(treecv_objective(lambda _: estimators[0], X, Y, cv=3, stratify=True), 1)
    assert study.best_value == many[0].mean
    with pytest.raises(ValueError, match="^stratify must be .* y must hold class labels"):
        tree_cross_validate_many([TrainedNB()], X, X[:, 0], cv=3, stratify=True)


def test_the_tree_warns_of_rows_in_an_order(recwarn: pytest.WarningsRecorder) -> None:
    """It trains neighbouring folds last, where ``fit`` takes the rows in random order."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 3))
    ordered = np.arange(600) // 60 % 2
    numbers = np.sin(np.arange(600) / 40) + 0.1 * rng.normal(size=600)
    permuted = rng.permutation(600)
    learners = {"classes": PegasosClassifier(), "numbers": AveragedSGDRegressor()}
    targets = {"classes": ordered, "numbers": numbers}

    def warns(name: str, rows: Any = slice(None), learner: Any = None, **options: Any) -> bool:
        recwarn.clear()
        model = learners[name] if learner is None else learner
        tree_cross_validate(model, X[rows], targets[name][rows], random_state=0, **options)
        return any("rows have an order" in str(one.message) for one in recwarn.list)

    random_folds = KFold(3, shuffle=True, random_state=0)
    for name in targets:
        for options in ({"cv": KFold(3)}, {"cv": 3, "shuffle": False}):
            assert warns(name, **options)
            assert not warns(name, permuted, **options)
            assert not warns(name, method="fit", **options)
            assert not warns(name, method="treecv", **options)  # it was asked for
        assert warns(name, cv=random_folds, shuffle=False)
        assert not warns(name, cv=random_folds)
        assert not warns(name, cv=3)
    assert not warns("classes", learner=GaussianNB(), cv=KFold(3))
    assert not warns("classes", learner=PegasosClassifier(shuffle=False), cv=KFold(3))
