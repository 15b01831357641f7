"""The ONNX and OpenVINO IR that the op table's rows are written as, run by other programs.

`op_cases` (tests/tools/op_cases.cpp) writes each row sample, a few layer graphs and graphs with
awkward inputs and outputs; the expected outputs are the rows' own kernels.
"""

import pathlib

import numpy
import onnx
import onnxruntime
import openvino

# bf16 has no numpy type: raw bits, compared as such.
NUMPY_TYPES = {
    "f32": numpy.float32,
    "f16": numpy.float16,
    "bf16": numpy.uint16,
    "i64": numpy.int64,
    "i32": numpy.int32,
    "u8": numpy.uint8,
    "pred": numpy.bool_,
}
# Largest |difference| relative to the largest |expected|.
BOUNDS = {"movement": 0.0, "layer": 1e-5}
OTHER_BOUND = 2e-6


def read(directory, tensor):
    data = (directory / tensor["file"]).read_bytes()
    return numpy.frombuffer(data, NUMPY_TYPES[tensor["dtype"]]).reshape(tensor["shape"])


def has_16_bit_type(model):
    """ONNX Runtime's CPU provider has no bf16 arithmetic and little in f16."""
    inferred = onnx.shape_inference.infer_shapes(model)
    values = [*inferred.graph.input, *inferred.graph.output, *inferred.graph.value_info]
    types = {value.type.tensor_type.elem_type for value in values}
    return bool(types & {onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT16})


def mismatch(case, index, result, expected):
    """A line that says how `result` differs from what the kernel gives, or None."""
    where = f"{case['name']} output {index}"
    if result.shape != expected.shape or result.dtype != expected.dtype:
        return f"{where}: {result.dtype}{result.shape}, want {expected.dtype}{expected.shape}"
    if not numpy.issubdtype(expected.dtype, numpy.floating):
        return None if numpy.array_equal(result, expected) else f"{where}: values differ"
    if expected.size == 0:
        return None
    finite = numpy.isfinite(expected)
    if not numpy.array_equal(result[~finite], expected[~finite], equal_nan=True):
        return f"{where}: infinities or NaNs differ"
    error = numpy.abs(result[finite] - expected[finite]).max(initial=0)
    bound = BOUNDS.get(case["family"], OTHER_BOUND) * numpy.abs(expected[finite]).max(initial=0)
    return None if error <= bound else f"{where}: error {error} above {bound}"


def test_checker_accepts_every_model(op_case_directory, op_cases):
    """onnx.checker, with types and shapes inferred strictly and equal to those declared."""
    for case in op_cases:
        model = onnx.load(op_case_directory / f"{case['name']}.onnx")
        assert model.ir_version == 8
        assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 17)]
        onnx.checker.check_model(model, full_check=True)
        assert [value.name for value in model.graph.input] == [t["name"] for t in case["inputs"]]
        assert len(model.graph.output) == len(case["outputs"])


def test_onnxruntime_equals_kernels(op_case_directory, op_cases):
    ran, failures = 0, []
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    for case in op_cases:
        path = op_case_directory / f"{case['name']}.onnx"
        model = onnx.load(path)
        if has_16_bit_type(model):
            continue
        ran += 1
        try:
            session = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
            feeds = {t["name"]: read(op_case_directory, t) for t in case["inputs"]}
            results = session.run(None, feeds)
        except Exception as failure:  # every case is reported, not only the first
            failures.append(f"{case['name']}: {str(failure)[:300]}")
            continue
        for index, result in enumerate(results):
            expected = read(op_case_directory, case["outputs"][index])
            failures.append(mismatch(case, index, numpy.asarray(result), expected))
    failures = [failure for failure in failures if failure]
    assert not failures, "\n".join(failures)
    assert ran > 50


def test_16_bit_models_say_so(op_case_directory, op_cases):
    """What the run above leaves out: the cases with a 16-bit type at their ends or inside."""
    for case in op_cases:
        model = onnx.load(op_case_directory / f"{case['name']}.onnx")
        tensors = case["inputs"] + case["outputs"]
        if any(tensor["dtype"] in ("bf16", "f16") for tensor in tensors):
            assert has_16_bit_type(model), case["name"]


def test_openvino_reads_every_ir(op_case_directory, op_cases):
    """The files, read by OpenVINO's Python API: names, order, types and shapes of all ports."""
    core = openvino.Core()
    names = {"f32": "f32", "f16": "f16", "bf16": "bf16", "i32": "i32", "i64": "i64", "u8": "u8"}
    names["pred"] = "boolean"
    for case in op_cases:
        stem = op_case_directory / case["name"]
        weights = pathlib.Path(f"{stem}.bin").read_bytes()
        model = core.read_model(f"{stem}.xml", f"{stem}.bin" if weights else "")
        for ports, tensors in ((model.inputs, case["inputs"]), (model.outputs, case["outputs"])):
            assert len(ports) == len(tensors), case["name"]
            for port, tensor in zip(ports, tensors):
                assert port.element_type.get_type_name() == names[tensor["dtype"]], case["name"]
                assert list(port.shape) == tensor["shape"], case["name"]
        for port, tensor in zip(model.inputs, case["inputs"]):
            assert tensor["name"] in port.names, case["name"]
