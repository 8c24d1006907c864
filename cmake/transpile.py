"""Write the C sources of the kernels whose Cython sources have changed.

    python cmake/transpile.py PACKAGE C_FOLDER KERNEL ...

A kernel is given by the path of its .pyx file in the package. Cython takes about half a second to
start and to read its own library, so a few processes write all files. Whether a file is current
follows from the content of its sources. CMake and Ninja would compare command lines and times, but
pip builds in a new environment each time, whose paths are in every command. A C file that stays
the same is not written, so it is not compiled again.
"""

from concurrent.futures import ProcessPoolExecutor
from contextlib import chdir
from hashlib import sha256
from pathlib import Path
import re
import sys
from tempfile import TemporaryDirectory

from Cython import __version__
from Cython.Compiler.Main import main

# Cython's own code for memoryviews is compiled once, into a module that the others import.
SHARED = "_cyutility"
# Without the source in comments, a C file stays the same if only comments change, or line numbers.
OPTIONS = ["-X", "freethreading_compatible=True", "-X", "emit_code_comments=False"]
# Annotations declare nothing in C: they are for the stubs (tests/stubs.py).
KERNEL_OPTIONS = [
    *("-X", "boundscheck=False", "-X", "wraparound=False", "-X", "cdivision=True"),
    *("-X", "initializedcheck=False", "-X", "auto_pickle=False"),
    *("-X", "annotation_typing=False"),
]
READ = re.compile(
    r'^\s*(?:from\s+([\w.]+)\s+cimport\b|cimport\s+([\w.]+)|include\s+"([^"]+)")', re.MULTILINE
)


def sources_of(file: Path, root: Path, found: set[Path]) -> set[Path]:
    """Return a Cython file, and all files of this package that it reads directly or indirectly."""
    if file in found or not file.exists():
        return found
    found.add(file)
    sources_of(file.with_suffix(".pxd"), root, found)
    for of_name, name, included in READ.findall(file.read_text()):
        module = root.joinpath(*(of_name or name).split("."))
        sources_of(file.parent / included if included else module.with_suffix(".pxd"), root, found)
    return found


def digest_of(source: Path, arguments: list[str], root: Path) -> str:
    """Return what the C file of a source is made of, as a digest."""
    digest = sha256(repr((__version__, arguments)).encode())
    digest.update(Path(__file__).read_bytes())
    for file in sorted(sources_of(source, root, set())):
        digest.update(f"{file.name}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def transpile(name: str, arguments: list[str], c_folder: Path, root: Path, digest: str) -> None:
    """Write a C file if its content is new, and note its digest."""
    with TemporaryDirectory(dir=c_folder) as room, chdir(root):
        written = Path(room, f"{name}.c")
        option = "--generate-shared" if name == SHARED else "--output-file"
        sys.argv = ["cython", *arguments, f"{option}={written}"]
        main(command_line=1)
        new = written.read_text().replace(room, str(c_folder))
    file = c_folder / f"{name}.c"
    if not file.exists() or file.read_text() != new:
        file.write_text(new)
    file.with_suffix(".digest").write_text(digest)


def transpile_all(package: Path, c_folder: Path, kernels: list[str]) -> None:
    root, stale = package.parent, []
    for kernel in [f"_kernels/{SHARED}.pyx", *kernels]:
        source, arguments = package / kernel, list(OPTIONS)
        if source.stem != SHARED:
            shared = f"--shared={package.name}._kernels.{SHARED}"
            arguments += [*KERNEL_OPTIONS, shared, str(source.relative_to(root))]
        digest = digest_of(source, arguments, root)
        c_file = c_folder / f"{source.stem}.c"
        noted = c_file.with_suffix(".digest")
        if not (c_file.exists() and noted.exists() and noted.read_text() == digest):
            stale.append((source.stem, arguments, c_folder, root, digest))
    if len(stale) == 1:
        transpile(*stale[0])
    elif stale:
        with ProcessPoolExecutor() as pool:
            for done in [pool.submit(transpile, *one) for one in stale]:
                done.result()


if __name__ == "__main__":
    transpile_all(*(Path(path).resolve() for path in sys.argv[1:3]), sys.argv[3:])
