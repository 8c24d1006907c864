"""Public functions, and the runs of estimators that searches, studies and reports evaluate."""
