"""Compare what studies find with few folds and with many, by the true values."""

import numpy as np
import optuna
import optunahub


folds = optunahub.load_module("benchmarks/treecv_folds")

for fidelity in (1, 3, 10):
    results = []
    for seed in range(5):
        problem = folds.Problem("breast_cancer", fidelity=fidelity, seed=seed)
        study = optuna.create_study(
            directions=problem.directions, sampler=optuna.samplers.TPESampler(seed=seed)
        )
        study.optimize(problem, n_trials=30)
        results.append((study.best_value, problem.true_value(study.best_params)))
    value, true = np.mean(results, axis=0)
    print(f"means of {fidelity:2} folds: best value {value:.4f}, its true value {true:.4f}")
