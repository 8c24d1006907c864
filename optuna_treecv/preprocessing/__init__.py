"""The steps of a Pipeline before its learner: which are done once, and which run with the folds.

``decisions`` decides how each step is treated, and divides a Pipeline into steps that can be done
ahead of the folds and the learner behind them. ``fitted`` does the steps on all rows, and runs
others with the models: in the kernel of a compiled learner, or in Python. ``parts`` walks through
steps that hold others.
"""
