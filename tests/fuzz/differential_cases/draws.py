"""Random rows, labels, estimators, splitters and scores, a function for each axis.

Each draws from the generator that it is given, so that a case follows from its number.
"""

from __future__ import annotations

from typing import Any
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import sparse
from sklearn import compose
from sklearn import discriminant_analysis as da
from sklearn import dummy
from sklearn import ensemble
from sklearn import feature_selection as fs
from sklearn import impute
from sklearn import linear_model as lm
from sklearn import metrics
from sklearn import model_selection as ms
from sklearn import naive_bayes as nb
from sklearn import neighbors
from sklearn import preprocessing as pre
from sklearn import svm
from sklearn import tree
from sklearn.decomposition import PCA
from sklearn.feature_extraction import text
from sklearn.pipeline import make_pipeline

Rng = np.random.Generator


class Problem(NamedTuple):
    """Rows of a kind, what is to be predicted of them, and the codes of classes or None."""

    X: np.ndarray
    y: Any
    codes: np.ndarray | None
    kind: str


def pick(rng: Rng, values: Any) -> Any:
    values = list(values)
    return values[rng.integers(len(values))]


def chance(rng: Rng, share: float) -> bool:
    return bool(rng.random() < share)


# Rows and labels.


def problem(rng: Rng, kinds: Any = ("normal", "sparse", "counts", "missing")) -> Problem:
    """Return rows of one kind, and classes or numbers that follow from them with noise."""
    kind, n, d = pick(rng, kinds), int(rng.integers(40, 100)), int(rng.integers(2, 7))
    X = rng.normal(size=(n, d)) * 10.0 ** rng.integers(-2, 3, d)
    if kind in ("counts", "levels"):
        X = rng.poisson(1.5, size=(n, d)).clip(0, 4).astype(float)
    elif kind == "sparse":
        X *= rng.random((n, d)) < 0.5
    score = (X / (X.std(axis=0) + 1e-9)) @ rng.normal(size=d) + rng.normal(size=n)
    if kind == "missing":
        X[rng.random(X.shape) < 0.1] = np.nan
    if chance(rng, 0.4):
        return Problem(X, column(rng, score * 10.0 ** rng.integers(-2, 3)), None, kind)
    codes = np.argsort(np.argsort(score)) * int(pick(rng, (2, 2, 3))) // n
    return Problem(X, labels(rng, codes), codes, kind)


def labels(rng: Rng, codes: np.ndarray) -> Any:
    """Return classes as integers, strings, bools, floats or objects."""
    words = np.array(["no", "yes", "perhaps"])
    made = [codes, codes * 4 + 3, words[codes], words[codes].astype(object), codes + 1.0]
    if codes.max() == 1:
        made += [codes == 1, 2 * codes - 1]
    y = pick(rng, made)
    return pd.Series(y, dtype="category") if chance(rng, 0.2) else column(rng, y)


def column(rng: Rng, values: np.ndarray) -> Any:
    """Return numbers or labels in one of the forms in which they can be given."""
    index = rng.permutation(len(values))
    made = [values, values, values.tolist(), pd.Series(values), pd.Series(values, index=index)]
    return pick(rng, [*made, pd.Series(values).convert_dtypes()])


def container(rng: Rng, X: np.ndarray, is_dense: bool = False) -> Any:
    """Return rows in one of the forms in which they can be given."""
    frame = pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])])
    made = [X.copy(), np.asfortranarray(X), X.astype(np.float32), X.tolist(), X.astype(object)]
    made += [X[::-1].copy()[::-1], frame, pd.DataFrame(X), frame.convert_dtypes()]
    made += [frame.set_index(rng.permutation(len(X)))]
    if not is_dense and not np.isnan(X).any():
        made += [sparse.csr_matrix(X), sparse.csc_array(X)]
    return pick(rng, made)


def table(rng: Rng, X: np.ndarray) -> pd.DataFrame:
    """Return a data frame with columns of strings and of categories, "word" and "kind"."""
    frame = pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])])
    words = np.array(["red", "green", "blue", "grey"])[rng.integers(0, 4, len(X))]
    frame.insert(1, "word", words if chance(rng, 0.5) else words.astype(object))
    frame["kind"] = pd.Categorical(rng.choice(["a", "b", "c"], len(X)))
    return frame.astype({"x0": "Float64"}) if chance(rng, 0.3) else frame


def weights(rng: Rng, n: int) -> np.ndarray:
    return pick(rng, (rng.random(n) + 0.1, rng.integers(1, 4, n), rng.integers(0, 3, n) + 0.5))


# Estimators.


def fitted(rng: Rng, given: Problem) -> Any:
    """Return an estimator that does not have ``partial_fit``."""
    seed, depth = int(rng.integers(100)), int(rng.integers(1, 6))
    if given.codes is None:
        made = [
            tree.DecisionTreeRegressor(max_depth=depth, random_state=seed),
            ensemble.HistGradientBoostingRegressor(max_iter=3, random_state=seed),
            ensemble.BaggingRegressor(svm.SVR(), 3, random_state=seed),
            neighbors.KNeighborsRegressor(depth),
            compose.TransformedTargetRegressor(lm.Ridge(), transformer=pre.StandardScaler()),
            lm.Lasso(alpha=float(10 ** rng.uniform(-3, 0))),
            lm.RidgeCV(),
        ]
    else:
        leaf = tree.DecisionTreeClassifier(max_depth=depth, random_state=seed)
        made = [
            leaf,
            ensemble.RandomForestClassifier(4, max_depth=3, random_state=seed),
            ensemble.HistGradientBoostingClassifier(max_iter=3, random_state=seed),
            ensemble.VotingClassifier([("prior", dummy.DummyClassifier()), ("tree", leaf)]),
            neighbors.KNeighborsClassifier(depth),
            lm.LogisticRegression(C=float(10 ** rng.uniform(-2, 1))),
            svm.LinearSVC(C=0.1, random_state=seed, class_weight="balanced"),
            dummy.DummyClassifier(strategy="stratified", random_state=seed),
        ]
    return pick(rng, made)


def summed(rng: Rng, given: Problem) -> Any:
    """Return an estimator whose folds follow from sums."""
    alpha = float(10 ** rng.uniform(-2, 2))
    if given.codes is None:
        return lm.Ridge(alpha=alpha, fit_intercept=chance(rng, 0.8))
    if given.kind in ("counts", "levels") and chance(rng, 0.6):
        kind = pick(rng, (nb.MultinomialNB, nb.ComplementNB, nb.BernoulliNB))
        return kind(alpha=alpha, fit_prior=chance(rng, 0.7))
    made = [
        lm.RidgeClassifier(alpha=alpha, class_weight=pick(rng, (None, "balanced"))),
        da.LinearDiscriminantAnalysis(solver="lsqr", shrinkage=float(rng.random())),
        da.LinearDiscriminantAnalysis(),
        da.QuadraticDiscriminantAnalysis(reg_param=float(rng.uniform(0.01, 0.5))),
        nb.GaussianNB(var_smoothing=float(10 ** rng.uniform(-9, -2))),
    ]
    return pick(rng, made)


def row_step(rng: Rng) -> Any:
    """Return a step that transforms each row for itself and learns nothing."""
    powers = pre.PolynomialFeatures(2, include_bias=False)
    return pick(rng, (pre.Normalizer(), powers, pre.FunctionTransformer(np.tanh), "passthrough"))


def filled(X: Any) -> Any:
    """Return rows whose missing values are the means of just these rows."""
    return np.where(np.isnan(X), np.nanmean(X, axis=0), X)


def steps(rng: Rng, given: Problem, is_sparse: bool) -> list[Any]:
    """Return up to two steps, before which missing values are filled."""
    seed = int(rng.integers(100))
    made = [pre.MaxAbsScaler(), fs.VarianceThreshold(), fs.SelectKBest(k=1), row_step(rng)]
    made += [pre.StandardScaler(with_mean=False)]
    if not is_sparse:
        binned = pre.KBinsDiscretizer(3, quantile_method="averaged_inverted_cdf", encode="ordinal")
        made += [pre.StandardScaler(), pre.MinMaxScaler(), pre.RobustScaler(), binned]
        made += [pre.SplineTransformer(4), pre.QuantileTransformer(n_quantiles=10), PCA(2)]
        made += [make_pipeline(pre.StandardScaler(), pre.PolynomialFeatures(2))]
    chosen = [pick(rng, made) for _ in range(rng.integers(0, 3))]
    for one in chosen:
        if hasattr(one, "random_state"):
            one.set_params(random_state=seed)
    if given.kind == "missing":
        fillers = (impute.SimpleImputer(), impute.SimpleImputer(strategy="median"))
        fillers += (impute.KNNImputer(), pre.FunctionTransformer(filled))
        chosen.insert(0, pick(rng, fillers))
    return chosen


def rare_table(rng: Rng, X: np.ndarray) -> pd.DataFrame:
    """Return a data frame with texts, and with categories that few rows have."""
    n = len(X)
    frame = pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])])
    frame["x0"] = frame["x0"].where(rng.random(n) < 0.8)
    rank = np.minimum(rng.geometric(0.4, n), 9)
    frame["word"] = np.array(list("jhgfedcba"))[rank - 1]
    frame["kind"] = pd.Categorical(rng.choice(["a", "b", "c"], n), list("zcab"))
    frame["text"] = [f"{'red green blue'.split()[i % 3]} {'abcdefghi'[i - 1] * 2}" for i in rank]
    return frame


def steps_of_rare_table(rng: Rng) -> Any:
    """Return a ``ColumnTransformer`` of a table with rare values; half can be done once."""
    one_hot = {"sparse_output": chance(rng, 0.5), "handle_unknown": "ignore"}
    given = {"categories": [list("abcdefghj"), list("abc")], "drop": "first"}
    words = [pre.OneHotEncoder(**one_hot), pre.OneHotEncoder(**one_hot | given)]
    texts = [text.CountVectorizer(), text.CountVectorizer(binary=True, analyzer="char")]
    texts += [text.HashingVectorizer(n_features=16)]
    numbers = [impute.SimpleImputer(strategy="constant", fill_value=1.0)]
    numbers += [pre.FunctionTransformer(np.isnan)]
    if chance(rng, 0.5):
        words += [pre.OneHotEncoder(**one_hot, min_frequency=2)]
        words += [pre.OneHotEncoder(**one_hot, max_categories=3)]
        words += [pre.OneHotEncoder(**one_hot | {"handle_unknown": "infrequent_if_exist"})]
        words += [pre.OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)]
        texts += [text.CountVectorizer(min_df=2), text.TfidfVectorizer()]
        numbers += [impute.SimpleImputer(strategy="constant", add_indicator=True)]
        numbers += [impute.SimpleImputer(strategy="most_frequent")]
        numbers += [pre.FunctionTransformer(filled)]
    parts = [("words", pick(rng, words), ["word", "kind"]), ("texts", pick(rng, texts), "text")]
    parts = [pick(rng, parts), ("numbers", pick(rng, numbers), ["x0"])]
    parts.append(("rest", "passthrough", ["x1"]))
    return compose.ColumnTransformer(parts, sparse_threshold=float(pick(rng, (0, 1))))


def of_table(rng: Rng) -> Any:
    """Return a ``ColumnTransformer`` of a table."""
    made = [pre.OneHotEncoder(handle_unknown="ignore", sparse_output=s) for s in (True, False)]
    made += [pre.OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)]
    made += [pre.TargetEncoder(cv=ms.KFold(3))]
    scaler = make_pipeline(
        impute.SimpleImputer(), pick(rng, (pre.StandardScaler(), "passthrough"))
    )
    parts = [("encode", pick(rng, made), ["word", "kind"]), ("scale", scaler, ["x0", "x1"])]
    threshold = pick(rng, (0.0, 0.3, 1.0))
    return compose.ColumnTransformer(parts[:: pick(rng, (1, -1))], sparse_threshold=threshold)


# Folds and scores.


class Cut(NamedTuple):
    """How rows are cut: ``cv`` for this package, the same for scikit-learn, and the groups."""

    cv: Any
    same: Any
    groups: np.ndarray | None


def partition(rng: Rng, given: Problem) -> Cut:
    """Return folds that test each row once."""
    n, k, seed = len(given.X), int(rng.integers(2, 7)), int(rng.integers(100))
    ids, groups = rng.permutation(np.arange(n) % k), column(rng, rng.integers(0, 9, n))
    shuffled = {"shuffle": True, "random_state": seed}
    made: list[tuple[Any, bool]] = [(ms.KFold(k), False), (ms.KFold(k, **shuffled), False)]
    made += [(ms.GroupKFold(2 + k % 3), True), (ms.LeaveOneGroupOut(), True)]
    # Folds of an int nest, so their sizes are not those of KFold (user_guide/your_folds).
    plain = np.repeat(np.arange(k), np.diff(np.arange(k + 1) * n // k))
    cuts = [Cut(ids, ms.PredefinedSplit(ids), None), Cut(k, ms.PredefinedSplit(plain), None)]
    if given.codes is not None:
        made += [(ms.StratifiedKFold(k, **shuffled), False)]
        made += [(ms.StratifiedGroupKFold(2, **shuffled), True)]
        cuts[1] = Cut(k, ms.StratifiedKFold(k), None)
    return pick(rng, cuts + [Cut(cv, cv, groups if takes else None) for cv, takes in made])


def splits(rng: Rng, given: Problem) -> Cut:
    """Return training and test sets that are no partition of the rows."""
    n, k, seed = len(given.X), int(rng.integers(2, 5)), int(rng.integers(100))
    some = np.where(rng.random(n) < 0.3, -1, rng.permutation(np.arange(n) % k))
    orders = [rng.permutation(n) for _ in range(3)]
    made = (
        ms.ShuffleSplit(3, random_state=seed),
        ms.TimeSeriesSplit(k),
        ms.TimeSeriesSplit(2, gap=2, max_train_size=20),
        ms.RepeatedKFold(n_splits=k, n_repeats=2, random_state=seed),
        [(order[: n // 2], order[-9:]) for order in orders],
    )
    groups = ms.GroupShuffleSplit(3, random_state=seed)
    cuts = [Cut(some, ms.PredefinedSplit(some), None), Cut(groups, groups, rng.integers(0, 9, n))]
    return pick(rng, cuts + [Cut(cv, cv, None) for cv in made])


def agreement(estimator: Any, X: Any, y: Any) -> float:
    """Score as a callable may."""
    return float(np.mean(np.abs(np.ravel(estimator.predict(X) == np.asarray(y)) - 0.3)))


def scoring(rng: Rng, given: Problem, estimator: Any) -> Any:
    """Return a score: a name, a made scorer, a callable, or several in a list or a dict."""
    if given.codes is None:
        names = ["r2", "neg_mean_squared_error", "neg_root_mean_squared_error", "neg_max_error"]
        names += ["neg_median_absolute_error", "explained_variance", "d2_absolute_error_score"]
        options = {"greater_is_better": False, "alpha": float(rng.random())}
        made = [metrics.make_scorer(metrics.mean_pinball_loss, **options)]
        made += [metrics.make_scorer(metrics.mean_absolute_error, greater_is_better=False)]
    else:
        names = ["accuracy", "balanced_accuracy", "f1_macro", "jaccard_weighted"]
        names += ["matthews_corrcoef", "f1_weighted", "precision_macro"]
        names += ["neg_log_loss", "roc_auc_ovr"] * hasattr(estimator, "predict_proba")
        names += ["roc_auc", "average_precision", "f1"] * int(given.codes.max() == 1)
        beta, quiet = float(10 ** rng.uniform(-1, 1)), {"zero_division": 0.0}
        made = [metrics.make_scorer(metrics.fbeta_score, beta=beta, average="macro", **quiet)]
        made += [metrics.make_scorer(metrics.f1_score, average="weighted")]
        made += [metrics.make_scorer(metrics.accuracy_score)]
    made.append(agreement)
    form = pick(rng, ("one", "one", "list", "dict"))
    if form == "list":
        return list(dict.fromkeys(pick(rng, names) for _ in range(3)))
    one = pick(rng, [*names, *made])
    return {"first": one, "second": pick(rng, made)} if form == "dict" else one
