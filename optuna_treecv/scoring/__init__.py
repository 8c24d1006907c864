"""Fold scores: losses, which a study minimises, and scikit-learn scorers, which it maximises."""

from optuna_treecv.scoring.at_leaves import ArrayThenCount
from optuna_treecv.scoring.at_leaves import COUNT_BYTES
from optuna_treecv.scoring.at_leaves import Leaves
from optuna_treecv.scoring.at_leaves import Loss
from optuna_treecv.scoring.at_leaves import LOSSES
from optuna_treecv.scoring.at_leaves import make_scoring
from optuna_treecv.scoring.at_leaves import OutputsAtLeaves
from optuna_treecv.scoring.at_leaves import score_of
from optuna_treecv.scoring.at_leaves import Scorer
from optuna_treecv.scoring.at_leaves import ScoresAtLeaves
from optuna_treecv.scoring.at_leaves import ScoresOfOutputs
from optuna_treecv.scoring.at_leaves import scoring_for

__all__ = [
    "COUNT_BYTES",
    "LOSSES",
    "ArrayThenCount",
    "Leaves",
    "Loss",
    "OutputsAtLeaves",
    "Scorer",
    "ScoresAtLeaves",
    "ScoresOfOutputs",
    "make_scoring",
    "score_of",
    "scoring_for",
]
