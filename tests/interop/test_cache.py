"""The compile cache as the user meets it: what a changed option costs, and what it says."""
import pytest
from conftest import REPO, write_jsonl

TINY = REPO / "tests/golden/llama_tiny"
UNTIED = REPO / "tests/golden/llama_tiny_untied"
NOT_PASSED = 1
BASE = {"--model": TINY, "--backend": "cpu", "--seq-len": 32, "--loss-rows": 16,
        "--vocab-chunk": 256, "--recompute": "none", "--weight-dtype": "f32"}


@pytest.fixture(scope="module")
def warm(run, tmp_path_factory):
    """A cache that holds the parts of BASE."""
    cache = tmp_path_factory.mktemp("warm")
    run(*compile_command(cache))
    return cache


def compile_command(cache, **changes):
    options = {**BASE, **{f"--{name.replace('_', '-')}": value for name, value in changes.items()}}
    return ["compile", "--cache-dir", cache, *(x for pair in options.items() for x in pair)]


@pytest.mark.parametrize("changes, reason", [
    ({"rank": 8}, "rank changed: 8 (was 16)"),
    ({"seq_len": 48}, "seq-len changed: 48 (was 32)"),
    ({"batch": 2}, "batch changed: 2 (was 1)"),
    ({"targets": "all"}, "targets changed: q,k,v,o,gate,up,down (was q,v)"),
    ({"dtype": "bf16"}, "dtype changed: bf16 (was f32)"),
    ({"weight_dtype": "bf16"}, "weight-dtype changed: bf16 (was f32)"),
    ({"recompute": "layer"}, "recompute changed: layer (was none)"),
    ({"loss_rows": 8}, "loss-rows changed: 8 (was 16)"),
    ({"vocab_chunk": 128}, "vocab-chunk changed: 128 (was 256)"),
    ({"max_mm": 2}, "max-mm changed: 2 (was 0)"),
    ({"disable_pass": "simplify"}, "disable-pass changed: simplify (was none)"),
    ({"model": UNTIED}, "mlp_bias changed: 1 (was 0)"),
    ({"threads": 1}, "threads changed: 1 (was all)"),
    ({"rank": 8, "seq_len": 48}, "seq-len changed: 48 (was 32); rank changed: 8 (was 16)"),
])
def test_a_miss_names_the_changed_option(run, warm, changes, reason):
    done = run(*compile_command(warm, **changes), "--expect-cached", expect=NOT_PASSED)
    assert reason in done.stderr
    assert "part changed" not in done.stderr


@pytest.mark.parametrize("changes", [{"alpha": 64}, {"jobs": 2}, {"compile_timeout": 50}, {}])
def test_options_that_no_part_depends_on_compile_nothing(run, warm, changes):
    run(*compile_command(warm, **changes), "--expect-cached")


def test_parts_that_an_option_does_not_reach_are_kept(run, tmp_path):
    run(*compile_command(tmp_path))
    done = run(*compile_command(tmp_path, rank=8), "--log", "cache")
    assert "hit: ce_grad.0" in done.stderr
    assert "miss: layer_fwd.0: rank changed: 8 (was 16)" in done.stderr


def test_train_says_it_too(run, tmp_path):
    data = write_jsonl(tmp_path / "rows.jsonl", [{"input_ids": list(range(2, 20))}])
    command = ["train", "--model", TINY, "--data", data, "--out", tmp_path / "out", "--overwrite",
               "--backend", "openvino:CPU", "--seq-len", 32, "--steps", 1,
               "--cache-dir", tmp_path / "cache"]
    run(*command)
    done = run(*command, "--rank", 4, "--expect-cached", expect=NOT_PASSED)
    assert "rank changed: 4 (was 16)" in done.stderr


# ---- compile prepares what train needs ----------------------------------------------------------

def rows_of(lengths, trained):
    """Rows of tokens of which the last `trained` carry loss."""
    return [{"input_ids": list(range(2, 2 + n)),
             "labels": [-100] * (n - trained) + list(range(2 + n - trained, 2 + n))}
            for n in lengths]


@pytest.fixture
def job(tmp_path):
    """Options of a run whose data needs few rows with loss: 40 documents, 3 trained tokens each."""
    data = write_jsonl(tmp_path / "rows.jsonl", rows_of([20 + i % 30 for i in range(40)], 3))
    return ["--model", TINY, "--data", data, "--backend", "openvino:CPU", "--cache-dir",
            tmp_path / "cache"]


def train_from_cache(run, tmp_path, job, *more):
    run("train", *job, *more, "--out", tmp_path / "out", "--steps", 1, "--expect-cached")


@pytest.mark.parametrize("more", [
    (), ("--seq-len", 64, "--packing", "wrap"), ("--seq-len", 64, "--packing", "none", "--batch", 3),
    ("--train-on", "all", "--seed", 5), ("--weight-dtype", "bf16"), ("--recompute", "layer"),
    ("--seq-len", "24,48,64", "--packing", "none")])
def test_compile_builds_what_train_needs(run, tmp_path, job, more):
    built = run("compile", *job, *more)
    assert "all rows" not in built.stderr
    train_from_cache(run, tmp_path, job, *more)
    assert "built 0," in run("compile", *job, *more).stdout


def test_compile_builds_the_evaluation_of_held_out_rows(run, tmp_path, job):
    held_out = write_jsonl(tmp_path / "held_out.jsonl", rows_of([30, 31], 2))
    run("compile", *job)
    missing = run("train", *job, "--eval-data", held_out, "--out", tmp_path / "out", "--steps", 1,
                  "--expect-cached", expect=NOT_PASSED)
    assert "layer_eval" in missing.stderr
    run("compile", *job, "--eval-data", held_out)
    train_from_cache(run, tmp_path, job, "--eval-data", held_out)


def test_a_file_may_hold_lists(run, tmp_path, job):
    config = tmp_path / "run.yaml"
    config.write_text("seq-len: [32, 64]\ntargets: [q, v]\npacking: none\n")
    run("compile", *job, "--config", config)
    train_from_cache(run, tmp_path, job, "--seq-len", "64,32", "--targets", "q,v",
                     "--packing", "none")


def test_compile_takes_the_file_of_a_run(run, tmp_path, job):
    """config.yaml of a finished run, options that no part depends on included."""
    run("train", *job, "--lr", "1e-3", "--steps", 1, "--out", tmp_path / "first")
    assert "built 0," in run("compile", "--config", tmp_path / "first/config.yaml").stdout
    run("compile", *job, "--lr", "1e-3", "--steps", 1, "--expect-cached")


def test_compile_follows_the_adapter_that_training_starts_from(run, tmp_path, job):
    run("compile", *job, "--init-adapter", TINY / "adapter")
    train_from_cache(run, tmp_path, job, "--init-adapter", TINY / "adapter")


def test_compile_without_data_says_what_it_assumes(run, tmp_path):
    command = ["compile", "--model", TINY, "--backend", "cpu", "--cache-dir", tmp_path]
    assert "all rows" in run(*command).stderr
    assert "--data" in run(*command).stderr


def test_compile_needs_no_weights(run, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text((TINY / "config.json").read_text())
    run("compile", "--model", model, "--backend", "cpu", "--cache-dir", tmp_path / "cache")


def test_memory_limit_of_a_compile(run, tmp_path):
    command = [*compile_command(tmp_path, backend="openvino:CPU"), "--compile-memory"]
    refused = run(*command, 1, expect=NOT_PASSED)
    assert "out of memory" in refused.stderr
    run(*command, 4096)  # a wider limit gives a second chance
