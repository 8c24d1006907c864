"""Sphinx configuration: sphinx-build -W -b html docs docs/_build."""

from pathlib import Path
import re
import sys
from typing import Any

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))

import run_examples  # noqa: E402

import optuna_treecv  # noqa: E402

project = "optuna_treecv"
author = "The optuna_treecv developers"
copyright = "2026, The optuna_treecv developers"
release = optuna_treecv.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.extlinks",
    "myst_parser",
    "numpydoc",
    "sphinx-mathjax-offline",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
# The roles of the page with questions, such as :optuna:`315`.
_ASKED = {
    "dask": ("dask/dask-ml", "Dask-ML"),
    "integration": ("optuna/optuna-integration", "OptunaSearchCV"),
    "lightgbm": ("lightgbm-org/LightGBM", "LightGBM"),
    "mapie": ("scikit-learn-contrib/MAPIE", "MAPIE"),
    "optuna": ("optuna/optuna", "Optuna"),
    "sep": ("scikit-learn/enhancement_proposals", "scikit-learn proposals"),
    "sklearn": ("scikit-learn/scikit-learn", "scikit-learn"),
    "tpot": ("EpistasisLab/tpot", "TPOT"),
    "xgboost": ("dmlc/xgboost", "XGBoost"),
}
extlinks = {
    role: (f"https://github.com/{repository}/issues/%s", f"{name} #%s")
    for role, (repository, name) in _ASKED.items()
}
templates_path = ["_templates"]
exclude_patterns = ["_build", "snippets"]

html_theme = "pydata_sphinx_theme"
html_title = f"{project} {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": project},
    "show_nav_level": 1,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 6,
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "tango",
}
# Pages without sections of their own have no navigation at the left.
html_sidebars = {page: [] for page in ("index", "performance", "contributing", "changelog")}

autosummary_generate = True
toc_object_entries_show_parents = "hide"
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say more
numpydoc_show_class_members = False

sphinx_gallery_conf = {
    "examples_dirs": run_examples.examples(),
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",  # all of them are run
    # Functions by their names, since Sphinx pickles the configuration.
    "reset_argv": "run_examples.arguments",
    "within_subsection_order": "run_examples.place",
    "capture_repr": (),  # what scripts print, and nothing else
    "default_thumb_file": str(FOLDER / "figures" / "tree.svg"),
    "remove_config_comments": True,
    "notebook_extensions": set(),
    "download_all_examples": False,
    "show_signature": False,
    "write_computation_times": False,
}


def setup(app: Any) -> None:
    """Show terms of scikit-learn's glossary, which inherited docstrings refer to, as text."""

    def without_terms(
        app: Any, what: str, name: str, of: Any, options: Any, lines: list[str]
    ) -> None:
        if "TreeCVSearchCV" in name:
            lines[:] = [
                re.sub(r":term:`([^`<]*[^`< ]) *(<[^`]*>)?`", r"*\1*", one) for one in lines
            ]

    app.connect("autodoc-process-docstring", without_terms, priority=900)  # after numpydoc
