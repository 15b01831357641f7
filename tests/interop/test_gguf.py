"""GGUF: every block type de-quantised as the gguf package does it, bit for bit."""
import hashlib
import json
import subprocess

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

TYPES = [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q4_K, Type.Q6_K]


def read(io_probe, path):
    done = subprocess.run([io_probe, "gguf", str(path)], capture_output=True, timeout=300, check=True)
    return json.loads(done.stdout)


def digest(values):
    return hashlib.sha256(np.ascontiguousarray(values, np.float32).tobytes()).hexdigest()


def random_blocks(kind, rows, columns, seed):
    """Bytes of any pattern, with scales that are finite numbers."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    draw = np.random.default_rng(seed)
    blocks = draw.integers(0, 256, (rows, columns // elements, size), np.uint8)
    halves = {Type.Q8_0: [0], Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q4_K: [0, 2], Type.Q6_K: [208]}[kind]
    for at in halves:
        scale = draw.normal(0, 0.05, blocks.shape[:2]).astype(np.float16)
        scale[0, 0] = 6e-8  # the least subnormal
        blocks[:, :, at:at + 2] = scale[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


def stored(kind, seed):
    rows, columns = 6, 1024
    if kind not in (Type.F32, Type.F16, Type.BF16):
        return random_blocks(kind, rows, columns, seed)
    values = np.random.default_rng(seed).normal(0, 1, (rows, columns)).astype(np.float32)
    values[0, :4] = [0.0, -0.0, 1e-7, 65504.0]
    return gguf.quantize(values, kind)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_blocks_equal_the_package(io_probe, tmp_path, kind):
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    expected = {}
    for i in range(3):
        data = stored(kind, i)
        writer.add_tensor(f"t{i}", data, raw_dtype=kind)
        expected[f"t{i}"] = gguf.dequantize(data, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tensors = read(io_probe, path)["tensors"]
    assert tensors.keys() == expected.keys()
    for name, values in expected.items():
        assert np.isfinite(values).all()
        assert tensors[name]["shape"] == list(values.shape)
        assert tensors[name]["sha256"] == digest(values), name


def test_real_model_equals_the_package(io_probe, gguf_file):
    answer = read(io_probe, gguf_file)
    reader = gguf.GGUFReader(gguf_file)
    assert len(reader.tensors) == len(answer["tensors"]) == 272
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        ours = answer["tensors"][tensor.name]
        assert ours["shape"] == list(values.shape)
        assert ours["sha256"] == digest(values), tensor.name


def test_other_types_are_refused_by_name(io_probe, tmp_path):
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("odd", np.zeros((1, 22), np.uint8), raw_dtype=Type.Q5_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    error = read(io_probe, path)["error"]
    assert 'tensor "odd"' in error and "type 6" in error
