"""Keys of models: two models with equal keys are equal, bit for bit.

A key is made from the learner's class with the package's version and the kernels' ``FORMAT``, the
hyper-parameters that have acted, the prepared rows, and the prefix: the row ranges and orders that
the model has seen. Ranges are of rows, not of folds, so that trees of k and 2k folds share models
where both are powers of two.
"""

from collections.abc import Callable
import copyreg
from enum import Enum
from functools import partial
from hashlib import blake2b
from importlib.metadata import version
import os
import struct
import sys
from threading import Lock
from typing import Any
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from sklearn import get_config
from xxhash import xxh3_128

from optuna_treecv._kernels import FORMAT
from optuna_treecv.caching.code import content_of_code
from optuna_treecv.caching.code import global_name
from optuna_treecv.caching.code import installed_version
from optuna_treecv.caching.code import is_code
from optuna_treecv.estimators.base import parameters_of
from optuna_treecv.rows.sparse_rows import SparseRows

#: Returns a value as bytes.
Encode = Callable[[Any], bytes]
#: Returns as bytes what is neither plain data nor an estimator; its second argument encodes parts.
Other = Callable[[Any, Encode], bytes]

_PACKAGE = "optuna_treecv"
_VERSION = version("optuna-treecv")
#: The bytes of a state may change their meaning between two commits of one version.
BUILD = f"{_VERSION} format {FORMAT} {sys.byteorder}"
#: The code of scores: the losses are from this package, the scorers from scikit-learn.
SCORED_BY = f"{BUILD} scikit-learn {version('scikit-learn')}".encode()

# The kinds of NumPy's types whose entries are their bytes.
_PLAIN = "biufcmM"

# What scikit-learn's ``clone`` copies besides the parameters: requests for metadata, the setting
# of ``set_output``, and callbacks.
_REQUESTS = "_metadata_request"
_KEPT_BY_CLONE = ("_sklearn_output_config", "_skl_callbacks")

# Code from outside this package may be different tomorrow under the same name. It is known by the
# class in memory, so that its keys end with the process.
_tokens: WeakKeyDictionary[type, bytes] = WeakKeyDictionary()
_lock = Lock()


class Key(NamedTuple):
    """Names one thing that is kept, in memory or in a store.

    Attributes
    ----------
    data : bytes
        The name of the rows; for a model, of those it was trained on in their order. For sums,
        forests and first steps of Pipelines it covers all else, too.
    folds : bytes
        The name of the folds, or of one of them; empty where ``data`` covers them.
    settings : bytes
        The name of the estimator, and of whatever else acts on the result.
    unit : bytes
        What it is: a model, outputs, scores, sums, ....
    n_bytes : int
        Its length, which a store compares with what it finds; 0 for what no store keeps.
    """

    data: bytes
    folds: bytes
    settings: bytes
    unit: bytes
    n_bytes: int = 0


class NoKey(TypeError):
    """Raised for a value that has no bytes that tell it from others."""


def digest(*parts: bytes) -> bytes:
    """Return a digest of 16 bytes of parts, their order and their lengths."""
    hashed = blake2b(digest_size=16)
    for part in parts:
        hashed.update(len(part).to_bytes(8, "little") + part)
    return hashed.digest()


def stored_as(key: Key) -> bytes:
    """Return the bytes that represent a key in a store."""
    return digest(*key[:-1], encode(key.n_bytes))


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
    return _encode(value, _in_this_process)


def lasting_key(value: Any) -> bytes:
    """Return an estimator or a hyper-parameter as bytes that mean the same in every later process.

    Classes and functions from outside of this package are known by their name and by the version
    of the distribution that they were installed from.

    Raises
    ------
    NoKey
        If the value, or a part of it, has no such bytes.
    """
    return _guarded(value, _lasting)


def content_key(value: Any) -> bytes:
    """Return a scorer as bytes by which later processes can tell it from others.

    Classes and functions are known by their content where they were not installed, so that those
    of scripts and notebooks have a name too.

    Raises
    ------
    NoKey
        If the value, or a part of it, has no such bytes.
    """
    met: dict[int, Any] = {}

    def other(part: Any, inner: Encode) -> bytes:
        if is_code(part):
            return b"t" + digest(*content_of_code(part, inner, met))
        return _encode_object(part, inner)

    return _guarded(value, other)


def _guarded(value: Any, other: Other) -> bytes:
    try:
        return _encode(value, other)
    except RecursionError:
        raise NoKey(f"{type(value).__name__} holds itself, so it has no key.") from None


def _encode(value: Any, other: Other) -> bytes:
    """Return plain data and estimators as bytes, which also name their types.

    ``other`` does so for classes, functions and other objects.
    """

    def inner(part: Any) -> bytes:
        return _encode(part, other)

    kind = type(value)
    if value is None or kind is bool:
        return repr(value).encode()
    if kind is int:
        return b"i%d" % value
    if kind is float:
        return b"f" + struct.pack("<d", value if value == value else np.nan)
    if kind is str:
        return b"s" + value.encode(errors="surrogatepass")
    if kind is bytes:
        return b"b" + value
    if kind is tuple:
        return b"(" + digest(*map(inner, value))
    if kind is list:
        return b"[" + digest(*map(inner, value))
    if kind in (set, frozenset):
        return kind.__name__.encode() + digest(*sorted(map(inner, value)))
    if kind is dict:
        return b"{" + digest(*(inner(item) for pair in value.items() for item in pair))
    if isinstance(value, np.generic) and value.dtype.kind in _PLAIN + "SU":
        return b"n" + value.dtype.str.encode() + value.tobytes()
    if kind is np.ndarray and value.dtype.kind in _PLAIN:
        return b"a" + content_of_array(value)
    if isinstance(value, Enum):
        return b"m" + digest(inner(kind), value.name.encode())
    if isinstance(value, slice):
        return b":" + digest(*map(inner, (value.start, value.stop, value.step)))
    if hasattr(value, "get_params") and not isinstance(value, type):
        return b"e" + digest(inner(kind), *map(inner, _settings_of(value)))
    return other(value, inner)


def first_key(value: Any, *kinds: Callable[[Any], bytes]) -> bytes | None:
    """Return the key of the first of these kinds that a value has; None if it has none."""
    for key_of in kinds:
        try:
            return key_of(value)
        except NoKey:
            continue
    return None


def content_of_array(array: np.ndarray) -> bytes:
    """Return a digest of 16 bytes of the type, the shape and the entries of an array of numbers.

    The layout in memory does not count.
    """
    hashed = xxh3_128(head_of_array(array))
    hashed.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return hashed.digest()


def head_of_array(array: np.ndarray) -> bytes:
    """Return the type and shape of an array as bytes, which stand before its entries."""
    return f"{array.dtype.str} {array.shape} ".encode()


def _settings_of(estimator: Any) -> list[Any]:
    """Return the parameters of an estimator, and its other settings that a clone keeps."""
    clone = getattr(estimator, "__sklearn_clone__", None)
    if getattr(clone, "__module__", "sklearn.base") != "sklearn.base":
        raise NoKey(f"A clone of {type(estimator).__name__} keeps more than its parameters.")
    attributes = getattr(estimator, "__dict__", {})
    # Raises NoKey for a generator: XGBoost's get_params would draw a number from it, and so change
    # the next fit.
    encode(attributes.get("random_state"))
    kept = [(name, attributes[name]) for name in _KEPT_BY_CLONE if name in attributes]
    if _REQUESTS in attributes:
        kept.append((_REQUESTS, repr(attributes[_REQUESTS])))  # names, strings and bools
    return [parameters_of(estimator), *kept]


def _in_this_process(value: Any, inner: Encode) -> bytes:
    """Return a class by a random name, and by its content where that may change in memory."""
    if not isinstance(value, type):
        raise NoKey(f"{value!r} has no key.")
    if is_ours(value):
        return b"t" + f"{value.__module__}.{value.__qualname__} {BUILD}".encode()
    met: dict[int, Any] = {}

    def of_part(part: Any) -> bytes:
        """Return the bytes of a part, or only its type; then the random name tells it apart."""
        try:
            return _encode(part, other)
        except (NoKey, RecursionError):
            return type(part).__qualname__.encode()

    def other(part: Any, _: Encode) -> bytes:
        if is_code(part):
            return digest(*content_of_code(part, of_part, met))
        raise NoKey

    with _lock:
        name = _tokens.setdefault(value, os.urandom(16))
    return b"t" + digest(name, *content_of_code(value, of_part, met))


def _lasting(value: Any, inner: Encode) -> bytes:
    if isinstance(value, type) or global_name(value) is not None:
        return b"t" + _lasting_name(value)
    return _encode_object(value, inner)


def _encode_object(value: Any, inner: Encode) -> bytes:
    """Return a key for an object that is neither a number, a container, code nor an estimator.

    Such an object is what ``pickle`` would store: the name of a singleton, or the class and the
    attributes of a plain object. Objects with a way of their own to be pickled have no key, which
    leaves out random number generators and iterators.
    """
    if type(value) is np.ndarray and value.dtype.kind in "SUO":
        return b"l" + digest(*map(inner, (value.dtype.str, value.shape, value.tolist())))
    if isinstance(value, partial):
        return b"p" + digest(*map(inner, (value.func, value.args, value.keywords)))
    try:
        pickled = value.__reduce_ex__(2)
    except Exception as error:  # of code that is not ours
        raise NoKey(f"{value!r} has no key, since it cannot be pickled.") from error
    if isinstance(pickled, str):
        return b"t" + _lasting_name(value, pickled)
    plain = pickled[0] is copyreg.__newobj__  # type: ignore[attr-defined]
    if not plain or any(items is not None for items in pickled[3:]):
        raise NoKey(f"{value!r} has no key.")
    return b"o" + digest(inner(type(value)), *map(inner, pickled[1:3]))


def content_of(*data: Any) -> bytes | None:
    """Return a digest of prepared rows, targets or weights; None if they hold Python objects."""
    each = [_arrays(one) for one in data]
    if None in each:
        return None
    return digest(*(digest(*map(content_of_array, arrays or ())) for arrays in each))


def token() -> bytes:
    """Return a name for rows that no other evaluation uses."""
    return os.urandom(32)


def _lasting_name(value: Any, name: str | None = None) -> bytes:
    """Return the name of a class, a function or a singleton, and the versions of its code."""
    module_and_name = global_name(value, name)
    if module_and_name is None:
        raise NoKey(f"{value!r} has no key, since it cannot be imported by a name.")
    modules, versions = {module_and_name[0]}, set()
    for base in value.__mro__ if isinstance(value, type) else ():
        if base.__module__.partition(".")[0] not in sys.stdlib_module_names:
            modules.add(base.__module__)
    for module in modules:
        ours = module.partition(".")[0] == _PACKAGE
        version_of_code = BUILD if ours else installed_version(module)
        if version_of_code is None:
            raise NoKey(
                f"{'.'.join(module_and_name)} has no key, since {module} is from no installed "
                "distribution, or from an editable one: its code may change under the same name."
            )
        versions.add(version_of_code)
    return f"{':'.join(module_and_name)} {', '.join(sorted(versions))}".encode()


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


def under_configuration(name: bytes) -> bytes:
    """Return a name of results, changed where scikit-learn's configuration changes them.

    The steps of a Pipeline may get data frames in place of arrays.
    """
    output = get_config()["transform_output"]
    return name if output == "default" else digest(name, encode(output))
