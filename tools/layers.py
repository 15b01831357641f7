#!/usr/bin/env python3
"""Checks the layering of src/ and what one folder alone may do; see docs/design and STYLE.md.

    tools/layers.py [ROOT]      exit 1 and one line per offence: FILE:LINE: what; got …; allowed …
    tools/layers.py --self-test

An include must stay in its folder or go down the arrows of ALLOWED. The same arrows bind the LINK
lists of src/*/CMakeLists.txt.
"""
import argparse
import re
import sys
import tempfile
from pathlib import Path

BELOW_OPS = ("ops", "ir", "tensor", "base")
ALLOWED = {
    "base": (),
    "tensor": ("base",),
    "ir": ("tensor", "base"),
    "ops": ("ir", "tensor", "base"),
    "model": BELOW_OPS,
    "transform": BELOW_OPS,
    "backend": BELOW_OPS,
    "compile": ("transform", "backend", *BELOW_OPS),
    "train": ("compile", "model", "transform", "backend", *BELOW_OPS),
    "io": ("model", "tensor", "base"),
    "cli": ("train", "io", "compile", "transform", "backend", "model", *BELOW_OPS),
    "python": ("train", "io", "compile", "transform", "backend", "model", *BELOW_OPS),
}

# What only some folders may name: (pattern in code, folders that may, what it is).
RESERVED = (
    (re.compile(r"\b(dlopen|dlsym|dlmopen)\s*\("), ("backend",), "loading a library at run time"),
    (re.compile(r"furiosa|rngd|rebel|rbln|onnxruntime|cuda|qnn", re.I), ("backend", "cli"),
     "a vendor's name"),
    # An op's row says how the op is written as OpenVINO IR, hence ir and ops.
    (re.compile(r"openvino", re.I), ("backend", "cli", "ir", "ops"), "a vendor's name"),
    (re.compile(r"\b(_?exit|quick_exit)\s*\("), ("cli",), "ending the process"),
    (re.compile(r"\b(getenv|secure_getenv|setenv|putenv)\s*\("), ("cli", "backend"),
     "the environment"),
)
# A child between fork and exec has nothing else to call.
RESERVED_EXCEPTIONS = {("src/base/spawn.cpp", "ending the process")}

LINE_LIMITS = {".cpp": 500, ".h": 250}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')
LINKED = re.compile(r"\bnpu_(\w+)")


def without_comments(text):
    """`text` with comments blanked out; line numbers stay."""
    def blank(match):
        token = match.group(0)
        return token if token[0] in "\"'" else re.sub(r"[^\n]", " ", token)

    return re.sub(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', blank, text,
                  flags=re.S)


def check_includes(folder, lines, where):
    allowed = ALLOWED[folder]
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        target = match.group(1)
        to = target.split("/")[0]
        if to != folder and to not in allowed:
            yield (f'{where}:{number}: include goes up or aside; got "{target}"; '
                   f"{folder} may include {', '.join((folder, *allowed))}")


def check_reserved(folder, lines, where):
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("#include"):
            continue
        for pattern, folders, what in RESERVED:
            match = pattern.search(line)
            if match and folder not in folders and (where, what) not in RESERVED_EXCEPTIONS:
                yield (f"{where}:{number}: {what} outside its folder; got '{match.group(0)}'; "
                       f"allowed in {', '.join(folders)}")


def check_form(path, text, where):
    limit, count = LINE_LIMITS[path.suffix], text.count("\n")
    if count > limit:
        yield f"{where}:{limit + 1}: file too long; got {count} lines; allowed {limit}"
    if not text.startswith("//"):
        yield f"{where}:1: no header comment; got '{text.split(chr(10), 1)[0]}'; allowed '// …'"


def check_links(folder, path, where):
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for to in LINKED.findall(line.split("#")[0]):
            if to in ALLOWED and to != folder and to not in ALLOWED[folder]:
                yield (f"{where}:{number}: link goes up or aside; got npu_{to}; "
                       f"{folder} may link {', '.join(ALLOWED[folder]) or 'nothing'}")


def check_tree(root):
    """Every offence under root/src, as lines to print."""
    offences = []
    for path in sorted((root / "src").rglob("*")):
        parts = path.relative_to(root / "src").parts
        where = path.relative_to(root).as_posix()
        if not path.is_file():
            continue
        if len(parts) < 2 or parts[0] not in ALLOWED:
            offences.append(f"{where}:1: folder unknown; got {parts[0]}; "
                            f"allowed {', '.join(ALLOWED)}")
        elif path.name == "CMakeLists.txt":
            offences += check_links(parts[0], path, where)
        elif path.suffix in LINE_LIMITS:
            text = path.read_text(encoding="utf-8")
            code = without_comments(text).splitlines()
            offences += check_includes(parts[0], code, where)
            offences += check_reserved(parts[0], code, where)
            offences += check_form(path, text, where)
    return offences


# (file, its text, a piece of the offence it must give, or None where it is innocent)
CASES = (
    ("src/tensor/a.h", '// role\n#include "base/error.h"\n', None),
    ("src/tensor/a.h", '// role\n#include "ir/graph.h"\n', 'a.h:2: include goes up or aside; got "ir/'),
    ("src/train/a.cpp", '// role\n#include "io/json.h"\n', "include goes up or aside"),
    ("src/io/a.cpp", '// role\n#include "model/model.h"\n', None),
    ("src/io/a.cpp", '// role\n#include "ops/ops.h"\n', "io may include io, model, tensor, base"),
    ("src/backend/a.cpp", '// role\n#include "transform/vjp.h"\n', "include goes up or aside"),
    ("src/model/a.cpp", '// role\n// #include "cli/main.h"\n', None),
    ("src/model/a.cpp", "// role\nint cuda_cores;\n", "a vendor's name"),
    ("src/model/a.cpp", "// role: the same on CUDA\nint cores; /* rngd */\n", None),
    ("src/ops/a.cpp", "// role\nRef openvino_matmul();\n", None),
    ("src/train/a.cpp", '// role\nauto b = "openvino:CPU";\n', "a vendor's name"),
    ("src/compile/a.cpp", "// role\nauto h = dlopen(p, 0);\n", "loading a library"),
    ("src/backend/a.cpp", '// role\nauto h = dlopen(p, 0); auto e = getenv("X");\n', None),
    ("src/io/a.cpp", '// role\nauto e = std::getenv("X");\n', "the environment"),
    ("src/io/a.cpp", "// role\nvoid f() { std::exit(1); }\n", "ending the process"),
    ("src/base/spawn.cpp", "// role\nvoid f() { _exit(127); }\n", None),
    ("src/cli/a.cpp", "// role\nvoid f() { std::exit(1); }\n", None),
    ("src/io/a.cpp", '// role\nauto s = "http://x"; int exit_code(); // exit(1)\n', None),
    ("src/ir/a.h", "#pragma once\n", "no header comment"),
    ("src/ir/a.h", "// role\n" + "\n" * 250, "file too long; got 251 lines; allowed 250"),
    ("src/ir/a.cpp", "// role\n" + "\n" * 499, None),
    ("src/ir/CMakeLists.txt", "npu_library(ir LINK npu_tensor)\n", None),
    ("src/ir/CMakeLists.txt", "npu_library(ir LINK npu_ops)\n", "link goes up or aside; got npu_ops"),
    ("src/util/a.h", "// role\n", "folder unknown; got util"),
)


def self_test():
    failed = 0
    for name, text, expected in CASES:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.parent.mkdir(parents=True)
            path.write_text(text, encoding="utf-8")
            got = check_tree(Path(folder))
        right = got == [] if expected is None else len(got) == 1 and expected in got[0]
        if not right:
            failed += 1
            print(f"{name}: {text!r}\n  expected {expected!r}\n  got {got}")
    print(f"layers.py: {len(CASES) - failed} cases right, {failed} wrong")
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--self-test", action="store_true", help="run the checker's own cases")
    args = parser.parse_args()
    if args.self_test:
        sys.exit(1 if self_test() else 0)
    offences = check_tree(args.root)
    print("\n".join(offences) if offences else "layers.py: no offence")
    sys.exit(1 if offences else 0)


if __name__ == "__main__":
    main()
