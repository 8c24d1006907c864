"""Checks that a study fits its objective: direction, sampler, pruner and evaluation."""

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
from optuna_treecv.estimators.base import name_of
from optuna_treecv.estimators.incremental import why_fit_differs
from optuna_treecv.study.racing import RacingPruner
from optuna_treecv.study.records import facts_of_study
from optuna_treecv.study.records import facts_of_trial
from optuna_treecv.study.records import STUDY_ATTRIBUTE
from optuna_treecv.study.space import Space
from optuna_treecv.types import Opaque

# The methods that train models by passes of partial_fit, as in the attributes of trials.
_ONE_PASS = ("treecv", "chain", "standard", "progressive")
# The most trials that a warning lists.
_MOST_NAMED = 10
# There is no warning of a pruner that has taken fewer seconds in all.
_FEWEST_SECONDS = 1.0

# These pruners need running means, in contrast to pairs of values at the same step.
_OF_RUNNING_MEANS = (
    optuna.pruners.PercentilePruner,  # and MedianPruner
    optuna.pruners.SuccessiveHalvingPruner,
    optuna.pruners.HyperbandPruner,
)


class StudyCheck:
    """Checks of the trials of one objective; trials without a study pass all of them.

    Parameters
    ----------
    cross_validation : CrossValidation
        The cross-validation of the objective.
    space : Space
    """

    def __init__(self, cross_validation: CrossValidation, space: Space) -> None:
        self.cross_validation = cross_validation
        self._space = space
        self._keeps_to_grid = space.grids is not None
        self._visited: set[bytes] = set()  # points of the grid; no more than these
        # The records of the studies that were compared.
        self._known: WeakKeyDictionary[optuna.Study, Mapping[str, Opaque]] = WeakKeyDictionary()
        self._mixed: WeakSet[optuna.Study] = WeakSet()  # warned about
        self._seconds_of_pruner = self._seconds_of_evaluations = 0.0
        self._lock = Lock()

    def directions(self, study: optuna.Study | None, wanted: list[str]) -> None:
        """Refuse a study whose directions differ from the objective's."""
        if study is None:  # FixedTrial and FrozenTrial have none
            return
        directions = [direction.name.lower() for direction in study.directions]
        if len(directions) > 1 and len(wanted) == 1:
            raise ValueError(
                "the study must have one objective, as this objective has, got "
                f"{len(directions)}; use a list of names as optimize for several."
            )
        if len(wanted) > 1 and directions != wanted:
            raise ValueError(
                f"the study's directions must be {wanted}, those of the scores to optimize, got "
                f"{directions}; use optuna.create_study(directions=objective.directions) instead."
            )
        if directions != wanted:
            raise ValueError(
                f"the study's direction must be {wanted[0]!r}, because scoring is to be "
                f"{wanted[0]}d, got {', '.join(directions)}; use "
                "optuna.create_study(direction=objective.direction) instead."
            )

    def trial(self, trial: optuna.Trial, run: Run) -> None:
        """Warn, once, of values that are not comparable, or of an unsuitable pruner or sampler.

        Parameters
        ----------
        trial : optuna.trial.Trial
            A trial that has suggested its parameters.
        run : Run
            Its run.
        """
        study = trial.study
        with self._lock:
            facts = self._known.get(study)
            if facts is None:
                self._known[study] = self._noted(study, run)
        if facts is None:
            differences = list(self.differences(study, run))
            misfits = _misfits(study.pruner, self.cross_validation.settings.report)
            for sentence in (*differences, *misfits):
                warn_caller(sentence)
            facts = self._known[study] if not differences else {}
        if facts.get("is_fitted") == run.plan.capabilities.is_incremental:
            with self._lock:
                is_first = study not in self._mixed
                self._mixed.add(study)
            if is_first:
                kinds = _by_kind(study)
                kinds[run.plan.capabilities.is_incremental].append(trial.number)
                why = f", because {run.reason}" if run.reason else ""
                warn_caller(
                    f"the study {study.study_name!r} mixes models of fit with those of passes of "
                    f"partial_fit, whose values are hardly comparable: {_in_words(kinds)}. "
                    f"{name_of(run.estimator)} of trial {trial.number} is evaluated by "
                    f"method={run.method_name!r}{why}; use method='fit' to fit all estimators."
                )
        if self._keeps_to_grid:
            self._check_sampler(study, trial)

    def epochs_in(self, study: optuna.Study | None) -> int | None:
        """Return the number of epochs if a study began with passes of ``partial_fit``, else None.

        In such a study, models are trained by passes even if "auto" would now fit them.
        """
        if study is None:
            return None
        with self._lock:
            facts = self._known.get(study) or facts_of_study(study)
        is_as_fit = facts.get("is_as_fit", True)
        return None if is_as_fit else self.cross_validation.settings.n_epochs or 1

    def differences(self, study: optuna.Study, run: Run) -> Iterator[str]:
        """Yield the reasons why a study's values cannot be compared with a run's, as sentences."""
        facts = facts_of_study(study)
        if not facts:
            return
        is_fitted = not run.plan.capabilities.is_incremental
        before, now = facts.get("report"), self.cross_validation.settings.report
        if before != now and before is not None and now is not None:
            yield (
                f"the study {study.study_name!r} has reports of report={before!r}, but this "
                f"objective has report={now!r}, whose reports at the same step are not "
                "comparable, so that pruners mislead; use one kind of report per study."
            )
        if facts.get("is_fitted", is_fitted) != is_fitted:
            kinds = "one pass over the training rows", "fits"
            theirs, ours = kinds[not is_fitted], kinds[is_fitted]
            yield (
                f"the study {study.study_name!r} has values of {theirs}, but those of this "
                f"objective are of {ours} (method={run.method_name!r}), which cannot be compared; "
                "use one study per evaluation."
            )
        digest, current = facts.get("digest"), self.cross_validation.digest(run.request.scoring)
        if digest != current and (why := self.cross_validation.why_nameless(run.request.scoring)):
            yield (
                f"the study {study.study_name!r} has values of another objective, and it is "
                f"unknown whether they are comparable with those of this one, because {why}; use "
                "one study per objective."
            )
        elif digest != current:
            yield (
                f"the study {study.study_name!r} has values from other data, weights, folds or "
                f"scoring ({STUDY_ATTRIBUTE} {digest}, now {current}), which cannot be "
                "compared with those of this objective; use one study per evaluation."
            )

    def _noted(self, study: optuna.Study, run: Run) -> Mapping[str, Opaque]:
        """Return a study's record of its evaluation; write it if there is none."""
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
        """Return the decision of the pruner on a trial, and measure the time that it takes."""
        began = perf_counter()
        answer = trial.should_prune()
        with self._lock:
            self._seconds_of_pruner += perf_counter() - began
        return answer

    def pruner_time(self, trial: BaseTrial, seconds: float) -> None:
        """Warn, once, if a ``WilcoxonPruner`` has taken longer so far than all evaluations.

        ``seconds`` is the time of the trial's evaluation.
        """
        pruner = _innermost(trial.study.pruner) if isinstance(trial, optuna.Trial) else None
        if not isinstance(pruner, optuna.pruners.WilcoxonPruner):
            return
        with self._lock:
            self._seconds_of_evaluations += seconds
            spent = self._seconds_of_pruner, self._seconds_of_evaluations
        if spent[0] > max(spent[1], _FEWEST_SECONDS):
            self.cross_validation.warn_once(
                "slow pruner",
                lambda: (
                    f"WilcoxonPruner has taken {spent[0]:.1f} s so far, and the evaluations "
                    f"{spent[1]:.1f} s: SciPy computes its p-values by a permutation test while "
                    "there are at most 13 reports; use pruner=objective.pruner(), or "
                    "n_startup_steps=14."
                ),
            )

    def _check_sampler(self, study: optuna.Study, trial: optuna.Trial) -> None:
        """Warn, once, of a sampler that repeats points of the grid or leaves it."""
        if isinstance(study.sampler, optuna.samplers.GridSampler):
            return
        name = first_key(trial.params, encode)
        is_on_grid = self._space.has_point(trial.params)
        with self._lock:
            if is_on_grid and name not in self._visited:
                self._visited |= set() if name is None else {name}
                return
        trials = study.get_trials(deepcopy=False)
        if "fixed_params" in trials[trial.number].system_attrs:  # the user has enqueued it
            return
        with self._lock:
            if not self._keeps_to_grid:
                return
            self._keeps_to_grid = False
        what = "again" if is_on_grid else "off the grid"
        warn_caller(
            f"param_grid needs sampler=objective.grid_sampler(): {type(study.sampler).__name__} "
            f"suggests points {what} (trial {trial.number}: {trial.params}), and the study does "
            "not end without n_trials."
        )


def report_for(pruner: optuna.pruners.BasePruner, run: Run) -> Report:
    """Return the kind of reports that a pruner needs, see ``treecv_objective``.

    Reports inside the first pass are the earliest, but only the tree has them, and only for means
    over rows.

    Parameters
    ----------
    pruner : optuna.pruners.BasePruner
    run : Run
        The run of any trial.

    Returns
    -------
    str or None
        None for a pruner that never prunes.
    """
    pruner = _innermost(pruner)
    if isinstance(pruner, optuna.pruners.NopPruner):
        return None
    is_paired = isinstance(pruner, optuna.pruners.WilcoxonPruner)
    early = run.plan.capabilities.early_reports
    searched = {name.rpartition("__")[2] for name in run.request.cross_validation.search.ends}
    if early == "trees" and searched and not is_paired:  # a callable may make other estimators
        return "trees"
    in_one_pass = run.plan.n_epochs <= 1 and "n_epochs" not in searched
    if early == "rows" and in_one_pass and run.request.has_row_scores:
        return "blocks" if is_paired else "progressive"
    return "folds" if is_paired or isinstance(pruner, RacingPruner) else "mean"


def _misfits(pruner: optuna.pruners.BasePruner, report: str | None) -> Iterator[str]:
    """Yield the reasons why a pruner does not fit the reports, as sentences."""
    pruner = _innermost(pruner)
    name = type(pruner).__name__
    if report in ("folds", "blocks") and isinstance(pruner, _OF_RUNNING_MEANS):
        single = "one part of the folds" if report == "folds" else "one block of rows"
        other = "mean" if report == "folds" else "progressive"
        yield (
            f"{name} treats each report as a score of the whole trial, but report={report!r} "
            f"makes reports of {single} each, so that good trials are pruned at random; use "
            f"pruner=objective.pruner() or report={other!r}."
        )
    is_paired = isinstance(pruner, optuna.pruners.WilcoxonPruner)
    if report in ("mean", "progressive", "trees") and is_paired:
        other = "blocks" if report == "progressive" else "folds"
        yield (
            f"{name} needs independent reports, but those of report={report!r} are means over "
            f"the same rows; use pruner=objective.pruner() or report={other!r}."
        )


def _innermost(pruner: optuna.pruners.BasePruner) -> optuna.pruners.BasePruner:
    """Return the pruner inside of a ``PatientPruner``, or the pruner itself."""
    return getattr(pruner, "_wrapped_pruner", pruner)


def is_one_pass(trial: FrozenTrial) -> bool:
    """Return whether the models of a trial were trained by passes of ``partial_fit``."""
    return facts_of_trial(trial.user_attrs).get("method") in _ONE_PASS


def warn_if_mixed(study: optuna.Study) -> None:
    """Warn if a study has values of both fits and passes, so that its best value may mislead."""
    kinds = _by_kind(study)
    if all(kinds.values()):
        warn_caller(
            f"the trials of study {study.study_name!r} cannot all be compared, so that its best "
            f"value may mislead: {_in_words(kinds)}."
        )


def _by_kind(study: optuna.Study) -> dict[bool, list[int]]:
    """Return the numbers of completed trials, by whether models were trained by passes."""
    kinds: dict[bool, list[int]] = {True: [], False: []}
    for trial in study.get_trials(deepcopy=False, states=[TrialState.COMPLETE]):
        if "method" in facts_of_trial(trial.user_attrs):
            kinds[is_one_pass(trial)].append(trial.number)
    return kinds


def _in_words(kinds: dict[bool, list[int]]) -> str:
    """Return the trials of each kind in words."""
    parts = []
    for numbers, how in ((kinds[False], "by fits"), (kinds[True], "by passes")):
        more = f" and {len(numbers) - _MOST_NAMED} more" if len(numbers) > _MOST_NAMED else ""
        kind = "trial" if len(numbers) == 1 else "trials"
        parts.append(f"{kind} {', '.join(map(str, numbers[:_MOST_NAMED]))}{more} {how}")
    return ", ".join(parts)
