"""The table of torch calls that furiosa.torch is given, against the op table's rows: ordinary torch.

`op_cases` writes each row's samples, layer graphs and graphs with awkward ends as text, with the kernels'
outputs; workers/furiosa_torch_compiler.py rebuilds them of torch ops."""
import importlib.util
import re

import pytest
import torch
from conftest import REPO

TORCH_TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i32": torch.int32,
               "i64": torch.int64, "u8": torch.uint8, "pred": torch.bool}
# Relative to the largest value: sums in another order, other exp and log; then one rounding.
NOISE = 2e-6
LAYER_NOISE = 1e-5
STEPS = {torch.bfloat16: 2.0 ** -7, torch.float16: 2.0 ** -10, torch.float32: 0.0}


@pytest.fixture(scope="module")
def compiler():
    spec = importlib.util.spec_from_file_location("furiosa_torch_compiler", REPO / "workers/furiosa_torch_compiler.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(directory, tensor):
    data = bytearray((directory / tensor["file"]).read_bytes())
    return torch.frombuffer(data, dtype=TORCH_TYPES[tensor["dtype"]]).reshape(tensor["shape"])


def mismatch(result, wanted, noise):
    """How a result differs from what the kernel gives, or None."""
    if result.dtype != wanted.dtype or result.shape != wanted.shape:
        return f"{result.dtype} {list(result.shape)}, want {wanted.dtype} {list(wanted.shape)}"
    if not wanted.dtype.is_floating_point:
        return None if torch.equal(result, wanted) else "values differ"
    result, step, wanted = result.double(), STEPS[wanted.dtype], wanted.double()
    finite = torch.isfinite(wanted)
    if not torch.equal(torch.nan_to_num(result[~finite]), torch.nan_to_num(wanted[~finite])):
        return "infinities or NaNs differ"
    result, wanted = result[finite], wanted[finite]
    if wanted.numel() == 0:
        return None
    error = ((result - wanted).abs() - step * wanted.abs()).max().item()
    bound = noise * wanted.abs().max().item()
    return None if error <= bound else f"error {error} above {bound}"


def test_every_row_has_a_call(compiler):
    rows = re.findall(r"^\| `(\w+)` \|", (REPO / "docs/ops.md").read_text(), re.M)
    assert len(rows) > 20 and sorted(compiler.OPS) == sorted(rows)


def test_calls_equal_the_kernels(compiler, op_case_directory, op_cases):
    failures, ran = [], set()
    for case in op_cases:
        part = compiler.Part((op_case_directory / f"{case['name']}.ir").read_text())
        noise = LAYER_NOISE if case["family"] == "layer" else NOISE
        results = part(*(read(op_case_directory, tensor) for tensor in case["inputs"]))
        assert len(results) == len(case["outputs"])
        for index, result in enumerate(results):
            wrong = mismatch(result, read(op_case_directory, case["outputs"][index]), noise)
            if wrong:
                failures.append(f"{case['name']} output {index}: {wrong}")
        ran.update(node.op for node in part.nodes.values())
    assert not failures, "\n".join(failures)
    assert ran - {None} == set(compiler.OPS), "each call was tried"


def test_a_wrong_call_is_noticed(compiler, op_case_directory, op_cases, monkeypatch):
    monkeypatch.setitem(compiler.OPS, "sub", lambda node, a, b: b - a)
    with pytest.raises(AssertionError, match="sub_0 output 0"):
        test_calls_equal_the_kernels(compiler, op_case_directory, op_cases)


def test_every_graph_exports(compiler, op_case_directory, op_cases):
    """As torch.export traces it: what the vendor's compiler is shown gives the same ports."""
    for case in op_cases:
        part = compiler.Part((op_case_directory / f"{case['name']}.ir").read_text())
        exported = torch.export.export(part, part.examples(), strict=False)
        users = exported.graph_signature
        assert len(users.user_inputs) == len(case["inputs"]) and len(users.user_outputs) == len(case["outputs"])
        assert not exported.state_dict, "no weight is a constant"


def test_text_that_is_no_graph_is_refused(compiler):
    for text, words in (("graph g\n%0 = input \"x\" : f32[2]\n%1 = frobnicate(%0) : f32[2]\noutput \"y\" = %1\n",
                         "frobnicate: no torch call"), ("graph g\nhello\n", "no line of a graph: hello")):
        with pytest.raises(compiler.Failure, match=words):
            compiler.Part(text)
