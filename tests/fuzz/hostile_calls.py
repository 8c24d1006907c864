"""Hostile calls of everything public: wrong types, sizes, shapes and numbers, in their thousands.

    python tests/fuzz/hostile_calls.py --size 5000 --seed 1
    python tests/fuzz/hostile_calls.py --seed 1 --only 1234     one call, with its traceback

Each call is a valid call with one to three arguments replaced. It runs in a process of its own
family, bounded in memory and time, and ends in one of these ways:

* accepted: finite numbers, or a warning or a count of diverged folds that says they are not;
* clear: a ValueError or TypeError whose message names an argument of the call;
* unclear: any other exception;
* silent: accepted, but with numbers that are not finite and no word about it;
* crashed, or hung: the process died, or the call took longer than the limit.

Exits with 1 if a call crashed, hung or was silent, or if more than 1 % of refusals are unclear.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
import inspect
import json
import os
from pathlib import Path
import re
import resource
import select
import subprocess
import sys
import tempfile
import traceback
from typing import Any
from typing import NamedTuple
import warnings

import numpy as np

SECONDS_PER_CALL = 120
BYTES = 4 * 2**30  # of address space, threads and libraries included
MOST_UNCLEAR = 0.01
GOOD = ("accepted", "clear")


class Call(NamedTuple):
    """A call: what it does, the names that a refusal may use, and the function to run."""

    text: str
    names: set[str]
    run: Callable[[], Any]


# Values.


def odd_value(rng: np.random.Generator) -> Any:
    """Return something that few arguments can be."""
    from sklearn.model_selection import KFold

    values: list[Callable[[], Any]] = [
        *(lambda v=v: v for v in (None, True, False, -1, 0, 1, 2, 3, 7, 2**27, 2**31, 2**63)),
        *(lambda v=v: v for v in (10**9, 10**30, 10**400, -(10**400), 0.5, -0.5, 2.5, 1e-320)),
        *(lambda v=v: v for v in (1e300, float("nan"), float("inf"), -float("inf"), 1j)),
        *(lambda v=v: v for v in ("", "x", "auto", "loo", "nan", b"x", (), [], {}, [1, 2])),
        *(lambda v=v: v for v in ({"a": 1}, {1, 2}, range(3), ..., object(), int, print)),
        *(lambda v=v: v for v in (Fraction(1, 3), Decimal("0.1"), datetime(2020, 1, 1))),
        *(lambda v=v: v for v in (np.uint8(200), np.int8(-3), np.int64(5), np.uint64(2**63))),
        *(lambda v=v: v for v in (np.float16(0.1), np.float32(1e-3), np.longdouble(10) ** 400)),
        *(lambda v=v: v for v in (np.bool_(True), np.str_("hinge"), np.ma.masked)),
        *(lambda v=v: v for v in (np.datetime64("NaT"), np.timedelta64(1, "s"))),
        lambda: np.array(3),
        lambda: np.array([]),
        lambda: np.ones(3),
        lambda: np.eye(3),
        lambda: np.array(["a", None], object),
        lambda: iter([]),
        lambda: (i for i in range(2)),
        lambda: lambda *arguments: None,
        lambda: KFold,
        lambda: Path("x"),
        lambda: np.random.default_rng(0),
        lambda: np.random.RandomState(0),
    ]
    return pick(rng, values)()


def pick(rng: np.random.Generator, values: Any) -> Any:
    values = list(values)
    return values[rng.integers(len(values))]


def good_rows(rng: np.random.Generator, n: int = 30, d: int = 3) -> np.ndarray:
    return rng.normal(size=(n, d))


def odd_rows(rng: np.random.Generator) -> Any:
    """Return rows that are wrong, odd, or near the edge of what is right."""
    import pandas as pd
    from scipy import sparse

    X = good_rows(rng)
    at = tuple(rng.integers(X.shape))
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    dates = pd.date_range("2020", periods=30)

    def with_value(value: Any, array: Any = X) -> Any:
        array = array.copy()
        array[at] = value
        return array

    def malformed() -> Any:
        kind = pick(rng, (sparse.csr_matrix, sparse.csc_array, sparse.coo_array, sparse.bsr_array))
        matrix = kind(np.where(X > 0, X, 0))
        names = ("row", "col", "data") if matrix.format == "coo" else ("indices", "indptr", "data")
        name = pick(rng, names)
        array = getattr(matrix, name).copy()
        change = rng.integers(4)
        if change == 0:
            array = array[: rng.integers(len(array))]
        elif change == 1:
            array = array.astype(pick(rng, (np.int64, np.float64, np.uint8, object)))
        else:
            array[rng.integers(len(array))] = pick(rng, (-1, 3, 4, 30, 31, 1000, 10**6, 2**30))
        setattr(matrix, name, array)
        return matrix

    made: list[Callable[[], Any]] = [
        *(lambda v=v: with_value(v) for v in (np.nan, np.inf, -np.inf, 1e308, 1e200, 1e-320)),
        *(lambda s=s: X * s for s in (1e300, 1e150, 1e30, 1e-300, 0)),
        *(lambda t=t: X.astype(t) for t in ("f4", "f2", "i1", "u1", "?", ">f8", "O", "S9", "U9")),
        *(lambda t=t: (X * 1e6).astype("i8").astype(t) for t in ("M8[s]", "m8[s]")),
        *(lambda s=s: X[s] for s in (np.s_[:0], np.s_[:1], np.s_[:, :0], 0, np.s_[:, 0], None)),
        lambda: X.astype(np.complex128) * 1j,
        lambda: np.ma.array(X, mask=X > 0),
        lambda: np.array(with_value(None, X.astype(object))),
        lambda: with_value("a", X.astype(object)),
        lambda: with_value(datetime(2020, 1, 1), X.astype(object)),
        lambda: X.astype(np.float32) * np.float32(3e36),
        lambda: X.astype(np.longdouble) * np.longdouble(10) ** 400,
        lambda: X.tolist(),
        lambda: [[1, 2], [3]] * 15,
        lambda: X[:17],
        lambda: np.broadcast_to(X[0], (30, 3)),
        lambda: np.zeros((30, 3)),
        lambda: X.T,
        lambda: np.asfortranarray(X)[::-1],
        lambda: X.view([("a", "f8"), ("b", "f8"), ("c", "f8")]),
        lambda: frame,
        lambda: frame.assign(c=dates),
        lambda: frame.assign(c="x"),
        lambda: frame.assign(c=pd.Categorical(["u", "v"] * 15)),
        lambda: frame.astype("Float64").mask(frame > 1),
        lambda: pd.DataFrame({"a": dates, "b": dates}),
        lambda: frame.iloc[:, 0],
        lambda: frame.to_dict(),
        *(lambda k=k: k(X) for k in (sparse.csr_matrix, sparse.lil_array, sparse.dok_array)),
        lambda: sparse.csr_array(with_value(np.nan)),
        lambda: sparse.csr_array(X.astype("i8")),
        lambda: sparse.csr_array((30, 2**31)),
        lambda: sparse.csr_array((30, 0)),
        *[malformed] * 6,
    ]
    return pick(rng, made)()


def odd_targets(rng: np.random.Generator) -> Any:
    """Return targets that are wrong, odd, or near the edge of what is right."""
    import pandas as pd

    y = rng.integers(0, 2, 30)
    made: list[Callable[[], Any]] = [
        *(lambda v=v: np.where(np.arange(30) == 4, v, y) for v in (np.nan, np.inf, 1e308, 0.5)),
        *(lambda t=t: y.astype(t) for t in ("f4", "f2", "u1", "?", ">i4", "S1", "U1", "M8[D]")),
        lambda: np.array([1, None] * 15, object),
        lambda: np.array(["a", 1] * 15, object),
        lambda: np.array(["2020-01-01", "NaT"] * 15, "M8[D]"),
        lambda: np.array(y, object),
        lambda: y * 1j,
        lambda: np.ma.array(y, mask=y > 0),
        lambda: np.zeros(30, int),
        lambda: y[:-1],
        lambda: np.r_[y, 1],
        lambda: np.c_[y, y],
        lambda: y[:, None],
        lambda: y.tolist(),
        lambda: ["a", "b"] * 15,
        lambda: rng.normal(size=30),
        lambda: rng.normal(size=30) * 1e300,
        lambda: np.arange(30),
        lambda: pd.Series(y, dtype="Int64").mask(y > 0),
        lambda: pd.Series(["u", "v"] * 15, dtype="category"),
        lambda: pd.DataFrame({"y": y}),
        lambda: None,
    ]
    return pick(rng, made)()


def odd_folds(rng: np.random.Generator) -> Any:
    """Return a wrong or odd ``cv``."""
    from sklearn import model_selection as ms

    n = 30

    class Splitter:
        """Gives whatever splits it was made with."""

        def __init__(self, splits: Any) -> None:
            self.splits = splits

        def split(self, X: Any, y: Any = None, groups: Any = None) -> Any:
            return iter(self.splits)

    rest = np.arange(15, 30)
    made: list[Callable[[], Any]] = [
        *(lambda v=v: v for v in (1, 0, -3, 31, 10**30, 2.0, "loo", "x", np.uint8(5), True)),
        *(lambda v=v: v for v in (ms.KFold(50), ms.TimeSeriesSplit(3), ms.ShuffleSplit(3))),
        *(lambda v=v: v for v in (ms.GroupKFold(3), ms.LeavePOut(2), ms.PredefinedSplit([0] * n))),
        *(lambda v=v: v for v in (ms.StratifiedKFold(20), ms.KFold, ms.LeaveOneOut())),
        lambda: np.arange(n) % 3,
        lambda: np.arange(n) % 3 - 1,
        lambda: np.full(n, 2**63, np.uint64) + np.arange(n, dtype=np.uint64) % 2,
        lambda: np.arange(n) / 3,
        lambda: ["a", "b"] * 15,
        lambda: np.zeros(n, int),
        lambda: np.arange(29),
        lambda: list(ms.KFold(3).split(np.ones(n))),
        lambda: Splitter([]),
        lambda: Splitter([3]),
        lambda: Splitter([(rest, [])]),
        lambda: Splitter([(rest, [-1]), ([0], [99])]),
        lambda: Splitter([(None, "a")] * 3),
        lambda: Splitter([(rest, np.arange(15)), (np.arange(15), rest)]),
        lambda: Splitter(iter(lambda: (rest, np.arange(15)), None)),
    ]
    return pick(rng, made)()


def odd_scoring(rng: np.random.Generator) -> Any:
    """Return a wrong or odd ``scoring``."""
    from sklearn.metrics import accuracy_score
    from sklearn.metrics import make_scorer

    return pick(
        rng,
        (
            *(
                "error",
                "hinge",
                "log_loss",
                "squared_error",
                "squared_distance",
                "neg_log_density",
            ),
            *("accuracy", "r2", "roc_auc", "f1", "neg_log_loss", "adjusted_rand_score", "no"),
            *(accuracy_score, make_scorer(accuracy_score), lambda *_: None, lambda *_: np.nan),
            *(lambda e, X, y: 1.0, lambda e, X, y: "a", lambda e, X, y: [1], 3, ["accuracy"]),
        ),
    )


# Calls.


def estimators() -> list[Any]:
    """Return one estimator of each class, small enough for 30 rows."""
    import optuna_treecv as ot
    from optuna_treecv import paper

    return [
        ot.PegasosClassifier(),
        ot.HistTreeClassifier(max_depth=3),
        ot.HistTreeRegressor(min_samples_leaf=2),
        ot.AveragedSGDClassifier("log_loss"),
        ot.AveragedSGDRegressor(),
        paper.LSQSGDRegressor(),
        ot.StreamingSVRGClassifier(initial_batch_size=4, inner_steps=5),
        ot.StreamingSVRGRegressor(initial_batch_size=4, inner_steps=5),
        paper.StreamingKMeans(2),
        paper.StreamingGaussianDensity(),
    ]


def odd_weights(rng: np.random.Generator) -> Any:
    """Return weights of rows or of classes that are wrong, or just unusual."""
    weights = rng.random(30)
    odd = pick(rng, (0, -1, np.nan, np.inf, 1e-320, 1e300, 1e39, 2**53))
    values: list[Callable[[], Any]] = [
        lambda: np.where(np.arange(30) == 7, odd, weights),
        lambda: np.full(30, odd),
        lambda: np.where(np.arange(30) % 2, odd, weights).astype(np.float32),
        lambda: np.where(np.arange(30) == 7, odd, weights).tolist(),
        lambda: weights[: int(rng.integers(30))],
        lambda: weights[:, None],
        lambda: weights.astype(pick(rng, ("U8", "S8", "O", "c16", "?", "i1", "M8[s]", "f2"))),
        lambda: np.ma.masked_less(weights, 0.5),
        lambda: {"0": 1, 1: 2},
        lambda: {0: odd},
        lambda: {0: odd, 1: odd},
        lambda: dict.fromkeys(range(int(rng.integers(4))), weights[0]),
        lambda: {0: weights},
        lambda: {0: str(odd)},
        lambda: "balanced",
    ]
    return pick(rng, values)()


def odd_argument(rng: np.random.Generator, name: str) -> Any:
    """Return a hostile value for an argument, made for it more often than not."""
    made_for = {
        "X": odd_rows,
        "y": odd_targets,
        "groups": odd_targets,
        "cv": odd_folds,
        "scoring": odd_scoring,
        "sample_weight": odd_weights,
        "class_weight": odd_weights,
    }
    if name in made_for and rng.random() < 0.8:
        return made_for[name](rng)
    return odd_value(rng)


def changed(
    rng: np.random.Generator, valid: dict[str, Any], names: list[str]
) -> tuple[dict[str, Any], str]:
    """Return arguments of which one to three are hostile, and how to write that."""
    n_odd = min(len(names), pick(rng, (1, 1, 1, 1, 2, 3)))
    odd = {name: odd_argument(rng, name) for name in rng.choice(names, n_odd, replace=False)}
    return {**valid, **odd}, ", ".join(f"{name}={shown(value)}" for name, value in odd.items())


def shown(value: Any) -> str:
    """Return a value in a few words."""
    try:
        text = f"{type(value).__name__} {value!r}"
    except Exception as error:  # noqa: BLE001  # a malformed matrix may not even be printed
        text = f"{type(value).__name__} ({type(error).__name__})"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        text = f"{value.dtype} {value.shape} {text}"
    return " ".join(text.split())[:120]


def with_odd_parameters(rng: np.random.Generator, estimator: Any) -> tuple[Any, str]:
    """Return an estimator of which some parameters are hostile."""
    if rng.random() < 0.5:
        return estimator, ""
    given, text = changed(rng, {}, list(estimator.get_params(deep=False)))
    return type(estimator)(**{**estimator.get_params(deep=False), **given}), text


def call_of_a_function(rng: np.random.Generator) -> Call:
    """Return a call of one of the four functions, and of what the objective offers."""
    import optuna
    from optuna.distributions import FloatDistribution
    from sklearn.linear_model import SGDClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    import optuna_treecv as ot

    estimator = pick(rng, [*estimators(), SGDClassifier(), None])
    if estimator is None:
        estimator = make_pipeline(StandardScaler(), SGDClassifier())
    parameters = ""
    if type(estimator).__module__.startswith("optuna_treecv"):
        estimator, parameters = with_odd_parameters(rng, estimator)
    y = rng.permutation(np.arange(30) % 2)
    valid = {"estimator": estimator, "X": good_rows(rng), "y": y, "cv": 3}
    function = pick(
        rng,
        (
            ot.tree_cross_validate,
            ot.tree_cross_validate_many,
            ot.tree_cross_val_predict,
            ot.treecv_objective,
        ),
    )
    names = list(inspect.signature(function).parameters)
    searched = next(
        (name for name in ("alpha", "step_size", "n_clusters", "reg_covar", "sgdclassifier__alpha")
         if name in estimator.get_params()),
        "alpha",
    )  # fmt: skip
    if function is ot.treecv_objective:
        space = {searched: FloatDistribution(0.1, 1.0)}
        valid |= pick(rng, ({"param_distributions": space}, {"param_grid": {searched: [1, 2]}}))
    if function is ot.tree_cross_validate_many:
        valid["estimators"] = [valid.pop("estimator"), estimator]
    odd_names = [name for name in names if name not in ("estimator", "estimators")]
    if parameters and rng.random() < 0.7:
        arguments, text = valid, ""
    else:
        arguments, text = changed(rng, valid, odd_names if rng.random() < 0.95 else names)
    after = pick(rng, ("evaluate", "odd evaluate", "optimize", "best", "sampler"))
    point = {searched: pick(rng, (0.5, odd_value(rng)))} if after == "odd evaluate" else {}

    def run() -> Any:
        made = function(**arguments)
        if function is not ot.treecv_objective:
            return made
        if after == "evaluate":
            return made.evaluate({searched: 1})
        if after == "odd evaluate":
            return made.evaluate(point)
        if after == "sampler":
            return made.grid_sampler(seed=0) if made.param_grid else None
        study = optuna.create_study(direction=made.direction)
        study.optimize(made, n_trials=2, n_jobs=1)
        return made.best_estimator(study) if after == "best" else study.best_value

    text = f"{function.__name__}({type(estimator).__name__}({parameters}), {text})"
    known = {*names, *estimator.get_params(), searched, "params", "estimator"}
    if function is ot.treecv_objective:
        text += f" {after} {point or ''}"
    return Call(text, known, run)


def call_of_an_estimator(rng: np.random.Generator) -> Call:
    """Return a call of a method of an estimator."""
    estimator = pick(rng, estimators())
    X, y = good_rows(rng), rng.permutation(np.arange(30) % 2)
    classes = {"classes": [0, 1]} if hasattr(estimator, "decision_function") else {}
    methods = ["fit", "fit again"]
    methods += ["partial_fit", "partial_fit again"] if hasattr(estimator, "partial_fit") else []
    responses = "predict", "decision_function", "predict_proba", "transform", "score_samples"
    methods += [name for name in (*responses, "score") if hasattr(estimator, name)]
    method = pick(rng, methods)
    name = method.split()[0]
    own, parameters = estimator, ""
    valid = {"X": X, "y": y} if "fit" in method or method == "score" else {"X": X}
    if "fit" in method or method == "score":
        valid |= {"sample_weight": pick(rng, (None, rng.random(30)))}
    if "fit" in method:
        own, parameters = with_odd_parameters(rng, estimator)
        valid |= classes if name == "partial_fit" else {}
    if parameters and rng.random() < 0.7:
        arguments, text = valid, ""
    else:
        arguments, text = changed(rng, valid, list(valid))

    def run() -> Any:
        model = own
        if method.endswith("again") or "fit" not in method:
            model = estimator.fit(X, y).set_params(**own.get_params())
        return getattr(model, name)(**arguments)

    text = f"{type(estimator).__name__}({parameters}).{method}({text})"
    return Call(text, {"X", "y", "classes", "sample_weight", *estimator.get_params()}, run)


def call_of_a_store(rng: np.random.Generator) -> Call:
    """Return a call of a cache, of an objective with a store, or of a reader of stores."""
    import optuna
    from optuna.distributions import FloatDistribution

    import optuna_treecv as ot
    from optuna_treecv import history
    from optuna_treecv import report
    from optuna_treecv.dashboard import publish

    folder = Path(tempfile.mkdtemp(dir=os.environ["HOSTILE_FOLDER"]))
    file = folder / "store.db"
    X, y = good_rows(rng), rng.permutation(np.arange(30) % 2)
    space = {"alpha": FloatDistribution(0.1, 1.0)}
    text_file = folder / "text"
    text_file.write_text("not a database")

    def odd_store() -> Any:
        return pick(
            rng,
            (
                *(f"sqlite:///{folder}", f"sqlite:///{text_file}", "sqlite://", "sqlite:///"),
                *(f"sqlite:///{folder}/none/x.db", f"sqlite:///{file}", "sqlite:///\0.db"),
                *("mysql://x/y", "postgresql://u:p@127.0.0.1:1/x", "http://x", "x", "", "://"),
                *("postgresql+none://x/y", str(file), file, odd_value(rng), odd_value(rng)),
            ),
        )

    kind = pick(rng, ("cache", "objective", "read", "read", "forget", "figure"))
    if kind == "cache":
        value = odd_value(rng)
        return Call(
            f"ModelCache({shown(value)})", {"max_bytes"}, lambda: ot.ModelCache(max_bytes=value)
        )
    if kind == "objective":
        store = odd_store()

        def evaluate() -> Any:
            objective = ot.treecv_objective(
                ot.PegasosClassifier(), X, y, cv=3, param_distributions=space, store=store
            )
            study = optuna.create_study()
            study.optimize(objective, n_trials=1)
            return study.best_value

        return Call(f"treecv_objective(store={shown(store)})", {"store"}, evaluate)
    functions = {
        "read": (history.load_evaluations, history.load_fold_scores),
        "forget": (history.forget,),
        "figure": (
            *(report.plot_parameters, report.plot_fold_scores, report.plot_choice, publish),
        ),
    }
    function = pick(rng, functions[kind])
    names = list(inspect.signature(function).parameters)
    valid: dict[str, Any] = {"store": f"sqlite:///{file}"}
    if kind == "forget":
        valid["study_name"] = "x"
    odd = {name: odd_value(rng) for name in rng.choice(names, pick(rng, (1, 1, 2)), replace=False)}
    if "store" in odd:
        odd["store"] = odd_store()
    text = ", ".join(f"{name}={shown(value)}" for name, value in odd.items())

    def read() -> Any:
        objective = ot.treecv_objective(
            ot.PegasosClassifier(), X, y, cv=3, param_distributions=space, store=valid["store"]
        )
        study = optuna.create_study()
        study.optimize(objective, n_trials=1)
        if "study" in names and kind == "figure":
            valid["study"] = study
        return function(**{**valid, **odd})

    return Call(f"{function.__name__}({text})", set(names), read)


def call_of_a_choice(rng: np.random.Generator) -> Call:
    """Return a call of what says how sure a score is, or which trial to choose."""
    import optuna
    from optuna.distributions import FloatDistribution

    import optuna_treecv as ot
    from optuna_treecv import report

    X, y = good_rows(rng), rng.permutation(np.arange(30) % 2)
    options = {"cv": pick(rng, (3, "loo", 0.3)), "row_losses": bool(rng.integers(2))}
    scoring = pick(rng, ("error", "hinge", "accuracy"))

    def evaluated() -> Any:
        return ot.tree_cross_validate(ot.PegasosClassifier(), X, y, scoring=scoring, **options)

    def searched() -> dict[str, Any]:
        objective = ot.treecv_objective(
            ot.PegasosClassifier(),
            X,
            y,
            param_distributions={"alpha": FloatDistribution(0.1, 1.0)},
            **options,
        )
        study = optuna.create_study()
        study.optimize(objective, n_trials=4)
        return {"study": study, "objective": objective, "store": objective}

    kind = pick(rng, ("interval", "compare", "select", "best_estimator", "plot_choice"))
    takers = {
        "interval": (ot.CVResult.interval, ()),
        "compare": (ot.CVResult.compare, ("other",)),
        "select": (ot.select, ("study", "objective")),
        "best_estimator": (ot.TreeCVObjective.best_estimator, ("study",)),
        "plot_choice": (report.plot_choice, ("study", "store")),
    }
    function, needed = takers[kind]
    names = [name for name in inspect.signature(function).parameters if name != "self"]
    odd = {name: odd_value(rng) for name in rng.choice(names, pick(rng, (1, 1, 2)), replace=False)}
    given = {"method": pick(rng, ("bayle", "nadeau_bengio", "hoeffding"))}
    given |= {"rule": pick(rng, ("best", "one_se"))}
    given = {name: value for name, value in given.items() if name in names}

    def run() -> Any:
        if kind in ("interval", "compare"):
            valid = given | ({"other": evaluated()} if kind == "compare" else {})
            return getattr(evaluated(), kind)(**valid | odd)
        known = searched()
        valid = given | {name: known[name] for name in needed}
        if kind == "best_estimator":
            return known["objective"].best_estimator(**valid | odd)
        return function(**valid | odd)

    text = ", ".join(f"{name}={shown(value)}" for name, value in odd.items())
    return Call(f"{kind}({options}, {scoring}: {given}, {text})", {*names, "row_losses"}, run)


def make_call(seed: int, number: int) -> Call:
    rng = np.random.default_rng([seed, number])
    makers = [call_of_a_function] * 5 + [call_of_an_estimator] * 4
    return pick(rng, [*makers, call_of_a_store, call_of_a_choice])(rng)


# Judgement.


def is_finite(result: Any) -> bool:
    """Return whether scores and fitted attributes are finite, or the result says they are not.

    Responses for hostile rows may be infinite: a caller sees it.
    """
    if isinstance(result, list):
        return all(map(is_finite, result))
    if type(result).__name__ == "CVResult":
        return bool(np.isfinite(result.mean)) or result.diverged_folds > 0
    if hasattr(result, "get_params"):
        learned = [value for name, value in vars(result).items() if name.endswith("_")]
        return all(np.all(np.isfinite(value)) for value in learned if is_float(value))
    return not isinstance(result, float) or bool(np.isfinite(result))


def is_float(value: Any) -> bool:
    return getattr(getattr(value, "dtype", None), "kind", "") == "f"


def judged(call: Call) -> tuple[str, str]:
    """Run a call; return how it ended, and its error."""
    from sklearn.exceptions import NotFittedError

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = call.run()
        except NotFittedError as error:
            return "clear", str(error)
        except Exception as error:  # noqa: BLE001
            said = f"{type(error).__name__}: {error}"
            words = "|".join(map(re.escape, sorted(call.names, key=len, reverse=True)))
            names = re.search(rf"(?<!\w)({words})(?!\w)", str(error)) is not None
            is_clear = isinstance(error, ValueError | TypeError) and names
            return "clear" if is_clear else "unclear", said
    warned = any(
        "diverge" in str(warning.message) or issubclass(warning.category, RuntimeWarning)
        for warning in caught
    )
    return ("accepted" if warned or is_finite(result) else "silent"), ""


# The worker and its watchdog.


def work(seed: int, first: int, stop: int) -> None:
    """Run calls and write a line before and after each."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    for number in range(first, stop):
        call = make_call(seed, number)
        say(number=number, text=call.text)
        end, error = judged(call)
        say(number=number, text=call.text, end=end, error=error[:400])


def say(**line: Any) -> None:
    os.write(REPORT, (json.dumps(line) + "\n").encode())


def watch(seed: int, size: int) -> Iterator[dict[str, Any]]:
    """Have all calls run by workers; yield how each ended."""
    first = 0
    while first < size:
        options = ["--size", str(size), "--seed", str(seed), "--worker", str(first)]
        for line in watch_one([sys.executable, __file__, *options], first):
            yield line
            first = line["number"] + 1


def watch_one(command: list[str], first: int) -> Iterator[dict[str, Any]]:
    """Watch one worker until it has finished, died, or had to be killed.

    The command gets one more argument, the file descriptor that it reports to.
    """
    reading, writing = os.pipe()
    command = [*command, str(writing)]
    quiet = subprocess.DEVNULL
    worker = subprocess.Popen(command, pass_fds=[writing], stdout=quiet, stderr=quiet)
    os.close(writing)
    line: dict[str, Any] = {"number": first, "text": "(start)"}
    with os.fdopen(reading, buffering=1) as lines:
        while True:
            is_ready = select.select([lines], [], [], SECONDS_PER_CALL)[0]
            text = lines.readline() if is_ready else None
            if text:
                line = json.loads(text)
                if "end" in line:
                    yield line
                continue
            if text is None:
                worker.kill()
            status = worker.wait()
            if text is None or status != 0:
                end = "hung" if text is None else "crashed"
                yield {**line, "end": end, "error": f"exit status {status}"}
            return


def main() -> int:
    """Run the attack and print its report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=1000, help="number of calls")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="run this one call here, with its traceback")
    parser.add_argument("--show", type=int, default=20, help="print at most so many of each kind")
    parser.add_argument("--worker", nargs=2, type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("HOSTILE_FOLDER", folder)
        if given.worker:
            globals()["REPORT"] = given.worker[1]
            work(given.seed, given.worker[0], given.size)
            return 0
        if given.only is not None:
            call = make_call(given.seed, given.only)
            print(call.text)
            try:
                print(call.run())
            except Exception:  # noqa: BLE001
                traceback.print_exc()
            return 0
        return report(watch(given.seed, given.size), given.show)


def report(lines: Iterator[dict[str, Any]], most: int) -> int:
    """Print how the calls ended; return the exit status."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts[line["end"]] += 1
        if line["end"] not in GOOD and counts[line["end"]] <= most:
            print(f"{line['end']} {line['number']}: {line['text']}\n    {line['error']}")
    refused = counts["clear"] + counts["unclear"]
    print(", ".join(f"{count} {end}" for end, count in sorted(counts.items())))
    share = counts["unclear"] / max(1, refused)
    print(f"{counts['unclear']} of {refused} refusals ({share:.2%}) unclear")
    bad = counts["crashed"] + counts["hung"] + counts["silent"]
    return int(bad > 0 or counts["unclear"] > MOST_UNCLEAR * refused)


REPORT = -1  # the file descriptor that a worker reports to

if __name__ == "__main__":
    sys.exit(main())
