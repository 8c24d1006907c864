"""The command ``optuna-treecv``."""

from __future__ import annotations

from html import escape
from html import unescape
from importlib.metadata import entry_points
from importlib.metadata import version
import os
import re
import shutil
import sqlite3
import subprocess
import sys

from ids import said
import numpy as np
import optuna
from plotly.offline import get_plotlyjs
import pytest
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge
import sqlalchemy
from sqlalchemy import create_engine
from sqlalchemy import inspect
from studies import searched

from optuna_treecv.history import load_evaluations
from optuna_treecv.reporting.cli import main
from optuna_treecv.storage.database import Database
from optuna_treecv.storage.evaluations import record
from optuna_treecv.storage.model_store import ModelStore
from optuna_treecv.storage.model_store import NewModel

# For what does not depend on the kind of the database.
on_sqlite = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)


@pytest.fixture
def filled(store_url, make_evaluation):
    """Return a store with evaluations of two studies and of no study, and ten models.

    Each model has 1028 bytes.
    """
    database = Database(store_url)
    for trial_number in range(3):
        for study_name in ("first", "second"):
            fields = {"study_name": study_name, "trial_number": trial_number}
            state = "pruned" if trial_number == 2 else "complete"
            assert record(database, make_evaluation(state=state, **fields), np.zeros(10))
    assert record(database, make_evaluation(), np.random.default_rng(0).random(20_000))
    payload = np.zeros(1000, np.uint8)
    ModelStore(database).write([NewModel(bytes([i] * 32), payload, float(i)) for i in range(10)])
    return store_url


def study_names(url: str) -> set[str | None]:
    names = load_evaluations(url)["study_name"]
    return {name if isinstance(name, str) else None for name in names}


def table(output: str) -> dict[str, list[str]]:
    """Return the printed table rows, keyed by the first column."""
    rows = [line.rsplit(maxsplit=2) for line in output.splitlines()]
    return {row[0]: row[1:] for row in rows if len(row) == 3}


def test_the_command_says_its_version(capsys):
    (command,) = entry_points(group="console_scripts", name="optuna-treecv")
    assert command.load() is main
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"optuna-treecv {version('optuna-treecv')}\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [["store", "{url}"], pytest.param(["--help"], marks=pytest.mark.nightly)],
    ids=said,
)
def test_a_reader_that_wants_no_more(arguments, tmp_path):
    """As with ``optuna-treecv store URL | head -1``."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    Database(url)
    ours, theirs = os.pipe()
    os.close(ours)
    command = [sys.executable, "-c", "from optuna_treecv.reporting.cli import main; exit(main())"]
    done = subprocess.run(
        [*command, *(argument.format(url=url) for argument in arguments)],
        cwd=tmp_path,
        stdout=theirs,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(theirs)
    assert done.stderr == b""
    assert done.returncode in (0, 1)  # 0 where argparse does not notice


@pytest.mark.slow
def test_shows_what_is_there(filled, capsys):
    assert main(["store", filled]) == 0
    output = capsys.readouterr().out
    assert output.splitlines()[0].endswith(": tables of version 5")
    shown = table(output)
    assert shown["treecv_evaluations"][0] == "7"
    assert shown["treecv_fold_scores"][0] == "60"
    assert shown["treecv_fold_score_blocks"][0] == "1"
    assert 140_000 < int(shown["treecv_fold_score_blocks"][1]) < 250_000
    assert shown["treecv_models"][0] == "10"
    assert int(shown["treecv_models"][1]) > 1000
    assert shown["first"] == shown["second"] == ["2", "1"]
    assert shown["(no study)"] == ["1", "0"]
    assert "deleted" not in output


def test_a_path_is_an_empty_sqlite_store(tmp_path, capsys):
    path = tmp_path / "store.db"
    Database(f"sqlite:///{path}")
    assert main(["store", str(path)]) == 0
    assert table(capsys.readouterr().out)["treecv_evaluations"][0] == "0"


def test_sizes_without_dbstat(tmp_path, capsys, monkeypatch):
    url = f"sqlite:///{tmp_path / 'store.db'}"
    Database(url)
    broken = sqlalchemy.text("SELEC")
    monkeypatch.setattr(sqlalchemy, "text", lambda _: broken)
    assert main(["store", url]) == 0
    assert table(capsys.readouterr().out)["treecv_models"] == ["0", "?"]


@on_sqlite
@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "left"), [("100MB", 10), ("5.2kB", 5), ("3083b", 2), ("0.000004 GB", 3)]
)
def test_prunes_models(filled, size, left, capsys):
    assert main(["store", filled, "--max-bytes", size]) == 0
    output = capsys.readouterr().out
    assert output.splitlines()[0] == f"deleted: {10 - left} shared models"
    assert table(output)["treecv_models"][0] == str(left)
    keys = [known.key[0] for known in ModelStore(Database(filled)).read_new()]
    assert keys == list(range(10 - left, 10))  # the models with the most seconds
    assert len(load_evaluations(filled)) == 7


@on_sqlite
@pytest.mark.parametrize("options", [["prune"], ["prune", "--max-bytes", "3084"]])
def test_prunes_to_the_default_size(filled, options, capsys, monkeypatch):
    monkeypatch.setattr("optuna_treecv.reporting.cli.DEFAULT_MAX_BYTES", 5200)
    assert main(["store", filled, *options]) == 0
    left = 5 if options == ["prune"] else 3
    assert capsys.readouterr().out.startswith(f"deleted: {10 - left} shared models")


def test_a_sqlite_file_shrinks(tmp_path):
    path = tmp_path / "store.db"
    database = Database(f"sqlite:///{path}")
    ModelStore(database).write([NewModel(b"k", np.zeros(3_000_000, np.uint8), 1.0)])
    database.engine.dispose()
    assert path.stat().st_size > 3_000_000
    assert main(["store", f"sqlite:///{path}", "--max-bytes", "1MB"]) == 0
    Database(f"sqlite:///{path}").engine.dispose()
    assert path.stat().st_size < 300_000


@on_sqlite
def test_forgets_a_study(filled, capsys):
    assert main(["store", filled, "--forget-study", "first"]) == 0
    output = capsys.readouterr().out
    assert output.splitlines()[0] == "deleted: 3 evaluations of study 'first'"
    assert "first" not in table(output)
    assert study_names(filled) == {"second", None}
    assert main(["store", filled, "--forget-study", "unknown"]) == 0
    assert capsys.readouterr().out.startswith("deleted: 0 evaluations of study 'unknown'")


def storage_naming(path, runs) -> str:
    url = f"sqlite:///{path}"
    study = optuna.create_study(storage=url, study_name="renamed since")
    for run in runs:
        study.add_trial(optuna.trial.create_trial(value=0.0, user_attrs={"treecv": {"run": run}}))
    optuna.create_study(storage=url, study_name="without trials")
    return url


@pytest.mark.slow
def test_forgets_what_no_trial_names(filled, tmp_path, capsys):
    evaluations = load_evaluations(filled)
    named = evaluations["run"][evaluations["study_name"] == "second"].tolist()[:2]
    url = storage_naming(tmp_path / "studies.db", [*named, "of another store"])
    assert main(["store", filled, "--storage", url]) == 0
    output = capsys.readouterr().out
    assert output.splitlines()[0] == "deleted: 4 evaluations to which no trial refers"
    assert table(output)["second"] == ["2", "0"]
    left = load_evaluations(filled)
    assert left["run"][left["study_name"].notna()].tolist() == named
    assert left["study_name"].isna().sum() == 1  # the evaluation without a trial


def check_nothing_is_forgotten(store: str, storage: str, capsys, reason: str) -> None:
    assert main(["store", store, "--storage", storage]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("optuna-treecv: storage must ")
    assert reason in said.err
    assert said.err.count("\n") == 1
    assert len(load_evaluations(store)) == 7


@pytest.mark.slow
def test_a_wrong_storage_forgets_nothing(filled, tmp_path, capsys):
    """Otherwise a typing error would delete everything."""
    url = storage_naming(tmp_path / "studies.db", ["of another store"])
    check_nothing_is_forgotten(filled, url, capsys, "none of the 7 evaluations in the store")
    check_nothing_is_forgotten(filled, f"sqlite:///{tmp_path}/typo.db", capsys, "no such file")
    assert not (tmp_path / "typo.db").exists()
    other = tmp_path / "other.db"
    sqlite3.connect(other).execute("CREATE TABLE other (x)").connection.close()
    check_nothing_is_forgotten(filled, f"sqlite:///{other}", capsys, "no such table")
    assert inspect(create_engine(f"sqlite:///{other}")).get_table_names() == ["other"]
    check_nothing_is_forgotten(filled, "not a url", capsys, "no such file")
    check_nothing_is_forgotten(filled, filled, capsys, "exist" if "post" in filled else "no such")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["sqlite:///{folder}/typo.db"], "there is no such file"),
        (["sqlite:////no/such/folder/x.db"], "there is no such file"),
        (["mysql://me:secret@host/name"], "store must be SQLite"),
        (["nonsense"], "there is no such file"),
        (["postgresql://me:secret@/name?host={folder}"], "store must be a database"),
    ],
)
def test_bad_input_is_one_sentence(arguments, reason, tmp_path, capsys):
    if arguments[0].startswith("postgresql"):
        pytest.importorskip("psycopg")
    assert main(["store", *(argument.format(folder=tmp_path) for argument in arguments)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("optuna-treecv: store must be")
    assert reason in said.err
    assert said.err.count("\n") == 1 and said.err.endswith(".\n")
    assert "secret" not in said.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--max-bytes", "many"], "must be a size such as 100MB or 2GB, got 'many'"),
        (["--max-bytes", "-1"], "--max-bytes"),
        (["--max-bytes", "1PB"], "got '1PB'"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_bad_options(arguments, reason, tmp_path, capsys):
    url = f"sqlite:///{tmp_path / 'store.db'}"
    with pytest.raises(SystemExit) as stop:
        main(["store", url, *arguments])
    assert stop.value.code == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "store.db").exists()


def test_a_store_that_others_are_writing_to(filled):
    with Database(filled).reading():
        assert main(["store", filled]) == 0


# --- A study in words and figures ---


def ridges(folder, name, grid=(0.01, 0.1, 1.0), **options):
    """Return the paths of a study and of its store."""
    storage, store = folder / "study.db", folder / "folds.db"
    searched(
        Ridge(),
        load_diabetes(return_X_y=True),
        {"alpha": list(grid)},
        store=f"sqlite:///{store}",
        study={"study_name": name, "storage": f"sqlite:///{storage}"},
        **options,
    )
    return str(storage), str(store)


@pytest.fixture(scope="module")
def studied(tmp_path_factory):
    return ridges(tmp_path_factory.mktemp("studied"), "ridges")


@pytest.fixture(scope="module")
def with_hostile_names(tmp_path_factory):
    """Return the paths, and the names of a study and of a score."""
    name, metric = "</title><script>alert(1)</script>**v** ``` &emsp;|", "<i>**a**</i> `b` &amp;"
    folder = tmp_path_factory.mktemp("hostile")
    return *ridges(folder, name, scoring={metric: "r2"}), name, metric


@pytest.mark.slow
def test_explain_says_what_was_found_and_at_what_cost(studied, capsys):
    storage, store = studied
    assert main(["explain", storage, "--store", f"sqlite:///{store}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch("## Best: trial [0-9], squared_error [0-9]+ ± [0-9]+", lines[0])
    assert any(line.startswith("method       exact (the models of all") for line in lines)
    assert any(line.startswith("time ") for line in lines)
    head = next(line for line in lines if line.startswith("trial "))
    rule = lines[lines.index(head) + 1]
    assert set(rule) == {"-", " "}
    assert "&emsp;" not in "".join(lines)
    assert not any(line.startswith("|") for line in lines)


@pytest.mark.slow
def test_report_is_a_small_page_with_all_figures(studied, tmp_path, capsys):
    storage, store = studied
    path, plotly_js = tmp_path / "report.html", tmp_path / "plotly.min.js"
    plotly_js.write_text("another version")
    arguments = ["report", storage, "--store", store, "--html", str(path)]
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"written: {path}, {plotly_js}\n"
    assert plotly_js.read_bytes() == get_plotlyjs().encode()
    os.utime(plotly_js, (0, 0))
    assert main(arguments) == 0
    assert plotly_js.stat().st_mtime == 0  # not written again
    page = path.read_text()
    assert path.stat().st_size < 1_500_000
    assert re.findall(r'src="([^"]*)"', page) == ["plotly.min.js"]  # works offline
    assert page.count('class="plotly-graph-div"') == 3  # all but the trees of ensembles
    assert not re.search(r"\|--|\*\*|^##|^\*|`|emsp", _text_of(page), re.MULTILINE)
    for element in (
        "<h1>ridges</h1>",
        "<h2>Best: trial ",
        "<th>trial</th><th>squared_error</th><th>minus the best</th><th>alpha</th>",
        "<li>Not distinguishable from trial ",
        "<td><strong>folds</strong></td><td>10 × 1 (<code>cv=10</code>)</td>",
        "<pre>study = optuna.load_study(study_name=&#x27;ridges&#x27;, storage=storage)\n",
    ):
        assert element in page


def _text_of(page):
    """Return what a page shows, without its scripts and styles."""
    page = re.sub("<(script|style)[^>]*>.*?</\\1>", "", page, flags=re.DOTALL)
    return unescape(re.sub("<[^>]*>", "", page))


@pytest.mark.slow
def test_report_shows_names_as_they_are(with_hostile_names, tmp_path):
    storage, store, name, metric = with_hostile_names
    path = tmp_path / "report.html"
    assert main(["report", storage, "--store", store, "--html", str(path)]) == 0
    assert (tmp_path / "plotly.min.js").read_bytes() == get_plotlyjs().encode()
    page = path.read_text()
    assert "<script>alert" not in page and "<i>" not in page
    text = _text_of(page)
    assert f"{name}\nBest: trial" in text and f"study_name={name!r}" in text
    assert f"<th><code>{escape(metric)}</code></th>" in page


@pytest.mark.slow
def test_explain_leaves_names_as_they_are(with_hostile_names, tmp_path, capsys):
    storage, store, name, _ = with_hostile_names
    assert main(["explain", storage, "--store", store]) == 0
    assert f"study_name={name!r}" in capsys.readouterr().out
    no_folder = str(tmp_path / "none" / "report.html")
    assert main(["report", storage, "--store", store, "--html", no_folder]) == 2
    assert "No such file or directory" in capsys.readouterr().err


@pytest.mark.slow
def test_refusals_of_explain(studied, tmp_path, capsys):
    storage = shutil.copy(studied[0], tmp_path)  # another study is added
    store, none = studied[1], str(tmp_path / "none.db")

    def refused(*arguments):
        assert main(["explain", *arguments]) == 2
        assert not (tmp_path / "none.db").exists()
        return capsys.readouterr().err

    error = refused(storage, "--store", store, "--study-name", "other")
    assert "study-name must be one of the studies ('ridges'), got 'other'." in error
    optuna.create_study(study_name="second", storage=f"sqlite:///{storage}")
    error = refused(storage, "--store", store)
    assert "the studies ('ridges', 'second'), got None." in error
    assert main(["explain", storage, "--store", store, "--study-name", "second"]) == 0
    assert capsys.readouterr().out == "No trial has finished yet.\n"
    assert "there is no such file" in refused(none, "--store", store)
    assert "none.db" in refused(storage, "--store", none, "--study-name", "second")
