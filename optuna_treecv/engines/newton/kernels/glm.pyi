import numpy as np

def add_products(
    values: np.ndarray,
    columns: np.ndarray,
    starts: np.ndarray,
    weights: np.ndarray,
    n_features: int,
    products: np.ndarray,
) -> None: ...
def multiply_sparse(
    values: np.ndarray,
    columns: np.ndarray,
    starts: np.ndarray,
    W: np.ndarray,
    Z: np.ndarray,
    transpose: bool,
) -> None: ...
def multiply_columns(X: np.ndarray, products: np.ndarray) -> None: ...
def logistic_slopes(z: np.ndarray, y: np.ndarray) -> None: ...
def softmax(z: np.ndarray, y: np.ndarray | None = None) -> None: ...
