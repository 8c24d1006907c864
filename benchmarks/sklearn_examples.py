"""scikit-learn's own examples, run as they are and through ``optuna_treecv.accelerate``.

Run ``python benchmarks/sklearn_examples.py FOLDER [NAME ...]``, where FOLDER is the folder
``examples`` of a checkout of scikit-learn, of the release that is installed, and the names are
parts of the paths to run. It prints a Markdown table of the examples in which a call went through
an engine: the seconds of these calls and of scikit-learn's, the largest difference of a score, and
how many lines are printed otherwise. An example is left out that fails by itself, as where a data
set or a package is missing, or takes longer than ``SECONDS``. One that fails only when it is
accelerated is named, and the exit code is 1.
"""

from __future__ import annotations

from difflib import unified_diff
import os
from pathlib import Path
import re
import subprocess
import sys
import tempfile

SECONDS = 180
CALLS = re.compile(
    r"\b(GridSearchCV|RandomizedSearchCV|cross_val\w+|LassoCV|ElasticNetCV|Ridge(Classifier)?CV|"
    r"LogisticRegressionCV|SequentialFeatureSelector|RFE(CV)?|learning_curve|LearningCurveDisplay|"
    r"validation_curve|ValidationCurveDisplay|permutation_test_score|CalibratedClassifierCV|"
    r"TunedThresholdClassifierCV|StackingClassifier|StackingRegressor)\b"
)
LINE = re.compile(
    r"  (?P<call>\w+ of \w+(, \d+ times)?): (?P<ours>\S+) s \(scikit-learn: (?P<theirs>\S+) s; "
    r"largest difference of a score: (?P<apart>\S+)\), method='(?P<method>[^']*)'"
)
ACCELERATED = ("-m", "optuna_treecv.accelerate")


def run(example: Path, *before: str) -> subprocess.CompletedProcess[str]:
    """Run an example in an empty folder, and show no figures."""
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(
            [sys.executable, *before, str(example)],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            env={**os.environ, "MPLBACKEND": "Agg"},
            timeout=SECONDS * (1 + len(before)),
        )


def changed(before: str, after: str) -> list[str]:
    """Return the lines that are printed otherwise, without the times of runs."""
    without = [re.sub(r"\d+\.\d+ ?(ms|s\b|seconds)", "", text) for text in (before, after)]
    lines = unified_diff(*(text.splitlines() for text in without), n=0, lineterm="")
    return [line for line in lines if line[0] == "+" and line[:3] != "+++"]


def main(folder: str, *names: str) -> int:
    """Print the table."""
    n_failed = n_left = 0
    print("| example | call | method | s | scikit-learn, s | largest difference | other lines |")
    print("|---|---|---|---:|---:|---:|---:|")
    for example in sorted(Path(folder).resolve().rglob("plot_*.py")):
        name = f"{example.parent.name}/{example.stem}"
        if names and not any(part in name for part in names):
            continue
        if not CALLS.search(example.read_text("utf-8")):
            continue
        try:
            plain = run(example)
            if plain.returncode:
                print(f"{name}: {plain.stderr.strip().splitlines()[-1]}", file=sys.stderr)
                continue
            faster, checked = run(example, *ACCELERATED), run(example, *ACCELERATED, "--check")
        except subprocess.TimeoutExpired:
            print(f"{name}: longer than {SECONDS} seconds", file=sys.stderr)
            continue
        if faster.returncode or checked.returncode:
            n_failed += 1
            print(f"{name} fails when accelerated:\n{faster.stderr}{checked.stderr}")
            continue
        lines = changed(plain.stdout, faster.stdout)
        found = list(LINE.finditer(checked.stderr))
        n_left += not found
        for one in found:
            cells = *one.group("call", "method", "ours", "theirs", "apart"), len(lines)
            print("|", " | ".join(map(str, (name, *cells))), "|", flush=True)
        print(f"{name}:", *lines, faster.stderr, checked.stderr, sep="\n", file=sys.stderr)
    print(f"\nIn {n_left} examples more, no call was replaced.")
    return int(n_failed > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
