"""The recorder against stand-ins with the signatures of the engines' modules: what is written is what they were handed.

    test_recorder.py             checks (run by ctest)
    test_recorder.py FOLDER      writes FOLDER/sglang and FOLDER/vllm, which the C++ reader's test reads (tests/formats/data/recorded)
"""

import json
import pathlib
import random
import struct
import sys
import tempfile
import types

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import aerie_recorder

WIDTH, DRAFTS, PROMPT, LENGTH, DRAFT_VOCAB, VOCAB = 6, 3, 5, 24, 16, 33
TO_TARGET = [2 * d + 1 for d in range(DRAFT_VOCAB)]


class Rows(list):
    """As much of a tensor as the recorder uses."""

    def tolist(self):
        return [list(v) if isinstance(v, (list, Rows)) else v for v in self]


def feature(position):
    return Rows([position + c / 8 for c in range(WIDTH)])


def script(seed):
    """A text, and what the stand-in drafts at each cycle: right as often as not."""
    rng = random.Random(seed)
    tokens = [rng.randrange(VOCAB) for _ in range(LENGTH)]
    cycles, newest = [], PROMPT
    while newest + 1 < LENGTH:
        drafts = []
        for s in range(min(DRAFTS, LENGTH - 2 - newest)):
            right = tokens[newest + 1 + s]
            drafts.append(right if right % 2 == 1 and rng.random() < 0.7 else rng.choice([t for t in TO_TARGET if t != right]))
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == tokens[newest + 1 + accepted]:
            accepted += 1
        cycles.append({"newest": newest, "drafts": drafts, "accepted": accepted})
        newest += accepted + 1
    return tokens, cycles


def logits_for(target, vocab, to_target):
    row = [0.0] * vocab
    row[to_target.index(target) if to_target else target] = 2.0
    row[(row.index(2.0) + 1) % vocab] = 1.0
    return row


def calls(tokens, cycles):
    """(kind, tokens, positions, features, drafted token by row or None) as an engine with shifted ids and rejected rows makes them."""
    out, fed = [], 0
    for number, cycle in enumerate(cycles):
        newest, before = cycle["newest"], cycles[number - 1] if number else None
        ids = tokens[fed + 1 : newest + 1]
        if before:
            ids = ids + before["drafts"][before["accepted"] :]  # rejected rows stand behind the real ones
        positions = list(range(fed, fed + len(ids)))
        real = newest - fed
        first = cycle["drafts"][0] if cycle["drafts"] else None
        out.append(("extend", ids, positions, [feature(p) for p in positions], real, first))
        for s in range(1, len(cycle["drafts"])):
            out.append(("step", [cycle["drafts"][s - 1]], [newest - 1 + s], None, 1, cycle["drafts"][s]))
        fed = newest
    return out


def play_sglang(recorder, tokens, cycles):
    class Mode:
        def __init__(self, extends):
            self.extends = extends

        def is_extend(self):
            return self.extends

    class LlamaForCausalLMEagle3:
        hot_token_id = Rows(TO_TARGET)

        def forward(self, input_ids, positions, forward_batch, input_embeds=None, get_embedding=False, pp_proxy_tensors=None):
            return types.SimpleNamespace(next_token_logits=self.answer, hidden_states=None)

    model = LlamaForCausalLMEagle3()
    aerie_recorder.wrap_sglang(model, recorder)
    for number, (kind, ids, positions, features, real, drafted) in enumerate(calls(tokens, cycles)):
        rows = [logits_for(drafted, DRAFT_VOCAB, TO_TARGET) if drafted is not None else [0.0] * DRAFT_VOCAB]
        if kind == "extend" and number > 0:  # all rows have logits after a verify, the last one alone after the prompt
            rows = [rows[0] if i == real - 1 else [0.0] * DRAFT_VOCAB for i in range(len(ids))]
        model.answer = Rows(rows) if drafted is not None else None
        batch = types.SimpleNamespace(forward_mode=Mode(kind == "extend"), spec_info=types.SimpleNamespace(hidden_states=Rows(features or [feature(0)])))
        model.forward(Rows(ids), Rows(positions), batch)


def play_vllm(recorder, tokens, cycles):
    class Eagle3LlamaForCausalLM:
        def combine_hidden_states(self, hidden_states):
            return Rows([row[:2] for row in hidden_states])

        def forward(self, input_ids, positions, hidden_states, inputs_embeds=None):
            return hidden_states, hidden_states

        def compute_logits(self, hidden_states):
            return self.answer

    model = Eagle3LlamaForCausalLM()
    aerie_recorder.wrap_vllm(model, recorder)
    for kind, ids, positions, features, _, drafted in calls(tokens, cycles):
        hidden = model.combine_hidden_states(Rows(features)) if kind == "extend" else Rows([feature(0)])
        model.forward(input_ids=Rows(ids), positions=Rows([Rows(positions)] * 3), hidden_states=hidden)
        if drafted is not None:
            model.answer = Rows([logits_for(drafted, VOCAB, None)])
            model.compute_logits(hidden)


def read(folder, number):
    data = (folder / f"request_{number}.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    out = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        begin, end = entry["data_offsets"]
        kind, size = ("q", 8) if entry["dtype"] == "I64" else ("f", 4)
        out[name] = list(struct.unpack(f"<{(end - begin) // size}{kind}", data[8 + length + begin : 8 + length + end]))
    lines = [json.loads(line) for line in (folder / f"request_{number}.jsonl").read_text(encoding="utf-8").splitlines()]
    return out, lines[0], lines[1:]


def check(folder, number, tokens, cycles):
    tensors, head, written = read(folder, number)
    assert head == {"token_ids": tokens, "prompt_tokens": PROMPT, "cached_tokens": 0}, head
    drafting = [c for c in cycles if c["drafts"]]
    assert written == drafting, (written, drafting)
    last = cycles[-1]["newest"]  # where it drafted nothing its rows were fed all the same
    assert tensors["rows.position"] == list(range(last)), tensors["rows.position"]
    assert tensors["rows.token"] == tokens[1 : last + 1]
    assert tensors["rows.feature"] == [x for p in range(last) for x in feature(p)]
    steps = [(c, s) for c, cycle in enumerate(drafting) for s in range(len(cycle["drafts"]))]
    assert list(zip(tensors["steps.cycle"], tensors["steps.step"])) == steps
    assert tensors["steps.position"] == [drafting[c]["newest"] - 1 + s for c, s in steps]
    assert tensors["steps.token"] == [drafting[c]["drafts"][s - 1] if s else tokens[drafting[c]["newest"]] for c, s in steps]
    top = len(tensors["steps.top_tokens"]) // len(steps)
    assert tensors["steps.top_tokens"][::top] == [drafting[c]["drafts"][s] for c, s in steps]
    assert set(tensors["steps.top_logits"][::top]) == {2.0}


def main():
    for play, engine in ((play_sglang, "sglang"), (play_vllm, "vllm")):
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(sys.argv[1]) / engine if len(sys.argv) > 1 else pathlib.Path(scratch)
            seeds = range(2) if len(sys.argv) > 1 else range(20)
            for number, seed in enumerate(seeds):
                tokens, cycles = script(seed)
                recorder = aerie_recorder.Recorder(folder, engine=f"{engine} 0", drafter="stand-in", top=2)
                play(recorder, tokens, cycles)
                recorder.finish(tokens, PROMPT)
                check(folder, number, tokens, cycles)
            try:
                aerie_recorder.Recorder(folder, engine="another 1")
                raise AssertionError("a folder of another engine was joined")
            except ValueError:
                pass
    print("recorders: as the engines were handed it")


if __name__ == "__main__":
    main()
