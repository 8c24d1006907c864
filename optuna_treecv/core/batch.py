"""The evaluation of several candidates in one call of their plan, before their runs ask for it."""

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
from optuna_treecv.core.engine import FoldModels
from optuna_treecv.core.engine import TestedFolds
from optuna_treecv.core.engine import TreeProgress
from optuna_treecv.core.engine import Work
from optuna_treecv.core.repeat import Repeat
from optuna_treecv.core.run import Precomputed
from optuna_treecv.core.run import Run
from optuna_treecv.types import Array


def evaluate_batch(runs: Iterable[Run], are_leased: bool = False) -> bool:
    """Evaluate those runs together that can be; each of them has ``precomputed`` results then.

    A run that cannot be is left to evaluate itself, and so is one with a wrong parameter, which
    raises its error then.

    Parameters
    ----------
    runs : iterable of Run
        All of one cross-validation.
    are_leased : bool
        Whether other processes may wait for the results, so that they go to the store at once.

    Returns
    -------
    bool
        Whether anything was computed.
    """
    runs = list(runs)
    is_any = False
    for number in range(len(runs[0].plan.repeats) if runs else 0):
        groups: dict[tuple[str, bytes], list[Run]] = {}
        for run in runs:
            if group := run.group_of(run.plan.repeats[number]):
                groups.setdefault((run.plan.name, group), []).append(run)
        for of_group in groups.values():
            if len(of_group) > 1:
                is_any |= _evaluate_group(of_group, number, are_leased)
    return is_any


def _evaluate_group(runs: Sequence[Run], number: int, are_leased: bool) -> bool:
    """Evaluate runs of one group on the repeat with this number; return whether any was."""
    began, since = perf_counter(), datetime.now(UTC)
    plan = runs[0].plan
    repeat = plan.repeats[number]
    each = [Precomputed() for _ in runs]
    watch = next((run.watch for run in runs if run.watch is not None and number == 0), None)
    candidates = [run.estimator for run in runs]
    sinks = [run.sink(repeat, one.cost) for run, one in zip(runs, each, strict=True)]
    bound = [run.results(repeat).bound for run in runs]
    work = Work(candidates, sinks, repeat, range(repeat.cut.n_folds), watch, bound)
    try:
        with closing(plan.evaluate(work)) as events:
            for event in events:
                assert not isinstance(event, FoldModels | TreeProgress)  # they are of single runs
                _take(runs[event.candidate], repeat, each[event.candidate], event)
    except ConnectionError:
        raise
    except Exception:  # noqa: BLE001  # each run will raise its own
        for run in runs:
            run.book.forget(repeat)
        return False
    seconds = (perf_counter() - began) / len(runs)
    computed = [(run, one) for run, one in zip(runs, each, strict=True) if one.events]
    for run, one in computed:
        one.cost.seconds += seconds
        run.precomputed[number] = one
    cache = plan.request.cross_validation.shared.cache
    if are_leased and isinstance(cache, StoredModelCache):
        cache.write(kept for run, one in computed for kept in _lent(run, repeat, one, since))
    return bool(computed)


def _take(run: Run, repeat: Repeat, one: Precomputed, event: Event) -> None:
    """Take an event of a run; predictions are scored at once, because they may be large."""
    if isinstance(event, Failed):
        run.book.forget(repeat)
        # A run without a fallback will raise its own error, which may say more.
        one.events = [] if run.plan.fallback is None else [event]
        one.n_needed = 0
    elif isinstance(event, TestedFolds):
        run.book.add(repeat, event)
        one.n_needed += event.n_needed
        if event.folds.last == repeat.cut.n_folds:
            of_all = TestedFolds(0, repeat.plan.root, one.n_needed, record=event.record)
            one.events.append(of_all)
    else:
        one.events.append(event)


def _lent(
    run: Run, repeat: Repeat, one: Precomputed, since: datetime
) -> Iterator[tuple[Key, Array, float]]:
    """Yield what other processes wait for; its negative count says that no trial has counted.

    The first trial that is recorded in the store counts the row updates.
    """
    cost, last = one.cost, one.events[-1]
    record = last.record if isinstance(last, TestedFolds) else None
    if not isinstance(record, ArrayThenCount) or record.was_kept:
        return
    for spec in run.results(repeat).specs.values():
        one.since, n_updates = since, cost.n_updates
        cost.n_updates, cost.n_uncounted = 0, n_updates
        yield spec.key, ArrayThenCount.of(record.array, -n_updates).memory, cost.seconds
