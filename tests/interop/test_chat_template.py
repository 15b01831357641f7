"""Chat rows of `npu-lora data --json`; transformers' apply_chat_template is the judge of text, ids and of
what an assistant said."""
import json
import random
import shutil

import pytest
from conftest import read_jsonl, write_jsonl
from transformers import AutoTokenizer

CONTENT = ["Hello", " there", "한국어 문장입니다.", "😀👨‍👩‍👧", "e\u0301a\u0327\u0301", "\r\n", "\n\n", "12345", "  ",
           "   indented", "\t", "a" * 60, "<|im_end|>", "<|im_start|>user", "```py\nx = 1\n```", "각", "don't",
           "\n", "<think>\nhm\n</think>\n\n", "|", "{{ x }}", "{% if %}", "'\"\\"]

# Templates of this project's own with what models' templates use, and the same with the assistant's part
# marked, which transformers turns into a mask.
HEADED = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<file_sep>system\\n" + "Today: " + strftime_now("%d %b %Y") + "\\n" + system + eos_token }}
{%- for message in messages %}
    {{- '<file_sep>' ~ message.role ~ '\\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{- message.content|trim + eos_token }}{%- endgeneration %}
    {%- else %}
        {{- message.content|trim + eos_token }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<file_sep>assistant\\n' }}
{%- endif %}
"""
CHATML_MARKED = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\
{{ '<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\\n' }}\
{% endif %}{{ '<|im_start|>' + message['role'] + '\\n' }}{% if message['role'] == 'assistant' %}\
{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}{% else %}\
{{ message['content'] + '<|im_end|>' + '\\n' }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def conversations(examples_data):
    random_ = random.Random(30)

    def content():
        return "".join(random_.choice(CONTENT) for _ in range(random_.randint(1, 10)))

    rows = [row["messages"] for row in read_jsonl(examples_data / "messages.jsonl")]
    while len(rows) < 1500:
        messages = []
        if random_.random() < 0.4:
            messages.append({"role": "system", "content": content()})
        for _ in range(random_.randint(1, 3)):
            messages += [{"role": "user", "content": content()},
                         {"role": "assistant", "content": content()}]
        if random_.random() < 0.2:
            messages.append({"role": "user", "content": content()})
        rows.append(messages)
    return rows


def data_rows(run, model, path, *options):
    done = run("data", path, "--model", model, "--json", "--seq-len", 100000, *options)
    return [json.loads(line) for line in done.stdout.splitlines()]


def with_template(model, template, folder):
    """A copy of a model's small files, with another chat template."""
    for file in model.iterdir():
        if not file.name.startswith("model") and file.suffix != ".safetensors" and file.is_file():
            shutil.copy(file, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    return folder


def expected_labels(tokenizer, messages, marked, ids):
    """The judge's mask, less tokens that begin in the role header: white space of the two can be one
    token, and a header is never trained."""
    encoded = tokenizer.apply_chat_template(messages, chat_template=marked, tokenize=True,
                                            return_dict=True, return_assistant_tokens_mask=True)
    assert encoded["input_ids"] == ids
    text = tokenizer.apply_chat_template(messages, chat_template=marked, tokenize=False)
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    labels, inside = [], False
    for token, mask, (begin, _) in zip(ids, encoded["assistant_masks"], offsets, strict=True):
        starts_in_header = mask and not inside and text[begin] == "\n" and text[:begin].endswith("assistant")
        labels.append(token if mask and not starts_in_header else -100)
        inside = bool(mask)
    return labels


def test_smollm2_chats(run, smollm2, examples_data, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    chats = conversations(examples_data)
    rows = data_rows(run, smollm2, write_jsonl(tmp_path / "chats.jsonl", [{"messages": m} for m in chats]))
    for messages, row in zip(chats, rows, strict=True):
        ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
        assert row["input_ids"] == list(ids), messages
        assert row["labels"] == expected_labels(tokenizer, messages, CHATML_MARKED, row["input_ids"]), messages


def test_train_on_all(run, smollm2, examples_data):
    for row in data_rows(run, smollm2, examples_data / "messages.jsonl", "--train-on", "all"):
        assert row["labels"] == row["input_ids"]


def test_template_with_a_date_and_its_own_bos(run, smollm2, examples_data, tmp_path, monkeypatch):
    from transformers.utils import chat_template_utils

    class FixedDate(chat_template_utils.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2024, 7, 26)

    monkeypatch.setattr(chat_template_utils, "datetime", FixedDate)
    model = with_template(smollm2, HEADED, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(model)
    chats = conversations(examples_data)[:300]
    rows = data_rows(run, model, write_jsonl(tmp_path / "chats.jsonl", [{"messages": m} for m in chats]),
                     "--date", "2024-07-26")
    for messages, row in zip(chats, rows, strict=True):
        ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
        assert row["input_ids"] == list(ids), messages
        assert row["labels"] == expected_labels(tokenizer, messages, HEADED, row["input_ids"]), messages


@pytest.mark.parametrize("template, says", [
    ("a\n{% macro f() %}{% endmacro %}", ":2: this statement is not supported"),
    ("{{ messages | sort }}", ":1: this filter is not supported"),
    ("{{ raise_exception('only one turn') }}", "only one turn"),
    ("{{ messages[0].content.encode('utf8') }}", "the method `encode` of a string is not supported"),
])
def test_what_is_not_supported_names_its_line(run, smollm2, examples_data, tmp_path, template, says):
    model = with_template(smollm2, template, tmp_path)
    done = run("data", examples_data / "messages.jsonl", "--model", model, "--json", expect=42)
    assert says in done.stderr
