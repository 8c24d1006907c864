"""Decision trees on binned features, grown for all folds jointly.

``forest`` visits the nodes (``forest_nodes``), fills their tables (``forest_tables``), searches
them for splits (``forest_search``, with ``split_search`` for one tree) and writes ``records``.
``pruning`` applies stricter limits to the records.
"""
