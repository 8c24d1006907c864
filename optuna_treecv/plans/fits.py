"""Helper functions of plans that refit each fold: the task of the workers, costs and errors."""

from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Iterable
from contextlib import contextmanager
from functools import partial
from pickle import PicklingError
from typing import Any

from joblib.externals.loky.backend.reduction import dumps
import numpy as np
from sklearn.base import clone
from sklearn.base import is_classifier
from sklearn.pipeline import Pipeline
from sklearn.utils.parallel import delayed
from sklearn.utils.parallel import Parallel

from optuna_treecv.core.fold_models import check_n_models
from optuna_treecv.core.fold_models import FoldModels
from optuna_treecv.core.repeat import Repeat
from optuna_treecv.core.request import Candidate
from optuna_treecv.core.request import Request
from optuna_treecv.estimators.base import seeded
from optuna_treecv.plans.fold_task import FirstSteps
from optuna_treecv.plans.fold_task import FoldTask
from optuna_treecv.preprocessing.reducers import find_largest_sizes
from optuna_treecv.rows.checks import as_codes
from optuna_treecv.rows.checks import as_numbers
from optuna_treecv.rows.data import in_given_order
from optuna_treecv.rows.folds import Cut
from optuna_treecv.scoring.metrics import Metric


def describe_trainings(request: Request, kind: str) -> str:
    """Return a sentence with the number of fits and of their training rows.

    ``kind`` is the plural noun for the fits, such as "fits" or "trainings".
    """
    n_trainings = request.cross_validation.n_folds * request.cross_validation.n_repeats
    n_rows = request.cross_validation.n_updates_standard
    return f"The {n_trainings:,} {kind} have {n_rows:,} training rows in total."


def encode_targets(request: Request) -> np.ndarray:
    """Return the class codes of y, or y as float64, in the original order of the rows."""
    y, classes = request.data.y, request.classes
    codes = partial(as_codes, y, classes) if classes is not None else partial(as_numbers, y)
    return request.cross_validation.fact("targets as numbers", codes)


def order_in_tree(cut: Cut, chunk: int) -> np.ndarray:
    """Return the indices that bring the test rows of a fold into the order of the prepared rows.

    Fits return their predictions in the order of the splitter.
    """
    rows, fitted = cut.tested_from(chunk, chunk + 1), cut.test_rows(chunk)
    order = np.empty(len(rows), np.intp)
    order[rows.argsort()] = fitted.argsort()
    return order


def make_fold_task(
    request: Request,
    candidate: Candidate,
    repeat: Repeat,
    metrics: tuple[Metric, ...] = (),
    cached_methods: tuple[str, ...] = (),
    shares_steps: bool = False,
) -> FoldTask:
    """Create the task by which workers fit the folds.

    Without metrics, the fits are not scored and only predict. Fitted first steps of Pipelines are
    cached if there are metrics, or if ``shares_steps`` is True.
    """
    metadata, cache = request.metadata, request.cross_validation.shared.cache
    estimator = seeded(clone(candidate), (request.settings.seed + repeat.number) % 2**32)
    first_steps = None
    shares_steps |= bool(metrics)
    if shares_steps and isinstance(estimator, Pipeline) and cache is not None:
        sizes = find_largest_sizes(candidate, request.cross_validation.search.ends)
        max_bytes = cache.max_bytes // request.settings.n_threads
        first_steps = FirstSteps(cache.memory, max_bytes, sizes=sizes)
    return FoldTask(
        estimator,
        request.data.X_given,
        request.data.y_given,
        metrics,
        request.data.score_weights,
        request.classes,
        first_steps,
        metadata.to_fit(estimator),
        metadata.is_routed,
        request.cross_validation.n_targets,
        cached_methods,
    )


@contextmanager
def explaining_pickles(task: FoldTask, n_jobs: int | None) -> Generator[None]:
    """Replace pickling errors within this context by an error that names the object."""
    try:
        yield
    except (PicklingError, TypeError, AttributeError) as error:
        culprit = None if n_jobs == 1 else _find_unpicklable(task)
        if culprit is None:
            raise
        raise ValueError(
            f"n_jobs={n_jobs} sends {culprit} to other processes, but it cannot be pickled: "
            f"{error}; use n_jobs=1 or joblib.parallel_config('threading') instead."
        ) from error


def explained(
    task: FoldTask, n_jobs: int | None, compute: Callable[[], Iterable[Any]]
) -> Generator[Any]:
    """Yield the results of joblib, and name an object that cannot be pickled.

    Errors raised by the consumer of this generator propagate unchanged.
    """
    with explaining_pickles(task, n_jobs):
        yield from compute()


def _find_unpicklable(task: FoldTask) -> str | None:
    parts: list[tuple[str, Any]] = [("X", task.X), ("y", task.y)]
    parts += [("scoring", getattr(metric, "score", None)) for metric in task.metrics]
    parameters = task.estimator.get_params(deep=True)
    deepest = sorted(parameters.items(), key=lambda item: -item[0].count("__"))
    parts += [(f"the estimator's parameter {name!r}", value) for name, value in deepest]
    parts.append(("estimator", task.estimator))
    for name, value in parts:
        try:
            dumps(value)
        except Exception:  # noqa: BLE001  # pickling may raise anything
            return f"{name} ({repr(value)[:80]})"
    return None


def fit_fold_models(request: Request, candidate: Candidate, repeat: Repeat) -> FoldModels:
    """Return the models that are fitted on the training rows of each fold."""
    cut, n_jobs = repeat.cut, request.settings.n_jobs
    check_n_models(candidate, cut.n_folds)
    fold_task = make_fold_task(request, candidate, repeat)
    numbers = [cut.model(chunk) for chunk in range(cut.n_folds)]  # folds may share a model
    chunks = {number: chunk for chunk, number in enumerate(numbers)}
    with fold_task.naming_step(), explaining_pickles(fold_task, n_jobs):
        fitted = Parallel(n_jobs)(
            delayed(fold_task.fitted_on)(cut.split(chunk)) for chunk in chunks.values()
        )
    models = dict(zip(chunks, fitted, strict=True))
    return FoldModels([models[number] for number in numbers])


def predict_by_fits(
    request: Request, candidate: Candidate, repeat: Repeat, method: str
) -> np.ndarray:
    """Refit each fold, and return the predictions for all test rows in their original order."""
    cut = repeat.cut
    reason = request.data.why_only_fit(is_classifier(candidate))
    if method != "predict" and reason.startswith("y has"):
        raise ValueError(f"response_method must be 'predict' because {reason}, got {method!r}.")
    fold_task = make_fold_task(request, candidate, repeat)
    chunks, n_jobs = range(cut.n_folds), request.settings.n_jobs
    with fold_task.naming_step(), explaining_pickles(fold_task, n_jobs):
        responses = Parallel(n_jobs)(
            delayed(fold_task.respond)(cut.split(chunk), method) for chunk in chunks
        )
    rows = np.concatenate([cut.test_rows(chunk) for chunk in chunks])
    return in_given_order(np.concatenate(responses), rows)
