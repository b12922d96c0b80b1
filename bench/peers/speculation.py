#!/usr/bin/env python3
"""Runs one EAGLE-3 drafter in llama.cpp and in aerie on the same prompts and compares what is accepted, and how fast it goes.

llama.cpp's graph feeds the state before the last norm back, so the drafter must have been trained so (`aerie train --feedback pre
--feature-norm none`); the shipped one was not. Both sides draft K tokens every cycle, greedily, and go on after an end token.

Accepted drafts are compared cycle by cycle from the same place: aerie answers first, and llama.cpp gets the prompt with the answer's
first token behind it, because it drafts before the prompt's last token while aerie drafts after the first token of the answer. Counts
are equal where both write the same text. With --float32 both compute in float32 (the target is rewritten by llama-quantize); texts then
part only at near ties of two logits, and where an answer ends: llama.cpp forbids end tokens, aerie goes on behind them.
"""

import argparse
import json
import os
import re
import shlex
import statistics
import tempfile

from compare import finished, run


def aerie(args, prompt, tokens, drafts):
    more = ["--float32"] if args.float32 else []
    out = run(args.prefix, args.aerie, "run", "-m", args.model, "-d", args.drafter, "-p", prompt, "-n", str(tokens), "-k", str(drafts),
              "--ignore-end", "--json", *more)
    return json.loads(out)


def templated(args, folder, prompt):
    messages = os.path.join(folder, "messages.json")
    with open(messages, "w", encoding="utf-8") as file:
        json.dump([{"role": "user", "content": prompt}], file)
    return run([], args.aerie, "tokenize", "-m", args.model, "--messages", messages, "--render")


def llama(args, target, drafter, prompt, threads):
    more = ["-ctk", "f32", "-ctv", "f32", "-ctkd", "f32", "-ctvd", "f32"] if args.float32 else []
    done = finished(args.prefix, os.path.join(args.bin, "llama-speculative-simple"), "-m", target, "-md", drafter, "--spec-type", "draft-eagle3",
                    "--spec-draft-n-max", str(args.drafts), "-t", str(threads), "-td", str(threads), "--temp", "0", "--ignore-eos", "-n",
                    str(args.tokens), "-p", prompt, *more)
    text = done.stdout + done.stderr
    found = {name: int(re.search(rf"{name}\s*=\s*(\d+)", text).group(1)) for name in ("n_predict", "n_accept")}
    found["speed"] = float(re.search(r"decoded.*speed:\s*([\d.]+)", text).group(1))
    found["prompt"] = int(re.search(r"encoded\s+(\d+) tokens", text).group(1))
    found["text"] = done.stdout
    return found


def llama_plain(args, target, threads):
    out = run(args.prefix, os.path.join(args.bin, "llama-bench"), "-m", target, "-t", str(threads), "-p", "0", "-n", str(args.tokens), "-d", "64",
              "-r", "1", "-o", "json")
    return json.loads(out)[0]["avg_ts"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--drafter", required=True, help="folder of a drafter with raw feedback")
    parser.add_argument("--bin", required=True, help="folder with llama.cpp's programs")
    parser.add_argument("--aerie", required=True)
    parser.add_argument("--prompts", default="data/eval/mt_bench.jsonl")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--drafts", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--float32", action="store_true")
    parser.add_argument("--prefix", type=shlex.split, default=[], help="put before every measured command")
    args = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    with open(args.prompts, encoding="utf-8") as file:
        prompts = [json.loads(line)["turns"][0] for line in file][:args.count]

    with tempfile.TemporaryDirectory() as folder:
        drafter, target = os.path.join(folder, "drafter.gguf"), args.model
        run([], args.aerie, "convert", args.drafter, drafter, "--to", "gguf", "-m", args.model)
        if args.float32:
            target = os.path.join(folder, "target.F32.gguf")
            run([], os.path.join(args.bin, "llama-quantize"), "--allow-requantize", args.model, target, "F32")
        equal, same_text, rows = 0, 0, []
        for number, prompt in enumerate(prompts):
            ours = aerie(args, prompt, args.tokens + 2 * args.drafts + 2, args.drafts)
            plain = aerie(args, prompt, args.tokens, 0)
            first = aerie(args, prompt, 1, 0)["text"]
            theirs = llama(args, target, drafter, templated(args, folder, prompt) + first, threads)
            theirs_plain = llama_plain(args, target, threads)
            cycles = theirs["n_predict"] - theirs["n_accept"]
            accepted = sum(ours["draft"]["accepted_per_cycle"][:cycles])
            # The prompt is echoed first; special tokens may be left out there, so the answers are compared from behind it.
            answer = theirs["text"].split("assistant\n", 1)[-1].strip()
            same = ours["text"].strip().startswith(answer[:max(1, len(answer) - 1)]) and theirs["prompt"] == ours["prompt_tokens"] + 1
            equal += accepted == theirs["n_accept"]
            same_text += same
            rows.append((plain["decode_tokens_per_second"], ours["decode_tokens_per_second"], theirs_plain, theirs["speed"], accepted,
                         theirs["n_accept"], cycles))
            print(f"{number:3}  cycles {cycles:3}  accepted: aerie {accepted:3}, llama.cpp {theirs['n_accept']:3}  "
                  f"{'equal' if accepted == theirs['n_accept'] else 'DIFFERS'}, text {'equal' if same else 'differs'}", flush=True)
        ours_al = 1 + sum(row[4] for row in rows) / sum(row[6] for row in rows)
        their_al = 1 + sum(row[5] for row in rows) / sum(row[6] for row in rows)
        print(f"\naccepted drafts equal on {equal} of {len(rows)} prompts, text equal on {same_text}; "
              f"acceptance length at K = {args.drafts}: aerie {ours_al:.3f}, llama.cpp {their_al:.3f}")
        names = ("aerie plain", f"aerie K = {args.drafts}", "llama.cpp plain", f"llama.cpp K = {args.drafts}")
        speeds = [statistics.median(row[i] for row in rows) for i in range(4)]
        for name, speed in zip(names, speeds):
            print(f"{name:18}{speed:8.1f} tokens/s")
        print(f"speculation / plain: aerie {speeds[1] / speeds[0]:.2f}x, llama.cpp {speeds[3] / speeds[2]:.2f}x")


if __name__ == "__main__":
    main()
