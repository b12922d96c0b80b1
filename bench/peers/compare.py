#!/usr/bin/env python3
"""Times llama.cpp and aerie on the same GGUF files, one after the other in every round, and prints medians and ratios.

Run by llama_cpp.sh. Both sides use as many threads as there are CPUs. What is compared:
  decode D      tokens/s of one sequence behind a context of D tokens
  prefill 512   tokens/s of a prompt
  n rows        time of a forward of n rows behind 256 tokens, relative to one row of the same engine
  16 sequences  tokens/s of sixteen sequences decoded together
llama.cpp computes the logits of one row of such a forward, aerie those of all, as a verification needs them.
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


def run(prefix, *command):
    done = subprocess.run([*prefix, *command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed with {done.returncode}: {done.stderr.strip()[-400:]}")
    return done.stdout


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
    text = run(args.prefix, os.path.join(args.bin, "llama-batched-bench"), "-m", model, "-t", str(threads), "-c", "4096", "-npp", "64", "-ntg", "64",
               "-npl", "16", "--output-format", "jsonl")
    result["16 sequences"] = json.loads([line for line in text.splitlines() if line.startswith("{")][-1])["speed_tg"]
    return result


def aerie_side(args, model):
    common = [args.aerie, "bench", "-m", model, "--repetitions", "1", "--json"]
    shallow = json.loads(run(args.prefix, *common, "-n", "128", "--depth", "256"))
    deep = json.loads(run(args.prefix, *common, "-n", "2", "--depth", "2048"))
    result = {"decode 0": shallow["plain_tokens_per_second"], "prefill 512": shallow["prefill_tokens_per_second"],
              "decode 256": 1 / shallow["step_seconds"], "decode 2048": 1 / deep["step_seconds"],
              "16 sequences": shallow["batched_tokens_per_second"]["16"]}
    for n in ROWS:
        result[f"{n} rows"] = shallow["verify_cost"][str(n)]
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--bin", required=True, help="folder with llama.cpp's programs")
    parser.add_argument("--aerie", required=True)
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
        print(f"{'':14}{'llama.cpp':>12}{'aerie':>12}{'ratio':>9}")
        for name in ours[0]:
            a, b = (statistics.median(side[name] for side in sides) for sides in (theirs, ours))
            if name.endswith("rows"):
                print(f"{name:14}{a:>11.2f}x{b:>11.2f}x")
            else:
                print(f"{name:14}{a:>12.1f}{b:>12.1f}{b / a:>8.2f}x")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
