"""`npu-lora data --json` on SmolLM2's tokenizer; the `tokenizers` library is the judge, row by row."""
import json
import random

import pytest
from conftest import read_jsonl, write_jsonl
from tokenizers import Tokenizer

ALPHABETS = [(0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700),
             (0x900, 0xE00), (0x1100, 0x1200), (0x2000, 0x2070), (0x3000, 0x3100), (0x4E00, 0x5000),
             (0xAC00, 0xAE00), (0xFE00, 0xFE10), (0x1F300, 0x1F700), (0x10D40, 0x10D90)]
WORDS = ["the", " the", "don't", " I'LL", "'s", "1234567890", " 3.14", "٣", "½", "\r\n", "\n\n",
         "\n", "\t", "  ", "   ", " \n", "\u00a0", "한국어", " 감정:", "각", "e\u0301", "a\u0327\u0301", "😀",
         "👨‍👩‍👧", "🇰🇷", "=====", "!!!", "```py\n", "<|im_end|>", "<|im_start|>user\n", "<file_sep>",
         "\u200b", "\ufeff", "\x04", "\x1c", "\x85", "\0", "http://a.b/c?d=%20"]
LONG = ["a" * 5000, " " * 5000, "\n" * 3000, "한" * 3000, "0123456789" * 500, "!?" * 2000,
        "e" + "\u0301" * 2000, "x" + " " * 999 + "y", "ab" * 4000, "😀" * 1000]


def texts():
    random_ = random.Random(20)
    rows = list(LONG)
    while len(rows) < 1500:
        parts = []
        for _ in range(random_.randint(1, 30)):
            if random_.random() < 0.6:
                parts.append(random_.choice(WORDS))
            else:
                parts.append(chr(random_.randrange(*random_.choice(ALPHABETS))))
        rows.append("".join(parts))
    return rows


def data_rows(run, model, path, *options):
    done = run("data", path, "--model", model, "--json", "--seq-len", 100000, *options)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def reference(smollm2):
    return Tokenizer.from_file(str(smollm2 / "tokenizer.json"))


@pytest.fixture(scope="module")
def end_token(smollm2, reference):
    return reference.token_to_id(json.loads((smollm2 / "tokenizer_config.json").read_text())["eos_token"])


def test_texts_have_the_references_ids(run, smollm2, reference, end_token, tmp_path):
    expected = texts()
    rows = data_rows(run, smollm2, write_jsonl(tmp_path / "rows.jsonl", [{"text": t} for t in expected]))
    assert len(rows) == len(expected)
    for text, row in zip(expected, rows):
        ids = reference.encode(text, add_special_tokens=True).ids
        if not ids or ids[-1] != end_token:
            ids = ids + [end_token]
        assert row["input_ids"] == ids, text
        assert row["labels"] == ids
        assert not row["cut"]


@pytest.mark.parametrize("name", ["sst2-dev.jsonl", "sst2-train.jsonl", "nsmc-sample.jsonl"])
def test_example_pairs_have_the_references_ids(run, smollm2, reference, end_token, examples_data, name):
    rows = data_rows(run, smollm2, examples_data / name)
    pairs = read_jsonl(examples_data / name)
    assert len(rows) == len(pairs) > 0
    for pair, row in zip(pairs, rows):
        prompt = reference.encode(pair["prompt"], add_special_tokens=True).ids
        answer = reference.encode(pair["response"], add_special_tokens=False).ids + [end_token]
        assert row["input_ids"] == prompt + answer, pair
        assert row["labels"] == [-100] * len(prompt) + answer


def test_rows_are_cut_at_the_end(run, smollm2, reference, end_token, examples_data):
    done = run("data", examples_data / "sst2-dev.jsonl", "--model", smollm2, "--json", "--seq-len", 24)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    for pair, row in zip(read_jsonl(examples_data / "sst2-dev.jsonl"), rows, strict=True):
        prompt = reference.encode(pair["prompt"]).ids
        answer = reference.encode(pair["response"]).ids + [end_token]
        assert row["input_ids"] == (prompt + answer)[:24]
        assert row["cut"] == (len(prompt + answer) > 24)
        assert row["dropped"] == (len(prompt) >= 24)


def test_every_code_point(run, smollm2, reference, end_token, tmp_path):
    blocks = []
    for first in range(0, 0x110000, 256):
        block = "".join(chr(c) for c in range(first, first + 256) if not 0xD800 <= c < 0xE000)
        if block:
            blocks.append(block)
    rows = data_rows(run, smollm2, write_jsonl(tmp_path / "rows.jsonl", [{"text": b} for b in blocks]))
    for block, row in zip(blocks, rows, strict=True):
        assert row["input_ids"] == reference.encode(block).ids + [end_token], hex(ord(block[0]))
