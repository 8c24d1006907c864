"""Keys of models: two models with equal keys are equal, bit for bit.

A key is made from the learner's class with the package's version and the kernels' ``FORMAT``, the
hyper-parameters that have acted, the prepared rows, and the prefix: the row ranges and orders that
the model has seen. Ranges are of rows, not of folds, so that trees of k and 2k folds share models
where both are powers of two.
"""

from __future__ import annotations

import copyreg
from hashlib import blake2b
from hashlib import sha256
from importlib.metadata import version
from numbers import Integral
from numbers import Real
import os
import struct
import sys
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from optuna_treecv._kernels import FORMAT
from optuna_treecv.learners.compiled import CompiledLearner
from optuna_treecv.learners.compiled import MOST_ROWS
from optuna_treecv.learners.parameter_names import parameters_of
from optuna_treecv.rows.data import PreparedRows
from optuna_treecv.rows.data import SparseRows
from optuna_treecv.sharing.origins import global_name
from optuna_treecv.sharing.origins import installed_version
from optuna_treecv.sharing.origins import modules_of
from optuna_treecv.tree.plan import Phase
from optuna_treecv.tree.plan import Plan

#: Names, and at the end the length in bytes of the array that they name.
Key = tuple[Any, ...]

_PACKAGE = "optuna_treecv"
_VERSION = version("optuna-treecv")
#: The bytes of a state may change their meaning between two commits of one version.
BUILD = f"{_VERSION} format {FORMAT} {sys.byteorder}"
#: What scores depend on besides: the losses are from this package, the scorers from scikit-learn.
SCORED_BY = f"{BUILD} scikit-learn {version('scikit-learn')}".encode()

# What scikit-learn's ``clone`` copies besides the parameters: requests for metadata, the setting
# of ``set_output``, and callbacks.
_REQUESTS = "_metadata_request"
_KEPT_BY_CLONE = ("_sklearn_output_config", "_skl_callbacks")

# Stands before weights among the arrays of rows, so that they are not taken for targets.
_WEIGHTS = [np.array(["weights"])]

# Code from outside this package may be different tomorrow under the same name. It is known by the
# class in memory, so that its keys end with the process.
_tokens: WeakKeyDictionary[type, bytes] = WeakKeyDictionary()
_lock = Lock()


class NoKey(TypeError):
    """Raised for a value that has no bytes that tell it from others."""


def digest(*parts: bytes) -> bytes:
    """Return 16 bytes that stand for parts, their order and where each ends."""
    hashed = blake2b(digest_size=16)
    for part in parts:
        hashed.update(len(part).to_bytes(8, "little") + part)
    return hashed.digest()


def stored_as(key: Key) -> bytes:
    """Return the bytes by which a store knows a key."""
    return digest(*(part if isinstance(part, bytes) else encode(part) for part in key))


def is_ours(kind: type) -> bool:
    """Return whether a class belongs to this package; models of other classes are not stored."""
    return kind.__module__.partition(".")[0] == _PACKAGE


def encode(value: Any) -> bytes:
    """Return a hyper-parameter as bytes that tell it from all others in this process.

    Raises
    ------
    NoKey
        If the value is an object without such bytes.
    """
    return _encode(value, lasting=False)


def lasting_key(value: Any) -> bytes:
    """Return an estimator or a hyper-parameter as bytes that mean the same in every later process.

    Classes and functions from outside of this package are known by their name and by the version
    of the distribution that they were installed from.

    Raises
    ------
    NoKey
        If the value, or a part of it, has no such bytes.
    """
    try:
        return _encode(value, lasting=True)
    except RecursionError:
        raise NoKey(f"{type(value).__name__} holds itself, so it has no key.") from None


def _encode(value: Any, lasting: bool) -> bytes:
    def inner(part: Any) -> bytes:
        return _encode(part, lasting)

    if value is None or isinstance(value, bool | np.bool_):
        return repr(value if value is None else bool(value)).encode()
    if isinstance(value, Integral):
        return b"i%d" % int(value)
    if isinstance(value, Real) and (value == float(value) or value != value):
        return b"f" + struct.pack("<d", float(value) if value == value else np.nan)
    if isinstance(value, str):
        return b"s" + value.encode(errors="surrogatepass")
    if isinstance(value, bytes):
        return b"b" + value
    if isinstance(value, tuple | list):
        return b"(" + digest(*map(inner, value))
    if isinstance(value, dict):
        return b"{" + digest(*(inner(item) for pair in value.items() for item in pair))
    if _is_array(value, "biuf"):
        return b"a" + digest(*map(bytes, _array(value)))
    if isinstance(value, type):
        return b"t" + (_lasting_name(value) if lasting else _type(value))
    if hasattr(value, "get_params"):
        kind = _lasting_name(type(value)) if lasting else _type(type(value))
        return b"e" + digest(kind, *map(inner, _settings_of(value)))
    if lasting:
        return _encode_object(value)
    raise NoKey(f"{value!r} has no key.")


def _settings_of(estimator: Any) -> list[Any]:
    """Return the parameters of an estimator, and its other settings that a clone keeps."""
    clone = getattr(estimator, "__sklearn_clone__", None)
    if getattr(clone, "__module__", "sklearn.base") != "sklearn.base":
        raise NoKey(f"A clone of {type(estimator).__name__} keeps more than its parameters.")
    attributes = getattr(estimator, "__dict__", {})
    # XGBoost's get_params draws a number from a generator, which would change the next fit.
    encode(attributes.get("random_state"))
    kept = [(name, attributes[name]) for name in _KEPT_BY_CLONE if name in attributes]
    if _REQUESTS in attributes:
        kept.append((_REQUESTS, repr(attributes[_REQUESTS])))  # names, strings and bools
    return [parameters_of(estimator), *kept]


def _encode_object(value: Any) -> bytes:
    """Return a key for an object that is neither a number, a container nor an estimator.

    Such an object is what ``pickle`` would store: the name of a function or of a singleton, or
    the class and the attributes of a plain object. Objects with a way of their own to be pickled
    have no key, which leaves out random number generators and iterators.
    """
    if isinstance(value, slice):
        return b":" + digest(*map(lasting_key, (value.start, value.stop, value.step)))
    if _is_array(value, "SUO"):
        return b"l" + digest(*map(lasting_key, (value.dtype.str, value.shape, value.tolist())))
    if global_name(value) is not None:
        return b"t" + _lasting_name(value)
    try:
        pickled = value.__reduce_ex__(2)
    except Exception as error:  # of code that is not ours
        raise NoKey(f"{value!r} has no key, since it cannot be pickled.") from error
    if isinstance(pickled, str):
        return b"t" + _lasting_name(value, pickled)
    plain = pickled[0] is copyreg.__newobj__  # type: ignore[attr-defined]
    if not plain or any(items is not None for items in pickled[3:]):
        raise NoKey(f"{value!r} has no key.")
    return b"o" + digest(_lasting_name(type(value)), *map(lasting_key, pickled[1:3]))


def fingerprint(rows: PreparedRows) -> bytes | None:
    """Return a digest of prepared rows in their final order, their targets and weights.

    None if they hold Python objects.
    """
    parts = [_arrays(rows.X), _arrays(rows.y)]
    if rows.weights is not None:
        parts.append([*_WEIGHTS, rows.weights])
    if None in parts:
        return None
    hashed = sha256()  # the fastest of Python's on CPUs that have it in hardware
    n_classes = 0 if rows.classes is None else len(rows.classes)
    hashed.update(struct.pack("<qq", rows.n_features, n_classes))
    for arrays in parts:
        assert arrays is not None
        for array in arrays:
            for part in _array(array):
                hashed.update(part)
    return hashed.digest()


def targets_key(rows: PreparedRows) -> bytes | None:
    """Return a digest of what predictions are compared with, the labels and weights in scores.

    None if they hold Python objects.
    """
    targets, classes = _arrays(rows.targets), _arrays(rows.classes)
    if targets is None or classes is None:
        return None
    arrays = targets + classes
    if rows.score_weights is not None:
        arrays += [*_WEIGHTS, rows.score_weights]
    return digest(*(bytes(part) for array in arrays for part in _array(array)))


def token() -> bytes:
    """Return a name for rows that no other evaluation uses."""
    return os.urandom(32)


def fed(prefix: bytes, phase: Phase, n_updates: int) -> bytes:
    """Return the name of a prefix followed by the first ``n_updates`` updates of a phase."""
    hashed = blake2b(prefix, digest_size=16)
    hashed.update(
        struct.pack(
            "<qqqQ?", phase.start, phase.stop, n_updates, phase.seed or 0, phase.seed is not None
        )
    )
    if phase.replays is not None:
        hashed.update(struct.pack("<qQqqq", *phase.replays))
    return hashed.digest()


def plan_key(plan: Plan) -> bytes:
    """Return a digest of everything about a tree."""
    bounds = b"" if plan.bounds is None else plan.bounds.tobytes()
    numbers = struct.pack("<qq?Q", plan.n_rows, plan.n_folds, plan.random, plan.seed)
    epochs = [encode(plan.n_epochs)] if plan.n_epochs > 1 else []
    return digest(numbers, bounds, *epochs)


def settings_key(learner: CompiledLearner, n_seen: int, *but: str | None) -> bytes:
    """Return a digest of the parameters that have acted on a state of ``n_seen`` rows.

    Parameters named in ``but`` are left out.
    """
    acted = [item for item in sorted(learner.settings_at(n_seen).items()) if item[0] not in but]
    return digest(encode(learner.kind), *(encode(part) for item in acted for part in item))


def lanes_key(learner: CompiledLearner) -> bytes:
    """Return a digest that is the same for all learners that can be trained side by side."""
    return settings_key(learner, MOST_ROWS, *learner.lane_parameters)


def _type(kind: type) -> bytes:
    if is_ours(kind):
        return f"{kind.__module__}.{kind.__qualname__} {BUILD}".encode()
    with _lock:
        return _tokens.setdefault(kind, os.urandom(16))


def _lasting_name(value: Any, name: str | None = None) -> bytes:
    """Return the name of a class, a function or a singleton, and the versions of its code."""
    found = global_name(value, name)
    if found is None:
        raise NoKey(f"{value!r} has no key, since it cannot be imported by a name.")
    versions = set()
    for module in modules_of(value, found[0]):
        ours = module.partition(".")[0] == _PACKAGE
        version_of_code = BUILD if ours else installed_version(module)
        if version_of_code is None:
            raise NoKey(
                f"{'.'.join(found)} has no key, since {module} is from no installed distribution, "
                "or from an editable one: its code may change under the same name."
            )
        versions.add(version_of_code)
    return f"{':'.join(found)} {', '.join(sorted(versions))}".encode()


def _is_array(value: Any, kinds: str) -> bool:
    """Return whether a value is an array without a mask, of one of these kinds of entries."""
    masked = isinstance(value, np.ma.MaskedArray)
    return isinstance(value, np.ndarray) and not masked and value.dtype.kind in kinds


def _arrays(data: Any) -> list[np.ndarray] | None:
    """Return the arrays of rows or targets; None if they hold more than numbers."""
    if data is None:
        return []
    if isinstance(data, SparseRows):
        dense = [] if data.dense is None else [data.dense]
        return [np.asarray(data.shape), data.values, data.columns, data.begins, *dense]
    if hasattr(data, "tocsr"):
        data = data.tocsr()
        return [np.asarray(data.shape), data.data, data.indices, data.indptr]
    if isinstance(data, np.ndarray) and data.dtype.kind in "biufSU":
        return [data]
    return None


def _array(array: np.ndarray) -> tuple[bytes | memoryview, ...]:
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return f"{array.dtype.str} {array.shape} ".encode(), flat.data
