"""Compiled training and tests of incremental models along the tree.

* ``tree``: Algorithm 1 of the TreeCV paper over any kernel, without the interpreter.
* ``kernel``: the class ``Kernel``, the interface to Python.
* ``row_weight``: the weights of rows, and the balance of classes. ``losses``: slopes of losses.
  ``steps``: the sizes of gradient steps.
* ``linear``: the base of ``pegasos``, ``sgd`` and ``svrg``, which train one model or many models
  over the same rows in lanes.
* ``kmeans`` and ``gaussian``: the kernels of the unsupervised learners.
* ``scaled``: any kernel on rows that are centred and scaled per training set.
* ``lanes`` and ``lane_loops``: computations with one row in all lanes. ``pegasos_lanes``,
  ``sgd_lanes`` and ``svrg_lanes``: the training of ``pegasos``, ``sgd`` and ``svrg`` in lanes.
* ``*_by_type.pxi``: included by kernels to choose their loops by the layout and type of the rows.

The mathematics of each module is in its ``.pxd`` file, or in its ``.pyx`` file if it has no
``.pxd`` file.
"""
