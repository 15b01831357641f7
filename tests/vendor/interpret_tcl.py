"""Runs TCL texts on the CPU interpreter of furiosa.torch, and says how far it is from the reference.

    interpret_tcl.py DIRECTORY      an interpreter with furiosa.torch and safetensors

DIRECTORY is what `tcl_texts … values` wrote: NAME.tc and, in NAME.safetensors, what each tensor of the
text must be. Every statement is run alone, as a function of the reference's values, so that nothing
accumulates; then the whole function. Prints a JSON object for each text.
"""
import json
import re
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

import furiosa.torch as vendor

BF16_STEP, NOISE = 2.0 ** -7, 2.0 ** -17  # neighbouring bf16 values; the order of f32 sums


class Text:
    """A function as the writer prints it: ports, sizes and statements by the name they define."""

    def __init__(self, text):
        self.text = text
        head, _, body = text.partition(":\n    assert ")
        self.sizes = {axis: int(size) for axis, size in re.findall(r"assert (\w+) == (\d+)", text)}
        ports = re.findall(r"(\w+): (\[[^\]]*\]/\w+)", head.partition(") -> ")[0])
        self.inputs = [name for name, _ in ports]
        self.declared = dict(ports)
        self.results = re.findall(r"\w+", body.rsplit("return ", 1)[1])
        self.statements = {}
        for name, port, rest in re.findall(r"^    (\w+): (\[[^\]]*\]/\w+) = (.*(?:\n     .*|\n    \))*)", body, re.M):
            self.declared[name] = port
            self.statements[name] = f"    {name}: {port} = {rest}\n"

    def shape(self, name):
        return [self.sizes[axis] for axis in self.axes(name)]

    def axes(self, name):
        return re.findall(r"\w+", self.declared[name].partition("]")[0])

    def reads(self, name):
        """What a statement reads, in the order of the text."""
        rest = self.statements[name].partition(" = ")[2]
        names = re.findall(r"read\((\w+)\)", rest)
        if not names:
            names = [word for word in re.findall(r"\w+", rest.partition("(")[2]) if word in self.declared]
        return list(dict.fromkeys(names))

    def alone(self, name, known):
        """A function of `known` values that runs one statement, and the names of its inputs."""
        body, inputs, waiting = [], [], [name]
        while waiting:
            wanted = waiting.pop(0)
            if wanted != name and wanted in known:
                inputs.append(wanted)
            else:
                body.insert(0, self.statements[wanted])
                waiting += [read for read in self.reads(wanted) if read not in waiting + inputs]
        inputs = list(dict.fromkeys(inputs))
        used = {axis for each in [*inputs, *re.findall(r"^    (\w+):", "".join(body), re.M)]
                for axis in self.axes(each)}
        # An axis has a size only where an input has it.
        given = {axis for each in inputs for axis in self.axes(each)}
        ports = [f"    {each}: {self.declared[each]}" for each in inputs]
        ports += [f"    z{i}: [{axis}]/bf16" for i, axis in enumerate(sorted(used - given))]
        asserts = "".join(f"    assert {axis} == {self.sizes[axis]}\n" for axis in sorted(used))
        text = ("#tactic_kernel_dsl\ndef part(\n" + ",\n".join(ports) + f"\n) -> {self.declared[name]}:\n"
                + asserts + "".join(body) + f"    return {name}\n")
        sizes = [torch.zeros(self.sizes[axis], dtype=torch.bfloat16) for axis in sorted(used - given)]
        return text, inputs, sizes


def run(text, tensors):
    results = vendor.TclModule(text)(*tensors)
    return [results] if isinstance(results, torch.Tensor) else list(results)


def in_steps(result, wanted):
    """The largest error, in bounds: one bf16 rounding where that is the type, and noise."""
    assert result.dtype == wanted.dtype and result.numel() == wanted.numel()
    result, bf16, wanted = result.double().reshape(-1), wanted.dtype == torch.bfloat16, wanted.double()
    bound = wanted.abs() * (BF16_STEP if bf16 else 0) + wanted.abs().max() * NOISE + 1e-30
    error = float(((result - wanted).abs() / bound).max())
    return error if error == error else float("inf")


def norm_error(result, wanted):
    wanted = wanted.double()
    return float((result.double().reshape(-1) - wanted).norm() / (wanted.norm() + 1e-30))


def check(path):
    text, values = Text(path.read_text()), load_file(path.with_suffix(".safetensors"))
    shaped = lambda names: [values[name].reshape(text.shape(name)) for name in names]
    report = {"name": path.stem, "statements": 0, "equal": 0, "elements": 0, "worst": 0.0, "worst_at": "", "whole": 0.0}
    for name in text.statements:
        if name not in values:
            continue  # a view of something else
        alone, inputs, sizes = text.alone(name, values)
        (result,) = run(alone, shaped(inputs) + sizes)
        error = in_steps(result, values[name])
        report["statements"] += 1
        report["equal"] += int((result.reshape(-1) == values[name]).sum())
        report["elements"] += result.numel()
        if error > report["worst"]:
            report.update(worst=error, worst_at=alone)
    results = run(text.text, shaped(text.inputs))
    assert len(results) == len(text.results)
    report["whole"] = max(norm_error(r, values[name]) for r, name in zip(results, text.results))
    return report


if __name__ == "__main__":
    torch.set_num_threads(1)
    for file in sorted(Path(sys.argv[1]).glob("*.tc")):
        print(json.dumps(check(file)), flush=True)
