"""`check` and `diagnose` through the program: reports that other programs read, and cases that a
vendor can run. Faults are planted in test_faults.py."""
import json
import re
import shutil
from html.parser import HTMLParser

import numpy
import onnx
import onnxruntime
import pytest
from conftest import REPO
from safetensors.numpy import load_file

TINY = REPO / "tests/golden/llama_tiny"
GRADIENTS = 8  # two layers, q and v, A and B


def check(run, *more, model=TINY, expect=0):
    done = run("check", "--model", model, "--seq-len", 32, "--json", *more, expect=expect)
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def geometry(tmp_path_factory):
    """A directory that holds nothing but a config.json."""
    folder = tmp_path_factory.mktemp("geometry")
    shutil.copy(TINY / "config.json", folder)
    return folder


def test_json_keys(run):
    report = check(run, "--backend", "openvino:CPU", "--blame", "always")
    assert report["pass"] is True
    assert report["backend"] == "openvino:CPU" and report["reference"] == "cpu"
    for key in ("loss", "reference_loss", "loss_rel", "worst_grad_rel", "min_cosine"):
        assert isinstance(report[key], float), key
        assert isinstance(report["fp32"][key], float), key
    assert len(report["grads"]) == GRADIENTS
    rel = [g["rel"] for g in report["grads"]]
    assert rel == sorted(rel, reverse=True)
    assert report["worst_grad_rel"] == rel[0]
    assert {"name", "rel", "cosine"} <= set(report["grads"][0])
    groups = {"fwd", "bwd", "rms", "rms-bwd", "ce-grad"}
    assert {p["group"] for p in report["placement"]} == groups
    assert {b["group"] for b in report["blame"]} == groups
    assert {p["part"] for p in report["parts"]} >= {"layer_fwd.0", "layer_bwd.0", "ce_grad.0"}
    assert all(p["pass"] for p in report["parts"])
    assert report["failures"] == []


def test_a_group_on_the_host_is_shown(run):
    report = check(run, "--backend", "openvino:CPU", "--host-parts", "fwd,rms")
    placement = {p["group"]: p for p in report["placement"]}
    assert placement["fwd"]["host_parts"] == placement["fwd"]["parts"]
    assert placement["fwd"]["host_reasons"] == ["--host-parts"]
    assert placement["bwd"]["host_parts"] == 0
    assert "layer_fwd.0" not in {p["part"] for p in report["parts"]}


def test_seeds_vary_the_inputs_and_the_worst_is_judged(run):
    report = check(run, "--backend", "openvino:CPU", "--seeds", 3, "--seed", 5)
    assert [s["seed"] for s in report["seeds"]] == [5, 6, 7]
    assert len({s["loss"] for s in report["seeds"]}) == 3
    assert report["worst_grad_rel"] == max(s["worst_grad_rel"] for s in report["seeds"])
    assert report["loss_rel"] == max(s["loss_rel"] for s in report["seeds"])
    again = check(run, "--backend", "openvino:CPU", "--seed", 6)
    assert again["reference_loss"] == report["seeds"][1]["reference_loss"]


def test_a_config_alone_is_enough(run, geometry):
    first = check(run, "--backend", "cpu", "--random-weights", 1, "--layers", 1, model=geometry)
    other = check(run, "--backend", "cpu", "--random-weights", 2, "--layers", 1, model=geometry)
    assert first["pass"] and other["pass"]
    assert len(first["grads"]) == GRADIENTS / 2
    # What an untrained model gives: every token about equally likely.
    vocab = json.loads((geometry / "config.json").read_text())["vocab_size"]
    assert abs(first["reference_loss"] - numpy.log(vocab)) < 0.2
    assert first["reference_loss"] != other["reference_loss"]
    run("check", "--model", geometry, "--backend", "cpu", expect=42)


def test_text_shows_as_many_rows_as_asked(run):
    out = run("check", "--model", TINY, "--backend", "cpu", "--seq-len", 32, "--top", 2).stdout
    assert out.count("model.layers.") == 4  # two against the reference, two against f32
    assert out.rstrip().endswith("pass")


class Page(HTMLParser):
    VOID = {"meta", "link", "br", "img"}

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.links, self.words = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_page_stands_alone_and_escapes(run, tmp_path):
    model = tmp_path / "<script>alert('&')"
    shutil.copytree(TINY, model)
    html = tmp_path / "check.html"
    report = check(run, "--backend", "openvino:CPU", "--html", html, "--blame", "always",
                   "--seeds", 2, model=model)
    text = html.read_text(encoding="utf-8")
    page = Page(text)
    assert "script" not in page.tags and page.links == []
    assert not re.search(r"https?:|@import|url\(", text)
    assert str(model) in "".join(page.words)
    for gradient in report["grads"]:
        assert gradient["name"] in page.words
    for group in ("fwd", "bwd", "rms", "rms-bwd", "ce-grad"):
        assert group in page.words


def test_compare_parts(run):
    done = run("diagnose", "compare-parts", "--model", TINY, "--backend", "openvino:CPU",
               "--seq-len", 32, "--json")
    report = json.loads(done.stdout)
    assert report["pass"] and report["judge"] == "cpu:reference" and report["failed"] == []
    parts = {p["part"]: p for p in report["parts"]}
    assert parts["layer_fwd.0"]["calls"] == 2
    outputs = {o["name"] for o in parts["layer_bwd.0"]["outputs"]}
    assert {"d_x", "d_self_attn.q_proj.lora_A"} <= outputs
    # A limit that no f32 device keeps: the worst part is named.
    done = run("diagnose", "compare-parts", "--model", TINY, "--backend", "openvino:CPU",
               "--seq-len", 32, "--max-error", "1e-12", expect=1)
    assert "FAIL: layer_fwd.0: " in done.stdout


def test_compare_nothing_is_no_pass(run):
    done = run("diagnose", "compare-parts", "--model", TINY, "--backend", "openvino:CPU",
               "--seq-len", 32, "--host-parts", "fwd,bwd,rms,rms-bwd,ce-grad", expect=1)
    assert "no part ran on the device" in done.stdout


@pytest.mark.parametrize("part", ["layer_fwd.0", "layer_bwd.0", "final_norm.0", "ce_grad.0"])
def test_repro_runs_in_onnxruntime(run, tmp_path, part):
    out = tmp_path / "case"
    done = run("diagnose", "repro", part, "--model", TINY, "--backend", "openvino:CPU",
               "--seq-len", 32, "--out", out, "--json")
    assert json.loads(done.stdout)["device"] == "ran"
    onnx.checker.check_model(str(out / "model.onnx"), full_check=True)
    session = onnxruntime.InferenceSession(str(out / "model.onnx"),
                                           providers=["CPUExecutionProvider"])
    expected, observed = (load_file(out / f"{name}.safetensors") for name in ("expected", "observed"))
    results = session.run(None, load_file(out / "inputs.safetensors"))
    assert [o.name for o in session.get_outputs()] == sorted(expected)
    for meta, result in zip(session.get_outputs(), results):
        for other in (result, observed[meta.name]):
            error = numpy.linalg.norm(other - expected[meta.name])
            assert error <= 2e-5 * numpy.linalg.norm(expected[meta.name]), meta.name
    text = (out / "README.md").read_text()
    assert part in text and "openvino" in text and "npu-lora diagnose repro" in text
    graph = run("ir", out / "graph.ir").stdout
    assert graph == (out / "graph.ir").read_text()


def test_repro_of_a_part_that_no_step_calls(run, tmp_path):
    """One layer has no backward that hands dx on."""
    done = run("diagnose", "repro", "layer_bwd.0", "--layers", 1, "--model", TINY, "--backend", "cpu",
               "--seq-len", 32, "--out", tmp_path / "case", expect=2)
    assert "layer_bwd.0" in done.stderr.splitlines()[-1]


def test_repro_overwrites_only_its_own(run, tmp_path):
    command = ["diagnose", "repro", "final_norm.0", "--model", TINY, "--backend", "cpu",
               "--seq-len", 32, "--out"]
    run(*command, tmp_path / "case")
    run(*command, tmp_path / "case", expect=2)
    run(*command, tmp_path / "case", "--overwrite")
    (tmp_path / "case/notes.txt").write_text("mine")
    run(*command, tmp_path / "case", "--overwrite", expect=2)
    assert (tmp_path / "case/notes.txt").exists()


def test_first_failing_node_of_an_unsupported_dtype(run, geometry, tmp_path):
    """OpenVINO's CPU plugin has no bf16 matmul; the program knows, and says so with two nodes."""
    out = tmp_path / "cases"
    done = run("diagnose", "first-failing-node", "--model", geometry, "--backend", "openvino:CPU",
               "--seq-len", 32, "--dtype", "bf16", "--out", out, "--json", expect=1)
    failures = {f["part"]: f for f in json.loads(done.stdout)["failures"]}
    assert failures["ce_grad.0"]["op"] == "matmul"
    assert failures["ce_grad.0"]["smallest"]["nodes"] == 1
    assert (out / "ce_grad.0/model.onnx").exists()
    done = run("diagnose", "first-failing-node", "--model", geometry, "--backend", "openvino:CPU",
               "--seq-len", 32, "--json")
    assert json.loads(done.stdout) | {"compiler": ""} == {
        "pass": True, "backend": "openvino:CPU", "compiler": "", "parts": 8, "failures": [],
        "uncut": []}


@pytest.mark.parametrize("words, piece", [
    ([], "first-failing-node"),
    (["find"], "first-failing-node"),
    (["repro"], "one part"),
    (["compare-parts", "x"], "no further argument"),
    (["repro", "layer_fwd.99", "--out", "out"], "layer_fwd.0"),
])
def test_usage(run, words, piece, tmp_path):
    done = run("diagnose", *words, "--model", TINY, "--backend", "cpu", "--seq-len", 32, expect=2)
    assert piece in done.stderr.splitlines()[-1]


def test_help_names_the_actions(run):
    text = run("diagnose", "--help").stdout
    for action in ("first-failing-node", "compare-parts", "repro PART"):
        assert action in text


def test_sums_of_16_bits_do_not_reach_the_loss(run, tmp_path):
    """The head on a device whose exponentials and sums are rounded with a bias."""
    profile = tmp_path / "sums.yaml"
    biased = "{result: {format: bf16, mode: away, bias: 0.9}}"
    profile.write_text(f"name: sums\nrounding:\n  reduce: {biased}\n  transcendental: {biased}\n")
    for chunk in (96, 4096):  # with a smaller last chunk; in one
        report = check(run, "--backend", f"sim:{profile}", "--host-parts", "fwd,bwd,rms,rms-bwd",
                       "--vocab-chunk", chunk, "--blame", "never")
        assert {p["group"] for p in report["placement"] if not p["host_parts"]} == {"ce-grad"}
        assert report["loss_rel"] < 1e-6
        assert report["worst_grad_rel"] > 1e-5  # the device's rounding is there
