"""safetensors: the official reader and ours agree file by file, and each reads what the other writes."""
import hashlib
import json
import random
import struct
import subprocess

import pytest
import safetensors
import torch
from safetensors.torch import save_file


@pytest.fixture(scope="module")
def probe(io_probe):
    """probe(command, argument, …) → what our reader says."""
    def call(*arguments):
        done = subprocess.run([io_probe, *map(str, arguments)], capture_output=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout)

    return call


def file_of(header, data=b"", length=None):
    header = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def entry(shape="[2]", offsets="[0,8]", dtype="F32"):
    return f'{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}'


def one(*arguments, **named):
    return '{"a":' + entry(*arguments, **named) + "}"


def nested(levels):
    return '{"a":' + entry()[:-1] + ',"x":' + "[" * levels + "]" * levels + "}}"


EIGHT = b"\1" * 8
PLAIN = one()
TWO = '{{"a":{},"b":{}}}'
CASES = {
    "empty file": b"",
    "seven bytes": b"\0" * 7,
    "length 0": file_of("", length=0),
    "length 1": file_of("{"),
    "length beyond the file": file_of("{}", length=3),
    "length 100000000": file_of("{}", length=100_000_000),
    "length 100000001": file_of("{}", length=100_000_001),
    "length 2^63": file_of("{}", length=1 << 63),
    "length 2^64-1": file_of("{}", length=(1 << 64) - 1),
    "length 2^64-8": file_of("{}", length=(1 << 64) - 8),
    "plain": file_of(PLAIN, EIGHT),
    "short by one": file_of(PLAIN, EIGHT[:7]),
    "no data": file_of(PLAIN),
    "one byte too many": file_of(PLAIN, EIGHT + b"x"),
    "no tensor but bytes": file_of("{}", EIGHT),
    "no tensor": file_of("{}"),
    "overlap": file_of(TWO.format(entry(), entry(offsets="[4,12]")), bytes(12)),
    "alias": file_of(TWO.format(entry(), entry()), EIGHT),
    "hole": file_of(TWO.format(entry(), entry(offsets="[12,20]")), bytes(20)),
    "hole at 0": file_of(one(offsets="[4,12]"), bytes(12)),
    "begin after end": file_of(one(offsets="[8,0]"), EIGHT),
    "empty inside": file_of(TWO.format(entry(), entry("[0]", "[4,4]")), EIGHT),
    "empty at 0": file_of(TWO.format(entry(), entry("[0]", "[0,0]")), EIGHT),
    "empty at the end": file_of(TWO.format(entry(), entry("[0]", "[8,8]")), EIGHT),
    "shape [0]": file_of(one("[0]", "[0,0]")),
    "shape []": file_of(one("[]", "[0,4]"), EIGHT[:4]),
    "order reversed": file_of(TWO.format(entry(offsets="[8,16]"), entry()), bytes(16)),
    "range too long": file_of(one(offsets="[0,12]"), bytes(12)),
    "range too short": file_of(one(offsets="[0,4]"), bytes(4)),
    "end 2^64-1": file_of(one(offsets="[0,18446744073709551615]"), EIGHT),
    "product overflows": file_of(one("[4294967296,4294967296]", "[0,0]")),
    "bytes overflow": file_of(one("[4611686018427387906]"), EIGHT),
    "bits overflow": file_of(one("[2305843009213693952]", "[0,0]")),
    "zero times 2^63": file_of(one("[0,9223372036854775808,4]", "[0,0]")),
    "zero times 2^62": file_of(one("[0,4611686018427387904,4]", "[0,0]")),
    "negative": file_of(one("[-2]"), EIGHT),
    "8.0": file_of(one("[8.0]", "[0,32]"), bytes(32)),
    "offset 8.0": file_of(one(offsets="[0,8.0]"), EIGHT),
    "1e30": file_of(one("[1e30]"), EIGHT),
    "2^64": file_of(one("[18446744073709551616]"), EIGHT),
    "-0": file_of(one("[-0]", "[0,0]")),
    "number as text": file_of(one('["2"]'), EIGHT),
    "leading zero": file_of(one("[02]"), EIGHT),
    "one offset": file_of(one(offsets="[0]"), EIGHT),
    "three offsets": file_of(one(offsets="[0,8,8]"), EIGHT),
    "name twice": file_of('{"a":' + entry() + ',"a":' + entry() + "}", EIGHT),
    "name twice, other shape": file_of('{"a":' + entry("[1]", "[0,4]") + ',"a":' + entry() + "}", EIGHT),
    "metadata": file_of('{"__metadata__":{"k":"v"},"a":' + entry() + "}", EIGHT),
    "only metadata": file_of('{"__metadata__":{"k":"v"}}'),
    "metadata key twice": file_of('{"__metadata__":{"k":"1","k":"2"}}'),
    "metadata twice": file_of('{"__metadata__":{},"__metadata__":{}}'),
    "metadata null": file_of('{"__metadata__":null,"a":' + entry() + "}", EIGHT),
    "metadata number": file_of('{"__metadata__":{"k":1}}'),
    "metadata value null": file_of('{"__metadata__":{"k":null}}'),
    "metadata value object": file_of('{"__metadata__":{"k":{}}}'),
    "field twice": file_of('{"a":{"dtype":"F32",' + entry()[1:] + "}", EIGHT),
    "unknown field": file_of('{"a":' + entry()[:-1] + ',"x":{"y":[1]}}}', EIGHT),
    "entry as array": file_of('{"a":["F32",[2],[0,8]]}', EIGHT),
    "entry null": file_of('{"a":null}'),
    "no dtype": file_of('{"a":{"shape":[2],"data_offsets":[0,8]}}', EIGHT),
    "no shape": file_of('{"a":{"dtype":"F32","data_offsets":[0,8]}}', EIGHT),
    "no offsets": file_of('{"a":{"dtype":"F32","shape":[2]}}', EIGHT),
    "unknown dtype": file_of(one(dtype="F31"), EIGHT),
    "lower-case dtype": file_of(one(dtype="f32"), EIGHT),
    "byte ff": file_of(b'{"\xff":' + entry().encode() + b"}", EIGHT),
    "overlong": file_of(b'{"\xc0\xaf":' + entry().encode() + b"}", EIGHT),
    "surrogate bytes": file_of(b'{"\xed\xa0\x80":' + entry().encode() + b"}", EIGHT),
    "lone surrogate": file_of('{"\\ud800":' + entry() + "}", EIGHT),
    "surrogate pair": file_of('{"\\ud83d\\ude00":' + entry() + "}", EIGHT),
    "NUL escape": file_of('{"\\u0000":' + entry() + "}", EIGHT),
    "control byte": file_of('{"\x01":' + entry() + "}", EIGHT),
    "byte-order mark": file_of(b"\xef\xbb\xbf" + PLAIN.encode(), EIGHT),
    "NUL padding": file_of(PLAIN + "\0\0", EIGHT),
    "text after": file_of(PLAIN + "x", EIGHT),
    "trailing comma": file_of(PLAIN[:-1] + ",}", EIGHT),
    "comment": file_of("/**/" + PLAIN, EIGHT),
    "empty name": file_of('{"":' + entry() + "}", EIGHT),
    "path as name": file_of('{"../../x":' + entry() + "}", EIGHT),
    "leading blank": file_of(" " + PLAIN, EIGHT),
    "blanks after": file_of(PLAIN + "   ", EIGHT),
    "newlines after": file_of(PLAIN + "\n\n", EIGHT),
    "a list": file_of("[]"),
    "nested 100": file_of(nested(100), EIGHT),
    "nested 200": file_of(nested(200), EIGHT),
    "F4 odd": file_of(one("[3]", "[0,2]", "F4"), b"ab"),
    "F4 even": file_of(one("[4]", "[0,2]", "F4"), b"ab"),
    "F32 at an odd offset": file_of(TWO.format(entry("[1]", "[0,1]", "U8"), entry(offsets="[1,9]")), bytes(9)),
    "BOOL 2": file_of(one("[1]", "[0,1]", "BOOL"), b"\2"),
}
# Where ours is stricter on purpose: the official reader takes these files (and lets the last name win).
STRICTER = {"name twice", "name twice, other shape", "entry as array", "zero times 2^63", "zero times 2^62"}


def official(data):
    """Whether the official reader takes the file's bytes."""
    try:
        safetensors.deserialize(data)
    except Exception:
        return False
    return True


@pytest.mark.parametrize("label", CASES)
def test_verdicts_agree(probe, tmp_path, label):
    path = tmp_path / "f.safetensors"
    path.write_bytes(CASES[label])
    answer = probe("safetensors", path)
    if label in STRICTER:
        assert official(CASES[label]) and "error" in answer
    else:
        assert official(CASES[label]) == ("error" not in answer), answer


def test_mutated_files_agree(probe, tmp_path):
    """Random damage to a header: never a crash, and no file that ours takes and the official reader refuses."""
    base = file_of(json.dumps({"__metadata__": {"note": "words that damage leaves legal, mostly"},
                               "a": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]},
                               "bc": {"dtype": "BF16", "shape": [3], "data_offsets": [8, 14]}}), bytes(14))
    draw = random.Random(5)
    taken = 0
    for _ in range(400):
        data = bytearray(base)
        for _ in range(draw.choice((1, 1, 2, 3))):
            at = draw.randrange(len(data) - 14)
            data[at] = draw.choice(b'0123456789"{}[]:,abF \\\x00\xff') if draw.random() < 0.7 else draw.randrange(256)
        path = tmp_path / "f.safetensors"
        path.write_bytes(data)
        answer = probe("safetensors", path)
        if "error" in answer:
            assert not official(bytes(data)) or "same name" in answer["error"], (bytes(data), answer)
        else:
            taken += 1
            assert official(bytes(data)), bytes(data)
    assert 10 < taken < 390  # both verdicts occur


def raw_tensors(path):
    """name → (dtype, shape, digest of the bytes) as the official reader sees a file."""
    return {name: (info["dtype"], info["shape"], hashlib.sha256(info["data"]).hexdigest())
            for name, info in safetensors.deserialize(path.read_bytes())}


OURS = {"F32": "f32", "BF16": "bf16", "F16": "f16", "I64": "i64", "I32": "i32", "U8": "u8", "BOOL": "pred"}


def assert_same(answer, path):
    theirs = raw_tensors(path)
    assert set(answer["names"]) == set(theirs)
    for name, (dtype, shape, digest) in theirs.items():
        ours = answer["tensors"][name]
        assert (ours["dtype"], ours["shape"], ours["sha256"]) == (OURS[dtype], shape, digest), name


def test_official_reader_reads_ours(probe, tmp_path):
    path = tmp_path / "ours.safetensors"
    answer = probe("write_samples", path)
    assert_same(answer, path)
    assert len(answer["names"]) == 10
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt", "made by": "io_probe"}
        assert torch.equal(file.get_tensor("bf16"), torch.arange(15).reshape(3, 5).bfloat16())
        assert torch.equal(file.get_tensor("pred"), (torch.arange(15) % 2).bool().reshape(3, 5))
        assert file.get_tensor("empty").shape == (0, 4)


def test_ours_reads_official_files(probe, tmp_path):
    generator = torch.Generator().manual_seed(1)
    tensors = {str(dtype): (torch.randn(5, 7, generator=generator) * 50).to(dtype)
               for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.bool)}
    tensors["torch.uint8"] = torch.arange(35, dtype=torch.uint8).reshape(5, 7)
    tensors["scalar"] = torch.tensor(3.0)
    tensors["empty"] = torch.zeros(4, 0)
    path = tmp_path / "theirs.safetensors"
    save_file(tensors, path, {"format": "pt", "키": "값"})
    answer = probe("safetensors", path)
    assert_same(answer, path)
    assert answer["metadata"] == {"format": "pt", "키": "값"}


def test_header_of_exactly_the_limit(probe, tmp_path):
    for size, good in ((100_000_000, True), (100_000_001, False)):
        data = file_of(PLAIN + " " * (size - len(PLAIN)), EIGHT)
        path = tmp_path / "f.safetensors"
        path.write_bytes(data)
        assert official(data) == good
        assert ("error" not in probe("safetensors", path)) == good
