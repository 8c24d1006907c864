"""The preprocessing of a Pipeline: which transformers are fitted once, and which with the models.

``decisions`` determines the kind of each transformer, and divides a Pipeline into preprocessing
and learner. ``fitted`` fits transformers on all rows, and runs incremental ones with the models:
in the kernel of a compiled learner, or in Python. ``parts`` walks through composed transformers.
"""
