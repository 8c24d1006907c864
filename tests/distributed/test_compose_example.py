"""The services of examples/cluster/compose.yaml: their form, and their commands as processes."""

from __future__ import annotations

from pathlib import Path
import re
import socket
import sys
import time
from urllib.request import urlopen

from dask_processes import run_in
import optuna
from optuna.storages import RDBStorage
from optuna.trial import TrialState
from postgres_server import postgres_binaries
from postgres_server import PostgresServer
from processes import SERVER
import pytest

from optuna_treecv.history import load_evaluations

yaml = pytest.importorskip("yaml")

CLUSTER = Path(__file__).parents[2] / "examples" / "cluster"
COMPOSE = yaml.safe_load((CLUSTER / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
PYTHON = [name for name, service in SERVICES.items() if "build" in service]
# What the specification of Compose calls the states of a service.
CONDITIONS = {"service_started", "service_healthy", "service_completed_successfully"}


def test_services_are_those_that_the_commands_name():
    """Hosts are names of services, and each service waits for those that it names."""
    for name in PYTHON:
        service = SERVICES[name]
        hosts = set(re.findall(r"(?:@|//)([a-z-]+):\d", " ".join(service["command"])))
        waited_for, left = set(), [name]
        while left:  # also for those that it waits for indirectly
            for other, how in SERVICES[left.pop()].get("depends_on", {}).items():
                assert how["condition"] in CONDITIONS
                waited_for.add(other)
                left.append(other)
        assert hosts <= waited_for <= SERVICES.keys()
        assert ("postgres" in hosts) == ("postgres" in waited_for)
        assert service["environment"]["OMP_NUM_THREADS"] == "1"
        postgres = SERVICES["postgres"]["environment"]
        assert service["environment"]["PGPASSWORD"] == postgres["POSTGRES_PASSWORD"]
    assert {volume.split(":")[0] for volume in SERVICES["postgres"]["volumes"]} == set(
        COMPOSE["volumes"]
    )


def test_files_of_the_image_are_there():
    build = SERVICES["worker"]["build"]
    context = (CLUSTER / build["context"]).resolve()
    assert (context / "pyproject.toml").is_file()
    dockerfile = context / build["dockerfile"]
    assert dockerfile.is_file()
    copied = re.findall(r"examples/cluster/\w+[.]py", dockerfile.read_text())
    scripts = {
        word for name in PYTHON for word in SERVICES[name]["command"] if word.endswith(".py")
    }
    assert {Path(path).name for path in copied} == scripts == {"worker.py", "rows.py"}
    assert all((context / path).is_file() for path in copied)


def test_as_many_workers_as_the_comment_says_can_be_started():
    """No name and no port of this machine stands in their way, and connections suffice."""
    (n_workers,) = set(re.findall(r"--scale worker=(\d+)", (CLUSTER / "compose.yaml").read_text()))
    assert not SERVICES["worker"].keys() & {"container_name", "ports"}
    (most,) = re.findall(r"max_connections=(\d+)", " ".join(SERVICES["postgres"]["command"]))
    assert int(most) >= 5 * int(n_workers)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


class Cluster:
    """The services as processes of this machine, with free ports."""

    def __init__(self, folder):
        self.folder = folder
        self.running = []
        text = " ".join(" ".join(service["command"]) for service in SERVICES.values())
        self.ports = {port: str(free_port()) for port in set(re.findall(r"[:=](\d{4})\b", text))}

    def command(self, name):
        """Return the command of a service with this machine's name and ports."""
        pattern = re.compile(r"\b(" + "|".join(SERVICES) + r")(:\d{4}\b)")
        here = [
            re.sub(r"([:=])(\d{4})\b", lambda m: m[1] + self.ports[m[2]], word)
            for word in (pattern.sub(r"127.0.0.1\2", word) for word in SERVICES[name]["command"])
        ]
        script = CLUSTER / here[1] if here[0] == "python" else None
        program = Path(sys.executable).with_name(here[0])  # of this environment
        return [program, *here[1:]] if script is None else [script, *here[2:]]

    def start(self, name, *more):
        output = f"{name}-{len(self.running)}"
        line = [*self.command(name), *more]
        arguments = (self.folder, line, SERVICES[name]["environment"], output)
        process = SERVER.Process(target=run_in, args=arguments)
        process.start()
        self.running.append((process, output))
        return process

    def finish(self, process):
        process.join(300)
        assert process.exitcode == 0, (self.folder / dict(self.running)[process]).read_text()

    def end(self):
        for process, _ in self.running:
            process.terminate()
            process.join(20)
            process.kill()
            process.join()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Return the services, of which PostgreSQL and the study run already, and the URL of both."""
    psycopg = pytest.importorskip("psycopg")
    if (binaries := postgres_binaries()) is None:
        pytest.skip("no PostgreSQL server here: Debian's package is postgresql")
    here = Cluster(tmp_path_factory.mktemp("cluster"))
    server = PostgresServer(binaries, port=int(here.ports["5432"]))
    try:
        program, *options = SERVICES["postgres"]["command"]
        assert program == "postgres"
        server.start(" ".join(options))
        name = SERVICES["postgres"]["environment"]["POSTGRES_DB"]
        at = {"host": str(server.folder), "port": server.port, "user": "treecv"}
        with psycopg.connect(**at, dbname="postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        user = SERVICES["postgres"]["environment"]["POSTGRES_USER"]
        here.finish(here.start("study"))
        yield here, f"postgresql+psycopg://{user}@127.0.0.1:{server.port}/{name}"
        here.end()
        server.stop()
    finally:
        here.end()
        server.remove()


@pytest.mark.slow
def test_the_commands_of_a_study(cluster):
    here, url = cluster
    dashboard = here.start("dashboard")
    for worker in [here.start("worker") for _ in range(2)]:
        here.finish(worker)
    storage = RDBStorage(url)
    study = optuna.load_study(study_name="workers", storage=storage)
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}
    assert len({tuple(trial.params.values()) for trial in study.trials}) == 24
    assert len(load_evaluations(url, study=study)) == len(study.trials)
    storage.engine.dispose()
    latest = time.monotonic() + 60
    while True:
        try:
            with urlopen(f"http://127.0.0.1:{here.ports['8080']}/api/studies") as answer:
                assert b'"workers"' in answer.read()
            break
        except OSError:
            assert dashboard.is_alive() and time.monotonic() < latest
            time.sleep(0.2)


@pytest.mark.slow
def test_the_commands_of_rows_on_dask(cluster):
    distributed = pytest.importorskip("distributed")
    here, url = cluster
    n_workers = SERVICES["dask-worker"]["deploy"]["replicas"]
    here.start("scheduler")
    for _ in range(n_workers):
        here.start("dask-worker", "--no-nanny")  # which would start one more Python
    with distributed.Client(f"tcp://127.0.0.1:{here.ports['8786']}", timeout=60) as client:
        client.wait_for_workers(n_workers, timeout=60)
    here.finish(here.start("rows"))
    storage = RDBStorage(url)
    study = optuna.load_study(study_name="rows", storage=storage)
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}
    assert len(study.trials) == 8
    storage.engine.dispose()
