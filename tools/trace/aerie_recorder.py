"""Records what the EAGLE-3 drafter of SGLang or vLLM is handed and answers, as docs/trace-format.md has it. One file, standard library only.

It wraps the drafter's module from outside; nothing of the engine is changed. Serve one request at a time, greedily, in a chain, on one
GPU, with the Python forward really called: SGLang with --disable-cuda-graph, vLLM with --enforce-eager.

    recorder = aerie_recorder.Recorder("trace", engine="sglang 0.5.23", drafter="/models/drafter")
    aerie_recorder.wrap_sglang(draft_model, recorder)        # or wrap_vllm(draft_model, recorder)
    ... one request ...
    recorder.finish(token_ids=prompt_ids + answer_ids, prompt_tokens=len(prompt_ids))

Signatures as of SGLang 0.5.23 (LlamaForCausalLMEagle3.forward) and vLLM 0.33 (Eagle3LlamaForCausalLM.combine_hidden_states, forward,
compute_logits). Then: aerie doctor -d DRAFTER --engine-trace trace
"""

import array
import json
import os
import pathlib
import struct
import sys

FORMAT, FORMAT_VERSION = "aerie-engine-trace", 1


def _numbers(values):
    """A list, or list of lists, of whatever holds numbers: a tensor of any type and device, an array, a list."""
    for name in ("detach", "float", "cpu"):
        if hasattr(values, name):
            values = getattr(values, name)()
    return values.tolist() if hasattr(values, "tolist") else [list(v) if hasattr(v, "__len__") else v for v in values]


def _integers(values):
    return [int(v) for v in _numbers(values)]


class Recorder:
    """Gathers one request's calls; finish() sorts them into rows, steps and cycles and writes them."""

    def __init__(self, folder, engine, drafter="", top=8):
        self.folder, self.top = pathlib.Path(folder), top
        self.calls = []
        self.folder.mkdir(parents=True, exist_ok=True)
        manifest = {"format": FORMAT, "format_version": FORMAT_VERSION, "engine": engine, "drafter": drafter}
        path = self.folder / "engine.json"
        if path.exists() and json.loads(path.read_text(encoding="utf-8")) != manifest:
            raise ValueError(f"{path} is of another engine or drafter: use another folder")
        _write(path, (json.dumps(manifest, indent=2) + "\n").encode())

    def extend(self, tokens, positions, features):
        """Rows fed with the target's features: tokens [T], positions [T] (or [3, T]), features [T, W]."""
        self.calls.append({"tokens": _integers(tokens), "positions": _positions(positions), "features": _numbers(features), "best": {}})

    def step(self, tokens, positions):
        """A later draft step: the first row is looked at."""
        self.calls.append({"tokens": _integers(tokens)[:1], "positions": _positions(positions)[:1], "features": None, "best": {}})

    def logits(self, rows, to_target=None):
        """Logits [n, Vd or V] of the call before: n is 1 (its last real row) or its number of rows. to_target maps draft ids to target ids."""
        if not self.calls:
            return
        best = {}
        for number, row in enumerate(_numbers(rows)):
            order = sorted(range(len(row)), key=lambda i: (-row[i], i))[: self.top]
            best[number] = [(int(to_target[i]) if to_target is not None else i, float(row[i])) for i in order]
        self.calls[-1]["best"] = best

    def finish(self, token_ids, prompt_tokens, cached_tokens=None):
        """The request is over: its prompt and answer are known. Writes it, and begins the next."""
        calls, self.calls = self.calls, []
        tokens = _integers(token_ids)
        ahead = _alignment(calls, tokens)
        rows, steps, cycles = [], [], []
        fed_next = [c["positions"][0] for c in calls if c["features"] is not None and c["positions"]][1:]
        for call in calls:
            if call["features"] is None:
                if cycles and call["best"]:
                    step = 1 + sum(1 for s in steps if s["cycle"] == len(cycles) - 1 and s["step"] > 0)
                    steps.append({"cycle": len(cycles) - 1, "step": step, "token": call["tokens"][0], "position": call["positions"][0], "best": call["best"][0]})
                continue
            real = _real_rows(call, tokens, ahead, bool(rows), fed_next.pop(0) if fed_next else None)
            if real == 0:
                continue
            newest = call["positions"][real - 1] + ahead
            last = len(call["tokens"]) == real or len(call["best"]) == 1
            begins = bool(call["best"]) and (newest >= prompt_tokens or last)
            for i in range(real):
                rows.append({"token": call["tokens"][i], "position": call["positions"][i], "cycle": len(cycles), "feature": call["features"][i]})
            if newest < prompt_tokens or not begins:
                continue  # a chunk of the prompt, after which nothing is drafted
            best = call["best"][0] if len(call["best"]) == 1 else call["best"][real - 1]
            steps.append({"cycle": len(cycles), "step": 0, "token": call["tokens"][real - 1], "position": call["positions"][real - 1], "best": best})
            cycles.append({"newest": newest})
        for number, cycle in enumerate(cycles):
            cycle["drafts"] = [s["best"][0][0] for s in steps if s["cycle"] == number]
            if number + 1 < len(cycles):
                cycle["accepted"] = cycles[number + 1]["newest"] - cycle["newest"] - 1
            else:
                cycle["accepted"] = _confirmed(cycle["drafts"], tokens, cycle["newest"])
        for row in rows:
            row["cycle"] = min(row["cycle"], max(0, len(cycles) - 1))
        first = min((r["position"] for r in rows), default=0)
        cached = max(0, min(first + ahead - 1, prompt_tokens)) if cached_tokens is None else cached_tokens
        self._write(tokens, prompt_tokens, cached, rows, steps, cycles)

    def _write(self, tokens, prompt, cached, rows, steps, cycles):
        number = 1 + max((int(p.stem.split("_")[1]) for p in self.folder.glob("request_*.jsonl")), default=-1)
        width = len(rows[0]["feature"]) if rows else 0
        top = min((len(s["best"]) for s in steps), default=0)
        tensors = {
            "rows.token": ("I64", [len(rows)], [r["token"] for r in rows]),
            "rows.position": ("I64", [len(rows)], [r["position"] for r in rows]),
            "rows.cycle": ("I64", [len(rows)], [r["cycle"] for r in rows]),
            "steps.cycle": ("I64", [len(steps)], [s["cycle"] for s in steps]),
            "steps.step": ("I64", [len(steps)], [s["step"] for s in steps]),
            "steps.token": ("I64", [len(steps)], [s["token"] for s in steps]),
            "steps.position": ("I64", [len(steps)], [s["position"] for s in steps]),
            "steps.top_tokens": ("I64", [len(steps), top], [t for s in steps for t, _ in s["best"][:top]]),
            "steps.top_logits": ("F32", [len(steps), top], [x for s in steps for _, x in s["best"][:top]]),
            "rows.feature": ("F32", [len(rows), width], [x for r in rows for x in r["feature"]]),
        }
        _write(self.folder / f"request_{number}.safetensors", _safetensors(tensors))
        lines = [{"token_ids": tokens, "prompt_tokens": prompt, "cached_tokens": cached}] + cycles
        _write(self.folder / f"request_{number}.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())


def wrap_sglang(model, recorder):
    """model: the drafter's LlamaForCausalLMEagle3. Its forward is called with the rows of one request."""
    inner = model.forward

    def forward(input_ids, positions, forward_batch, *args, **kwargs):
        features = forward_batch.spec_info.hidden_states
        extends = forward_batch.forward_mode.is_extend() or getattr(forward_batch.forward_mode, "is_draft_extend", lambda: False)()
        if extends:
            recorder.extend(input_ids, positions, features)
        else:
            recorder.step(input_ids, positions)
        result = inner(input_ids, positions, forward_batch, *args, **kwargs)
        if getattr(result, "next_token_logits", None) is not None:
            table = getattr(model, "hot_token_id", None)
            recorder.logits(result.next_token_logits, None if table is None else _integers(table))
        return result

    model.forward = forward


def wrap_vllm(model, recorder):
    """model: the drafter's Eagle3LlamaForCausalLM. A forward that follows combine_hidden_states is fed with the target's features."""
    combine, inner, compute = model.combine_hidden_states, model.forward, model.compute_logits
    waiting = []

    def combine_hidden_states(hidden_states):
        waiting[:] = [hidden_states]
        return combine(hidden_states)

    def forward(input_ids, positions, hidden_states, *args, **kwargs):
        if waiting:
            recorder.extend(input_ids, positions, waiting.pop())
        else:
            recorder.step(input_ids, positions)
        return inner(input_ids, positions, hidden_states, *args, **kwargs)

    def compute_logits(hidden_states, *args, **kwargs):
        logits = compute(hidden_states, *args, **kwargs)
        recorder.logits(logits)
        return logits

    model.combine_hidden_states, model.forward, model.compute_logits = combine_hidden_states, forward, compute_logits


def _positions(positions):
    values = _numbers(positions)
    return [int(v) for v in (values[0] if values and isinstance(values[0], list) else values)]  # of [3, T] the first: text


def _alignment(calls, tokens):
    """The row at position p consumes token p + ahead: 1 where an engine does right."""
    def hits(ahead):
        pairs = [(p + ahead, t) for c in calls if c["features"] is not None for p, t in zip(c["positions"], c["tokens"])]
        return sum(1 for at, t in pairs if 0 <= at < len(tokens) and tokens[at] == t)

    return max((1, 0, 2, -1), key=hits)


def _real_rows(call, tokens, ahead, after_prompt, fed_next):
    """How many rows come before the first that was rejected: those of drafts which the answer does not confirm, those whose position is
    fed again by the next call, and padding."""
    if not after_prompt:
        return len(call["tokens"])
    for number, (position, token) in enumerate(zip(call["positions"], call["tokens"])):
        at = position + ahead
        again = fed_next is not None and position >= fed_next
        if again or at >= len(tokens) or tokens[at] != token or (number > 0 and position != call["positions"][number - 1] + 1):
            return number
    return len(call["tokens"])


def _confirmed(drafts, tokens, newest):
    left, count = len(tokens) - newest - 1, 0
    while count < len(drafts) and count < left and tokens[newest + 1 + count] == drafts[count]:
        count += 1
    return count if count < left else max(0, left - 1)  # the last token counts as the target's own


def _safetensors(tensors):
    header, data = {}, b""
    for name, (kind, shape, values) in tensors.items():
        if not values:
            continue  # nothing was fed, or nothing drafted
        packed = array.array("q" if kind == "I64" else "f", values)
        if sys.byteorder == "big":
            packed.byteswap()
        begin, data = len(data), data + packed.tobytes()
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def _write(path, data):
    temporary = path.with_name(f"{path.name}.tmp.{os.getpid()}")
    temporary.write_bytes(data)
    os.replace(temporary, path)
