"""Write the C sources of the kernels whose Cython sources have changed.

    python cmake/transpile.py SOURCE_ROOT C_FOLDER FOLDER_OF_KERNELS KERNEL ...

Cython takes about half a second to start and to read its own library, so a few processes write
all files. Whether a file is current follows from the content of its sources. CMake and Ninja would
compare command lines and times, but pip builds in a new environment each time, whose paths are in
every command. A C file that stays the same is not written, so it is not compiled again.
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


def digest_of(name: str, arguments: list[str], folder: Path, root: Path) -> str:
    """Return what a C file is made of, as a digest."""
    digest = sha256(repr((__version__, arguments)).encode())
    digest.update(Path(__file__).read_bytes())
    for file in sorted(sources_of(folder / f"{name}.pyx", root, set())):
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


def transpile_all(root: Path, c_folder: Path, folder: Path, kernels: list[str]) -> None:
    stale = []
    package = ".".join(folder.relative_to(root).parts)
    for name in [SHARED, *kernels]:
        arguments = list(OPTIONS)
        if name != SHARED:
            source = str(folder.relative_to(root) / f"{name}.pyx")
            arguments += [*KERNEL_OPTIONS, f"--shared={package}.{SHARED}", source]
        digest = digest_of(name, arguments, folder, root)
        c_file, noted = c_folder / f"{name}.c", c_folder / f"{name}.digest"
        if not (c_file.exists() and noted.exists() and noted.read_text() == digest):
            stale.append((name, arguments, c_folder, root, digest))
    if len(stale) == 1:
        transpile(*stale[0])
    elif stale:
        with ProcessPoolExecutor() as pool:
            for done in [pool.submit(transpile, *one) for one in stale]:
                done.result()


if __name__ == "__main__":
    transpile_all(*(Path(path).resolve() for path in sys.argv[1:4]), sys.argv[4:])
