"""Tables before exact folds: the scores are those of fits of the same steps by fold."""

from __future__ import annotations

from itertools import cycle
import warnings

from hypothesis import given
from hypothesis import HealthCheck
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.compose import make_column_selector
from sklearn.compose import make_column_transformer
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.impute import SimpleImputer
from sklearn.linear_model import ElasticNet
from sklearn.linear_model import Lasso
from sklearn.linear_model import LinearRegression
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import PoissonRegressor
from sklearn.linear_model import Ridge
from sklearn.linear_model import RidgeClassifier
from sklearn.model_selection import cross_val_predict
from sklearn.model_selection import cross_validate
from sklearn.model_selection import KFold
from sklearn.model_selection import LeaveOneOut
from sklearn.model_selection import RepeatedKFold
from sklearn.model_selection import ShuffleSplit
from sklearn.model_selection import TimeSeriesSplit
from sklearn.pipeline import FeatureUnion
from sklearn.pipeline import make_pipeline
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.preprocessing import MinMaxScaler
from sklearn.preprocessing import OneHotEncoder
from sklearn.preprocessing import PolynomialFeatures
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective

N = 120
NUMBERS, KINDS = ["small", "large", "count"], ["letter", "word"]


def table(seed=0, n_rows=N, missing=0.15, rare=0):
    """Return a table, and a number for each row; ``rare`` rows hold a letter of their own."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(
        {
            "small": rng.normal(size=n_rows),
            "large": 100 + rng.exponential(size=n_rows),
            "count": np.maximum(rng.integers(0, 4, n_rows) - 1.0, 0),
            "letter": rng.choice(list("abc"), n_rows).astype(object),
            "word": rng.choice(["yes", "no", None], n_rows, p=[0.5, 0.3, 0.2]),
        }
    )
    y = X["small"] + X["count"] + (X["letter"] == "a") + rng.normal(size=n_rows)
    for name in NUMBERS:
        X.loc[rng.random(n_rows) < missing, name] = np.nan
    X.loc[rng.choice(n_rows, rare, replace=False), "letter"] = "rare"
    return X, y.to_numpy()


X, Y = table()


def encoder(**options):
    return OneHotEncoder(**{"sparse_output": False, **options})


def columns(numbers, kinds=None):
    return ColumnTransformer(
        [("numbers", numbers, NUMBERS), ("kinds", encoder() if kinds is None else kinds, KINDS)]
    )


def expected(model, X, y, cv, scoring="r2"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cross_validate(model, X, y, cv=cv, scoring=scoring)["test_score"]


def evaluated(model, X, y, cv, scoring="r2", **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tree_cross_validate(model, X, y, cv=cv, scoring=scoring, **options)


CVS = {
    "folds": KFold(4),
    "mixed": KFold(5, shuffle=True, random_state=0),
    "time": TimeSeriesSplit(3),
    "any": ShuffleSplit(3, random_state=0),
    "repeated": RepeatedKFold(n_splits=3, n_repeats=2, random_state=0),
}
FRONTS = {
    "mean and scale": columns(make_pipeline(SimpleImputer(), StandardScaler())),
    "median and range": columns(
        make_pipeline(SimpleImputer(strategy="median"), MinMaxScaler((-1, 3))),
        encoder(drop="first"),
    ),
    "scale, then fill in": columns(
        make_pipeline(StandardScaler(), SimpleImputer(strategy="most_frequent")),
        encoder(handle_unknown="ignore"),
    ),
    "range, mean, scale": columns(
        make_pipeline(MinMaxScaler(), SimpleImputer(), StandardScaler(with_mean=False))
    ),
    "indicator": columns(SimpleImputer(add_indicator=True), encoder(drop="if_binary")),
    "products": columns(
        make_pipeline(SimpleImputer(strategy="constant", fill_value=1), PolynomialFeatures(2))
    ),
    "imputed kinds": columns(
        SimpleImputer(),
        make_pipeline(SimpleImputer(strategy="constant", fill_value="?"), encoder()),
    ),
    "filled in twice": columns(
        make_pipeline(SimpleImputer(strategy="most_frequent"), SimpleImputer(), StandardScaler())
    ),
    "no mean": columns(make_pipeline(SimpleImputer(), StandardScaler(with_mean=False))),
    "infrequent": columns(
        SimpleImputer(), encoder(min_frequency=5, handle_unknown="infrequent_if_exist")
    ),
    "sparse in part": make_column_transformer(
        (OneHotEncoder(), ["letter"]), (SimpleImputer(), NUMBERS), sparse_threshold=0
    ),
    "nested": Pipeline(
        [
            ("table", columns(SimpleImputer(strategy="median"))),
            ("all", FeatureUnion([("as it is", "passthrough"), ("scaled", StandardScaler())])),
            ("again", StandardScaler()),
        ]
    ),
    "remainder": ColumnTransformer(
        [
            ("kinds", encoder(), make_column_selector(dtype_include=object)),
            ("dropped", "drop", ["count"]),
        ],
        remainder=make_pipeline(SimpleImputer(), StandardScaler()),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("front", "cv"), [*zip(FRONTS, cycle(CVS), strict=False)])
def test_scores_are_those_of_fits(front, cv):
    model = make_pipeline(FRONTS[front], Ridge(0.3))
    result = evaluated(model, X, Y, CVS[cv])
    assert result.method == "exact"
    np.testing.assert_allclose(
        result.test_score, expected(model, X, Y, CVS[cv]), rtol=1e-9, atol=1e-11
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "learner",
    [
        RidgeClassifier(),
        RidgeClassifier(class_weight="balanced"),
        LinearDiscriminantAnalysis(),
        LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.2),
    ],
    ids=["ridge", "balanced", "svd", "lsqr"],
)
def test_labels_are_those_of_fits(learner):
    model, y = make_pipeline(FRONTS["mean and scale"], learner), np.where(Y > 2, "high", "low")
    cv = CVS["mixed"]
    assert evaluated(model, X, y, cv, "accuracy").method == "exact"
    np.testing.assert_array_equal(
        tree_cross_val_predict(model, X, y, cv=cv), cross_val_predict(model, X, y, cv=cv)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "learner",
    [Lasso(0.01, tol=1e-12), ElasticNet(0.01, l1_ratio=0.3, tol=1e-12), LinearRegression()],
    ids=["lasso", "elastic net", "least squares"],
)
def test_other_models_from_sums(learner):
    kinds = encoder(drop="first", handle_unknown="ignore")
    front = columns(make_pipeline(SimpleImputer(), StandardScaler()), kinds)
    model = make_pipeline(front, learner)
    for cv in (CVS["mixed"], LeaveOneOut()):
        result = evaluated(model, X[:20], Y[:20], cv, "neg_mean_squared_error")
        assert result.method == "exact"
        of_fits = expected(model, X[:20], Y[:20], cv, "neg_mean_squared_error")
        np.testing.assert_allclose(result.test_score, of_fits, rtol=1e-8, atol=1e-9)


@pytest.mark.slow
def test_predictions_weights_and_several_targets():
    model, cv = make_pipeline(FRONTS["mean and scale"], Ridge()), CVS["mixed"]
    y = np.c_[Y, -2 * Y**2]
    np.testing.assert_allclose(
        tree_cross_val_predict(model, X, y, cv=cv),
        cross_val_predict(model, X, y, cv=cv),
        rtol=1e-9,
        atol=1e-9,
    )
    weights = np.random.default_rng(0).integers(0, 3, N).astype(float)
    result = evaluated(model, X, Y, cv, params={"ridge__sample_weight": weights})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        of_fits = cross_validate(
            model, X, Y, cv=cv, scoring="r2", params={"ridge__sample_weight": weights}
        )
    assert result.method == "exact"
    np.testing.assert_allclose(result.test_score, of_fits["test_score"], rtol=1e-9)


def test_columns_that_depend_on_each_other():
    """With so small a penalty, models follow from rows, as the steps of each fold make them."""
    rows = X.assign(copy=X["small"], large=X["large"] + 1e4)
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    model = make_pipeline(
        make_column_transformer((numbers, [*NUMBERS, "copy"]), (encoder(), KINDS)),
        Ridge(1e-12, solver="svd"),
    )
    result = evaluated(model, rows, Y, KFold(4), method="exact")
    np.testing.assert_allclose(result.test_score, expected(model, rows, Y, KFold(4)), rtol=1e-8)


def test_data_frames_between_steps():
    model = make_pipeline(FRONTS["mean and scale"], Ridge())
    of_fits = expected(model, X, Y, KFold(4))
    with config_context(transform_output="pandas"):
        result = evaluated(model, X, Y, KFold(4))
    assert result.method == "exact"
    np.testing.assert_allclose(result.test_score, of_fits, rtol=1e-9)


def test_arrays_integers_and_float32():
    rng = np.random.default_rng(0)
    rows = np.c_[rng.integers(0, 3, 90), rng.integers(0, 50, 90)]
    y = rows.sum(axis=1) + rng.normal(size=90)
    model = make_pipeline(
        make_column_transformer((encoder(), [0]), (MinMaxScaler(), [1])), Ridge()
    )
    for kind, rtol in ((np.int64, 1e-9), (np.float32, 1e-4)):
        result = evaluated(model, rows.astype(kind), y, KFold(3))
        assert result.method == "exact"
        of_fits = expected(model, rows.astype(kind), y, KFold(3))
        np.testing.assert_allclose(result.test_score, of_fits, rtol=rtol)


LACKS = "a training set lacks a category"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("front", "change", "why"),
    [
        (
            columns(SimpleImputer(), encoder(handle_unknown="ignore", drop="first")),
            "letter",
            LACKS,
        ),
        (
            make_pipeline(
                columns(SimpleImputer(), encoder(handle_unknown="ignore")), StandardScaler()
            ),
            "letter",
            LACKS,
        ),
        (
            columns(
                SimpleImputer(), encoder(min_frequency=27, handle_unknown="infrequent_if_exist")
            ),
            "",
            "infrequent_categories_ of a training set differs from that of all rows",
        ),
        (
            columns(SimpleImputer(add_indicator=True)),
            "indicator",
            "a training set has no missing value in a column of its add_indicator",
        ),
        (columns(SimpleImputer()), "empty", "a column has no value in a training set"),
        (
            columns(make_pipeline(SimpleImputer(), PolynomialFeatures(2))),
            "",
            "statistics_ of a training set differs from that of all rows",
        ),
        (
            columns(make_pipeline(MinMaxScaler(clip=True), SimpleImputer())),
            "",
            "MinMaxScaler learns from the rows",
        ),
        (
            columns(FunctionTransformer(lambda X: X.fillna(X.mean()))),
            "",
            "its function may use all rows",
        ),
        (
            ColumnTransformer(
                [("some", SimpleImputer(), lambda X: list(X.columns[:2]))], remainder="drop"
            ),
            "",
            "a function, which may use all rows, selects the columns of 'some'",
        ),
        (
            ColumnTransformer(
                [("some", SimpleImputer(), NUMBERS)], transformer_weights={"some": 2.0}
            ),
            "",
            "ColumnTransformer has transformer_weights",
        ),
    ],
    ids="drop scaled infrequent indicator empty products clip function selector weights".split(),
)
def test_what_differs_between_folds_is_fitted(front, change, why):
    """The scores are those of fits then, NaN and all."""
    rows = X.copy()
    if change == "letter":
        rows.loc[3, "letter"] = "rare"
    elif change == "indicator":
        rows["small"] = np.arange(N) % 7.0
        rows.loc[[2, 5], "small"] = np.nan
    elif change == "empty":
        rows["small"] = np.nan
        rows.loc[[2, 5], "small"] = 1.0
    model = make_pipeline(front, Ridge())
    result = evaluated(model, rows, Y, KFold(4))
    assert result.method == "fit"
    assert result.reason.endswith(f"must be fitted per fold: {why}")
    np.testing.assert_array_equal(result.test_score, expected(model, rows, Y, KFold(4)))


def words(kinds, gap=None):
    """Return rows of words of which several are almost equally frequent, the first one last."""
    rows = X.assign(letter=np.tile(["b", "c", "a"], N // 3), word=["yes", "no"] * (N // 2))
    rows = rows.astype({"letter": object, "word": object})
    rows.loc[::7, "letter"] = rows.loc[::5, "word"] = gap
    return rows, columns(SimpleImputer(), kinds)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encodes", "gap", "cv"),
    [
        ({}, np.nan, "mixed"),
        ({"handle_unknown": "ignore"}, None, "repeated"),
        ({"sparse_output": True, "dtype": np.float32}, "?", "mixed"),
    ],
)
def test_words_are_filled_in_by_each_fold(encodes, gap, cv):
    """Training sets have other most frequent words, some of them several: the least counts."""
    kinds = make_pipeline(
        SimpleImputer(strategy="most_frequent", missing_values=gap),
        encoder(**encodes),
        StandardScaler(with_mean=False),
    )
    rows, front = words(kinds, gap)
    trained = [train for train, _ in CVS[cv].split(rows)]
    filled_in = {repr(kinds[0].fit(rows.iloc[train][KINDS]).statistics_) for train in trained}
    assert len(filled_in) > 1
    model = make_pipeline(front, Ridge(0.3))
    result = evaluated(model, rows, Y, CVS[cv])
    assert result.method == "exact"
    np.testing.assert_allclose(
        result.test_score, expected(model, rows, Y, CVS[cv]), rtol=1e-9, atol=1e-11
    )
    model = make_pipeline(front, LogisticRegression(solver="newton-cholesky", tol=1e-9))
    result = evaluated(model, rows, Y > 1, CVS[cv], "neg_log_loss")
    assert result.method == "newton"
    of_fits = expected(model, rows, Y > 1, CVS[cv], "neg_log_loss")
    np.testing.assert_allclose(result.test_score, of_fits, rtol=1e-6)


@pytest.mark.slow
def test_words_of_which_a_training_set_has_none():
    """The steps of all rows fill it in there, so that only a fit says that it is unknown."""
    imputer = SimpleImputer(strategy="most_frequent")
    rows, front = words(make_pipeline(imputer, encoder()))
    rows["letter"] = ["b"] * 50 + ["a"] * 49 + [None] * (N - 99)
    model = make_pipeline(front, Ridge())
    cv = [(np.arange(50, N), np.arange(50)), (np.arange(99), np.arange(99, N))]
    with pytest.raises(ValueError, match=r"Found unknown categories \['b'\]"):
        evaluated(model, rows.fillna({"small": 0, "large": 0, "count": 0}), Y, cv)
    front = words(make_pipeline(imputer, encoder(handle_unknown="ignore")))[1]
    model = make_pipeline(front, Ridge(0.3))
    result = evaluated(model, rows, Y, cv)
    assert result.method == "exact"
    np.testing.assert_allclose(result.test_score, expected(model, rows, Y, cv), rtol=1e-9)


def test_scaled_sparse_columns_beside_dense_ones():
    front = ColumnTransformer(
        [
            ("kinds", make_pipeline(OneHotEncoder(), StandardScaler(with_mean=False)), KINDS),
            ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), NUMBERS),
        ],
        sparse_threshold=1.0,
    )
    model = make_pipeline(front, Ridge(0.3, solver="lsqr", tol=1e-12))
    result = evaluated(model, X, Y, KFold(4))
    assert result.method == "exact"
    np.testing.assert_allclose(result.test_score, expected(model, X, Y, KFold(4)), rtol=1e-9)


def test_an_unknown_category_is_the_error_of_the_fit():
    rare = X.copy()
    rare.loc[3, "letter"] = "rare"
    model = make_pipeline(columns(SimpleImputer()), Ridge())
    lines = treecv_objective(
        model, rare, Y, cv=KFold(4), param_grid={"ridge__alpha": [1.0]}
    ).explain()
    assert f"'columntransformer__kinds' must be fitted per fold: {LACKS}" in lines
    with pytest.raises(ValueError, match=r"Found unknown categories \['rare'\]"):
        evaluated(model, rare, Y, KFold(4))


def density(rows):
    encoded = OneHotEncoder(drop="first").fit_transform(rows[KINDS])
    n_dense = len(rows) * len(NUMBERS)
    return (encoded.nnz + n_dense) / (encoded.shape[0] * encoded.shape[1] + n_dense)


@pytest.mark.slow
@pytest.mark.parametrize("end", [min, max], ids=["dense in all rows", "sparse in all rows"])
def test_the_form_of_the_rows_is_that_of_each_training_set(end):
    """Discriminants take no sparse rows; models of ridge regression are the same."""
    cv = KFold(4)
    of_trainings = [density(X.iloc[train]) for train, _ in cv.split(X)]
    front = make_column_transformer(
        (OneHotEncoder(drop="first"), KINDS),
        (SimpleImputer(strategy="constant"), NUMBERS),
        sparse_threshold=(density(X) + end(of_trainings)) / 2,
    )
    result = evaluated(make_pipeline(front, Ridge(1e-3, tol=0.5)), X, Y, cv)
    assert result.method == "exact"
    of_fits = expected(make_pipeline(front, Ridge(1e-3, tol=1e-13)), X, Y, cv)
    np.testing.assert_allclose(result.test_score, of_fits, rtol=1e-9)
    labels = (Y > np.median(Y)).astype(int)
    for model in (
        make_pipeline(front, LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.1)),
        make_pipeline(front, StandardScaler(), Ridge()),
    ):
        assert np.isnan(expected(model, X, labels, cv)).any()
        with pytest.raises((TypeError, ValueError)):
            evaluated(model, X, labels, cv)


NEWTON_FRONTS = [
    "mean and scale",
    "median and range",
    "scale, then fill in",
    "range, mean, scale",
    "remainder",
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("learner", "tight", "scoring"),
    [
        (LogisticRegression(C=0.5), {"solver": "newton-cholesky", "tol": 1e-12}, "neg_log_loss"),
        (
            LogisticRegression(C=10, class_weight="balanced"),
            {"solver": "newton-cholesky", "tol": 1e-12},
            "neg_log_loss",
        ),
        (
            PoissonRegressor(alpha=0.1),
            {"solver": "newton-cholesky", "tol": 1e-12},
            "neg_mean_poisson_deviance",
        ),
        (LinearSVC(dual=False), {"tol": 1e-12, "max_iter": 10**6}, "roc_auc"),
    ],
    ids=["logistic", "balanced", "poisson", "svm"],
)
@pytest.mark.parametrize("number", range(3))
def test_models_that_newton_finds(number, learner, tight, scoring):
    """Each learner stands behind three kinds of steps, and meets each kind of splits."""
    front = NEWTON_FRONTS[(number + len(repr(learner))) % len(NEWTON_FRONTS)]
    cv = ["folds", "time", "any"][number]
    y = np.round(np.exp(Y / 3)) if isinstance(learner, PoissonRegressor) else (Y > 2).astype(int)
    model = make_pipeline(FRONTS[front], learner)
    result = evaluated(model, X, y, CVS[cv], scoring)
    assert result.method == "newton"
    converged = clone(model)
    converged.steps[-1][1].set_params(**tight)
    of_fits = expected(converged, X, y, CVS[cv], scoring)
    np.testing.assert_allclose(result.test_score, of_fits, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "cv"),
    [("median", "mixed"), ("mean", "time"), ("median", "repeated")],  # the last makes rows again
)
def test_sparse_columns_beside_scaled_numbers_are_made_dense_for_newton(strategy, cv):
    numbers = make_pipeline(SimpleImputer(strategy=strategy), StandardScaler())
    front = columns(numbers, OneHotEncoder(handle_unknown="ignore")).set_params(sparse_threshold=1)
    model = make_pipeline(front, LogisticRegression(solver="newton-cholesky", tol=1e-12))
    y = (Y > 2).astype(int)
    result = evaluated(model, X, y, CVS[cv], "neg_log_loss")
    assert result.method == "newton"
    of_fits = expected(model, X, y, CVS[cv], "neg_log_loss")
    np.testing.assert_allclose(result.test_score, of_fits, atol=2e-6)
    # Ridge has its own way with sparse rows, and other solvers there.
    ridge = evaluated(make_pipeline(front, Ridge(tol=1e-13)), X, Y, CVS[cv])
    assert ridge.method == "exact"


def test_sparse_columns_of_many_words_stay_sparse():
    words = X.assign(letter=[f"word {i % 60}" for i in range(N)])
    front = columns(make_pipeline(SimpleImputer(), StandardScaler()), OneHotEncoder())
    model = make_pipeline(front, LogisticRegression())
    result = evaluated(model, words, (Y > 2).astype(int), KFold(2))
    assert (result.method, result.reason) == (
        "fit",
        "a transformer that is fitted per fold imputes or scales sparse rows",
    )


def test_explain_says_which_step_costs_what():
    model = make_pipeline(FRONTS["median and range"], Ridge())
    lines = treecv_objective(model, X, Y, param_grid={"ridge__alpha": [1.0]}).explain()
    assert [line.strip() for line in lines.splitlines()[1:4]] == [
        "columntransformer__numbers__simpleimputer (SimpleImputer): fitted per fold from sums, "
        "because a training set changes only the median of each column",
        "columntransformer__numbers__minmaxscaler (MinMaxScaler): fitted per fold from sums, "
        "because a training set changes only the range of each column",
        "columntransformer__kinds (OneHotEncoder): fitted once if equal in each fold, because "
        "each training set has the same categories",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("front", "learner"),
    [
        *((front, Ridge()) for front in sorted(FRONTS.keys() - {"imputed kinds", "products"})),
        *((front, LogisticRegression()) for front in NEWTON_FRONTS[:2]),
    ],
    ids=str,
)
def test_no_model_changes_with_the_rows_that_it_tests(front, learner):
    """Half of the rows of a fold change by 1e6; the predictions for the other half stay."""
    model, cv = make_pipeline(FRONTS[front], learner), KFold(4)
    _, test = list(cv.split(X))[1]
    changed, some = X.copy(), test[::2]
    changed.loc[some, NUMBERS] += 1e6
    changed.loc[some[:3], NUMBERS] = np.nan
    y, kind, tolerance = Y.copy(), {"cv": cv}, 1e-9
    if isinstance(learner, LogisticRegression):
        y, tolerance = (Y > 2).astype(int), 1e-5
        kind["response_method"] = "predict_proba"
    before = tree_cross_val_predict(model, X, y, **kind)
    y[some] = 1 - y[some] if y.dtype == int else y[some] - 1e6
    after = tree_cross_val_predict(model, changed, y, **kind)
    others = test[1::2]
    np.testing.assert_allclose(after[others], before[others], rtol=1e-9, atol=tolerance)
    assert not np.any(after[some[3:]] == before[some[3:]])


@st.composite
def fronts(draw):
    """Return steps for the numbers and the kinds of a table."""
    numbers, is_filled = [], False
    for _ in range(draw(st.integers(1, 3))):
        step = draw(st.sampled_from(["fill", "scale", "range"]))
        if step == "fill":
            strategy = st.sampled_from(["mean", "median", "most_frequent", "constant"])
            numbers.append(
                SimpleImputer(
                    strategy=draw(strategy),
                    add_indicator=draw(st.booleans()),
                    keep_empty_features=draw(st.booleans()),
                )
            )
            is_filled = True
        elif step == "scale":
            numbers.append(StandardScaler(with_mean=draw(st.booleans())))
        else:
            numbers.append(MinMaxScaler(draw(st.sampled_from([(0, 1), (-2, 3)]))))
    if not is_filled:
        numbers.append(SimpleImputer(strategy=draw(st.sampled_from(["mean", "median"]))))
    unknown = draw(st.sampled_from(["error", "ignore", "infrequent_if_exist"]))
    kinds = encoder(
        handle_unknown=unknown,
        drop=draw(st.sampled_from([None, "first", "if_binary"])),
        min_frequency=draw(st.sampled_from([None, None, 4, 0.2])),
    )
    front = columns(make_pipeline(*numbers), kinds)
    if draw(st.booleans()):  # the rows are sparse then
        kinds.set_params(sparse_output=True)
        front.set_params(sparse_threshold=draw(st.sampled_from([0.6, 0.7, 0.8, 1])))
    last = draw(st.sampled_from([None, StandardScaler(), MinMaxScaler(), PolynomialFeatures(2)]))
    return front if last is None else make_pipeline(front, last)


@pytest.mark.slow
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)
@given(
    front=fronts(),
    seed=st.integers(0, 2**16),
    missing=st.sampled_from([0, 0.02, 0.3]),
    rare=st.integers(0, 3),
    learner=st.sampled_from(
        [
            Ridge(tol=1e-13),
            Ridge(1e-4, tol=1e-13),
            Ridge(fit_intercept=False, tol=1e-13),
            LinearDiscriminantAnalysis(),
            LogisticRegression(solver="newton-cholesky", tol=1e-12),
        ]
    ),
    cv=st.sampled_from([KFold(2), KFold(5), TimeSeriesSplit(2), ShuffleSplit(2, random_state=0)]),
)
def test_random_tables(front, seed, missing, rare, learner, cv):
    rows, y = table(seed, 60, missing, rare)
    scoring, atol = "r2", 1e-9
    if isinstance(learner, LinearDiscriminantAnalysis | LogisticRegression):
        y, scoring = (y > np.median(y)).astype(int), "roc_auc"
    if isinstance(learner, LogisticRegression):
        scoring, atol = "neg_log_loss", 2e-6
    model = make_pipeline(front, learner)
    try:
        of_fits = expected(model, rows, y, cv, scoring)
    except ValueError:  # all of them have failed
        of_fits = np.array([np.nan])
    try:
        result = evaluated(model, rows, y, cv, scoring)
    except (TypeError, ValueError):
        assert np.isnan(of_fits).any()
        return
    np.testing.assert_allclose(result.test_score, of_fits, rtol=1e-7, atol=atol)
