"""Fold scores: losses, which a study minimises, and scikit-learn scorers, which it maximises."""

from optuna_treecv.scoring.asked import make_scoring
from optuna_treecv.scoring.asked import pooled
from optuna_treecv.scoring.asked import Scoring
from optuna_treecv.scoring.asked import scoring_for
from optuna_treecv.scoring.asked import with_pooled
from optuna_treecv.scoring.at_leaves import ArrayThenCount
from optuna_treecv.scoring.at_leaves import COUNT_BYTES
from optuna_treecv.scoring.at_leaves import Leaves
from optuna_treecv.scoring.fold_metrics import fold_metric
from optuna_treecv.scoring.losses import Loss
from optuna_treecv.scoring.of_folds import follows_from_squares
from optuna_treecv.scoring.of_folds import scores_from_squares
from optuna_treecv.scoring.of_folds import scores_of_folds
from optuna_treecv.scoring.of_folds import scores_of_rows
from optuna_treecv.scoring.of_folds import scores_rows
from optuna_treecv.scoring.pooled import Metric
from optuna_treecv.scoring.pooled import Pooled
from optuna_treecv.scoring.pooled import pooled_score
from optuna_treecv.scoring.scorers import range_by_name
from optuna_treecv.scoring.scorers import range_of
from optuna_treecv.scoring.scorers import response_of
from optuna_treecv.scoring.scorers import ReturnsSeveral
from optuna_treecv.scoring.scorers import score_of
from optuna_treecv.scoring.scorers import Scorer
from optuna_treecv.scoring.scorers import UndefinedScore
from optuna_treecv.scoring.tested_rows import are_counts
from optuna_treecv.scoring.tested_rows import by_loss
from optuna_treecv.scoring.tested_rows import FoldScores
from optuna_treecv.scoring.tested_rows import in_full
from optuna_treecv.scoring.tested_rows import Scored
from optuna_treecv.scoring.tested_rows import spread_of
from optuna_treecv.scoring.tested_rows import spread_of_counts
from optuna_treecv.scoring.tested_rows import SPREAD_SIZE
from optuna_treecv.scoring.tested_rows import TestedRows
from optuna_treecv.scoring.tested_rows import unknown_spreads

__all__ = [
    "COUNT_BYTES",
    "SPREAD_SIZE",
    "ArrayThenCount",
    "FoldScores",
    "Leaves",
    "Loss",
    "Metric",
    "Pooled",
    "ReturnsSeveral",
    "Scored",
    "Scorer",
    "Scoring",
    "TestedRows",
    "UndefinedScore",
    "are_counts",
    "by_loss",
    "fold_metric",
    "follows_from_squares",
    "in_full",
    "make_scoring",
    "pooled",
    "pooled_score",
    "range_by_name",
    "range_of",
    "response_of",
    "score_of",
    "scores_from_squares",
    "scores_of_folds",
    "scores_of_rows",
    "scores_rows",
    "scoring_for",
    "spread_of",
    "spread_of_counts",
    "unknown_spreads",
    "with_pooled",
]
