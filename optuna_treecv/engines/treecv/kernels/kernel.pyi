from typing import Any

import numpy as np

class Kernel:
    n_rows: int
    n_models: int
    out_rows: int
    n_outputs: int
    itemsize: int
    state_bytes: int
    model_bytes: int
    log_bytes: int
    def weigh(self, weights: Any, balanced: bool = False) -> None: ...
    def start(self, state: np.ndarray) -> None: ...
    @property
    def model_type(self) -> str: ...
    def n_seen(self, state: np.ndarray) -> int: ...
    @property
    def surveys(self) -> bool: ...
    def survey(
        self, state: np.ndarray, start: int, stop: int, order: np.ndarray | None
    ) -> None: ...
    def update(
        self, state: np.ndarray, start: int, stop: int, order: np.ndarray | None = None
    ) -> None: ...
    @property
    def tests_rows(self) -> bool: ...
    def test_then_train(
        self, state: np.ndarray, start: int, stop: int, order: np.ndarray | None, out: np.ndarray
    ) -> None: ...
    @property
    def trains_pairs(self) -> bool: ...
    def update_both(
        self,
        first: np.ndarray,
        start: int,
        stop: int,
        second: np.ndarray,
        second_start: int,
        second_stop: int,
        order: np.ndarray | None,
    ) -> None: ...
    def read_out(self, state: np.ndarray, model: np.ndarray) -> None: ...
    def test(
        self, state: np.ndarray, model: np.ndarray, start: int, stop: int, out: np.ndarray
    ) -> None: ...
    def walk_subtree(
        self,
        plan: Any,
        node: Any,
        states: np.ndarray,
        model: np.ndarray,
        out: np.ndarray,
        log: np.ndarray | None = None,
        order: np.ndarray | None = None,
        sums: np.ndarray | None = None,
        kept: np.ndarray | None = None,
        least_folds: int = 1,
        models: np.ndarray | None = None,
    ) -> int: ...
