"""The steps of a Pipeline before its learner: which are done once, and which run with the folds.

``once`` says which transformers can be done once, and ``split`` divides a Pipeline into such
steps, running ones and the learner. ``running`` puts placeholders in the place of running steps,
and puts these back fitted. ``fitted`` does the steps on all rows: ``front`` before a compiled
learner, whose kernel runs the others, and ``in_python`` before any learner with ``partial_fit``,
where ``by_partial_fit`` trains the others. ``kinds`` says in words what happens to each step.
"""
