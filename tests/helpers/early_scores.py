"""A cross-validation whose trials report early scores."""

from __future__ import annotations

from optuna_treecv.core.cross_validation import CrossValidation
from optuna_treecv.core.settings import Settings


def evaluation_of(X, y, *, cache=None, report="progressive", **options):
    settings = Settings(report=report, **options)
    return CrossValidation.of(X, y, settings, cache=cache, with_others=cache is not None)
