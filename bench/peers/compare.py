#!/usr/bin/env python3
"""Times llama.cpp and aerie on the same GGUF files, one after the other in every round, and prints medians and ratios.

Run by llama_cpp.sh. Both sides use as many threads as there are CPUs. What is compared:
  decode D      tokens/s of one sequence behind a context of D tokens
  prefill 512   tokens/s of a prompt
  n rows        time of a forward of n rows behind 256 tokens, relative to one row of the same engine
  16 sequences  tokens/s of sixteen sequences decoded together
  speculation   tokens/s with the shipped drafter relative to plain, aerie alone (llama.cpp's graph feeds back the state before the
                norm, which this drafter was not trained for)
llama.cpp computes the logits of one row of such a forward, aerie those of all, as a verification needs them.
The last columns say what the project set out to reach: the ratio to llama.cpp, and the share of the roofline (src/engine/roofline.h:
bytes and operations against the ceilings that `aerie bench` measured in the same run). For n rows the bound is 1.25 times the ratio
that the roofline gives with units at three quarters of their peak, and 0.05.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys

ROWS = (4, 6, 8, 16)
DEPTHS = (256, 2048)
# By the type of the file: the least ratio to llama.cpp; the least share of the roofline, which is asked of Q4_1.
MUST_RATIO = {
    "Q4_1": {"decode 0": 1.7, "decode 256": 2.0, "decode 2048": 2.0, "prefill 512": 4.0, "16 sequences": 4.0, "8 rows/s": 5.0},
    "Q4_0": {"decode 0": 1.25, "prefill 512": 1.5, "16 sequences": 2.0, "8 rows/s": 3.0},
    "Q8_0": {"decode 0": 1.2},
}
MUST_SHARE = {"decode 0": 0.80, "decode 256": 0.75, "decode 2048": 0.65, "prefill 512": 0.40, "16 sequences": 0.30}


def finished(prefix, *command):
    done = subprocess.run([*prefix, *command], capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed with {done.returncode}: {done.stderr.strip()[-400:]}")
    return done


def run(prefix, *command):
    return finished(prefix, *command).stdout


def llama_rates(args, model, threads):
    """{(prompt tokens, generated tokens, depth): tokens/s} of one llama-bench run."""
    common = [os.path.join(args.bin, "llama-bench"), "-m", model, "-t", str(threads), "-r", "1", "-o", "json"]
    out = {}
    for more in (["-p", "512", "-n", "128"], ["-p", "0", "-n", "32", "-d", ",".join(map(str, DEPTHS))],
                 ["-n", "0", "-p", ",".join(map(str, (1, *ROWS))), "-d", "256"]):
        for entry in json.loads(run(args.prefix, *common, *more)):
            out[entry["n_prompt"], entry["n_gen"], entry["n_depth"]] = entry["avg_ts"]
    return out


def llama_side(args, model, threads):
    rates = llama_rates(args, model, threads)
    result = {"decode 0": rates[0, 128, 0], "prefill 512": rates[512, 0, 0]}
    for depth in DEPTHS:
        result[f"decode {depth}"] = rates[0, 32, depth]
    one_row = 1 / rates[1, 0, 256]
    for n in ROWS:
        result[f"{n} rows"] = n / rates[n, 0, 256] / one_row
    result["8 rows/s"] = rates[8, 0, 256]
    text = run(args.prefix, os.path.join(args.bin, "llama-batched-bench"), "-m", model, "-t", str(threads), "-c", "4096", "-npp", "64", "-ntg", "64",
               "-npl", "16", "--output-format", "jsonl")
    result["16 sequences"] = json.loads([line for line in text.splitlines() if line.startswith("{")][-1])["speed_tg"]
    return result


def aerie_side(args, model):
    """The same figures, the shares of the roofline, and the bounds of n rows."""
    common = [args.aerie, "bench", "-m", model, "--repetitions", "1", "--json"]
    shallow = json.loads(run(args.prefix, *common, "-d", args.drafter, "-n", "128", "--depth", "256"))
    deep = json.loads(run(args.prefix, *common, "-n", "2", "--depth", "2048"))
    result = {"decode 0": shallow["plain_tokens_per_second"], "prefill 512": shallow["prefill_tokens_per_second"],
              "decode 256": 1 / shallow["step_seconds"], "decode 2048": 1 / deep["step_seconds"],
              "16 sequences": shallow["batched_tokens_per_second"]["16"]}
    for n in ROWS:
        result[f"{n} rows"] = shallow["verify_cost"][str(n)]
    result["8 rows/s"] = 8 / shallow["step_seconds"] / shallow["verify_cost"]["8"]
    result["8 rows at 2048"] = deep["verify_cost"]["8"]
    result["draft step"] = shallow["draft_step_cost"]
    result["speculation"] = shallow["speedup"]
    share = shallow["share_of_roofline"]
    shares = {"decode 0": share["plain"], "prefill 512": share["prefill"], "16 sequences": share["batched"]["16"],
              "decode 256": share["verify"]["1"], "decode 2048": deep["share_of_roofline"]["verify"]["1"], "8 rows/s": share["verify"]["8"]}
    bounds = {f"{n} rows": 1.25 * shallow["verify_roofline_cost"][str(n)] + 0.05 for n in ROWS}
    bounds["8 rows at 2048"] = 1.35 * deep["verify_roofline_cost"]["8"] + 0.05
    bounds["draft step"] = 0.06
    return {"figures": result, "shares": shares, "bounds": bounds, "ceilings": {
        "GB/s": shallow["read_ceiling_gb_s"], "GB/s far": shallow["far_read_ceiling_gb_s"], **shallow["ceilings_gop_s"]}}


def medians(dictionaries):
    return {key: statistics.median(d[key] for d in dictionaries) for key in dictionaries[0]}


def met(value, bound, at_least):
    return "" if bound is None else "met" if (value >= bound if at_least else value <= bound) else "NOT MET"


def print_table(model, theirs, ours):
    kind = model.rsplit(".", 2)[-2]
    llama, aerie = medians(theirs), medians([side["figures"] for side in ours])
    shares, bounds = medians([side["shares"] for side in ours]), medians([side["bounds"] for side in ours])
    print("ceilings: " + ", ".join(f"{name} {value:.0f}" for name, value in medians([side["ceilings"] for side in ours]).items()))
    print(f"{'':15}{'llama.cpp':>10}{'aerie':>10}{'ratio':>8}{'must':>7}{'':>9}{'roofline':>10}{'must':>7}")
    for name, value in aerie.items():
        other = llama.get(name)
        line = f"{name:15}" + (f"{other:>10.2f}" if other is not None else " " * 10) + f"{value:>10.2f}"
        if name in bounds:
            line += f"{'':8}{bounds[name]:>6.2f} {met(value, bounds[name], False):>9}"
        elif name == "speculation":
            line += f"{'':8}{0.97:>6.2f} {met(value, 0.97, True):>9}"
        else:
            must, share, least = MUST_RATIO.get(kind, {}).get(name), shares[name], MUST_SHARE.get(name) if kind == "Q4_1" else None
            line += f"{value / other:>7.2f}x" + (f"{must:>6.2f}x{met(value / other, must, True):>9}" if must else " " * 16)
            line += f"{100 * share:>8.0f} %" + (f"{100 * least:>5.0f} % {met(share, least, True)}" if least else "")
        print(line.rstrip())
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--bin", required=True, help="folder with llama.cpp's programs")
    parser.add_argument("--aerie", required=True)
    parser.add_argument("--drafter", default="smollm2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prefix", type=shlex.split, default=[], help="put before every measured command")
    args = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    for model in args.models:
        theirs, ours = [], []
        for _ in range(args.rounds):
            theirs.append(llama_side(args, model, threads))
            ours.append(aerie_side(args, model))
        print(f"\n{os.path.basename(model)}, {threads} threads, medians of {args.rounds} rounds")
        print_table(os.path.basename(model), theirs, ours)


if __name__ == "__main__":
    main()
