"""The confusion table on the real model: plants faults in the shipped drafter, asks `aerie doctor`, and prints what it named.

    doctor_table.py AERIE TARGET WORK

States of the target are captured into WORK, of evaluation prompts and of PROMPTS. Faults of the files are replayed on them, mended with --fix, and the walk of what was written stands beside that of the shipped drafter; faults of an engine are
made by Aerie's own engine, which serves the damaged drafter with --trace while the doctor is given the right one. Exit 1 below nine of ten
right, or where it is confidently wrong. "one of two": a warning that names two readings which do equally well, the planted one among them. A fault of the files that costs less than the doctor names (one in twenty of the accepted drafts:
states of neighbouring blocks hardly differ here) is rightly not found, and not counted.
"""

import json
import pathlib
import shutil
import struct
import subprocess
import sys

REPO = pathlib.Path(__file__).resolve().parents[1]
DRAFTER = REPO / "models" / "smollm2-135m-eagle3"
BOUNDARIES = "0,1,2,3,14,15,16,26,27,28"
LEAST = 0.9
NAMED_COST = 0.05


def read_tensors(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    return {n: (e["dtype"], e["shape"], data[8 + length + e["data_offsets"][0] : 8 + length + e["data_offsets"][1]]) for n, e in header.items()}


def write_tensors(path, tensors):
    header, blobs, at = {}, [], 0
    for name, (kind, shape, data) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + len(data)]}
        blobs.append(data)
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def planted(folder, config_change=None, tensor_change=None):
    """The shipped drafter with one thing changed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = json.loads((DRAFTER / "config.json").read_text(encoding="utf-8"))
    if config_change:
        config_change(config)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = read_tensors(DRAFTER / "model.safetensors")
    if tensor_change:
        tensor_change(tensors)
    write_tensors(folder / "model.safetensors", tensors)
    return folder


def shifted_d2t(tensors):
    kind, shape, data = tensors["d2t"]
    values = struct.unpack(f"<{len(data) // 8}q", data)
    tensors["d2t"] = (kind, shape, struct.pack(f"<{len(values)}q", values[0], *(v + 1 for v in values[1:])))
    tensors.pop("t2d", None)


def absolute_d2t(tensors):
    kind, shape, data = tensors["d2t"]
    values = struct.unpack(f"<{len(data) // 8}q", data)
    tensors["d2t"] = (kind, shape, struct.pack(f"<{len(values)}q", *(i + v for i, v in enumerate(values))))
    tensors.pop("t2d", None)


def without_norm(tensors):
    tensors.pop("input_norm.weight")


def layer(config):
    return config["transformer_layer_config"]


def set_theta(config, theta):
    layer(config)["rope_theta"] = theta
    layer(config)["rope_parameters"]["rope_theta"] = theta


def set_taps(config, taps):
    config["eagle_aux_hidden_state_layer_ids"] = taps


def stacked(config):
    set_taps(config, [0, 2, 15])
    config["norm_output"] = False


# Rows of public reports (tests/doctor/table_test.cpp), the fault, the codes that name it, and how it is planted.
FILE_FAULTS = [
    ("1", "ids one too high", ["wrong-taps"], lambda c: set_taps(c, [3, 16, 28]), None),
    ("3", "ids one too low", ["wrong-taps"], lambda c: set_taps(c, [1, 14, 26]), None),
    ("10", "(embedding, early, middle) for (early, middle, late)", ["wrong-taps"], lambda c: set_taps(c, [0, 2, 15]), None),
    ("10", "the right states in another order", ["wrong-taps"], lambda c: set_taps(c, [27, 15, 2]), None),
    ("14", "fed back before the norm", ["wrong-feedback"], lambda c: c.update(norm_output=False), None),
    ("15", "norm_before_fc not taken over, its tensor gone", ["wrong-feature-norm"], lambda c: c.update(norm_before_fc=False), without_norm),
    ("21", "norm_before_residual true", ["wrong-norm-before-residual"], lambda c: c.update(norm_before_residual=True), None),
    ("36", "d2t off by one", ["wrong-d2t"], None, shifted_d2t),
    ("36", "d2t written as absolute ids where offsets are read", ["wrong-d2t", "files-refused"], None, absolute_d2t),
    ("47", "rope_theta 100", ["wrong-rope-theta"], lambda c: set_theta(c, 100.0), None),
    ("37", "d2t missing", ["files-refused"], None, lambda t: t.pop("d2t")),
    ("10, 14", "the founding story's taps, and fed back before the norm", ["wrong-taps"], stacked, None),
    ("", "nothing", ["no-fault-found"], None, None),
]
ENGINE_FAULTS = [
    ("4", "an engine that captures one block later", ["engine-wrong-taps"], lambda c: set_taps(c, [3, 16, 28]), None),
    ("10", "an engine that captures (embedding, early, middle)", ["engine-wrong-taps"], lambda c: set_taps(c, [0, 2, 15]), None),
    ("16", "an engine that skips the norm before fc", ["engine-feature-norm"], lambda c: c.update(norm_before_fc=False), without_norm),
    ("17", "an engine that feeds back before the norm", ["engine-feedback"], lambda c: c.update(norm_output=False), None),
    ("19", "an engine that adds the wrong residual", ["engine-norm-before-residual"], lambda c: c.update(norm_before_residual=True), None),
    ("", "an engine that does right", ["engine-as-replayed"], None, None),
]
PROMPTS = ["Why is the sky blue?", "Name three colours.", "How do I list files in a folder?", "Write a haiku about rain."]


def main():
    aerie, target, work = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    traces, asked, fixed = work / "traces", work / "asked", work / "fixed"
    outcomes = {"right": 0, "one of two": 0, "harmless": 0, "unknown": 0, "WRONG": 0}

    def named_beside(reply):
        """The code of the reading that cannot be told from the one that is named first."""
        for search in reply.get("hypotheses", []):
            for search_round in search["rounds"][:1]:
                if search_round["tie"] is not None:
                    return "wrong-" + search_round["finalists"][search_round["tie"]]["axis"].replace("_", "-")
        return None

    def show(rows, fault, codes, findings, beside=None, planted_walk="", mended_walk="", harmless=False):
        order = {"error": 0, "warning": 1, "note": 2}
        first = min(findings, key=lambda f: order[f["severity"]], default={"code": "nothing", "severity": "note"})
        if first["code"] in codes:
            outcome = "right"
        elif first["severity"] == "error" or fault == "nothing":
            outcome = "WRONG"
        elif first["severity"] == "warning" and beside in codes:
            outcome = "one of two"
        else:
            outcome = "harmless" if harmless else "unknown"
        outcomes[outcome] += 1
        print(f"{rows:7} {fault:58} {first['code']:30} {outcome:10} {planted_walk:12} {mended_walk}".rstrip(), flush=True)

    def ran(*arguments):
        return subprocess.run([aerie, *map(str, arguments), "--json"], capture_output=True, text=True, check=False)

    def done(*arguments):
        reply = ran(*arguments)
        if reply.returncode != 0:
            raise SystemExit(f"aerie {arguments[0]} failed: {reply.stderr}")
        return json.loads(reply.stdout)

    def walk(drafter):
        """Acceptance length of the replay, or None where the files are refused."""
        reply = ran("eval", "-m", target, "-d", drafter, "--traces", traces, "-k", 3)
        return json.loads(reply.stdout)["walk_acceptance_length"] if reply.returncode == 0 else None

    def text(length):
        return "-" if length is None else f"{length:.4f}"

    def capture(prompts, out, *arguments):
        subprocess.run([aerie, "capture", "-m", target, "--prompts", prompts, "--taps", BOUNDARIES, "--out", out, *arguments], check=True)

    work.mkdir(parents=True, exist_ok=True)
    lines = [line for name in ("mt_bench", "gsm8k") for line in (REPO / f"data/eval/{name}.jsonl").read_text(encoding="utf-8").splitlines()[:80]]
    (work / "conversations.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    capture(work / "conversations.jsonl", traces, "-n", "100")
    (work / "prompts.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS), encoding="utf-8")
    capture(work / "prompts.jsonl", asked, "-n", "60")
    shipped = walk(DRAFTER)
    print(f"acceptance length of the shipped drafter in the replay, k = 3: {text(shipped)}")
    print(f"{'row':7} {'fault':58} {'first answer':30} {'':10} {'as planted':12} as --fix wrote it")
    for rows, fault, codes, config_change, tensor_change in FILE_FAULTS:
        drafter = planted(work / "drafter", config_change, tensor_change)
        shutil.rmtree(fixed, ignore_errors=True)
        reply = done("doctor", "-m", target, "-d", drafter, "--traces", traces, "--fix", fixed)
        length = walk(drafter)
        planted_something = config_change is not None or tensor_change is not None
        harmless = planted_something and length is not None and shipped - length < NAMED_COST * (shipped - 1)
        show(rows, fault, codes, reply["findings"], named_beside(reply), text(length), text(walk(fixed)) if fixed.exists() else "-", harmless)
    for rows, fault, codes, config_change, tensor_change in ENGINE_FAULTS:
        drafter, trace = planted(work / "drafter", config_change, tensor_change), work / "trace"
        shutil.rmtree(trace, ignore_errors=True)
        for prompt in PROMPTS:
            done("run", "-m", target, "-d", drafter, "-k", 3, "-n", 60, "-p", prompt, "--trace", trace)
        findings = done("doctor", "-m", target, "-d", DRAFTER, "--traces", asked, "--engine-trace", trace)["findings"]
        show(rows, fault, codes, [f for f in findings if f["code"].startswith("engine-")])
    total = sum(outcomes.values()) - outcomes["harmless"]
    print(f"{total} cases: {outcomes['right']} right, {outcomes['one of two']} one of two, {outcomes['unknown']} unknown, {outcomes['WRONG']} confidently wrong; "
          f"{outcomes['harmless']} faults that cost too little to be named")
    return 0 if outcomes["WRONG"] == 0 and outcomes["right"] + outcomes["one of two"] >= LEAST * total else 1


if __name__ == "__main__":
    sys.exit(main())
