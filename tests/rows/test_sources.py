"""Rows in files and lazy frames: the scores are those of the same numbers in an array."""

from importlib.util import find_spec
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective
from optuna_treecv import TreeCVSearchCV
from optuna_treecv.rows.data import Data
from optuna_treecv.rows.row_file import NO_LIMIT
from optuna_treecv.rows.row_file import Room
from optuna_treecv.rows.sources import opened

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30_000, 20))
Y = (X[:, 0] + RNG.normal(size=len(X)) > 0).astype(int)
NAMES = [f"c{i}" for i in range(20)]
SMALL = "1.1MB"
TIGHT = Room(2**20)
MODELS = {
    "compiled": PegasosClassifier(),
    "scaled": make_pipeline(StandardScaler(), PegasosClassifier()),
}


def frame_of(rows=X, labels=Y):
    return pd.DataFrame(rows, columns=NAMES[: rows.shape[1]]).assign(label=labels)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The same rows in all kinds of files."""
    folder = tmp_path_factory.mktemp("sources")
    np.save(folder / "rows.npy", X)
    np.save(folder / "columns.npy", np.asfortranarray(X))
    np.save(folder / "labels.npy", Y)
    if find_spec("pyarrow"):
        import pyarrow as pa
        from pyarrow import parquet

        table = pa.Table.from_pandas(frame_of())
        parquet.write_table(table, folder / "rows.parquet", row_group_size=7_000)
        (folder / "parts").mkdir()
        for number, start in enumerate(range(0, len(X), 8_000)):
            parquet.write_table(table[start : start + 8_000], folder / "parts" / f"{number}.pq")
    return folder


@pytest.fixture(scope="module")
def expected():
    return {name: tree_cross_validate(one, X, Y).test_score for name, one in MODELS.items()}


def in_arrow(folder):
    return pytest.importorskip("pyarrow").Table.from_pandas(frame_of())


def as_dataset(folder):
    return pytest.importorskip("pyarrow.dataset").dataset(folder / "parts")


def filtered(folder):
    dataset = pytest.importorskip("pyarrow.dataset")
    return as_dataset(folder).filter(dataset.field("label") >= 0)


def lazy(folder):
    return pytest.importorskip("polars").scan_parquet(folder / "rows.parquet")


def in_polars(folder):
    return pytest.importorskip("polars").DataFrame(frame_of())


SOURCES = {
    ".npy": lambda folder: (str(folder / "rows.npy"), folder / "labels.npy"),
    ".npy by columns": lambda folder: (folder / "columns.npy", str(folder / "labels.npy")),
    "Parquet": lambda folder: (str(folder / "rows.parquet"), "label"),
    "folder": lambda folder: (folder / "parts", "label"),
    "data set": lambda folder: (as_dataset(folder), "label"),
    "filtered": lambda folder: (filtered(folder), "label"),
    "table": lambda folder: (in_arrow(folder), "label"),
    "without a name": lambda folder: (in_arrow(folder).drop(["label"]), Y),
    "lazy": lambda folder: (lazy(folder), "label"),
    "lazy, without a name": lambda folder: (
        lazy(folder).drop("label"),
        lazy(folder).select("label"),
    ),
    "polars": lambda folder: (in_polars(folder), "label"),
    "pandas": lambda folder: (frame_of(), "label"),
}


def data_of(X, y, room):
    X, y, names = opened(X, y, room)
    return Data(X, y, room, names)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:A column-vector y")
@pytest.mark.parametrize("max_memory", [None, SMALL], ids=["in memory", "in a file"])
@pytest.mark.parametrize("source", SOURCES)
def test_scores_are_those_of_an_array(folder, expected, source, max_memory):
    name = "scaled" if max_memory else "compiled"
    rows, labels = SOURCES[source](folder)
    found = tree_cross_validate(MODELS[name], rows, labels, max_memory=max_memory)
    assert found.method == "treecv"
    assert np.array_equal(found.test_score, expected[name])


@pytest.mark.slow
@pytest.mark.parametrize("source", ["Parquet", "lazy", "table"])
def test_rows_go_into_a_file_where_memory_does_not_hold_them(folder, source):
    rows, labels = SOURCES[source](folder)
    found, y, names = opened(rows, labels, TIGHT)
    assert isinstance(found, np.memmap) and not found.flags.writeable
    assert names == NAMES and np.array_equal(found, X) and np.array_equal(y, Y)
    found, y, names = opened(rows, labels, NO_LIMIT)
    assert list(found.columns) == NAMES and names is None and np.array_equal(y, Y)
    just_enough = Room(X.nbytes)
    assert not isinstance(opened(rows, labels, just_enough)[0], np.memmap)
    assert isinstance(opened(rows, labels, Room(X.nbytes - 1))[0], np.memmap)


def test_names_of_columns_survive(folder):
    pytest.importorskip("pyarrow")
    data = data_of(folder / "rows.parquet", "label", TIGHT)
    assert list(data.feature_names()) == NAMES
    objective = treecv_objective(
        PegasosClassifier(), folder / "parts", "label", param_grid={"alpha": [0.1]}
    )
    assert list(objective.evaluator.cross_validation.data.feature_names()) == NAMES


KINDS = {
    "int": np.int64,
    "bool": np.bool_,
    "float32": np.float32,
    "small int among float32": (np.int16, np.float32),
    "bool among float32": (np.bool_, np.float32),
    "int among float32": (np.int32, np.float32),
    "unsigned": (np.uint8, np.float64),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("library", ["pyarrow", "polars"])
def test_types_of_columns(library, kind):
    """Prepared rows are of the same type and hold the same numbers, in memory and in a file."""
    kinds = np.broadcast_to(np.array(KINDS[kind], dtype=object), 2)
    columns = {
        name: (10 * X[:, i]).astype(of)
        for i, (name, of) in enumerate(zip("abcdefghijklmn", np.tile(kinds, 7), strict=True))
    }
    if library == "pyarrow":
        rows = pytest.importorskip("pyarrow").table(columns)
    else:
        rows = pytest.importorskip("polars").LazyFrame(columns)
    in_file = opened(rows, None, TIGHT)[0]
    assert isinstance(in_file, np.memmap)
    assert in_file.dtype == (np.float32 if kind in IN_SINGLE[library] else np.float64)
    values = np.column_stack([*columns.values()]).astype(np.float64)
    assert np.array_equal(in_file, values)
    model = PegasosClassifier()
    scores = [
        tree_cross_validate(model, rows, Y, max_memory=limit).test_score for limit in (None, SMALL)
    ]
    assert np.array_equal(*scores)


# As the libraries make arrays of such frames: bools are numbers for polars.
IN_SINGLE = {
    "pyarrow": {"float32", "small int among float32"},
    "polars": {"float32", "small int among float32", "bool among float32"},
}


@pytest.mark.slow
@pytest.mark.parametrize("library", ["pyarrow", "polars"])
def test_nulls_are_missing_values(tmp_path, library):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    whole, decided = np.arange(30_000) % 5, X[:, 0] > 0
    is_missing = np.arange(30_000) == 29_990
    columns = {name: X[:, i] for i, name in enumerate(NAMES)}
    for name, values in (("whole", whole), ("decided", decided), ("c0", X[:, 0])):
        nulls = pa.table({**columns, name: pa.array(values, mask=is_missing)})
        parquet.write_table(nulls, tmp_path / "nulls.parquet")
        rows = tmp_path / "nulls.parquet"
        if library == "polars":
            rows = pytest.importorskip("polars").scan_parquet(rows)
        found, _, names = opened(rows, None, TIGHT)
        column = names.index(name)
        assert np.array_equal(np.flatnonzero(np.isnan(found).any(axis=1)), [29_990])
        assert np.array_equal(found[:29_990, column], values[:29_990])
        with pytest.raises(ValueError, match=f"NaN in column '{name}', row 29990"):
            tree_cross_validate(PegasosClassifier(), rows, Y, max_memory=SMALL)


def test_columns_that_hold_no_numbers(folder):
    pa = pytest.importorskip("pyarrow")
    table = in_arrow(folder).append_column("city", pa.array(["Rome"] * len(X)))
    day = pa.array(np.full(len(X), "2026-01-01", "datetime64[s]"))
    table = table.append_column("day", day)
    sentence = (
        r"X must contain numbers if .* max_memory, got type string in column 'city'; "
        r"use polars.*\.drop\('city', 'day'\) instead"
    )
    with pytest.raises(ValueError, match=sentence):
        tree_cross_validate(PegasosClassifier(), table, "label", max_memory=SMALL)
    frame = opened(table, "label", NO_LIMIT)[0]
    assert list(frame.columns) == [*NAMES, "city", "day"]
    rows = pytest.importorskip("polars").from_arrow(table).lazy()
    with pytest.raises(ValueError, match=r"column 'city'.*X.drop\('city', 'day'\) instead"):
        tree_cross_validate(PegasosClassifier(), rows, "label", max_memory=SMALL)


@pytest.mark.slow
def test_labels_may_be_texts(folder):
    pa = pytest.importorskip("pyarrow")
    texts = np.where(Y, "yes", "no")
    for labels in (pa.array(texts), pa.array(texts).dictionary_encode()):
        table = in_arrow(folder).set_column(20, "label", labels)
        for rows in (table, pytest.importorskip("polars").from_arrow(table).lazy()):
            for room in (NO_LIMIT, TIGHT):
                assert np.array_equal(data_of(rows, "label", room).y, texts)


def test_an_index_of_pandas_is_no_feature(tmp_path):
    pytest.importorskip("pyarrow")
    frame_of().set_index("c0").to_parquet(tmp_path / "rows.parquet")
    for room in (NO_LIMIT, TIGHT):
        data = data_of(tmp_path / "rows.parquet", "label", room)
        assert list(data.feature_names()) == NAMES[1:]


def test_folders_may_name_a_column(tmp_path):
    pytest.importorskip("pyarrow")
    frame_of().assign(part=np.arange(len(X)) // 10_000).to_parquet(
        tmp_path, partition_cols=["part"]
    )
    found, _, names = opened(tmp_path, "label", TIGHT)
    assert names == [*NAMES, "part"]
    assert np.array_equal(found[:, 20], np.arange(len(X)) // 10_000)
    assert np.array_equal(found[:, :20], X)


@pytest.mark.parametrize("max_memory", [None, SMALL])
def test_names_of_targets(folder, max_memory):
    for rows in (frame_of(), folder / "rows.parquet", lazy(folder), in_polars(folder)):
        with pytest.raises(ValueError, match="name of a column of X, got 'lable'; X has c0, c1"):
            tree_cross_validate(PegasosClassifier(), rows, "lable", max_memory=max_memory)
    with pytest.raises(ValueError, match="y must be an array, a path.*got 'label' for X of type"):
        tree_cross_validate(PegasosClassifier(), X, "label", max_memory=max_memory)


def test_paths_that_cannot_be_read(tmp_path):
    pytest.importorskip("pyarrow")
    np.save(tmp_path / "objects.npy", np.array([[1, "a"]], dtype=object))
    (tmp_path / "empty.npy").touch()
    (tmp_path / "text.parquet").write_text("a,b\n")
    (tmp_path / "rows.npz").touch()
    (tmp_path / "nothing").mkdir()
    sentences = {
        "objects.npy": "objects",
        "empty.npy": "No data left in file",
        "text.parquet": "Is this a 'parquet' file",
        "rows.npz": "which is another kind of file; use an array",
        "nothing": "which is another kind of file; use an array",
        "absent.npy": "No such file",
        "absent.parquet": "absent.parquet",
        "absent": "which does not exist",
    }
    for name, sentence in sentences.items():
        right = r"X must be a path to a \.npy file, a Parquet file \(\.parquet\) or a folder of "
        with pytest.raises(ValueError, match=rf"^{right}those, got '.*{name}'.*{sentence}"):
            tree_cross_validate(PegasosClassifier(), tmp_path / name, Y)
    with pytest.raises(ValueError, match=r"^y must be a path to a \.npy file, got .*objects"):
        tree_cross_validate(PegasosClassifier(), X, str(tmp_path / "objects.npy"))
    with pytest.raises(ValueError, match=r"^y must be a path to a \.npy file, got .*rows.npz"):
        tree_cross_validate(PegasosClassifier(), X, tmp_path / "rows.npz")


def test_rows_that_cannot_be_read_again():
    class DuckDBPyRelation:
        """As that of DuckDB."""

        __module__ = "duckdb"

    with pytest.raises(ValueError, match=r"a relation of DuckDB; use X\.df\(\), or"):
        tree_cross_validate(PegasosClassifier(), DuckDBPyRelation(), Y)
    with pytest.raises(ValueError, match=r"the iterator generator; use numpy.stack\(list\(X\)\)"):
        tree_cross_validate(PegasosClassifier(), (row for row in X), Y)


def test_rows_that_change_while_they_are_read(folder, monkeypatch):
    dataset = as_dataset(folder)
    monkeypatch.setattr("optuna_treecv.rows.sources._batches", lambda *args: iter(()))
    with pytest.raises(ValueError, match="must not change .* got 30000 rows at first and 0 later"):
        opened(dataset, "label", TIGHT)


def test_estimators_that_need_all_rows_say_so(folder):
    pytest.importorskip("pyarrow")
    with pytest.raises(ValueError, match="max_memory must be .* bytes for Ridge"):
        tree_cross_validate(
            Ridge(), folder / "rows.parquet", "label", max_memory=SMALL, method="fit"
        )
    found = tree_cross_validate(
        SGDClassifier(), folder / "rows.parquet", "label", method="fit", cv=2
    )
    assert found.method == "fit"


@pytest.mark.slow  # it searches seven times
def test_a_search_fits_the_best_estimator_on_all_rows(folder):
    def found(rows, labels, max_memory=None):
        options = {"cv": 2, "random_state": 0, "max_memory": max_memory}
        search = TreeCVSearchCV(PegasosClassifier(), {"alpha": [0.1, 1.0]}, **options)
        return search.fit(rows, labels).best_estimator_.coef_

    of_array = found(X, Y)
    for source in (".npy", "lazy"):
        for max_memory in (None, SMALL):
            assert np.array_equal(found(*SOURCES[source](folder), max_memory), of_array)


@pytest.mark.slow  # it starts Python
def test_libraries_are_imported_where_their_data_are_given():
    code = (  # pandas imports pyarrow itself
        "import sys, numpy as np; from optuna_treecv import *;"
        "X = np.random.default_rng(0).normal(size=(50, 2));"
        "tree_cross_validate(PegasosClassifier(), X, X[:, 0] > 0, cv=2);"
        "names = 'pyarrow.dataset', 'pyarrow.parquet', 'polars', 'dask';"
        "print([name for name in names if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_files_of_other_types_are_cast_as_in_memory(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    pa = pytest.importorskip("pyarrow")
    values = np.random.default_rng(0).normal(size=(2, 3000))
    for number, kind in enumerate((pa.float32(), pa.float64())):
        table = pa.table({"a": pa.array(values[number]).cast(kind), "b": values[1 - number]})
        parquet.write_table(table, tmp_path / f"part-{number}.parquet")
    in_memory, _, _ = opened(tmp_path, None, Room())
    in_file, _, _ = opened(tmp_path, None, Room(1000))
    assert np.array_equal(in_memory.to_numpy(), in_file)
