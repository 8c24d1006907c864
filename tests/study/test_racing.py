"""Races: losers are pruned early, by rows or folds that the best trial was tested on too."""

from __future__ import annotations

from math import log
from math import sqrt
import pickle
import warnings

from early_scores import evaluation_of
import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from pairs import pairs
import pytest
from sklearn.tree import DecisionTreeClassifier
from small_data import data_of
from studies import searched

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv import RacingPruner
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import treecv_objective
from optuna_treecv.core.engine import RowProgress
from optuna_treecv.core.engine import Watch
from optuna_treecv.core.row_scores import spine_steps
from optuna_treecv.crossval.evaluate import run_for
from optuna_treecv.engines.treecv.engine import EarlyLanes
from optuna_treecv.engines.treecv.leaves import Leaves
from optuna_treecv.engines.treecv.trained import Training
from optuna_treecv.study.race import compared
from optuna_treecv.study.race import differences_of
from optuna_treecv.study.race import RaceLosses
from optuna_treecv.study.race import sums_of
from optuna_treecv.study.racing import loses

ALPHA = {"alpha": FloatDistribution(1e-7, 1e3, log=True)}
DEPTH = {"max_depth": IntDistribution(1, 12), "min_samples_leaf": IntDistribution(1, 200)}


def raced(estimator, data, space, n_trials=None, *, study=None, **options):
    """Return an objective and a study that was run with it and a RacingPruner."""
    study = {"pruner": RacingPruner()} | (study or {})
    return searched(estimator, data, space, n_trials, study=study, **options)


def n_updates(study):
    return sum(trial.user_attrs["treecv"]["n_updates"] for trial in study.trials)


def pruned(study):
    return [trial.number for trial in study.trials if trial.state == TrialState.PRUNED]


# The decision.


def test_bernsteins_bound():
    # Maurer & Pontil (2009), theorem 4, by hand.
    rng = np.random.default_rng(0)
    differences = rng.choice([-1.0, 0.0, 1.0], 500, p=[0.1, 0.6, 0.3])
    pruner = RacingPruner(delta=0.1)
    exponent = log(2 * 15 / 0.1)
    bound = sqrt(2 * differences.var(ddof=1) * exponent / 500) + 7 * 2 * exponent / (3 * 499)
    for shift in (-1e-9, 1e-9):
        moved = differences - differences.mean() + bound + shift
        found = compared(500, sums_of(moved, None), 2.0, n_looks=15)
        assert loses(pruner, 2, found) == (shift > 0)
        assert not loses(pruner, 1, found)


def test_a_whole_level_is_decided_by_z():
    differences = np.random.default_rng(0).normal(size=400)
    error = differences.std(ddof=1) / 20
    pruner = RacingPruner(rung_z=1.5)
    for shift in (-1e-9, 1e-9):
        moved = differences - differences.mean() + 1.5 * error + shift
        assert loses(pruner, 64, compared(400, sums_of(moved, None), None)) == (shift > 0)


def test_weights_are_scaled_to_a_mean_of_1():
    rng = np.random.default_rng(0)
    differences, weights = rng.normal(size=50), rng.uniform(0.1, 5, size=50)
    found = compared(50, sums_of(differences, weights), 2.0, weights.max(), 3)
    weighed = differences * weights / weights.mean()
    assert found.mean == pytest.approx(weighed.mean())
    assert found.variance == pytest.approx(weighed.var(ddof=1))
    assert found.width == pytest.approx(2 * weights.max() / weights.mean())
    assert compared(50, np.zeros(3), None) is None


def test_losses_take_few_bytes():
    from optuna_treecv.scoring.metrics import make_scoring

    error = RaceLosses(make_scoring("error").first, None)
    scores = np.array([0, 1, 1], np.int8)
    assert error.of(scores).tobytes() == scores.tobytes()
    accuracy = RaceLosses(make_scoring("accuracy").first, None)
    assert accuracy.of(np.array([1.0, 0.0, -np.inf])).tolist() == [-1, 0, 0]
    assert accuracy.of(np.array([1.0, 0.0])).dtype == np.int8
    assert accuracy.width == error.width == 2
    hinge = RaceLosses(make_scoring("hinge").first, (0.0, 3.0))
    found = hinge.of(np.array([0.5, 7.0, np.inf]))
    assert found.dtype == np.float32
    assert found.tolist() == [0.5, 3.0, 3.0]
    assert hinge.width == 6
    squared = RaceLosses(make_scoring("neg_mean_squared_error").first, (-4.0, 0.0))
    assert squared.of(np.array([-9.0, -1.0])).tolist() == [4.0, 1.0]
    differences = differences_of(np.array([1, 0, 1], np.int8), np.array([0, 1, 1], np.int8))
    assert sums_of(differences, None).tolist() == [0.0, 2.0, 3.0]


# In studies.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scoring", "cv", "n_classes"), [("error", "loo", 3), ("accuracy", 10, 3), ("error", 10, 2)]
)
def test_losers_are_pruned_and_the_best_stays(scoring, cv, n_classes):
    data, options = data_of(1000, 5, n_classes), {"cv": cv, "scoring": scoring}
    _, silent = searched(PegasosClassifier(), data, ALPHA, 20, **options)
    _, study = raced(PegasosClassifier(), data, ALPHA, 20, report="progressive", **options)
    assert study.best_value == silent.best_value
    assert study.best_params == silent.best_params
    assert len(pruned(study)) >= 3
    for trial, other in zip(study.trials, silent.trials, strict=True):
        if trial.state == TrialState.COMPLETE:
            assert trial.value == other.value


class Listens(RacingPruner):
    """Prunes nothing, and remembers what it was told."""

    def __init__(self):
        super().__init__()
        self.heard = {}

    def tell(self, trial, step, comparison):
        self.heard[trial.number, step] = comparison

    def prune(self, study, trial):
        return False


def along_the_pass(run, plan):
    """Return, by step, the scores of the rows that are compared, their slice and weights."""
    *steps, last = [event for event in run.events(Watch()) if isinstance(event, RowProgress)]
    scores = steps[-1].scores
    parts = {
        step: (scores.values[(n + 1) // 2 : n], slice((n + 1) // 2, n), scores.weights)
        for n, step in spine_steps(plan).items()
        if step > 1
    }
    return parts | {64: (last.scores.values, slice(0, plan.n_rows), last.scores.weights)}


def along_the_folds(run, is_weighted):
    run = run.with_row_scores()
    found = [(part, *run.book.part_rows) for part in run.events()]
    values = np.concatenate([scores for _, scores, _ in found])
    weights = np.concatenate([weights for *_, weights in found]) if is_weighted else None
    ends = np.cumsum([len(scores) for _, scores, _ in found])
    return {
        part: (values[:end], slice(0, end), weights)
        for (part, *_), end in zip(found, ends, strict=True)
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    *pairs(
        report=["progressive", "folds"],
        scoring=["error", "accuracy", "neg_brier_score"],
        is_weighted=[False, True],
    )
)
def test_what_the_pruner_is_told(report, scoring, is_weighted):
    X, y = data_of(320, 5)
    weights = np.random.default_rng(0).uniform(0.5, 2.0, 320) if is_weighted else None
    model = AveragedSGDClassifier("log_loss")
    options = {"cv": 40, "scoring": scoring, "sample_weight": weights, "stratify": False}
    objective = treecv_objective(
        model, X, y, param_distributions=ALPHA, report=report, cache=None, **options
    )
    pruner = Listens()
    pruner.loss_range = (-1.0, 0.0) if scoring == "neg_brier_score" else None
    study = optuna.create_study(direction=objective.direction, pruner=pruner)
    expected = []
    for alpha in (0.01, 3.0):
        study.enqueue_trial({"alpha": alpha})
        evaluation = evaluation_of(X, y, report=report, **options)
        run = run_for(evaluation, AveragedSGDClassifier("log_loss", alpha=alpha))
        if report == "progressive":
            expected.append(along_the_pass(run, evaluation.repeats[0].plan))
        else:
            expected.append(along_the_folds(run, is_weighted))
    study.optimize(objective, n_trials=2)
    for step, (own, rows, of_rows) in expected[1].items():
        best = expected[0][step][0]
        sign = 1 if scoring == "error" else -1
        differences = sign * (own.astype(np.float32) - best.astype(np.float32)).astype(float)
        if is_weighted:
            differences = differences * of_rows[rows] / of_rows[rows].mean()
        told = pruner.heard[1, step]
        assert told.n_rows == len(own)
        assert told.mean == pytest.approx(differences.mean(), rel=1e-6, abs=1e-9)
        assert told.variance == pytest.approx(differences.var(ddof=1), rel=1e-6)
        assert (told.width is None) == (step == 64 and report == "progressive")
        assert pruner.heard[0, step] is None


@pytest.mark.parametrize(("report", "cv"), [("progressive", 10), ("folds", "loo")])
def test_the_best_trial_is_not_pruned_against_itself(report, cv):
    _, study = raced(
        PegasosClassifier(),
        data_of(400, 5),
        ALPHA,
        candidates=[{"alpha": 0.01}] * 4,
        study={"pruner": RacingPruner(delta=0.99, rung_z=1e-12, warmup=1)},
        cv=cv,
        report=report,
        cache=None,
    )
    assert {trial.value for trial in study.trials} == {study.best_value}
    assert not pruned(study)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "space", "options", "with_store"),
    [
        (PegasosClassifier(), ALPHA, {"report": "progressive", "cv": 100}, True),
        (PegasosClassifier(), ALPHA, {"report": "blocks"}, False),
        (PegasosClassifier(), ALPHA, {"report": "mean"}, False),
        (DecisionTreeClassifier(), DEPTH, {"report": "folds"}, False),
        (
            DecisionTreeClassifier(),
            DEPTH,
            {"report": "folds", "scoring": "balanced_accuracy"},
            False,
        ),
    ],
)
def test_a_resumed_worker_prunes_the_same_trials(estimator, space, options, with_store, tmp_path):
    X, y = data_of(800, 5)

    def run(name, parts):
        store = f"sqlite:///{tmp_path}/{name}_store.db" if with_store else None
        n_before = 0
        for n_trials in parts:
            storage = JournalStorage(JournalFileBackend(f"{tmp_path}/{name}.log"))
            objective = treecv_objective(
                estimator, X, y, param_distributions=space, store=store, **options
            )
            study = optuna.create_study(
                study_name="one",
                storage=storage,
                load_if_exists=True,
                direction=objective.direction,
                pruner=RacingPruner(),
            )
            for number in range(n_before, n_before + n_trials):  # whatever the sampler's state
                study.sampler = optuna.samplers.RandomSampler(seed=number)
                study.optimize(objective, n_trials=1)
            n_before += n_trials
        return study

    whole, resumed = run("whole", [10]), run("resumed", [6, 4])
    assert pruned(whole) == pruned(resumed)
    assert pruned(whole)
    for one, other in zip(whole.trials, resumed.trials, strict=True):
        assert one.intermediate_values == other.intermediate_values
        assert one.value == other.value


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "cv", "weighted", "batch_size"),
    [
        (PegasosClassifier(), 10, False, 8),
        (PegasosClassifier(), "loo", True, 32),
        (StreamingSVRGClassifier(), "loo", False, 32),
        (StreamingSVRGClassifier(), 10, True, 8),
    ],
)
def test_lanes_race_in_their_batch(estimator, cv, weighted, batch_size):
    """A batch of 32 holds all candidates, so that they race before any trial is complete."""
    data = data_of(4000, 5, 3)
    options = {"cv": cv, "report": "progressive", "batch_size": batch_size, "cache": None}
    weights = np.random.default_rng(0).uniform(0.5, 2.0, 4000)
    options["sample_weight"] = weights if weighted else None
    grid = {"alpha": np.geomspace(1e-6, 1e3, 24).tolist()}
    _, race = raced(estimator, data, grid, **options)
    nop = {"pruner": optuna.pruners.NopPruner()}
    _, none = searched(estimator, data, grid, study=nop, **options)
    assert len(race.trials) == 24
    assert race.best_value == none.best_value
    assert pruned(race) or cv == 10  # where SVRG differs by little
    by_alpha = {trial.params["alpha"]: trial for trial in none.trials}
    for trial in race.trials:
        alone = by_alpha[trial.params["alpha"]]
        if trial.state == TrialState.COMPLETE:
            assert trial.value == alone.value
            assert trial.intermediate_values == alone.intermediate_values
        else:
            reported = trial.intermediate_values
            assert reported
            assert reported.items() <= alone.intermediate_values.items()
    # One that loses to the best trial so far, and not in its batch, was trained in full.
    assert not pruned(race) or n_updates(race) < n_updates(none)


class Drops:
    """Leaves out some learners at given steps, and checks what it is asked about."""

    def __init__(self, at, ends):
        self.left = list(range(6))
        self.at, self.ends = at, ends
        self.asked = []

    def losers(self, step, scores, rows):
        assert len(scores) == len(self.left)
        n_rows = 300 if step == 64 else self.ends[step]
        assert {one.n_rows for one in scores} == {n_rows}
        assert rows == slice(0 if step == 64 else (n_rows + 1) // 2, n_rows)
        self.asked.append(step)
        places = [self.left.index(number) for number in self.at.get(step, ())]
        self.left = [number for number in self.left if number not in self.at.get(step, ())]
        return places


@pytest.mark.parametrize(
    "at",
    [
        {3: (0,), 5: (1, 4), 16: (5,)},
        {2: (0, 1, 2, 3), 4: (5,)},
        {64: (0, 3)},
        {2: (0, 1, 2), 64: (3, 4, 5)},
        {7: (0, 1, 2, 3, 4, 5)},
    ],
)
def test_those_that_are_dropped_leave_the_others_as_they_were(at):
    X, y = data_of(300, 5, 3)
    evaluation = evaluation_of(X, y, cv=50, stratify=False)
    estimators = [PegasosClassifier(alpha) for alpha in np.geomspace(1e-4, 1, 6)]
    runs = [run_for(evaluation, estimator) for estimator in estimators]
    plan = evaluation.repeats[0].plan
    ends = {step: n_rows for n_rows, step in spine_steps(plan).items()}
    judge = Drops(at, ends)
    learners = [run.plan.bind(run.estimator, evaluation.repeats[0]).learner for run in runs]
    lanes = EarlyLanes(plan, learners, runs[0].request.scoring.first, 1, judge)
    outputs, members = lanes.evaluate()
    by_member = dict(zip(members, (one.array for one in outputs), strict=True))
    lost_at = {number: step for step, numbers in at.items() for number in numbers}
    for number, (run, known) in enumerate(zip(runs, lanes.lanes, strict=True)):
        *steps, last = [event for event in run.events(Watch()) if isinstance(event, RowProgress)]
        assert known.pruned_at == lost_at.get(number)
        n_rows = ends[min(known.pruned_at or 16, 16)]
        assert np.array_equal(known.progressive.values, steps[-1].scores.values[:n_rows])
        if known.pruned_at is None or known.pruned_at == 64:
            assert np.array_equal(known.nested.values, last.scores.values)
        if known.pruned_at is None:
            leaves = Leaves(plan, learners[number])
            training = Training(run.plan, evaluation.repeats[0], learners[number], leaves)
            for _ in run.plan.test_folds(training):
                pass
            assert np.array_equal(by_member[number], leaves.outputs.array)
            assert known.n_updates == run.cost.n_updates
        assert steps[-1].step == 16


def test_unbounded_losses_need_a_range():
    X, y = data_of(400, 5)

    def run(estimator, data, n_trials, futility=None, loss_range=None, **options):
        pruner = RacingPruner(futility=futility, loss_range=loss_range)
        options |= {"report": "progressive", "study": {"pruner": pruner}}
        return pruned(raced(estimator, data, ALPHA, n_trials, **options)[1])

    with pytest.raises(ValueError, match="loss_range must be given to RacingPruner.*'hinge'"):
        run(PegasosClassifier(), (X, y), 1, scoring="hinge")
    run(PegasosClassifier(), (X, y), 3, scoring="hinge", loss_range=(0, 5))
    numbers = np.vstack([X] * 10), np.tile(X[:, 0], 10)
    assert run(AveragedSGDRegressor(), numbers, 20, loss_range=(0, 4))
    assert run(AveragedSGDRegressor(), numbers, 20, futility=0.05)  # forecasts need no bounds


def test_a_study_of_another_direction_is_refused():
    study = {"direction": "maximize"}
    with pytest.raises(ValueError, match="direction"):
        raced(PegasosClassifier(), data_of(100, 5), ALPHA, 1, study=study, report="progressive")


def suggesting_only(trial):
    x = trial.suggest_float("x", 0, 1)
    trial.report(x, 0)
    assert not trial.should_prune()
    return x


def test_a_race_without_reports_of_this_package_is_warned_of_once():
    silent = treecv_objective(PegasosClassifier(), *data_of(100, 5), param_distributions=ALPHA)
    for objective, why in ((suggesting_only, ""), (silent, " with report=None")):
        study = optuna.create_study(pruner=RacingPruner())
        with pytest.warns(UserWarning, match=f"RacingPruner has no effect{why}") as caught:
            study.optimize(objective, n_trials=3)
        assert len([one for one in caught if "RacingPruner" in str(one.message)]) == 1
        assert not pruned(study)


def test_nothing_is_kept_of_trials_that_are_over_but_of_the_best_two():
    pruner, data = RacingPruner(), data_of(300, 5)
    objective, study = raced(
        PegasosClassifier(), data, ALPHA, 12, report="progressive", study={"pruner": pruner}
    )
    assert not pruner._comparisons
    best = study.get_trials(states=[TrialState.COMPLETE])
    best.sort(key=lambda trial: (trial.value, trial.number))
    held = objective.evaluator.incumbents._trials[study]
    assert {trial.number for trial in best[:2]} == set(held)
    again = pickle.loads(pickle.dumps(pruner))
    assert (again.delta, again.warmup) == (0.05, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = optuna.create_study(pruner=again)
        other.optimize(pickle.loads(pickle.dumps(objective)), n_trials=3)
    study.optimize(objective, n_trials=8, n_jobs=4)
    assert {trial.state for trial in study.trials} <= {TrialState.COMPLETE, TrialState.PRUNED}
    assert not pruner._comparisons


@pytest.mark.parametrize(
    ("name", "message", "wrong"),
    [
        ("delta", "a probability", [0, 1.5, "small"]),
        ("warmup", "an integer from 1 to 15", [0, 16, 2.5]),
        ("rung_z", "a positive number", [-1, None, float("nan")]),
        ("loss_range", "None or two finite numbers", [3, (1, 0), (0, np.inf)]),
        ("futility", "None or a probability", [0, 1, -0.1, "no", True]),
        ("seed", "an integer", [-1, 1.5, None, True]),
    ],
)
def test_wrong_arguments(name, message, wrong):
    for value in wrong:
        with pytest.raises(ValueError, match=f"{name} must be {message}"):
            RacingPruner(**{name: value})
