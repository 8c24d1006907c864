"""Training for several epochs: replays among the new rows of each phase."""

from __future__ import annotations

from itertools import permutations
from itertools import product

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from ids import said
import numpy as np
import optuna
from pairs import pairs
import pytest
import reference
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.base import ClassifierMixin
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.base import is_regressor
from sklearn.compose import make_column_transformer
from sklearn.linear_model import Ridge
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import GroupKFold
from sklearn.model_selection import KFold
from sklearn.model_selection import PredefinedSplit
from sklearn.model_selection import ShuffleSplit
from sklearn.model_selection import StratifiedKFold
from sklearn.model_selection import TimeSeriesSplit
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils import get_tags
from spread import spread
from studies import searched

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import HistTreeClassifier
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import StreamingSVRGRegressor
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective
from optuna_treecv import TreeCVSearchCV
from optuna_treecv._kernels.order import order_with_replays
from optuna_treecv.engines.treecv.walk import walk_to_leaves
from optuna_treecv.paper import LSQSGDRegressor
from optuna_treecv.paper import StreamingGaussianDensity
from optuna_treecv.paper import StreamingKMeans
from optuna_treecv.rows.data import Data
from optuna_treecv.rows.partition import Node
from optuna_treecv.rows.partition import Partition

COMPILED = [
    PegasosClassifier(alpha=0.01),
    PegasosClassifier(alpha=0.01, average=True, project=True),
    AveragedSGDClassifier(),
    AveragedSGDClassifier(loss="log_loss", average_start=70, batch_size=3),
    StreamingSVRGClassifier(initial_batch_size=5),
    StreamingSVRGClassifier(initial_batch_size=5, inner_steps=9),
    AveragedSGDRegressor(),
    LSQSGDRegressor(),
    StreamingSVRGRegressor(initial_batch_size=5),
]
FOR_SPARSE_ROWS = [one for one in COMPILED if get_tags(one).input_tags.sparse]
INCREMENTAL = [
    SGDClassifier(max_iter=1, tol=None),
    make_pipeline(StandardScaler(), SGDClassifier(max_iter=1, tol=None)),
    make_pipeline(StandardScaler(), PegasosClassifier(alpha=0.01)),
    MLPClassifier((4,), max_iter=1),
]


def response_of(estimator):
    if is_regressor(estimator):
        return "predict"
    has_decision = hasattr(estimator, "decision_function")
    return "decision_function" if has_decision else "predict_proba"


@pytest.mark.slow
@given(st.data())
@settings(max_examples=40)
def test_the_order_is_that_of_the_twin(data):
    n_rows = data.draw(st.integers(2, 60) | st.integers(505, 600))
    cuts = sorted(data.draw(st.lists(st.integers(0, n_rows), min_size=3, max_size=3)))
    start, middle, stop = cuts
    new, held = (range(start, middle), range(middle, stop))
    if data.draw(st.booleans()):
        new, held = held, new
    seed, n_seen = data.draw(st.integers(0, 2**64 - 1)), data.draw(st.integers(0, 2**40))
    random, c = data.draw(st.booleans()), data.draw(st.integers(1, 70))
    rows = np.empty(c * len(new), np.uint32)
    begin, end = (new.start, new.stop), (held.start, held.stop)
    order_with_replays(seed, *begin, n_seen, random, *end, n_rows, c, rows)
    twin = reference.order_with_replays(seed, *begin, n_seen, random, held, n_rows, c)
    assert rows.tolist() == twin


@pytest.mark.slow
@given(st.data())
@settings(max_examples=40)
def test_phases_hold_new_rows_once_and_replays_of_rows_that_may_be_seen(data):
    n_rows = data.draw(st.integers(2, 50) | st.integers(510, 590))
    bounds = data.draw(st.lists(st.integers(0, n_rows - 1), min_size=1, max_size=8, unique=True))
    n_epochs, random = data.draw(st.integers(2, 9)), data.draw(st.booleans())
    bounds = np.array([*sorted(bounds), n_rows])
    plan = Partition(n_rows, len(bounds) - 1, bounds, random, 7, n_epochs)
    phases = [(plan.first_phase, plan.root)]
    nodes = [plan.root]
    while nodes:
        node = nodes.pop()
        if node.n_folds > 1:
            children = plan.split(node)
            phases += [(plan.phase(node, child), child) for child in children]
            nodes += children
    for phase, child in phases:
        start, stop = plan.rows(child)
        rows = phase.rows
        assert len(rows) == phase.n_updates == n_epochs * phase.n_rows
        assert not np.any((rows >= start) & (rows < stop))
        new = rows[::n_epochs].tolist()
        assert sorted(new) == list(range(phase.start, phase.stop))
        assert random or new == sorted(new)
        replays = np.delete(rows, np.s_[::n_epochs])
        n_open = n_rows - (stop - start)
        n_of_pass = n_open if random or n_open < 512 else n_open - n_open % 8
        for begin in range(0, len(replays), max(1, n_of_pass)):
            sample = replays[begin : begin + n_of_pass]
            assert len(np.unique(sample)) == len(sample)


def test_replays_of_many_rows_are_runs_of_neighbours():
    n_rows, held, c = 1000, range(300, 400), 5
    rows = np.empty(200 * c, np.uint32)
    order_with_replays(1, 0, 200, 0, False, held.start, held.stop, n_rows, c, rows)
    replays = np.delete(rows, np.s_[::c]).astype(int)
    places = np.where(replays < 300, replays, replays - 100).reshape(-1, 8)
    np.testing.assert_array_equal((places - places[:, :1]) % 900, [range(8)] * 100)
    assert len(np.unique(places[:, 0] % 8)) > 1  # around the end, 900 is no multiple of 8
    assert np.count_nonzero(np.diff(places[:, 0]) == 8) < 5
    order_with_replays(1, 0, 200, 0, True, held.start, held.stop, n_rows, c, rows)
    assert np.count_nonzero(np.diff(np.delete(rows, np.s_[::c]).astype(int)) == 1) < 20


@pytest.mark.parametrize(
    ("n_rows", "held", "new", "n_epochs", "n_draws", "quantile"),
    [
        (23, (5, 11), (11, 13), 3, 4000, 40),  # 16 degrees of freedom
        (700, (100, 150), (200, 209), 2, 4000, 767),  # 649: from within a run, and behind it
    ],
)
def test_each_row_is_equally_likely_to_be_replayed(n_rows, held, new, n_epochs, n_draws, quantile):
    """The sum of squares exceeds the quantile once in a thousand times."""
    counts = np.zeros(n_rows)
    n_new = new[1] - new[0]
    rows = np.empty(n_epochs * n_new, np.uint32)
    for seed in range(n_draws):
        order_with_replays(seed, *new, 17, False, *held, n_rows, n_epochs, rows)
        replays = np.delete(rows, np.s_[::n_epochs])
        counts[replays if n_rows < 512 else replays[seed % n_new]] += 1
    assert not counts[slice(*held)].any()
    seen = np.delete(counts, np.s_[slice(*held)])
    expected = seen.mean()
    assert ((seen - expected) ** 2 / expected).sum() < quantile


def test_the_order_refuses_rows_that_are_held_out():
    rows = np.empty(20, np.uint32)
    with pytest.raises(ValueError, match="must not be among those held out"):
        order_with_replays(0, 0, 5, 0, False, 4, 8, 10, 4, rows)


def outputs_of_walks(estimator, X, y, plan):
    """Return the outputs of the compiled walk, of that in Python, and of the twin's orders."""
    n_rows = X.shape[0]
    rows = Data(X, y).prepare(estimator.row_layout, np.arange(n_rows, dtype=np.uint32))
    learner = estimator.make_learner(rows, 0)
    found = [np.empty((n_rows, learner.n_outputs)) for _ in range(3)]
    n_updates = learner.walk_subtree(plan, plan.root, learner.start(), found[0])

    def test_leaf(node, state):
        learner.outputs(state, *plan.rows(node), found[1])

    assert n_updates == walk_to_leaves(plan, learner, test_leaf, plan.root, learner.start())

    def walk(node, state):
        if node.n_folds == 1:
            learner.outputs(state, *plan.rows(node), found[2])
            return
        start, stop = plan.rows(node)
        for child in plan.split(node):
            held = range(*plan.rows(child))
            new = [row for row in range(start, stop) if row not in held]
            order = reference.order_with_replays(
                plan.seed,
                new[0],
                new[-1] + 1,
                n_rows - (stop - start),
                plan.random,
                held,
                n_rows,
                plan.n_epochs,
            )
            own = learner.snapshot(state)
            learner.update(own, np.array(order, np.uint32))
            walk(child, own)

    walk(plan.root, learner.start())
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(
        n_folds=[2, 7, 60],
        random=[False, True],
        estimator=COMPILED,
        is_sparse=[False, True],
        where=lambda estimator, is_sparse, **_: not is_sparse or estimator in FOR_SPARSE_ROWS,
    ),
    ids=said,
)
def test_the_compiled_walk_is_that_over_rows_one_by_one(
    estimator, is_sparse, random, n_folds, make_data
):
    X, y = make_data(60, 4)
    X = sparse.csr_matrix(X * (X > 0)) if is_sparse else X
    y = y.astype(float) if is_regressor(estimator) else y
    plan = Partition(60, n_folds, None, random, 99, 4)
    ours, theirs, by_twin = outputs_of_walks(estimator, X, y, plan)
    assert np.array_equal(ours, theirs)
    assert np.array_equal(ours, by_twin)


@pytest.mark.slow
@pytest.mark.parametrize(
    *spread(estimator=FOR_SPARSE_ROWS, random=[False, True], n_folds=[5, 60]), ids=said
)
def test_phases_on_wide_rows_are_undone(estimator, random, n_folds):
    common, rare = (sparse.random(60, d, 4 / d, random_state=0) for d in (40, 20_000))
    X = sparse.hstack([common, rare], "csr")
    y = np.random.default_rng(0).integers(2, size=60)
    y = y.astype(float) if is_regressor(estimator) else y
    ours, theirs, by_twin = outputs_of_walks(
        estimator, X, y, Partition(60, n_folds, None, random, 99, 3)
    )
    assert np.any(ours)
    assert np.array_equal(ours, theirs)
    assert np.array_equal(ours, by_twin)
    parameter = "step_size" if isinstance(estimator, LSQSGDRegressor) else "alpha"
    models = [clone(estimator).set_params(**{parameter: v}) for v in (1e-4, 1e-3, 3e-3, 1e-2)]
    options = {"cv": n_folds, "n_epochs": 3, "stratify": False}
    for model, result in zip(
        models, tree_cross_validate_many(models, X, y, **options), strict=True
    ):
        alone = tree_cross_validate(model, X, y, **options)
        assert np.array_equal(result.test_score, alone.test_score)


SPLITS = [3, 8, "loo", KFold(4), StratifiedKFold(3, shuffle=True), GroupKFold(5)]
SPLITS += [TimeSeriesSplit(4), 0.3, np.arange(60) % 7 - 1]
# Each compiled learner goes each way, over other splits. Learners in Python have one walk, and
# leave-one-out takes long there.
WAYS = list(product(["fixed", "random"], ["treecv", "standard"]))
COMPILED_WALKS = [
    (COMPILED[(5 * i + j) % len(COMPILED)], cv, *way)
    for i, cv in enumerate(SPLITS)
    for j, way in enumerate(WAYS)
]
NOT_LOO = [cv for cv in SPLITS if not isinstance(cv, str)]
IN_PYTHON = [
    (estimator, NOT_LOO[(3 * i + j) % len(NOT_LOO)], *way)
    for i, estimator in enumerate(INCREMENTAL)
    for j, way in enumerate(WAYS)
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "cv", "order", "method"), [*COMPILED_WALKS, *IN_PYTHON], ids=said
)
def test_no_label_of_a_fold_reaches_its_own_model(estimator, cv, order, method, make_data):
    X, y = make_data(60, 4)
    y = y.astype(float) if is_regressor(estimator) else y
    groups = np.repeat(np.arange(20), 3) if isinstance(cv, GroupKFold) else None
    if isinstance(cv, StratifiedKFold):  # fixed now, because labels change below
        cv = PredefinedSplit(_fold_of(cv, X, y))
    found = []

    def responses(estimator, X, y):
        found[-1].append((X, getattr(estimator, response_of(estimator))(X)))
        return 0.0

    options = {"cv": cv, "groups": groups, "order": order, "method": method, "stratify": False}
    options |= {"n_epochs": 3, "scoring": responses, "shuffle": False}

    def evaluate(y):
        found.append([])
        tree_cross_validate(estimator, X, y, **options)
        return found[-1]

    before = evaluate(y)
    numbers = {row.tobytes(): number for number, row in enumerate(X)}
    moved = 0
    for i in {0, len(before) // 2, len(before) - 1}:
        tested = [numbers[row.tobytes()] for row in before[i][0]]
        changed = y.copy()
        changed[tested] = 1 - y[tested]
        after = evaluate(changed)
        assert np.array_equal(before[i][1], after[i][1])
        moved += sum(not np.array_equal(a[1], b[1]) for a, b in zip(before, after, strict=True))
    assert moved or isinstance(cv, float)  # a hold-out has no other model


def _fold_of(cv, X, y):
    fold = np.empty(len(y), int)
    for number, (_, test) in enumerate(cv.split(X, y)):
        fold[test] = number
    return fold


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "order"),
    [(one, ["fixed", "random"][number % 2]) for number, one in enumerate(COMPILED)],
    ids=said,
)
def test_threads_lanes_and_caches_change_no_bit(estimator, order, make_data):
    X, y = make_data(83, 5)
    y = y.astype(float) if is_regressor(estimator) else y
    options = {"cv": 9, "order": order, "n_epochs": 4, "stratify": False}
    parameter = next(one for one in ("alpha", "step_size") if one in estimator.get_params())
    values = [0.001, 0.003, 0.01, 0.1, 0.3]
    models = [clone(estimator).set_params(**{parameter: value}) for value in values]
    alone = [tree_cross_validate(model, X, y, **options).test_score for model in models]
    threads = [tree_cross_validate(model, X, y, n_jobs=3, **options) for model in models]
    many = tree_cross_validate_many(models, X, y, **options)
    space = {parameter: optuna.distributions.FloatDistribution(0.001, 0.3)}
    shared = treecv_objective(estimator, X, y, param_distributions=space, **options)
    results = [shared.evaluate({parameter: value}) for value in values]
    for one, *others in zip(alone, threads, many, results, strict=True):
        for other in others:
            assert np.array_equal(one, other.test_score)
    assert "Models are trained for 4 epochs." in shared.explain({parameter: values[0]})
    again = shared.evaluate({parameter: values[3]})
    assert again.n_updates == 0
    assert np.array_equal(again.test_score, alone[3])


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [PegasosClassifier(), AveragedSGDClassifier()], ids=said)
def test_one_objective_shares_right_in_any_order_of_trials(estimator, binary):
    X, y = binary
    points = [{"n_epochs": c, "alpha": alpha} for c in (1, 4) for alpha in (0.001, 0.01, 0.1)]
    alone = [tree_cross_validate(clone(estimator).set_params(**point), X, y) for point in points]
    space = {
        "n_epochs": optuna.distributions.IntDistribution(1, 9),
        "alpha": optuna.distributions.FloatDistribution(0.001, 0.1),
    }
    for some in list(permutations(range(6), 3))[::7]:
        objective = treecv_objective(estimator, X, y, param_distributions=space)
        for number in some:
            found = objective.evaluate(points[number]).test_score
            assert np.array_equal(found, alone[number].test_score)


@pytest.mark.parametrize("estimator", [*COMPILED, StreamingKMeans(3)], ids=said)
def test_fit_makes_as_many_passes(estimator, make_data):
    X, y = make_data(60, 4)
    y = y.astype(float) if is_regressor(estimator) else y
    more = {"classes": [0, 1]} if is_classifier(estimator) else {}
    three = clone(estimator).set_params(n_epochs=3, shuffle=False, random_state=0).fit(X, y)
    passes = clone(estimator).set_params(n_epochs=3, shuffle=False, random_state=0)
    for _ in range(3):
        passes.partial_fit(X, y, **more)
    assert three.t_ == passes.t_ == 180
    assert np.array_equal(three._state, passes._state)


def test_each_epoch_of_fit_has_its_own_order(binary):
    X, y = binary
    seed = np.random.RandomState(5).randint(np.iinfo(np.int32).max)
    model = PegasosClassifier(n_epochs=3, random_state=5).fit(X, y)
    by_hand = PegasosClassifier(shuffle=False)
    for epoch in range(3):
        order = reference.random_order(seed, 0, len(y), epoch * len(y))
        by_hand.partial_fit(X[order], y[order], classes=[0, 1])
    assert np.array_equal(model.coef_, by_hand.coef_)


def test_the_standard_method_makes_shuffled_epochs(binary):
    X, y = binary
    found = []

    def keep(model, X, y):
        found.append(model.coef_.copy())
        return 0.0

    options = {"cv": KFold(4), "shuffle": False, "method": "standard"}
    tree_cross_validate(PegasosClassifier(), X, y, n_epochs=3, scoring=keep, **options)
    orders = []
    for fold, (train, _) in enumerate(KFold(4).split(X)):
        plan = Partition(len(y), 4, np.array([0, 21, 42, 63, 83]), False, 1, 3)
        epochs = [plan.rest(Node(fold, fold + 1), epoch) for epoch in range(3)]
        assert np.array_equal(epochs[0], train)
        assert all(np.array_equal(np.sort(one), train) for one in epochs)
        assert not np.array_equal(epochs[1], epochs[2])
        orders += epochs[1:]
    assert len({order.tobytes() for order in orders}) == 8
    one_pass = PegasosClassifier(shuffle=False).fit(X[21:], y[21:])
    assert not np.array_equal(found[0], one_pass.coef_)


class Recorder(ClassifierMixin, BaseEstimator):
    """Notes the rows of each call of partial_fit."""

    def partial_fit(self, X, y, classes=None):
        if classes is not None:
            self.classes_, self.calls_ = classes, []
        self.calls_.append(X[:, 0].astype(int).tolist())
        return self

    def predict(self, X):
        return np.zeros(len(X), int)


def test_partial_fit_is_called_once_per_epoch():
    X, y = np.arange(24.0)[:, None], np.arange(24) % 2
    calls = []

    def keep(model, X, y):
        calls.append((X[:, 0].astype(int).tolist(), model.calls_))
        return 0.0

    tree_cross_validate(Recorder(), X, y, cv=4, n_epochs=3, scoring=keep, stratify=False)
    for tested, of_model in calls:
        assert [len(one) for one in of_model] == [12, 12, 12, 6, 6, 6]
        new = [*of_model[0], *of_model[3]]
        assert sorted(new) == sorted(set(range(24)) - set(tested))
        assert not set(sum(of_model, [])) & set(tested)
        assert set(of_model[1]) == set(of_model[2]) == set(of_model[0])  # there are no other rows
        assert len(set(of_model[4] + of_model[5])) == 12  # no row twice


def one_hot_and_scaled(learner):
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    return make_pipeline(
        make_column_transformer((encoder, [0]), remainder=StandardScaler()), learner
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pipeline", "scaler"),
    [
        (make_pipeline(StandardScaler(), PegasosClassifier()), lambda model: model[0]),
        (make_pipeline(StandardScaler(), INCREMENTAL[0]), lambda model: model[0]),
        (one_hot_and_scaled(INCREMENTAL[0]), lambda model: model[0].named_transformers_.remainder),
    ],
    ids=["compiled", "incremental", "in part fitted once"],
)
@pytest.mark.parametrize("method", ["treecv", "standard"])
def test_scalers_count_each_row_once(pipeline, scaler, method, binary):
    X, y = binary
    X[:, 0] = np.arange(len(X)) % 3
    found = []

    def keep(model, X, y):
        fitted = scaler(model)
        found.append((X, fitted.mean_, fitted.n_samples_seen_, model[-1].coef_))
        return 0.0

    options = {"cv": 5, "scoring": keep, "method": method, "shuffle": False}
    for n_epochs in (4, 1):
        tree_cross_validate(pipeline, X, y, n_epochs=n_epochs, **options)
    for several, once in zip(found[:5], found[5:], strict=True):
        held, mean, n_seen, _ = several
        assert n_seen == len(X) - len(held)
        total = (X.sum(axis=0) - held.sum(axis=0))[-len(mean) :]
        np.testing.assert_allclose(mean, total / n_seen)
        assert np.any(several[3] != once[3])


@pytest.mark.slow
def test_an_estimator_inside_of_another_one_has_its_epochs(three_classes):
    X, y = three_classes
    inside = tree_cross_validate(OneVsRestClassifier(PegasosClassifier(n_epochs=4)), X, y, cv=5)
    asked = tree_cross_validate(OneVsRestClassifier(PegasosClassifier()), X, y, cv=5, n_epochs=4)
    assert inside.n_updates == asked.n_updates
    assert np.array_equal(inside.test_score, asked.test_score)


def test_epochs_can_be_searched(binary):
    X, y = binary
    space = {"n_epochs": optuna.distributions.CategoricalDistribution([1, 3, 5])}
    objective = treecv_objective(PegasosClassifier(0.01), X, y, param_distributions=space)
    for c in (1, 3, 5):
        alone = tree_cross_validate(PegasosClassifier(0.01), X, y, n_epochs=c)
        assert np.array_equal(objective.evaluate({"n_epochs": c}).test_score, alone.test_score)
    grid = {"n_epochs": [1, 4], "alpha": [0.001, 0.01, 0.1]}
    objective, study = searched(PegasosClassifier(), (X, y), grid)
    assert len(study.trials) == 6
    for trial in study.trials:
        alone = tree_cross_validate(PegasosClassifier(**trial.params), X, y)
        assert trial.value == alone.mean


def test_the_refitted_model_has_as_many_passes(binary):
    X, y = binary
    search = TreeCVSearchCV(
        AveragedSGDClassifier(), {"alpha": [0.01]}, n_trials=1, n_epochs=3, random_state=0
    )
    assert search.fit(X, y).best_estimator_.t_ == 3 * len(y)
    search = TreeCVSearchCV(
        make_pipeline(StandardScaler(), SGDClassifier(max_iter=1, tol=None)),
        {"sgdclassifier__alpha": [0.01]},
        n_trials=1,
        n_epochs=3,
        random_state=0,
    )
    best = search.fit(X, y).best_estimator_
    assert best[0].n_samples_seen_ == len(y)
    assert best[1].t_ == 3 * len(y) + 1


def test_river_models(binary):
    linear_model = pytest.importorskip("river.linear_model")
    X, y = binary
    result = tree_cross_validate(linear_model.LogisticRegression(), X, y, cv=4, n_epochs=3)
    once = tree_cross_validate(linear_model.LogisticRegression(), X, y, cv=4)
    assert result.n_updates == 3 * once.n_updates
    assert result.mean != once.mean


@pytest.mark.parametrize("n_epochs", [0, -1, 2.5, "2", True, 10**9])
def test_epochs_are_a_positive_integer(n_epochs, binary):
    with pytest.raises(ValueError, match=r"n_epochs must be an integer from 1 to 10000, got"):
        tree_cross_validate(PegasosClassifier(), *binary, n_epochs=n_epochs)
    if n_epochs is not True:  # scikit-learn takes it for 1
        with pytest.raises(ValueError, match="n_epochs"):
            tree_cross_validate(PegasosClassifier(n_epochs=n_epochs), *binary)
    if n_epochs in (0, 2.5):
        with pytest.raises(ValueError, match="The 'n_epochs' parameter of PegasosClassifier"):
            PegasosClassifier(n_epochs=n_epochs).fit(*binary)


@pytest.mark.parametrize(
    ("estimator", "options", "message"),
    [
        (
            PegasosClassifier(n_epochs=2),
            {},
            "n_epochs must be given either to the evaluation or to the estimator, got n_epochs=3",
        ),
        (
            make_pipeline(StandardScaler(), PegasosClassifier(n_epochs=2)),
            {},
            "n_epochs must be given either",
        ),
        (PegasosClassifier(), {"method": "fit"}, "with method='fit', got 3: the estimator's own"),
        (DecisionTreeClassifier(), {}, "with method='fit'"),
        (Ridge(), {}, "with method='exact', got 3: its models are computed from sums"),
        (HistTreeClassifier(), {}, "with method='forest', got 3: its trees"),
        (PegasosClassifier(), {"method": "progressive"}, "with method='progressive', got 3:"),
        (PegasosClassifier(), {"cv": ShuffleSplit(3, test_size=0.5)}, "with method='fit'"),
    ],
    ids=said,
)
@pytest.mark.filterwarnings("ignore:.*is fitted 3 times")
def test_epochs_are_refused_where_they_make_no_sense(estimator, options, message, binary):
    X, y = binary
    with pytest.raises(ValueError, match="n_epochs must be") as error:
        tree_cross_validate(estimator, X, y, n_epochs=3, **options)
    assert message in str(error.value)


def test_other_refusals(binary):
    X, y = binary
    with pytest.raises(ValueError, match="n_epochs must be 1 for StreamingGaussianDensity"):
        tree_cross_validate(StreamingGaussianDensity(), X, n_epochs=2, method="treecv")
    for report in ("progressive", "blocks"):
        with pytest.raises(ValueError, match="report must be 'folds', 'mean' or None with"):
            treecv_objective(
                PegasosClassifier(),
                X,
                y,
                param_distributions={"alpha": optuna.distributions.FloatDistribution(0.1, 0.2)},
                report=report,
                n_epochs=2,
            )
    space = {"n_epochs": optuna.distributions.IntDistribution(1, 9)}
    with pytest.raises(ValueError, match="n_epochs must be None if n_epochs is searched, got 2"):
        treecv_objective(PegasosClassifier(), X, y, param_distributions=space, n_epochs=2)
    assert tree_cross_validate(PegasosClassifier(n_epochs=4), X, y, method="fit").mean < 0.5
    assert tree_cross_validate(StreamingKMeans(2), X, n_epochs=3).n_updates > 0
