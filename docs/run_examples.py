"""How the documentation runs the examples: in their own folder.

They run briefly and without network, on made rows in place of data that would be downloaded. For
the pages of a release, ``REAL_DATA=1 sphinx-build ...`` runs them in full on the data that this
machine holds.
"""

from __future__ import annotations

import os
from pathlib import Path
import shutil
import tempfile
from typing import Any

os.environ["TQDM_DISABLE"] = "1"  # no progress bars; tqdm reads it once, when Optuna imports it

import optuna  # noqa: E402
import sklearn.datasets  # noqa: E402

# The examples in the order of the gallery, with arguments that cut long runs short.
ARGUMENTS = {
    "quickstart.py": [],
    "table.py": [],
    "covertype.py": [],
    "rare_class.py": ["20"],
    "bike_sharing.py": ["2"],
    "dashboard.py": [],
    "own_learner.py": [],
    "reproduce_table2.py": [],
    "single_pass.py": ["2", "2e4"],
    "when_is_it_worth_it.py": ["1"],
}

# Scripts write databases beside themselves, and a database from an earlier build would change what
# they print. The folder is removed at the end of the process.
_FOLDER = tempfile.TemporaryDirectory()


def examples() -> str:
    """Return a folder with a copy of the examples.

    Data that this machine may hold are hidden, unless REAL_DATA is set. The pages then look the
    same on each machine, and a build takes seconds.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if not os.environ.get("REAL_DATA"):
        os.environ.pop("OPTUNA_TREECV_DATA", None)
        sklearn.datasets.fetch_covtype = _no_data
    source = Path(__file__).resolve().parents[1] / "examples"
    return shutil.copytree(source, Path(_FOLDER.name) / "examples").as_posix()


def arguments(gallery_conf: dict[str, Any], script: dict[str, Any]) -> list[str]:
    """Return the arguments of an example, for ``reset_argv`` of sphinx-gallery."""
    name = Path(script["src_file"]).name
    takes_hours = name == "when_is_it_worth_it.py"
    return [] if os.environ.get("REAL_DATA") and not takes_hours else ARGUMENTS[name]


def place(name: str) -> int:
    """Return the place of an example in the gallery, for ``within_subsection_order``."""
    return list(ARGUMENTS).index(name)


def _no_data(**options: Any) -> Any:
    raise FileNotFoundError("The documentation downloads no data.")
