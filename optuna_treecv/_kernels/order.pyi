import numpy as np

def random_order(seed: int, start: int, stop: int, n_seen: int, order: np.ndarray) -> None: ...
def order_with_replays(
    seed: int,
    start: int,
    stop: int,
    n_seen: int,
    random: bool,
    held_start: int,
    held_stop: int,
    n_rows: int,
    n_epochs: int,
    order: np.ndarray,
) -> None: ...
def sort_by_key(
    rows: np.ndarray, keys: np.ndarray, offsets: np.ndarray, out: np.ndarray
) -> None: ...
def derive_seed(seed: int, label: int) -> int: ...
