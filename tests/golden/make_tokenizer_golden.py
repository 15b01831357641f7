"""Writes tokenizer_tiny.json, tokenizer_cases.json and tokenizer_templates.json: a small byte-level BPE,
what the `tokenizers` library makes of texts with it, and what Jinja as set up by transformers makes of
templates. The C++ tests read these; run it again only to add cases:

    python tests/golden/make_tokenizer_golden.py        (tokenizers 0.23, transformers 5.24, jinja2 3.1)
"""
import copy
import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers.utils import chat_template_utils

HERE = Path(__file__).parent
DATA = HERE.parent.parent / "examples/data"

GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
BYTES = {**GPT2, "use_regex": False}
LLAMA3_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
                  r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


BOS_FIRST = {
    "type": "Sequence",
    "processors": [
        GPT2,
        {"type": "TemplateProcessing",
         "single": [{"SpecialToken": {"id": "<|begin|>", "type_id": 0}},
                    {"Sequence": {"id": "A", "type_id": 0}}],
         "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
         "special_tokens": {"<|begin|>": {"id": "<|begin|>", "ids": [0], "tokens": ["<|begin|>"]}}},
    ],
}

# How models differ: merge patches on tokenizer_tiny.json.
VARIANTS = {
    "smollm2": {},
    "gpt2": {"pre_tokenizer": GPT2},
    "llama3": {"pre_tokenizer": sequence(split(LLAMA3_PATTERN), BYTES),
               "post_processor": BOS_FIRST, "model": {"ignore_merges": True}},
    "qwen2": {"normalizer": {"type": "NFC"},
              "pre_tokenizer": sequence(split(LLAMA3_PATTERN.replace("{1,3}", "")), BYTES)},
    "bytes only": {"pre_tokenizer": BYTES},
}

TEXTS = [
    "", " ", "a", "Review: a stirring , funny film", "리뷰: 과대평가 된 영화.\n감정:", " 긍정",
    "don't DON'T we'll WE'LL I'm I'M they've it'd you're he's HE'S 'ſ 'ſa x'lly",
    "It 's ' s '' 'S'", "1 12 123 1234 12345678 3.14 1,000 ١٢٣ ½ ² Ⅷ 1a2b", "a1b22c333d4444",
    "  two  spaces   three    four", "tab\tand\t\ttabs \t mixed", "end with spaces   ", "   ",
    "line\nline\n\nline\n\n\nline", "crlf\r\ncrlf\r\n\r\nend", " \n  \n x", "\n\n", "x\n", "x \n y",
    "nbsp\u00a0nbsp\u3000wide\u2003em\u0085next\u2028line", "\x1c\x1d\x1e\x1f control \x00 null \x7f",
    "émigré naïve Å Å ﬁ ǅ ß ẞ", "e\u0301 e\u0327\u0301 e\u0301\u0327 a\u0300\u0301 \u0301alone",
    "각 각 \u1100\u1161\u11a8 \u1100\u1161 \uac00\u11a7 \uac00\u11a8", "한국어는 재미있다!! ㅋㅋㅋ ㅠㅠ",
    "😀 👨‍👩‍👧 🇰🇷 ☎️ 1️⃣", "中文，日本語。かな カナ が か\u3099", "Ελληνικά кириллица עברית العربية हिन्दी",
    "𝟗 𝒳 \U0001f600\U00020000 \U00010d40 \U0001ccf0 \U000323b0", "#!/usr/bin/env python\ndef f(x):\n\treturn x**2\n",
    "http://example.com/a?b=c&d=%20#e", "{\"key\": [1, 2, {\"x\": null}]}", "=====-----*****", "!!!\n\n???\r\n...",
    "a" * 40, "ab" * 30, "the" * 25, " " * 50 + "x", "\n" * 30, "!" * 45, "9" * 31, "Ġhello Ċ",
    "hello hello Hello", "<|begin|>", "<|end|>", "text<|end|>text", "<|begin|>user\nHi<|end|>\n<|begin|>",
    "<|begin|><|begin|>", "<|begi<|end|>n|>", " <|strip|> ", "a <|strip|>  b", "\n<|strip|>\t",
    "a  <|left|>  b", "a  <|right|>  b", "word wordy aword word. (word) 'word_ word1 \u00e9word word\u0301",
    "norm NORM é-token e\u0301-token", "xé-token", "<|begin|> \u0338 <|end|>\u0338",
    "<think>", "x<tool>y", "<tool_call>", "<tool", "日<|end|>本", "😀<|end|>😀",
]

# One construct each, or a few; messages are MESSAGES below.
SNIPPETS = r"""
{{ 1 + 2 * 3 - 4 }}
{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7 / 2 }} {{ 6 / 2 }}
{{ 1.5 + 1 }} {{ 1.0 }} {{ 0.1 + 0.2 }} {{ 100000000000000000.0 }} {{ 0.00001 }} {{ 2.5 // 1 }} {{ -2.5 % 2 }}
{{ 1 ~ 2 + 3 }}
{{ 'a' ~ 1 ~ none ~ true ~ [1, 'x'] ~ {'k': 'v'} ~ 1.5 ~ undefinedname }}
{{ 'a' 'b' "c" }}
{{ 'ab' * 3 }}{{ [1] * 2 }}{{ 'x' * -1 }}
{{ [1, 2] + [3] }} {{ 'a' + 'b' }}
{{ -3 }} {{ - 3 + 5 }} {{ 3 - -3 }} {{ -messages|length }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 'a' == 1 }}
{{ {'a': 1, 'b': 2} == {'b': 2, 'a': 1} }} {{ [1] == (1,) }} {{ none == false }} {{ undefinedname == undefinedname2 }}
{{ not true }} {{ not '' }} {{ not [] and 1 }} {{ 0 or 'x' }} {{ '' or 0 or none }} {{ 1 and 2 }}
{{ 'x' if true }}|{{ 'x' if false }}|{{ 'x' if false else 'y' }}|{{ 1 if 0 else 2 if 0 else 3 }}
{{ 'a' in 'abc' }} {{ 'd' not in 'abc' }} {{ 1 in [1, 2] }} {{ 'k' in {'k': 1} }} {{ 1 in {'k': 1} }} {{ 'a' in undefinedname }} {{ not 'a' in 'b' }}
{{ messages[0].role }} {{ messages[0]['role'] }} {{ messages[-1]['content'] }} {{ messages[99] }} {{ messages[0]['nothing'] }}
{{ messages[1:]|length }} {{ messages[:-1]|length }} {{ messages[::-1][0].role }} {{ messages[::2]|length }} {{ messages[5:1]|length }}
{{ 'abcdef'[1:3] }} {{ 'abcdef'[::-1] }} {{ 'abcdef'[-2:] }} {{ 'abcdef'[4:0:-2] }} {{ '한국어'[1] }} {{ '한국어'[:2] }} {{ 'abc'[7:] }}
{{ messages|length }} {{ messages|count }} {{ '한국어'|length }} {{ {}|length }} {{ undefinedname|length }}
{{ '  x  '|trim }}| {{ ' x\u3000\n'|trim }}|{{ 'xxaxx'|trim('x') }}|{{ '\x1cx\x1f'|trim }}|
{{ 'aBc'|upper }} {{ 'aBc'|lower }} {{ 'hello wORLD'|capitalize }} {{ "it's a (small)-world"|title }} {{ '한국'|upper }}
{{ "it's a (small)-world".title() }} {{ 'hELLO'.capitalize() }} {{ 'a1b'.upper() }}
{{ ['a', 'b']|join }} {{ ['a', 1, none]|join(', ') }} {{ messages|join('/', attribute='role') }} {{ 'abc'|join('-') }}
{{ messages|map(attribute='role')|list }} {{ ['a', 'b']|map('upper')|join }} {{ [1, 2]|map('string')|list }}
{{ messages|selectattr('role', 'equalto', 'user')|list|length }} {{ messages|selectattr('name', 'defined')|list|length }} {{ messages|selectattr('name')|list|length }}
{{ messages|rejectattr('role', 'eq', 'user')|map(attribute='role')|join(',') }} {{ [1, 2, 3, 4]|select('odd')|list }} {{ [0, 1, '']|select|list }} {{ [1, 2, 3]|reject('in', [2])|list }}
{{ [3, 1]|first }} {{ [3, 1]|last }} {{ 'abc'|first }} {{ []|first }}|{{ 'abc'|last }}
{{ undefinedname|default('d') }} {{ ''|default('d') }} {{ ''|default('d', true) }} {{ none|default('d') }} {{ x|d(1) }} {{ none|default('d', boolean=true) }}
{{ 'abc'|list }} {{ {'a': 1}|list }} {{ (1, 2)|list }}
{{ 'a-b-c'|replace('-', '+') }} {{ 'a-b-c'.replace('-', '', 1) }}
{{ [1, 2, 3]|reverse|list }} {{ 'abc'|reverse }}
{{ '12'|int }} {{ 'x'|int }} {{ 'x'|int(7) }} {{ 3.9|int }} {{ ' 5 '|int }}
{{ 5|string + '1' }}
{{ {'a': 1, 'b': [1, 2.5, none, true, 'é"\\\n<>&\u0001']}|tojson }}
{{ {'b': 1, 'a': []}|tojson(indent=2) }} {{ {'b': 1, 'a': {}}|tojson(indent=4, sort_keys=true) }} {{ []|tojson }} {{ 1.0|tojson }}
{{ messages[0]|tojson }}
{% for k, v in {'x': 1, 'y': 2}.items() %}{{ k }}={{ v }};{% endfor %}
{% for k, v in {'x': 1}|items %}{{ k }}={{ v }};{% endfor %}{% for k in {'x': 1, 'y': 2} %}{{ k }}{% endfor %}{{ {'a': 1}.keys()|list }}{{ {'a': 1}.values()|list }}
{{ {'a': 1}.get('a') }} {{ {'a': 1}.get('b') }} {{ {'a': 1}.get('b', 'z') }} {{ {'a': {'b': 2}}.a.b }}
{% for m in messages %}{{ loop.index }}/{{ loop.index0 }}/{{ loop.revindex }}/{{ loop.revindex0 }}/{{ loop.first }}/{{ loop.last }}/{{ loop.length }};{% endfor %}
{% for m in messages %}{{ loop.previtem.role if loop.previtem is defined else '-' }}>{{ loop.nextitem.role if not loop.last }};{% endfor %}
{% for m in messages if m.role != 'system' %}{{ loop.index }}{{ m.role }}{% else %}none{% endfor %}|{% for m in [] %}x{% else %}empty{% endfor %}
{% for i in range(3) %}{% for j in range(2) %}{{ i }}{{ j }}{{ loop.depth }} {% endfor %}{% endfor %}
{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}
{% for a, b in [(1, 2), (3, 4)] %}{{ a + b }} {% endfor %}{% for c in 'añ한' %}[{{ c }}]{% endfor %}
{{ range(3)|list }} {{ range(2, 8, 3)|list }} {{ range(3, 0, -1)|list }} {{ range(0)|list }}
{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}
{% set ns = namespace(x=1, found=false) %}{% for i in [1, 2] %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }} {{ ns.found }} {{ ns.nothing }}
{% set a, b = 1, 'z' %}{{ a }}{{ b }}{% set t = (1, 2) %}{{ t[1] }}
{% set text %}hello {{ 1 + 1 }}{% endset %}{{ text|upper }}
{% if false %}a{% elif 0 %}b{% elif 1 %}c{% else %}d{% endif %}{% if undefinedname %}x{% endif %}{% if messages %}y{% endif %}
{{ undefinedname is defined }} {{ undefinedname is undefined }} {{ none is none }} {{ none is defined }} {{ messages[0].name is defined }} {{ messages[0].name is not defined }}
{{ 'a' is string }} {{ {} is mapping }} {{ [] is iterable }} {{ 'a' is iterable }} {{ 1 is iterable }} {{ [] is sequence }} {{ 'a' is sequence }} {{ {} is sequence }} {{ none is sequence }} {{ undefinedname is iterable }}
{{ 1 is number }} {{ true is number }} {{ 1.5 is float }} {{ 1 is integer }} {{ true is integer }} {{ true is boolean }} {{ 1 is boolean }} {{ true is true }} {{ 1 is true }} {{ false is false }} {{ '1' is number }}
{{ 3 is odd }} {{ 4 is even }} {{ 3 is eq 3 }} {{ 3 is ne 4 }} {{ 2 is in [1, 2] }} {{ 3 is gt 2 }} {{ 3 is lt(2) }} {{ 'a' is string and 'b' is string or false }} {{ not 1 is string }}
{{ ' a b '.strip() }}|{{ ' a b '.lstrip() }}|{{ ' a b '.rstrip() }}|{{ 'xyaxy'.strip('yx') }}|{{ '\n a'.lstrip('\n') }}|{{ 'é한é'.strip('é') }}
{{ 'a,b,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a b c d'.split(none, 2) }} {{ ''.split() }} {{ ''.split(',') }} {{ 'a</think>b'.split('</think>')[-1] }}
{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith('bc') }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.find('c') }} {{ '한국어'.find('어') }} {{ 'abc'.find('z') }}
{{ '-'.join(['a', 'b']) }} {{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.py'.removesuffix('.py') }}
{{ bos_token }}{{ eos_token }}{{ pad_token }}|{{ tools is none }}{{ tools is defined }}{{ documents }}{{ add_generation_prompt }}
{{ raise_exception('no') }}
{{ strftime_now('%d %b %Y, %A %a %B %Y-%m-%d %H:%M:%S %%') }}
{% generation %}g{{ 1 }}{% set q = 1 %}{% endgeneration %}{{ q is defined }}
{{ "a\tb\n\x41\u00e9\U0001F600\101\q\\\"\'" }}
{{ 'it\'s' }} {{ ['it\'s', 'a"b', 'a\nb\\', '\u200b', 'é', '\x7f', "both'\""] }}
{{ [1, [2, {'a': none}], true, 1.0, 'x'] }} {{ {'a': 'b', 'c': [false]} }} {{ [] }} {{ {} }}
{{ (1, 2)|length }} {{ (1)|string }} {{ [(1, 2), (3, 4)][1][0] }} {{ [(1, 2)] == [[1, 2]] }}
{{ messages.0.role }} {{ [[1, 2], [3]][0][1] }} {{ {'a': [10, 20]}['a'][-1] }} {{ 'x'['upper']() }}
{{ ('a' ~ 'b')|upper }} {{ ('a' ~ 'b').upper() }} {{ 'a'|upper ~ 'b' }} {{ -1|string }}
{{ {'items': 5}['items'] }} {{ {'role': 'x'}.role|upper|lower|length }}
{{ [1, 2, 3][1:]|first + 1 }}
{{ undefinedname.x }}
{{ undefinedname + 1 }}
{{ none + 1 }}
{{ 'a' + 1 }}
{{ 1 < 'a' }}
{{ 1 / 0 }}
{{ 1 % 0 }}
{{ messages() }}
{{ undefinedname() }}
{{ none|length }}
{{ 5|length }}
{% for x in 5 %}{% endfor %}
{% for x in none %}{% endfor %}
{% for a, b in [1] %}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{% endfor %}
{{ none.x }}|{{ 'a'.nothing }}|{{ 1 .x }}
{{ none.x.y }}
{{ 'a'.strip(1) }}
{{ 1 in 'abc' }}
{{ 1 in none }}
{{ 'abc'[::0] }}
{{ 'abc' | nosuchfilter }}
{{ 'abc' is nosuchtest }}
{{ 1 + }}
{{ (1 }}
{{ [1, 2 }}
{% if true %}x
{% for x in [1] %}x
{% endif %}
{% nosuch %}
{{ 'abc }}
{% set x.y = 1 %}
{{ "a" if }}
{# open
{{ open
{% if %}x{% endif %}
{{ 1 }} }} {{ '}}' }} {{ {'a': {'b': 1}}['a']['b'] }}
{{ messages|map(attribute='content')|map('trim')|map('length')|list }}
{{ {'a': 1, **{}} }}
{{ [x for x in y] }}
{{ strftime_now() }}
""".strip("\n").split("\n")

# Where white space matters; kept apart since they span lines.
BLOCKS = [
    "a\n  {% if true %}\n  b\n  {% endif %}\nc\n",
    "a\n  {%- if true %}\n  b\n  {%- endif %}\nc",
    "a\n  {% if true -%}\n  b\n  {% endif -%}\nc",
    "a\n  {%+ if true %}\n  b\n  {%+ endif +%}\nc",
    "  {{ 1 }}  \n  {{- 2 }}  \n  {{ 3 -}}  \n x\n",
    "x {# c #}\ny\n  {# c #}\nz {#- c -#} w\n",
    "{% for m in messages %}\n    {%- if loop.first %}\nF\n    {%- endif %}\n{{ m.role }}: {{ m.content }}\n{% endfor %}\n",
    "{% for m in messages -%}\n{{ m.role }}\n{%- endfor %}\n\n\n",
    "\n\n{% if true %}x{% endif %}\n\n",
    "a {% if true %} b {% endif %} c\n",
    "{{ 'a\nb' }}\r\n{% if true %}\r\nx\r\n{% endif %}\r\n",
    "\t {% set x = 1 %}\t\n{{ x }}\u3000{%- if x %} y{% endif %}",
    "{% if true %}{% if true %}\n{% endif %}\n{% endif %}\nend",
    "{{ 1 }}\n{{ 2 }}\n\n{{ 3 }}",
    "{# a comment #}x{# two\nlines #}y {#- { % } } -#} z",
    "no tags at all\n", "", "\n", "{", "{{", "a { b } c {{ '{' }}",
    # Whole chats, written for these tests with the constructs that models' templates use.
    """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|header|>system<|/header|>\\n\\n" }}
{{- "Today: " + strftime_now("%d %b %Y") + "\\n\\n" }}
{{- system_message }}
{{- "<|end|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|header|>' + message['role'] + '<|/header|>\\n\\n' + message['content'] | trim + '<|end|>' }}
    {%- elif message.role == 'tool' %}
        {{- message.content | tojson }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|header|>assistant<|/header|>\\n\\n' }}
{%- endif %}
""",
    """{%- set ns = namespace(last=messages|length - 1, multi_step=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and message.content is string %}
        {%- set ns.multi_step = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or reasoning) %}
            {{- 'A<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content }}
        {%- else %}
            {{- 'A' + content }}
        {%- endif %}
    {%- else %}
        {{- message.role[:1]|upper + content }}
    {%- endif %}
{%- endfor %}
""",
]

MESSAGES = [
    {"role": "system", "content": " Be brief.\n"},
    {"role": "user", "content": "Hi 한국어 😀", "name": "kim"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello!"},
    {"role": "user", "content": "Bye"},
    {"role": "assistant", "content": "  See you. "},
]


def tiny_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True),
         pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    lines = []
    for name in ("messages", "text", "sst2-dev", "nsmc-sample"):
        for line in (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()[:200]:
            lines += [value for value in json.loads(line).values() if isinstance(value, str)]
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=650, special_tokens=["<|begin|>", "<|end|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    spec = json.loads(tokenizer.to_str())
    # A token that no merge makes, for ignore_merges; and a byte without a token, as SmolLM2 has.
    spec["model"]["vocab"]["hello"] = len(spec["model"]["vocab"])
    spec["model"]["vocab"]["\u0100\u0100"] = spec["model"]["vocab"].pop("\u0100")
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.add_tokens([
        AddedToken("<|strip|>", lstrip=True, rstrip=True, normalized=False, special=True),
        AddedToken("<|left|>", lstrip=True, normalized=False),
        AddedToken("<|right|>", rstrip=True, normalized=False),
        AddedToken("word", single_word=True, normalized=False),
        AddedToken("é-token", normalized=True),
        AddedToken("<think>", normalized=False), AddedToken("<tool>", normalized=False),
        AddedToken("<tool_call>", normalized=False),
    ])
    return json.loads(tokenizer.to_str())


def merge_patch(target, patch):
    for key, value in patch.items():
        if isinstance(value, dict) and isinstance(target.get(key), dict) and "type" not in value:
            merge_patch(target[key], value)
        else:
            target[key] = value
    return target


def tokenizer_cases(spec):
    variants = []
    for name, patch in VARIANTS.items():
        tokenizer = Tokenizer.from_str(json.dumps(merge_patch(copy.deepcopy(spec), patch)))
        cases = []
        for text in TEXTS:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            cases.append({
                "text": text, "ids": ids,
                "special": tokenizer.encode(text, add_special_tokens=True).ids,
                "decoded": tokenizer.decode(ids, skip_special_tokens=False),
                "plain": tokenizer.decode(ids, skip_special_tokens=True),
            })
        variants.append({"name": name, "patch": patch, "cases": cases})
    return variants


def template_cases():
    class FixedDate(chat_template_utils.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 7, 26)

    chat_template_utils.datetime = FixedDate
    cases = []
    for template in SNIPPETS + BLOCKS:
        for add_generation_prompt in (False, True):
            case = {"template": template, "add_generation_prompt": add_generation_prompt}
            try:
                compiled = chat_template_utils._compile_jinja_template(template)
                case["text"] = compiled.render(
                    messages=MESSAGES, tools=None, documents=None, bos_token="<|begin|>",
                    eos_token="<|end|>", add_generation_prompt=add_generation_prompt)
            except Exception as error:  # of Jinja or of Python, at any stage
                case["error"] = type(error).__name__
            cases.append(case)
            if "add_generation_prompt" not in template:
                break
    return {"date": "2026-07-26", "messages": MESSAGES, "cases": cases}


def write(name, value):
    # One case a line, so that a change shows as such.
    text = json.dumps(value, ensure_ascii=True)
    for mark in ('{"text": ', '{"name": ', '{"template": ', '{"id": '):
        text = text.replace(" " + mark, "\n" + mark)
    (HERE / name).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    tiny = tiny_tokenizer()
    write("tokenizer_tiny.json", tiny)
    write("tokenizer_cases.json", tokenizer_cases(tiny))
    write("tokenizer_templates.json", template_cases())
