"""What is asked when a study is over: a fitted model, an ensemble, the score of the choice."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from typing import Literal

import optuna

from optuna_treecv.core.cross_validation import CrossValidation
from optuna_treecv.core.intervals import check_level
from optuna_treecv.core.settings import check_choice
from optuna_treecv.core.settings import check_integer
from optuna_treecv.core.settings import warn_caller
from optuna_treecv.crossval.evaluate import run_for
from optuna_treecv.study.advice import edges_of
from optuna_treecv.study.choice import check_rule
from optuna_treecv.study.choice import Rule
from optuna_treecv.study.choice import Simpler
from optuna_treecv.study.ensemble import averaged_method
from optuna_treecv.study.ensemble import Candidates
from optuna_treecv.study.ensemble import MOST_MEMBERS
from optuna_treecv.study.ensemble import most_trials
from optuna_treecv.study.ensemble import voting
from optuna_treecv.study.evaluator import Evaluator
from optuna_treecv.study.honest import in_order
from optuna_treecv.study.nested import check_folds
from optuna_treecv.study.nested import Nested
from optuna_treecv.study.nested import nested_again
from optuna_treecv.study.nested import nested_of


def fitted_best(
    evaluator: Evaluator,
    study: optuna.Study | optuna.trial.FrozenTrial,
    rule: Rule = "best",
    kind: Literal["refit", "kfold_average"] = "refit",
    simpler: Simpler | None = None,
) -> Any:
    """Return the estimator of a trial, or of the one that a rule chooses, fitted on all rows."""
    check_choice("kind", kind, ("refit", "kfold_average"))
    check_rule(rule)
    trial, candidate = evaluator.trial_and_candidate(study, rule, simpler)
    lists = {name: axis.codes for name, axis in evaluator.space.axes.items() if axis.codes}
    others = []
    if isinstance(study, optuna.Study):
        others = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    if edges := edges_of(trial, lists, others):
        listed = " and ".join(f"{name}={where}" for name, where in edges.items())
        warn_caller(f"trial {trial.number} has {listed}; a wider range may hold a better value.")
    if kind == "refit":
        return run_for(evaluator.cross_validation, *candidate, is_scored=False).fit()
    run = run_for(evaluator.cross_validation, *candidate, wants_average="kind must be 'refit'")
    return run.finish().kfold_estimator()


def ensemble_of(
    evaluator: Evaluator, study: optuna.Study, size: int, kind: Any, level: float
) -> Any:
    """Return the ensemble of trials whose out-of-fold predictions are the best together."""
    size = check_integer("size", size, MOST_MEMBERS)
    check_choice("kind", kind, ("refit", "kfold_average"))
    level = check_level(level)
    contest = evaluator.contest(study)
    run = evaluator.run_of(contest.trials[0])
    method, classes = averaged_method(run), run.request.classes
    tested = evaluator.cross_validation.tested(run.method_name)
    most = most_trials(len(tested.rows) * (1 if classes is None else len(classes)))
    known, responses = evaluator.outputs_of(in_order(contest.trials[:most]), method)
    if not known:
        example = "absolute_error" if classes is None else "log_loss"
        raise ValueError(
            f"ensemble needs trials whose out-of-fold outputs by {method} are known, got "
            f"none; a further score that needs them, such as {example!r}, keeps them."
        )
    members = Candidates(run, tested, responses, size).members(level)
    fitted = {
        f"trial_{known[at].number}": fitted_best(evaluator, known[at], kind=kind)
        for at in members.counts
    }
    ensemble = voting(fitted, list(members.counts.values()), classes)
    ensemble.oof_score_ = members.score
    ensemble.honest_score_ = members.honest_score
    ensemble.honest_interval_ = members.interval.low, members.interval.high
    return ensemble


def nested_score(
    evaluator: Evaluator,
    study: optuna.Study,
    resample: bool,
    level: float,
    objective_on: Callable[[CrossValidation], Callable[[optuna.Trial], Any]],
) -> Nested:
    """Return the score of choosing among the trials of a study.

    ``objective_on`` returns the objective of another cross-validation.
    """
    check_choice("resample", resample, (True, False))
    if evaluator.cross_validation.settings.n_estimators is not None:
        raise ValueError(
            "n_estimators must be None for nested, since 'best' chooses by all folds, also by "
            "that which is left out; a search over the number of trees would be right."
        )
    level, contest = check_level(level), evaluator.contest(study)
    evaluator.study_check.directions(study, evaluator.directions)
    check_folds(evaluator.run_of(contest.trials[0]))
    if resample:
        nested = nested_again(study, contest, evaluator.run_of, objective_on, level)
    else:
        nested = nested_of(contest, evaluator.run_of, level)
    return replace(nested, params=[*map(evaluator.values_of, nested.params)])
