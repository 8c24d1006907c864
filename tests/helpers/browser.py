"""optuna-dashboard's pages as Chromium shows them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
import html
from pathlib import Path
import re
import shutil
import subprocess
import threading
from typing import Any
from wsgiref.simple_server import make_server
from wsgiref.simple_server import WSGIRequestHandler

_NAMES = ("chromium", "chromium-browser", "google-chrome")

#: The path of a browser, or None if there is none.
BROWSER = next(filter(None, map(shutil.which, _NAMES)), None)


class _Quiet(WSGIRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def served(url: str) -> Generator[str]:
    """Serve optuna-dashboard in a thread and yield its address."""
    import optuna_dashboard

    with make_server("127.0.0.1", 0, optuna_dashboard.wsgi(url), handler_class=_Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/dashboard"
        finally:
            server.shutdown()
            thread.join()


def page(address: str, profile: Path) -> str:
    """Return the HTML of a page in Chromium after its scripts have run."""
    assert BROWSER is not None
    command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu"]
    command += [f"--user-data-dir={profile}", "--window-size=1400,2300"]
    command += ["--virtual-time-budget=20000", "--dump-dom", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def text_of(page: str) -> str:
    """Return the visible text of a page."""
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page)))
