"""Checks whether a study fits its objective: direction, sampler, pruner and evaluation."""

from collections.abc import Iterator
from collections.abc import Mapping
from threading import Lock
from time import perf_counter
from weakref import WeakKeyDictionary
from weakref import WeakSet

import optuna
from optuna.trial import BaseTrial
from optuna.trial import FrozenTrial
from optuna.trial import TrialState

from optuna_treecv.caching.keys import encode
from optuna_treecv.caching.keys import first_key
from optuna_treecv.core.cross_validation import CrossValidation
from optuna_treecv.core.run import Run
from optuna_treecv.core.settings import Report
from optuna_treecv.core.settings import warn_caller
from optuna_treecv.estimators.incremental import why_fit_differs
from optuna_treecv.study.racing import RacingPruner
from optuna_treecv.study.records import facts_of_study
from optuna_treecv.study.records import facts_of_trial
from optuna_treecv.study.records import STUDY_ATTRIBUTE
from optuna_treecv.study.space import Space
from optuna_treecv.types import Opaque

# The methods that train models by passes of partial_fit, as recorded in the attributes of trials.
_INCREMENTAL_METHODS = ("treecv", "chain", "standard", "progressive")

# The maximum number of trials that a warning lists.
_MAX_LISTED = 10

# A slow pruner causes a warning only if it has taken at least this time in total.
_MIN_SECONDS = 1.0

# Pruners that expect each report to be the mean of all scores so far.
_RUNNING_MEAN_PRUNERS = (
    optuna.pruners.PercentilePruner,  # and MedianPruner
    optuna.pruners.SuccessiveHalvingPruner,
    optuna.pruners.HyperbandPruner,
)


class StudyCheck:
    """Checks the studies and trials of an objective; trials without a study are not checked.

    Parameters
    ----------
    cross_validation : CrossValidation
        The cross-validation of the objective.
    space : Space
    """

    def __init__(self, cross_validation: CrossValidation, space: Space) -> None:
        self.cross_validation = cross_validation
        self._space = space
        self._expects_grid_sampler = space.grids is not None
        self._visited: set[bytes] = set()  # keys of visited grid points
        # For each study that has been checked, the record of how its trials are evaluated.
        self._facts: WeakKeyDictionary[optuna.Study, Mapping[str, Opaque]] = WeakKeyDictionary()
        self._mixed: WeakSet[optuna.Study] = WeakSet()  # studies with a warning
        self._seconds_of_pruner = self._seconds_of_evaluations = 0.0
        self._lock = Lock()

    def directions(self, study: optuna.Study | None, expected: list[str]) -> None:
        """Raise ValueError if the directions of a study are not the expected ones."""
        if study is None:  # FixedTrial and FrozenTrial belong to no study
            return
        directions = [direction.name.lower() for direction in study.directions]
        if len(directions) > 1 and len(expected) == 1:
            raise ValueError(
                "the study must have a single direction, because the objective has a single "
                f"score, got {len(directions)} directions; to optimize several scores, pass a "
                "list of their names as the argument optimize."
            )
        if len(expected) > 1 and directions != expected:
            raise ValueError(
                f"the study's directions must be {expected}, the directions of the scores to "
                f"optimize, got {directions}; use "
                "optuna.create_study(directions=objective.directions) instead."
            )
        if directions != expected:
            raise ValueError(
                f"the study's direction must be {expected[0]!r}, because the score is to be "
                f"{expected[0]}d, got {', '.join(directions)}; use "
                "optuna.create_study(direction=objective.direction) instead."
            )

    def trial(self, trial: optuna.Trial, run: Run) -> None:
        """Warn of values that are not comparable, and of an unsuitable pruner or sampler.

        Parameters
        ----------
        trial : optuna.trial.Trial
            A trial whose parameters have been suggested.
        run : Run
            The run of the trial.
        """
        study = trial.study
        with self._lock:
            facts = self._facts.get(study)
            if facts is None:
                self._facts[study] = self._get_or_write_facts(study, run)
        if facts is None:
            differences = list(self.differences(study, run))
            problems = _find_pruner_problems(study.pruner, self.cross_validation.settings.report)
            for sentence in (*differences, *problems):
                warn_caller(sentence)
            facts = self._facts[study] if not differences else {}
        if facts.get("is_fitted") == run.plan.capabilities.is_incremental:
            with self._lock:
                is_first = study not in self._mixed
                self._mixed.add(study)
            if is_first:
                kinds = _group_by_training(study)
                kinds[run.plan.capabilities.is_incremental].append(trial.number)
                warn_caller(
                    f"the values of study {study.study_name!r} are hardly comparable, because "
                    f"its models are trained in two ways: {_describe_groups(kinds)}; use "
                    "method='fit' to train all models by fit."
                )
        if self._expects_grid_sampler:
            self._check_sampler(study, trial)

    def epochs_in(self, study: optuna.Study | None) -> int | None:
        """Return the number of epochs if a study trains models by ``partial_fit``, else None.

        If the first trial of a study was trained by passes of ``partial_fit``, later trials are,
        too, even if "auto" would now select ``fit``.
        """
        if study is None:
            return None
        with self._lock:
            facts = self._facts.get(study) or facts_of_study(study)
        is_as_fit = facts.get("is_as_fit", True)
        return None if is_as_fit else self.cross_validation.settings.n_epochs or 1

    def differences(self, study: optuna.Study, run: Run) -> Iterator[str]:
        """Yield the reasons why a study's values are not comparable with a run, as sentences."""
        facts = facts_of_study(study)
        if not facts:
            return
        is_fitted = not run.plan.capabilities.is_incremental
        before, now = facts.get("report"), self.cross_validation.settings.report
        if before != now and before is not None and now is not None:
            yield (
                f"the study {study.study_name!r} has trials with report={before!r}, but this "
                f"objective has report={now!r}. Their reports at the same step are not "
                "comparable, so pruners would make wrong decisions; use only one kind of report "
                "per study."
            )
        if facts.get("is_fitted", is_fitted) != is_fitted:
            kinds = "models trained in one pass over the training rows", "models trained by fit"
            theirs, ours = kinds[not is_fitted], kinds[is_fitted]
            yield (
                f"the study {study.study_name!r} has scores of {theirs}, but this objective "
                f"returns scores of {ours} (method={run.method_name!r}), which are not "
                "comparable; use a new study instead."
            )
        digest, current = facts.get("digest"), self.cross_validation.digest(run.request.scoring)
        if digest != current and (
            reason := self.cross_validation.reason_without_digest(run.request.scoring)
        ):
            yield (
                f"the study {study.study_name!r} has values of another objective, and it is "
                "unknown whether they are comparable with the values of this objective, because "
                f"{reason}; use a new study instead."
            )
        elif digest != current:
            yield (
                f"the study {study.study_name!r} has values from other data, weights, folds or "
                f"scoring ({STUDY_ATTRIBUTE} {digest}, now {current}), which are not comparable "
                "with the values of this objective; use a new study instead."
            )

    def _get_or_write_facts(self, study: optuna.Study, run: Run) -> Mapping[str, Opaque]:
        """Return the record of how a study's trials are evaluated; write it if it is missing."""
        facts = facts_of_study(study)
        if not facts:
            is_incremental = run.plan.capabilities.is_incremental
            facts = run.facts() | {
                "is_fitted": not is_incremental,
                "is_as_fit": not (is_incremental and why_fit_differs(run.estimator)),
                "report": self.cross_validation.settings.report,
            }
            study.set_user_attr(STUDY_ATTRIBUTE, facts)
        return facts

    def should_prune(self, trial: BaseTrial) -> bool:
        """Return whether the pruner prunes a trial, and measure how long the decision takes."""
        start = perf_counter()
        is_pruned = trial.should_prune()
        with self._lock:
            self._seconds_of_pruner += perf_counter() - start
        return is_pruned

    def pruner_time(self, trial: BaseTrial, seconds: float) -> None:
        """Warn if a ``WilcoxonPruner`` has taken longer than all evaluations so far.

        ``seconds`` is the duration of the trial's evaluation.
        """
        pruner = _unwrap(trial.study.pruner) if isinstance(trial, optuna.Trial) else None
        if not isinstance(pruner, optuna.pruners.WilcoxonPruner):
            return
        with self._lock:
            self._seconds_of_evaluations += seconds
            in_pruner, in_evaluations = self._seconds_of_pruner, self._seconds_of_evaluations
        if in_pruner > max(in_evaluations, _MIN_SECONDS):
            self.cross_validation.warn_once(
                "slow pruner",
                lambda: (
                    f"WilcoxonPruner has taken {in_pruner:.1f} s so far, but the evaluations only "
                    f"{in_evaluations:.1f} s, because SciPy computes p-values by a permutation "
                    "test if there are at most 13 reports; use pruner=objective.pruner() or "
                    "n_startup_steps=14 instead."
                ),
            )

    def _check_sampler(self, study: optuna.Study, trial: optuna.Trial) -> None:
        """Warn if a sampler suggests points that are not on the grid or were already visited."""
        if isinstance(study.sampler, optuna.samplers.GridSampler):
            return
        name = first_key(trial.params, encode)
        is_on_grid = self._space.has_point(trial.params)
        with self._lock:
            if is_on_grid and name not in self._visited:
                self._visited |= set() if name is None else {name}
                return
        trials = study.get_trials(deepcopy=False)
        # The trial was enqueued by the user.
        if "fixed_params" in trials[trial.number].system_attrs:
            return
        with self._lock:
            if not self._expects_grid_sampler:
                return
            self._expects_grid_sampler = False
        problem = "a point a second time" if is_on_grid else "a point off the grid"
        warn_caller(
            "param_grid needs sampler=objective.grid_sampler(), because "
            f"{type(study.sampler).__name__} suggests {problem} (trial {trial.number}: "
            f"{trial.params}) and does not stop the study after the last point."
        )


def report_for(pruner: optuna.pruners.BasePruner, run: Run) -> Report:
    """Return the kind of reports that suits a pruner, see ``treecv_objective``.

    Reports during the first pass are the earliest ones. They exist only for TreeCV, and only for
    scores that are means over rows.

    Parameters
    ----------
    pruner : optuna.pruners.BasePruner
    run : Run
        The run of any trial of the objective.

    Returns
    -------
    str or None
        The kind of reports; None for a pruner that never prunes.
    """
    pruner = _unwrap(pruner)
    if isinstance(pruner, optuna.pruners.NopPruner):
        return None
    is_paired = isinstance(pruner, optuna.pruners.WilcoxonPruner)
    early = run.plan.capabilities.early_reports
    searched = {name.rpartition("__")[2] for name in run.request.cross_validation.search.ends}
    if early == "trees" and searched and not is_paired:  # a callable may create other estimators
        return "trees"
    is_one_epoch = run.plan.n_epochs <= 1 and "n_epochs" not in searched
    if early == "rows" and is_one_epoch and run.request.has_row_scores:
        return "blocks" if is_paired else "progressive"
    return "folds" if is_paired or isinstance(pruner, RacingPruner) else "mean"


def _find_pruner_problems(pruner: optuna.pruners.BasePruner, report: str | None) -> Iterator[str]:
    """Yield the reasons why a pruner is unsuitable for the reports, as sentences."""
    pruner = _unwrap(pruner)
    name = type(pruner).__name__
    if report in ("folds", "blocks") and isinstance(pruner, _RUNNING_MEAN_PRUNERS):
        single = "a single fold" if report == "folds" else "a single block of rows"
        other = "mean" if report == "folds" else "progressive"
        yield (
            f"{name} treats each report as a score of the whole trial, but with "
            f"report={report!r}, each report is the score of {single}, so good trials are pruned "
            f"at random; use pruner=objective.pruner() or report={other!r} instead."
        )
    is_paired = isinstance(pruner, optuna.pruners.WilcoxonPruner)
    if report in ("mean", "progressive", "trees") and is_paired:
        other = "blocks" if report == "progressive" else "folds"
        yield (
            f"{name} needs independent reports, but with report={report!r}, all reports are means "
            f"over the same rows; use pruner=objective.pruner() or report={other!r} instead."
        )


def _unwrap(pruner: optuna.pruners.BasePruner) -> optuna.pruners.BasePruner:
    """Return the pruner that a ``PatientPruner`` wraps; return other pruners unchanged."""
    return getattr(pruner, "_wrapped_pruner", pruner)


def is_one_pass(trial: FrozenTrial) -> bool:
    """Return whether the models of a trial were trained by passes of ``partial_fit``."""
    return facts_of_trial(trial.user_attrs).get("method") in _INCREMENTAL_METHODS


def warn_if_mixed(study: optuna.Study) -> None:
    """Warn if a study has models trained by ``fit`` and others trained by ``partial_fit``."""
    kinds = _group_by_training(study)
    if all(kinds.values()):
        warn_caller(
            f"the values of study {study.study_name!r} are not all comparable, so its best value "
            f"may be misleading: {_describe_groups(kinds)}."
        )


def _group_by_training(study: optuna.Study) -> dict[bool, list[int]]:
    """Return completed trial numbers, by whether models were trained by ``partial_fit``."""
    kinds: dict[bool, list[int]] = {True: [], False: []}
    for trial in study.get_trials(deepcopy=False, states=[TrialState.COMPLETE]):
        if "method" in facts_of_trial(trial.user_attrs):
            kinds[is_one_pass(trial)].append(trial.number)
    return kinds


def _describe_groups(kinds: dict[bool, list[int]]) -> str:
    """Return a list of the trials in each group, as text."""
    descriptions = []
    for numbers, training in ((kinds[False], "by fit"), (kinds[True], "by passes of partial_fit")):
        more = f" and {len(numbers) - _MAX_LISTED} more" if len(numbers) > _MAX_LISTED else ""
        kind = "trial" if len(numbers) == 1 else "trials"
        descriptions.append(
            f"{kind} {', '.join(map(str, numbers[:_MAX_LISTED]))}{more} {training}"
        )
    return ", ".join(descriptions)
