"""Rows that memory does not hold: the same bits, in little memory, and nothing left on disks."""

from __future__ import annotations

import os
import pickle
import re
import signal
from textwrap import dedent
import time
import tracemalloc
from unittest import mock

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from ids import said
import numpy as np
import optuna
from optuna.distributions import FloatDistribution
import pandas as pd
from processes import Script
import pytest
from scipy import sparse
from sklearn.datasets import make_classification
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.model_selection import GroupKFold
from sklearn.model_selection import TimeSeriesSplit
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils import check_array
from studies import searched

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import PegasosClassifier
from optuna_treecv import pooled
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective
from optuna_treecv import TreeCVSearchCV
from optuna_treecv.caching.caches import ArrayThenCount
from optuna_treecv.engines.newton.left_out import LeaveOneOutModels
from optuna_treecv.rows import row_file
from optuna_treecv.rows.layout import SparseRows
from optuna_treecv.rows.memory import pad_rows
from optuna_treecv.rows.memory import padded_width
from optuna_treecv.rows.row_file import DenseFile
from optuna_treecv.rows.row_file import LEAST_BYTES
from optuna_treecv.rows.row_file import Room
from optuna_treecv.rows.row_file import RowFile
from optuna_treecv.rows.row_file import SparseFile
from optuna_treecv.study.records import PROGRESS_ATTRIBUTE

LITTLE = LEAST_BYTES  # the rows below take 3 to 6 times as much
PEGASOS = PegasosClassifier(alpha=1e-3)

X, y = make_classification(30_000, 20, n_informative=8, flip_y=0.2, random_state=0)
MISSING = np.where(np.random.default_rng(1).random(X.shape) < 0.05, np.nan, X)
WEIGHTS = np.random.default_rng(2).random(len(X))
CSR = sparse.random_array(
    (30_000, 200), density=0.05, format="csr", random_state=np.random.default_rng(0)
)
CSR_Y = (CSR @ np.random.default_rng(3).normal(size=200) > 0).astype(int)


@pytest.fixture
def files(monkeypatch):
    """Return the row files that are made meanwhile."""
    made, init = [], RowFile.__init__

    def noted(self, *args):
        init(self, *args)
        made.append(self)

    monkeypatch.setattr(RowFile, "__init__", noted)
    return made


def is_same(one, other):
    pairs = zip(one.scores.values(), other.scores.values(), strict=True)
    return all(
        np.array_equal(a.test_score, b.test_score, equal_nan=True)
        and np.array_equal(a.mean, b.mean)
        for a, b in pairs
    )


# The files have what is in memory.


@pytest.mark.slow
@settings(max_examples=50)
@given(
    st.integers(1, 60),
    st.integers(1, 9),
    st.booleans(),
    st.sampled_from([np.float32, np.float64]),
    st.integers(0, 99),
    st.integers(64, 2000),
    st.integers(1, 13),
)
def test_a_file_holds_the_padded_rows(n, d, intercept, dtype, seed, n_bytes, n_piece):
    rng = np.random.default_rng(seed)
    given_rows = rng.normal(size=(n, d)).astype(dtype) * (rng.random((n, d)) < 0.5)
    order = rng.permutation(n).astype(np.uint32)
    room, width = Room(n_bytes), padded_width(d + intercept)
    for rows in (given_rows, sparse.csr_array(given_rows)):
        pieces = [
            (first, pad_rows(part, np.arange(part.shape[0], dtype=np.uint32), intercept))
            for first in range(0, n, n_piece)
            for part in [rows[first : first + n_piece]]
        ]
        expected = pad_rows(rows, order, intercept)
        if sparse.issparse(rows):
            zeros = np.append(0, np.cumsum(rng.integers(0, 3, n)))  # for example
            begins = rows.indptr + zeros
            found = SparseFile(pieces, order, begins, int(intercept), width, dtype, room).rows
            for name in ("values", "columns", "begins"):
                array = getattr(expected, name)
                assert getattr(found, name).dtype == array.dtype
                assert getattr(found, name).tobytes() == array.tobytes()
            assert found.shape == expected.shape
        else:
            found = DenseFile(pieces, order, width, dtype, room).rows
            assert found.dtype == expected.dtype and found.tobytes() == expected.tobytes()


ESTIMATORS = {
    "pegasos": PEGASOS,
    "svrg": StreamingSVRGClassifier(),
    "svrg by theory": StreamingSVRGClassifier(settings="theory", alpha=0.1),
    "sgd": AveragedSGDClassifier(),
    "mini-batches": AveragedSGDClassifier(batch_size=16),
    "scaled": make_pipeline(StandardScaler(), PEGASOS),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cv"),
    [
        (name, cv)
        for number, name in enumerate(ESTIMATORS)
        for cv in [(2, "loo"), (10, 100)][number % 2]
    ],
)
@pytest.mark.filterwarnings("ignore:settings='theory'")
def test_scores_are_those_of_rows_in_memory(name, cv, files):
    estimator = ESTIMATORS[name]
    in_memory = tree_cross_validate(estimator, X, y, cv=cv)
    in_file = tree_cross_validate(estimator, X, y, cv=cv, max_memory=LITTLE)
    assert len(files) == 1
    assert is_same(in_memory, in_file)
    assert in_file.n_updates == in_memory.n_updates
    pieces = len(X) / files[0].n_block
    assert files[0].n_read <= len(X) * (1 + np.log2(pieces) / 2 + 0.5)


OPTIONS = {
    "scores": {"scoring": ["error", "roc_auc", "hinge"], "row_losses": True},
    "pooled": {"scoring": pooled("roc_auc")},
    "callable": {"scoring": lambda model, X, y: model.score(X, y)},
    "weights": {"sample_weight": WEIGHTS},
    "score weights": {"score_weight": WEIGHTS},
    "threads": {"n_jobs": 2, "cv": 100},
    "hold-out": {"method": "holdout"},
    "progressive": {"method": "progressive"},
    "groups": {"cv": GroupKFold(5), "groups": np.arange(len(X)) % 37},
    "time series": {"cv": TimeSeriesSplit(5), "method": "treecv"},
    "repeats": {"n_repeats": 2},
    "as they lie": {"shuffle": False},
    "averaged": {"kfold_models": True},
}


def test_long_scores_of_rows_are_in_a_file():
    many = np.resize(X, (80_000, X.shape[1])), np.resize(y, 80_000)
    in_file = tree_cross_validate(PEGASOS, *many, max_memory="2MB", row_losses=True)
    in_memory = tree_cross_validate(PEGASOS, *many, row_losses=True)
    assert in_memory.row_losses.flags.owndata and not in_file.row_losses.flags.owndata
    assert np.array_equal(in_memory.row_losses, in_file.row_losses)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_options_act_as_for_rows_in_memory(name, files):
    options = OPTIONS[name]
    in_memory = tree_cross_validate(PEGASOS, X, y, **options)
    in_file = tree_cross_validate(PEGASOS, X, y, max_memory=LITTLE, **options)
    assert len(files) == options.get("n_repeats", 1)
    assert is_same(in_memory, in_file)
    if in_memory.row_losses is not None:
        assert np.array_equal(in_memory.row_losses, in_file.row_losses)
    if "kfold_models" in options:
        assert np.array_equal(in_memory.kfold_estimator().coef_, in_file.kfold_estimator().coef_)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "dtype"),
    [(PEGASOS, np.float32), (make_pipeline(StandardScaler(with_mean=False), PEGASOS), np.float64)],
    ids=said,
)
def test_sparse_rows(estimator, dtype, files):
    rows = CSR.astype(dtype)
    for cv in (10, "loo"):
        in_memory = tree_cross_validate(estimator, rows, CSR_Y, cv=cv)
        assert is_same(
            in_memory, tree_cross_validate(estimator, rows, CSR_Y, cv=cv, max_memory=LITTLE)
        )
    assert all(isinstance(file, SparseFile) for file in files) and len(files) == 2


@pytest.mark.slow
def test_missing_values_and_float32(files):
    estimator = make_pipeline(SimpleImputer(), StandardScaler(), PEGASOS)
    for rows in (MISSING, MISSING.astype(np.float32)):
        in_memory = tree_cross_validate(estimator, rows, y)
        assert is_same(in_memory, tree_cross_validate(estimator, rows, y, max_memory=LITTLE))
    assert len(files) == 2


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [Ridge(), LogisticRegression(), GaussianNB()], ids=said)
def test_sums_solutions_and_partial_fit(estimator, files):
    options = {"scoring": "squared_error" if isinstance(estimator, Ridge) else "log_loss"}
    in_memory = tree_cross_validate(estimator, X, y, **options)
    in_file = tree_cross_validate(estimator, X, y, max_memory=LITTLE, **options)
    assert len(files) == 1
    assert in_file.method == in_memory.method in ("exact", "newton", "treecv")
    assert np.allclose(in_file.test_score, in_memory.test_score, rtol=1e-9)


def test_a_batch_is_one_walk_whose_outputs_stay_in_the_file(files, monkeypatch):
    models = [PegasosClassifier(alpha=alpha) for alpha in np.logspace(-5, -1, 8)]
    options = {"cv": 20, "scoring": ["error", "hinge"]}
    in_memory = tree_cross_validate_many(models, X, y, **options)
    of = mock.Mock(side_effect=AssertionError("outputs were copied into memory"))
    monkeypatch.setattr(ArrayThenCount, "of", of)
    in_file = tree_cross_validate_many(models, X, y, max_memory=LITTLE, **options)
    assert len(files) == 1
    assert files[0].n_read < 5 * len(X)
    assert all(map(is_same, in_memory, in_file))


@pytest.mark.slow
def test_predictions_and_the_model_of_all_rows():
    options = {"response_method": "decision_function"}
    in_memory = tree_cross_val_predict(PEGASOS, X, y, **options)
    assert np.array_equal(
        in_memory, tree_cross_val_predict(PEGASOS, X, y, max_memory=LITTLE, **options)
    )
    grid = {"alpha": [1e-4, 1e-3, 1e-2]}
    searches = [
        TreeCVSearchCV(PEGASOS, grid, max_memory=room, random_state=0).fit(X, y)
        for room in (None, LITTLE)
    ]
    assert np.array_equal(*(search.best_estimator_.coef_ for search in searches))
    scores = [search.cv_results_["mean_test_score"] for search in searches]
    assert np.array_equal(*scores)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cv", "report", "limit"),
    [(10, "folds", LITTLE), (100, "progressive", LITTLE), (40, "progressive", "4MB")],
)
def test_a_study_prunes_alike(cv, report, limit):
    def run(max_memory):
        study = optuna.create_study(
            sampler=optuna.samplers.RandomSampler(seed=1),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=3),
        )
        objective = treecv_objective(
            *(PEGASOS, X, y),
            param_distributions={"alpha": FloatDistribution(1e-6, 1e2, log=True)},
            **{"cv": cv, "report": report, "max_memory": max_memory},
        )
        study.optimize(objective, n_trials=8)
        return [(t.state, t.value, t.intermediate_values) for t in study.trials]

    in_memory = run(None)
    assert in_memory == run(limit)
    assert {state.name for state, *_ in in_memory} == {"COMPLETE", "PRUNED"}


@pytest.mark.slow
def test_trials_in_threads_share_the_file(files):
    objective = treecv_objective(
        *(PEGASOS, X, y),
        param_distributions={"alpha": FloatDistribution(1e-6, 1e2, log=True)},
        **{"cv": 50, "max_memory": LITTLE},
    )
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(objective, n_trials=12, n_jobs=3)
    assert len(files) == 1 and not files[0]._held
    for trial in study.trials[:3]:
        alone = tree_cross_validate(PegasosClassifier(trial.params["alpha"]), X, y, cv=50)
        assert trial.value == alone.mean


@pytest.mark.parametrize("max_memory", [None, LITTLE])
def test_a_pickled_objective_over_mapped_rows(max_memory, tmp_path):
    np.save(tmp_path / "X.npy", X)
    objective = treecv_objective(
        *(PegasosClassifier(), np.load(tmp_path / "X.npy", mmap_mode="r"), y),
        **{"param_distributions": {"alpha": FloatDistribution(1e-5, 1)}, "max_memory": max_memory},
    )
    expected = objective.evaluate({"alpha": 1e-3}).mean
    assert pickle.loads(pickle.dumps(objective)).evaluate({"alpha": 1e-3}).mean == expected


def test_estimators_of_others_see_missing_values_and_pieces(files):
    class Counter(GaussianNB):
        sizes = []

        def partial_fit(self, X, *arguments, **options):
            self.sizes.append(len(X))
            return super().partial_fit(np.nan_to_num(X), *arguments, **options)

        def predict(self, X):
            self.sizes.append(len(X))
            return super().predict(np.nan_to_num(X))

    for options in ({"cv": 2, "method": "treecv"}, {"method": "progressive"}):
        Counter.sizes.clear()
        options = {"scoring": "error", "max_memory": LITTLE, **options}
        tree_cross_validate(Counter(), MISSING, y, **options)
        assert max(Counter.sizes) <= 1.5 * files[-1].n_block < len(X) / 10


def test_explain_says_how_often_the_file_is_read(files):
    options = {"cv": 100, "max_memory": LITTLE}
    said = treecv_objective(lambda trial: PEGASOS, X, y, **options).explain({})
    tree_cross_validate(PEGASOS, X, y, **options)
    n_times = f"{files[0].n_read / len(X):.1f}"
    assert f". The prepared rows, 0.01 GB, are in a file, which is read {n_times} times." in said
    said = treecv_objective(lambda trial: Ridge(), X, y, **options).explain({})
    assert ". The prepared rows, 0.01 GB, are in a file." in said


def test_progress_is_printed(monkeypatch, capsys, files):
    monkeypatch.setattr(row_file, "_INTERVAL", 0.0)
    options = {"cv": 100, "max_memory": LITTLE}
    tree_cross_validate(PEGASOS, X, y, **options)
    assert capsys.readouterr().out == ""
    tree_cross_validate(PEGASOS, X, y, verbose=1, **options)
    lines = capsys.readouterr().out.splitlines()
    writes = [line for line in lines if " rows are written to a file: " in line]
    assert re.search(r": 2\.0 of 2\.0 readings in \d+ s, 0 s left$", writes[-1])
    total = f"{files[-1].n_read / len(X):.1f}"  # what was foreseen was read
    assert f" models are trained: {total} of {total} readings in " in lines[-1]
    for wrong in (-1, 2.5):
        with pytest.raises(
            ValueError, match=f"^verbose must be 0 or a positive integer, got {wrong}"
        ):
            tree_cross_validate(PEGASOS, X, y, verbose=wrong)


@pytest.mark.slow
def test_a_trial_says_how_far_it_is(monkeypatch, files, capsys):
    def run(**options):
        _, study = searched(lambda trial: PEGASOS, (X, y), None, 1, cv=100, **options)
        assert study.best_value == tree_cross_validate(PEGASOS, X, y, cv=100).mean
        return study.best_trial.user_attrs.get(PROGRESS_ATTRIBUTE)

    assert run(max_memory=LITTLE) is None  # it takes less than the time between two lines
    written, set_user_attr = [], optuna.Trial.set_user_attr

    def noted(self, name, value):
        written.append(value)
        set_user_attr(self, name, value)

    with monkeypatch.context() as patched:
        patched.setattr(optuna.Trial, "set_user_attr", noted)
        patched.setattr(row_file, "_INTERVAL_OF_LISTENER", 0.0)
        assert run() is None
        total = f"{files[-1].n_read / len(X):.1f}"
        said = f"^models are trained: {total} of {total} readings in . s, 0 s left$"
        assert re.match(said, run(max_memory=LITTLE))
        assert re.match(r"^rows are written to a file: 0\.\d of 2\.0 readings in ", written[1])
        patched.setattr(row_file, "_INTERVAL_OF_LISTENER", 1e-2)
        written.clear()
        run(max_memory=LITTLE)
        assert 1 < len(written) < 100
    capsys.readouterr()

    def refuse(self, name, value):
        if name == PROGRESS_ATTRIBUTE:
            raise RuntimeError("the storage is lost")
        set_user_attr(self, name, value)

    monkeypatch.setattr(row_file, "_INTERVAL_OF_LISTENER", 0.0)
    monkeypatch.setattr(optuna.Trial, "set_user_attr", refuse)
    assert run(max_memory=LITTLE) is None
    assert "[optuna_treecv]" not in capsys.readouterr().out


# Memory.

LIMITED = """
    import resource, sys
    import numpy as np
    from optuna_treecv import PegasosClassifier, tree_cross_validate, tree_cross_validate_many
    from sklearn.linear_model import Ridge

    X, y = (np.load(name, mmap_mode="r") for name in sys.argv[1:3])
    for model in (PegasosClassifier(), Ridge()):  # what libraries need
        tree_cross_validate(model, X[:2000], y[:2000])
    with open("/proc/self/status") as status:
        data = next(int(line.split()[1]) for line in status if line.startswith("VmData"))
    limit = 1024 * data + 40_000_000
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    models = [PegasosClassifier(alpha=alpha) for alpha in np.logspace(-4, -1, 8)]
    options = {} if sys.argv[3] == "None" else {"max_memory": sys.argv[3]}
    for cv in (10, "loo"):
        print(tree_cross_validate(models[0], X, y, cv=cv, **options).mean)
    print(tree_cross_validate(Ridge(), X, y, scoring="squared_error", **options).mean)
    for result in tree_cross_validate_many(models, X, y, cv=100, **options):
        print(result.mean)
"""


@pytest.mark.slow
def test_a_file_of_sparse_rows_takes_little_memory_for_each_row():
    n, n_piece = 2**19, 2**14
    order = np.random.default_rng(0).permutation(n).astype(np.uint32)
    begins = 2 * np.arange(n + 1, dtype=np.int32)
    columns = np.tile(np.arange(2, dtype=np.int32), n_piece)
    piece = SparseRows(np.ones(2 * n_piece), columns, 2 * np.arange(n_piece + 1), (n_piece, 8))
    pieces = ((first, piece) for first in range(0, n, n_piece))
    tracemalloc.start()
    file = SparseFile(pieces, order, begins, 0, 8, np.float64, Room(LEAST_BYTES))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(file.rows) == n and file.rows.begins[-1] == 2 * n
    assert peak < 4 * n + 3 * LEAST_BYTES  # the region of each row, and pieces


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "cv"),
    [(X, 2), (X, 11), (X, 100), (X, "loo"), (CSR, 2), (CSR, 10), (CSR, 23), (CSR, "loo")],
)
def test_what_is_trained_on_and_read_ahead_takes_no_more_than_the_limit(rows, cv, monkeypatch):
    most, hold = [0], RowFile.hold

    def noted(self, start, stop, following=(0, 0)):
        spans = [*self._spans(start, stop), *self._spans(*following)]
        most.append(sum(end - begin for _, begin, end in spans))
        hold(self, start, stop, following)

    monkeypatch.setattr(RowFile, "hold", noted)
    labels = y if rows is X else CSR_Y
    tree_cross_validate(PEGASOS, rows, labels, cv=cv, max_memory=LITTLE)
    assert LITTLE / 4 < max(most) < LITTLE * 7 / 8  # an eighth is for outputs


@pytest.mark.slow
def test_rows_left_out_that_are_solved_for_one_by_one_stay_in_files(monkeypatch):
    outputs = LeaveOneOutModels.predict

    def lose_some(self):
        found, are_lost = outputs(self)
        are_lost[[3, 20_000, 20_001]] = True
        return found, are_lost

    monkeypatch.setattr(LeaveOneOutModels, "predict", lose_some)
    results, peaks = [], []
    for max_memory in (None, LITTLE):
        tracemalloc.start()
        results.append(
            tree_cross_validate(
                *(LogisticRegression(), X, y),
                **{"cv": "loo", "method": "newton", "scoring": "log_loss"},
                max_memory=max_memory,
            )
        )
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert np.allclose(*(result.test_score for result in results), rtol=1e-9)
    assert peaks[1] < peaks[0] - 1.9 * X.nbytes  # neither the rows nor their copy in another order


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory):
    """Return files of 60 MB of rows, and of their labels."""
    folder = tmp_path_factory.mktemp("rows")
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(150_000, 50))
    np.save(folder / "X.npy", rows)
    np.save(folder / "y.npy", (rows[:, 0] + rng.normal(size=len(rows)) > 0).astype(np.int8))
    return folder


def start(code, folder, *arguments):
    """Run a script in a process of its own."""
    path = folder / "script.py"
    path.write_text(dedent(code))
    return Script(path, *arguments)


@pytest.mark.slow
def test_a_process_with_little_memory(on_disk, tmp_path):
    names = on_disk / "X.npy", on_disk / "y.npy"
    with_room = start(LIMITED, tmp_path, *names, "16MB")
    printed = with_room.stdout.read()
    assert with_room.wait() == 0, with_room.stderr.read()
    assert "MemoryError" in start(LIMITED, tmp_path, *names, "None").stderr.read()
    rows, labels = np.load(on_disk / "X.npy"), np.load(on_disk / "y.npy")
    models = [PegasosClassifier(alpha=alpha) for alpha in np.logspace(-4, -1, 8)]
    expected = [tree_cross_validate(models[0], rows, labels, cv=cv).mean for cv in (10, "loo")]
    ridge = tree_cross_validate(Ridge(), rows, labels, scoring="squared_error").mean
    side_by_side = tree_cross_validate_many(models, rows, labels, cv=100)
    found = [float(line) for line in printed.split()]
    assert found.pop(2) == pytest.approx(ridge, rel=1e-12)
    assert found == [*expected, *(result.mean for result in side_by_side)]


# The disk.

FOREVER = """
    import sys, time
    import numpy as np
    from optuna_treecv import PegasosClassifier, tree_cross_validate
    X, y = (np.load(name, mmap_mode="r") for name in sys.argv[1:3])
    options = {"max_memory": "4MB", "spill_dir": sys.argv[3]}
    while True:
        print(tree_cross_validate(PegasosClassifier(), X, y, cv=100, **options).mean, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.nightly)]
)
def test_a_killed_process_leaves_nothing_on_the_disk(how, on_disk, tmp_path):
    (tmp_path / "spilled").mkdir()
    names = on_disk / "X.npy", on_disk / "y.npy", tmp_path / "spilled"
    for wait in (0.1, 0.4):
        process = start(FOREVER, tmp_path, *names)
        assert float(process.stdout.readline()) < 0.5
        time.sleep(wait)
        assert os.listdir(names[-1]) == []
        process.send_signal(how)
        assert process.wait() != 0
        assert os.listdir(names[-1]) == []


FULL = """
    import resource, sys
    import numpy as np
    from optuna_treecv import PegasosClassifier, tree_cross_validate
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**21, 2**21))  # as a full disk
    X = np.random.default_rng(0).normal(size=(30_000, 20))
    options = {"max_memory": 2**20, "spill_dir": sys.argv[1]}
    tree_cross_validate(PegasosClassifier(), X, X[:, 0] > 0, **options)
"""


@pytest.mark.slow
def test_a_full_disk_is_said_at_once(tmp_path):
    (tmp_path / "spilled").mkdir()
    ended = start(FULL, tmp_path, tmp_path / "spilled")
    message = "OSError: spill_dir must have 0.01 GB of free space, but "
    assert message in ended.stderr.read()
    assert os.listdir(tmp_path / "spilled") == []


# What is wrong is said.


def test_a_file_that_changes(tmp_path):
    name = tmp_path / "X.npy"
    np.save(name, X)
    rows = np.load(name, mmap_mode="r")
    in_memory = tree_cross_validate(PEGASOS, X, y)
    for max_memory in (None, LITTLE):
        assert is_same(in_memory, tree_cross_validate(PEGASOS, rows, y, max_memory=max_memory))
        objective = treecv_objective(
            lambda trial: PEGASOS, rows, y, max_memory=max_memory, cache=None
        )
        os.utime(name, ns=(1, 1 + (max_memory or 0)))
        with pytest.raises(
            ValueError, match=r"^X must not change while it is read, but the file "
        ):
            objective.evaluate({})
    objective = treecv_objective(lambda trial: PEGASOS, rows, y, max_memory=LITTLE, cache=None)
    os.truncate(name, 1000)
    with pytest.raises(ValueError, match=r"^X must not change while it is read"):
        objective.evaluate({})


@pytest.mark.parametrize("max_memory", [None, LITTLE])
def test_a_late_row_that_is_no_number_is_named(max_memory, tmp_path):
    bad = X.copy()
    bad[29_990, 3] = np.nan
    np.save(tmp_path / "X.npy", bad)
    rows = np.load(tmp_path / "X.npy", mmap_mode="r")
    match = r"^Input X contains NaN in column 3, row 29990, but must hold finite numbers\.$"
    with pytest.raises(ValueError, match=match):
        tree_cross_validate(PEGASOS, rows, y, max_memory=max_memory)


@pytest.mark.parametrize(
    ("value", "n_bytes"),
    [("2GB", 2 * 10**9), ("1.5 GiB", 3 * 2**29), ("2000000B", 2_000_000), (" 3MB ", 3_000_000)],
)
def test_limits_in_words(value, n_bytes):
    objective = treecv_objective(lambda trial: PEGASOS, X, y, max_memory=value)
    assert objective.evaluator.cross_validation.settings.room.max_bytes == n_bytes


@pytest.mark.parametrize("value", [0, 1000, "2", "2 parsecs", "-1GB", 1.5, True, "0.5MB", "nanGB"])
def test_wrong_limits(value):
    match = r"^max_memory must be either None or at least 1048576 bytes, given as an integer or"
    with pytest.raises(ValueError, match=match):
        tree_cross_validate(PEGASOS, X, y, max_memory=value)


def test_wrong_folders(tmp_path):
    for folder in (tmp_path / "none", 3):
        with pytest.raises(ValueError, match="^spill_dir must be a folder that exists, got"):
            tree_cross_validate(PEGASOS, X, y, max_memory=LITTLE, spill_dir=folder)
    with pytest.raises(ValueError, match="^spill_dir must be None if max_memory is None"):
        tree_cross_validate(PEGASOS, X, y, spill_dir=tmp_path)
    if os.path.isdir("/dev/shm"):
        with pytest.raises(OSError, match="^spill_dir must be a folder on a disk, got '/dev/shm'"):
            tree_cross_validate(PEGASOS, X, y, max_memory=LITTLE, spill_dir="/dev/shm")


@pytest.mark.parametrize(
    ("estimator", "options", "why"),
    [
        (DecisionTreeClassifier(), {}, "fit takes all rows"),
        (KNeighborsClassifier(), {}, "neighbours are searched among all rows"),
        (PEGASOS, {"order": "random"}, "order='random' reads the rows"),
        (PEGASOS, {"n_epochs": 2}, "several epochs read"),
        (PEGASOS, {"method": "standard"}, "each training reads all"),
        (make_pipeline(PolynomialFeatures(), PEGASOS), {}, "its preprocessing transforms all"),
    ],
    ids=said,
)
def test_what_needs_all_rows_in_memory_says_so(estimator, options, why):
    match = rf"^max_memory must be either None or at least 5,760,000 bytes for .* got .*: {why}"
    with pytest.raises(ValueError, match=match):
        tree_cross_validate(estimator, X, y, max_memory=LITTLE, **options)
    tree_cross_validate(estimator, X[:900], y[:900], max_memory=LITTLE, **options)


@pytest.mark.slow
def test_rows_that_are_no_array_of_numbers():
    frame = pd.DataFrame(X, columns=[f"c{i}" for i in range(X.shape[1])])
    assert is_same(
        tree_cross_validate(PEGASOS, frame, y),
        tree_cross_validate(PEGASOS, frame, y, max_memory=LITTLE),
    )
    match = "got 1048576: its partial_fit takes rows of X as they were passed"
    with pytest.raises(ValueError, match=match):
        tree_cross_validate(GaussianNB(), frame, y, max_memory=LITTLE)
    columns = pd.DataFrame(X).astype(pd.SparseDtype(float, 0.0))
    if sparse.issparse(check_array(columns, accept_sparse="csr")):  # not with scikit-learn 1.8
        match = r"a data frame with sparse columns; use X\.sparse\.to_coo"
        with pytest.raises(ValueError, match=match):
            tree_cross_validate(PEGASOS, columns, y, max_memory=LITTLE)


def test_a_folder_is_that_of_the_call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir("rows")
    objective = treecv_objective(
        *(PEGASOS, X, y),
        param_distributions={"alpha": FloatDistribution(1e-5, 1)},
        **{"max_memory": np.int32(LITTLE), "spill_dir": "rows"},
    )
    monkeypatch.chdir("/")
    expected = tree_cross_validate(PEGASOS, X, y).mean
    assert objective.evaluate({"alpha": 1e-3}).mean == expected
    with pytest.raises(OSError, match="^spill_dir must be a writable folder, got"):
        tree_cross_validate(PEGASOS, X, y, max_memory=LITTLE, spill_dir="/proc")
