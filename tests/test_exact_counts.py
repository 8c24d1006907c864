"""Exact folds of naive Bayes on counts beside scikit-learn's models of each training set."""

from __future__ import annotations

from ids import said
import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import cross_validate
from sklearn.model_selection import KFold
from sklearn.model_selection import PredefinedSplit
from sklearn.model_selection import StratifiedKFold
from sklearn.model_selection import TimeSeriesSplit
from sklearn.naive_bayes import BernoulliNB
from sklearn.naive_bayes import ComplementNB
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Binarizer

from optuna_treecv import tree_cross_validate
from optuna_treecv.learners.exact.count_models import BernoulliFolds
from optuna_treecv.learners.exact.count_models import ComplementFolds
from optuna_treecv.learners.exact.count_models import MultinomialFolds
from optuna_treecv.learners.exact.family import Chunks
from optuna_treecv.learners.exact.family import Facts
from optuna_treecv.rows.data import Data
from optuna_treecv.rows.data import RowLayout

FAMILIES = {
    MultinomialNB: MultinomialFolds,
    ComplementNB: ComplementFolds,
    BernoulliNB: BernoulliFolds,
}
ESTIMATORS = {
    "multinomial": MultinomialNB(),
    "complement": ComplementNB(),
    "Bernoulli": BernoulliNB(),
    "multinomial with equal priors": MultinomialNB(fit_prior=False),
    "complement with norm": ComplementNB(norm=True),
    "Bernoulli with priors": BernoulliNB(class_prior=[0.2, 0.3, 0.5], binarize=1.0),
}
ALPHAS = [1e-3, 3.0]
N_ROWS, N_COLUMNS = 60, 17


def counts(seed=0, n_rows=N_ROWS, n_columns=N_COLUMNS, rate=0.7):
    """Return counts with a column for all, one for no and one for a single row, and labels."""
    rng = np.random.default_rng(seed)
    X = rng.poisson(rate, (n_rows, n_columns)).astype(np.float64)
    X[:, 0], X[:, 1:3] = 1, 0
    X[7, 2] = 3
    codes = rng.integers(0, 3, n_rows)
    codes[:6] = codes[-6:] = [0, 1, 2, 0, 1, 2]
    return X, np.array(["ham", "jam", "spam"])[codes]


X, Y = counts()
RNG = np.random.default_rng(1)
WEIGHTS = RNG.choice([0, 0.5, 1, 2.25, 7], N_ROWS)
FORMS = {
    "dense": X,
    "float32": X.astype(np.float32),
    "sparse": sparse.csr_array(X),
    "sparse fractions": sparse.csr_array(X * RNG.random(X.shape)),
    "sparse fractions of float32": sparse.csr_array((X * RNG.random(X.shape)).astype(np.float32)),
}


def cut(k, n_rows=N_ROWS, tested=None):
    return Chunks(n_rows, np.linspace(0, n_rows, k + 1).astype(np.int64), tested)


CHUNKS = {
    "2": cut(2),
    "10": cut(10),
    "n": cut(N_ROWS),
    "n in another order": cut(N_ROWS, tested=RNG.permutation(N_ROWS)),
    "groups": Chunks(N_ROWS, np.array([0, 3, 4, 30, 31, 55, 60])),
    "without some rows": Chunks(N_ROWS, np.array([5, 10, 20])),
    "growing": Chunks(N_ROWS, np.array([0, 10, 20, 30]), np.arange(20, 50), [20, 30, 40]),
    "given": Chunks(
        N_ROWS,
        np.array([0, 10, 20, 25]),
        RNG.permutation(N_ROWS)[:25],
        [np.arange(30, 60), np.arange(5, 35), 20],
    ),
}


def keep_nothing(name, size, make):
    made = np.empty(size)
    make(made)
    return made


def family_of(estimator, X, y, alphas, weights=None, n_jobs=1):
    data = Data(X, y)
    data.weights = weights
    layout = RowLayout(padded=True, sparse=True, target="class")
    rows = data.prepare(layout, np.arange(len(y), dtype=np.uint32))
    estimators = [clone(estimator).set_params(alpha=alpha) for alpha in alphas]
    return FAMILIES[type(estimator)](estimators, rows, None, n_jobs)


def outputs_of(family, chunks, kept=keep_nothing, most_rows=10**6):
    tested = list(family.test(chunks, kept, most_rows))
    assert [one.first for one in tested[1:]] == [one.last for one in tested[:-1]]
    assert tested[0].first == 0
    assert tested[-1].last == chunks.n_chunks
    return np.concatenate([one.outputs for one in tested], axis=1)


def refitted(estimator, X, y, chunks, alphas, weights=None, only=None):
    """Return what scikit-learn's models say that are fitted on each training set."""
    everything = np.arange(chunks.n_rows)
    said = []
    for chunk in range(chunks.n_chunks) if only is None else only:
        test = everything[chunks.test_rows(chunk, chunk + 1)]
        train = np.setdiff1d(everything, test)
        if chunks.trains is not None:
            given = chunks.trains[chunk]
            train = everything[:given] if isinstance(given, int) else given
        of_train = None if weights is None else weights[train]
        said.append(
            [
                clone(estimator)
                .set_params(alpha=alpha)
                .fit(X[train], y[train], sample_weight=of_train)
                .predict_joint_log_proba(X[test])
                for alpha in alphas
            ]
        )
    return np.concatenate(said, axis=1)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["alike", "weighted"])
@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
def test_folds_equal_refits(estimator, chunks, weights):
    only = range(0, chunks.n_chunks, 1 if chunks.n_chunks < N_ROWS else 7)
    tested = np.concatenate([np.arange(chunks.bounds[i], chunks.bounds[i + 1]) for i in only])
    tested -= chunks.bounds[0]
    for form, rows in FORMS.items():
        family = family_of(estimator, rows, Y, ALPHAS, weights)
        ours = outputs_of(family, chunks)[:, tested]
        theirs = refitted(estimator, rows, Y, chunks, ALPHAS, weights, only)
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10, err_msg=form)
        assert np.array_equal(ours.argmax(axis=2), theirs.argmax(axis=2))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("k", [2, 20, 400])
@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
def test_folds_of_rare_columns_equal_refits(estimator, k, weighted):
    """Most columns have few numbers, some have many, and groups of chunks are tested together."""
    rng = np.random.default_rng(2)
    X, y = counts(3, 400, 90, rate=rng.choice([0.005, 0.02, 0.1, 1.0, 3.0], 90))
    X = sparse.csr_array(X)
    weights = rng.uniform(0.5, 2, 400) if weighted else None
    chunks, only = cut(k, 400), range(0, k, max(1, k // 12))
    ours = outputs_of(family_of(estimator, X, y, [0.01, 2.0], weights), chunks)
    tested = np.concatenate([np.arange(400)[chunks.test_rows(i, i + 1)] for i in only])
    theirs = refitted(estimator, X, y, chunks, [0.01, 2.0], weights, only)
    np.testing.assert_allclose(ours[:, tested], theirs, rtol=1e-10, atol=1e-10)


def of_rows_themselves(X, y, chunks, alpha, weights, of_others):
    """Return what models say whose sums are over the rows of each class, or of all others."""
    said = []
    for chunk in range(chunks.n_chunks):
        test = chunks.test_rows(chunk, chunk + 1)
        is_train = np.ones(len(y), bool)
        is_train[test] = False
        logs, priors = [], []
        for label in np.unique(y):
            of_class = (y != label if of_others else y == label) & is_train
            sums = np.sum(X[of_class] * weights[of_class, None], axis=0)
            logs.append(np.log(sums + alpha) - np.log(np.sum(sums + alpha)))
            priors.append(np.log(weights[of_class].sum() / weights[is_train].sum()))
        product = X[test] @ np.transpose(logs)
        said.append(-product if of_others else product + priors)
    return np.concatenate(said)


@pytest.mark.parametrize("k", [10, N_ROWS])
@pytest.mark.parametrize("estimator", [MultinomialNB(), ComplementNB()], ids=said)
def test_a_column_within_one_chunk_leaves_nothing(estimator, k):
    """With a tiny alpha, any rest of a rounded difference would be seen.

    scikit-learn's ComplementNB subtracts a class from all classes, and leaves such a rest.
    """
    rows = X * np.random.default_rng(5).random(X.shape) * 1e6
    rows[:, 5] = 0
    rows[12 : 14 if k == 10 else 13, 5] = 1e9 / 3
    rows[40:45, 6] = 1e9 / 7
    for weights in (np.ones(N_ROWS), WEIGHTS + 0.1):
        theirs = of_rows_themselves(
            rows, Y, cut(k), 1e-10, weights, isinstance(estimator, ComplementNB)
        )
        for form in (rows, sparse.csr_array(rows)):
            ours = outputs_of(family_of(estimator, form, Y, [1e-10], weights), cut(k))[0]
            np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
def test_nothing_leaks_from_a_chunk_into_its_own_models(estimator):
    """All rows of a chunk but one, which its models are asked about, are multiplied by 1e9."""
    rows = X * np.random.default_rng(6).random(X.shape)
    changed = rows.copy()
    changed[31:36] *= 1e9
    for form in (np.asarray, sparse.csr_array):
        for weights in (None, WEIGHTS + 1 / 3):
            ours, after = (
                outputs_of(family_of(estimator, form(some), Y, ALPHAS, weights), cut(10))
                for some in (rows, changed)
            )
            np.testing.assert_allclose(after[:, 30], ours[:, 30], rtol=1e-12)


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
def test_nothing_leaks_from_a_single_row(estimator):
    """The outputs of a huge row follow from a model that has not seen it."""
    rows = X * np.random.default_rng(6).random(X.shape)
    rows[31] *= 1e9
    for form in (rows, sparse.csr_array(rows)):
        ours = outputs_of(family_of(estimator, form, Y, ALPHAS), cut(N_ROWS))[:, [31]]
        theirs = refitted(estimator, form, Y, cut(N_ROWS), ALPHAS, only=[31])
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
def test_alpha_zero_of_sparse_rows_is_that_of_scikit_learn(estimator):
    if getattr(estimator, "norm", False):
        pytest.skip("scikit-learn divides by an infinite sum")
    rows = sparse.csr_array(X)
    for k in (10, N_ROWS):
        ours = outputs_of(family_of(estimator, rows, Y, [0.0]), cut(k))
        with np.errstate(all="ignore"):
            theirs = refitted(estimator, rows, Y, cut(k), [0.0])
        assert np.array_equal(np.isfinite(ours), np.isfinite(theirs))
        is_finite = np.isfinite(theirs)
        np.testing.assert_allclose(ours[is_finite], theirs[is_finite], rtol=1e-10)


def test_sums_are_exactly_zero_where_a_chunk_holds_all_of_a_column():
    """Remainders that are added in another order do not cancel: the number of rows decides."""
    rng = np.random.default_rng(7)
    rows = X * rng.random(X.shape)
    rows[30:, 5] = 0
    rows[:30, 5] = rng.random(30) * 10.0 ** -rng.integers(0, 30, 30)
    rows = sparse.csr_array(rows)
    weights = WEIGHTS + 1 / 7
    chunks = cut(2, tested=np.arange(N_ROWS)[::-1])
    ours = outputs_of(family_of(MultinomialNB(), rows, Y, [0.0], weights), chunks)
    assert np.all(ours[0, 30:] == -np.inf)
    assert np.any(np.isfinite(ours[0, :30]))


@pytest.mark.parametrize("k", [10, N_ROWS])
@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
def test_points_threads_and_kept_sums_change_no_bit(estimator, k):
    kept = {}

    def keep(name, size, make):
        if name not in kept:
            kept[name] = keep_nothing(name, size, make)
        return kept[name]

    rows = FORMS["sparse fractions"]
    family = family_of(estimator, rows, Y, ALPHAS, WEIGHTS)
    ours = outputs_of(family, cut(k), keep)
    again = outputs_of(family_of(estimator, rows, Y, ALPHAS, WEIGHTS, n_jobs=2), cut(k), keep)
    assert np.array_equal(ours, again)
    alone = [
        outputs_of(family_of(estimator, rows, Y, [alpha], WEIGHTS), cut(k)) for alpha in ALPHAS
    ]
    np.testing.assert_allclose(np.concatenate(alone), ours, rtol=1e-13)
    np.testing.assert_allclose(outputs_of(family, cut(k), keep, most_rows=7), ours, rtol=1e-12)


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
def test_responses_are_those_of_scikit_learn(estimator):
    fitted = clone(estimator).fit(X, Y)
    outputs = fitted.predict_joint_log_proba(X)
    family = family_of(estimator, X, Y, [1.0])
    codes = family.respond(outputs, "predict")
    assert np.array_equal(fitted.classes_[codes], fitted.predict(X))
    probabilities = family.respond(outputs, "predict_proba")
    np.testing.assert_allclose(probabilities, fitted.predict_proba(X), rtol=1e-14)


def test_a_threshold_is_compared_in_the_type_of_the_rows():
    """0.1 is larger in float32 than in float64."""
    rows = (X * 0.1).astype(np.float32)
    estimator = BernoulliNB(binarize=0.1)
    ours = outputs_of(family_of(estimator, rows, Y, [1.0]), cut(10))
    np.testing.assert_allclose(ours, refitted(estimator, rows, Y, cut(10), [1.0]), rtol=1e-10)


def test_small_alphas_are_raised_unless_forced():
    estimator = MultinomialNB(force_alpha=False)
    ours = outputs_of(family_of(estimator, X, Y, [0.0, 1e-10]), cut(10))
    assert np.array_equal(ours[0], ours[1])


@pytest.mark.parametrize("estimator", [MultinomialNB(), ComplementNB()], ids=said)
def test_negative_numbers_are_refused(estimator):
    rows = X.copy()
    rows[3, 4] = -2
    for form in (rows, sparse.csr_array(rows)):
        for chunks in (cut(10), CHUNKS["growing"]):
            with pytest.raises(
                ValueError, match=r"Negative values in data passed to \w+ \(input X\), got -2.0; "
            ):
                outputs_of(family_of(estimator, form, Y, [1.0]), chunks)


def test_numbers_that_are_not_binary_are_refused_where_none_is_binarized():
    with pytest.raises(ValueError, match="X must hold only 0 and 1 for BernoulliNB"):
        outputs_of(family_of(BernoulliNB(binarize=None), X, Y, [1.0]), cut(10))
    ours = outputs_of(family_of(BernoulliNB(binarize=None), 1.0 * (X > 0), Y, [1.0]), cut(10))
    theirs = outputs_of(family_of(BernoulliNB(), X, Y, [1.0]), cut(10))
    assert np.array_equal(ours, theirs)


def test_training_sets_without_a_class_are_refused():
    y = np.where(np.arange(N_ROWS) < 6, "rare", Y)
    for chunks in (cut(10), Chunks(N_ROWS, np.array([0, 5]), np.arange(5), [np.arange(6, 60)])):
        with pytest.raises(ValueError, match="every class of y for Multi.* class rare; "):
            outputs_of(family_of(MultinomialNB(), X, y, [1.0]), chunks)
    y = np.where(np.arange(N_ROWS) == 6, "rare", Y)
    with pytest.raises(ValueError, match="one without class rare; "):
        outputs_of(family_of(MultinomialNB(), X, y, [1.0]), cut(N_ROWS))


@pytest.mark.parametrize(
    ("estimator", "alphas", "message"),
    [
        (MultinomialNB(), [-1.0], "alpha must be at least 0, got -1.0"),
        (BernoulliNB(), [0.0], "alpha must be above 0 for dense rows"),
        (ComplementNB(class_prior=[0.5, 0.5]), [1.0], "class_prior must hold one number per"),
    ],
)
def test_wrong_parameters_are_refused(estimator, alphas, message):
    with pytest.raises(ValueError, match=message):
        family_of(estimator, X, Y, alphas)


FACTS = Facts(17, False, False, False, 30, 2)


@pytest.mark.parametrize(
    ("estimator", "facts", "why"),
    [
        (MultinomialNB(), FACTS, ""),
        (MultinomialNB(alpha=np.ones(17)), FACTS, "alpha is not one number"),
        (BernoulliNB(alpha=0), FACTS, "alpha=0 gives infinite logarithms"),
        (MultinomialNB(class_prior=[0, 1]), FACTS, "a prior is 0"),
        (ComplementNB(), FACTS._replace(has_scaler=True), "scaled columns are no counts"),
        (ComplementNB(), FACTS._replace(n_of_class=0), "a training set lacks a class"),
    ],
)
def test_why_an_estimator_has_no_exact_folds(estimator, facts, why):
    found = FAMILIES[type(estimator)].why_not(estimator, facts)
    assert found.startswith(why) if why else found == ""


@pytest.mark.parametrize("estimator", [MultinomialNB(), ComplementNB(), BernoulliNB()], ids=said)
def test_scores_are_those_of_cross_validation(estimator):
    """The whole call, alone and after a stateless step."""
    cv = StratifiedKFold(4)
    for whole in (estimator, make_pipeline(Binarizer(threshold=1.0), estimator)):
        for rows in (X, sparse.csr_array(X)):
            ours = tree_cross_validate(whole, rows, Y, cv=cv, scoring="neg_log_loss")
            assert ours.method == "exact"
            theirs = cross_validate(whole, rows, Y, cv=cv, scoring="neg_log_loss")
            np.testing.assert_allclose(ours.test_score, theirs["test_score"], rtol=1e-10)


@pytest.mark.parametrize("estimator", [MultinomialNB(), ComplementNB(), BernoulliNB()], ids=said)
def test_folds_without_any_number(estimator):
    rng = np.random.default_rng(0)
    X, y = rng.poisson(1.0, (40, 1)).astype(float), rng.integers(0, 2, 40)
    X[:10] = 0
    for cv in (KFold(4), KFold(40)):
        result = tree_cross_validate(estimator, X, y, cv=cv, scoring="accuracy")
        assert result.method == "exact"
        np.testing.assert_array_equal(
            result.test_score, cross_validate(estimator, X, y, cv=cv)["test_score"]
        )


def test_classes_without_weight_in_a_training_set_are_refused():
    X, y = np.random.default_rng(0).poisson(1.0, (40, 3)), np.arange(40) // 20
    weights = np.where((y == 1) & (np.arange(40) < 30), 0.0, 1.0)
    pair = [(np.arange(30), np.arange(30, 40))]
    with pytest.raises(ValueError, match=r"but is 0 in all rows of class 1 in one; fit_prior"):
        tree_cross_validate(MultinomialNB(), X, y, cv=pair, sample_weight=weights, method="exact")
    assert (
        tree_cross_validate(MultinomialNB(), X, y, cv=pair, sample_weight=weights).method == "fit"
    )
    free = MultinomialNB(fit_prior=False)
    found = tree_cross_validate(free, X, y, cv=pair, sample_weight=weights)
    fitted = free.fit(X[:30], y[:30], sample_weight=weights[:30])
    assert found.mean == 1 - fitted.score(X[30:], y[30:])


@pytest.mark.parametrize("estimator", [MultinomialNB(alpha=0), BernoulliNB(alpha=0)], ids=said)
def test_infinite_logarithms_are_no_divergence(estimator):
    rng = np.random.default_rng(0)
    X = sparse.csr_array((rng.random((80, 40)) < 0.05).astype(float))
    y = rng.integers(0, 2, 80)
    result = tree_cross_validate(estimator, X, y, cv=KFold(4), scoring="accuracy", method="auto")
    assert result.method != "exact"
    with pytest.raises(ValueError, match="alpha=0 gives infinite logarithms"):
        tree_cross_validate(estimator, X, y, cv=KFold(4), method="exact")


@pytest.mark.parametrize("method", ["auto", "exact"])
@pytest.mark.parametrize("estimator", [BernoulliNB(), MultinomialNB(), ComplementNB()], ids=said)
@pytest.mark.parametrize(
    "cv",
    [
        [(np.arange(30), np.arange(30, 40))],
        PredefinedSplit(np.r_[np.full(30, -1), np.zeros(5), np.ones(5)]),
        TimeSeriesSplit(2, test_size=5),
    ],
    ids=["hold-out", "some untested", "growing"],
)
def test_tested_rows_without_any_number(cv, estimator, method):
    X = np.random.default_rng(0).poisson(0.5, (40, 5)) + 0.0
    X[30:] = 0
    X, y = sparse.csr_array(X), np.arange(40) % 2
    kind = {"cv": cv, "scoring": "neg_log_loss"}
    result = tree_cross_validate(estimator, X, y, method=method, **kind)
    assert result.method == "exact"
    expected = cross_validate(estimator, X, y, **kind)["test_score"]
    np.testing.assert_allclose(result.test_score, expected, rtol=1e-10)
