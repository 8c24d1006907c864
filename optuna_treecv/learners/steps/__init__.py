"""The steps of a Pipeline before its learner: which are done once, and which run with the folds.

``kinds`` says how each step is treated, ``once`` which ones transform each row for itself,
``scalers`` takes the StandardScalers out of the steps and puts them back fitted, and ``front``
does the steps before a compiled learner.
"""
