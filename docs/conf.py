"""Sphinx configuration: sphinx-build -W -b html docs docs/_build."""

import optuna_treecv

project = "optuna_treecv"
author = "The optuna_treecv developers"
copyright = "2026, The optuna_treecv developers"
release = optuna_treecv.__version__

extensions = ["sphinx.ext.autodoc", "sphinx-mathjax-offline", "numpydoc"]
html_theme = "furo"
html_title = f"optuna_treecv {release}"
exclude_patterns = ["_build"]

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say more
numpydoc_show_class_members = False
