#!/usr/bin/env python3
"""npu-lora against transformers + PEFT, TRL and JAX on this machine: speed and memory of the same work.

    compare_peft.py --npu-lora PATH --model DIR [--json] [--works LIST] [--variants LIST] [--repeats N]

All sides do the same work with the same threads, in processes of their own that take turns. README.md
beside this file says what each work is. Speed ratios above 1 and memory ratios below 1 are in our
favour. Exit 1 when a side fails, or does not compute the same loss as ours: then its figures compare
nothing. The others are printed all the same.
"""
import json
import statistics
import sys
import tempfile
from dataclasses import replace

import machine
import works
from models import GEOMETRIES, useful_flops, write_random_model
from sides import (RivalOrder, RunFailed, all_steps, bench_from, bench_parser, run_ours, run_rival,
                   summary, take_turns)
from works import DEFAULT_WORKS, RIVALS, WORKS

OURS = "npu-lora"


def shortened(work):
    """The same work in two steps, for --quick."""
    return replace(work, warmup=min(work.warmup, 1), steps=2)


def model_of(bench, work):
    if work.geometry is None:
        return bench.model
    return write_random_model(GEOMETRIES[work.geometry], bench.folder / work.geometry)


def rows_of(work, model, config):
    if work.reviews:
        return works.review_rows(model, work.rows_per_step() * work.steps)
    if work.geometry is not None:
        return works.random_windows(config["vocab_size"], work.seq_len, work.batch)
    return works.text_windows(model, work.seq_len, work.batch)


def side_runs(bench, work, model, rows_file, rivals):
    """{side: function that runs it}: ours on each backend, then the rivals."""
    order = RivalOrder(str(model), str(rows_file), bench.threads, work.targets, work.warmup,
                       work.steps, one_pass=work.reviews, rows_per_step=work.rows_per_step())
    batch = () if work.batch == 1 else ("--batch", str(work.batch))

    def ours(backend):
        return lambda: run_ours(
            bench, rows_file, work.seq_len, work.warmup, None if work.reviews else work.steps,
            (*batch, *work.ours), model=model, backend=backend, targets=work.targets)

    def rival(name):
        return lambda: run_rival(bench, RIVALS[name].worker,
                                 replace(order, **RIVALS[name].settings))

    return {**{our_name(bench, backend): ours(backend) for backend in bench.backends},
            **{name: rival(name) for name in rivals}}


def our_name(bench, backend):
    """Name of our side on a backend: the first one is what ratios are of."""
    return OURS if backend == bench.backends[0] else f"{OURS} {backend}"


def values(work, row_count, runs):
    """Median and best of all runs of one side in the work's unit."""
    if work.metric == "GiB":
        peaks = [run.peak_gib for run in runs]
        return statistics.median(peaks), min(peaks)
    if work.reviews:  # every step of the pass counts
        rates = [row_count / sum(run.step_seconds) for run in runs]
        return statistics.median(rates), max(rates)
    tokens, steps = work.seq_len * work.batch, all_steps(runs)
    return tokens / statistics.median(steps), tokens / min(steps)


def figures(work, row_count, runs):
    """What one side's repeats come to."""
    value, best = values(work, row_count, runs)
    phases = runs[0].phases  # ours only
    return {
        "value": round(value, 4),
        "best": round(best, 4),
        **summary(runs),
        **({"phases": {name: round(statistics.fmean(run.phases[name] for run in runs), 6)
                       for name in phases}} if phases else {}),
    }


def compare(bench, name, rivals):
    """The work's result, and the sides that failed: {side: why}."""
    work = shortened(WORKS[name]) if bench.quick else WORKS[name]
    model = model_of(bench, work)
    config = bench.config(model)
    rows = rows_of(work, model, config)
    rows_file = works.write_rows(rows, bench.folder / f"{name}.jsonl")
    runs, failed = take_turns(name, side_runs(bench, work, model, rows_file, rivals),
                              bench.repeats)
    sides = {side: figures(work, len(rows), done) for side, done in runs.items()}
    if OURS in failed:
        raise failed[OURS]
    ours = sides.pop(OURS)
    if not work.reviews:  # there the rows come in another order
        for side in list(sides):
            if why := other_loss(ours, sides[side], side):
                del sides[side]
                failed[side] = why
    others = {side: sides.pop(side) for side in list(sides) if side not in RIVALS}
    if not sides:
        raise RunFailed("; ".join(f"{side}: {why}" for side, why in failed.items()))
    better = min if work.metric == "GiB" else max
    best = better(sides, key=lambda side: sides[side]["value"])
    flops = useful_flops(config, work.targets, works.RANK, rows)
    return {
        "metric": work.metric,
        "ours": ours,
        "backends": others,
        "peft": sides,
        "best_of_peft": best,
        "ratio": round(ours["value"] / sides[best]["value"], 3),
        "ratio_of_best": round(ours["best"] / better(s["best"] for s in sides.values()), 3),
        "ratio_by_variant": {v: round(ours["value"] / s["value"], 3) for v, s in sides.items()},
        "ratio_by_backend": {v: round(s["value"] / sides[best]["value"], 3)
                             for v, s in others.items()},
        # A unit is a token or a row; none where memory is compared.
        "useful_gflop_per_unit": None if work.metric == "GiB" else
            flops / 1e9 / (len(rows) * (1 if work.reviews else work.seq_len)),
    }, failed


def other_loss(ours, side, name):
    """B starts at zero, so the first loss is the base model's on all sides. Why not, if it is not."""
    tolerance = RIVALS[name].loss_tolerance() if name in RIVALS else 1e-3
    if abs(ours["first_loss"] - side["first_loss"]) <= tolerance * side["first_loss"]:
        return None
    return (f"first losses differ; ours {ours['first_loss']}, {name} {side['first_loss']}: the two "
            "sides do not do the same work")


def add_shares(result):
    """Of each side: useful work as a share of the best square sgemm of this run."""
    peak = machine.best_gflops(result["peaks"], "sgemm_gflops")
    result["sgemm_peak_gflops"] = peak
    for work in result["works"].values():
        if work["useful_gflop_per_unit"] is None:
            continue
        for side in (work["ours"], *work["backends"].values(), *work["peft"].values()):
            side["share_of_peak"] = round(side["value"] * work["useful_gflop_per_unit"] / peak, 4)


def table(result):
    lines = [f"{'work':16} {'side':22} {'value':>9} {'best':>9} {'unit':6} {'CPU s':>8} {'peak GiB':>9} "
             f"{'of peak':>7} {'others':>7} {'ours ÷':>7}"]
    for name, work in result["works"].items():
        for side, figure in ((OURS, work["ours"]), *work["backends"].items(),
                             *work["peft"].items()):
            ratio = work["ratio_by_variant"].get(side, "")
            shares = [s for s in figure["others_cpu_share"] if s is not None]
            of_peak = f"{figure['share_of_peak']:.1%}" if "share_of_peak" in figure else ""
            lines.append(f"{name:16} {side:22} {figure['value']:9.2f} {figure['best']:9.2f} "
                         f"{work['metric']:6} {figure['step_cpu_seconds']:8.3f} "
                         f"{figure['peak_gib']:9.2f} {of_peak:>7} "
                         f"{max(shares, default=0):7.1%} {ratio:>7}")
    return "\n".join(lines)


def chosen_rivals(work, names):
    if not names:
        return work.rivals
    return tuple(name for name in work.all_rivals() if names == ["all"] or name in names)


def check_choice(parser, chosen, variants):
    """What was asked for exists, before minutes are spent on half of it."""
    for name in chosen:
        if name not in WORKS:
            parser.error(f"unknown work {name}; known: {', '.join(WORKS)}")
        if not chosen_rivals(WORKS[name], variants):
            parser.error(f"{name} has none of --variants {','.join(variants)}; "
                         f"it has {', '.join(WORKS[name].all_rivals())}")
    known = {"all"}.union(*(WORKS[name].all_rivals() for name in chosen))
    for variant in variants or ():
        if variant not in known:
            parser.error(f"no chosen work has the variant {variant}; known: {', '.join(sorted(known))}")


def main():
    parser = bench_parser(__doc__.split("\n", 1)[0])
    parser.add_argument("--works", default=DEFAULT_WORKS,
                        help=f"all, or of {', '.join(WORKS)} [{DEFAULT_WORKS}]")
    parser.add_argument("--variants", type=lambda text: text.split(","),
                        help=f"rivals to run: all, or of {', '.join(RIVALS)} [PEFT's of each work]")
    parser.add_argument("--json", action="store_true", help="everything as JSON on stdout")
    args = parser.parse_args()
    chosen = list(WORKS) if args.works == "all" else args.works.split(",")
    check_choice(parser, chosen, args.variants)
    failures = {}
    with tempfile.TemporaryDirectory(prefix="compare_peft") as folder:
        bench = bench_from(args, folder)
        result = {"machine": machine.describe(), "threads": bench.threads,
                  "backend": bench.backends[0], "quick": bench.quick, "peaks": [bench.peaks()],
                  "works": {}}
        for name in chosen:
            try:
                result["works"][name], failed = compare(
                    bench, name, chosen_rivals(WORKS[name], args.variants))
                failures.update({f"{name}, {side}": str(why) for side, why in failed.items()})
            except (RunFailed, OSError, ValueError, LookupError) as failure:
                failures[name] = str(failure)
        result["peaks"].append(bench.peaks())
    add_shares(result)
    result["ratios"] = {name: work["ratio"] for name, work in result["works"].items()}
    result["failed"] = failures
    for where, why in failures.items():
        print(f"{where}: {why}", file=sys.stderr)
    print(json.dumps(result, indent=2) if args.json else table(result))
    if failures:
        sys.exit(f"failed: {'; '.join(failures)}")


if __name__ == "__main__":
    main()
