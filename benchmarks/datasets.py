"""The data sets of the benchmarks, or synthetic ones of the same shape.

Covertype and 20 newsgroups are read from scikit-learn's data folder ($SCIKIT_LEARN_DATA), and
nycflights13.npz, a9a.svm.bz2, w8a.svm.bz2, fashion_mnist.npz, letter.npz, magic.npz,
protein_casp.npz, elec2.npz, kin40k.npz, bike_sharing_hour.npz, elevators.npz and higgs_7k5.npz
from the folder $OPTUNA_TREECV_DATA. Nothing is downloaded. A missing data set is replaced by a
synthetic one with the same shape, density and task, drawn from a fixed seed; its name says so.

Each function returns X, y and the name to show. The rows are in random order, so the first ones
are a sample and no method has to shuffle again. Numbers are scaled, except in ``letter``,
``magic``, ``protein`` and the two tables.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.datasets import fetch_20newsgroups_vectorized
from sklearn.datasets import fetch_covtype
from sklearn.datasets import load_svmlight_file
from sklearn.datasets import make_classification
from sklearn.datasets import make_regression
from sklearn.preprocessing import normalize
from sklearn.preprocessing import scale
from sklearn.utils import shuffle

DataSet = tuple[Any, np.ndarray, str]


def covertype(as_is: bool = False) -> DataSet:
    """The most frequent of 7 classes against the rest, columns of variance 1: 581,012 x 54."""
    try:
        X, y = fetch_covtype(return_X_y=True, download_if_missing=False)
    except OSError:
        X, y = make_classification(
            *(581_012, 54),
            n_informative=10,
            n_classes=7 if as_is else 2,
            n_clusters_per_class=1,
            flip_y=0.3,
            random_state=0,
        )
        return X if as_is else scale(X), y, "synthetic, like Covertype"
    if not as_is:
        X, y = scale(X), (y == 2).astype(int)
    return *shuffle(X, y, random_state=0), "Covertype"


def nycflights13(as_is: bool = False) -> DataSet:
    """Arrival delays: 327,346 x 132.

    123 columns are one-hot; the others and the target have variance 1.
    """
    sizes = {"carrier": 16, "origin": 3, "dest": 104}
    try:
        with np.load(file_of("nycflights13.npz")) as file:
            numeric, y = file["numeric"], file["arr_delay"]
            codes = [file[column] for column in sizes]
        name = "nycflights13"
    except FileNotFoundError:
        rng = np.random.default_rng(0)
        numeric = rng.normal(size=(327_346, 9))
        codes = [rng.integers(size, size=len(numeric)) for size in sizes.values()]
        y = numeric.sum(axis=1) + codes[0] / 4 + rng.normal(size=len(numeric))
        name = "synthetic, like nycflights13"
    one_hot = [np.eye(size)[code] for size, code in zip(sizes.values(), codes, strict=True)]
    numeric, y = numeric.astype(float), y.astype(float)
    if not as_is:
        numeric, y = scale(numeric), scale(y)
    return *shuffle(np.hstack([numeric, *one_hot]), y, random_state=0), name


def flights_table() -> DataSet:
    """The same flights as a data frame: 9 columns of numbers and 3 of words, some missing."""
    X, y, name = nycflights13(as_is=True)
    words = zip(("carrier", "origin", "dest"), np.split(X[:, 9:], [16, 19], axis=1), strict=True)
    return table(X[:, :9], {word: of_word.argmax(axis=1) for word, of_word in words}), y, name


def bike() -> DataSet:
    """Counts of bikes that are shared in an hour, by date, hour and weather: 17,379 x 12."""
    try:
        with np.load(file_of("bike_sharing_hour.npz")) as file:
            X, y, name = file["X"].astype(float), file["y"].astype(float), "bike sharing"
    except FileNotFoundError:
        rng = np.random.default_rng(0)
        X = np.hstack([rng.integers(7, size=(17_379, 8)), rng.random((17_379, 4))])
        y, name = X.sum(axis=1), "synthetic, like bike sharing"
    return *shuffle(X, y, random_state=0), name


def bike_table() -> DataSet:
    """The same as a data frame: 4 columns of numbers and 8 of words, some missing."""
    X, y, name = bike()
    return table(X[:, 8:], {f"word {i}": X[:, i].astype(int) for i in range(8)}), y, name


def table(numbers: np.ndarray, words: dict[str, np.ndarray]) -> pd.DataFrame:
    """Return a data frame in which 5 % of the numbers are missing."""
    rng = np.random.default_rng(0)
    numbers = np.where(rng.random(numbers.shape) < 0.05, np.nan, numbers)
    frame = pd.DataFrame(numbers).add_prefix("number ")
    return frame.assign(
        **{name: codes.astype(str).astype(object) for name, codes in words.items()}
    )


def newsgroups(as_is: bool = False) -> DataSet:
    """Token counts, rows of length 1; the first 10 groups against the others: 18,846 x 130,107."""
    try:
        X, y = fetch_20newsgroups_vectorized(
            subset="all", return_X_y=True, download_if_missing=False
        )
    except OSError:
        X, y = sparse_rows(18_846, 130_107, 2_895_521, positives=0.5)
        return normalize(X), y, "synthetic, like 20 newsgroups"
    return *shuffle(X, y if as_is else (y < 10).astype(int), random_state=0), "20 newsgroups"


def w8a() -> DataSet:
    """Binary features, 3 % of the rows positive: 49,749 x 300."""
    try:
        X, y = load_svmlight_file(str(file_of("w8a.svm.bz2")), n_features=300)
    except FileNotFoundError:
        X, y = sparse_rows(49_749, 300, 579_586, positives=0.03)
        X.data[:] = 1
        return X, y, "synthetic, like w8a"
    return *shuffle(X, (y > 0).astype(int), random_state=0), "w8a"


def a9a() -> DataSet:
    """Binary features, 24 % of the rows positive: 32,561 x 123."""
    try:
        X, y = load_svmlight_file(str(file_of("a9a.svm.bz2")), n_features=123)
    except FileNotFoundError:
        X, y = sparse_rows(32_561, 123, 451_592, positives=0.24)
        X.data[:] = 1
        return X, y, "synthetic, like a9a"
    return *shuffle(X, (y > 0).astype(int), random_state=0), "a9a"


def fashion_mnist() -> DataSet:
    """10 classes, pixels between 0 and 1: 70,000 x 784, float32."""
    try:
        with np.load(file_of("fashion_mnist.npz")) as file:
            X, y = file["X"].astype(np.float32) / 255, file["y"].astype(int)
        name = "Fashion-MNIST"
    except FileNotFoundError:
        X, y = make_classification(
            *(70_000, 784), n_informative=30, n_classes=10, n_clusters_per_class=1, random_state=0
        )
        X, name = X.astype(np.float32), "synthetic, like Fashion-MNIST"
    return *shuffle(X, y, random_state=0), name


def pol() -> DataSet:
    """A number between 0 and 100, 26 rounded columns: 15,000 x 26."""
    try:
        with np.load(file_of("pol.npz")) as file:
            X, y, name = file["X"].astype(float), file["y"].astype(float), "pol"
    except FileNotFoundError:
        X, y = make_regression(15_000, 26, n_informative=10, random_state=0)
        X, y, name = X.round(2), y.round(), "synthetic, like pol"
    return *shuffle(X, y, random_state=0), name


def elevators() -> DataSet:
    """Actions of an aircraft's controls, a target of variance 1, 18 columns: 16,599 x 18."""
    try:
        with np.load(file_of("elevators.npz")) as file:
            X, y, name = file["X"].astype(float), file["y"].astype(float), "elevators"
    except FileNotFoundError:
        X, y = make_regression(16_599, 18, n_informative=10, noise=50.0, random_state=0)
        name = "synthetic, like elevators"
    return *shuffle(X, scale(y), random_state=0), name


def letter() -> DataSet:
    """26 classes, 16 counts between 0 and 15: 20,000 x 16."""
    try:
        with np.load(file_of("letter.npz")) as file:
            X, y, name = file["X"].astype(float), file["y"].astype(int), "letter"
    except FileNotFoundError:
        X, y = make_classification(
            20_000, 16, n_informative=12, n_classes=26, n_clusters_per_class=1, random_state=0
        )
        name = "synthetic, like letter"
    return *shuffle(X, y, random_state=0), name


def magic() -> DataSet:
    """2 classes, physical quantities of different units: 19,020 x 10."""
    try:
        with np.load(file_of("magic.npz")) as file:
            X, y, name = file["X"].astype(float), file["y"].astype(int), "magic"
    except FileNotFoundError:
        X, y = make_classification(19_020, 10, flip_y=0.3, random_state=0)
        X, name = X * np.geomspace(0.1, 100, 10), "synthetic, like magic"
    return *shuffle(X, y, random_state=0), name


def higgs() -> DataSet:
    """2 classes that are hard to tell apart, measured and derived quantities: 7,500 x 28."""
    try:
        with np.load(file_of("higgs_7k5.npz")) as file:
            X, y, name = file["X"].astype(float), file["y"].astype(int), "higgs"
    except FileNotFoundError:
        X, y = make_classification(7_500, 28, n_informative=6, flip_y=0.5, random_state=0)
        name = "synthetic, like higgs"
    return *shuffle(X, y, random_state=0), name


def protein() -> DataSet:
    """Distances between structures, with some rows far from the others: 45,730 x 9.

    The target has variance 1.
    """
    try:
        with np.load(file_of("protein_casp.npz")) as file:
            X, y, name = file["X"].astype(float), file["y"].astype(float), "protein (CASP)"
    except FileNotFoundError:
        rng = np.random.default_rng(0)
        X = np.exp(rng.normal(size=(45_730, 9)))
        y = np.log(X).sum(axis=1) + 5 * rng.normal(size=len(X))
        name = "synthetic, like protein (CASP)"
    return *shuffle(X, scale(y), random_state=0), name


def elec2() -> DataSet:
    """Whether the price of electricity rises: 45,312 x 6, without its order in time."""
    try:
        with np.load(file_of("elec2.npz")) as file:
            X, y, name = file["X"].astype(float), file["y"].astype(int), "elec2"
    except FileNotFoundError:
        X, y = make_classification(45_312, 6, n_informative=5, n_redundant=1, random_state=0)
        name = "synthetic, like elec2"
    return *shuffle(X, y, random_state=0), name


def kin40k() -> DataSet:
    """Positions of a robot arm, not linear in its 8 angles: 40,000 x 8."""
    try:
        with np.load(file_of("kin40k.npz")) as file:
            X, y, name = file["X"].astype(float), file["y"].astype(float), "kin40k"
    except FileNotFoundError:
        rng = np.random.default_rng(0)
        X = rng.normal(size=(40_000, 8))
        y, name = np.sin(X).prod(axis=1) + X[:, 0] * X[:, 1], "synthetic, like kin40k"
    return *shuffle(X, y, random_state=0), name


def file_of(name: str) -> Path:
    return Path(os.environ.get("OPTUNA_TREECV_DATA", ".")) / name


def sparse_rows(n: int, d: int, nonzeros: int, positives: float) -> tuple[Any, np.ndarray]:
    """Return sparse rows like those of texts, and classes that a hyperplane separates, with noise.

    The nonzeros lie in a few common columns and many rare ones.
    """
    rng = np.random.default_rng(0)
    columns = (d * rng.random(nonzeros) ** 3).astype(np.int32)
    rows = rng.integers(n, size=nonzeros)
    X = sparse.csr_matrix((np.ones(nonzeros), (rows, columns)), (n, d))
    scores = X @ rng.normal(size=d)
    scores += 0.3 * scores.std() * rng.normal(size=n)
    return X, (scores > np.quantile(scores, 1 - positives)).astype(int)
