"""Evaluates a trial and reports meanwhile, until it is done or the study's pruner prunes it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from math import isnan
from typing import Any

import numpy as np
import optuna

from optuna_treecv.crossval.engine import Early
from optuna_treecv.crossval.engine import FIRST_STEP
from optuna_treecv.crossval.engine import LAST_STEP
from optuna_treecv.crossval.engine import NESTED_FOLDS
from optuna_treecv.crossval.engine import NESTED_STEP
from optuna_treecv.crossval.engine import RowScores
from optuna_treecv.crossval.engine import Watch
from optuna_treecv.crossval.job import Job
from optuna_treecv.crossval.result import mean_and_std
from optuna_treecv.study.futility import HUGE
from optuna_treecv.study.race import Race


def evaluate_reporting(
    trial: Any, job: Job, should_prune: Callable[[Any], bool], race: Race | None
) -> RowScores | None:
    """Evaluate a job and report as its settings say; return the scores of the first pass, if any.

    Parameters
    ----------
    trial : optuna.trial.Trial, FixedTrial or FrozenTrial
    job : Job
    should_prune : callable
        (trial) -> bool: asks the pruner.
    race : Race or None
        Is told of each report before the pruner is asked.

    Raises
    ------
    optuna.TrialPruned
        If the pruner prunes the trial. What has begun comes to its end.
    """
    is_early, progressive = job.task.settings.is_early, None
    if job.why_no_first_pass:
        job.complete()
        return None
    with closing(job.events(Watch() if is_early else None)) as events:
        n_before = 0  # the rows or folds of the report before
        for event in events:
            has_lost = False
            if isinstance(event, Early):
                if event.step != NESTED_STEP:
                    progressive = event.scores
                n_rows = n_before
                n_before = event.scores.n_rows
                if event.step < FIRST_STEP:
                    continue
                _report_early(trial, job, event, n_rows, race)
                has_lost = event.has_lost
                done = f"at step {event.step} of the {LAST_STEP} of a pass"
                if event.step == NESTED_STEP:
                    done = f"after {NESTED_FOLDS} folds"
            elif is_early:
                continue  # the rest comes as one report
            else:
                _report_part(trial, job, event, n_before, race)
                n_before = job.book.n_scored
                done = f"after {n_before} of {job.task.n_repeats * job.task.n_folds} folds"
            if has_lost or (not job.is_complete and should_prune(trial)):
                events.close()
                raise optuna.TrialPruned(f"pruned {done}")
    if is_early:
        n_passes = job.total.n_needed / job.task.data.n_rows
        _report(trial, job.result().mean, int(np.ceil(LAST_STEP * n_passes)))
    return progressive


def _report_early(trial: Any, job: Job, early: Early, n_before: int, race: Race | None) -> None:
    """Report the mean over the second half of the rows so far, or over those since the last."""
    scores = early.scores
    compared = reported = scores.tail
    if early.step == NESTED_STEP:
        compared = reported = slice(0, scores.n_rows)
    elif job.task.settings.report == "blocks":
        reported = slice(n_before, scores.n_rows)
    if race is not None:
        race.before_report(early.step, scores, compared)
    _report(trial, scores.mean(reported), early.step)


def _report_part(trial: Any, job: Job, part: int, n_before: int, race: Race | None) -> None:
    """Report the mean of a part of the folds, or that of all so far."""
    begin = n_before if job.task.settings.report == "folds" else 0
    scores = job.book.scores[job.scoring.optimized[0], begin : job.book.n_scored]
    if race is not None:
        race.before_part(part, job)
    _report(trial, mean_and_std(scores)[0], part)


def _report(trial: Any, value: float, step: int) -> None:
    """Report a value that is known; FixedTrial and FrozenTrial ignore it."""
    if not isnan(value):
        trial.report(float(np.clip(value, -HUGE, HUGE)), step)
