#!/usr/bin/env python3
"""Writes the tables of docs/performance.md from the JSON of compare_peft.py and figures.py.

    report.py [--into FILE] RESULT.json...

Prints them, or puts them between the two marks in FILE.
"""
import argparse
import json
from pathlib import Path

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
PHASES = ("matmul", "device_other", "device", "host_parts", "host_other", "transfer", "optimizer",
          "data")


def table(heads, rows):
    if not rows:
        return ""
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]) + "\n"


def digits(value):
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def percent(value):
    return "" if value is None else f"{100 * value:.1f} %"


def others(share_or_shares):
    """The worst share of the machine that other processes took."""
    shares = share_or_shares if isinstance(share_or_shares, list) else [share_or_shares]
    return percent(max((share for share in shares if share is not None), default=None))


def machine_text(result):
    facts = result["machine"]
    quick = " **Measured with --quick: the figures mean nothing.**" if result["quick"] else ""
    return (f"{facts['cpu']}, {', '.join(facts['isa'])}; {facts['cores']} cores, "
            f"{facts['memory_gib']} GiB; {result['threads']} threads, backend "
            f"{result['backend']}.{quick}\n")


def peak_tables(result):
    before, after = result["peaks"]
    rows = []
    for key, name in (("sgemm_gflops", "f32"), ("bf16_gflops", "bf16")):
        for library in before[key]:
            for size in before[key][library]:
                rows.append((f"{name}, {size}³, {library}, GFLOP/s",
                             digits(before[key][library][size]),
                             digits(after[key][library][size])))
    for dtype, shapes in before["shapes_gflops"].items():
        for shape in shapes:
            rows.append((f"{dtype}, {shape}, torch, GFLOP/s", digits(shapes[shape]),
                         digits(after["shapes_gflops"][dtype][shape])))
    for kind in before["memory_gib_s"]:
        rows.append((f"memory, {kind}, GiB/s", digits(before["memory_gib_s"][kind]),
                     digits(after["memory_gib_s"][kind])))
    return table(("best of the machine", "before the run", "after it"), rows)


def side_row(name, side, figure, metric, ratio):
    unit = figure["value"], figure["best"]
    return (name, side, *map(digits, unit), metric, digits(figure["step_seconds"]),
            digits(figure["step_cpu_seconds"]), digits(figure["peak_gib"]),
            percent(figure.get("share_of_peak")), others(figure["others_cpu_share"]), ratio)


def comparison(result):
    heads = ("work", "side", "median", "best", "unit", "step, s", "step, CPU s", "peak, GiB",
             "of GEMM peak", "others' CPU", "ours ÷ it")
    rows, phases = [], []
    for name, work in result["works"].items():
        rows.append(side_row(name, "**npu-lora**", work["ours"], work["metric"], ""))
        for backend, figure in work["backends"].items():
            rows.append(side_row(name, backend, figure, work["metric"], ""))
        for rival, figure in work["peft"].items():
            rows.append(side_row(name, rival, figure, work["metric"],
                                 work["ratio_by_variant"][rival]))
        phases.append((name, {**work["ours"]["phases"], "step": sum(work["ours"]["phases"].values())}))
    failed = "".join(f"- {where}: {why.splitlines()[-1]}\n" for where, why in result["failed"].items())
    return "\n".join(filter(None, [
        "### Against the rivals\n", machine_text(result), peak_tables(result),
        table(heads, rows), phase_table(phases), failed and f"Came to nothing:\n\n{failed}"]))


def phase_table(phases):
    """Mean milliseconds of a step by phase: [(name, {phase: seconds})]."""
    shown = [phase for phase in PHASES if any(phase in seconds for _, seconds in phases)]
    rows = [(name, *(f"{1000 * seconds.get(phase, 0):.2f}" for phase in (*shown, "step")))
            for name, seconds in phases]
    return table(("ms a step", *(phase.replace("_", " ") for phase in (*shown, "step"))), rows)


def settings_table(name, by_length):
    rows = [(length, side, digits(figure["step_seconds"]), digits(figure["step_seconds_min"]),
             digits(figure["step_cpu_seconds"]), figure["time_ratio"], figure["cpu_time_ratio"],
             digits(figure["peak_gib"]), round(figure["last_loss"], 4),
             others(figure["others_cpu_share"]))
            for length, sides in by_length.items() for side, figure in sides.items()]
    return table((name, "setting", "step, s", "least", "CPU s", "time ÷ first's",
                  "CPU time ÷ first's", "peak, GiB", "last loss", "others' CPU"), rows)


def growth_table(growth):
    rows = [(what, ", ".join(f"{size}: {digits(1000 * seconds)}"
                             for size, seconds in figure["step_seconds_min"].items()),
             percent(figure["off_the_line"])) for what, figure in growth.items()]
    return table(("growth in", "least step, ms", "middle off the line"), rows)


def pairs_table(name, figure):
    return table((name, "value"), [(key.replace("_", " "), value)
                                   for key, value in figure.items()])


def job_table(job):
    rows = [(side, digits(figure["rows_per_s"]), figure["steps"], percent(figure["accuracy"]),
             figure["nll"], others(figure["others_cpu_share"]), figure["ours_ratio"])
            for side, figure in job.items()]
    return table(("SST-2 job", "rows/s", "steps", "accuracy", "label nll", "others' CPU",
                  "ours ÷ it"), rows)


SHOWN = {
    "phases": lambda figure: phase_table(list(figure.items())),
    "parting": lambda figure: settings_table("parting", figure),
    "bf16": lambda figure: settings_table("bf16", figure),
    "startup": lambda figure: pairs_table("start to first step, demo job", figure),
    "flat": lambda figure: pairs_table("a long run", figure),
    "growth": growth_table,
    "job": job_table,
}


def own_figures(result):
    return "\n".join(["### Of npu-lora itself\n", machine_text(result),
                      *(SHOWN[name](figure) for name, figure in result["figures"].items())])


def put_between_marks(path, text):
    old = path.read_text(encoding="utf-8")
    if old.count(BEGIN) != 1 or old.count(END) != 1:
        raise SystemExit(f"{path}: the lines {BEGIN} and {END} must be there, once each")
    head, rest = old.split(BEGIN)
    path.write_text(f"{head}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--into", type=Path, help="a file with the two marks")
    args = parser.parse_args()
    results = [json.loads(path.read_text(encoding="utf-8")) for path in args.results]
    text = "\n".join(comparison(result) if "works" in result else own_figures(result)
                     for result in results)
    if args.into:
        put_between_marks(args.into, text.strip())
    else:
        print(text)


if __name__ == "__main__":
    main()
