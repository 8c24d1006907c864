"""The method "fit": any estimator, fitted on each fold by its own ``fit``."""

from __future__ import annotations

from dataclasses import dataclass
import os
from pathlib import Path
import sys
from threading import Lock
from time import monotonic
from time import sleep
import warnings

from ids import said
from joblib import parallel_config
import numpy as np
import optuna
from pairs import pairs
import pandas as pd
import pytest
from scipy import sparse
from scipy.special import softmax
from sklearn import svm
from sklearn.base import BaseEstimator
from sklearn.base import ClassifierMixin
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.dummy import DummyClassifier
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import BaggingClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.ensemble import RandomForestRegressor
from sklearn.exceptions import DataConversionWarning
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import cross_val_predict
from sklearn.model_selection import cross_val_score
from sklearn.model_selection import cross_validate
from sklearn.model_selection import GridSearchCV
from sklearn.model_selection import KFold
from sklearn.model_selection import RepeatedStratifiedKFold
from sklearn.model_selection import ShuffleSplit
from sklearn.model_selection import StratifiedKFold
from sklearn.model_selection import TimeSeriesSplit
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.preprocessing import StandardScaler
from sklearn.preprocessing import TargetEncoder
from sklearn.tree import DecisionTreeClassifier
from studies import searched
from watching import Counting
from watching import Notes
from watching import Watching
from watching import X_CLASSES
from watching import X_NUMBERS
from watching import Y_CLASSES
from watching import Y_NUMBERS

from optuna_treecv import ModelCache
from optuna_treecv import PegasosClassifier
from optuna_treecv import pooled
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective
from optuna_treecv import TreeCVSearchCV
from optuna_treecv.core.settings import draw_seed
from optuna_treecv.scoring.metrics import registered_scorer
from optuna_treecv.scoring.scorers import score_of


class Told(ClassifierMixin, BaseEstimator):
    """Says what it is told."""

    def __init__(self, response, classes):
        self.classes_, self.response = classes, response

    def fit(self, X, y):
        return self

    def predict(self, X):
        return self.response

    predict_proba = predict


ACCURACY, LOG_LOSS = registered_scorer("accuracy"), registered_scorer("neg_log_loss")


@pytest.mark.parametrize("names", [np.arange(7), np.array(list("abcdefg"))], ids=["int", "str"])
def test_an_accuracy_has_the_bits_of_scikit_learn(names):
    rng = np.random.default_rng(0)
    for n_rows in [1, 3, *range(90, 120)]:
        y, response = names[rng.integers(0, 7, (2, n_rows))]
        told, X = Told(response, names), np.zeros((n_rows, 1))
        assert score_of(ACCURACY, told, X, y, names, {}) == ACCURACY.score(told, X, y)


@pytest.mark.parametrize("response", [[0.5, 1.0], ["0", "1"], [[0, 1]], [0, 1, 1]], ids=str)
def test_what_scikit_learn_says_of_predictions_is_said(response):
    told, X, y = Told(np.array(response), np.arange(2)), np.zeros((2, 1)), np.array([0, 1])
    try:
        expected = ACCURACY.score(told, X, y)
    except ValueError:
        with pytest.raises(ValueError, match="accuracy"):
            score_of(ACCURACY, told, X, y, told.classes_, {})
    else:  # scikit-learn 1.8 compares numbers with text
        assert response == ["0", "1"]
        assert score_of(ACCURACY, told, X, y, told.classes_, {}) == expected


@pytest.mark.slow
@pytest.mark.parametrize("names", [np.arange(7), np.array(list("abcdefg"))], ids=["int", "str"])
@pytest.mark.parametrize("n_classes", [2, 3, 7])
def test_a_log_loss_has_the_bits_of_scikit_learn(n_classes, names):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        codes = rng.permutation(np.resize(np.arange(n_classes), rng.integers(n_classes, 200)))
        logits = rng.normal(size=(len(codes), n_classes)) * 10.0 ** rng.integers(-1, 4)
        told = Told(softmax(logits, axis=1), names[:n_classes])
        X, y = logits, names[codes]
        ours = score_of(LOG_LOSS, told, X, y, told.classes_, {})
        assert ours == LOG_LOSS.score(told, X, y)


@pytest.mark.parametrize(
    ("probabilities", "y", "error"),
    [
        (np.full((3, 3), 0.4), [0, 1, 2], UserWarning),
        (np.diag([2.0, 1.0, 1.0]), [0, 1, 2], ValueError),
        (np.eye(3) - 0.5, [0, 1, 2], ValueError),
        (np.full((3, 3), np.nan), [0, 1, 2], ValueError),
        (np.eye(3), [0, 1, 1], ValueError),
    ],
    ids=["sums", "large", "negative", "nan", "missing class"],
)
def test_what_scikit_learn_says_of_probabilities_is_said(probabilities, y, error):
    told = Told(probabilities, np.arange(3))
    with warnings.catch_warnings(), pytest.raises(error):
        warnings.simplefilter("error")
        score_of(LOG_LOSS, told, np.zeros((3, 1)), np.array(y), told.classes_, {})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "options", "method"),
    [
        (make_pipeline(StandardScaler(), SGDClassifier(max_iter=1, tol=None)), {}, "treecv"),
        (make_pipeline(PCA(2), GaussianNB()), {}, "fit"),
        (SGDClassifier(early_stopping=True), {}, "fit"),  # its partial_fit would refuse
        (PegasosClassifier(), {"method": "fit"}, "fit"),
        (PegasosClassifier(), {"cv": TimeSeriesSplit(3)}, "fit"),
        (GaussianNB(), {"cv": TimeSeriesSplit(3)}, "chain"),
        (DecisionTreeClassifier(), {"cv": TimeSeriesSplit(3)}, "fit"),
    ],
    ids=said,
)
def test_auto_fits_what_the_tree_cannot_train(estimator, options, method):
    assert tree_cross_validate(estimator, X_CLASSES, Y_CLASSES, **options).method == method


@pytest.mark.parametrize("model", [Ridge(), RandomForestRegressor(3, random_state=0)], ids=said)
def test_losses_of_targets_in_one_column(model):
    flat = tree_cross_validate(model, X_NUMBERS, Y_NUMBERS, cv=KFold(3))
    predicted = tree_cross_val_predict(model, X_NUMBERS, Y_NUMBERS, cv=KFold(3))
    for column in (Y_NUMBERS[:, None], pd.DataFrame({"target": Y_NUMBERS})):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of scikit-learn, that y should be flat
            found = tree_cross_validate(model, X_NUMBERS, column, cv=KFold(3))
            answered = tree_cross_val_predict(model, X_NUMBERS, column, cv=KFold(3))
        np.testing.assert_allclose(found.test_score, flat.test_score, rtol=1e-12)
        np.testing.assert_allclose(answered, predicted, rtol=1e-12)


def test_losses_of_labels_in_one_column():
    model = DecisionTreeClassifier(max_depth=2, random_state=0)
    for scoring in ("error", "log_loss"):
        options = {"cv": StratifiedKFold(3), "scoring": scoring}
        flat = tree_cross_validate(model, X_CLASSES, Y_CLASSES, **options)
        with pytest.warns(DataConversionWarning):
            found = tree_cross_validate(model, X_CLASSES, Y_CLASSES[:, None], **options)
        np.testing.assert_array_equal(found.test_score, flat.test_score)


def test_classes_that_a_training_set_lacks_have_no_probability():
    X = np.arange(30.0).reshape(-1, 1)
    y = np.repeat(["a", "b", "c"], 10)
    cv = [(np.arange(20), np.arange(20, 30)), (np.arange(10, 30), np.arange(10))]
    found = tree_cross_validate(GaussianNB(), X, y, cv=cv, method="fit", scoring="log_loss")
    assert np.all(found.test_score > 30)  # -log of the smallest float64, not of another class
    found = tree_cross_validate(GaussianNB(), X, y, cv=cv, method="fit")
    np.testing.assert_array_equal(found.test_score, [1.0, 1.0])
    with pytest.raises(ValueError, match="cv must make training sets with every class of y"):
        tree_cross_validate(LogisticRegression(), X, y, cv=cv, method="fit", scoring="hinge")


@pytest.mark.parametrize(
    "cv", [TimeSeriesSplit(3), ShuffleSplit(2), 0.3, RepeatedStratifiedKFold(n_splits=3)], ids=said
)
def test_predictions_need_one_test_set_for_each_row(cv):
    with pytest.raises(ValueError, match="^cv must test every row once"):
        tree_cross_val_predict(GaussianNB(), X_CLASSES, Y_CLASSES, cv=cv)


class WithoutFit(ClassifierMixin, BaseEstimator):
    """A classifier that can only be trained in parts."""

    def partial_fit(self, X, y, classes=None):
        self.classes_ = np.asarray(classes)
        return self

    def predict(self, X):
        return self.classes_[np.zeros(len(X), int)]


@pytest.mark.parametrize(
    ("cv", "message"),
    [
        (3, "^estimator must have fit for method='fit', but WithoutFit has no fit; use"),
        (ShuffleSplit(2), "^cv must be a splitter whose .* use method='standard' instead"),
    ],
)
def test_an_estimator_without_fit_is_refused(cv, message):
    with pytest.raises(ValueError, match=message):
        tree_cross_validate(WithoutFit(), X_CLASSES, Y_CLASSES, cv=cv, method="fit")


def a_table(n_rows=60):
    generator = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "number": generator.normal(size=n_rows),
            "colour": pd.Categorical(generator.choice(["red", "green", "blue"], n_rows)),
            "count": pd.array(generator.integers(0, 5, n_rows), dtype="Int64"),
            "name": pd.array(generator.choice(["a", "b"], n_rows), dtype="string"),
        }
    )
    table.loc[::7, "number"] = np.nan
    table.loc[3, "count"] = pd.NA
    return table, generator.choice(["low", "high"], n_rows)


def test_estimators_get_slices_of_what_was_given():
    table, y = a_table()
    cv = KFold(3, shuffle=True, random_state=0)
    Watching.fitted_on = Notes()
    tree_cross_validate(Watching(), table, pd.Series(y), cv=cv, shuffle=False)
    for (X, labels), (train, _) in zip(Watching.fitted_on, cv.split(table), strict=True):
        pd.testing.assert_frame_equal(X, table.iloc[train])
        pd.testing.assert_series_equal(labels, pd.Series(y).iloc[train])
    X, y = np.arange(40.0).reshape(-1, 1), np.arange(40) % 2
    Watching.fitted_on = Notes()
    tree_cross_validate(Watching(), X, y, cv=4, method="fit")
    for rows, labels in Watching.fitted_on:
        assert np.all(np.diff(rows[:, 0]) > 0)  # ascending, whatever the order of the folds
        np.testing.assert_array_equal(labels, y[rows[:, 0].astype(int)])
    for rows, kind in ((sparse.csr_array(X_CLASSES), sparse.csr_array), (X_CLASSES, np.ndarray)):
        Watching.fitted_on = Notes()
        tree_cross_validate(Watching(), rows, Y_CLASSES, cv=3, method="fit")
        X, labels = Watching.fitted_on[0]
        assert isinstance(X, kind)
        assert not getattr(X, "data", X).flags.writeable if kind is not np.ndarray else True
        assert not labels.flags.writeable


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend", ["loky", "threading", pytest.param("multiprocessing", marks=pytest.mark.nightly)]
)
def test_workers_change_nothing(backend):
    given = RandomForestClassifier(3), X_CLASSES, Y_CLASSES
    one = tree_cross_validate(*given, cv=3)
    with parallel_config(backend, n_jobs=2):
        two = tree_cross_validate(*given, cv=3, n_jobs=None)
        predicted = tree_cross_val_predict(*given, cv=3, n_jobs=None)
    np.testing.assert_array_equal(one.test_score, two.test_score)
    assert np.mean(predicted != Y_CLASSES) == pytest.approx(one.mean, abs=1e-3)


class Broken(ValueError):
    def __init__(self, what, why):
        super().__init__(f"{what}, because {why}")


class Failing(Watching):
    """Fails on a training set that holds the first row."""

    def __init__(self, error=ValueError):
        self.error = error

    def fit(self, X, y):
        if X[0, 0] == X_CLASSES[0, 0]:
            raise self.error("this row", "it is the first one")
        return super().fit(X, y)


FOLDER = Path()


def process(estimator, X, y):
    """Tell in which process a model is scored, as soon as two processes have come here."""
    (FOLDER / f"{os.getpid()}").touch()
    latest = monotonic() + 120
    while len(list(FOLDER.iterdir())) < 2 and monotonic() < latest:
        sleep(0.01)
    return float(os.getpid())


@pytest.fixture
def sent_by_value(monkeypatch):
    """Send what test files define to workers as it is, because they cannot import them."""
    try:
        import cloudpickle
    except ImportError:  # joblib before 1.6 has its own
        from joblib.externals import cloudpickle
    monkeypatch.setattr(Watching, "fitted_on", [])
    modules = sys.modules[__name__], sys.modules[Watching.__module__]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)


@pytest.mark.slow  # it waits
@pytest.mark.usefixtures("sent_by_value")
@pytest.mark.filterwarnings("ignore:scoring=.*may not be a mean over rows")
@pytest.mark.parametrize(("error", "raised"), [(ValueError, ValueError), (Broken, RuntimeError)])
def test_an_error_ends_no_worker(error, raised, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "FOLDER", tmp_path)

    def workers(model):
        found = tree_cross_validate(
            model, X_CLASSES, Y_CLASSES, cv=6, method="fit", n_jobs=2, scoring=process
        )
        return set(found.test_score)

    before = workers(Watching())
    assert len(before) == 2
    with pytest.raises(raised, match="this row.*it is the first one") as caught:
        workers(Failing(error))
    assert "in fit" in caught.value.__notes__[0]
    assert workers(Watching()) <= before


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_folds_that_were_fitted_before_an_error_are_kept(n_jobs):
    cache = ModelCache()
    cv = KFold(6)  # the first row is tested by the first fold alone
    updates = []
    for model in (Failing(), Failing(), Failing(Broken)):
        objective = treecv_objective(
            lambda trial, model=model: model,
            X_CLASSES,
            Y_CLASSES,
            cv=cv,
            shuffle=False,
            n_jobs=n_jobs,
            cache=cache,
        )
        study = optuna.create_study()
        Watching.fitted_on = Notes()
        with parallel_config("threading"):
            study.optimize(objective, n_trials=1, catch=ValueError)
        assert study.trials[0].state.name == "FAIL"
        updates.append(len(Watching.fitted_on))
    assert updates == [1, 0, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        RandomForestClassifier(3),
        make_pipeline(StandardScaler(), BaggingClassifier(DecisionTreeClassifier(), 3)),
    ],
    ids=["forest", "pipeline"],
)
def test_the_seed_of_the_objective_takes_the_place_of_none(model):
    """In folds and in the fit of the best estimator, whose parameters stay None."""
    name = next(name for name in model.get_params() if name.endswith("n_estimators"))
    objective, study = searched(model, (X_CLASSES, Y_CLASSES), {name: [3]}, cv=2)
    assert objective.evaluate(study.best_params).mean == study.best_value
    seeds = [name for name in model.get_params() if name.endswith("random_state")]
    expected = clone(model).set_params(**dict.fromkeys(seeds, 0)).fit(X_CLASSES, Y_CLASSES)
    for _ in range(2):
        best = objective.best_estimator(study)
        found = best.predict_proba(X_CLASSES)
        np.testing.assert_array_equal(found, expected.predict_proba(X_CLASSES))
        assert all(best.get_params()[name] is None for name in seeds)


def test_pruning_between_folds_fits_no_more(monkeypatch):
    class Stop(optuna.pruners.BasePruner):
        def prune(self, study, trial):
            return len(trial.intermediate_values) == 3

    for n_jobs, most in ((1, 3), (2, 5)):
        fits = Notes()
        Counting.fits = fits
        monkeypatch.setattr(Counting, "seconds", 0.03)
        objective = treecv_objective(
            lambda trial: Counting(), X_CLASSES, Y_CLASSES, cv=10, report="folds", n_jobs=n_jobs
        )
        study = optuna.create_study(direction=objective.direction, pruner=Stop())
        with parallel_config("threading"):
            study.optimize(objective, n_trials=1)
        assert study.trials[0].state.name == "PRUNED"
        assert len(study.trials[0].intermediate_values) == 3
        assert 3 <= len(fits) <= most
        assert study.trials[0].user_attrs["treecv"]["n_updates"] == sum(fits)


class Mutating(Counting):
    def fit(self, X, y):
        if hasattr(X, "columns"):
            X["more"] = 1
        else:
            X[0] = 0
        return super().fit(X, y)


def test_estimators_that_change_their_rows_are_refused():
    message = "^estimator must not change the rows passed to it, but Mutating"
    for rows in (X_CLASSES, pd.DataFrame(X_CLASSES)):
        with pytest.raises(ValueError, match=message):
            tree_cross_validate(Mutating(), rows, Y_CLASSES, cv=3)


class Locked(Counting):
    def __init__(self, lock=None):
        self.lock = lock


def test_what_cannot_be_pickled_is_named():
    message = "n_jobs=2 sends the estimator's parameter 'lock' .* to other processes"
    with pytest.raises(ValueError, match=message):
        tree_cross_validate(Unclonable(Lock()), X_CLASSES, Y_CLASSES, cv=3, n_jobs=2)


class Raising(Locked):
    def __sklearn_clone__(self):
        return Raising(self.lock)

    def fit(self, X, y):
        raise TypeError("of the fit")


def test_an_error_of_a_fit_is_not_blamed_on_pickling():
    with parallel_config("threading"), pytest.raises(TypeError, match="^of the fit"):
        tree_cross_validate(Raising(Lock()), X_CLASSES, Y_CLASSES, cv=3, n_jobs=2)


class Unclonable(Locked):
    def __sklearn_clone__(self):
        return Unclonable(self.lock)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:scoring=.*may not be a mean over rows")
def test_workers_get_memory_maps():
    large, y = np.ones((400, 500)), np.arange(400) % 2
    with parallel_config("multiprocessing"):
        result = tree_cross_validate(DummyClassifier(), large, y, cv=3, n_jobs=2, scoring=maps)
    assert np.all(result.test_score == 1)


def maps(estimator, X, y):
    """Tell whether this process has a file of joblib mapped into memory."""
    with open("/proc/self/maps") as lines:
        return float("joblib_memmapping_folder" in lines.read())


@pytest.mark.slow
@pytest.mark.parametrize("kind", [list, np.array, pd.Series])
def test_texts(kind):
    texts = [f"{word} {i % 7}" for i, word in enumerate(["spam ham", "eggs tea"] * 30)]
    y = np.arange(60) % 2
    model = make_pipeline(TfidfVectorizer(), LogisticRegression())
    cv = StratifiedKFold(4)
    found = tree_cross_validate(model, kind(texts), y, cv=cv, scoring="accuracy")
    expected = cross_validate(model, kind(texts), y, cv=cv, scoring="accuracy")
    np.testing.assert_array_equal(found.test_score, expected["test_score"])
    online = make_pipeline(HashingVectorizer(n_features=64), SGDClassifier(max_iter=1, tol=None))
    assert tree_cross_validate(online, kind(texts), y).method == "treecv"
    with pytest.raises(ValueError, match="^X must hold numbers for this estimator, got strings"):
        tree_cross_validate(PegasosClassifier(), kind(texts), y)
    with pytest.raises(ValueError, match="X must have 2 dimensions|2D array"):
        tree_cross_validate(DummyClassifier(), np.arange(60.0), y)


def test_orders_and_repeats_that_change_no_fit_are_refused():
    model, rows = DecisionTreeClassifier(random_state=0), (X_CLASSES[:90], Y_CLASSES[:90])
    with pytest.raises(ValueError, match="^order must be 'fixed' for .* with method='fit', got"):
        tree_cross_validate(model, *rows, order="random")
    # A seed changes no model of these.
    solvers = (
        (LogisticRegression(solver="saga"), "newton"),
        (Ridge(), "exact"),
        (svm.SVC(), "fit"),
    )
    for estimator, cv, method in [
        *((model, cv, "auto") for cv in (TimeSeriesSplit(3), ShuffleSplit(3, random_state=0))),
        *((model, cv, "auto") for cv in ("loo", 90)),  # whose folds are permuted only
        *((make_pipeline(StandardScaler(), solver), KFold(3), name) for solver, name in solvers),
    ]:
        with pytest.raises(ValueError, match="^n_repeats must be 1, got 2: neither"):
            tree_cross_validate(estimator, *rows, cv=cv, n_repeats=2, method=method)
    noise = np.random.default_rng(0).normal(size=(270, 2)), np.repeat([0, 1, 2], 90)
    for cv in (3, KFold(3, shuffle=True), ShuffleSplit(3), 0.2):
        result = tree_cross_validate(model, *noise, cv=cv, n_repeats=2)
        assert len(np.unique(result.test_score)) > 1
    forest = RandomForestClassifier(3)  # without a seed of its own: each repeat has another
    result = tree_cross_validate(forest, X_CLASSES, Y_CLASSES, cv=KFold(3), n_repeats=2)
    assert np.any(result.test_score[:3] != result.test_score[3:])


class OneColumnMore(DummyClassifier):
    """Has two columns of probabilities where it knows one class, as LightGBM has."""

    def predict_proba(self, X):
        probabilities = super().predict_proba(X)
        return probabilities if len(self.classes_) > 1 else np.c_[probabilities, probabilities]


LABELS = ["no", "yes", None, float("nan")]

SINGLE = [(np.arange(20), np.arange(20, 40)), (np.arange(20, 40), np.arange(20))]


@pytest.mark.parametrize(
    ("estimator", "y", "options", "message"),
    [
        (
            DummyClassifier(),
            LABELS * 10,
            {},
            "^y must hold a label for each row, got None in row 2",
        ),
        (DummyClassifier(), None, {}, "^y must be given for a classifier, got None"),
        (DummyRegressor(), None, {}, "^y must be given for a regressor, got None"),
        (
            OneColumnMore(),
            np.repeat([0, 1], 20),
            {"cv": SINGLE, "scoring": "log_loss"},
            "^cv must make training sets with every class of y, got .* class 0: predict_proba of "
            "OneColumn",
        ),
        (
            DummyRegressor(),
            np.linspace(0, 1, 40),
            {"stratify": True, "cv": 3},
            "^stratify must be 'auto' or False if y contains real numbers",
        ),
        (
            DummyClassifier(),
            np.arange(40) % 2,
            {"cv": 5, "groups": np.arange(40) % 3},
            r"^cv.*StratifiedGroupKFold\(5\) (cannot split the rows|tests no row)",
        ),
        (
            DummyClassifier(),
            np.arange(40) % 2,
            {"cv": (np.arange(30), np.arange(30, 40))},
            r"^cv must be .* or of pairs such as \[\(train, test\)\], got entries of different",
        ),
    ],
)
def test_bad_input(estimator, y, options, message):
    with pytest.raises(ValueError, match=message):
        tree_cross_validate(estimator, np.ones((40, 2)), y, method="fit", **options)
    with pytest.raises(ValueError, match="^X cannot be used|^X must"):
        tree_cross_validate(DummyClassifier(), {"a": [1, 2]}, [0, 1])


def test_a_search_over_classifiers_and_regressors_is_refused():
    objective = treecv_objective(
        lambda trial: [DummyClassifier(), DummyRegressor()][trial.number], X_CLASSES, Y_CLASSES
    )
    study = optuna.create_study()
    with pytest.raises(
        ValueError, match="^scoring must be given if the estimators have different"
    ):
        study.optimize(objective, n_trials=2)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_an_error_names_its_fold(n_jobs):
    y = np.repeat([0, 1], 20)
    cv = [(np.arange(10, 30), np.arange(10)), SINGLE[0]]
    said = "1 class|one class|number of classes"
    with parallel_config("threading"), pytest.raises(ValueError, match=said) as caught:
        tree_cross_validate(
            svm.LinearSVC(), np.ones((40, 2)), y, cv=cv, method="fit", n_jobs=n_jobs, shuffle=False
        )
    assert "This happened in fold 1." in caught.value.__notes__


def test_the_first_of_several_random_splits_is_a_hold_out():
    for cv in (ShuffleSplit(3, random_state=0), ShuffleSplit(1, random_state=0)):
        tree = tree_cross_validate(GaussianNB(), X_CLASSES, Y_CLASSES, cv=cv, method="holdout")
        train, test = next(cv.split(X_CLASSES))
        expected = GaussianNB().fit(X_CLASSES[train], Y_CLASSES[train])
        error = 1 - expected.score(X_CLASSES[test], Y_CLASSES[test])
        assert tree.mean == pytest.approx(error, abs=1e-12)
        assert tree.n_updates == len(train)


@dataclass
class Equal(ClassifierMixin, BaseEstimator):
    """A dataclass equals others with the same values, and has no hash."""

    at: float = 0.0

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def partial_fit(self, X, y, classes=None):
        return self if classes is None else self.fit(X, classes)

    def predict(self, X):
        return self.classes_[(X[:, 0] > self.at).astype(int)]


@pytest.mark.parametrize("method", ["auto", "fit", "standard"])
def test_estimators_need_no_hash(method):
    X = X_CLASSES[:, :4]
    for model in (Equal(15.0), make_pipeline(StandardScaler(), Equal(0.1))):
        found = tree_cross_validate(
            model, X, Y_CLASSES, cv=KFold(3), method=method, scoring="accuracy"
        )
        if method == "fit" or isinstance(model, Equal):
            expected = cross_val_score(model, X, Y_CLASSES, cv=KFold(3))
            np.testing.assert_array_equal(found.test_score, expected)
    grid = {"at": [10.0, 15.0]}
    search = TreeCVSearchCV(Equal(), param_grid=grid, cv=KFold(3), method=method)
    expected = GridSearchCV(Equal(), grid, cv=KFold(3)).fit(X, Y_CLASSES)
    search.fit(X, Y_CLASSES)
    for column in ("mean_test_score", "split1_test_score"):
        np.testing.assert_allclose(search.cv_results_[column], expected.cv_results_[column])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["predict", "predict_proba"])
def test_compiled_steps_that_ask_for_writable_rows_are_tested_too(method):
    """``PolynomialFeatures`` asks for writable sparse rows, and writes nothing."""
    rng = np.random.default_rng(0)
    X = sparse.random_array((80, 5), density=0.4, format="csr", random_state=rng)
    y = (X.sum(axis=1) > 1).astype(int)
    model = make_pipeline(PolynomialFeatures(2), LogisticRegression())
    scoring = ["accuracy", "neg_log_loss"]
    result = tree_cross_validate(model, X, y, cv=KFold(4), scoring=scoring, method="fit")
    expected = cross_validate(model, X, y, cv=KFold(4), scoring=scoring)
    for name in scoring:
        np.testing.assert_allclose(result.scores[name].test_score, expected[f"test_{name}"])
    options = {"cv": KFold(4), "method": "fit"}
    assert tree_cross_validate(model, X, y, scoring=pooled("log_loss"), **options).mean > 0
    np.testing.assert_allclose(
        tree_cross_val_predict(model, X, y, response_method=method, **options),
        cross_val_predict(model, X, y, cv=KFold(4), method=method),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(cv=[5, 3], target_type=["auto", "continuous"], kind=["numbers", "classes"])
)
def test_a_target_encoder_draws_its_folds_by_the_seed(kind, target_type, cv):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 20, (120, 2)).astype(str).astype(object)
    y = X[:, 0].astype(float) + rng.normal(size=120)
    inner = KFold if kind == "numbers" or target_type == "continuous" else StratifiedKFold
    if kind == "classes":
        y = (y > 9).astype(int)
    encoder = TargetEncoder(target_type=target_type, cv=cv)
    model = make_pipeline(encoder, Ridge())
    found, again = (
        tree_cross_validate(model, X, y, cv=KFold(4), random_state=1) for _ in range(2)
    )
    np.testing.assert_array_equal(found.test_score, again.test_score)
    seed = draw_seed(1) % 2**32
    encoder = TargetEncoder(target_type=target_type)
    if "deprecated" in (getattr(encoder, "random_state", "deprecated"),):
        encoder.set_params(cv=inner(cv, shuffle=True, random_state=seed))
    else:
        encoder.set_params(cv=cv, random_state=seed)
    expected = cross_validate(
        make_pipeline(encoder, Ridge()), X, y, cv=KFold(4), scoring="neg_mean_squared_error"
    )
    np.testing.assert_allclose(found.test_score, -expected["test_score"], rtol=1e-12)


def test_a_name_of_scikit_learn_does_not_tell_whether_a_seed_acts():
    class SVC(DummyClassifier):
        pass

    X, y = np.zeros((30, 1)), np.arange(30) % 2
    options = {"cv": KFold(3), "shuffle": False, "n_repeats": 2}
    found = tree_cross_validate(SVC(strategy="uniform"), X, y, **options)
    assert len(found.test_score) == 6
