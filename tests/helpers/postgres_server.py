"""A PostgreSQL server for tests and attacks."""

from __future__ import annotations

import os
from pathlib import Path
import pwd
import shutil
import subprocess
import tempfile
from typing import Any


class PostgresServer:
    """A PostgreSQL server with its own folder, which also holds its Unix socket.

    With ``port`` its URLs are of TCP.
    """

    def __init__(self, binaries: Path, port: int | None = None) -> None:
        self.binaries = binaries
        self.port = port
        # Other users have no access to pytest's folders.
        self.folder = Path(tempfile.mkdtemp(prefix="treecv-"))
        self.n_schemas = 0
        self.user: dict[str, Any] = {}
        if os.getuid() == 0:  # the server refuses to run as root
            names = {entry.pw_name: entry for entry in pwd.getpwall()}
            user = names.get("postgres") or names["nobody"]
            self.user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        self.run("initdb", "-U", "treecv", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")

    def run(self, program: str, *arguments: str) -> None:
        with open(self.folder / "output", "w+b") as output:  # the server would keep a pipe open
            done = subprocess.run(
                [self.binaries / program, "-D", self.folder / "data", *arguments],
                cwd=self.folder,
                stdout=output,
                stderr=output,
                check=False,
                **self.user,
            )
            output.seek(0)
            assert done.returncode == 0, output.read().decode()

    def start(self, options: str = "") -> None:
        options += f" -c unix_socket_directories={self.folder} -c fsync=off -c listen_addresses="
        options += "''" if self.port is None else f"127.0.0.1 -c port={self.port}"
        self.run("pg_ctl", "start", "-w", "-l", str(self.folder / "log"), "-o", options)

    def stop(self) -> None:
        self.run("pg_ctl", "stop", "-w", "-m", "immediate")

    def new_schema(self) -> str:
        """Return a URL with a new schema, which takes a tenth of the time of a new database."""
        import psycopg

        self.n_schemas += 1
        name = f"test_{self.n_schemas}"
        host, port = self.folder, self.port or 5432
        with psycopg.connect(
            host=str(host), port=port, user="treecv", dbname="postgres"
        ) as connection:
            connection.execute(f"CREATE SCHEMA {name}")
        options = f"options=-csearch_path%3D{name}"
        if self.port is None:
            return f"postgresql+psycopg://treecv@/postgres?host={host}&{options}"
        return f"postgresql+psycopg://treecv@127.0.0.1:{port}/postgres?{options}"

    @property
    def pid(self) -> int:
        """The number of its main process."""
        return int((self.folder / "data" / "postmaster.pid").read_text().split()[0])

    def remove(self) -> None:
        shutil.rmtree(self.folder)


def postgres_binaries() -> Path | None:
    """Return the folder with PostgreSQL's programs, or None if there is none."""
    config = shutil.which("pg_config")
    folders = [] if config is None else [subprocess.check_output([config, "--bindir"], text=True)]
    folders += os.environ.get("PATH", "").split(os.pathsep)
    folders += sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)
    for folder in map(str.strip, folders):
        if all((Path(folder) / program).is_file() for program in ("initdb", "pg_ctl", "postgres")):
            return Path(folder)
    return None
