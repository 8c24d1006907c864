"""The command ``optuna-treecv``, which explains a study, and shows or cleans up a store."""

import argparse
from collections.abc import Iterable
from collections.abc import Iterator
from contextlib import closing
from contextlib import contextmanager
from datetime import datetime
from datetime import UTC
from importlib.metadata import version
import os
from pathlib import Path
import re
import sys

import optuna
from optuna.exceptions import OptunaError
from optuna.storages import RDBStorage

from optuna_treecv.reporting.evaluations import Evaluations
from optuna_treecv.reporting.history import forget
from optuna_treecv.reporting.history import runs_of
from optuna_treecv.reporting.note import align
from optuna_treecv.reporting.note import as_html
from optuna_treecv.reporting.note import as_text
from optuna_treecv.reporting.note import note_of
from optuna_treecv.storage.database import Database
from optuna_treecv.storage.database import DatabaseError
from optuna_treecv.storage.database import FAILURES
from optuna_treecv.storage.database import is_missing
from optuna_treecv.storage.database import reason_of
from optuna_treecv.storage.database import SCHEMA_VERSION
from optuna_treecv.storage.evaluations import count_by_study
from optuna_treecv.storage.evaluations import read_evaluations
from optuna_treecv.storage.model_store import DEFAULT_MAX_BYTES
from optuna_treecv.storage.model_store import evict

_EXAMPLES = """\
examples:
  optuna-treecv explain studies.db --store folds.db
      print the results of the only study in studies.db
  optuna-treecv report studies.db --store folds.db --html report.html
      write them to a page, with figures
  optuna-treecv store folds.db
      show the tables and studies of a store
  optuna-treecv store folds.db --max-bytes 100MB
      delete shared models until they take at most 100 MB
  optuna-treecv store postgresql://user@host/name --forget-study ridge
      delete the evaluations of a study
"""

_UNITS = ["b", "kb", "mb", "gb", "tb"]


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    try:
        try:
            options = make_parser().parse_args(arguments)
            options.run(options)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the pipe, such as ``head``, has closed it. Without this redirection, Python
        # would fail when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, ImportError, *FAILURES) as error:
        print(f"optuna-treecv: {reason_of(error)}.", file=sys.stderr)
        return 2
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Create the parser of the command."""
    parser = argparse.ArgumentParser(
        prog="optuna-treecv",
        description="Explain a study, or show and clean up its store.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action="version", version=f"%(prog)s {version('optuna-treecv')}"
    )
    commands = parser.add_subparsers(required=True, metavar="{explain,report,store}")
    explain = commands.add_parser(
        "explain",
        help="print the results of a study, their uncertainty and cost, and what to try next",
    )
    report = commands.add_parser(
        "report", help="write the output of explain and all figures to an HTML page"
    )
    report.add_argument(
        "--html",
        required=True,
        metavar="FILE",
        help="the page to write, such as report.html; plotly.min.js is written to the same folder",
    )
    for command in (explain, report):
        command.set_defaults(run=_explain, html=None)
        command.add_argument(
            "storage", help="the Optuna storage of the study: a URL or a SQLite file"
        )
        command.add_argument(
            "--study-name", metavar="NAME", help="required if the storage has several studies"
        )
        command.add_argument(
            "--store",
            required=True,
            metavar="URL",
            help="the store with the fold scores of the study: a URL or a SQLite file",
        )
    store = commands.add_parser("store", help="show the contents of a store, or delete from it")
    store.set_defaults(run=_store)
    store.add_argument(
        "url", help="the store: a URL such as postgresql://user@host/name, or a SQLite file"
    )
    store.add_argument(
        "action",
        nargs="?",
        choices=["prune"],
        help="delete shared models until the others fit into --max-bytes (256 MiB by default), "
        "and return the freed space to the file system",
    )
    store.add_argument(
        "--max-bytes",
        type=_bytes,
        metavar="SIZE",
        help="delete shared models until their total size is at most SIZE, such as 100MB",
    )
    store.add_argument("--forget-study", metavar="NAME", help="delete the evaluations of a study")
    store.add_argument(
        "--storage",
        metavar="URL",
        help="delete evaluations to which no trial in this Optuna storage refers; the storage "
        "should contain all studies that use the store",
    )
    return parser


def _bytes(text: str) -> int:
    match = re.fullmatch(r"([0-9]+(?:[.][0-9]+)?) *([kmgt]?b)?", text.strip().lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"must be a size such as 100MB or 2GB, got {text!r}.")
    number, unit = match.groups()
    return int(float(number) * 1000 ** _UNITS.index(unit or "b"))


def _explain(options: argparse.Namespace) -> None:
    with _open_storage(options.storage) as storage:
        study = _study_of(storage, options.study_name)
    with closing(Database(_url(options.store), create=False)) as store:
        evaluations = Evaluations(study, store)
        if options.html is None:
            text = as_text(note_of(evaluations))
        else:
            text = f"written: {', '.join(map(str, _write_html(evaluations, Path(options.html))))}"
    print(text)


def _write_html(evaluations: Evaluations, page: Path) -> list[Path]:
    """Write the note and figures of a study to an HTML page, and return the paths of its files.

    The figures need ``plotly.min.js``, which is written to the same folder if it is missing.
    """
    # Imported here, because it needs plotly and takes a second. Its ImportError names the extra.
    from optuna_treecv.reporting.figures import figures_of

    figures = [
        figure.to_html(full_html=False, include_plotlyjs="directory" if number == 0 else False)
        for number, figure in enumerate(figures_of(evaluations).values())
    ]
    page.write_text(
        as_html(note_of(evaluations), evaluations.study.study_name, figures), encoding="utf-8"
    )
    from plotly.offline import get_plotlyjs

    library, content = page.with_name("plotly.min.js"), get_plotlyjs().encode()
    if not library.exists() or library.read_bytes() != content:
        library.write_bytes(content)
    return [page, library]


def _study_of(storage: RDBStorage, name: str | None) -> optuna.Study:
    """Return the study with a given name in an Optuna storage, or its only study."""
    names = optuna.get_all_study_names(storage)
    if name is None and len(names) == 1:
        (name,) = names
    if name not in names:
        names_text = ", ".join(map(repr, names)) or "none: the storage is empty"
        raise ValueError(f"--study-name must be one of the studies ({names_text}), got {name!r}")
    return optuna.load_study(study_name=name, storage=storage)


def _url(text: str) -> str:
    """Return the URL of a database; a string without a scheme is the path of a SQLite file."""
    return text if "://" in text else f"sqlite:///{text}"


def _store(options: argparse.Namespace) -> None:
    with closing(Database(_url(options.url), create=False)) as database:
        n_deleted = 0
        is_pruning = options.action == "prune" or options.max_bytes is not None
        if is_pruning:
            max_bytes = DEFAULT_MAX_BYTES if options.max_bytes is None else options.max_bytes
            with database.writing(alone=True) as connection:
                n_models = evict(connection, max_bytes)
            print(f"deleted: {n_models} shared models")
        if options.forget_study is not None:
            n_forgotten = forget(database, study_name=options.forget_study)
            print(f"deleted: {n_forgotten} evaluations of study {options.forget_study!r}")
            n_deleted += n_forgotten
        if options.storage is not None:
            n_forgotten = _forget_unreferenced(database, options.storage)
            print(f"deleted: {n_forgotten} evaluations to which no trial refers")
            n_deleted += n_forgotten
        if n_deleted or is_pruning:
            database.vacuum()
        _show(database)


def _forget_unreferenced(database: Database, storage: str) -> int:
    started = datetime.now(UTC)  # later evaluations may belong to trials that are not read below
    rows = database.read(lambda connection: read_evaluations(connection, database))
    recorded = {row["run"]: row["study_name"] for row in rows}
    runs: set[str] = set()  # the runs to which trials in the storage refer
    with _open_storage(storage) as opened:
        for name in optuna.get_all_study_names(opened):
            runs.update(runs_of(optuna.load_study(study_name=name, storage=opened)))
    if recorded and not runs & recorded.keys():
        # With the wrong storage, the whole history would be deleted.
        raise ValueError(
            "storage must contain the studies that use the store, but none of the "
            f"{len(recorded)} evaluations in the store belongs to a trial of this storage; use "
            "--forget-study to delete the evaluations of one study instead."
        )
    without_study = {run for run, study_name in recorded.items() if study_name is None}
    return forget(database, keep_runs=runs | without_study, before=started)


@contextmanager
def _open_storage(storage: str) -> Iterator[RDBStorage]:
    """Yield an Optuna storage; convert errors to a ValueError with one sentence."""
    try:
        if is_missing(_url(storage)):
            raise FileNotFoundError("there is no such file")
        yield RDBStorage(_url(storage), skip_table_creation=True)
    except (DatabaseError, OSError, ImportError, RuntimeError, OptunaError) as error:
        # The cause of Optuna's own errors is more specific than their message.
        cause = error.__cause__ if isinstance(error, OptunaError) else None
        raise ValueError(
            f"storage must be an Optuna storage that can be opened: {reason_of(cause or error)}."
        ) from error


def _show(database: Database) -> None:
    tables, studies = database.sizes(), database.read(count_by_study)
    print(f"{database}: tables of version {SCHEMA_VERSION}")
    sizes = [(name, rows, "?" if size is None else size) for name, rows, size in tables]
    _print_table(("table", "rows", "bytes"), sizes)
    if studies:
        counts = [("(no study)" if name is None else name, *numbers) for name, *numbers in studies]
        _print_table(("study", "complete", "pruned"), counts)


def _print_table(header: tuple[str, ...], rows: Iterable[Iterable[object]]) -> None:
    cells = [header, *(tuple(map(str, row)) for row in rows)]
    print("", *align(cells, str.rjust), sep="\n")
