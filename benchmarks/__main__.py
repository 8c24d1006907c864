"""Run the benchmarks of the page "Performance": Markdown tables, and JSON if a file is named.

    OMP_NUM_THREADS=1 python benchmarks [RUNS [RESULTS.json]]

This runs grids.py, then peers.py. It takes about 10 minutes with 3 runs.
"""

from __future__ import annotations

import json
from pathlib import Path
import subprocess
import sys
from tempfile import TemporaryDirectory

PARTS = {"Grids, threads and numbers of folds": "grids.py", "Beside other programs": "peers.py"}


def main(runs: str = "3", results: str | None = None) -> None:
    found = {}
    for title, name in PARTS.items():
        print(f"\n## {title}\n", flush=True)
        with TemporaryDirectory() as folder:
            file = Path(folder) / "results.json"
            script = Path(__file__).with_name(name)
            subprocess.run([sys.executable, script, runs, file], check=True)
            found[title] = json.loads(file.read_text())
    if results is not None:
        Path(results).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:3])
