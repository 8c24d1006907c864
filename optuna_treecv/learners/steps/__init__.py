"""The steps of a Pipeline before its learner: which are done once, and which run with the folds.

``decisions`` decides how each step is treated. ``split`` divides a Pipeline into steps that can be
done ahead of the folds and the learner behind them. ``fitted`` does the steps on all rows, with
``placeholders`` for those that run with the models: in the kernel of a compiled learner, or in
Python. ``stacked`` asks whether the rows of all folds have one form, and ``errors`` names the step
that an error comes from.
"""
