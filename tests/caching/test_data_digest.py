"""Digests of data as they were given: any change of the content is seen, and nothing else."""

from __future__ import annotations

from datetime import date
from datetime import datetime
from datetime import timedelta
from datetime import UTC
from decimal import Decimal
from fractions import Fraction
from uuid import UUID

import numpy as np
import pandas
import pytest
from scipy import sparse

from optuna_treecv.caching.keys import data_digest

CATEGORIES = pandas.CategoricalDtype(["low", "high"], ordered=True)
DATES = pandas.to_datetime(["2020-01-01", None, "2020-01-03"])
INTEGERS = pandas.Series([1, None, 3], dtype="Int64")

# No two columns have the same type and content.
COLUMNS = {
    "float64": np.array([1.0, 2.0, 3.0]),
    "float32": np.array([1.0, 2.0, 3.0], np.float32),
    "nan": np.array([1.0, np.nan, 3.0]),
    "int64": np.array([1, 2, 3]),
    "int8": np.array([1, 2, 3], np.int8),
    "bool": np.array([True, False, True]),
    "complex": np.array([1j, 2j, 3j]),
    "object": pandas.Series(["1", "2", "3"], dtype=object),
    "object None": pandas.Series(["1", None, "3"], dtype=object),
    "object 'None'": pandas.Series(["1", "None", "3"], dtype=object),
    "object nan": pandas.Series(["1", np.nan, "3"], dtype=object),
    "object NA": pandas.Series(["1", pandas.NA, "3"], dtype=object),
    "object of NumPy": pandas.Series([np.str_("1"), "2", "3"], dtype=object),
    "object as of NumPy": pandas.Series(["tr_ np.str_('1')", "2", "3"], dtype=object),
    "object moved": pandas.Series(["12", "", "3"], dtype=object),
    "object s before": pandas.Series(["a", "sb", "3"], dtype=object),
    "object s after": pandas.Series(["as", "b", "3"], dtype=object),
    "object surrogate": pandas.Series(["\ud800", "2", "3"], dtype=object),
    "string": pandas.Series(["1", "2", "3"], dtype="string"),
    "string NA": pandas.Series(["1", None, "3"], dtype="string"),
    "Int64": pandas.Series([1, 2, 3], dtype="Int64"),
    "Int64 NA": INTEGERS,
    "Int64 0": INTEGERS.fillna(0),
    "Int8 NA": INTEGERS.astype("Int8"),
    "Int64 large NA": pandas.Series([2**53, None, 3], dtype="Int64"),
    "Int64 larger NA": pandas.Series([2**53 + 1, None, 3], dtype="Int64"),
    "Float64 NA": INTEGERS.astype("Float64"),
    "boolean NA": pandas.Series([True, None, False], dtype="boolean"),
    "category": pandas.Series(["low", "high", "low"], dtype=CATEGORIES),
    "category NA": pandas.Series(["low", None, "low"], dtype=CATEGORIES),
    "category unordered": pandas.Series(["low", "high", "low"]).astype(
        pandas.CategoricalDtype(["low", "high"])
    ),
    "category turned": pandas.Series(["low", "high", "low"]).astype(
        pandas.CategoricalDtype(["high", "low"], ordered=True)
    ),
    "category more": pandas.Series(["low", "high", "low"]).astype(
        pandas.CategoricalDtype(["low", "high", "higher"], ordered=True)
    ),
    "category of int": pandas.Series([1, 2, 3]).astype("category"),
    "category of float": pandas.Series([1.0, 2.0, 3.0]).astype("category"),
    "category of intervals": pandas.cut(pandas.Series([1, 2, 3]), [0, 1, 2, 3]),
    "intervals": pandas.arrays.IntervalArray.from_arrays([0, 1, 2], [3, 3, 3]),
    "intervals, wider": pandas.arrays.IntervalArray.from_arrays([0, 0, 0], [3, 3, 3]),
    "dates": DATES,
    "dates in seconds": DATES.as_unit("s"),
    "dates in Berlin": DATES.tz_localize("Europe/Berlin"),
    "dates in Berlin, as in UTC": DATES.tz_localize("UTC").tz_convert("Europe/Berlin"),
    "dates in UTC": DATES.tz_localize("UTC"),
    "durations": DATES - DATES[0],
    "months": DATES.to_period("M"),
    "days": DATES.to_period("D"),
    "sparse": pandas.arrays.SparseArray([0.0, 1.0, 0.0], fill_value=0.0),
    "sparse moved": pandas.arrays.SparseArray([1.0, 0.0, 0.0], fill_value=0.0),
    "sparse other": pandas.arrays.SparseArray([0.0, 5.0, 0.0], fill_value=0.0),
    "sparse longer": pandas.arrays.SparseArray([0.0, 1.0, 0.0, 0.0], fill_value=0.0),
    "sparse filled": pandas.arrays.SparseArray([2.0, 1.0, 2.0], fill_value=2.0),
}


def column(values, name="x"):
    return pandas.DataFrame({name: pandas.Series(values)})


def everything():
    columns = {name: pandas.Series(values)[:3] for name, values in COLUMNS.items()}
    return pandas.DataFrame(columns)


def digest_of_everything():
    """Return a digest that test_persistent_keys.py compares with that of another process."""
    X = everything()
    csr = sparse.csr_array(np.eye(3))
    return data_digest(
        X, X["string"], csr, np.array(["a", None], dtype=object), [1, 2], None
    ).hex()


def different(*values):
    digests = [data_digest(value) for value in values]
    return None not in digests and len(set(digests)) == len(values)


def test_columns_of_all_types_have_digests_of_their_own():
    assert different(*map(column, COLUMNS.values()))
    assert different(*(column(values)["x"] for values in COLUMNS.values()))
    assert all(data_digest(column(v)) == data_digest(column(v)) for v in COLUMNS.values())


@pytest.mark.slow
def test_another_cell_is_another_digest():
    whole = everything()
    digest = data_digest(whole)
    assert data_digest(whole.copy()) == digest
    for name in COLUMNS:
        frame = whole[["float64", name]] if name != "float64" else whole[[name]]
        digest = data_digest(frame)
        # The three cells in another order, and the last one repeated.
        for rows in ([1, 0, 2], [2, 1, 0], [2, 1, 2]):
            # Of the same type in all versions.
            moved = frame[name].iloc[rows].set_axis(frame.index)
            changed = frame.assign(**{name: moved})
            assert (data_digest(changed) == digest) == changed.equals(frame), name


@pytest.mark.parametrize("number", ["float64", "float32", "int64"])
def test_numbers_before_columns_of_other_types(number):
    """``numpy.dtype("float64") == None`` is true."""
    frame = pandas.DataFrame({"number": np.ones(3, number)})
    assert data_digest(frame.assign(x=pandas.Series([1, [1], 2], dtype=object))) is None
    for name in ("object", "string", "category", "Int64", "dates"):
        copies = []
        for _ in range(2):
            values = COLUMNS[name]
            if name == "object":  # equal strings, but other objects
                values = pandas.Series(["".join([text, ""]) for text in values], dtype=object)
            copies.append(frame.assign(x=values))
        assert data_digest(copies[0]) == data_digest(copies[1])
        assert data_digest(copies[0]) != data_digest(copies[0].assign(number=2 * frame["number"]))


def test_names_and_order_of_columns_count():
    frame = pandas.DataFrame({"a": [1.0, 2.0], "b": [1.0, 2.0], "c": ["1", "2"]})
    assert different(
        frame,
        frame[["b", "a", "c"]],
        frame[["c", "a", "b"]],
        frame[["a", "b"]],
        frame.rename(columns={"a": "aa"}),
        frame.set_axis([0, 1, 2], axis=1),
        frame.set_axis(["0", "1", "2"], axis=1),
        frame.set_axis([True, 1, 2], axis=1),
        frame.set_axis([("a", "b"), "c", "d"], axis=1),
        frame.iloc[::-1],
        frame.iloc[:1],
        frame.iloc[:0],
        frame["a"],
        frame["b"],
        frame["a"].to_numpy(),
        frame[["a", "b"]].to_numpy(),
    )


def test_objects_that_look_alike_differ():
    day = datetime(2020, 1, 1)
    cells = [
        *(1, 1.0, True, "1", b"1", 1j, Decimal(1), Decimal("1.0"), Fraction(1), np.int64(1)),
        *(np.float32(1), day, day.date(), day.time(), day.replace(tzinfo=UTC), timedelta(1)),
        *(pandas.Timestamp(day), pandas.Timestamp(1), pandas.Timedelta(1), UUID(int=1)),
        *(None, np.nan, pandas.NA, pandas.NaT, "None", "nan", "int 1"),
    ]
    assert different(*(np.array([cell, "x"], dtype=object) for cell in cells))
    assert different(*(column(pandas.Series([cell, "x"], dtype=object)) for cell in cells))


def test_frames_of_polars():
    polars = pytest.importorskip("polars")
    columns = [
        [1, 2, 3],
        [1, 2, None],
        [1.0, 2.0, 3.0],
        [1.0, 2.0, None],
        [True, False, True],
        ["a", "b", "c"],
        ["a", None, "c"],
        [date(2020, 1, 1), None, date(2020, 1, 3)],
        [Decimal(1), Decimal(2), Decimal(3)],
        [[1], [2], [3]],
    ]
    *known, lists = [polars.DataFrame({"x": values}) for values in columns]
    known += [known[0].rename({"x": "y"}), known[5].cast(polars.Categorical), known[0][::-1]]
    assert different(*known)
    assert different(*(frame.to_series() for frame in known))
    assert data_digest(known[0]) == data_digest(known[0].clone())
    assert data_digest(lists) is None


def test_the_index_counts():
    one = pandas.DataFrame({"a": [1.0, 2.0, 3.0]})
    names = pandas.MultiIndex.from_product([["x"], [1, 2, 3]], names=["word", "number"])
    indices = [
        one.index,
        one.index[::-1],
        pandas.Index([0, 1, 3]),
        pandas.Index([0.0, 1.0, 3.0]),
        pandas.Index([0, 1, 3], name="number"),
        pandas.Index(["a", "b", "c"]),
        DATES,
        DATES[::-1],
        names,
        names.rename(["word", "digit"]),
        names[::-1],
    ]
    frames = [one.set_axis(index) for index in indices]
    assert len({data_digest(frame) for frame in frames}) == len(indices)
    assert len({data_digest(frame["a"]) for frame in frames}) == len(indices)
    assert data_digest(one) == data_digest(one.iloc[::-1].iloc[::-1])
    assert data_digest(one.set_axis(pandas.Index([1, "1", (2, 5)]))) is None


def test_the_blocks_of_a_frame_do_not_count():
    values = np.arange(12.0).reshape(4, 3)
    one = pandas.DataFrame(values, columns=["a", "b", "c"])
    several = pandas.DataFrame(index=one.index)
    for name in one:
        several[name] = one[name].to_numpy()
    assert data_digest(one) == data_digest(several) == data_digest(one.iloc[::-1].iloc[::-1])
    many = pandas.DataFrame(np.asfortranarray(values), columns=["a", "b", "c"])
    assert data_digest(one) == data_digest(many)


@pytest.mark.slow
def test_the_layout_of_an_array_does_not_count():
    # More rows than one block holds.
    values = np.random.default_rng(0).random((20_000, 9))
    wide = np.zeros((40_000, 18))
    wide[::2, ::2] = values
    texts = (values > 0.5).astype(str).astype(object)
    digest = data_digest(values)
    assert digest == data_digest(np.asfortranarray(values)) == data_digest(wide[::2, ::2])
    assert data_digest(texts) == data_digest(np.asfortranarray(texts))
    for row in (0, 7280, 7281, 19_999):  # a block holds 7281 rows of numbers
        changed = values.copy()
        changed[row, 8] += 1e-9
        assert data_digest(changed) != digest
        other = texts.copy()
        other[row, 8] = "other"
        assert data_digest(other) != data_digest(texts)


def test_arrays_of_other_types_or_shapes_differ():
    assert different(
        np.arange(6),
        np.arange(6).astype(np.uint64),
        np.arange(6.0),
        np.arange(6).reshape(2, 3),
        np.arange(6).reshape(3, 2),
        np.arange(6).astype(">i8"),
        np.arange(6).astype("M8[s]"),
        np.arange(6).astype("M8[D]"),
        np.arange(6).astype("m8[D]"),
        np.arange(6).astype(str),
        np.arange(6).astype("S1"),
        np.arange(6).astype(str).astype(object),
        np.zeros((0, 2)),
        np.zeros((0, 3)),
        np.array(0),
        None,
    )


def test_the_place_of_a_value_counts():
    X, y = np.zeros(2), np.ones(2)
    found = data_digest(X, y), data_digest(y, X), data_digest(X, y, None), data_digest(X, None, y)
    assert len({*found, data_digest(X), data_digest()}) == 6
    assert data_digest(X, np.array([1, object()], dtype=object)) is None


def test_sparse_rows():
    rows = sparse.csr_array(np.diag([1.0, 2.0, 0.0]))
    moved = sparse.csr_array(np.diag([1.0, 2.0, 0.0])[[0, 2, 1]])
    wider = sparse.csr_array((rows.data, rows.indices, rows.indptr), shape=(3, 4))
    assert different(rows, moved, wider, rows * 2, rows.astype(np.float32), rows.toarray())
    assert different(rows, rows.tocsc())
    assert data_digest(rows) == data_digest(sparse.csr_matrix(rows)) == data_digest(rows.copy())
    for name in ("csc", "coo", "bsr", "lil", "dok", "dia"):
        assert different(rows.asformat(name), moved.asformat(name))


def test_a_list_is_the_array_that_estimators_make_of_it():
    assert data_digest([0, 1, 1]) == data_digest(np.array([0, 1, 1]))
    assert data_digest([[0, 1.5]]) == data_digest(np.array([[0, 1.5]]))
    assert data_digest(["a", "b"]) == data_digest(np.array(["a", "b"], dtype=object))


@pytest.mark.parametrize(
    "data",
    [
        np.array([1, object()], dtype=object),
        np.array([[1], None], dtype=object),
        np.array([1, 2], np.longdouble),
        np.array([(1, 2.0)], dtype="i4, f8"),
        np.ma.masked_array([1, 2], [True, False]),
        [1, object()],
        [[1], [1, 2]],
        column(pandas.Series([1, {"a": 1}], dtype=object)),
        column(pandas.Series([1, (1, 2)], dtype=object).astype("category")),
        column([1], name=date(2020, 1, 1)),
        sparse.csr_array(np.eye(2)).astype(np.longdouble),
        iter([1, 2]),
        "text",
    ],
)
def test_other_data_have_no_digest(data):
    assert data_digest(data) is None


def test_nan_is_not_a_missing_value():
    numbers, missing = np.array([np.nan, 1.0]), np.array([False, True])
    kept = [pandas.arrays.FloatingArray(numbers[::step], missing) for step in (1, -1)]
    assert different(*map(column, kept))


def test_names_of_an_index():
    frame = column(np.arange(3.0))
    assert different(frame, frame.rename_axis(index="i"), frame.rename_axis(columns="c"))


def test_times_of_polars_have_nanoseconds():
    polars = pytest.importorskip("polars")
    for kind in (polars.Datetime("ns"), polars.Duration("ns"), polars.Time):
        columns = [polars.Series("x", [1_000, tick, None], kind) for tick in (1_001, 1_002)]
        assert different(*columns, columns[0].to_physical())
