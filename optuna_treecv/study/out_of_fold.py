"""Out-of-fold predictions of a trial, as an array or as a data frame."""

import numpy as np
from sklearn.utils import _safe_indexing

from optuna_treecv.core.run import Run
from optuna_treecv.estimators.checks import import_pandas
from optuna_treecv.rows.checks import without_single_column
from optuna_treecv.rows.data import in_given_order
from optuna_treecv.study.fold_average import check_classes
from optuna_treecv.types import Array
from optuna_treecv.types import Opaque


def as_labels(run: Run, outputs: Array, method: str) -> Array:
    """Return outputs of a trial with class labels instead of class codes."""
    classes = run.request.classes
    return outputs if classes is None or method != "predict" else classes[outputs]


def as_given(run: Run, outputs: Array) -> Array:
    """Return outputs, which are in the order of ``Tested.rows``, in the order of the rows of X."""
    return in_given_order(outputs, run.request.cross_validation.tested(run.method_name).rows)


def predict_tested(run: Run, method: str) -> Array:
    """Return the outputs of a run for all tested rows, in the order of ``Tested.rows``.

    If rows are tested several times or not at all, the fold models predict them.
    """
    tested, X = run.request.cross_validation.tested(run.method_name), run.request.data.X_given
    if run.tests_each_row_once:
        return run.predict(method, "method")[tested.rows]
    models, outputs, n_earlier = run.fold_models(), [], 0
    if run.request.classes is not None:
        check_classes(models, "predict_oof")
    for cut in tested.cuts:
        for chunk in range(cut.n_folds):
            model = models[n_earlier + cut.number(chunk)]
            rows = _safe_indexing(X, cut.tested_from(chunk, chunk + 1))
            outputs.append(without_single_column(getattr(model, method)(rows)))
        n_earlier += cut.n_folds
    return np.concatenate(outputs)


def as_frame(run: Run, outputs: Array, method: str) -> Opaque:
    """Return predictions as a data frame with a row for each test of a row, in the order of X.

    ``outputs`` are in the order of ``Tested.rows``, with labels in place of class codes. The index
    is that of X. The columns are "repeat", "fold", and the outputs: the name of the method,
    followed by the class or the index of the target if there are several columns.
    """
    pandas = import_pandas("predict_oof with as_frame=True")
    cross_validation, classes = run.request.cross_validation, run.request.classes
    tested = cross_validation.tested(run.method_name)
    sizes = [cut.n_tested for cut in tested.cuts]
    repeats = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((tested.rows, repeats))
    columns: dict[str, Array] = {"repeat": repeats, "fold": tested.fold_numbers}
    if outputs.ndim == 1:
        columns[method] = outputs
    else:
        names = range(outputs.shape[1]) if classes is None else classes.tolist()
        columns |= {f"{method}_{name}": outputs[:, i] for i, name in enumerate(names)}
    index = getattr(run.request.data.X_given, "index", None)
    rows = tested.rows if index is None else index[tested.rows]
    return pandas.DataFrame(columns, index=rows).iloc[order]
