"""Decision trees on bins, those of all folds grown together.

``forest`` goes over the nodes (``forest_nodes``), fills their tables (``forest_tables``), searches
them for splits (``forest_search``, with ``split_search`` for one tree) and writes ``records``.
``pruning`` answers narrower limits from the records.
"""
