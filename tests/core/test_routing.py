"""Arguments of ``fit`` and scikit-learn's metadata routing, compared with ``cross_validate``."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
import pickle
from threading import Barrier
import warnings

from joblib import parallel_config
import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import BaseEstimator
from sklearn.base import ClassifierMixin
from sklearn.base import clone
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import get_scorer
from sklearn.model_selection import cross_validate
from sklearn.model_selection import KFold
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import ModelCache
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective
from optuna_treecv.core.routing import MetadataArguments

FOLDS = KFold(4, shuffle=True, random_state=0)
SGD = SGDClassifier(random_state=0, max_iter=1, tol=None)


@pytest.fixture
def weights(binary):
    return np.random.default_rng(0).lognormal(0, 1.5, len(binary[1]))


class NeedsExtra(ClassifierMixin, BaseEstimator):
    """Predicts the class of the larger sum of a column that ``fit`` gets."""

    def fit(self, X, y, column, rate=1.0, table=None):
        assert len(column) == len(X)
        assert table is None or len(table) == 2  # has no entry for each row
        self.classes_ = np.unique(y)
        self.shift_ = rate * float(np.mean(column))
        return self

    def decision_function(self, X):
        return X[:, 0] - self.shift_

    def predict(self, X):
        return self.classes_[(self.decision_function(X) > 0).astype(int)]


def test_params_are_cut_as_by_cross_validate(binary):
    X, y = binary
    given = {"column": X[:, 1].tolist(), "rate": 2.0, "table": [0, 1]}
    ours = tree_cross_validate(
        NeedsExtra(), X, y, cv=FOLDS, params=given, scoring="accuracy", shuffle=False
    )
    theirs = cross_validate(NeedsExtra(), X, y, cv=FOLDS, params=given, scoring="accuracy")
    np.testing.assert_array_equal(ours.test_score, theirs["test_score"])


class Counting(DummyClassifier):
    """Changes an object that ``fit`` gets, and predicts at random by it."""

    def fit(self, X, y, calls=None, log=None):
        calls.append(len(y))
        self.set_params(random_state=len(calls))
        return super().fit(X, y)


def test_a_fit_changes_no_argument_of_another(binary):
    X, y = binary
    model = Counting(strategy="uniform")
    calls, log = [], open(__file__)  # noqa: SIM115  # which cannot be copied
    with log:
        given = {"params": {"calls": calls, "log": log}, "cv": FOLDS, "shuffle": False}
        found = tree_cross_validate(model, X, y, **given)
    expected = DummyClassifier(strategy="uniform", random_state=1)
    plain = tree_cross_validate(expected, X, y, cv=FOLDS, shuffle=False)
    np.testing.assert_array_equal(found.test_score, plain.test_score)
    assert calls == []


@pytest.mark.slow
def test_names_tell_arguments_of_fit_apart(binary):
    X, y = binary
    cache = ModelCache()
    options = {"cv": FOLDS, "scoring": "roc_auc"}
    given = [
        {"column": X[:, 1], "rate": 0.0},
        {"column": X[:, 1], "rate": 0.5},
        {"column": X[:, 2], "rate": 0.5},
        {"column": X[:, 2], "rate": 0.5, "table": "ab"},
        {"column": X[:, 2], "rate": 0.5, "table": [(X[:3], y[:3]), (X[:4], y[:4])]},
        {"column": X[:, 2], "rate": 0.5, "table": [(X[:3], y[:3]), (X[:4], y[1:5])]},
    ]
    for params in given:
        for n_updates in (3 * len(y), 0):
            objective = treecv_objective(
                lambda trial: NeedsExtra(), X, y, cache=cache, params=params, **options
            )
            found = objective.evaluate({})
            assert found.n_updates == n_updates
            alone = tree_cross_validate(NeedsExtra(), X, y, params=params, **options)
            np.testing.assert_array_equal(found.test_score, alone.test_score)


def test_arguments_without_a_name_are_not_shared(binary):
    X, y = binary
    cache = ModelCache()
    params = {"column": X[:, 1], "table": [lambda: 0, lambda: 1]}
    options = {"cv": FOLDS, "cache": cache, "params": params}
    for _ in range(2):
        objective = treecv_objective(lambda trial: NeedsExtra(), X, y, **options)
        assert objective.evaluate({}).n_updates == 3 * len(y)
        assert objective.evaluate({}).n_updates == 0


@pytest.mark.nightly
def test_validation_sets_reach_each_fit(binary):
    """An argument that is no array of all rows is passed on as it is, to each fold."""
    lightgbm = pytest.importorskip("lightgbm")
    X, y = binary
    model = lightgbm.LGBMClassifier(n_estimators=5, verbose=-1, min_child_samples=2)
    given = {"eval_set": [(X[:20], y[:20])], "callbacks": [lightgbm.early_stopping(1, verbose=0)]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = cross_validate(
            model, X, y, cv=FOLDS, params=given, scoring="neg_log_loss", error_score="raise"
        )
        ours = tree_cross_validate(
            model, X, y, cv=FOLDS, params=given, scoring="neg_log_loss", shuffle=False
        )
    np.testing.assert_array_equal(ours.test_score, theirs["test_score"])


# With metadata routing.


def requesting(scaler, last):
    pipeline = make_pipeline(StandardScaler(), LogisticRegression())
    pipeline[0].set_fit_request(sample_weight=scaler)
    pipeline[1].set_fit_request(sample_weight=last)
    return pipeline


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scaler", "last", "name"), [(True, False, "sample_weight"), (False, "mine", "mine")]
)
def test_a_pipeline_routes_weights_by_its_requests(scaler, last, name, binary, weights):
    X, y = binary
    with config_context(enable_metadata_routing=True):
        pipeline = requesting(scaler, last)
        scorer = get_scorer("neg_log_loss").set_score_request(sample_weight=False)
        options = {"cv": FOLDS, "scoring": scorer, "params": {name: weights}}
        theirs = cross_validate(pipeline, X, y, **options)["test_score"]
        ours = tree_cross_validate(pipeline, X, y, method="fit", shuffle=False, **options)
        plain = cross_validate(pipeline, X, y, cv=FOLDS, scoring=scorer)["test_score"]
    np.testing.assert_array_equal(ours.test_score, theirs)
    assert np.any(theirs != plain)


@pytest.mark.slow
@pytest.mark.parametrize("asks", [True, False])
def test_scorers_get_the_weights_that_they_request(asks, binary, weights):
    X, y = binary
    with config_context(enable_metadata_routing=True):
        model = LogisticRegression().set_fit_request(sample_weight=True)
        scorers = {
            name: get_scorer(name).set_score_request(sample_weight=asks)
            for name in ("neg_log_loss", "roc_auc")
        }
        given = {"params": {"sample_weight": weights}, "scoring": scorers, "cv": FOLDS}
        theirs = cross_validate(model, X, y, **given)
        given["method"] = "fit"
        ours = tree_cross_validate(model, X, y, shuffle=False, **given)
        for name, score in ours.scores.items():
            np.testing.assert_allclose(score.test_score, theirs[f"test_{name}"], rtol=1e-12)
        scorers["roc_auc"].set_score_request(sample_weight=not asks)
        with pytest.raises(ValueError, match="^all scorers must request the same entries"):
            tree_cross_validate(model, X, y, **given)
        model.set_score_request(sample_weight=asks)  # which decides for losses
        by_loss = tree_cross_validate(
            model, X, y, shuffle=False, **given | {"scoring": "log_loss"}
        )
    np.testing.assert_allclose(by_loss.test_score, -theirs["test_neg_log_loss"], rtol=1e-12)


@pytest.mark.parametrize("model", [SGD, LogisticRegression()], ids=lambda m: type(m).__name__)
def test_an_objective_with_weights_can_be_pickled(model, binary, weights):
    X, y = binary
    params = {"sample_weight": weights}
    if isinstance(model, SGDClassifier):
        params["coef_init"] = 0.5 * np.ones((1, 5))
    grid = {"random_state": [0, 1]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        objective = treecv_objective(
            model, X, y, param_grid=grid, cv=4, params=params, score_weight=weights
        )
    before = objective.evaluate({"random_state": 0}).test_score
    copied = pickle.loads(pickle.dumps(objective))
    for _ in range(2):
        np.testing.assert_array_equal(copied.evaluate({"random_state": 0}).test_score, before)


def test_workers_get_their_part_of_the_weights(binary, weights):
    X, y = binary
    model = make_pipeline(StandardScaler(), LogisticRegression())
    options = {"cv": 4, "scoring": "log_loss", "sample_weight": weights}
    alone = tree_cross_validate(model, X, y, **options)
    with parallel_config("threading"):
        together = tree_cross_validate(model, X, y, n_jobs=2, **options)
    np.testing.assert_array_equal(together.test_score, alone.test_score)


def test_threads_route_as_the_thread_that_made_the_objective(binary, weights):
    """scikit-learn's configuration belongs to a thread, and Optuna's threads have none."""
    X, y = binary
    with config_context(enable_metadata_routing=True):
        objective = treecv_objective(
            lambda trial: requesting(True, True), X, y, cv=4, sample_weight=weights
        )
        here = objective.evaluate({}).test_score
        made = requesting(True, True)
        objective = treecv_objective(lambda trial: clone(made), X, y, cv=4, sample_weight=weights)
    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(objective.evaluate, {}).result().test_score
    np.testing.assert_array_equal(there, here)


def test_routing_is_part_of_the_name_of_fits(binary, weights, tmp_path):
    X, y = binary
    with config_context(enable_metadata_routing=True):
        made = requesting(True, True)
    options = {"cv": 4, "sample_weight": weights, "scoring": "neg_log_loss", "score_weight": None}
    store = f"sqlite:///{tmp_path / 'store.db'}"
    found = []
    for is_routed in (True, False):
        with config_context(enable_metadata_routing=is_routed):
            for kept in (None, store):
                objective = treecv_objective(
                    lambda trial: clone(made), X, y, store=kept, **options
                )
                found.append(objective.evaluate({}).mean)
    assert found[0] == found[1] != found[2] == found[3]


# The tree.


def test_a_tree_that_cannot_use_weights_becomes_fits(binary, weights):
    X, y = binary
    model = PassiveAggressiveLike()
    with pytest.warns(UserWarning, match="^PassiveAggressiveLike is fitted 4 times") as caught:
        result = tree_cross_validate(model, X, y, cv=4, sample_weight=weights, n_epochs=1)
    assert result.method == "fit"
    assert len(caught) == 1
    assert tree_cross_validate(model, X, y, cv=4, n_epochs=1).method == "treecv"


class PassiveAggressiveLike(SGDClassifier):
    """Takes weights in ``fit`` and none in ``partial_fit``."""

    def partial_fit(self, X, y, classes=None):
        return super().partial_fit(X, y, classes)


def test_a_tree_is_left_for_further_arguments(binary):
    X, y = binary
    start = np.zeros((1, 5))
    with pytest.warns(UserWarning, match="partial_fit does not receive the arguments in params"):
        result = tree_cross_validate(SGD, X, y, cv=4, params={"coef_init": start})
    assert result.method == "fit"
    options = {"cv": 4, "method": "fit"}
    again = tree_cross_validate(SGD, X, y, params={"coef_init": start}, **options)
    np.testing.assert_array_equal(again.test_score, result.test_score)


def test_threads_get_the_same_weights(monkeypatch):
    both = Barrier(2)

    def check(*_):
        both.wait(120)
        return np.ones(2)

    monkeypatch.setattr("optuna_treecv.core.routing.check_weights", check)
    arguments = MetadataArguments(None, "same", {"sample_weight": [1, 1]}, 2)
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda model: arguments.metadata_for(model, [None]), [SGD, SGD])
    assert one.equals(other)


def test_a_tree_under_routing_weighs_the_last_step_alone(binary, weights):
    X, y = binary
    plain = make_pipeline(StandardScaler(), SGD)
    options = {"cv": 4, "scoring": "hinge", "score_weight": None}
    expected = tree_cross_validate(plain, X, y, sample_weight=weights, **options)
    assert expected.method == "treecv"
    with config_context(enable_metadata_routing=True):
        of_last = make_pipeline(
            StandardScaler().set_fit_request(sample_weight=False),
            clone(SGD).set_fit_request(sample_weight=True),
        )
        found = tree_cross_validate(of_last, X, y, sample_weight=weights, **options)
        of_both = make_pipeline(
            StandardScaler().set_fit_request(sample_weight=True),
            clone(SGD).set_fit_request(sample_weight=True),
        )
        with pytest.warns(UserWarning, match="passes weights only to the last step of a"):
            fitted = tree_cross_validate(of_both, X, y, sample_weight=weights, **options)
    np.testing.assert_array_equal(found.test_score, expected.test_score)
    assert fitted.method == "fit"


# Bad input.


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1, -1], "sample_weight must hold finite weights of at least 0, got -1.0 in row 1."),
        ([np.nan], "sample_weight must hold finite weights of at least 0, got nan in row 0."),
        (
            [1, 1, np.inf],
            "sample_weight must hold finite weights of at least 0, got inf in row 2.",
        ),
        (0.5, "sample_weight must have the shape (n_rows,), got shape ()."),
        (np.ones((83, 1)), "sample_weight must have the shape (n_rows,), got shape (83, 1)."),
        (
            np.ones(82),
            "sample_weight must have one weight per row: X has 83 rows, sample_weight 82 entries.",
        ),
        (["a"] * 83, "sample_weight must hold numbers: got type <U1."),
        ([None] * 83, "sample_weight must hold finite weights of at least 0, got nan in row 0."),
        ([{}] * 83, "sample_weight must hold numbers: float() argument must be"),
        ([[1], [1, 2]], "sample_weight must hold one weight per row: "),
        (np.zeros(83), "sample_weight must hold a weight above 0, got zero in all rows."),
        (np.full(83, 1e308), "sample_weight must have a finite sum"),
        (np.ones(83) * 1j, "Complex data not supported: sample_weight"),
        (np.ma.ones(83), "sample_weight must not be a masked array"),
    ],
    ids=range(14),
)
@pytest.mark.parametrize("model", [SGD, KNeighborsClassifier()], ids=lambda m: type(m).__name__)
def test_wrong_weights(given, message, model, binary):
    X, y = binary
    if isinstance(given, list) and len(given) < 5 and np.ndim(given[0]) == 0:
        given = given + [1.0] * (len(y) - len(given))
    for call in (tree_cross_validate, tree_cross_val_predict, treecv_objective):
        with pytest.raises(ValueError) as caught:
            call(
                model if call is not treecv_objective else lambda _: model,
                X,
                y,
                sample_weight=given,
            )
        assert str(caught.value).startswith(message)
    with pytest.raises(ValueError) as caught:
        tree_cross_validate(model, X, y, score_weight=given)
    assert str(caught.value).startswith(message.replace("sample_weight", "score_weight"))
    if isinstance(model, SGDClassifier):
        with pytest.raises(ValueError) as caught:
            tree_cross_validate(model, X, y, params={"sample_weight": given})
        named = message.replace("sample_weight", "params['sample_weight']")
        assert str(caught.value).startswith(named)


def in_fold(number, ids):
    weights = np.ones(len(ids))
    weights[ids == number] = 0
    return weights


@pytest.mark.parametrize("method", ["auto", "fit", "standard"])
def test_folds_without_weight(method, binary):
    X, y = binary
    ids = np.arange(len(y)) % 4
    with pytest.raises(
        ValueError,
        match=r"^sample_weight must be above 0 for at least one training row of each fold, but is "
        "0 for all training rows of fold 2; ",
    ):
        tree_cross_validate(
            SGD, X, y, cv=ids, method=method, sample_weight=(ids == 2).astype(float)
        )
    with pytest.raises(
        ValueError, match="^sample_weight must be above 0 for at least one test row .* of fold 3,"
    ):
        tree_cross_validate(SGD, X, y, cv=ids, method=method, sample_weight=in_fold(3, ids))
    with pytest.raises(ValueError, match="^score_weight must be above 0 for at least .* 1,"):
        tree_cross_validate(SGD, X, y, cv=ids, method=method, score_weight=in_fold(1, ids))
    tree_cross_validate(
        SGD, X, y, cv=ids, method=method, sample_weight=in_fold(3, ids), score_weight=None
    )
    tree_cross_val_predict(SGD, X, y, cv=ids, method=method, sample_weight=in_fold(3, ids))
    chain = [(np.arange(20), np.arange(20, 30)), (np.arange(40), np.arange(50, 60))]
    late = (np.arange(len(y)) >= 20).astype(float)
    with pytest.raises(ValueError, match="for at least one training row .* of fold 0;"):
        tree_cross_validate(SGD, X, y, cv=chain, method=method, sample_weight=late)


NEIGHBORS, PIPELINE = KNeighborsClassifier(), make_pipeline(StandardScaler(), LogisticRegression())
NO_WEIGHTS = "sample_weight must be None for {}, because {} of {} takes no sample_weight"
OF_FIT = NO_WEIGHTS.format("{}", "fit", "KNeighborsClassifier")
OF_PARTIAL_FIT = NO_WEIGHTS.format("PassiveAggressiveLike", "partial_fit", "PassiveAggressiveLike")
NO_STEP = (
    "params must have keys such as 'step__argument', with a step of the Pipeline and an argument "
    "of its fit, got "
)
START = {"coef_init": np.zeros((1, 5))}


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        (NEIGHBORS, {}, OF_FIT.format("KNeighborsClassifier") + "."),
        (make_pipeline(StandardScaler(), NEIGHBORS), {}, OF_FIT.format("Pipeline") + "."),
        (
            *(PassiveAggressiveLike(), {"method": "treecv"}),
            f"{OF_PARTIAL_FIT}; use method='fit' instead.",
        ),
        (PassiveAggressiveLike(), {"method": "standard"}, OF_PARTIAL_FIT),
        (
            *(SGD, {"method": "treecv", "params": START}),
            "params must be None for SGDClassifier, because partial_fit does not receive the "
            "arguments in params ('coef_init'); use method='fit' instead.",
        ),
        (
            *(LogisticRegression(), {"params": {"sample_weights": 1}}),
            "params must contain only arguments of the fit of LogisticRegression, got "
            "'sample_weights'.",
        ),
        (
            *(PIPELINE, {"params": {"sample_weight": 1}}),
            f"{NO_STEP}'sample_weight'; use, for example, 'logisticregression__sample_weight' ",
        ),
        (PIPELINE, {"params": {"pca__sample_weight": 1}}, NO_STEP),
        (LogisticRegression(), {"params": [1]}, "params must be None or a dict of arguments of"),
        (SGD, {"params": {1: 2}}, "params must have names of arguments as keys, got [1]."),
        (SGD, {"score_weight": "other"}, "score_weight must be 'same', None or one weight per"),
        (
            *(SGD, {"params": {"sample_weight": np.ones(83)}}),
            "sample_weight must be None if params['sample_weight'] gives the weights, because ",
        ),
    ],
    ids=range(12),
)
def test_what_an_estimator_does_not_take(model, given, message, binary, weights):
    X, y = binary
    by_params = "params" in given and "given twice" not in message and "gives" not in message
    options = given if by_params else {"sample_weight": weights} | given
    for call in (
        tree_cross_validate,
        lambda model, *rest, **o: treecv_objective(
            model, *rest, param_grid={next(iter(model.get_params())): [1]}, **o
        ),
    ):
        if call is not tree_cross_validate and isinstance(model, PassiveAggressiveLike):
            continue
        with pytest.raises(ValueError) as caught:
            call(model, X, y, cv=4, **options)
        assert str(caught.value).startswith(message)


def own(estimator, rows, labels):
    return 0.0


def test_scorers_that_take_no_weights(regression, binary, weights):
    X, y = regression
    with pytest.raises(ValueError, match="^score_weight must be None with scoring='neg_max_e"):
        tree_cross_validate(
            Ridge(), X, y, scoring="neg_max_error", sample_weight=weights[: len(y)]
        )
    X, y = binary
    for scoring in (own, {"mine": own}):
        with pytest.raises(
            ValueError, match="^score_weight must be None with scoring='own', which"
        ):
            tree_cross_validate(SGD, X, y, scoring=scoring, score_weight=weights)


def test_requests_that_are_missing(binary, weights):
    X, y = binary
    with config_context(enable_metadata_routing=True):
        unset = requesting(None, None)
        for options in ({"sample_weight": weights}, {"params": {"sample_weight": weights}}):
            with pytest.raises(
                ValueError, match=r"^sample_weight cannot be routed: \[sample_weight\] are passed"
            ):
                tree_cross_validate(unset, X, y, **options)
        with pytest.raises(ValueError, match="^params cannot be routed: .*'foo'"):
            tree_cross_validate(LogisticRegression(), X, y, params={"foo": 1})
        model = LogisticRegression().set_fit_request(sample_weight=True)
        scorer = get_scorer("accuracy").set_score_request(sample_weight=True)
        given = {"params": {"sample_weight": weights}, "scoring": scorer}
        with pytest.raises(ValueError, match="^score_weight must be None if params gives"):
            tree_cross_validate(model, X, y, score_weight=weights, **given)
        with pytest.raises(ValueError, match="^sample_weight must be None if params gives"):
            tree_cross_validate(model, X, y, sample_weight=weights, **given)
        tree_cross_validate(model, X, y, score_weight=None, **given)
        model.set_score_request(sample_weight=True)
        predicted = tree_cross_val_predict(model, X, y, params={"sample_weight": weights})
    expected = tree_cross_val_predict(model, X, y, sample_weight=weights)
    np.testing.assert_array_equal(predicted, expected)


def test_estimators_of_one_evaluation_get_the_same(binary, weights):
    X, y = binary
    with config_context(enable_metadata_routing=True):
        one, other = LogisticRegression(C=1), LogisticRegression(C=2)
        one.set_fit_request(sample_weight=True), other.set_fit_request(sample_weight=False)
        one.set_score_request(sample_weight=False), other.set_score_request(sample_weight=True)
        with pytest.raises(ValueError, match="^all estimators must request the same params"):
            tree_cross_validate_many([one, other], X, y, params={"sample_weight": weights})


@pytest.mark.slow
def test_weights_that_act_in_no_score(binary, weights):
    X, y = binary
    with pytest.warns(UserWarning, match="^sample_weight has no effect on scores") as caught:
        weighted = tree_cross_validate(GaussianNB(), X, y, cv="loo", sample_weight=weights)
    assert len(caught) == 1
    silent = tree_cross_validate(
        GaussianNB(), X, y, cv="loo", sample_weight=weights, score_weight=None
    )
    np.testing.assert_array_equal(weighted.test_score, silent.test_score)
    with pytest.warns(UserWarning, match="^score_weight has no effect on scores"):
        tree_cross_validate(GaussianNB(), X, y, cv=KFold(len(y)), score_weight=weights)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tree_cross_validate(GaussianNB(), X, y, cv="loo", sample_weight=np.full(len(y), 2))
        tree_cross_val_predict(GaussianNB(), X, y, cv="loo", sample_weight=weights)
