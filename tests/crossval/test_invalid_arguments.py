"""Error messages name the argument, what was wrong and what to use instead, in one sentence."""

from __future__ import annotations

from ids import said
import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
import pandas as pd
import pytest
from scipy import sparse
from scipy import stats
from sklearn.base import ClassifierMixin
from sklearn.base import RegressorMixin
from sklearn.cluster import KMeans
from sklearn.cluster import MiniBatchKMeans
from sklearn.compose import ColumnTransformer
from sklearn.compose import TransformedTargetRegressor
from sklearn.decomposition import IncrementalPCA
from sklearn.decomposition import MiniBatchDictionaryLearning
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Perceptron
from sklearn.linear_model import Ridge
from sklearn.linear_model import SGDClassifier
from sklearn.linear_model import SGDRegressor
from sklearn.metrics import accuracy_score
from sklearn.metrics import get_scorer
from sklearn.metrics import make_scorer
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import cross_val_score
from sklearn.model_selection import GroupKFold
from sklearn.model_selection import KFold
from sklearn.model_selection import LeaveOneOut
from sklearn.model_selection import ShuffleSplit
from sklearn.model_selection import StratifiedGroupKFold
from sklearn.model_selection import StratifiedKFold
from sklearn.model_selection import TimeSeriesSplit
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import ModelCache
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective
from optuna_treecv import TreeCVSearchCV
from optuna_treecv.history import forget
from optuna_treecv.history import load_evaluations
from optuna_treecv.history import load_fold_scores
from optuna_treecv.paper import LSQSGDRegressor
from optuna_treecv.paper import StreamingGaussianDensity
from optuna_treecv.paper import StreamingKMeans

pytestmark = pytest.mark.filterwarnings("ignore:.* is trained in only one pass over")

CV_EXPECTED = (
    'cv must be an int, a fraction of test rows such as 0.2, "loo", a splitter, one fold id per '
    "row or pairs of training and test rows"
)
NO_TREE = (
    "cv must be a splitter whose training sets are all rows outside the test set, or all rows "
    "before it, but"
)
SCORER_EXPECTED = r"scoring must be a scorer.estimator, X, y. that returns a number, "
SCORER_ADVICE = r"use, for example, make_scorer.accuracy_score. instead"
ALPHA = {"alpha": FloatDistribution(1e-4, 1.0, log=True)}
X = np.random.default_rng(0).normal(size=(30, 3))
y = np.arange(30) % 2


def broken(array, value):
    array = array.astype(float)
    array.flat[7] = value
    return array


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"cv": 1}, "cv must be between 2 and the number of rows, 30, got 1"),
        ({"cv": True}, f"{CV_EXPECTED}, got True"),
        ({"cv": 2.5}, "cv must be either an int or a float .* fraction of test rows, got 2.5"),
        ({"cv": "lpo"}, "cv must be an int.*got 'lpo'"),
        ({"cv": {}}, "cv must be an int"),
        (
            {"cv": KFold},
            "cv must be a splitter instance, such as KFold.5., got the class <class .*KFold",
        ),
        ({"cv": np.arange(29)}, "one integer fold id per row.*X has 30 rows, cv has 29 entries"),
        ({"cv": np.zeros(30, int)}, "cv must make at least 2 folds, got 1"),
        ({"cv": np.arange(30) - 2}, "must not contain fold ids below -1, got -2"),
        ({"cv": np.linspace(0, 1, 30)}, "one integer fold id per row.*float64"),
        (
            {"cv": [*np.arange(28), [1, 2], [3]]},
            "cv must be a sequence of one integer fold id per row",
        ),
        (
            {"cv": TimeSeriesSplit(3, max_train_size=5), "method": "treecv"},
            f"{NO_TREE} TimeSeriesSplit drops row 0 in split 0 \\(max_train_size=5\\); "
            "use method='fit' or",
        ),
        (
            {"cv": ShuffleSplit(12, random_state=0), "method": "treecv"},
            f"{NO_TREE} ShuffleSplit tests row .* in more splits than other rows; use "
            "method='fit' or method='standard' instead",
        ),
        ({"cv": GroupKFold(3)}, "groups must be given with cv=GroupKFold"),
        (
            {"cv": GroupKFold(3), "groups": [1, 2]},
            "groups must have one entry per row: X has 30 rows, groups 2",
        ),
        ({"order": "sorted"}, "order must be one of 'fixed', 'random', got 'sorted'"),
        ({"method": "fast"}, "method must be one of 'auto', .*'progressive', got 'fast'"),
        ({"method": ["treecv"]}, "method must be one of 'auto', .* got .'treecv'."),
        ({"shuffle": "no"}, "shuffle must be one of True, False, got 'no'"),
        ({"n_repeats": True}, "n_repeats must be an integer from 1 to 10000, got True"),
        ({"n_repeats": 1.5}, "n_repeats must be an integer from 1 to 10000, got 1.5"),
        (
            {"scoring": "loss"},
            "scoring must be a loss .error, hinge.* or the name of a scikit-learn scorer .*, got",
        ),
        ({"scoring": 3}, "scoring must be None, a loss name.*got 3"),
        (
            {"scoring": accuracy_score},
            f"{SCORER_EXPECTED}.*got <function accuracy_score.*{SCORER_ADVICE}",
        ),
        (
            {"scoring": lambda *_: {"a": 1.0}},
            f"{SCORER_EXPECTED}.*returned .'a': 1.0.; use a dict of scorers, each of which",
        ),
        ({"scoring": lambda *_: None}, f"{SCORER_EXPECTED}.*returned None; {SCORER_ADVICE}"),
        (
            {"scoring": lambda *_: np.ones(2)},
            f"{SCORER_EXPECTED}.*returned array.*; {SCORER_ADVICE}",
        ),
        (
            {"scoring": "squared_error"},
            "scoring='squared_error' is not for a classifier such as PegasosClassifier",
        ),
        (
            {"scoring": "log_loss"},
            "scoring='log_loss' needs an estimator with predict_proba; PegasosClassifier has none",
        ),
        ({"random_state": -1}, "random_state must be from 0 to"),
        ({"random_state": "x"}, "'x' cannot be used to seed"),
        ({"groups": 5}, "groups .*Expected sequence"),
        ({"n_jobs": 0}, "n_jobs must be None, a number of workers or -1 for all cores, got 0"),
        (
            {"cv": "loo", "scoring": "roc_auc"},
            r"scoring='roc_auc' is undefined .NaN. on a fold of 1 row",
        ),
    ],
    ids=said,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
def test_arguments_of_the_evaluation(options, match):
    with pytest.raises((TypeError, ValueError), match=match):
        tree_cross_validate(PegasosClassifier(), X, y, **options)
    with pytest.raises((TypeError, ValueError), match=match):
        objective = treecv_objective(
            PegasosClassifier(), X, y, param_distributions=ALPHA, **options
        )
        objective.evaluate({"alpha": 0.1})


@pytest.mark.parametrize(
    "estimator", [PegasosClassifier(), LSQSGDRegressor(), SGDClassifier()], ids=said
)
@pytest.mark.parametrize(
    ("rows", "targets", "match"),
    [
        (broken(X, np.nan), y, "Input X contains NaN"),
        (broken(X, np.inf), y, "Input X contains infinity"),
        (X, broken(y, np.nan), "Input y contains NaN"),
        (X, broken(y, np.inf), "Input y contains infinity"),
        (X, y[:-1], "inconsistent numbers of samples"),
        (X[0], y[:3], "X must have 2 dimensions, rows and features, got shape .3,"),
        (X[:1], y[:1], "X must have at least 2 rows to be cross-validated, got n_samples=1"),
        (X, np.c_[y, y], "y must have one column"),
    ],
    ids=["X nan", "X inf", "y nan", "y inf", "lengths", "1-D", "one row", "2-D y"],
)
def test_data(estimator, rows, targets, match):
    with pytest.raises(ValueError, match=match):
        tree_cross_validate(estimator, rows, targets, cv=3 if len(rows) > 3 else 2)


@pytest.mark.parametrize(
    "options",
    [
        {"cv": np.arange(30) % 3, "shuffle": False},
        {"cv": KFold(3), "shuffle": False},
        {"cv": KFold(3, shuffle=True, random_state=0), "shuffle": False},
        {"cv": LeaveOneOut(), "shuffle": False},
        {"cv": 3, "shuffle": False},
        {"cv": "loo", "shuffle": False, "method": "standard"},
    ],
    ids=said,
)
def test_repeats_that_cannot_differ(options):
    match = (
        "^n_repeats must be 1, got 2: neither the folds nor the models of .* differ "
        "between repeats; use order='random', shuffle=True, or a cv that shuffles on each call, "
        "instead\\.$"
    )
    options["n_repeats"] = 2
    for estimator in (PegasosClassifier(), SGDClassifier(max_iter=1, random_state=0)):
        with pytest.raises(ValueError, match=match):
            tree_cross_validate(estimator, X, y, **options)
    with pytest.raises(ValueError, match=match):
        treecv_objective(PegasosClassifier(), X, y, param_distributions=ALPHA, **options)


@pytest.mark.parametrize("estimator", [PegasosClassifier(), SGDClassifier()], ids=said)
@pytest.mark.parametrize(
    ("labels", "match"),
    [
        (None, "y must be given for a classifier, got None"),
        (np.ones(30, int), "y must hold at least 2 classes, got one class: 1"),
        (np.linspace(0, 1, 30), "y must hold class labels: Unknown label type: continuous"),
        (np.array([b"a", b"b"] * 15), "y must hold class labels: .*bytes"),
        ([1, None] * 15, "y must hold a label for each row, got None in row 1"),
        ([0, np.nan] * 15, "y must hold a label for each row, got nan in row 1"),
        (["a", "b", None] * 10, "y must hold a label for each row, got None in row 2"),
        ([pd.NA, "b", "a"] * 10, "y must hold a label for each row, got <NA> in row 0"),
        ([0, 1] * 15, "y must hold strings, or be an array of integers, got objects such as 0"),
        (["nan", 1.5] * 15, "or be an array of integers.* got objects such as 'nan', 1.5"),
        ([b"a", b"b"] * 15, "y must hold strings, .* got objects such as b'a'"),
    ],
    ids=range(11),
)
def test_labels(estimator, labels, match):
    labels = np.array(labels, object) if isinstance(labels, list) else labels
    with pytest.raises(ValueError, match=match):
        tree_cross_validate(estimator, X, labels)


@pytest.mark.parametrize("estimator", [LSQSGDRegressor(), SGDRegressor(max_iter=1)], ids=said)
@pytest.mark.parametrize(
    ("targets", "match"),
    [
        (None, "y must be given for a regressor, got None"),
        (np.array([1.0, None] * 15, object), "Input y contains NaN"),
        (np.array(["1.0", "2.0"] * 15), "y must hold numbers for a regressor, got type <U3"),
        (np.array(["2020-01-01"] * 30, "M8[D]"), "y must hold numbers for a regressor, got type"),
        (np.array(["a", 1] * 15, object), "y must hold numbers for a regressor: could"),
    ],
    ids=["none", "nan", "strings", "dates", "objects"],
)
def test_targets(estimator, targets, match):
    with pytest.raises(ValueError, match=match):
        tree_cross_validate(estimator, X, targets)


def picky(model, X, y):
    raise ValueError("not these rows")


def sparse_with(value):
    rows = sparse.csr_array(X)
    rows.data[7] = value
    return rows


DICTIONARY = MiniBatchDictionaryLearning(2)
DATES = np.array(["2020-01-01", "NaT"] * 15, "M8[D]")
SINGLE_ROWS = {"cv": "loo", "scoring": "neg_log_loss"}
# Estimator, rows, targets, options and the message of tree_cross_validate.
EVALUATIONS = [
    (
        *(MiniBatchKMeans(3), X, None, {"cv": StratifiedKFold(3)}),
        "y must be given with cv=StratifiedKFold, one label per row, got",
    ),
    (
        *(MiniBatchKMeans(3), X, None),
        {"cv": StratifiedGroupKFold(3), "groups": np.arange(30) // 2},
        "y must be given with cv=StratifiedGroupKFold, one label per row, got",
    ),
    (
        *(PegasosClassifier(), X, y, {"cv": KFold(50)}),
        "cv=KFold cannot split the rows: Cannot have number of",
    ),
    (
        *(LSQSGDRegressor(), X, X[:, 0], {"cv": StratifiedKFold(3)}),
        "cv=StratifiedKFold cannot split the rows: Supported",
    ),
    (
        *(SGDClassifier(loss="log_loss"), X, y, SINGLE_ROWS),
        r"scoring='neg_log_loss' is undefined .y_true contains only one label.* on a fold of "
        r"1 row.*, or a loss that is a mean over rows, such as 'error'",
    ),
    (
        *(LSQSGDRegressor(), X, X[:, 0], {"cv": "loo", "scoring": "r2"}),
        "'r2' is undefined .NaN.*such as 'squared_error'",
    ),
    (PegasosClassifier(), X, y, {"cv": 3, "scoring": picky}, "^not these rows$"),
    (
        *(LSQSGDRegressor(), X.astype(np.float32), np.full(30, 1e39), {}),
        "Input y contains infinity",
    ),
    (
        *(AveragedSGDClassifier(batch_size=2), sparse.csr_matrix(X), y, {}),
        "X must be dense for this estimator.*use an",
    ),
    (StreamingSVRGClassifier(), sparse_with(np.nan), y, {}, "X contains NaN"),
    (StreamingSVRGClassifier(), sparse_with(np.inf), y, {}, "X contains infinity"),
    (DICTIONARY, X, None, {}, "scoring must be given for MiniBatchDictionaryLearning"),
    (MiniBatchKMeans(3), X, None, {"scoring": "error"}, "is not for a clusterer"),
    (
        StreamingKMeans(10**9),
        X,
        None,
        {},
        r"'n_clusters' parameter .* in the range \[1, 1000000\]",
    ),
    (
        *(LSQSGDRegressor(), X, X[:, 0], {"scoring": "f1"}),
        "^scoring='f1' cannot score LSQSGDRegressor: .*continuous",
    ),
    (
        *(SGDRegressor(), X, X[:, 0], {"scoring": "f1"}),
        "^scoring='f1' cannot score SGDRegressor: .*continuous",
    ),
    (
        *(StreamingKMeans(2), X, DATES, {"scoring": "accuracy"}),
        "^scoring='accuracy' cannot score StreamingKMeans: ",
    ),
]
EVALUATIONS += [
    (model, rows, y, {}, "^X must have at least 1 column, got 0 feature")
    for model in (PegasosClassifier(), SGDClassifier())
    for rows in (X[:, :0], sparse.csr_array((30, 0)), pd.DataFrame(index=range(30)))
]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
@pytest.mark.parametrize(
    ("estimator", "rows", "targets", "options", "match"), EVALUATIONS, ids=range(len(EVALUATIONS))
)
def test_evaluations(estimator, rows, targets, options, match):
    with pytest.raises(ValueError, match=match):
        tree_cross_validate(estimator, rows, targets, **options)


PAIRS = [(np.arange(15), np.arange(15, 30))]


@pytest.mark.parametrize("cv", [3, PAIRS], ids=["3", "pairs"])
@pytest.mark.parametrize("scoring", [None, "r2"])
@pytest.mark.parametrize("row", [2, 20])
def test_a_missing_target_is_named_before_a_fit(cv, scoring, row, monkeypatch):
    """``SGDRegressor`` overflows there, as it does where it diverges."""

    def fit(self, X, y):
        raise AssertionError

    monkeypatch.setattr(SGDRegressor, "fit", fit)
    targets = X[:, 0].astype(object)
    targets[row] = None
    for estimator in (SGDRegressor(), make_pipeline(StandardScaler(), SGDRegressor())):
        with pytest.raises(ValueError, match=f"^Input y contains NaN: .* got None in row {row}.$"):
            tree_cross_validate(
                estimator, X, targets, cv=cv, scoring=scoring, method="fit", shuffle=False
            )
        with pytest.raises(ValueError, match="^Input y contains NaN"):
            TreeCVSearchCV(estimator, param_grid={}, cv=cv, shuffle=False).fit(X, targets)


@pytest.mark.parametrize(
    ("estimator", "match"),
    [
        (
            RandomForestClassifier(),
            "estimator must have partial_fit, .*, got RandomForestClassifier; use, for example, "
            "SGDClassifier, ",
        ),
        (
            Ridge(),
            "estimator must have partial_fit, .*, got Ridge; use, for example, SGDRegressor or "
            "AveragedSGDRegressor instead.",
        ),
        (KMeans(2), ", got KMeans; use, for example, MiniBatchKMeans or StreamingKMeans instead."),
        (
            GaussianMixture(2),
            ", got GaussianMixture; use, for example, StreamingGaussianDensity instead.",
        ),
        (
            MLPClassifier(solver="lbfgs"),
            "estimator must have partial_fit, .*, got MLPClassifier with solver='lbfgs'; use "
            "solver='adam' or solver='sgd' instead.",
        ),
        (
            OneVsRestClassifier(LinearSVC()),
            "estimator must have partial_fit, .*, but the parameters of "
            "OneVsRestClassifier.estimator=LinearSVC... disable partial_fit. Use method='fit' to "
            "refit it on each fold.$",
        ),
        (
            SGDClassifier(early_stopping=True),
            "^estimator must have early_stopping=False, because partial_fit of SGDClassifier does "
            "not support the value True. Use method='fit' to refit it on each fold.$",
        ),
        (
            MLPClassifier(warm_start=True),
            "^estimator must have warm_start=False, because partial_fit of MLPClassifier does",
        ),
        (
            OneVsRestClassifier(Perceptron(class_weight="balanced")),
            "^estimator must have estimator__class_weight=None or a dict of weights, because .* "
            "of Perceptron does not support the value 'balanced'",
        ),
        (
            make_pipeline(StandardScaler(), SGDClassifier(early_stopping=True)),
            "^Pipeline step 'sgdclassifier' must have early_stopping=False, because",
        ),
        (PegasosClassifier, "scikit-learn estimator instance or a River model, got <class"),
        ("pegasos", "scikit-learn estimator instance or a River model, got 'pegasos'"),
        (PegasosClassifier(alpha=0), "'alpha' parameter of PegasosClassifier must be a float"),
        (SGDClassifier(alpha=-1), "'alpha' parameter of SGDClassifier must be a float"),
    ],
    ids=said,
)
def test_estimators(estimator, match):
    for function in (tree_cross_validate, tree_cross_val_predict):
        with pytest.raises(ValueError, match=match):
            function(estimator, X, y, method="treecv")


PCA_TURNS = "must not be IncrementalPCA: partial_fit of IncrementalPCA needs at least n_comp"


@pytest.mark.parametrize(
    ("pipeline", "match"),
    [
        (IncrementalPCA(1), f"^estimator {PCA_TURNS}.*each call changes the components"),
        (make_pipeline(IncrementalPCA(1), SGDClassifier()), f"step 'incrementalpca' {PCA_TURNS}"),
        (
            make_pipeline(PCA(1), SGDClassifier()),
            "Pipeline step 'pca' must be a transformer that either has partial_fit, such as "
            "StandardScaler, or is stateless .tag requires_fit=False., such as Normalizer, got P",
        ),
        (
            make_pipeline(make_pipeline(StandardScaler(), PCA(1)), SGDClassifier()),
            "Pipeline step 'pca' must be a transformer.*got PCA",
        ),
        (
            make_pipeline(ColumnTransformer([("turn", PCA(1), [0])]), SGDClassifier()),
            "got ColumnTransformer|PCA learns from the rows",
        ),
        (
            make_pipeline(StandardScaler(), RandomForestClassifier()),
            "Pipeline step 'randomforestclassifier' must have partial_fit, because TreeCV trains",
        ),
        (
            make_pipeline(SGDClassifier(), SGDClassifier()),
            "step 'sgdclassifier-1' must be a transformer.*got SGDClassifier",
        ),
        (make_pipeline(StandardScaler(), "passthrough"), "step 'passthrough' must have partial"),
        (
            TransformedTargetRegressor(SGDRegressor()),
            "estimator must have partial_fit, .*, got TransformedTargetRegressor; use",
        ),
    ],
    ids=said,
)
def test_what_cannot_be_trained_in_phases(pipeline, match):
    options = {"scoring": "error", "method": "treecv"}
    for scoring in (None, "error"):
        with pytest.raises(ValueError, match=match):
            tree_cross_validate(pipeline, X, y, scoring=scoring, method="treecv")
    with pytest.raises(ValueError, match=match):
        tree_cross_val_predict(pipeline, X, y, method="treecv")
    with pytest.raises(ValueError, match=match):  # before a trial, and before rows are prepared
        params = {next(iter(pipeline.get_params())): FloatDistribution(0, 1)}
        treecv_objective(pipeline, broken(X, np.nan), y, param_distributions=params, **options)
    with pytest.raises(ValueError, match=match):
        treecv_objective(lambda trial: pipeline, X, y, **options).evaluate({})


def test_choices_may_bring_partial_fit_to_a_step():
    solvers = CategoricalDistribution(["adam", "lbfgs"])
    objective = treecv_objective(
        make_pipeline(StandardScaler(), MLPClassifier((2,), solver="lbfgs")),
        *(X, y),
        param_distributions={"mlpclassifier__solver": solvers},
        method="treecv",
    )
    assert objective.evaluate({"mlpclassifier__solver": "adam"}).mean < 1
    with pytest.raises(ValueError, match="step 'mlpclassifier' must have partial_fit"):
        objective.evaluate({"mlpclassifier__solver": "lbfgs"})


NO_SPACE = "param_distributions must name at least one parameter"
NO_ESTIMATOR = "estimator must be an estimator instance or a callable"
REPORTS = "report must be one of None, 'auto', 'folds', 'mean', .*, got"
NO_BATCH = "batch_size must be an integer from 1 to 1024, got"
NO_CACHE = "cache must be None, 'memory' or a ModelCache, got"
# Estimator, options and the message of treecv_objective.
OBJECTIVES = [
    (PegasosClassifier(), {"param_distributions": None}, NO_SPACE),
    (PegasosClassifier(), {"param_distributions": {}}, NO_SPACE),
    (
        *(PegasosClassifier(), {"param_distributions": {"C": FloatDistribution(0, 1)}}),
        "PegasosClassifier has no parameter 'C'; it has alpha, average",
    ),
    (
        *(PegasosClassifier(), {"param_distributions": {"alpha": stats.norm()}}),
        "param_distributions.'alpha'. must be a list of values, a distribution of optuna",
    ),
    (lambda trial: None, {}, "param_distributions must be None if estimator is a call"),
    (PegasosClassifier, {}, NO_ESTIMATOR),
    (3, {"param_distributions": None}, f"{NO_ESTIMATOR}, .trial. -> estimator, got 3"),
    (PegasosClassifier(), {"report": "all"}, f"{REPORTS} 'all'"),
    (PegasosClassifier(), {"report": np.array(["folds", "mean"])}, f"{REPORTS} array"),
    (
        *(PegasosClassifier(), {"report": "mean", "n_repeats": 33}),
        "report=.mean. needs at most 32 repeats .n_repeats, or the repeats of cv., got 33",
    ),
    (PegasosClassifier(), {"batch_size": 2**40}, f"{NO_BATCH} 1099511627776"),
    (PegasosClassifier(), {"batch_size": True}, f"{NO_BATCH} True"),
    (PegasosClassifier(), {"batch_size": 2.0}, f"{NO_BATCH} 2.0"),
    (PegasosClassifier(), {"n_repeats": 10**30}, "n_repeats must .* 1 to 10000, got 10{30}"),
    (PegasosClassifier(), {"cache": "disk"}, NO_CACHE),
    (PegasosClassifier(), {"cache": np.array([])}, NO_CACHE),
    (PegasosClassifier(), {"cache": np.array(["memory", "memory"])}, NO_CACHE),
    (
        *(PegasosClassifier(), {"store": "sqlite:///\0.db"}),
        "store must be a SQLAlchemy URL such as",
    ),
]
OBJECTIVES += [
    (
        PegasosClassifier(),
        {"param_distributions": wrong},
        "param_distributions must be a dict such",
    )
    for wrong in ([("alpha", FloatDistribution(0, 1))], np.array([]), np.ones(3), 7)
]


@pytest.mark.parametrize(("estimator", "options", "match"), OBJECTIVES, ids=range(len(OBJECTIVES)))
def test_arguments_of_the_objective(estimator, options, match):
    with pytest.raises(ValueError, match=match):
        treecv_objective(estimator, X, y, **{"param_distributions": ALPHA} | options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "estimator",
    [
        PegasosClassifier(),
        SGDClassifier(max_iter=1),
        make_pipeline(StandardScaler(), SGDClassifier(max_iter=1)),
        make_pipeline(StandardScaler(), PegasosClassifier()),
        GaussianNB(),
    ],
    ids=said,
)
def test_what_is_no_number_is_named_by_column_and_row(estimator):
    holes = X.copy()
    holes[[7, 20], 1] = np.nan
    frame = pd.DataFrame(holes, columns=list("abc"))
    infinite = sparse.csr_array(broken(X, np.inf))
    words = pd.DataFrame(X, columns=list("abc")).assign(b=["3", "u", "v"] * 10)
    for rows, message in (
        (holes, "Input X contains NaN in column 1, row 7, but must hold finite numbers."),
        (frame, "Input X contains NaN in column 'b', row 7, but must hold finite numbers."),
        (
            frame.astype(object).fillna(pd.NA),
            "X must hold numbers, got <NA> in column 'b', row 7.",
        ),
        (
            frame.astype(object),
            "Input X contains NaN in column 'b', row 7, but must hold finite n",
        ),
        (infinite, "Input X contains infinity in column 1, row 2, but must hold finite numbers."),
        (words, "X must hold numbers, got 'u' in column 'b', row 1."),
        (X + 1j, "Complex data not supported: X must hold real numbers, got type complex128."),
        (X.round(3).astype("U8"), "X must hold numbers, got type <U8."),
    ):
        if sparse.issparse(rows) and not isinstance(estimator, PegasosClassifier | SGDClassifier):
            continue
        if "U8" in message and not isinstance(estimator, SGDClassifier):
            continue  # others read numbers from text
        with pytest.raises(ValueError) as caught:
            tree_cross_validate(estimator, rows, y, cv=3)
        found = str(caught.value)
        if " 'pegasosclassifier': " in found or " 'standardscaler' " in found:  # names its place
            place, found = found.split(": ", 1)
            assert place.startswith(("X must suit the step", "After preprocessing, for the Peg"))
            found = found.replace("column 'x1'", "column 1")  # as scikit-learn calls it
        assert found.startswith(message)


@pytest.mark.slow
def test_holes_that_a_step_fills_are_allowed():
    holes = broken(X, np.nan)
    pipeline = make_pipeline(FunctionTransformer(np.nan_to_num), SGDClassifier())
    assert tree_cross_validate(pipeline, holes, y, cv=3).mean < 1
    made = make_pipeline(FunctionTransformer(lambda X: X * np.nan), SGDClassifier())
    # The rows as given have no hole to name.
    with pytest.raises(ValueError, match="^After preprocessing, .*X contains NaN in column 0"):
        tree_cross_validate(made, X, y, cv=3)


def test_wrong_data_is_found_before_the_first_trial():
    with pytest.raises(ValueError, match="Input X contains NaN"):
        treecv_objective(PegasosClassifier(), broken(X, np.nan), y, param_distributions=ALPHA)


@pytest.mark.parametrize(
    ("estimator", "scoring", "space", "match"),
    [
        (PegasosClassifier(), "log_loss", ALPHA, "PegasosClassifier has none"),
        (
            *(PegasosClassifier(), "log_loss"),
            ALPHA | {"average": CategoricalDistribution([True, False])},
            "PegasosClassifier has none",
        ),
        (SGDClassifier(), "log_loss", ALPHA, "with predict_proba; SGDClassifier has none"),
        (
            *(RandomForestClassifier(), None),
            {"criterion": CategoricalDistribution(["gini", "entropy"])},
            "estimator must have partial_fit.*RandomForest",
        ),
        (
            *(MiniBatchKMeans(), "error", {"n_clusters": IntDistribution(2, 3)}),
            "scoring='error' is not for a clusterer",
        ),
    ],
    ids=range(5),
)
def test_what_an_estimator_cannot_do_is_found_before_the_rows_are_prepared(
    estimator, scoring, space, match
):
    with pytest.raises(ValueError, match=match):
        treecv_objective(
            estimator,
            broken(X, np.nan),
            y,
            scoring=scoring,
            param_distributions=space,
            method="treecv",
        )


def test_a_choice_may_bring_what_the_estimator_as_given_lacks():
    losses = CategoricalDistribution(["log_loss", "hinge"])
    objective = treecv_objective(
        SGDClassifier(), X, y, param_distributions={"loss": losses}, scoring="log_loss"
    )
    assert objective.evaluate({"loss": "log_loss"}).mean > 0
    with pytest.raises(ValueError, match="with predict_proba; SGDClassifier has none"):
        objective.evaluate({"loss": "hinge"})


def test_wrong_response_method():
    with pytest.raises(
        ValueError, match="response_method must be one of 'predict'.*got 'transform'"
    ):
        tree_cross_val_predict(PegasosClassifier(), X, y, response_method="transform")
    with pytest.raises(
        ValueError,
        match="^response_method=.predict_proba. needs an estimator with predict_proba; Pega",
    ):
        tree_cross_val_predict(PegasosClassifier(), X, y, response_method="predict_proba")


def pegasos_of(trial):
    return PegasosClassifier(trial.suggest_float("alpha", 0.1, 1.0))


def objective_of(searched):
    if searched == "by a callable":
        return treecv_objective(pegasos_of, X, y)
    return treecv_objective(PegasosClassifier(), X, y, param_distributions=ALPHA)


WAYS = ["by distributions", "by a callable"]


@pytest.mark.parametrize("searched", WAYS)
def test_params_of_another_search_space(searched):
    objective = objective_of(searched)
    for params, match in (
        ({}, "params must have a value for 'alpha', got only {}"),
        ({"lambda": 0.1}, "params must have a value for 'alpha', got only {'lambda': 0.1}"),
        ({"alpha": 0.1, "beta": 2}, "params must have no value for 'beta', only for 'alpha'"),
        ([0.1], r"params must be a dict of parameter values, got \[0.1\]"),
    ):
        with pytest.raises(ValueError, match=match):
            objective.evaluate(params)


def trial_with(**params):
    space = dict.fromkeys(params, FloatDistribution(0.1, 1.0))
    return optuna.trial.create_trial(value=0.0, params=params, distributions=space)


@pytest.mark.parametrize("searched", WAYS)
def test_a_study_of_another_search_space(searched):
    objective, other = objective_of(searched), optuna.create_study()
    other.add_trial(trial_with(beta=1.0))
    with pytest.raises(
        ValueError, match="study must have been run with this obj.*: its best trial .* for"
    ):
        objective.best_estimator(other)
    with pytest.raises(ValueError, match="^the trial passed as study must have"):
        objective.best_estimator(other.trials[0])
    with pytest.raises(ValueError, match="^study must have a complete trial, got none"):
        objective.best_estimator(optuna.create_study())
    for wrong in (None, 0.5, {"alpha": 0.5}):
        with pytest.raises(ValueError, match="^study must be an optuna.Study or one of its tri"):
            objective.best_estimator(wrong)
    wider = optuna.create_study()
    wider.add_trial(trial_with(alpha=1.0, beta=1.0))
    if searched == "by a callable":  # a trial may be asked for more than the callable suggests
        assert objective.best_estimator(wider).alpha == 1.0
        return
    with pytest.raises(ValueError, match="study .*: its best trial .*, only for 'alpha'"):
        objective.best_estimator(wider)


def test_errors_of_a_callable_go_through():
    def estimator(trial):
        raise ValueError("not this trial")

    with pytest.raises(ValueError, match="^not this trial$"):
        treecv_objective(estimator, X, y).evaluate({})
    with pytest.raises(ValueError, match="estimator instance or a River model, got None"):
        treecv_objective(lambda trial: None, X, y).evaluate({})


def test_best_estimator_that_diverges():
    objective = treecv_objective(
        LSQSGDRegressor(radius=np.inf),
        X,
        y,
        param_distributions={"step_size": FloatDistribution(1e200, 1e201)},
    )
    study = optuna.create_study()
    study.optimize(objective, n_trials=1)
    with pytest.raises(ValueError, match="diverges if trained on all rows; a smaller step size"):
        objective.best_estimator(study)


def test_the_loss_that_is_advised_for_an_undefined_score_fits_the_estimator():
    def nothing(estimator, X, y=None):
        return float("nan")

    for estimator, loss in (
        (StreamingKMeans(2), "squared_distance"),
        (LSQSGDRegressor(), "squared_error"),
        (PegasosClassifier(), "error"),
    ):
        with pytest.raises(ValueError, match=rf"is undefined \(NaN\).* such as '{loss}'\.$"):
            tree_cross_validate(estimator, X, y, cv=3, scoring=nothing)


# Messages of other functions, and of values of unusual types.


MASKED = np.ma.array(np.arange(30) % 3, mask=np.arange(30) > 27)
SECOND = np.timedelta64(1, "s")


class Splitter:
    """Gives the splits it was made with."""

    def __init__(self, *splits):
        self.splits = splits

    def split(self, X, y=None, groups=None):
        return iter(self.splits)


@pytest.mark.parametrize("rows", [pd.Series(X[:, 0]), 10**400, "rows", None], ids=type)
def test_rows(rows):
    fitted = PegasosClassifier().fit(X, y)
    for call in (
        lambda: tree_cross_validate(PegasosClassifier(), rows, y),
        lambda: PegasosClassifier().fit(rows, y),
        lambda: fitted.predict(rows),
        lambda: StreamingKMeans().fit(rows),
    ):
        with pytest.raises((TypeError, ValueError), match=r"\bX\b"):
            call()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"n_repeats": SECOND}, "n_repeats must be an integer from 1 to 10000, got"),
        ({"random_state": SECOND}, "^random_state cannot be used: "),
        ({"n_jobs": SECOND}, "n_jobs must be None, a number of workers or -1"),
        ({"cv": SECOND}, "cv must be an int, a fraction .* pairs of training and test rows, got"),
        ({"cv": Splitter(3)}, "cv must .* pairs of training and test rows, but Splitter yields 3"),
        ({"cv": Splitter((5, [0]))}, "arrays of row indices, but Splitter trains on 5 in split 0"),
        ({"cv": Splitter(([0], None))}, "row indices, but Splitter tests None in split 0"),
        (
            {"scoring": "roc_auc"},
            "scoring='roc_auc' needs an estimator with decision_function or predict_proba; "
            "AveragedSGDRegressor has none",
        ),
        ({"scoring": int}, "scoring must be None, a loss name, a scorer name, a scorer.*got"),
        ({"cv": MASKED}, "^cv must not be a masked array, because its mask would be ignored; "),
        ({"groups": MASKED}, "^groups must not be a masked array, because its mask would be ign"),
        (
            {"stratify": True},
            "^stratify must be .* if y contains real numbers instead of class labels",
        ),
        ({"scoring": "neg_log_loss"}, "needs an estimator with predict_proba; Averaged.* has non"),
    ],
    ids=said,
)
def test_arguments(options, match):
    with pytest.raises((TypeError, ValueError), match=match):
        tree_cross_validate(AveragedSGDRegressor(), X, X[:, 0], **options)


def test_arguments_of_the_methods_of_an_objective():
    objective = treecv_objective(PegasosClassifier(), X, y, param_grid={"alpha": [0.1, 1.0]})
    for params in ({}, {"alpa": 0.1}):
        with pytest.raises(ValueError, match="^params must have a value for 'alpha', got only"):
            objective.values_of(params)
    with pytest.raises(ValueError, match="^params must be a dict of parameter values, got None"):
        objective.values_of(None)
    for seed in ("a", -1, 2**32, 0.5):
        with pytest.raises(ValueError, match="^seed must be None or an integer"):
            objective.grid_sampler(seed)


def test_verbose_may_be_a_flag():
    for verbose in (False, True):
        tree_cross_validate(AveragedSGDRegressor(), X, X[:, 0], verbose=verbose)
        search = TreeCVSearchCV(
            *(AveragedSGDRegressor(), None), param_grid={"alpha": [0.1]}, verbose=verbose
        )
        search.fit(X, X[:, 0])


@pytest.mark.parametrize("value", [1j, "nan", None, -(10**400)], ids=type)
def test_values_that_optuna_refuses(value):
    objective = treecv_objective(PegasosClassifier(), X, y, param_distributions=ALPHA)
    with pytest.raises(ValueError, match="'alpha' cannot have this value: "):
        objective.evaluate({"alpha": value})


def test_parameters():
    with pytest.raises(ValueError, match="max_bytes must be a number of bytes of at least 0, got"):
        ModelCache(max_bytes=SECOND)
    with pytest.raises(ValueError, match="'alpha' parameter of PegasosClassifier must be a Pyth"):
        PegasosClassifier(alpha=SECOND).fit(X, y)
    assert StreamingKMeans(n_clusters=True).fit(X).cluster_centers_.shape == (1, 3)
    wide = sparse.random(4, 2**14 + 1, density=0.001, random_state=0).toarray()
    with pytest.raises(ValueError, match="X must have at most 16384 columns with covariance_type"):
        StreamingGaussianDensity("full").fit(wide)


def test_estimators_that_are_no_list():
    for wrong in (3, np.inf, None, PegasosClassifier()):
        with pytest.raises(ValueError, match="^estimators must be a list of estimators, got"):
            tree_cross_validate_many(wrong, X, y)


@pytest.mark.parametrize("rows", [sparse.csr_array, sparse.coo_array, sparse.csc_matrix])
def test_sparse_rows_of_objects(rows):
    wrong = rows(X)
    wrong.data = wrong.data.astype(object)
    for call in (
        lambda: tree_cross_validate(PegasosClassifier(), wrong, y),
        lambda: tree_cross_validate(SGDClassifier(), wrong, y),
        lambda: PegasosClassifier().fit(wrong, y),
    ):
        with pytest.raises(ValueError, match="^X must be a valid .* its values are of type obj"):
            call()


@pytest.mark.parametrize("model", [PegasosClassifier(), LSQSGDRegressor()], ids=said)
@pytest.mark.parametrize(
    "targets",
    [y[:-1], None, 7, "loo", np.ma.array(y, mask=y > 0), y * 1j, np.c_[y, y], y + np.nan],
    ids=["short", "None", "number", "text", "masked", "complex", "2-D", "NaN"],
)
def test_targets_of_score(model, targets):
    fitted = model.fit(X, y)
    with pytest.raises(ValueError, match=r"(^|\W)(X and )?y(\W)"):
        fitted.score(X, targets)
    weights = np.arange(30) % 3
    kind = ClassifierMixin if hasattr(fitted, "classes_") else RegressorMixin
    assert fitted.score(X, y, weights) == kind.score(fitted, X, y, weights)


@pytest.fixture
def store(tmp_path):
    url = f"sqlite:///{tmp_path / 'store.db'}"
    treecv_objective(PegasosClassifier(), X, y, param_distributions=ALPHA, store=url)
    return url


@pytest.mark.parametrize("wrong", [3, 1j, print, ["a"]], ids=said)
def test_arguments_of_the_history(store, wrong):
    for call in (
        lambda: load_evaluations(store, study_name=wrong),
        lambda: load_fold_scores(store, study_name=wrong),
        lambda: forget(store, study_name=wrong),
    ):
        with pytest.raises(ValueError, match="^study_name must be a str, got"):
            call()
    for load in (load_evaluations, load_fold_scores):
        with pytest.raises(ValueError, match="^study must be an optuna.Study, got"):
            load(store, study=wrong)
        with pytest.raises(ValueError, match="^study must be an optuna.Study, got"):
            load(store, study=optuna.Study)
    for runs in (np.array(3), np.eye(2), "run", [3], [wrong]):
        with pytest.raises(ValueError, match="^runs must be a collection of run names, got"):
            load_fold_scores(store, runs=runs)
        with pytest.raises(ValueError, match="^keep_runs must be a collection of run names, got"):
            forget(store, keep_runs=runs)


@pytest.mark.slow
def test_numpy_integers_for_the_dashboard(store):
    report = pytest.importorskip("optuna_treecv.report")
    dashboard = pytest.importorskip("optuna_treecv.dashboard")
    study = optuna.create_study()
    assert report.plot_fold_scores(study, store, n_best=np.int64(2)).layout.annotations
    callback = dashboard.DashboardCallback(store, every=np.uint8(1))
    study.optimize(lambda trial: 0.0, n_trials=2, callbacks=[callback])
    for wrong in (0, True, 1.5, SECOND):
        with pytest.raises(ValueError, match="^n_best must be a number of trials, 1 or more, got"):
            report.plot_fold_scores(study, store, n_best=wrong)
        with pytest.raises(ValueError, match="^every must be a number of trials, 1 or more, got"):
            dashboard.DashboardCallback(store, every=wrong)


def test_figures_need_a_study(store):
    report = pytest.importorskip("optuna_treecv.report")
    dashboard = pytest.importorskip("optuna_treecv.dashboard")
    for function in (
        *(report.plot_parameters, report.plot_fold_scores, report.plot_choice),
        dashboard.publish,
    ):
        with pytest.raises(ValueError, match="^study must be an optuna.Study, got 3"):
            function(3, store)


@pytest.mark.parametrize("scoring", ["f1", "average_precision"])
def test_labels_without_the_positive_one(scoring):
    """The error comes with the objective, and not in the first trial."""
    X = np.random.default_rng(0).normal(size=(60, 3))
    words = np.where(X[:, 0] > 0, "yes", "no")
    space = {"C": FloatDistribution(0.1, 1.0)}
    model = LogisticRegression()
    with pytest.raises(
        ValueError, match=rf"^scoring='{scoring}' needs another pos_label, because .* 'yes'"
    ):
        treecv_objective(model, X, words, param_distributions=space, scoring=scoring)
    with pytest.raises(ValueError, match="pos_label"):
        cross_val_score(model, X, words, scoring=scoring, error_score="raise")
    scorer = get_scorer(scoring)
    right = make_scorer(
        scorer._score_func, pos_label="yes", response_method=scorer._response_method
    )
    assert np.isfinite(tree_cross_validate(model, X, words, scoring=right).mean)
    for others in ("f1_macro", "roc_auc", "accuracy"):
        assert np.isfinite(tree_cross_validate(model, X, words, scoring=others).mean)
    for codes in (words == "yes", np.where(words == "yes", 1, -1)):
        assert np.isfinite(tree_cross_validate(model, X, codes, scoring=scoring).mean)
