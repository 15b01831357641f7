"""What compare_peft.py compares: the works, the rivals, and the rows that both sides train on."""
import json
import random
from dataclasses import dataclass, field
from pathlib import Path

from models import LINEARS

SST2 = Path(__file__).resolve().parent.parent / "examples/data/sst2-train.jsonl"
RANK, ALPHA, LEARNING_RATE = 16, 32, 2e-4
IGNORED = -100
PADDED_ROWS = 8  # rows of a padded batch: what a Trainer user runs
PACKED_TOKENS = 512


@dataclass(frozen=True)
class Rival:
    """Another trainer of the same work."""
    worker: str  # script beside this file
    settings: dict = field(default_factory=dict)

    def loss_tolerance(self):
        """Relative, of the first step's loss against ours."""
        sixteen_bits = self.settings.get("weights") == "bf16" or self.settings.get("autocast")
        return 0.02 if sixteen_bits else 1e-3


PEFT = "peft_worker.py"
RIVALS = {
    "eager": Rival(PEFT),
    "compile": Rival(PEFT, {"compile": True}),
    "bf16": Rival(PEFT, {"weights": "bf16"}),
    "bf16-compile": Rival(PEFT, {"weights": "bf16", "compile": True}),
    "autocast": Rival(PEFT, {"autocast": True}),
    "autocast-compile": Rival(PEFT, {"autocast": True, "compile": True}),
    "checkpointing": Rival(PEFT, {"checkpointing": True}),
    "checkpointing-bf16": Rival(PEFT, {"checkpointing": True, "weights": "bf16"}),
    "packed": Rival(PEFT, {"packed_tokens": PACKED_TOKENS, "label_rows": True}),
    "trl": Rival("trl_worker.py", {"packed_tokens": PACKED_TOKENS}),
    "jax": Rival("jax_worker.py"),
}


@dataclass(frozen=True)
class Work:
    metric: str  # tok/s, rows/s: higher is better; GiB: peak resident memory, lower is better
    targets: tuple  # linears with an adapter
    seq_len: int
    warmup: int
    steps: int
    rivals: tuple  # of RIVALS: by default
    more_rivals: tuple = ()  # and those with --variants all, or by name
    batch: int = 1  # sequences a step
    geometry: str | None = None  # of models.GEOMETRIES, instead of --model
    ours: tuple = ()  # options of npu-lora train

    @property
    def reviews(self):
        """One pass over film reviews, instead of the same windows of tokens in every step."""
        return self.metric == "rows/s"

    def all_rivals(self):
        return self.rivals + self.more_rivals

    def rows_per_step(self):
        return PADDED_ROWS if self.reviews else self.batch


QV = ("q", "v")
SPEED = ("eager", "compile")
MORE_SPEED = ("bf16", "bf16-compile", "autocast", "autocast-compile", "jax")
SMALLEST = ("checkpointing", "checkpointing-bf16")
LOW_MEMORY = ("--recompute", "layer", "--weight-dtype", "bf16", "--prepack", "off")
WORKS = {
    "lora_qv_s128": Work("tok/s", QV, 128, 3, 30, SPEED, MORE_SPEED),
    "lora_qv_s512": Work("tok/s", QV, 512, 2, 12, SPEED, MORE_SPEED),
    "lora_qv_4x128": Work("tok/s", QV, 128, 2, 12, SPEED, MORE_SPEED, batch=4),
    "lora_all_s128": Work("tok/s", LINEARS, 128, 3, 30, SPEED, MORE_SPEED),
    "lora_all_s512": Work("tok/s", LINEARS, 512, 2, 12, SPEED, MORE_SPEED),
    "sst2": Work("rows/s", QV, PACKED_TOKENS, 0, 40, ("eager",)),
    "sst2_packed": Work("rows/s", QV, PACKED_TOKENS, 0, 40, ("packed",), ("trl",)),
    "rss_qv_s128": Work("GiB", QV, 128, 1, 2, ("eager",), ("jax",)),
    "rss_qv_s512": Work("GiB", QV, 512, 1, 2, ("eager",), ("jax",)),
    "rss_low_s128": Work("GiB", QV, 128, 1, 2, SMALLEST, ours=LOW_MEMORY),
    "rss_low_s512": Work("GiB", QV, 512, 1, 2, SMALLEST, ours=LOW_MEMORY),
    **{f"{geometry}_s{seq_len}": Work("tok/s", QV, seq_len, 2, steps, ("eager",),
                                      ("compile", "jax"), geometry=geometry)
       for geometry in ("llama1b_2l", "qwen600m_2l") for seq_len, steps in ((128, 20), (512, 8))},
}
DEFAULT_WORKS = "lora_qv_s128,lora_qv_s512,sst2,rss_qv_s128,rss_qv_s512,rss_low_s512"


def load_tokenizer(model):
    """encode(text) → ids without special tokens, and the end token's id."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    return (lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
            config["eos_token_id"])


def film_reviews():
    return [json.loads(line) for line in SST2.read_text(encoding="utf-8").splitlines()]


def review_rows(model, count):
    """Film reviews as token ids, with loss on the response and its end."""
    encode, end = load_tokenizer(model)
    rows = []
    for review in film_reviews()[:count]:
        prompt, response = encode(review["prompt"]), [*encode(review["response"]), end]
        rows.append({"input_ids": prompt + response, "labels": [IGNORED] * len(prompt) + response})
    return rows


def text_windows(model, seq_len, count):
    """Whole windows of a running text, with loss on every token."""
    encode, end = load_tokenizer(model)
    ids = []
    for review in film_reviews():
        if len(ids) >= seq_len * count:
            break
        ids += [*encode(review["prompt"] + review["response"]), end]
    return windows(ids, seq_len, count)


def random_windows(vocab, seq_len, count):
    """Windows of random tokens, for models of random weights."""
    draw = random.Random(0)
    return windows([draw.randrange(3, vocab) for _ in range(seq_len * count)], seq_len, count)


def windows(ids, seq_len, count):
    cut = [ids[i * seq_len:(i + 1) * seq_len] for i in range(count)]
    return [{"input_ids": window, "labels": window} for window in cut]


def write_rows(rows, path):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
