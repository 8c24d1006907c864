"""Takes columns out of sparse rows, so that they lie beside them as dense ones.

Steps such as a StandardScaler leave no zeros in the columns that they centre, while the columns of
a OneHotEncoder in the same table are nearly all zeros.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse


def split_columns(
    X: sparse.csr_array, is_beside: np.ndarray
) -> tuple[sparse.csr_array, np.ndarray]:
    """Divide the columns of sparse rows.

    Parameters
    ----------
    X : sparse matrix of shape (n_rows, n_features), CSR without duplicates
    is_beside : ndarray of shape (n_features,), bool

    Returns
    -------
    sparse_rows : sparse array of shape (n_rows, n_features)
        Without entries in these columns.
    dense_rows : ndarray of shape (n_rows, n_beside)
        These columns.
    """
    goes = is_beside[X.indices]
    n_going = np.append(0, np.cumsum(goes))[X.indptr]  # before each row
    dense = np.zeros((X.shape[0], int(is_beside.sum())), X.dtype)
    rows = np.repeat(np.arange(X.shape[0]), np.diff(n_going))
    dense[rows, (np.cumsum(is_beside) - 1)[X.indices[goes]]] = X.data[goes]
    kept = X.data[~goes], X.indices[~goes], X.indptr - n_going
    return sparse.csr_array(kept, shape=X.shape), dense
