"""The list of engines; each is a folder that implements the protocol of ``core/engine.py``."""

from functools import partial

from optuna_treecv.core.engine import Engine
from optuna_treecv.engines.ensembles.engine import plan_bagging
from optuna_treecv.engines.ensembles.engine import plan_boosting
from optuna_treecv.engines.ensembles.growth import nests_by
from optuna_treecv.engines.fit.engine import plan_fits
from optuna_treecv.engines.kernel_machines.engine import plan_kernel_machine
from optuna_treecv.engines.neighbors.engine import plan_neighbors
from optuna_treecv.engines.newton.engine import NewtonPlan
from optuna_treecv.engines.sums.engine import ExactPlan
from optuna_treecv.engines.treecv.engine import plan_tree
from optuna_treecv.engines.treecv.passes import plan_chain
from optuna_treecv.engines.treecv.passes import plan_pass
from optuna_treecv.engines.treecv.passes import plan_standard
from optuna_treecv.engines.treecv.remote import plan_remote_tree
from optuna_treecv.engines.trees.engine import plan_trees
from optuna_treecv.plans.joint import plan_of_sums

#: "auto" takes the first engine that can evaluate an estimator. The last engine can evaluate any
#: estimator that has ``fit``.
ENGINES: tuple[Engine, ...] = (
    Engine("progressive", plan_pass, ("progressive",)),
    Engine("standard", partial(plan_trees, is_joint=False), ("standard",)),
    Engine("standard", plan_standard, ("standard",)),
    Engine("forest", plan_trees, ("auto", "holdout", "forest")),
    Engine("exact", partial(plan_of_sums, ExactPlan), ("auto", "holdout", "exact"), "any"),
    Engine("newton", partial(plan_of_sums, NewtonPlan), ("auto", "holdout", "newton"), "any"),
    Engine("neighbors", plan_neighbors, ("auto", "holdout", "neighbors")),
    Engine("kernel", plan_kernel_machine, ("auto", "holdout", "kernel")),
    Engine("boosting", plan_boosting, ("auto", "holdout", "boosting"), nests_by=nests_by),
    Engine("bagging", plan_bagging, ("auto", "holdout", "bagging"), nests_by=nests_by),
    Engine("treecv", plan_tree, ("auto", "holdout", "treecv")),
    Engine("treecv", plan_remote_tree, ("auto", "holdout", "treecv"), "remote"),
    Engine("chain", plan_chain, ("auto", "holdout", "treecv")),
    Engine("fit", plan_fits, ("auto", "holdout", "fit")),
)
