"""The integration with Optuna: search spaces, trials, pruning and the choice of a trial."""
