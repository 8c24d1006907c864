"""scikit-learn's own tests of a class, with another class in its place."""

from __future__ import annotations

from collections.abc import Iterator
import importlib.util
import inspect
import re
import sys
from types import ModuleType
from typing import Any
from unittest.mock import patch

from joblib import parallel_config
import pytest
import sklearn.model_selection

TESTS = "sklearn.model_selection.tests.test_search"


def cases_with(
    *replacements: type,
    home: ModuleType = sklearn.model_selection,
    tests: str = TESTS,
    nightly: str = "never",
) -> dict[str, Any]:
    """Return scikit-learn's tests of classes of ``home``, with others of the same names.

    Tests whose names ``nightly`` matches are nightly. Those of two jobs have two threads.
    """
    by_name = {replacement.__name__: replacement for replacement in replacements}
    origin = importlib.util.find_spec(tests).origin
    own_name = f"tests_of_{replacements[0].__module__}_{'_'.join(by_name)}".replace(".", "_")
    spec = importlib.util.spec_from_file_location(own_name, origin)
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where pickle finds its classes
    pattern = rf"\b({'|'.join(by_name)})\b|_searchcv_callback_test_cases"
    with patch.multiple(home, **by_name):
        spec.loader.exec_module(module)
    found = {
        name: test
        for name, test in vars(module).items()
        if name.startswith("test_") and re.search(pattern, inspect.getsource(test))
    }
    for name, test in found.items():
        if re.search(nightly, name):
            found[name] = pytest.mark.nightly(test)
    return {name: staticmethod(test) for name, test in found.items()} | {"_threads": _threads}


@pytest.fixture(autouse=True)
def _threads(self: Any) -> Iterator[None]:
    with parallel_config("threading"):  # because processes would import scikit-learn
        yield
