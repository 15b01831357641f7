"""The compiling half of the stand-in. What it "compiles" to is the exported program itself, which the
card's half runs: with a stand-in for torch too, the graph's text.

FAKE_TORCH_MODE  one of the misbehaviours below; FAKE_TORCH_ONLY: only on exported programs, as they
                 print, that contain this
FAKE_TORCH_LOG   names a file that gets a line for each compile: "compile pes 1 hint X shapes 4"

    import  no_names        the package, or what it should have, is not there
    unsupported  panic      an op is refused; a panic of its native half
    hang  abort  memory     never ends, ends the process, takes all the memory that it gets
    drop_output  wrong_type  no_bytes    ports are lost or have another type; nothing comes of it
"""
import contextlib
import io
import os
import sys
import time
import types

import torch

SERIALIZED = b"fake Runnable "
ARCHIVE = b"PK"  # a program that torch.export saved
MODE = os.environ.get("FAKE_TORCH_MODE", "")
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i32": torch.int32,
         "i64": torch.int64, "u8": torch.uint8, "pred": torch.bool}

if MODE == "import":
    raise ImportError("libfuriosa.so: undefined symbol: _ZN2at6native8diagonal")


class UnsupportedOpError(RuntimeError):
    pass


class PanicException(BaseException):
    pass


def bytes_of(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


class Program:
    """A saved program; ports as words: a type's name, then its sizes."""

    def __init__(self, data):
        program = torch.export.load(io.BytesIO(data))
        self.call = program.module()
        values = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}
        words = lambda name: [self.word(values[name].dtype), *map(str, values[name].shape)]
        self.shapes = [tuple(values[name].shape) for name in program.graph_signature.user_inputs]
        self.inputs = [words(name) for name in program.graph_signature.user_inputs]
        self.outputs = [words(name) for name in program.graph_signature.user_outputs]

    @staticmethod
    def word(dtype):
        return next(word for word, known in TYPES.items() if known == dtype)

    def run(self, tensors):
        return self.call(*(tensor.reshape(shape) for tensor, shape in zip(tensors, self.shapes)))


def log(state, settings):
    if name := os.environ.get("FAKE_TORCH_LOG"):
        hint, shapes = settings.get("tactic_hint", ""), settings.get("max_num_unique_shapes", "")
        quick = ""
        if path := os.environ.get("TACTIC_HINT_PATH"):
            with open(path) as file:
                text = file.read()
            if "[" in text and "]" not in text:  # no YAML
                raise UnsupportedOpError("(cache at /tmp/7) Caused by: 0: while parsing a node, did not find expected "
                                         "node content at line 2 column 1")
            quick = " quick " + next((line.split()[-1] for line in text.splitlines() if "max_num_unique_shapes" in line), "")
        with open(name, "a") as file:
            file.write(f"compile pes {state.fusion} hint {hint} shapes {shapes} pid {os.getpid()}{quick}\n")


def misbehave():
    if MODE == "unsupported":
        raise UnsupportedOpError("failed to compile\ngraph(...)\ncompile error:\nno tactic found for\n  operator 3")
    if MODE == "panic":
        raise PanicException("called `Option::unwrap()` on a `None` value")
    if MODE == "abort":
        print("panic in a function that cannot unwind", file=sys.stderr, flush=True)
        os.abort()
    if MODE == "hang":
        while True:
            time.sleep(3600)
    if MODE == "memory":
        taken = []
        while True:
            taken.append(b"x" * (16 << 20))
            time.sleep(0.01)


class Shape:
    def __init__(self, dtype, sizes):
        self.dtype, self.host_sizes = dtype, sizes


def ports_of(exported):
    """Types and sizes of inputs and outputs."""
    if not hasattr(exported, "text"):
        program = Program(saved(exported))
        return [[Shape(TYPES[words[0]], [int(word) for word in words[1:]]) for words in ports]
                for ports in (program.inputs, program.outputs)]
    inputs, outputs, values = [], [], {}
    for line in exported.text.splitlines():
        name, kind = line.split(" ")[0], line.rpartition(" : ")[2]
        if line.startswith("output "):
            outputs.append(values[line.rpartition(" = ")[2]])
        elif line.startswith("%"):
            dtype, _, dims = kind.rstrip("]").partition("[")
            values[name] = Shape(TYPES[dtype], [int(dim) for dim in dims.split(",") if dim])
            if " = input " in line:
                inputs.append(values[name])
    return inputs, outputs


def saved(exported):
    if hasattr(exported, "text"):
        return b"fake EDF of " + exported.text.encode()
    buffer = io.BytesIO()
    torch.export.save(exported, buffer)
    return buffer.getvalue()


class Compiled:
    """ir.Runnable, ir.Edf in 2026.2, before it is on a card."""

    def __init__(self, state, exported, settings):
        log(state, settings)
        text = getattr(exported, "text", None) or str(exported)
        if os.environ.get("FAKE_TORCH_ONLY", "") in text:
            misbehave()
        self.data = saved(exported)
        self.input_dram_shapes, self.output_dram_shapes = ports_of(exported)
        if MODE == "drop_output":
            self.output_dram_shapes = self.output_dram_shapes[1:]
        if MODE == "wrong_type":
            self.output_dram_shapes[0].dtype = torch.float16

    def serialize(self):
        return b"" if MODE == "no_bytes" else SERIALIZED + self.data


class Settings(dict):
    def __init__(self, **settings):
        assert set(settings) <= {"tactic_hint", "max_num_unique_shapes"}
        super().__init__(settings)


def hints(*names):
    return types.SimpleNamespace(**{name: name for name in names})


class Module(torch.nn.Module):
    def children(self):
        return iter(())


def names(state):
    """config and CompileModule as 2026.4 has them."""
    class CompileModule(Module):
        @classmethod
        def from_exported(cls, exported, compiler_config=None, *, pass_context=None, task_name=None):
            assert state.uncached, "the cache would be used"
            module = cls()
            module.runnable = types.SimpleNamespace(_inner=Compiled(state, exported, compiler_config or {}))
            return module

    @contextlib.contextmanager
    def cache_context(root_dir):
        state.uncached = root_dir is None
        yield
        state.uncached = False

    config = types.SimpleNamespace(
        CompilerConfig=Settings, cache_context=cache_context,
        TacticHintConfig=hints("Default", "NoConstraint", "ForLlmModelComputeBound", "ForLlmModelIOBound",
                               "ForLlmModelComputeIOBalanced", "ForVisionModel", "ForMiscModel"))
    return config, None if MODE == "no_names" else CompileModule


def old_names(state):
    """compiler and CompileModule as 2026.2 has them: no cache to leave, shapes as plain lists."""
    class Edf(Compiled):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.input_shapes = [shape.host_sizes for shape in self.input_dram_shapes]
            self.output_shapes = [shape.host_sizes for shape in self.output_dram_shapes]
            del self.input_dram_shapes, self.output_dram_shapes

    class CompileModule(Module):
        @classmethod
        def from_exported(cls, exported, compiler_config=None):
            module = cls()
            module.edf_module = types.SimpleNamespace(_inner=Edf(state, exported, compiler_config or {}))
            return module

    compiler = types.SimpleNamespace(
        Config=Settings, TacticHintConfig=hints("Default", "NoConstraint", "ForLlmModelDecode",
                                                "ForLlmModelPrefill", "ForVisionModel", "ForMiscModel"))
    return compiler, CompileModule
