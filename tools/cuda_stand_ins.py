#!/usr/bin/env python3
"""Makes the CUDA libraries that a CUDA build of PyTorch links, for a machine that has none.

    ENVIRONMENT/bin/python cuda_stand_ins.py

PyTorch of that environment then imports and computes on the CPU, without the gigabytes of NVIDIA's packages. One library
defines every name that torch's own libraries leave open and no library of the system has; it lies in
torch/lib under each of the missing file names. Its functions do nothing and return 0, but asked for
devices it says that there are none."""
import os
import re
import subprocess
import sysconfig
import tempfile
from pathlib import Path

NO_DEVICE = 100  # cudaErrorNoDevice
STAND_IN = "libcuda_stand_in.so"


def lines(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def defined_names(library):
    for line in lines("nm", "-D", "--defined-only", library):
        yield line.split()[-1].split("@")[0]


def open_names(library):
    """Names that it expects of others, each with the version that it asks for or ""."""
    for line in lines("nm", "-D", "--undefined-only", library):
        letter, name = line.split()
        if letter == "U":  # others may stay open
            yield name.partition("@")[0], name.partition("@")[2]


def needed(library):
    for line in lines("readelf", "-dW", library):
        if found := re.search(r"\(NEEDED\).*\[(.*)\]", line):
            yield found[1]


def system_libraries():
    """Library names that the loader finds, with their paths."""
    found = {}
    for line in lines("/sbin/ldconfig", "-p"):
        name, arrow, path = line.partition(" => ")
        if arrow:
            found.setdefault(name.split()[0], path)
    return found


def assembly(names):
    text = [".text", "no_device:", f"movl ${NO_DEVICE}, %eax", "ret", "nothing:", "xorl %eax, %eax", "ret"]
    for name in names:
        target = "no_device" if name in ("cudaGetDeviceCount", "cuInit") else "nothing"
        text += [f".globl {name}", f".type {name}, @function", f".set {name}, {target}"]
    return "\n".join([*text, '.section .note.GNU-stack,"",@progbits', ""])


def version_script(asked):
    """The loader insists on the versions that were asked for."""
    by_version = {}
    for name, version in asked.items():
        by_version.setdefault(version or "STAND_IN", []).append(name)
    return "".join(f"{version} {{ {' '.join(name + ';' for name in names)} }};\n"
                   for version, names in sorted(by_version.items()))


def main():
    folder = Path(sysconfig.get_paths()["platlib"]) / "torch/lib"
    (folder / STAND_IN).unlink(missing_ok=True)
    for link in folder.iterdir():
        if link.is_symlink() and os.readlink(link) == STAND_IN:
            link.unlink()
    libraries = [path for path in folder.glob("*.so*") if path.is_file()]
    wanted = {name for library in libraries for name in needed(library)}
    present, own = system_libraries(), {library.name for library in libraries}
    missing = sorted(wanted - own - set(present))
    if not missing:
        return  # a build for CPUs, or CUDA is installed
    known = {name for library in libraries for name in defined_names(library)}
    for name in wanted - own - set(missing):
        known.update(defined_names(present[name]))
    asked = {}
    for library in libraries:
        asked.update((name, version) for name, version in open_names(library) if name not in known)
    # What the interpreter brings: torch's Python half is loaded into it.
    asked = {name: asked[name] for name in sorted(asked) if not re.match(r"_?Py[A-Z_]", name)}
    with tempfile.NamedTemporaryFile("w", suffix=".map") as script:
        script.write(version_script(asked))
        script.flush()
        subprocess.run(["cc", "-shared", "-nostdlib", f"-Wl,--version-script={script.name}", "-x",
                        "assembler", "-o", folder / STAND_IN, "-"], input=assembly(asked), text=True,
                       check=True)
    for name in missing:
        (folder / name).symlink_to(STAND_IN)
    print(f"{len(missing)} libraries and {len(asked)} names stand in for CUDA")


if __name__ == "__main__":
    main()
