"""What a search tells the callbacks of scikit-learn, which are set by ``set_callbacks``."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from typing import Self

try:
    from sklearn.callback import CallbackSupportMixin as CallbackSupportMixin
    from sklearn.callback import with_callbacks
except ImportError:  # scikit-learn before 1.9: a search has no set_callbacks
    CallbackSupportMixin = type("CallbackSupportMixin", (), {})

    def with_callbacks(method: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method."""
        return method


class FitTasks:
    """The tasks of one search, by the names that they have in scikit-learn's searches.

    It is a context: the search begins where it is entered, and is over where it is left.

    The splits of a trial are evaluated together, so their tasks begin and end together.

    Parameters
    ----------
    search : TreeCVSearchCV
    refits : bool
    **data : Any
        ``X``, ``y`` and ``metadata``, for the callbacks.
    """

    def __init__(self, search: Any, refits: bool, **data: Any) -> None:
        self._search = search
        self._refits = refits
        self._data = {"estimator": search, **data}
        self._is_heard = bool(getattr(search, "_skl_callbacks", ()))

    def begin_trials(self, n_evaluations: int) -> None:
        """Begin the task of all trials, which is over when the last one is."""
        if self._is_heard:
            self._trials = self._root.subcontext("search", max_subtasks=n_evaluations)
            self._trials.call_on_fit_task_begin(**self._data)

    def end_trials(self) -> None:
        """End the task of all trials."""
        if self._is_heard:
            self._trials.call_on_fit_task_end(**self._data)

    @contextmanager
    def trial(self, n_splits: int) -> Generator[None]:
        """Return a context in which the splits of one trial are evaluated."""
        if not self._is_heard:
            yield
            return
        tasks = [self._trials.subcontext("candidate-split-evaluation") for _ in range(n_splits)]
        for task in tasks:
            task.call_on_fit_task_begin(**self._data)
        try:
            yield
        finally:
            for task in tasks:
                task.call_on_fit_task_end(**self._data)

    @contextmanager
    def refit(self) -> Generator[None]:
        """Return a context in which the best estimator is fitted."""
        if not self._is_heard:
            yield
            return
        task = self._root.subcontext("refit-with-best-params")
        task.call_on_fit_task_begin(**self._data)
        yield
        task.call_on_fit_task_end(**self._data)

    def __enter__(self) -> Self:
        if self._is_heard:
            self._root = self._search._init_callback_context(max_subtasks=1 + self._refits)
            self._root.call_on_fit_task_begin(**self._data)
        return self

    def __exit__(self, kind: type | None, error: Any, where: Any) -> None:
        try:
            if self._is_heard and error is None:
                self._root.call_on_fit_task_end(**self._data)
        finally:
            with_callbacks(lambda search: None)(self._search)  # tears the callbacks down
