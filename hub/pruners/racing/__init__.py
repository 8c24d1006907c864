from optuna_treecv import RacingPruner
from optuna_treecv import treecv_objective


__all__ = ["RacingPruner", "treecv_objective"]
