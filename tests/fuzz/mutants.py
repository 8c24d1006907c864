"""Draws mutants of the package at random, and runs the tests of its folder against each of them.

    pip install cosmic-ray
    python tests/fuzz/mutants.py --n 80 --seed 0

A mutant differs from the package in one operator, constant, condition or loop of ``core``,
``scoring`` or an ``engine.py`` of an engine. Each place is drawn with the same probability, then
one of the operators of cosmic-ray that apply there. Mutants that differ in annotations only are
not drawn. The file is restored afterwards. Run this in a checkout that is not used otherwise.
The tests of a folder must pass before its first mutant.

A line per mutant is printed: whether a test has failed, the place, and the change. A mutant that
survives shows that a test is missing, or that its change has no effect.
"""

from __future__ import annotations

import argparse
import ast
from collections import defaultdict
from collections.abc import Iterator
import difflib
from pathlib import Path
import random
import subprocess
import sys

import parso  # noqa: F401  # before cosmic_ray, which imports it in a circle
import parso.python.tree  # noqa: F401
import pytest

from cosmic_ray.ast import ast_nodes  # isort: skip
from cosmic_ray.ast import get_ast_from_path  # isort: skip
from cosmic_ray.mutating import mutate_code  # isort: skip
from cosmic_ray.plugins import get_operator  # isort: skip

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "optuna_treecv"
MODULES = [
    *sorted(PACKAGE.glob("core/*.py")),
    *sorted(PACKAGE.glob("scoring/*.py")),
    *sorted(PACKAGE.glob("engines/*/engine.py")),
]

BINARY = ["Add Sub", "Sub Add", "Mul Div", "Div Mul", "FloorDiv Mul", "BitAnd BitOr"]
COMPARED = [
    *("Lt LtE", "LtE Lt", "Gt GtE", "GtE Gt", "Eq NotEq", "NotEq Eq", "Is IsNot", "IsNot Is"),
    *("Lt Gt", "Gt Lt"),
]

#: Of several operators that differ only in what they put in a place, one.
OPERATORS = [
    *(
        "AddNot",
        "NumberReplacer",
        "ReplaceAndWithOr",
        "ReplaceOrWithAnd",
        "ReplaceBreakWithContinue",
    ),
    *("ReplaceContinueWithBreak", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue"),
    *("ReplaceUnaryOperator_USub_UAdd", "ReplaceUnaryOperator_Delete_Not", "ZeroIterationForLoop"),
    *(f"ReplaceBinaryOperator_{a}_{b}" for a, b in map(str.split, BINARY)),
    *(f"ReplaceComparisonOperator_{a}_{b}" for a, b in map(str.split, COMPARED)),
]

#: The name of the contract's test class for each engine.
CONTRACTS = {
    "ensembles": "TestBoosting or TestBagging",
    "fit": "TestFit",
    "neighbors": "TestNeighbors",
    "newton": "TestNewton",
    "sums": "TestExact",
    "treecv": "TestTree",
}
CONTRACT = "tests/engines/test_engine_contract.py"


class WithoutAnnotations(ast.NodeTransformer):
    """Removes annotations, which do not change what a program does."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        node.annotation = ast.Name("object")
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.returns = None
        return node


def meaning(code: str) -> str:
    """Return the syntax tree of a module without annotations."""
    return ast.dump(WithoutAnnotations().visit(ast.parse(code)))


def places(path: Path) -> dict[tuple[int, int], list[tuple[str, int]]]:
    """Return the operators, and their occurrences, that apply to each place of a module."""
    tree = get_ast_from_path(path)
    found = defaultdict(list)
    nodes = list(ast_nodes(tree))
    for name in (f"core/{operator}" for operator in OPERATORS):
        operator, occurrence = get_operator(name)(), 0
        for node in nodes:
            for start, _ in operator.mutation_positions(node):
                found[start].append((name, occurrence))
                occurrence += 1
    return found


def mutants(n: int, seed: int) -> Iterator[tuple[Path, int, str, str]]:
    """Yield the paths, lines, operators and code of ``n`` mutants."""
    draw = random.Random(seed)
    by_place = {(path, place): ops for path in MODULES for place, ops in places(path).items()}
    order = sorted(by_place)
    draw.shuffle(order)
    for path, place in order:
        if n == 0:
            return
        name, occurrence = draw.choice(by_place[path, place])
        code = path.read_text()
        mutant = mutate_code(code, get_operator(name)(), occurrence)
        if mutant is not None and meaning(mutant) != meaning(code):
            n -= 1
            yield path, place[0], name.partition("/")[2], mutant


def commands(path: Path) -> list[list[str]]:
    """Return the arguments of pytest for the tests that touch a module, the fast ones first."""
    folder = path.parent.name
    remote = ["tests/distributed", "tests/rows/test_remote_rows.py"]
    if folder in CONTRACTS:
        contract = [CONTRACT, "-k", f"{CONTRACTS[folder]} and not two_processes"]
        return [contract, [f"tests/engines/{folder}"], [*remote, "tests/preprocessing"]]
    if folder == "trees":
        return [["tests/engines/trees"]]
    contract = [CONTRACT, "-k", "not two_processes"]
    near, general = ["tests/core", "tests/scoring"], ["tests/crossval", "tests/study"]
    fast = ["-m", "not slow"]
    return [[*near, *fast], [*general, *fast], contract, [*near, *general, "-m", "slow"], remote]


def survives(path: Path) -> bool:
    """Return whether all tests that touch a module pass."""
    for arguments in commands(path):
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "2", "-p", "no:cacheprovider"]
        try:
            run = subprocess.run(
                [*command, *arguments], cwd=ROOT, capture_output=True, timeout=2400, check=False
            )
        except subprocess.TimeoutExpired:
            return False
        if run.returncode == pytest.ExitCode.NO_TESTS_COLLECTED:
            raise ValueError(f"arguments must select tests, got {arguments}.")
        if run.returncode:
            return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--n", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="run no tests")
    arguments = parser.parse_args()
    n_survivors, folders = 0, set()
    for path, line, operator, mutant in mutants(arguments.n, arguments.seed):
        if not arguments.list and path.parent not in folders and not survives(path):
            raise SystemExit(f"the tests of {path.parent.name} fail without a mutant")
        folders.add(path.parent)
        code = path.read_text()
        try:
            path.write_text(mutant)
            is_alive = not arguments.list and survives(path)
        finally:
            path.write_text(code)
        n_survivors += is_alive
        print(f"{'SURVIVES' if is_alive else 'killed'} {path.relative_to(ROOT)}:{line} {operator}")
        changes = difflib.unified_diff(code.splitlines(), mutant.splitlines(), n=0, lineterm="")
        print("\n".join(f"    {change}" for change in list(changes)[3:]), flush=True)
    print(f"{n_survivors} of {arguments.n} mutants survive")


if __name__ == "__main__":
    main()
