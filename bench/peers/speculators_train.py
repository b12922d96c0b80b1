#!/usr/bin/env python3
"""Times the training of an EAGLE-3 drafter in aerie-train and in speculators' own model, in turn in every round of one run.

Run by speculators_train.sh, with the Python of a virtual environment that has speculators 0.9.0. Both sides train a drafter of the
shipped one's shape for SmolLM2-135M, with as many threads as there are CPUs, on the same random tokens (all of the draft vocabulary)
and the same random states in bf16, every token with a loss mask of 1, one document per row. An optimiser step is --tokens-per-step
tokens on both sides, or one row where a row is longer: forward, three unrolled steps, loss, backward, clipping to 1, AdamW.

aerie        reads the documents from a trace folder; a step's rows are trained one after the other. Its time is that of
             metrics.jsonl, reading and packing included. It trains its own head.
speculators  its trainer wants an accelerator, so its loop is repeated here around its own parts: the documents of a step go through its
             shift_batch and CollateFn, which put them one after the other into a single row told apart by document ids (four of 512 into
             2048: attention is masked, the mask is 2048 x 2048), then Eagle3DraftModel, autocast, clip_grad_norm_, build_optimizers and
             the metrics' item() as in its trainer. Reading and collating are not counted: its DataLoader has other processes for them.
             Its fused losses want a GPU, so the loss is its eager kl_div; its optimiser is set to adamw, whose steps are cheaper than
             those of its default, muon. It is not compiled, since the package compiles on CUDA alone; flex, which lives by it, is.
             Its lm_head is frozen by default, so it does less; --head trained or frozen makes both sides equal. glibc is told to keep
             freed memory, as aerie-train tells it: without, it is a sixth slower.
A variant is an attention (draft_attn_impl: eager, sdpa, flex for simple_flex_attention) and the type of autocast. The ratio is taken
against the fastest of each row length. Those that do not run on this machine are named and left out.

Tokens are those of the documents on both sides; that speculators drops one position of each, and that aerie has no loss at the last
rows (docs/training.md, Alignment), changes nothing in the count. The first 3 steps of a run are left out. Memory is the peak of the
whole process, as the system counts it. All figures are medians over the rounds.
"""

import argparse
import hashlib
import json
import os
import pathlib
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata

# Importing torch here would show in the memory of the processes that are started (the system starts their peak at their parent's):
# only the functions of the worker import it.
PACKAGE, VERSION = "speculators", "0.9.0"
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, VOCAB, DRAFT_VOCAB = 576, 9, 3, 64, 1536, 49152, 8192
BLOCKS, TAPS, EPS, ROPE_THETA = 30, [2, 15, 27], 1e-5, 100000.0
TTT_STEPS, WARM_STEPS, SEED = 3, 3, 20251101
STORED_STEPS = 8  # optimiser steps whose documents differ; longer runs see them again
ATTENTION = {"eager": "eager", "sdpa": "sdpa", "flex": "simple_flex_attention"}
TYPES = {"f32": "float32", "bf16": "bfloat16"}
# glibc returns what is freed to the system, and every step would pay for the page faults; aerie-train sets the same for itself. 32 MiB is
# as much as glibc takes for the first.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**30)}
VARIANTS = [f"{attention}/{kind}" for attention in ATTENTION for kind in TYPES]


def refuse(sentence):
    """Ends the program over bad input."""
    print(f"error: {sentence}", file=sys.stderr)
    sys.exit(2)


# The worker: one process, which may import torch.

def row_path(folder, row):
    return os.path.join(folder, f"hs_{row}.safetensors")


def write_traces(job):
    """A trace folder (docs/formats.md) of random documents, all of them answers of the target."""
    import torch
    from safetensors.torch import save_file
    folder = pathlib.Path(job["folder"])
    folder.mkdir()
    manifest = {
        "format_version": 1,
        "target": {"name": "random states", "sha256": job["sha256"], "hidden": HIDDEN, "vocab": VOCAB, "blocks": BLOCKS, "eps": EPS},
        "taps": TAPS, "slot_names": [f"boundary {b}" for b in (*TAPS, BLOCKS)], "template_sha256": hashlib.sha256(b"").hexdigest(),
        "precision": "random", "aerie_version": "none", "generation": {"decoding": "random"}}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    random = torch.Generator().manual_seed(SEED)
    for row in range(job["documents"]):
        states = torch.randn(job["row_length"], len(TAPS) + 1, HIDDEN, generator=random)
        save_file({"token_ids": torch.randint(0, DRAFT_VOCAB, (job["row_length"],), generator=random),
                   "hidden_states": states.bfloat16(), "loss_mask": torch.ones(job["row_length"], dtype=torch.uint8)},
                  row_path(folder, row))


def read_document(path):
    """A trace as speculators' data set hands it to its collate function."""
    import torch
    from safetensors.torch import load_file
    trace = load_file(path)
    length = len(trace["token_ids"])
    return {"hidden_states": trace["hidden_states"][:, :-1].flatten(1), "input_ids": trace["token_ids"],
            "verifier_last_hidden_states": trace["hidden_states"][:, -1], "loss_mask": trace["loss_mask"].bool(),
            "lengths": torch.tensor([length]), "position_ids": torch.arange(length)}


def draft_model(attention, train_head):
    """speculators' model in the shape of the shipped drafter; random weights where it would read the target's."""
    import torch
    from speculators import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import LlamaConfig
    layer = LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=INTERMEDIATE, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM,
        vocab_size=VOCAB, num_hidden_layers=1, rms_norm_eps=EPS, max_position_embeddings=8192, hidden_act="silu",
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA})
    layer._attn_implementation = attention
    model = Eagle3DraftModel(Eagle3SpeculatorConfig(
        transformer_layer_config=layer, draft_vocab_size=DRAFT_VOCAB, eagle_aux_hidden_state_layer_ids=TAPS, norm_before_fc=True,
        norm_output=True, speculators_config=SpeculatorsConfig(
            algorithm="eagle3", proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=TTT_STEPS)],
            default_proposal_method="greedy", verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]))))
    model = model.float().train()
    chosen = torch.arange(VOCAB) < DRAFT_VOCAB
    model.load_vocab_mappings(chosen, torch.zeros(DRAFT_VOCAB, dtype=torch.long))
    with torch.no_grad():
        model.embed_tokens.weight.normal_(std=0.1)
        model.lm_head.weight.normal_(std=0.1)
        model.verifier_lm_head.weight.copy_(model.lm_head.weight)
        model.verifier_norm.weight.fill_(1)
    if train_head:
        model.lm_head.weight.requires_grad_(True)
    return model


def optimiser_step(model, optimisers, batch, kind, call):
    """The body of the loop of speculators' trainer. Returns the loss."""
    import torch
    with torch.autocast("cpu", dtype=kind):
        _drafts, loss, metrics = model(**batch, **call)
    for optimiser in optimisers:
        optimiser.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimiser in optimisers:
        optimiser.step()
    return {name: value.item() for name, value in metrics.items()}["loss_sum"]


def train_speculators(job):
    """Trains for job["steps"] steps; prints the seconds of each, and the loss of the last, as JSON."""
    import math
    import types

    import torch
    from speculators.models.eagle3 import Eagle3DraftModel, shift_batch
    from speculators.train.data import CollateFn
    from speculators.train.optimizers import build_optimizers
    torch.set_num_threads(job["threads"])
    torch.manual_seed(SEED)
    attention, kind = job["variant"].split("/")
    kind = getattr(torch, TYPES[kind])
    model = draft_model(ATTENTION[attention], job["train_head"])
    if attention == "flex":
        model.forward = torch.compile(model.forward)
    optimisers = build_optimizers(model, types.SimpleNamespace(optimizer="adamw", lr=1e-3, weight_decay=0.01))
    call, _ = Eagle3DraftModel.get_trainer_kwargs(
        loss_fn="kl_div", loss_implementation="eager", ttt_steps=TTT_STEPS, ttt_step_loss_decay=1.0)
    a_step = job["documents_per_step"]
    collate = CollateFn(a_step * job["row_length"], HIDDEN, len(TAPS), dtype=kind, preprocess=shift_batch)
    seconds, loss = [], math.nan
    for step in range(job["steps"]):
        first = step * a_step % job["documents"]
        batch = collate([read_document(row_path(job["folder"], row)) for row in range(first, first + a_step)])
        start = time.perf_counter()
        loss = optimiser_step(model, optimisers, batch, kind, call)
        seconds.append(time.perf_counter() - start)
        if not math.isfinite(loss):
            sys.exit(f"the loss of step {step + 1} is {loss}")
    print(json.dumps({"seconds": seconds, "loss": loss}))


# The parent: starts one process after the other and reads what they report.

def measured(command, log):
    """Runs a command. Returns its exit status, its output, and its peak memory in GiB."""
    environment = {**KEEP_MEMORY, **os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "PYTHONWARNINGS": "ignore"}
    with open(log, "w+", encoding="utf-8", errors="replace") as file, tempfile.TemporaryFile("w+", encoding="utf-8") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=file, env=environment)
        try:
            _pid, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        return process.returncode, out.read(), usage.ru_maxrss / 2**20


def last_line(log):
    lines = pathlib.Path(log).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "no message"


def worker(prefix, job, log):
    return measured([*prefix, sys.executable, os.path.abspath(__file__), "--worker", json.dumps(job)], log)


def documents_per_step(args, row_length):
    return max(1, args.tokens_per_step // row_length)


def speculators_run(args, work, row_length, variant):
    """One run of one variant, or None with the reason where it does not run."""
    a_step = documents_per_step(args, row_length)
    job = {"task": "train", "folder": str(work / f"traces-{row_length}"), "row_length": row_length, "documents_per_step": a_step,
           "documents": a_step * min(args.steps, STORED_STEPS), "steps": args.steps, "threads": args.threads, "variant": variant,
           "train_head": args.head == "trained"}
    status, output, peak = worker(args.prefix, job, work / "speculators.log")
    if status != 0:
        return None, last_line(work / "speculators.log")
    seconds = json.loads(output)["seconds"][WARM_STEPS:]
    return {"tokens_per_second": len(seconds) * a_step * row_length / sum(seconds), "peak_gib": peak}, ""


def check_shape(config):
    """The drafter that aerie made is of the shape that speculators is given, or else another target was named."""
    layer = config["transformer_layer_config"]
    wanted = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
              "intermediate_size": INTERMEDIATE, "vocab_size": VOCAB}
    for name, value in wanted.items():
        if layer.get(name) != value:
            refuse(f"the target has a {name} of {layer.get(name)}, and this comparison is written for SmolLM2-135M's, {value}")


def aerie_run(args, work, row_length):
    """One run of aerie-train."""
    a_step, out, log = documents_per_step(args, row_length), work / "drafter", work / "aerie.log"
    shutil.rmtree(out, ignore_errors=True)
    head = ["--head", "frozen"] if args.head == "frozen" else []
    status, _output, peak = measured(
        [*args.prefix, args.aerie_train, "-m", args.target, "--data", str(work / f"traces-{row_length}"), "--out", str(out), "--ttt-steps",
         str(TTT_STEPS), "--step-decay", "1", "--optimizer", "adamw", "--feature-norm", "concat", "--tokens-per-step",
         str(args.tokens_per_step), "--row-length", str(row_length), "--draft-vocab",
         str(DRAFT_VOCAB), "--max-steps", str(args.steps), "--epochs", str(-(-args.steps // STORED_STEPS)), "--holdout", "0", "--eval-every", str(2**30), "--threads", str(args.threads), *head], log)
    if status != 0:
        sys.exit(f"{args.aerie_train} failed with {status}: {last_line(log)}")
    check_shape(json.loads((out / "config.json").read_text(encoding="utf-8")))
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    elapsed = {line["step"]: line["elapsed_seconds"] for line in lines if "elapsed_seconds" in line}
    if sorted(elapsed) != list(range(1, args.steps + 1)):
        sys.exit(f"{args.aerie_train} reports {len(elapsed)} steps instead of {args.steps}")
    seconds = elapsed[args.steps] - elapsed[WARM_STEPS]
    shutil.rmtree(out)
    return {"tokens_per_second": (args.steps - WARM_STEPS) * a_step * row_length / seconds, "peak_gib": peak}


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def make_traces(args, work):
    sha256 = sha256_of(args.target)
    for row_length in args.rows:
        job = {"task": "write", "folder": str(work / f"traces-{row_length}"), "sha256": sha256, "row_length": row_length,
               "documents": documents_per_step(args, row_length) * min(args.steps, STORED_STEPS)}
        status, _output, _peak = worker([], job, work / "write.log")
        if status != 0:
            sys.exit(f"the traces could not be written: {last_line(work / 'write.log')}")


def all_rounds(args, work):
    """The runs in the order in which they were made, and the variants that do not run with the reason."""
    runs, left_out = [], {}

    def keep(number, row_length, name, figures):
        runs.append({"round": number, "row_length": row_length, "name": name, **figures})
        print(f"round {number}, rows of {row_length}, {name}: {figures['tokens_per_second']:.0f} tokens/s, "
              f"{figures['peak_gib']:.2f} GiB", file=sys.stderr, flush=True)

    for number in range(1, args.rounds + 1):
        for row_length in args.rows:
            keep(number, row_length, "aerie", aerie_run(args, work, row_length))
            for variant in args.variants:
                if variant in left_out:
                    continue
                figures, why = speculators_run(args, work, row_length, variant)
                if figures:
                    keep(number, row_length, f"speculators {variant}", figures)
                else:
                    left_out[variant] = why
                    print(f"speculators {variant} does not run here: {why}", file=sys.stderr, flush=True)
    return runs, left_out


def medians(runs):
    """{row length: {name: figures}}."""
    out = {}
    for row_length in sorted({run["row_length"] for run in runs}):
        here = [run for run in runs if run["row_length"] == row_length]
        out[row_length] = {
            name: {key: statistics.median(run[key] for run in here if run["name"] == name) for key in ("tokens_per_second", "peak_gib")}
            for name in dict.fromkeys(run["name"] for run in here)}
    return out


def compare(figures):
    """A line per row length: the fastest variant against aerie."""
    lines = []
    for row_length, sides in figures.items():
        variants = {name: side for name, side in sides.items() if name != "aerie"}
        best = max(variants, key=lambda name: variants[name]["tokens_per_second"])
        ours, theirs = sides["aerie"], variants[best]
        lines.append({"row_length": row_length, "best": best.removeprefix("speculators "), "speculators": theirs, "aerie": ours,
                      "ratio": ours["tokens_per_second"] / theirs["tokens_per_second"]})
    return lines


def print_tables(figures, lines, left_out):
    print("| row length | fastest speculators | tokens/s | aerie tokens/s | ratio | peak GiB, speculators | peak GiB, aerie |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for line in lines:
        theirs, ours = line["speculators"], line["aerie"]
        print(f"| {line['row_length']} | {line['best']} | {theirs['tokens_per_second']:,.0f} | {ours['tokens_per_second']:,.0f} | "
              f"{line['ratio']:.2f}x | {theirs['peak_gib']:.2f} | {ours['peak_gib']:.2f} |")
    print("\n| row length | all variants | tokens/s | peak GiB |\n| --- | --- | --- | --- |")
    for row_length, sides in figures.items():
        for name, side in sides.items():
            print(f"| {row_length} | {name} | {side['tokens_per_second']:,.0f} | {side['peak_gib']:.2f} |")
    for variant, why in left_out.items():
        print(f"\nspeculators {variant} does not run here: {why}")


def listed(text, convert, what):
    try:
        values = [convert(part) for part in text.split(",")]
    except ValueError:
        refuse(f"{what} takes values with commas between them, not {text!r}")
    return list(dict.fromkeys(values))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--aerie-train", metavar="PATH", help="the program aerie-train")
    parser.add_argument("--target", metavar="GGUF", help="SmolLM2-135M, as scripts/fetch-model.sh prints it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help="optimiser steps of a run, of which the first 3 are not counted (default 8)")
    parser.add_argument("--rows", default="512,2048", help="row lengths (default 512,2048)")
    parser.add_argument("--tokens-per-step", type=int, default=2048, help="of documents; one row where that is longer (default 2048)")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="of speculators (default all: %(default)s)")
    parser.add_argument("--head", choices=("default", "trained", "frozen"), default="default",
                        help="default: trained in aerie, frozen in speculators; or the same on both sides")
    parser.add_argument("--prefix", type=shlex.split, default=[], help="put before every measured command")
    parser.add_argument("--json", metavar="OUT", help="file for the figures of every run")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    return parser.parse_args()


def check(args):
    """Refuses what cannot be run, and fills in what follows from the rest."""
    if not args.aerie_train or not os.access(args.aerie_train, os.X_OK) or os.path.isdir(args.aerie_train):
        refuse(f"--aerie-train must name the program aerie-train, and {args.aerie_train or 'nothing'} is no program")
    if not args.target or not os.path.isfile(args.target):
        refuse(f"--target must name the target's GGUF file, and {args.target or 'nothing'} is no file; scripts/fetch-model.sh prints one")
    args.rows = listed(args.rows, int, "--rows")
    args.variants = listed(args.variants, str, "--variants")
    for variant in args.variants:
        if variant not in VARIANTS:
            refuse(f"--variants knows {', '.join(VARIANTS)}, and not {variant!r}")
    if args.rounds < 1 or args.steps < WARM_STEPS + 1:
        refuse(f"--rounds must be at least 1 and --steps at least {WARM_STEPS + 1}")
    for row_length in args.rows:
        if not 16 <= row_length <= 8192:
            refuse(f"a row of {row_length} tokens is not 16 to 8192")
        if args.tokens_per_step < 1 or (args.tokens_per_step > row_length and args.tokens_per_step % row_length):
            refuse(f"--tokens-per-step must be a multiple of the row length {row_length}, or at most that, and is {args.tokens_per_step}")
    try:
        found = metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        found = "none"
    if found != VERSION:
        refuse(f"{PACKAGE} {VERSION} is wanted in {sys.executable}'s environment, which has {found}; speculators_train.sh makes one")
    args.aerie_train, args.threads = os.path.abspath(args.aerie_train), len(os.sched_getaffinity(0))


def main():
    args = arguments()
    if args.worker:
        return {"write": write_traces, "train": train_speculators}[args.worker["task"]](args.worker)
    check(args)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the process that runs and the folder go, too
    with tempfile.TemporaryDirectory(prefix="aerie-peers-") as folder:
        work = pathlib.Path(folder)
        make_traces(args, work)
        runs, left_out = all_rounds(args, work)
    if set(left_out) == set(args.variants):
        sys.exit("none of the variants of speculators runs here")
    figures = medians(runs)
    lines = compare(figures)
    versions = {name: metadata.version(name) for name in (PACKAGE, "torch", "transformers")}
    print(f"{', '.join(' '.join(pair) for pair in versions.items())}; {args.threads} threads, {args.tokens_per_step} tokens a step, steps "
          f"{WARM_STEPS + 1} to {args.steps}, medians of {args.rounds} rounds, head: {args.head}\n")
    print_tables(figures, lines, left_out)
    if args.json:
        report = {"versions": versions, "threads": args.threads, "tokens_per_step": args.tokens_per_step, "steps": args.steps,
                  "warm_steps": WARM_STEPS, "rounds": args.rounds, "head": args.head, "runs": runs, "left_out": left_out, "table": lines}
        pathlib.Path(args.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return None


if __name__ == "__main__":
    main()
