"""Evaluations and their fold scores in the database: written, read and deleted."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any
import warnings
import zlib

import numpy as np
from sqlalchemy import delete
from sqlalchemy import insert
from sqlalchemy import select
from sqlalchemy.orm import Session

from optuna_treecv.storage.database import Database
from optuna_treecv.storage.database import parts
from optuna_treecv.storage.tables import EvaluationRow
from optuna_treecv.storage.tables import FoldScoreBlockRow
from optuna_treecv.storage.tables import FoldScoreRow

#: The user attribute in which a trial names its evaluation.
RUN_ATTRIBUTE = "treecv_run"
#: An evaluation with more fold scores than this stores them in one block instead of in rows.
MAX_SCORE_ROWS = 1000

COLUMNS = [column.name for column in EvaluationRow.__table__.columns]


def record(database: Database, evaluation: EvaluationRow, scores: np.ndarray) -> bool:
    """Write an evaluation and its fold scores in one transaction.

    A database that fails is left alone for a while, after one warning.

    Parameters
    ----------
    database : Database
    evaluation : EvaluationRow
    scores : ndarray of shape (n_repeats * n_folds,), float64
        NaN for a fold without a score, which gets no row.

    Returns
    -------
    bool
        Whether they were written.
    """
    values = {name: _sql_value(getattr(evaluation, name)) for name in COLUMNS}
    scores = np.ascontiguousarray(scores, dtype="<f8").ravel()
    run = evaluation.run
    if len(scores) > MAX_SCORE_ROWS:
        rows: list[dict[str, Any]] = [
            {"run": run, "n_scores": len(scores), "scores": _pack(scores)}
        ]
        table: type[FoldScoreRow | FoldScoreBlockRow] = FoldScoreBlockRow
    else:
        folds = np.flatnonzero(~np.isnan(scores)).tolist()
        rows = [{"run": run, "fold": fold, "score": float(scores[fold])} for fold in folds]
        table = FoldScoreRow

    def write(session: Session) -> bool:
        session.execute(insert(EvaluationRow).values(values))
        if rows:
            session.execute(insert(table), rows)
        return True

    return database.attempt(write, False, without="records of evaluations", write=True)


def read_evaluations(
    session: Session, *, study_name: str | None = None, runs: Collection[str] | None = None
) -> list[dict[str, Any]]:
    """Return rows of the table: all, those of a study, or those of some runs."""
    query = select(EvaluationRow.__table__)
    if study_name is not None:
        query = query.where(EvaluationRow.study_name == study_name)
    queries = [query]
    if runs is not None:
        queries = [query.where(EvaluationRow.run.in_(part)) for part in parts(list(runs))]
    return [dict(row) for each in queries for row in session.execute(each).mappings()]


def read_scores(session: Session, runs: list[str]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the folds and their scores for each run that has any."""
    found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for part in parts(runs):
        lists: dict[str, tuple[list[int], list[float]]] = {}
        columns = FoldScoreRow.run, FoldScoreRow.fold, FoldScoreRow.score
        query = select(*columns).where(FoldScoreRow.run.in_(part)).order_by(*columns[:2])
        for run, fold, score in session.execute(query):
            folds, scores = lists.setdefault(run, ([], []))
            folds.append(fold)
            scores.append(score)
        for run, (folds, scores) in lists.items():
            found[run] = np.array(folds, np.int64), np.array(scores)
        blocks = select(FoldScoreBlockRow.__table__).where(FoldScoreBlockRow.run.in_(part))
        for run, n_scores, block in session.execute(blocks):
            unpacked = _unpack(block, n_scores)
            if unpacked is None:
                warnings.warn(
                    f"store: the fold scores of run {run} are damaged and left out.",
                    RuntimeWarning,
                    stacklevel=3,
                )
                continue
            there = np.flatnonzero(~np.isnan(unpacked))
            found[run] = there, unpacked[there]
    return found


def delete_evaluations(
    database: Database,
    *,
    keep_runs: Collection[str] = (),
    study_name: str | None = None,
    before: datetime | None = None,
) -> int:
    """Delete evaluations with their fold scores; return how many evaluations were deleted."""
    query = select(EvaluationRow.run)
    if study_name is not None:
        query = query.where(EvaluationRow.study_name == study_name)
    if before is not None:
        query = query.where(EvaluationRow.created_at < before)
    kept = set(keep_runs)
    with database.writing() as session:
        deleted = [run for run in session.scalars(query) if run not in kept]
        for part in parts(deleted):
            # SQLite enforces foreign keys only if asked to, and a user's Engine may not ask.
            for table in (FoldScoreRow, FoldScoreBlockRow, EvaluationRow):
                session.execute(delete(table).where(table.run.in_(part)))
    return len(deleted)


def _sql_value(value: Any) -> Any:
    """Return a value as SQL takes it.

    SQLite's driver stores integers of NumPy as bytes, and NaN is NULL to it.
    """
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and value != value else value


def _pack(scores: np.ndarray) -> bytes:
    """Compress scores: errors become small, other numbers hardly and so are stored as they are."""
    data = scores.data.cast("B")
    sample = data[: 8 * MAX_SCORE_ROWS]
    pays = len(zlib.compress(sample, level=1)) < len(sample) / 2
    return zlib.compress(data, level=1 if pays else 0)


def _unpack(block: bytes, n_scores: int) -> np.ndarray | None:
    """Return the scores of a block, or None if their number is wrong.

    A damaged block is never unpacked beyond the expected length.
    """
    unpacker = zlib.decompressobj()
    try:
        unpacked = unpacker.decompress(block, 8 * n_scores + 1)
    except zlib.error:
        return None
    if len(unpacked) != 8 * n_scores or not unpacker.eof:
        return None
    return np.frombuffer(unpacked, "<f8").astype(float)
