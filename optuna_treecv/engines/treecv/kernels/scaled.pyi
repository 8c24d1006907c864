from typing import Any

import numpy as np

from optuna_treecv._kernels.moments import Blocks
from optuna_treecv.engines.treecv.kernels.kernel import Kernel

MOST_NUMBERS: int

class Scaled(Kernel):
    def __init__(
        self,
        inner: Kernel,
        centred: np.ndarray,
        scaled: np.ndarray,
        blocks: Blocks | None = None,
        beside: Any = (),
    ) -> None: ...
    @property
    def model_type(self) -> str: ...
    def start(self, state: np.ndarray) -> None: ...
    def moments(
        self, state: np.ndarray, mean: np.ndarray, M2: np.ndarray, known_mean: np.ndarray
    ) -> int: ...
