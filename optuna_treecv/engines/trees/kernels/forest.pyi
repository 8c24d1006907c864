import numpy as np

RECORD: np.dtype

def grow(
    bins: np.ndarray,
    classes: np.ndarray | None,
    targets: np.ndarray | None,
    weights: np.ndarray | None,
    n_bins: np.ndarray,
    has_missing: np.ndarray,
    is_categorical: np.ndarray,
    bounds: np.ndarray,
    held_out: np.ndarray,
    factors: np.ndarray,
    min_leaf: np.ndarray,
    min_split: np.ndarray,
    min_share: float,
    max_depth: int,
    min_decrease: float,
    entropy: bool,
    unit: float,
    seed: int,
    leaf: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int, int]: ...
