"""Keys of estimators that mean the same in every later process."""

from __future__ import annotations

from enum import Enum
from fractions import Fraction
from functools import cache
from hashlib import sha256
import importlib
from importlib.metadata import distributions
from importlib.metadata import packages_distributions
from importlib.metadata import version
from pathlib import Path
import shutil
import sys

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
from processes import printed_by_a_new_python
import pytest
from scipy.special import expit
from sklearn import config_context
from sklearn.base import BaseEstimator
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.compose import make_column_selector
from sklearn.ensemble import RandomForestClassifier
from sklearn.ensemble import StackingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.preprocessing import OneHotEncoder
from sklearn.preprocessing import OrdinalEncoder
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from optuna_treecv import PegasosClassifier
from optuna_treecv.caching import code
from optuna_treecv.caching.caches import ModelCache
from optuna_treecv.caching.keys import content_key
from optuna_treecv.caching.keys import encode
from optuna_treecv.caching.keys import lasting_key
from optuna_treecv.caching.keys import NoKey
from optuna_treecv.core.cross_validation import CrossValidation
from optuna_treecv.core.settings import Settings
from optuna_treecv.crossval.evaluate import run_for


class Level(Enum):
    A = "a"
    LOW = 1


class OfTheseTests(BaseEstimator):
    """The module of this class is from no distribution."""


def columns(selected):
    steps = [("number", StandardScaler(), selected), ("rest", "passthrough", [4])]
    return ColumnTransformer(steps)


# No two of these are equal.
ESTIMATORS = [
    PegasosClassifier(),
    PegasosClassifier(alpha=0.5),
    SVC(),
    SVC(C=2),
    SVC(C=2.0),
    SVC(class_weight={0: 1, 1: 2}),
    SVC(class_weight={0: 2, 1: 1}),
    SVC(class_weight={"0": 1, "1": 2}),
    RandomForestClassifier(random_state=0),
    RandomForestClassifier(random_state=1),
    RandomForestClassifier(max_features=np.float64(0.5)),
    StandardScaler(),
    StandardScaler().set_output(transform="pandas"),
    make_pipeline(StandardScaler(), SVC()),
    make_pipeline(StandardScaler(with_mean=False), SVC()),
    make_pipeline("passthrough", SVC()),
    columns(slice(0, 3)),
    columns(slice(0, 4)),
    columns(slice(0, 3, 2)),
    columns([0, 3]),
    columns(["0", "3"]),
    columns(make_column_selector("^a", dtype_include=float)),
    columns(make_column_selector("^a", dtype_include=[np.float64])),
    columns(make_column_selector("^b", dtype_include=float)),
    FunctionTransformer(np.log1p),
    FunctionTransformer(np.log),
    FunctionTransformer(expit),
    FunctionTransformer(np.mean),
    OneHotEncoder(dtype=np.float32),
    OneHotEncoder(dtype=float),
    OrdinalEncoder(categories=[np.array(["a", "b"])]),
    OrdinalEncoder(categories=[np.array(["a", "b"], dtype=object)]),
    OrdinalEncoder(categories=[np.array(["b", "a"], dtype=object)]),
    OrdinalEncoder(categories=[np.array([1, 2])]),
    OrdinalEncoder(categories=np.empty((0, 2), dtype=object)),
    OrdinalEncoder(categories=np.empty((0, 3), dtype=object)),
    StackingClassifier([("a", SVC())], LogisticRegression(), cv=KFold(3)),
    StackingClassifier([("a", SVC())], LogisticRegression(), cv=KFold(4)),
]


def test_unequal_estimators_have_unequal_keys_and_clones_have_equal_ones():
    keys = [lasting_key(estimator) for estimator in ESTIMATORS]
    assert len(set(keys)) == len(ESTIMATORS)
    assert [lasting_key(clone(estimator)) for estimator in ESTIMATORS] == keys


def test_requests_for_metadata_are_part_of_a_key():
    with config_context(enable_metadata_routing=True):
        requests = [True, False, "mine"]
        keys = {lasting_key(SVC().set_fit_request(sample_weight=one)) for one in requests}
        again = lasting_key(clone(SVC().set_fit_request(sample_weight=True)))
    assert len(keys | {lasting_key(SVC())}) == 4
    assert again in keys


def digests():
    from test_data_digest import digest_of_everything

    return sha256(b"".join(map(lasting_key, ESTIMATORS))).hexdigest() + digest_of_everything()


@pytest.mark.slow
def test_keys_and_digests_of_data_are_the_same_in_another_process(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    assert printed_by_a_new_python("test_persistent_keys", "digests") == digests()


def test_keys_of_gradient_boosting_libraries():
    """Their ``get_params`` names parameters that no signature has."""
    lightgbm, xgboost = pytest.importorskip("lightgbm"), pytest.importorskip("xgboost")
    for kind in (lightgbm.LGBMClassifier, xgboost.XGBClassifier, xgboost.XGBRFRegressor):
        given = [kind(), kind(n_estimators=7), kind(lambda_l1=1.0), kind(lambda_l1=2.0)]
        assert len({lasting_key(estimator) for estimator in given}) == 4
        assert [lasting_key(clone(each)) for each in given] == [lasting_key(e) for e in given]
    generator = np.random.RandomState(0)
    with pytest.raises(NoKey, match="RandomState"):
        lasting_key(xgboost.XGBClassifier(random_state=generator))
    assert generator.randint(2**31) == np.random.RandomState(0).randint(2**31)  # none was drawn


def test_pandas_missing_value_is_a_parameter():
    pandas = pytest.importorskip("pandas")
    assert lasting_key(SimpleImputer(missing_values=pandas.NA)) != lasting_key(SimpleImputer())


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (OfTheseTests(), "to no installed distribution"),
        (OfTheseTests, "to no installed distribution"),
        (type("Local", (SVC,), {})(), "cannot be imported by a name"),
        (make_pipeline(OfTheseTests(), SVC()), "to no installed distribution"),
        (FunctionTransformer(lambda X: X), "cannot be"),
        (FunctionTransformer(columns), "to no installed distribution"),
        (SVC(random_state=np.random.RandomState(0)), "RandomState"),
        (KFold(3, shuffle=True, random_state=np.random.RandomState(0)), "RandomState"),
        (np.random.default_rng(0), "Generator"),
        (np.random.rand, "cannot be hashed"),
        (iter([1, 2]), "cannot be hashed"),
        ((number for number in [1]), "cannot be pickled"),
        (FrozenEstimator(SVC()), "may copy more than its parameters"),
        (np.ma.masked_array([1, 2], [True, False]), "cannot be hashed"),
        (Fraction(1, 3), "cannot be hashed"),
    ],
)
def test_what_may_be_something_else_tomorrow_has_no_key(value, why):
    with pytest.raises(NoKey, match=why):
        lasting_key(value)


def test_a_value_that_holds_itself_has_no_key():
    value = {}
    value["self"] = [value]
    with pytest.raises(NoKey, match="contains itself"):
        lasting_key(value)


def test_a_class_from_a_script_has_no_key(monkeypatch):
    class Model(SVC):
        __module__ = "__main__"
        __qualname__ = "Model"

    monkeypatch.setattr(sys.modules["__main__"], "Model", Model, raising=False)
    with pytest.raises(NoKey, match="__main__ belongs to an editable installation, or to no"):
        lasting_key(Model())


@pytest.mark.parametrize("key", [encode, lasting_key])
def test_what_a_clone_keeps_besides_parameters_is_in_the_key(key):
    scaler = StandardScaler()
    assert key(clone(scaler)) == key(scaler)
    assert key(StandardScaler().set_output(transform="pandas")) != key(scaler)
    with pytest.raises(NoKey, match="may copy more than its parameters"):
        key(FrozenEstimator(scaler))


@pytest.mark.parametrize("key", [encode, lasting_key])
def test_numbers_that_a_float_cannot_hold_are_not_rounded(key):
    with pytest.raises(NoKey):
        key(Fraction(1, 2))
    assert key(np.nextafter(np.longdouble(1), 2)) != key(np.longdouble(1))


def test_keys_within_a_process_know_foreign_classes_by_a_token():
    assert encode(SVC) == encode(SVC) != lasting_key(SVC)
    assert encode(OfTheseTests()) == encode(OfTheseTests())
    with pytest.raises(NoKey):
        encode(FunctionTransformer(np.log1p))


# Below: distributions that are made up, each of one module with the class Model.


@cache
def packages_of_others():
    return packages_distributions()  # takes a third of a second


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Return a function that installs a distribution and imports its modules."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))

    def packages():
        found = dict(packages_of_others())
        for one in distributions(path=[str(folder)]):
            for top in {file.parts[0].removesuffix(".py") for file in one.files}:
                found[top] = [*found.get(top, []), one.metadata["Name"]]
        return found

    monkeypatch.setattr(code, "_packages", packages)

    def install(modules, version="1.0", name="made-up", direct_url=None, base="", at=folder):
        about = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
        if direct_url is not None:
            (about / "direct_url.json").write_text(direct_url)
        lines = []
        for module in modules:
            path = at / (module.replace(".", "/") + ".py")
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"{base}\nclass Model({'Base' if base else ''}): pass\n")
            lines.append(f"{module.replace('.', '/')}.py,sha256=0,1\n")
            sys.modules.pop(module, None)
        (about / "RECORD").write_text("".join(lines))
        for cached in (code.installed_version, code.is_fixed):
            cached.cache_clear()
        importlib.invalidate_caches()
        return [importlib.import_module(module).Model for module in modules]

    yield install
    for cached in (code.installed_version, code.is_fixed):
        cached.cache_clear()
    for module in [name for name in sys.modules if name.startswith("made_up")]:
        del sys.modules[module]


@pytest.mark.slow
def test_another_version_is_another_key(installed, tmp_path):
    (old,) = installed(["made_up_versions"])
    first = lasting_key(old())
    assert b"made-up 1.0" in lasting_key(old)
    shutil.rmtree(tmp_path / "site-packages" / "made_up-1.0.dist-info")
    (new,) = installed(["made_up_versions"], "1.1")
    assert lasting_key(new()) != first


def test_an_editable_installation_has_no_key(installed, tmp_path, monkeypatch):
    source = '{"url": "file:///src", "dir_info": {"editable": true}}'
    monkeypatch.syspath_prepend(str(tmp_path))
    (model,) = installed(["made_up_editable"], direct_url=source, at=tmp_path)
    with pytest.raises(NoKey, match="editable"):
        lasting_key(model())


@pytest.mark.slow
def test_a_local_installation_is_known_by_its_files(installed, tmp_path):
    """``pip install .`` may install other code under the same version."""
    source = '{"url": "file:///src", "dir_info": {}}'
    (model,) = installed(["made_up_local"], direct_url=source)
    first = lasting_key(model())
    record = tmp_path / "site-packages" / "made_up-1.0.dist-info" / "RECORD"
    record.write_text(record.read_text().replace("sha256=0", "sha256=1"))
    code.installed_version.cache_clear()
    assert lasting_key(model()) != first


@pytest.mark.slow
def test_a_file_beside_installed_ones_has_no_key(installed, tmp_path):
    installed(["made_up_beside.first"])
    (tmp_path / "site-packages" / "made_up_beside" / "loose.py").write_text("class Model: pass")
    importlib.invalidate_caches()
    model = importlib.import_module("made_up_beside.loose").Model
    with pytest.raises(NoKey, match="to no installed distribution"):
        lasting_key(model)


@pytest.mark.slow
def test_a_folder_that_hides_an_installed_package_has_no_key(installed, tmp_path, monkeypatch):
    installed(["made_up_hidden"])
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "made_up_hidden.py").write_text("class Model: pass")
    monkeypatch.syspath_prepend(str(tmp_path / "here"))
    del sys.modules["made_up_hidden"]
    code.is_fixed.cache_clear()
    code.installed_version.cache_clear()
    model = importlib.import_module("made_up_hidden").Model
    with pytest.raises(NoKey, match="to no installed distribution"):
        lasting_key(model)


@pytest.mark.slow
def test_a_namespace_of_two_distributions(installed):
    (first,) = installed(["made_up_shared.first"], "1.0", "made-up-first")
    (second,) = installed(["made_up_shared.second"], "2.0", "made-up-second")
    assert b"made-up-first 1.0" in lasting_key(first)
    assert b"made-up-second 2.0" in lasting_key(second)


@pytest.mark.slow
def test_bases_from_elsewhere_count(installed, monkeypatch):
    (model,) = installed(["made_up_child"], base="from sklearn.svm import SVC as Base")
    assert f"made-up 1.0, scikit-learn {version('scikit-learn')}".encode() in lasting_key(model)
    monkeypatch.syspath_prepend(Path(__file__).parent)
    bad = "import test_persistent_keys; Base = test_persistent_keys.OfTheseTests"
    (model,) = installed(["made_up_orphan"], "2.0", base=bad)
    with pytest.raises(NoKey, match="test_persistent_keys belongs to an editable"):
        lasting_key(model)


# Below: values that are not equal have keys that are not equal.

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.integers()
    | st.floats(width=16)
    | st.floats()
    | st.sampled_from(["", "0", "1", "None", "True", "i1", "\ud800"])
    | st.binary(max_size=2)
    | st.sampled_from([int, float, slice(0, 1), slice(0, 1, None), slice(1), np.log, len])
    | st.sampled_from([np.arange(2), np.arange(2.0), np.arange(2).reshape(1, 2), np.array(["0"])])
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text("01", max_size=1) | st.integers(0, 1), inner, max_size=2)
    ),
    max_leaves=6,
)


def spelled(value):
    """Return a text that is the same for values that are the same, written in another way."""
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}[" + ", ".join(map(spelled, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{spelled(k)}: {spelled(v)}" for k, v in value.items()) + "}"
    if isinstance(value, np.ndarray):
        return f"array {value.dtype} {value.tolist()}"
    return repr(value)


@pytest.mark.slow
@given(VALUES, VALUES)
def test_keys_are_equal_where_values_are(one, other):
    assert (lasting_key(one) == lasting_key(other)) == (spelled(one) == spelled(other))


@pytest.mark.parametrize(
    "different",
    [
        [True, 1, 1.0, "1", b"1", [1], [[1]], {1: 1}, {"1": 1}, np.array(1), np.array([1])],
        [0, 0.0, -0.0, False, None, "", b"", [], {}, "0", [None]],
        [["a", "b"], ["ab"], [["a"], "b"], ["a", ["b"]], [["a", "b"]]],
        [float("nan"), float("inf"), "nan", None],
        [np.float32(0.1), 0.1, np.float64(0.1), np.array(0.1), np.array(0.1, np.float32)],
        [1, True, np.int64(1), np.int32(1), np.bool_(True), np.datetime64(1, "D")],
        [(1,), [1], {1: 1}, np.array([1]), slice(1), (1, None)],
        ["a", b"a", np.str_("a"), np.bytes_("a")],
    ],
)
@pytest.mark.parametrize("key", [encode, lasting_key, content_key])
def test_values_that_look_alike_have_keys_of_their_own(different, key):
    assert len({key(value) for value in different}) == len(different)


def test_members_of_an_enumeration_have_keys_of_their_own():
    assert len({encode(one) for one in (Level.A, Level.LOW, "a", 1, Level)}) == 5
    assert content_key(Level.A) == content_key(Level("a"))


def test_nan_equals_itself():
    assert lasting_key(float("nan")) == lasting_key(np.nan)
    assert lasting_key(-float("nan")) == lasting_key(float("nan"))


def test_kept_scores_are_those_of_this_scikit_learn(monkeypatch):
    """Outputs come from this package alone."""

    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 3)), rng.integers(0, 2, 40)

    def key(estimator, scoring):
        settings = Settings(scoring=scoring, method="treecv")
        cache = ModelCache()
        run = run_for(CrossValidation.of(X, y, settings, cache=cache, with_others=True), estimator)
        return run.results(run.plan.repeats[0]).specs[10].key

    def keys():
        return key(SGDClassifier(), "f1_macro"), key(PegasosClassifier(), "f1_macro")

    scores, outputs = keys()
    monkeypatch.setattr("optuna_treecv.engines.treecv.trained.SCORED_BY", b"another scikit-learn")
    assert keys()[0] != scores and keys()[1] == outputs


def test_functions_that_an_installed_function_returns(tmp_path, monkeypatch):
    """The code of installed functions has its version for a name, but what they hold varies."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    code = "def power(n):\n    def raised(X):\n        return X**n\n    return raised\n"
    (folder / "powers_of_a_test.py").write_text(code)
    monkeypatch.syspath_prepend(folder)
    power = importlib.import_module("powers_of_a_test").power
    assert content_key(power(2)) == content_key(power(2))
    assert content_key(power(2)) != content_key(power(3))
