"""A stand-in for furiosa.torch 2026.4, and with FAKE_RNGD_RELEASE=2026.2 for that release, which
calls things by other names. tests/tools/fake_rngd.h says what it computes and how it misbehaves, and
_compiling.py what it compiles to.
A tensor on a card is an object of its own here, whatever torch is."""
import bisect
import fcntl
import math
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import time

import torch

from furiosa.torch import _compiling as compiling

OLD = os.environ.get("FAKE_RNGD_RELEASE") == "2026.2"
KIND = "rngd" if OLD else "furiosa"
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i32": torch.int32,
          "i64": torch.int64, "u8": torch.uint8, "pred": torch.bool}
MEMORY = int(os.environ.get("FAKE_RNGD_MEMORY") or 1 << 32)


class State:
    fusion = card = compute = None
    loaded = used = 0
    poisoned = False


class OutOfMemoryError(RuntimeError):
    pass


def misbehaves(mode, edf=b"", call=0):
    wanted = os.environ.get("FAKE_RNGD_CALL")
    return (os.environ.get("FAKE_RNGD_MODE") == mode
            and os.environ.get("FAKE_RNGD_ONLY", "").encode() in edf
            and (not wanted or not call or int(wanted) == call))


def hang():
    while True:
        time.sleep(3600)


def set_fusion(count):
    assert State.fusion is None and count in (1, 2, 4, 8), "must be called only once globally"
    State.fusion = count


def get_available_devices():
    return [f"{KIND}:{i}" for i in range(64)]  # also without any card


if not OLD:
    version = "furiosa-torch 0.0-fake"


def open_card(device):
    """Exclusive: a card is the lock on its device node."""
    kind, index = device.split(":")
    assert kind == KIND, f"no such device: {device}"
    if State.card is not None:
        return
    if misbehaves("hang_open"):
        hang()
    if misbehaves("slow_open"):
        time.sleep(1)
    card = int(index) // (8 // (State.fusion or 1))
    try:
        State.card = open(f"{os.environ['NPU_LORA_RNGD_NODES']}/npu{card}mgmt")
        fcntl.flock(State.card, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        State.card = None
        raise OutOfMemoryError("failed to allocate 16 bytes") from error


def check_alive():
    if State.poisoned:
        raise RuntimeError("HAL error: Connection timed out (-110)")


class Place:
    """Bytes of the card's memory, which whoever computes maps too; the first hole that fits."""
    PAGE = 4096
    BYTES = 1 << 32
    descriptor = memory = None
    holes = [(0, BYTES)]  # (begin, end), rising

    def __init__(self, size):
        if State.used + size > MEMORY:
            raise OutOfMemoryError(f"failed to allocate {size} bytes")
        if Place.memory is None:
            Place.descriptor = os.memfd_create("fake-card", 0)
            os.ftruncate(Place.descriptor, Place.BYTES)
            Place.memory = memoryview(mmap.mmap(Place.descriptor, Place.BYTES))
        self.size, self.room = size, -(-max(size, 1) // Place.PAGE) * Place.PAGE
        index = next(i for i, (begin, end) in enumerate(Place.holes) if end - begin >= self.room)
        self.begin, end = Place.holes[index]
        Place.holes[index:index + 1] = [(self.begin + self.room, end)] if self.begin + self.room < end else []
        self.bytes = Place.memory[self.begin:self.begin + size]
        State.used += size

    def __del__(self):
        if not hasattr(self, "begin"):
            return
        State.used -= self.size
        begin, end = self.begin, self.begin + self.room
        index = bisect.bisect(Place.holes, (begin, end))
        if index < len(Place.holes) and Place.holes[index][0] == end:
            end = Place.holes.pop(index)[1]
        if index > 0 and Place.holes[index - 1][1] == begin:
            index -= 1
            begin = Place.holes.pop(index)[0]
        Place.holes.insert(index, (begin, end))


class CardTensor:
    def __init__(self, place, dtype, shape):
        check_alive()
        self.place, self.dtype, self.shape = place, dtype, tuple(shape)

    def cpu(self):
        check_alive()
        if not self.place.size:
            return torch.zeros(self.shape, dtype=self.dtype)
        return torch.frombuffer(bytearray(self.place.bytes), dtype=self.dtype).reshape(self.shape)

    def view(self, shape):
        if misbehaves("no_views"):
            raise NotImplementedError("view")
        return CardTensor(self.place, self.dtype, shape)


def placed(data):
    place = Place(len(data))
    place.bytes[:] = data
    return place


to_elsewhere = torch.Tensor.to


def to(tensor, device, *more, **options):
    if not isinstance(device, str) or ":" not in device:
        return to_elsewhere(tensor, device, *more, **options)
    open_card(device)
    check_alive()
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return CardTensor(placed(data), tensor.dtype, tensor.shape)


torch.Tensor.to = to


def compute():
    if State.compute is None:
        Place(0)  # maps the memory
        State.compute = subprocess.Popen(
            [os.environ["FAKE_RNGD_COMPUTE"], str(Place.descriptor), str(Place.BYTES)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[Place.descriptor])
    return State.compute


class DramShape:
    """As the compiler names axes: without those of size 1, and the first one split."""

    def __init__(self, words):
        self.dtype = DTYPES[words[0]]
        sizes = [int(word) for word in words[1:] if word != "1"]
        if sizes and sizes[0] % 2 == 0:
            sizes[0:1] = [2, sizes[0] // 2]
        if misbehaves("wrong_shape"):
            sizes.append(3)
        self.host_sizes = sizes


class Inner:
    """ir.Runnable, ir.Edf in 2026.2."""

    def __init__(self, edf):
        self.edf, self.loaded, self.calls, self.program = edf, False, 0, None
        if edf.startswith(compiling.ARCHIVE):  # torch itself computes
            self.program = compiling.Program(edf)
            self.input_dram_shapes = [DramShape(port) for port in self.program.inputs]
            self.output_dram_shapes = [DramShape(port) for port in self.program.outputs]
            return
        worker = compute()
        worker.stdin.write(b"L" + struct.pack("<Q", len(edf)) + edf)
        worker.stdin.flush()
        (length,) = struct.unpack("<Q", worker.stdout.read(8))
        if length == 0:
            raise ValueError("Tried to parse invalid EDF")
        lines = [line.split() for line in worker.stdout.read(length).decode().splitlines()]
        self.input_dram_shapes = [DramShape(line[1:]) for line in lines if line[0] == "in"]
        self.output_dram_shapes = [DramShape(line[1:]) for line in lines if line[0] == "out"]
        self.number, State.loaded = State.loaded, State.loaded + 1

    @staticmethod
    def from_bytes(edf):
        if misbehaves("refuse_load", edf):
            raise ValueError("Tried to parse another release's EDF")
        return Inner(edf)

    @staticmethod
    def from_serialized(data):
        if not data.startswith(compiling.SERIALIZED):
            raise ValueError("Tried to parse invalid utf-8")
        return Inner(data[len(compiling.SERIALIZED):])

    def put_on(self, device):
        check_alive()
        open_card(device)
        if misbehaves("abort_load", self.edf):
            print("panic in a function that cannot unwind", file=sys.stderr)
            os.abort()
        if misbehaves("hang_load", self.edf):
            hang()
        if misbehaves("memory_load", self.edf):
            raise OutOfMemoryError("failed to allocate stack")
        self.loaded = True

    def fail_first(self):
        def now(mode):
            return misbehaves(mode, self.edf, self.calls)
        if now("hang_run"):
            hang()
        if now("slow_run"):
            time.sleep(2)
        if now("freeze_run"):
            os.kill(os.getpid(), signal.SIGSTOP)
        if now("kill_run"):
            os.kill(os.getpid(), signal.SIGKILL)
        if now("abort_run"):
            print("panic in a function that cannot unwind", file=sys.stderr)
            os.abort()
        if now("garbage_run"):
            for fd in range(64):
                try:
                    socket.socket(fileno=os.dup(fd)).send(b"?" * 100)
                except OSError:
                    pass
        if now("noisy_run"):
            for i in range(20000):
                print(f"line {i} of what nobody asked for")
        if now("poison"):
            State.poisoned = True
        check_alive()
        if now("fail_run"):
            raise RuntimeError("HAL error: Input/output error (-5)")

    def execute(self, tensors, profiles=None):
        if not self.loaded:
            raise ValueError("Runnable is not loaded.")
        self.calls += 1
        self.fail_first()
        assert len(tensors) == len(self.input_dram_shapes)
        if self.program is not None:
            results = self.program.run([tensor.cpu() for tensor in tensors])
            return [CardTensor(placed(compiling.bytes_of(result)), shape.dtype, shape.host_sizes)
                    for result, shape in zip(results, self.output_dram_shapes)]
        worker = compute()
        worker.stdin.write(b"R" + struct.pack("<Q", self.number))
        for tensor, shape in zip(tensors, self.input_dram_shapes):
            assert isinstance(tensor, CardTensor) and tensor.dtype == shape.dtype
            assert OLD or list(tensor.shape) == shape.host_sizes
            worker.stdin.write(struct.pack("<Q", tensor.place.begin))
        outputs = []
        for shape in self.output_dram_shapes:
            sizes = shape.host_sizes
            place = Place(math.prod(sizes) * shape.dtype.itemsize)
            worker.stdin.write(struct.pack("<Q", place.begin))
            if misbehaves("wrong_result", self.edf, self.calls):
                sizes = [math.prod(sizes) // 2]
            outputs.append(CardTensor(place, shape.dtype, sizes))
        worker.stdin.flush()
        worker.stdout.read(8)
        if misbehaves("wrong_values", self.edf, self.calls):
            for output in outputs:
                output.place.bytes[:] = bytes(output.place.size)
        return outputs[1:] if misbehaves("few_outputs", self.edf, self.calls) else outputs


class Module:
    """ft.Runnable, ft.EdfModule in 2026.2."""

    def __init__(self, inner):
        self._inner = inner

    def to(self, device):
        self._inner.put_on(device)
        return self

    def _execute_edf(self, tensors, profiles=None):
        return self._inner.execute(tensors)


class ir:
    pass


if OLD:
    ir.Edf, EdfModule = Inner, Module
    Inner.deserialize = staticmethod(
        lambda data: (Inner.from_serialized if data.startswith(compiling.SERIALIZED) else Inner.from_bytes)(data))
    compiler, CompileModule = compiling.old_names(State)
else:
    ir.Runnable, Runnable = Inner, Module
    Inner.from_serialized_edf = staticmethod(Inner.from_bytes)
    Inner.deserialize = staticmethod(Inner.from_serialized)
    config, CompileModule = compiling.names(State)
