"""Read, write and delete evaluations and fold scores in a database."""

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from datetime import datetime
import math
from typing import Any
import zlib

import numpy as np
import sqlalchemy as sa

from optuna_treecv.storage.database import chunks
from optuna_treecv.storage.database import Database
from optuna_treecv.storage.tables import EVALUATIONS
from optuna_treecv.storage.tables import FOLD_SCORE_BLOCKS
from optuna_treecv.storage.tables import FOLD_SCORES
from optuna_treecv.storage.tables import Omitted
from optuna_treecv.storage.tables import read_checked

#: If an evaluation has more fold scores than this, they are stored in one block instead of in
#: rows.
MAX_SCORE_ROWS = 1000

_COLUMNS = tuple(EVALUATIONS.columns)
_SCORE_COLUMNS = tuple(FOLD_SCORES.columns)
_BLOCK_COLUMNS = tuple(FOLD_SCORE_BLOCKS.columns)
COLUMNS = [column.name for column in _COLUMNS]
# The maximum number of fold scores of an evaluation, because fold indices have 32 bits.
_MAX_SCORES = 2**31
# The maximum compression ratio of zlib.
_MAX_COMPRESSION_RATIO = 1032


def run_of_score(run: str, number: int | str) -> str:
    """Return the run id for a further score of a trial; the second score has number 1."""
    return f"{run}-{number}"


def record(
    database: Database,
    evaluation: Mapping[str, Any],
    scores: np.ndarray,
    further: Sequence[tuple[Mapping[str, Any], np.ndarray]] = (),
    n_ahead: int = 0,
    since: datetime | None = None,
) -> int | None:
    """Write an evaluation with its fold scores in one transaction.

    If the database fails, there is one warning, and no further attempt for some time.

    Parameters
    ----------
    database : Database
    evaluation : dict
        A row of the table ``EVALUATIONS``.
    scores : ndarray of shape (n_repeats * n_folds,), float64
        The fold scores; NaN for folds without a score, which are not stored.
    further : sequence of (dict, ndarray)
        The evaluations and fold scores for the other metrics of the trial.
    n_ahead : int
        The number of row updates that were made by a batch. This evaluation counts them as its
        own, unless another evaluation with the same key has counted them already.
    since : datetime or None
        Evaluations before this time are ignored when checking whether the updates have been
        counted.

    Returns
    -------
    int or None
        The number of row updates of the evaluation, as written; None if nothing was written.
    """
    pairs = [(evaluation, scores), *further]
    values = [{name: _sql_value(value) for name, value in row.items()} for row, _ in pairs]
    rows: list[dict[str, Any]] = []
    blocks: list[dict[str, Any]] = []
    for row, of_folds in pairs:
        array = np.ascontiguousarray(of_folds, dtype="<f8").ravel()
        folds = np.flatnonzero(~np.isnan(array)).tolist()
        run = row["run"]
        if len(array) > MAX_SCORE_ROWS and folds:
            blocks.append({"run": run, "n_scores": len(array), "scores": _pack(array)})
        elif folds:
            rows += [{"run": run, "fold": fold, "score": float(array[fold])} for fold in folds]

    def write(connection: sa.Connection) -> int:
        first = dict(values[0])
        if n_ahead and not _is_counted(connection, first["key"], since):
            first["n_updates"] += n_ahead
            first["n_updates_saved"] = max(0, first["n_updates_saved"] - n_ahead)
        connection.execute(sa.insert(EVALUATIONS), [first, *values[1:]])
        if rows:
            connection.execute(sa.insert(FOLD_SCORES), rows)
        if blocks:
            connection.execute(sa.insert(FOLD_SCORE_BLOCKS), blocks)
        return int(first["n_updates"])

    return database.attempt(write, None, without="records of evaluations", write=True)


def _is_counted(connection: sa.Connection, key: str, since: datetime | None) -> bool:
    """Return whether another evaluation already counts the row updates for this key.

    In PostgreSQL, also lock the key until the end of the transaction.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(int(key[:15], 16))))
    counted = [EVALUATIONS.c.key == key, EVALUATIONS.c.n_updates > 0]
    if since is not None:
        counted.append(EVALUATIONS.c.created_at >= since)
    return connection.scalar(sa.select(EVALUATIONS.c.run).where(*counted).limit(1)) is not None


def read_evaluations(
    connection: sa.Connection,
    store: object,
    *,
    study_name: str | None = None,
    runs: Collection[str] | None = None,
) -> list[dict[str, Any]]:
    """Return the evaluations in the database, optionally only those of a study or of some runs.

    Rows with invalid values are omitted. There is one warning about them, which names ``store``.
    """
    of_study = [] if study_name is None else [EVALUATIONS.c.study_name == study_name]
    wheres = [of_study]
    if runs is not None:
        wheres = [[*of_study, EVALUATIONS.c.run.in_(part)] for part in chunks(list(runs))]
    omitted = Omitted("treecv_evaluations", "run")
    evaluations = [
        row
        for where in wheres
        for row in read_checked(connection, _COLUMNS, where, omitted, _problem_of_evaluation)
    ]
    omitted.warn(store, stacklevel=3)
    return evaluations


def read_scores(
    connection: sa.Connection, store: object, n_scores: Mapping[str, int]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return arrays of the fold indices and fold scores for each run that has any.

    Parameters
    ----------
    connection : Connection
    store : object
        The name of the store in warnings. Invalid scores are omitted with a warning.
    n_scores : mapping of str to int
        The number of fold scores that each run would have without pruning.
    """
    pairs: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    omitted_rows = Omitted("treecv_fold_scores", "run")
    omitted_blocks = Omitted("treecv_fold_score_blocks", "run")

    def problem_of(row: dict[str, Any]) -> str | None:
        is_fold = 0 <= row["fold"] < n_scores[row["run"]]
        return None if is_fold else f"fold {row['fold']} has the score {row['score']}"

    for part in chunks(list(n_scores)):
        of_runs: dict[str, dict[int, float]] = {}
        where = [FOLD_SCORES.c.run.in_(part)]
        for row in read_checked(connection, _SCORE_COLUMNS, where, omitted_rows, problem_of):
            of_runs.setdefault(row["run"], {})[row["fold"]] = row["score"]
        for run, scores in of_runs.items():
            folds = np.array(sorted(scores))
            pairs[run] = folds, np.array([scores[fold] for fold in folds.tolist()])
        where = [FOLD_SCORE_BLOCKS.c.run.in_(part)]
        for row in read_checked(connection, _BLOCK_COLUMNS, where, omitted_blocks):
            run = row["run"]
            unpacked = _unpack(row["scores"], row["n_scores"], n_scores[run])
            if unpacked is None:
                omitted_blocks.add(run, f"it does not hold {n_scores[run]} fold scores")
                continue
            folds = np.flatnonzero(~np.isnan(unpacked))
            pairs[run] = folds, unpacked[folds]
    for omitted in (omitted_rows, omitted_blocks):
        omitted.warn(store, stacklevel=3)
    return pairs


def read_named_scores(
    connection: sa.Connection, store: object, runs: Collection[str], n_scores: int
) -> list[tuple[str, str, np.ndarray]]:
    """Return (run, metric name, fold scores) for all runs whose fold scores are complete.

    Parameters
    ----------
    connection : Connection
    store : object
        The name of the store in warnings.
    runs : collection of str
    n_scores : int
        The number of fold scores of each run.
    """
    names = {row["run"]: row["scoring"] for row in read_evaluations(connection, store, runs=runs)}
    pairs = read_scores(connection, store, dict.fromkeys(names, n_scores))
    return [
        (run, names[run], scores) for run, (_, scores) in pairs.items() if len(scores) == n_scores
    ]


def count_by_study(connection: sa.Connection) -> list[tuple[str | None, int, int]]:
    """Return (study name, number of complete trials, number of pruned trials) for each study.

    The name is None for trials without a study. Trials with several scores are counted once.
    """
    study, state = EVALUATIONS.c.study_name, EVALUATIONS.c.state
    counts = (sa.func.sum(sa.case((state == s, 1), else_=0)) for s in ("complete", "pruned"))
    query = sa.select(study, *counts).where(EVALUATIONS.c.run.not_like(run_of_score("%", "%")))
    rows = connection.execute(query.group_by(study).order_by(study))
    return [(name, n_complete, n_pruned) for name, n_complete, n_pruned in rows]


def delete_evaluations(
    database: Database,
    *,
    keep_runs: Collection[str] = (),
    study_name: str | None = None,
    before: datetime | None = None,
) -> int:
    """Delete evaluations and their fold scores; return the number of deleted evaluations.

    For runs in ``keep_runs``, the evaluations by further scores of the same trials are also kept.
    """
    query = sa.select(EVALUATIONS.c.run)
    if study_name is not None:
        query = query.where(EVALUATIONS.c.study_name == study_name)
    if before is not None:
        query = query.where(EVALUATIONS.c.created_at < before)
    runs = set(keep_runs)
    with database.writing() as connection:
        deleted = [
            run
            for run in connection.scalars(query)
            # SQLite may return bytes. The run id of a further score begins with that of the first.
            if not isinstance(run, str) or not runs & {run, run.partition("-")[0]}
        ]
        for part in chunks(deleted):
            # SQLite enforces foreign keys only if requested, which an engine of the user may not
            # do.
            for table in (FOLD_SCORES, FOLD_SCORE_BLOCKS, EVALUATIONS):
                connection.execute(sa.delete(table).where(table.c.run.in_(part)))
    return len(deleted)


def _sql_value(value: Any) -> Any:
    """Convert a value to a type that can be stored in the database.

    NumPy scalars are converted to Python numbers, because the SQLite driver would store NumPy
    integers as bytes. NaN becomes NULL.
    """
    if isinstance(value, dict):
        return _plain(value)
    value = value.item() if isinstance(value, np.generic) else value
    return None if value != value else value


def _plain(value: Any) -> Any:
    """Convert a value to types that can be stored as JSON.

    NaN and infinities become "nan", "inf" and "-inf", because PostgreSQL rejects them in JSON.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(part) for part in value]
    return repr(value)


def _pack(scores: np.ndarray) -> bytes:
    """Compress fold scores; integers from 0 to 255 are stored as one byte each.

    Other scores are stored as float64, uncompressed if compression would save less than half.
    """
    with np.errstate(invalid="ignore"):  # NaN and infinity do not fit into a byte
        small = scores.astype("u1")
    fits = np.array_equal(small, scores) and not np.any(np.signbit(scores))
    data = (small if fits else scores).data.cast("B")
    sample = data[: 8 * MAX_SCORE_ROWS]
    pays = len(zlib.compress(sample, level=1)) < len(sample) / 2
    return zlib.compress(data, level=1 if pays else 0)


def _problem_of_evaluation(row: dict[str, Any]) -> str | None:
    for name in ("n_folds", "n_repeats"):
        if row[name] < 1:
            return f"{name} must be 1 or more, got {row[name]}"
    n_scores = row["n_folds"] * row["n_repeats"]
    if n_scores > _MAX_SCORES:
        return f"n_folds * n_repeats must be {_MAX_SCORES} or less, got {n_scores}"
    return None


def _unpack(block: bytes, n_scores: int, n_expected: int) -> np.ndarray | None:
    """Decompress the scores of a block; return None if it is corrupt or has the wrong length.

    Even a corrupt block is never decompressed beyond the expected length.
    """
    if n_scores != n_expected or n_scores > _MAX_COMPRESSION_RATIO * len(block):
        return None
    unpacker = zlib.decompressobj()
    try:
        unpacked = unpacker.decompress(block, 8 * n_scores + 1)
    except zlib.error:
        return None
    if len(unpacked) not in (n_scores, 8 * n_scores) or not unpacker.eof:
        return None
    return np.frombuffer(unpacked, "u1" if len(unpacked) == n_scores else "<f8").astype(float)
