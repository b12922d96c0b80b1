#!/usr/bin/env python3
"""Compares tests/text/data/tokenizer_goldens.jsonl, which the PyPI package `tokenizers` made, with llama.cpp's own tokenizer.

Usage: check_tokenizer_with_llama_cpp.py MODEL.gguf LLAMA_TOKENIZE [GOLDENS]

LLAMA_TOKENIZE is llama.cpp's program of that name (bench/peers/llama_cpp.sh builds it). Only the lines of the model's own
pre-tokenizer (smollm) can be compared, and of those the ids of plain text. The program is started once for every text, so this
takes some minutes; it is run by hand when the goldens change. Exits with 1 if a line differs; the known kinds of difference are
counted apart and explained.
"""

import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile

DEFAULT_GOLDENS = "tests/text/data/tokenizer_goldens.jsonl"


def text_of(line):
    if "t" in line:
        return line["t"].encode()
    if "x" in line:
        return bytes.fromhex(line["x"])
    unit, times = line["r"]
    return unit.encode() * times


def ids_of(line):
    return line["i"] if "i" in line else [i for i, times in line["q"] for _ in range(times)]


def tokenize(program, model, text):
    with tempfile.NamedTemporaryFile() as file:
        file.write(text)
        file.flush()
        command = [program, "-m", model, "-f", file.name, "--ids", "--no-bos", "--no-escape", "--no-parse-special", "--log-disable"]
        run = subprocess.run(command, capture_output=True)
    if run.returncode != 0:
        return None  # it ends itself over some bytes that are no UTF-8
    return json.loads(run.stdout.decode().strip().splitlines()[-1])


def main():
    model, program = sys.argv[1:3]
    with open(sys.argv[3] if len(sys.argv) > 3 else DEFAULT_GOLDENS, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file][1:]
    lines = [line for line in lines if line.get("p") == "smollm" and text_of(line)]
    different, invalid = [], 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for line, found in zip(lines, pool.map(lambda line: tokenize(program, model, text_of(line)), lines)):
            if found == ids_of(line):
                continue
            try:
                text_of(line).decode()
            except UnicodeDecodeError:
                invalid += 1  # llama.cpp has rules of its own for bytes that are no UTF-8; tokenizers never sees such bytes
                continue
            different.append((line, found))
    print(f"{len(lines)} texts: {len(lines) - len(different) - invalid} equal, {invalid} of invalid UTF-8 treated otherwise, {len(different)} different")
    for line, found in different[:20]:
        print(repr(text_of(line)[:80]), "golden", ids_of(line)[:20], "llama.cpp", found and found[:20])
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
