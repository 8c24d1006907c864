"""Evaluate several candidates in one call of their plan, before their runs need the results."""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from datetime import UTC
from time import perf_counter

from optuna_treecv.caching.caches import ArrayThenCount
from optuna_treecv.caching.caches import StoredModelCache
from optuna_treecv.caching.keys import Key
from optuna_treecv.core.engine import Event
from optuna_treecv.core.engine import Failed
from optuna_treecv.core.engine import ModelSum
from optuna_treecv.core.engine import TestedFolds
from optuna_treecv.core.engine import TreeProgress
from optuna_treecv.core.engine import Work
from optuna_treecv.core.repeat import Repeat
from optuna_treecv.core.run import Precomputed
from optuna_treecv.core.run import progress_bar
from optuna_treecv.core.run import Run
from optuna_treecv.types import Array


def evaluate_batch(runs: Iterable[Run], are_leased: bool = False) -> bool:
    """Precompute the results of all runs that can be evaluated in a batch.

    Other runs are left unchanged, including those with an invalid parameter. They evaluate their
    folds, and raise their errors, when they are iterated over.

    Parameters
    ----------
    runs : iterable of Run
        Runs of a single cross-validation.
    are_leased : bool
        Whether other processes may be waiting for the results. If so, the results are stored
        immediately.

    Returns
    -------
    bool
        Whether the results of any run were computed.
    """
    runs = list(runs)
    has_computed = False
    for number in range(len(runs[0].plan.repeats) if runs else 0):
        groups: dict[tuple[str, bytes], list[Run]] = {}
        for run in runs:
            if group := run.group_of(run.plan.repeats[number]):
                groups.setdefault((run.plan.name, group), []).append(run)
        for group_runs in groups.values():
            if len(group_runs) > 1:
                has_computed |= _evaluate_group(group_runs, number, are_leased)
    return has_computed


def _evaluate_group(runs: Sequence[Run], number: int, are_leased: bool) -> bool:
    """Evaluate the runs of one group on a repeat; return whether any of them succeeded."""
    began, since = perf_counter(), datetime.now(UTC)
    plan = runs[0].plan
    repeat = plan.repeats[number]
    results = [Precomputed() for _ in runs]
    watch = next((run.watch for run in runs if run.watch is not None and number == 0), None)
    candidates = [run.estimator for run in runs]
    sinks = [run.sink(repeat, result.cost) for run, result in zip(runs, results, strict=True)]
    bound = [run.results(repeat).bound for run in runs]
    work = Work(candidates, sinks, repeat, range(repeat.cut.n_folds), watch, bound)
    bar = progress_bar(runs[0], len(runs) * repeat.cut.n_folds)
    try:
        with closing(bar), closing(plan.evaluate(work)) as events:
            for event in events:
                if isinstance(event, TestedFolds):
                    bar.update(event.folds.n_folds)
                assert not isinstance(event, ModelSum | TreeProgress)  # not in batches
                _add_event(runs[event.candidate], repeat, results[event.candidate], event)
    except ConnectionError:
        raise
    except Exception:  # noqa: BLE001  # each run raises its own error later
        for run in runs:
            run.book.forget(repeat)
        return False
    seconds = (perf_counter() - began) / len(runs)
    computed = [(run, result) for run, result in zip(runs, results, strict=True) if result.events]
    for run, result in computed:
        result.cost.seconds += seconds
        run.precomputed[number] = result
    cache = plan.request.cross_validation.shared.cache
    if are_leased and isinstance(cache, StoredModelCache):
        cache.write(
            row for run, result in computed for row in _leased_results(run, repeat, result, since)
        )
    return bool(computed)


def _add_event(run: Run, repeat: Repeat, result: Precomputed, event: Event) -> None:
    """Add an event to the results of a run.

    Predictions are scored immediately and not stored, because they may be large.
    """
    if isinstance(event, Failed):
        run.book.forget(repeat)
        # A run without a fallback raises its own error later, which may be more specific.
        result.events = [] if run.plan.fallback is None else [event]
        result.n_needed = 0
    elif isinstance(event, TestedFolds):
        run.book.add(repeat, event)
        result.n_needed += event.n_needed
        if event.folds.last == repeat.cut.n_folds:
            all_folds = TestedFolds(0, repeat.plan.root, result.n_needed, record=event.record)
            result.events.append(all_folds)
    else:
        result.events.append(event)


def _leased_results(
    run: Run, repeat: Repeat, result: Precomputed, since: datetime
) -> Iterator[tuple[Key, Array, float]]:
    """Yield (key, array, seconds) for the results that other processes may be waiting for.

    The number of row updates is stored as a negative number, because no trial has counted these
    updates yet. The first trial that is recorded in the store counts them.
    """
    cost, last = result.cost, result.events[-1]
    record = last.record if isinstance(last, TestedFolds) else None
    if not isinstance(record, ArrayThenCount) or record.was_kept:
        return
    for spec in run.results(repeat).specs.values():
        result.since, n_updates = since, cost.n_updates
        cost.n_updates, cost.n_uncounted = 0, n_updates
        yield spec.key, ArrayThenCount.of(record.array, -n_updates).memory, cost.seconds
