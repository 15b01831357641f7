"""Compiles a part for RNGD through furiosa.torch, as torch ops; needs no card.

npu-lora carries this file and starts it as `python -c FILE` with one of

    version                                  the packages' releases, without importing them
    compile PART OUT PES [HINT] [MAX_SHAPES] PART is a graph's text, OUT gets what furiosa.torch serializes

A refusal exits with 3 and a fault of this environment with 4; why is the last line of stderr that
starts with MARK. The names are those of furiosa-torch 2026.4, or whatever earlier releases call them.
"""
import contextlib
import json
import re
import sys

MARK = "npu-lora: "
REFUSED, ENVIRONMENT = 3, 4


class Failure(Exception):
    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


def releases():
    from importlib import metadata
    try:
        return ", ".join(f"{name} {metadata.version(name)}" for name in ("furiosa-torch", "torch"))
    except metadata.PackageNotFoundError as error:
        raise Failure(ENVIRONMENT, f"{error.name or error} is not installed here") from error


if __name__ != "__main__" or sys.argv[1:2] != ["version"]:
    import torch  # before the vendor's package

    DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i32": torch.int32,
              "i64": torch.int64, "u8": torch.uint8, "pred": torch.bool}

# ---- the op table: each row of docs/ops.md as torch has it, of a node and its operands -----------


def matmul(node, a, b):
    a = a.transpose(-1, -2) if node.attrs.get("transpose_lhs") else a
    b = b.transpose(-1, -2) if node.attrs.get("transpose_rhs") else b
    if a.dtype == b.dtype == node.dtype:
        return torch.matmul(a, b)
    return torch.matmul(a.to(torch.float32), b.to(torch.float32)).to(node.dtype)


def slice_of(node, x):
    for dim, (start, limit) in enumerate(zip(node.attrs["starts"], node.attrs["limits"])):
        if (start, limit) != (0, x.shape[dim]):
            x = torch.narrow(x, dim, start, limit - start)
    return x


def pad(node, x):
    """By concat: the vendor's compiler takes no padding."""
    for dim, sides in enumerate(zip(node.attrs["low"], node.attrs["high"])):
        zeros = [x.new_zeros([side if d == dim else size for d, size in enumerate(x.shape)]) for side in sides]
        if any(sides):
            x = torch.cat([part for part, side in ((zeros[0], sides[0]), (x, 1), (zeros[1], sides[1])) if side], dim)
    return x


def one_hot(node, x):
    columns = torch.arange(node.attrs["depth"], dtype=x.dtype)
    return (x.unsqueeze(-1) == columns).to(node.dtype)


def iota(node):
    axis, shape = node.attrs["axis"], node.shape
    numbers = torch.arange(shape[axis], dtype=torch.int64).to(node.dtype)
    return numbers.reshape([size if d == axis else 1 for d, size in enumerate(shape)]).expand(shape).contiguous()


def over_axes(reduce):
    return lambda node, x: reduce(x, node.attrs["axes"]) if node.attrs["axes"] else x


OPS = {
    "add": lambda node, a, b: a + b,
    "sub": lambda node, a, b: a - b,
    "mul": lambda node, a, b: a * b,
    "div": lambda node, a, b: a / b,
    "max": lambda node, a, b: torch.maximum(a, b),
    "min": lambda node, a, b: torch.minimum(a, b),
    "neg": lambda node, x: -x,
    "exp": lambda node, x: torch.exp(x),
    "log": lambda node, x: torch.log(x),
    "sqrt": lambda node, x: torch.sqrt(x),
    "rsqrt": lambda node, x: torch.rsqrt(x),
    "sigmoid": lambda node, x: torch.sigmoid(x),
    "convert": lambda node, x: x.to(node.dtype),
    "compare": lambda node, a, b: getattr(torch, node.attrs["kind"])(a, b),
    "select": lambda node, c, a, b: torch.where(c, a, b),
    "stop_gradient": lambda node, x: x,
    "matmul": matmul,
    "reduce_sum": over_axes(lambda x, axes: torch.sum(x, axes, keepdim=True)),
    "reduce_max": over_axes(lambda x, axes: torch.amax(x, axes, keepdim=True)),
    "reshape": lambda node, x: x.reshape(node.shape),
    "transpose": lambda node, x: x.permute(node.attrs["perm"]),
    "broadcast": lambda node, x: x.expand(node.shape),
    "slice": slice_of,
    "concat": lambda node, *parts: torch.cat(parts, node.attrs["axis"]),
    "pad": pad,
    "gather": lambda node, table, rows: torch.index_select(table, 0, rows),
    "one_hot": one_hot,
    "iota": iota,
    "constant": lambda node: torch.full(node.shape, node.attrs["value"], dtype=node.dtype),
}

# ---- graphs --------------------------------------------------------------------------------------

QUOTED = r'"(?:[^"\\]|\\.)*"'
TYPE = r" : (\w+)\[([\d,]*)\]$"
INPUT = re.compile(rf"%(\d+) = input {QUOTED}{TYPE}")
NODE = re.compile(r"%(\d+) = (\w+)\(([%\d, ]*)\)(?: \{(.*)\})?" + TYPE)
OUTPUT = re.compile(rf"output {QUOTED} = %(\d+)$")
ATTRIBUTE = re.compile(rf"(\w+)=({QUOTED}|\[[^\]]*\]|[^,]+)")


def value_of(text):
    return json.loads(text) if text[0] in '"[' else (int(text) if re.fullmatch(r"-?\d+", text) else float(text))


class Node:
    def __init__(self, op, operands, attrs, dtype, dims):
        self.op, self.operands, self.dtype = op, operands, DTYPES[dtype]
        self.attrs = {name: value_of(value) for name, value in ATTRIBUTE.findall(attrs or "")}
        self.shape = [int(dim) for dim in dims.split(",") if dim]


class Part(torch.nn.Module if "torch" in globals() else object):
    """A graph's text as a module: operands come before their users, outputs in their order."""

    def __init__(self, text):
        super().__init__()
        self.text, self.nodes, self.inputs, self.outputs = text, {}, [], []
        for line in text.splitlines():
            if found := INPUT.match(line):
                self.nodes[found[1]] = Node(None, [], "", found[2], found[3])
                self.inputs.append(found[1])
            elif found := NODE.match(line):
                operands = re.findall(r"\d+", found[3])
                self.nodes[found[1]] = Node(found[2], operands, found[4], found[5], found[6])
            elif found := OUTPUT.match(line):
                self.outputs.append(found[1])
            elif not line.startswith("graph "):
                raise Failure(REFUSED, f"no line of a graph: {line}")
        for node in self.nodes.values():
            if node.op is not None and node.op not in OPS:
                raise Failure(REFUSED, f"{node.op}: no torch call is known for it")

    def examples(self):
        return tuple(torch.zeros(self.nodes[name].shape, dtype=self.nodes[name].dtype) for name in self.inputs)

    def forward(self, *tensors):
        values = dict(zip(self.inputs, tensors))
        for name, node in self.nodes.items():
            if node.op is not None:
                values[name] = OPS[node.op](node, *(values[operand] for operand in node.operands))
        # What is an input, or was given before, would be left out of the compiled outputs.
        given, results = set(self.inputs), []
        for name in self.outputs:
            results.append(values[name].clone() if name in given else values[name])
            given.add(name)
        return tuple(results)


# ---- the vendor's names --------------------------------------------------------------------------


def found(names, *places):
    """The first of these attributes that is there, or None."""
    return next((getattr(place, name) for place in places for name in names if hasattr(place, name)), None)


def configuration(vendor, hint, max_shapes):
    """A compiler configuration, or None for the compiler's own."""
    if not hint and not max_shapes:
        return None
    places = [place for place in (found(["config"], vendor), found(["compiler"], vendor), vendor) if place is not None]
    kind = found(["CompilerConfig", "Config"], *places)
    if kind is None:
        raise Failure(ENVIRONMENT, "this release of furiosa.torch has no compiler configuration")
    settings = {}
    if hint:
        hints = found(["TacticHintConfig", "TacticHint"], *places)
        if not hasattr(hints, hint):
            known = ", ".join(name for name in dir(hints) if name[0].isupper())
            raise Failure(ENVIRONMENT, f"this release of furiosa.torch has no hint {hint}, only {known}")
        settings["tactic_hint"] = getattr(hints, hint)
    if max_shapes:
        settings["max_num_unique_shapes"] = int(max_shapes)
    return kind(**settings)


def without_cache(vendor):
    context = found(["cache_context"], *(place for place in (found(["config"], vendor), vendor) if place is not None))
    return context(root_dir=None) if context else contextlib.nullcontext()


def serializable(module):
    """What holds the compiled bytes: module.runnable._inner, the same under other names before."""
    holders = [module, *(value for value in (found(["runnable", "edf_module", "module"], module),) if value is not None),
               *module.children()]
    for holder in holders:
        for inner in (found(["_inner", "_edf", "edf"], holder), holder):
            if callable(getattr(inner, "serialize", None)):
                return inner
    raise Failure(ENVIRONMENT, "this release of furiosa.torch compiles to nothing that can be serialized")


def count(dims):
    elements = 1
    for dim in dims:
        elements *= dim
    return elements


def check_ports(what, shapes, nodes):
    """Ports go by position, so the compiler must have kept them."""
    if len(shapes) != len(nodes):
        raise Failure(REFUSED, f"must keep {len(nodes)} {what}; got {len(shapes)}")
    for number, (shape, node) in enumerate(zip(shapes, nodes)):
        sizes = list(getattr(shape, "host_sizes", shape))
        dtype = getattr(shape, "dtype", node.dtype)  # plain sizes, in earlier releases
        if count(sizes) != count(node.shape) or dtype != node.dtype:
            raise Failure(REFUSED, f"must keep {what} {number} of {node.shape} {node.dtype}; got {sizes} {dtype}")


def compiled(part, vendor, hint, max_shapes):
    compile_module = getattr(vendor, "CompileModule", None)
    if not hasattr(compile_module, "from_exported"):
        raise Failure(ENVIRONMENT, "this release of furiosa.torch has no CompileModule.from_exported")
    with torch.no_grad():
        exported = torch.export.export(part, part.examples(), strict=False)
    config = configuration(vendor, hint, max_shapes)
    settings = {} if config is None else {"compiler_config": config}
    with without_cache(vendor):
        module = compile_module.from_exported(exported, **settings)
    inner = serializable(module)
    for what, names, ids in (("inputs", ["input_dram_shapes", "input_shapes"], part.inputs),
                             ("outputs", ["output_dram_shapes", "output_shapes"], part.outputs)):
        shapes = found(names, inner)
        if shapes is None:
            raise Failure(ENVIRONMENT, f"this release of furiosa.torch does not tell what {what} it kept")
        check_ports(what, shapes, [part.nodes[name] for name in ids])
    return bytes(inner.serialize())


def compile_part(source, out, pes, hint="", max_shapes=""):
    try:
        import furiosa.torch as vendor
        set_fusion = vendor.set_fusion
    except Exception as error:
        raise Failure(ENVIRONMENT, f"{type(error).__name__}: {error}") from error
    set_fusion(int(pes))  # once, before anything is compiled
    with open(source, encoding="utf-8") as file:
        part = Part(file.read())
    try:
        data = compiled(part, vendor, hint, max_shapes)
    except (Failure, MemoryError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # its panics are no Exceptions
        words = str(error).rpartition("compile error:")[2].split()
        raise Failure(REFUSED, f"{type(error).__name__}: {' '.join(words)}") from error
    with open(out, "wb") as file:
        file.write(data)


def main(command, *arguments):
    try:
        if command == "version":
            print(releases())
        else:
            compile_part(*arguments)
    except Failure as failure:
        print(MARK + " ".join(str(failure).split()), file=sys.stderr)
        return failure.code
    except MemoryError:
        print(MARK + "memory is exhausted", file=sys.stderr)
        return ENVIRONMENT
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
