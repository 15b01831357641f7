"""A resident worker that owns furiosa.torch's tensors and runs compiled parts on one RNGD card.

npu-lora carries this file and starts it as `python -c FILE` with a socket as its stdin; with the
argument "probe" it only says whether the packages and the driver's library can be loaded. What the
calls mean and how they look is said in src/backend/furiosa_protocol.h; this is its mirror image.

The names are those of furiosa-torch 2026.4, with those of 2026.2 and 2026.3 where they differ.
"""
import importlib.util
import mmap
import os
import socket
import struct
import sys
import threading

MAGIC = 0x3144455755504E21
HEADER = struct.Struct("<4Q")
OPEN, ALLOCATE, FREE, UPLOAD, DOWNLOAD, LOAD, UNLOAD, RUN = range(1, 9)
OK, REFUSED, NO_MEMORY, BUSY, FAILED, LOST, BAD_RESULT, MISSING, BEAT = range(9)
BEAT_SECONDS = 0.5
PES_OF_A_CARD = 8
DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "i32": "int32", "i64": "int64",
          "u8": "uint8", "pred": "bool"}


class Failure(Exception):
    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


def described(error):
    return f"{type(error).__name__}: {error}"


def out_of_memory(error):
    return isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__


class Fields:
    """Reads the fields of a call."""

    def __init__(self, body):
        self.body, self.at = body, 0

    def number(self):
        (value,) = struct.unpack_from("<Q", self.body, self.at)
        self.at += 8
        return value

    def text(self):
        length = self.number()
        self.at += length
        return self.body[self.at - length:self.at]

    def numbers(self, count):
        return tuple(self.number() for _ in range(count))

    def list(self, read):
        return [read() for _ in range(self.number())]

    def port(self):
        return self.text().decode(), tuple(self.list(self.number))


class Memory:
    """A buffer of the card: pieces that do not overlap, by (offset, bytes). A piece is a tensor on
    the card, or bytes that wait for their first use; what has no piece is zero. Pieces stand for
    windows, since whether the vendor's tensors may share memory is not known."""

    def __init__(self, card, size):
        self.card, self.size, self.pieces = card, size, {}

    def clear(self, offset, size):
        """Drops a range; what pieces have beside it stays."""
        for (at, length), value in list(self.pieces.items()):
            before, after = offset - at, at + length - offset - size
            if before >= length or after >= length:
                continue
            del self.pieces[at, length]
            if before > 0 or after > 0:
                data = self.card.to_bytes(value)
                if before > 0:
                    self.pieces[at, before] = data[:before]
                if after > 0:
                    self.pieces[offset + size, after] = data[length - after:]

    def put(self, offset, size, value):
        if (offset, size) not in self.pieces:
            self.clear(offset, size)
        self.pieces[offset, size] = value

    def read(self, offset, size):
        if (offset, size) in self.pieces:
            return self.card.to_bytes(self.pieces[offset, size])
        result = bytearray(size)
        for (at, length), value in self.pieces.items():
            first, last = max(at, offset), min(at + length, offset + size)
            if first < last:
                data = self.card.to_bytes(value)
                result[first - offset:last - offset] = data[first - at:last - at]
        return bytes(result)

    def tensor(self, offset, size, dtype, dims):
        """On the card, and there for the next call too."""
        value = self.pieces.get((offset, size))
        if value is None or isinstance(value, bytes) or value.dtype != dtype:
            value = self.card.to_card(self.read(offset, size), dtype, dims)
        elif tuple(value.shape) != dims:
            value = self.card.shaped(value, dims)
        self.put(offset, size, value)
        return value


class Part:
    """A loaded EDF: what to call, and for each port its dtype and shape as the EDF has them."""

    def __init__(self, module, execute, inputs, outputs):
        self.module, self.execute, self.inputs, self.outputs = module, execute, inputs, outputs


class Card:
    def __init__(self):
        self.memory, self.parts = {}, {}

    # ---- the vendor's names ----

    def open(self, card, pes, descriptor, size):
        self.shared = mmap.mmap(descriptor, size)
        try:
            import torch  # before the vendor's package
            import furiosa.torch as vendor
        except Exception as error:
            raise Failure(MISSING, described(error)) from error
        self.torch, self.vendor = torch, vendor
        if hasattr(vendor, "set_fusion"):
            vendor.set_fusion(pes)  # once, before any tensor
        self.device = self.device_name(card, pes)
        try:
            self.round_trip()
        except Exception as error:
            # A card that is another's shows as memory that cannot be had.
            raise Failure(BUSY, described(error)) from error
        version = getattr(vendor, "version", None) or getattr(vendor, "__version__", "")
        return f"furiosa.torch {version() if callable(version) else version}".encode()

    def device_name(self, card, pes):
        """furiosa:N, rngd:N before 2026.3. Devices are numbered over all cards by fused PEs."""
        names = list(map(str, getattr(self.vendor, "get_available_devices", list)()))
        kind = names[0].split(":")[0] if names else "furiosa"
        index = card * (PES_OF_A_CARD // pes)
        if kind not in ("furiosa", "rngd"):  # "npu:3:0-3", by chip
            chips = [name.split(":")[1] for name in names]
            index = chips.index(str(card)) if str(card) in chips else index
            kind = "rngd"
        return f"{kind}:{index}"

    def from_edf(self, edf, serialized):
        """The module on the card and what calls it; shapes where this release tells them. Serialized:
        not furiosa-tcc's file but what furiosa.torch itself made of a compiled graph."""
        ir = self.vendor.ir
        if hasattr(getattr(ir, "Runnable", None), "from_serialized_edf"):
            inner = ir.Runnable.deserialize(edf) if serialized else ir.Runnable.from_serialized_edf(edf)
            module = self.vendor.Runnable(inner).to(self.device)
            return module, inner.execute, inner.input_dram_shapes, inner.output_dram_shapes
        module = self.vendor.EdfModule(ir.Edf.deserialize(edf)).to(self.device)
        return module, module._execute_edf, None, None

    # ---- bytes and tensors ----

    def to_bytes(self, value):
        if isinstance(value, bytes):
            return value
        flat = value.cpu().contiguous().reshape(-1)
        return flat.view(self.torch.uint8).numpy().tobytes()

    def to_card(self, data, dtype, dims):
        if not data:
            return self.torch.zeros(dims, dtype=dtype).to(self.device)
        return self.torch.frombuffer(bytearray(data), dtype=dtype).reshape(dims).to(self.device)

    def shaped(self, tensor, dims):
        try:
            return tensor.view(dims)
        except Exception:  # a view that this release does not make
            return self.to_card(self.to_bytes(tensor), tensor.dtype, dims)

    def round_trip(self):
        data = bytes(range(16))
        there = self.to_card(data, self.torch.int32, (4,))
        if self.to_bytes(there) != data:
            raise RuntimeError("memory of the card gives other bytes than it got")

    # ---- the calls ----

    def allocate(self, name, size):
        self.memory[name] = Memory(self, size)

    def upload(self, name, offset, size, shared):
        self.memory[name].put(offset, size, bytes(self.shared[shared:shared + size]))

    def download(self, name, offset, size, shared):
        self.shared[shared:shared + size] = self.memory[name].read(offset, size)

    def load(self, name, edf, inputs, outputs, serialized):
        try:
            module, execute, input_shapes, output_shapes = self.from_edf(edf, serialized)
        except Exception as error:
            status = NO_MEMORY if out_of_memory(error) else REFUSED
            raise Failure(status, described(error)) from error
        self.parts[name] = Part(module, execute, self.ports("inputs", inputs, input_shapes),
                                self.ports("outputs", outputs, output_shapes))

    def ports(self, what, wanted, shapes):
        ports = [(getattr(self.torch, DTYPES[dtype]), dims) for dtype, dims in wanted]
        if shapes is None:
            return ports
        if len(shapes) != len(ports):
            raise Failure(BAD_RESULT, f"{len(shapes)} {what}, not {len(ports)}")
        result = []
        for (dtype, dims), shape in zip(ports, shapes):
            sizes = tuple(shape.host_sizes)
            if count(sizes) != count(dims) or shape.dtype != dtype:
                raise Failure(BAD_RESULT, f"{what} of {list(sizes)} {shape.dtype}, not "
                                          f"{list(dims)} {dtype}")
            result.append((dtype, sizes))  # split otherwise, but the same bytes
        return result

    def run(self, name, inputs, outputs):
        part = self.parts[name]
        try:
            tensors = [self.memory[buffer].tensor(offset, size, *port)
                       for (buffer, offset, size), port in zip(inputs, part.inputs)]
            results = part.execute(tensors)
        except Exception as error:
            if out_of_memory(error):
                raise Failure(NO_MEMORY, described(error)) from error
            raise Failure(FAILED if self.still_works() else LOST, described(error)) from error
        if len(results) != len(outputs):
            raise Failure(BAD_RESULT, f"{len(results)} outputs, not {len(outputs)}")
        for result, (dtype, dims), (buffer, offset, size) in zip(results, part.outputs, outputs):
            if count(result.shape) != count(dims) or result.dtype != dtype:
                raise Failure(BAD_RESULT, f"an output of {list(result.shape)} {result.dtype}, not "
                                          f"{list(dims)} {dtype}")
            self.memory[buffer].put(offset, size, result)

    def still_works(self):
        try:
            self.round_trip()
            return True
        except Exception:
            return False

    def call(self, op, f):
        """The body of a good answer."""
        if op == OPEN:
            return self.open(*f.numbers(4))
        if op == ALLOCATE:
            name, _, size = f.numbers(3)
            self.allocate(name, size)
        elif op == FREE:
            self.memory.pop(f.number(), None)
        elif op == UPLOAD:
            self.upload(*f.numbers(4))
        elif op == DOWNLOAD:
            self.download(*f.numbers(4))
        elif op == LOAD:
            self.load(f.number(), f.text(), f.list(f.port), f.list(f.port), f.number())
        elif op == UNLOAD:
            self.parts.pop(f.number(), None)
        elif op == RUN:
            window = lambda: f.numbers(3)
            self.run(f.number(), f.list(window), f.list(window))
        else:
            raise Failure(LOST, f"unknown call {op}")
        return b""


def count(dims):
    elements = 1
    for dim in dims:
        elements *= dim
    return elements


class Server:
    def __init__(self, connection):
        self.connection, self.sending = connection, threading.Lock()
        self.busy = False
        threading.Thread(target=self.beat, daemon=True).start()

    def beat(self):
        tick = threading.Event()
        while True:
            tick.wait(BEAT_SECONDS)
            if self.busy:
                try:
                    self.send(BEAT, 0, b"")
                except OSError:
                    os._exit(0)

    def send(self, status, number, body):
        with self.sending:
            self.connection.sendall(HEADER.pack(MAGIC, status, number, len(body)) + body)

    def receive(self, size):
        data = bytearray()
        while len(data) < size:
            chunk = self.connection.recv(size - len(data))
            if not chunk:
                os._exit(0)  # whoever started this is gone; the vendor's teardown may hang
            data += chunk
        return bytes(data)

    def serve(self, card):
        while True:
            magic, op, number, size = HEADER.unpack(self.receive(HEADER.size))
            if magic != MAGIC:
                return
            body = self.receive(size)
            self.busy = True
            try:
                status, answer = OK, card.call(op, Fields(body))
            except Failure as failure:
                status, answer = failure.status, str(failure).encode()
            except Exception as error:  # the card's, or a bug here: nothing can be relied on
                status, answer = NO_MEMORY if out_of_memory(error) else LOST, described(error).encode()
            self.busy = False
            self.send(status, number, answer)


def probe():
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("furiosa") is None \
            or importlib.util.find_spec("furiosa.torch") is None:
        sys.exit("torch or furiosa.torch is not installed here")
    import ctypes
    try:
        ctypes.CDLL("librenegade.so")
    except OSError as error:
        sys.exit(str(error))


if sys.argv[1:] == ["probe"]:
    probe()
else:
    channel = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    Server(channel).serve(Card())
