"""A choice follows from paired fold scores, wherever these are known."""

from __future__ import annotations

from functools import cache
import pickle

from contests import contest
from ids import said
import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
import pytest
from scipy import stats
from sklearn.model_selection import TimeSeriesSplit
from sklearn.tree import DecisionTreeClassifier
import studies

from optuna_treecv import PegasosClassifier
from optuna_treecv import pooled
from optuna_treecv import select
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective
from optuna_treecv.core.result import CVResult
from optuna_treecv.study.choice import Candidate
from optuna_treecv.study.choice import choice_of
from optuna_treecv.study.choice import order_of
from optuna_treecv.study.records import KnownScores

ALPHA = FloatDistribution(1e-5, 10.0, log=True)
GRID = {"alpha": np.geomspace(1e-5, 10, 13).tolist()}


def searched(data, n_trials=15, estimator=None, space=None, **options):
    """Return an objective and a study that was run with it."""
    estimator, space = estimator or PegasosClassifier(), space or {"alpha": ALPHA}
    return studies.searched(estimator, data, space, n_trials, **{"cv": 8} | options)


def folds_of(objective, study):
    return {t.number: objective.evaluate(t.params).test_score for t in study.trials}


@pytest.mark.parametrize(("cv", "scoring"), [(8, "accuracy"), ("loo", "error")], ids=said)
def test_one_standard_error_by_hand(cv, scoring, binary):
    objective, study = searched(binary, cv=cv, scoring=scoring)
    folds = folds_of(objective, study)
    best = study.best_trial.number
    within = []
    for number, scores in folds.items():
        d = scores - folds[best]
        error = np.std(d, ddof=1) / np.sqrt(len(d))
        if number != best and abs(d.mean()) <= error * (1 + 1e-9):  # ties of errors count
            within.append(number)
    choice = select(study, objective, rule="one_se")
    assert set(choice.within_one_se) == {best, *within} and choice.within_one_se[0] == best
    alphas = {number: study.trials[number].params["alpha"] for number in choice.within_one_se}
    assert choice.trial.number == max(alphas, key=alphas.get)
    smallest = select(study, objective, rule="one_se", simpler={"alpha": "smaller"})
    assert smallest.trial.number == min(alphas, key=alphas.get)
    assert select(study, objective).trial.number == best
    assert choice.best.number == best and choice.n_trials == 15 and choice.unscored == []


def test_one_error_more_is_within_one_standard_error():
    """A mean of 1 / n has the standard error 1 / n; the place of the error must not matter."""
    for n in (*range(20, 60), 569):
        for row in (0, n // 2, n - 1):
            found = choice_of(contest([np.zeros(n), np.eye(n)[row]]), "one_se", None, 0.95)
            assert found.within_one_se == [0, 1]


def test_differences_are_paired_t_tests(binary):
    objective, study = searched(binary)
    folds = folds_of(objective, study)
    choice = select(study, objective, level=0.9)
    assert choice.candidates[0] == Candidate(choice.best, None)
    for trial, difference in choice.candidates[1:]:
        paired = stats.ttest_rel(folds[trial.number], folds[choice.best.number])
        expected = paired.confidence_interval(0.9)
        ends = difference.interval.low, difference.interval.high
        np.testing.assert_allclose(ends, expected, atol=1e-12)
        assert (trial.number in choice.not_distinguishable) == (expected.low <= 0 <= expected.high)
        assert difference.by == "folds"


def test_screening_leaves_out_only_what_is_far():
    """Compare with all pairs: the scores of other trials are never read."""
    rng = np.random.default_rng(0)
    for n_folds in (2, 3, 10):
        base = rng.uniform(size=n_folds)
        folds = [base * rng.uniform(0.8, 1.2) + rng.normal(size=n_folds) * 0.1 for _ in range(150)]
        folds = [scores + rng.choice([0.0, 0.2, 3.0]) for scores in folds]
        screened, full = contest(folds), contest(folds, stds=False)
        asked = []
        read = screened.folds_of
        screened = screened._replace(
            folds_of=lambda trials, asked=asked, read=read: asked.extend(trials) or read(trials)
        )
        one, other = (
            choice_of(screened, "one_se", None, 0.95),
            choice_of(full, "one_se", None, 0.95),
        )
        assert one.within_one_se == other.within_one_se
        assert one.not_distinguishable == other.not_distinguishable
        assert one.trial.number == other.trial.number
        assert n_folds == 2 or len({trial.number for trial in asked}) < 150


def test_the_interval_of_the_chosen_trial(binary):
    objective, study = searched(binary)
    choice = select(study, objective, rule="one_se")
    alone = objective.evaluate(choice.trial.params).interval("nadeau_bengio")
    assert (choice.interval.low, choice.interval.high) == (alone.low, alone.high)
    assert choice.interval.target == alone.target
    assert "chosen among 15 trials on the same folds" in choice.interval.note
    assert "so its mean score is optimistic" in choice.interval.note
    assert f"Choice(trial_number={choice.trial.number}, " in repr(choice)
    own, single = searched(binary, n_trials=1)
    assert select(single, own).interval.note == ""


@pytest.mark.parametrize("cv", [TimeSeriesSplit(3), 0.3], ids=said)
def test_some_folds_have_no_interval_of_the_expected_risk(cv, binary):
    objective, study = searched(binary, cv=cv)
    choice = select(study, objective)
    assert choice.interval is None and "low=" not in repr(choice)
    if isinstance(cv, float):
        assert len(choice.candidates) == 1 and choice.unscored == []
        with pytest.raises(ValueError, match="^rule must be 'best' for a single test set"):
            select(study, objective, rule="one_se")


def test_rows_are_paired_where_they_are_known(binary):
    objective, study = searched(binary, row_losses=True)
    best = study.best_trial
    choice = select(study, objective)
    of_best = objective.evaluate(best.params)
    for trial, difference in choice.candidates[1:]:
        alone = objective.evaluate(trial.params).compare(of_best)
        assert (difference.mean, difference.std_error) == (alone.mean, alone.std_error)
        assert difference.by == "rows"
    hold_out, other = searched(binary, cv=0.3, row_losses=True)
    assert select(other, hold_out, rule="one_se").candidates[1].difference.by == "rows"


# Where the scores come from.


def test_a_new_process_reads_the_store(binary, store_url):
    objective, study = searched(binary, store=store_url)
    here = select(study, objective, rule="one_se")
    there = pickle.loads(pickle.dumps(objective))
    assert there.evaluator.known_scores.find(study.best_trial) is None
    assert (
        objective.evaluator.known_scores.n_bytes > 0 and there.evaluator.known_scores.n_bytes == 0
    )
    again = select(study, there, rule="one_se")
    # Rows are known here alone: the correction of the other process is by folds, unless folds took
    # so long that their results are in the store.
    assert here.honest.by == "rows"
    assert again.honest.by in ("folds", "rows")
    assert repr(again).partition("honest=")[0] == repr(here).partition("honest=")[0]
    assert [one.difference for one in again.candidates] == [
        one.difference for one in here.candidates
    ]


def test_trials_of_other_workers_are_left_out(binary):
    objective, study = searched(binary, n_trials=10)
    other = pickle.loads(pickle.dumps(objective))
    with pytest.raises(ValueError, match="scores of trial [0-9]+ are unknown, because another"):
        select(study, other, rule="one_se")
    alone = select(study, other)
    assert alone.trial.number == study.best_trial.number and alone.interval is None
    assert len(alone.unscored) == 10 and "unscored=<" in repr(alone)
    by_value = sorted(study.trials, key=lambda trial: trial.value)
    for trial in by_value[:3]:
        other.evaluator.known_scores.note(trial, other.evaluate(trial.params), "minimize")
    choice = select(study, other)
    known = {one.trial.number for one in choice.candidates}
    assert known <= {trial.number for trial in by_value[:3]}
    assert choice.unscored and not known & set(choice.unscored)


def test_a_study_of_another_evaluation_is_refused(binary):
    X, y = binary
    objective, study = searched((X, y))
    for other, _ in (
        searched((X, y), cv=7),
        searched((X, 1 - y)),
        searched((X, y), scoring="hinge"),
    ):
        with pytest.raises(
            ValueError, match="^study must have been run with this objective, but the"
        ):
            select(study, other)


def result_of(mean, folds, rows=None):
    values = {name: None for name in CVResult.__dataclass_fields__}
    return CVResult(**values | {"mean": mean, "test_score": folds, "row_losses": rows})


@cache
def trial_of(number):
    return optuna.trial.FixedTrial({}, number=number)


def test_estimators_of_the_same_parameters_are_compared_each_by_its_own_scores(binary):
    objective = treecv_objective(lambda trial: PegasosClassifier(10.0**-trial.number), *binary)
    study = optuna.create_study(direction=objective.direction)
    study.optimize(objective, n_trials=3)
    results = [tree_cross_validate(PegasosClassifier(10.0**-i), *binary) for i in range(3)]
    for trial, difference in select(study, objective).candidates[1:]:
        alone = results[trial.number].compare(results[study.best_trial.number])
        assert (difference.mean, difference.std_error) == (alone.mean, alone.std_error)


def test_what_is_held_has_a_bound():
    held = KnownScores(max_bytes=1000)
    for i in range(20):
        held.note(trial_of(i), result_of(abs(i - 12.0), np.full(10, 0.5)), "minimize")
        assert held.n_bytes <= 1000
    kept = [i for i in range(20) if held.find(trial_of(i)) is not None]
    assert len(kept) == 12 and set(range(8, 17)) <= set(kept)  # the best ones stay
    held.note(trial_of(12), result_of(5.0, np.zeros(10)), "minimize")  # once more, and smaller
    assert held.find(trial_of(12)).folds.dtype == np.int8
    assert held.n_bytes == sum(
        one.n_bytes for i in range(20) if (one := held.find(trial_of(i))) is not None
    )
    held.note(trial_of(99), result_of(0.0, np.zeros(10), np.zeros(300, np.float32)), "minimize")
    assert held.find(trial_of(99)).rows is None and held.n_bytes <= 1000  # rows go first
    held.note(trial_of(97), result_of(0.0, np.full(200, 0.5)), "minimize")
    assert held.find(trial_of(97)) is None and held.n_bytes <= 1000  # it has no room at all
    held.note(trial_of(98), result_of(np.inf, np.full(10, np.inf)), "minimize")
    assert held.find(trial_of(98)) is None


def test_rows_leave_before_folds():
    held = KnownScores(max_bytes=2000)
    for i in range(6):
        rows = np.zeros(100, np.float32)
        held.note(trial_of(i), result_of(float(i), np.full(10, 0.5), rows), "minimize")
    found = [held.find(trial_of(i)) for i in range(6)]
    assert all(one is not None for one in found)
    assert [one.rows is not None for one in found] == [True, True, True, False, False, False]


def test_constraints_are_kept(binary):
    objective, study = searched(binary, n_trials=0)

    def constrained(trial):
        value = objective(trial)
        trial.set_constraint("large", 1.0 if trial.params["alpha"] > 0.01 else -1.0)
        return value

    study.optimize(constrained, n_trials=15)
    choice = select(study, objective, rule="one_se")
    assert choice.best.number == study.best_trial.number
    assert all(one.trial.params["alpha"] <= 0.01 for one in choice.candidates)
    assert choice.n_trials == sum(trial.params["alpha"] <= 0.01 for trial in study.trials)


def test_pooled_scores_have_no_pairs(binary):
    objective, study = searched(binary, scoring=pooled("roc_auc"))
    choice = select(study, objective)
    assert choice.trial.number == study.best_trial.number and choice.interval is None
    with pytest.raises(ValueError, match="because a pooled score is not computed for each fold"):
        select(study, objective, rule="one_se")


def test_errors_of_leave_one_out_take_a_byte(binary):
    objective, study = searched(binary, n_trials=2, cv="loo")
    held = objective.evaluator.known_scores.find(study.best_trial)
    assert held.folds.nbytes == 83
    np.testing.assert_array_equal(held.folds, objective.evaluate(study.best_params).test_score)


# Rules.


def test_a_rule_of_ones_own(binary):
    objective, study = searched(binary)
    seen = []

    def last(candidates):
        seen.extend(candidates)
        return candidates[-1]

    choice = select(study, objective, rule=last)
    assert choice.trial.number == seen[-1].trial.number
    assert seen == choice.candidates and len(seen) > 1
    number = select(study, objective, rule=lambda candidates: candidates[1].trial.number)
    assert number.trial.number == choice.candidates[1].trial.number
    for wrong in (None, -1, "best", 3.0):
        with pytest.raises(ValueError, match="^rule must return one of the given candidates"):
            select(study, objective, rule=lambda _, wrong=wrong: wrong)


def test_the_simplest_by_several_parameters():
    """Trial 0 is the best; 1 and 2 are within one standard error, and 3 is far off."""
    folds = [
        [0.10, 0.20, 0.30, 0.40],
        [0.12, 0.19, 0.31, 0.39],
        [0.09, 0.22, 0.29, 0.41],
        [0.40, 0.50, 0.61, 0.70],
    ]
    params = [
        {"depth": 5.0, "alpha": 1.0},
        {"depth": 3.0, "alpha": 1.0},
        {"depth": 3.0, "alpha": 2.0},
        {"depth": 1.0, "alpha": 9.0},
    ]
    given = contest(folds, params=params)
    by_depth = choice_of(given, "one_se", {"depth": "smaller", "alpha": "larger"}, 0.95)
    assert sorted(by_depth.within_one_se) == [0, 1, 2]
    assert by_depth.trial.number == 2
    other = choice_of(given, "one_se", {"depth": "smaller", "alpha": "smaller"}, 0.95)
    assert other.trial.number == 1
    assert choice_of(given, "one_se", {"depth": "larger"}, 0.95).trial.number == 0


def test_of_equally_simple_trials_the_best_is_taken():
    folds = [[0.11, 0.2, 0.3], [0.1, 0.2, 0.31], [0.1, 0.2, 0.3]]
    given = contest(folds, params=[{"alpha": 1.0}] * 3)
    assert choice_of(given, "one_se", None, 0.95).trial.number == 2


def test_a_parameter_that_a_trial_has_not_is_the_least_simple():
    folds = [[0.1, 0.2, 0.3], [0.1, 0.21, 0.29]]
    given = contest(folds, params=[{"a": 1.0}, {"a": 1.0, "alpha": 0.5}])
    assert choice_of(given, "one_se", {"alpha": "larger"}, 0.95).trial.number == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rule": "first"}, "rule must be one of 'best', 'one_se' or a callable"),
        ({"level": 1}, "level must be between 0 and 1"),
        ({"simpler": {"alpha": "larger"}}, "simpler must be None unless rule is 'one_se'"),
        ({"rule": "one_se", "simpler": "alpha"}, "simpler must be 'n_updates', a callable"),
        ({"rule": "one_se", "simpler": {"alpha": 1}}, "simpler must be 'n_updates', a callable"),
        ({"rule": "one_se", "simpler": {"C": "larger"}}, "simpler must name parameters of the"),
    ],
    ids=said,
)
def test_bad_arguments(arguments, message, binary):
    objective, study = searched(binary, n_trials=3)
    with pytest.raises(ValueError, match=f"^{message}"):
        select(study, objective, **arguments)


@pytest.mark.slow
def test_simpler_must_be_said(binary):
    space = {"max_depth": IntDistribution(1, 6), "min_samples_leaf": IntDistribution(1, 20)}
    options = {"estimator": DecisionTreeClassifier(random_state=0), "n_trials": 6}
    objective, study = searched(binary, space=space, **options)
    with pytest.raises(ValueError, match="a search of 'max_depth', 'min_samples_leaf', because"):
        select(study, objective, rule="one_se")
    with pytest.raises(ValueError, match="simpler must be given for rule='one_se'"):
        objective.best_estimator(study, rule="one_se")
    simpler = {"max_depth": "smaller", "min_samples_leaf": "larger"}
    chosen = select(study, objective, rule="one_se", simpler=simpler).trial
    model = objective.best_estimator(study, rule="one_se", simpler=simpler)
    assert model.max_depth == chosen.params["max_depth"]
    assert model.get_depth() <= model.max_depth
    one, other = searched(binary, space={"max_depth": IntDistribution(1, 6)}, **options)
    depths = [other.trials[i].params["max_depth"] for i in select(other, one).within_one_se]
    known = select(other, one, rule="one_se").trial
    assert known.params["max_depth"] == min(depths)
    unknown, third = searched(
        binary, space={"min_weight_fraction_leaf": FloatDistribution(0, 0.1)}, **options
    )
    with pytest.raises(ValueError, match="a search of 'min_weight_fraction_leaf', because"):
        select(third, unknown, rule="one_se")
    kinds = {"criterion": CategoricalDistribution(["gini", "entropy"])}
    fourth, study = searched(binary, space=kinds, **options)
    with pytest.raises(ValueError, match="whose values are numbers, got 'criterion'"):
        select(study, fourth, rule="one_se", simpler={"criterion": "larger"})
    with pytest.raises(ValueError, match="^rule must be 'best' if no parameter was searched"):
        order_of([], None)


def test_wrong_studies(binary):
    objective, study = searched(binary, n_trials=2)
    with pytest.raises(ValueError, match="^study must be an optuna.Study"):
        select(study.best_trial, objective)
    with pytest.raises(ValueError, match="^objective must be an objective that"):
        select(study, objective.evaluate)
    with pytest.raises(ValueError, match="^study must have a complete trial"):
        select(optuna.create_study(), objective)
    two = optuna.create_study(directions=["minimize", "minimize"])
    with pytest.raises(ValueError, match="^study must have a single objective"):
        select(two, objective)
    with pytest.raises(ValueError, match="^rule must be 'best' if study is a trial"):
        objective.best_estimator(study.best_trial, rule="one_se")
    with pytest.raises(ValueError, match="^rule must be one of"):
        objective.best_estimator(study, rule="simplest")


def test_best_estimator_takes_a_rule(binary):
    objective, study = searched(binary)
    chosen = select(study, objective, rule="one_se").trial
    model = objective.best_estimator(study, rule="one_se")
    assert model.alpha == chosen.params["alpha"] != study.best_params["alpha"]
    averaged = objective.best_estimator(study, rule="one_se", kind="kfold_average")
    assert averaged.alpha == model.alpha
    assert not np.array_equal(averaged.coef_, model.coef_)


def test_pruned_trials_are_no_candidates(binary):
    X, y = binary
    objective = treecv_objective(
        PegasosClassifier(), X, y, param_grid=GRID, cv=8, report="folds", batch_size=1
    )
    pruner = optuna.pruners.PercentilePruner(50.0, n_startup_trials=3)
    study = optuna.create_study(sampler=objective.grid_sampler(seed=0), pruner=pruner)
    study.optimize(objective)
    pruned = {t.number for t in study.trials if t.state == optuna.trial.TrialState.PRUNED}
    choice = select(study, objective)
    assert pruned and not pruned & {one.trial.number for one in choice.candidates}
    assert choice.n_trials == len(study.trials) - len(pruned)
