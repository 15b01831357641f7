"""Log-probabilities of token sequences as Hugging Face transformers computes them.

stdin:  {"model": DIR, "adapter": DIR or null, "dtype": "bfloat16", "prompts": [[token id, ...], ...]}
stdout: {"log_probs": [[log p(token i + 1 | tokens 0..i), ...], ...], "engine": "transformers 5.24.0"},
        null for what is not finite
One line on stderr and exit status 3 when a package is missing. The program npu-lora carries this
file and runs it with `python -c`.
"""
import json
import math
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is ever downloaded
try:
    import torch
    import transformers
except ImportError as error:
    print(f"missing package: {error.name}", file=sys.stderr)
    sys.exit(3)


def load(request):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        request["model"], dtype=getattr(torch, request["dtype"]), attn_implementation="eager")
    engine = f"transformers {transformers.__version__}"
    if request["adapter"]:
        try:
            import peft
        except ImportError:
            print("missing package: peft", file=sys.stderr)
            sys.exit(3)
        model = peft.PeftModel.from_pretrained(model, request["adapter"])
        engine += f", peft {peft.__version__}"
    return model.eval(), engine


def log_probs(model, prompt):
    ids = torch.tensor([prompt])
    logits = model(input_ids=ids).logits[0, :-1].float()
    values = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0].tolist()
    return [value if math.isfinite(value) else None for value in values]


def main():
    request = json.load(sys.stdin)
    answer = sys.stdout
    sys.stdout = sys.stderr  # what libraries print must not end up in the answer
    model, engine = load(request)
    with torch.inference_mode():
        out = [log_probs(model, prompt) for prompt in request["prompts"]]
    json.dump({"log_probs": out, "engine": engine}, answer)


main()
