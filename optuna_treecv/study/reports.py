"""Evaluates a trial and reports meanwhile, until it is done or the study's pruner prunes it."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan
from typing import Any

import numpy as np
import optuna

from optuna_treecv.crossval.early import EarlyRepeat
from optuna_treecv.crossval.early_scores import FIRST_STEP
from optuna_treecv.crossval.early_scores import LAST_STEP
from optuna_treecv.crossval.early_scores import NESTED_STEP
from optuna_treecv.crossval.early_scores import RowScores
from optuna_treecv.crossval.result import mean_and_std
from optuna_treecv.crossval.run import Run
from optuna_treecv.study.futility import HUGE

#: (step, scores of rows, which of them are compared) -> None: called before each report of early
#: scores. The step of a whole level of the tree compares all rows.
BeforeReport = Callable[[int, RowScores, slice], None]


def report_parts(
    trial: Any,
    run: Run,
    report: str,
    should_prune: Callable[[Any], bool],
    before: Callable[[int, Run], None] | None,
) -> None:
    """Evaluate, and report after each part of the folds: its mean score, or that of all so far.

    Parameters
    ----------
    trial : optuna.trial.Trial, FixedTrial or FrozenTrial
    run : Run
    report : {"folds", "mean"}
    should_prune : callable
        (trial) -> bool: asks the pruner.
    before : callable or None
        (part, run) -> None: called before each report.

    Raises
    ------
    optuna.TrialPruned
        If the pruner prunes the trial. What has begun comes to its end.
    """
    n_before = 0
    parts = iter(run)
    first = run.scoring.optimized[0]
    for part in parts:
        begin = n_before if report == "folds" else 0
        scores = run.chunk_scores[first, begin : run.n_scored]
        n_before = run.n_scored
        if before is not None:
            before(part, run)
        _report(trial, mean_and_std(scores)[0], part)
        if not run.is_complete and should_prune(trial):
            parts.close()
            raise optuna.TrialPruned(f"pruned after {run.n_scored} of {run.n_to_score} folds")


def report_early(
    trial: Any,
    run: Run,
    report: str,
    should_prune: Callable[[Any], bool],
    before: BeforeReport | None,
) -> EarlyRepeat:
    """Evaluate, and report in the first pass, after 16 folds of many, and at the end.

    Parameters
    ----------
    trial : optuna.trial.Trial, FixedTrial or FrozenTrial
    run : Run
    report : {"progressive", "blocks"}
        Whether the mean over the second half of the rows so far is reported, or that over the rows
        since the report before.
    should_prune : callable
        (trial) -> bool: asks the pruner.
    before : callable or None

    Raises
    ------
    optuna.TrialPruned
        If the pruner prunes the trial.
    """
    early = run.begin_early()
    n_before = 0
    for step in early.first_pass():
        scores = early.progressive
        block = slice(n_before, scores.n_rows)
        n_before = scores.n_rows
        if step < FIRST_STEP:
            continue
        if before is not None:
            before(step, scores, scores.tail)
        _report(trial, scores.mean(scores.tail if report == "progressive" else block), step)
        if should_prune(trial) or step == early.lost_at:
            run.leave_early()
            raise optuna.TrialPruned(f"pruned at step {step} of the {LAST_STEP} of a pass")
    if early.n_nested:
        nested = early.nested()
        everything = slice(0, nested.n_rows)
        if before is not None:
            before(NESTED_STEP, nested, everything)
        _report(trial, nested.mean(everything), NESTED_STEP)
        if should_prune(trial) or early.lost_at == NESTED_STEP:
            run.leave_early()
            raise optuna.TrialPruned(f"pruned after {early.n_nested} folds")
    result = run.finish()
    n_passes = (result.n_updates + result.n_updates_saved) / run.evaluation.data.n_rows
    _report(trial, result.mean, int(np.ceil(LAST_STEP * n_passes)))
    return early


def _report(trial: Any, value: float, step: int) -> None:
    """Report a value that is known; FixedTrial and FrozenTrial ignore it."""
    if not isnan(value):
        trial.report(float(np.clip(value, -HUGE, HUGE)), step)
