"""Packing changes the arrangement only: transformers, document by document, is the judge."""
import make_golden
import numpy as np
import pytest
import torch
from conftest import read_jsonl, step_records, write_jsonl

SEQ_LEN = 32


def documents(vocab_size, lengths, seed=11):
    """Rows of random tokens whose first third carries no loss."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for n in lengths:
        ids = torch.randint(0, vocab_size, (n,), generator=generator).tolist()
        rows.append({"input_ids": ids, "labels": [make_golden.IGNORED] * (n // 3) + ids[n // 3:]})
    return rows


def judge(tiny, pieces):
    """(mean loss, gradient norm) over all trained tokens, each piece seen alone."""
    model = make_golden.load(tiny, tiny / "adapter", trainable=True)
    total, tokens = 0.0, 0
    for piece in pieces:
        labels = torch.tensor([piece["labels"]])
        count = int((labels[:, 1:] != make_golden.IGNORED).sum())
        if count == 0:
            continue
        total = total + model(input_ids=torch.tensor([piece["input_ids"]]), labels=labels).loss * count
        tokens += count
    loss = total / tokens
    loss.backward()
    squares = sum(float(p.grad.double().square().sum())
                  for p in make_golden.lora_parameters(model).values())
    return loss.item(), squares**0.5, tokens


def one_step_of_an_epoch(run, tiny, rows, tmp_path, packing, sequences, *more,
                         seq_len=SEQ_LEN):
    """All rows in one optimizer step whose rate is zero."""
    data = write_jsonl(tmp_path / "rows.jsonl", rows)
    log = tmp_path / f"{packing}.jsonl"
    run("train", "--model", tiny, "--data", data, "--out", tmp_path / packing, "--backend", "cpu",
        "--seq-len", seq_len, "--packing", packing, "--accum", sequences, "--steps", 1,
        "--lr", 0, "--init-adapter", tiny / "adapter", "--log-file", log, *more)
    (step,) = step_records(log)
    return step


def vocabulary(tiny):
    return 512 if tiny.name == "llama_tiny" else 320


@pytest.mark.parametrize("packing, sequences", [("best-fit", 3), ("none", 7)])
def test_documents_do_not_see_each_other(run, tiny, tmp_path, packing, sequences):
    # Best fit of these lengths is three full sequences: 32, 20 + 12, 16 + 9 + 4 + 3.
    rows = documents(vocabulary(tiny), [4, 20, 16, 32, 12, 9, 3])
    step = one_step_of_an_epoch(run, tiny, rows, tmp_path, packing, sequences)
    loss, norm, tokens = judge(tiny, rows)
    assert step["trained_tokens"] == tokens
    assert step["loss"] == pytest.approx(loss, rel=1e-5)
    assert step["grad_norm"] == pytest.approx(norm, rel=1e-4)


@pytest.mark.parametrize("packing, batch, micro_batches", [
    ("none", 1, 7), ("none", 2, 4), ("best-fit", 1, 4)])
def test_lengths_of_sequences_change_no_gradient(run, tiny, tmp_path, packing, batch, micro_batches):
    # Best fit fills 32, 21 + 11, 17 + 9 + 4 and a last one with 3 tokens.
    rows = documents(vocabulary(tiny), [4, 21, 17, 32, 11, 9, 3])
    step = one_step_of_an_epoch(run, tiny, rows, tmp_path, packing, micro_batches,
                                "--batch", batch, seq_len="8,16,32")
    loss, norm, tokens = judge(tiny, rows)
    assert step["trained_tokens"] == tokens
    assert step["loss"] == pytest.approx(loss, rel=1e-5)
    assert step["grad_norm"] == pytest.approx(norm, rel=1e-4)
    (start,) = [r for r in read_jsonl(tmp_path / f"{packing}.jsonl") if r.get("event") == "start"]
    used = {b["seq_len"]: b["sequences"] for b in start["buckets"]}
    assert used == {("none", 1): {32: 3, 16: 2, 8: 2}, ("none", 2): {32: 4, 16: 2, 8: 1},
                    ("best-fit", 1): {32: 3, 16: 0, 8: 1}}[packing, batch]


def test_wrap_cuts_a_running_stream(run, tiny, tmp_path):
    # Equal documents, so that the shuffle does not matter: 8 × 20 tokens = 5 sequences of 32.
    (row,) = documents(vocabulary(tiny), [20])
    step = one_step_of_an_epoch(run, tiny, [row] * 8, tmp_path, "wrap", 5)
    pieces, at = [], 0
    while at < 8 * 20:
        end = min((at // 20 + 1) * 20, (at // SEQ_LEN + 1) * SEQ_LEN)
        first = at % 20
        pieces.append({key: row[key][first:first + end - at] for key in row})
        at = end
    loss, norm, tokens = judge(tiny, pieces)
    assert step["trained_tokens"] == tokens
    assert step["loss"] == pytest.approx(loss, rel=1e-5)
    assert step["grad_norm"] == pytest.approx(norm, rel=1e-4)


def test_padding_is_told_from_the_end_token(run, tiny, tmp_path):
    """Rows full of the padding id (the end token, 1) train as any other."""
    rows = [{"input_ids": [5, 1, 1, 7, 1], "labels": [5, 1, 1, 7, 1]},
            {"input_ids": [1, 1, 9], "labels": [1, 1, 9]}]
    step = one_step_of_an_epoch(run, tiny, rows, tmp_path, "none", 2)
    loss, norm, tokens = judge(tiny, rows)
    assert step["trained_tokens"] == tokens == 6
    assert step["loss"] == pytest.approx(loss, rel=1e-5)
    assert step["grad_norm"] == pytest.approx(norm, rel=1e-4)


def test_order_of_an_epoch_is_seeded(run, tiny, tmp_path):
    rows = documents(vocabulary(tiny), [32] * 6)
    data = write_jsonl(tmp_path / "rows.jsonl", rows)

    def losses(seed, name):
        log = tmp_path / f"{name}.jsonl"
        run("train", "--model", tiny, "--data", data, "--out", tmp_path / name, "--backend", "cpu",
            "--seq-len", SEQ_LEN, "--steps", 12, "--lr", 0, "--seed", seed, "--log-file", log)
        return [s["loss"] for s in step_records(log)]

    one, again, other = losses(1, "a"), losses(1, "b"), losses(2, "c")
    assert one == again
    # Each epoch holds each row once; the order differs between epochs and between seeds.
    np.testing.assert_allclose(sorted(one[:6]), sorted(one[6:]), rtol=1e-6)
    assert one[:6] != one[6:] and one[:6] != other[:6]


def test_wrap_keeps_rows_that_are_longer_than_a_sequence(run, tiny, tmp_path):
    (row,) = documents(vocabulary(tiny), [3 * SEQ_LEN])
    step = one_step_of_an_epoch(run, tiny, [row], tmp_path, "wrap", 3)
    pieces = [{key: row[key][at:at + SEQ_LEN] for key in row}
              for at in range(0, 3 * SEQ_LEN, SEQ_LEN)]
    loss, _, tokens = judge(tiny, pieces)
    assert step["trained_tokens"] == tokens
    assert step["loss"] == pytest.approx(loss, rel=1e-5)
