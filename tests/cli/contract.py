"""The contract of the command line: contract.py AERIE. Exit codes, JSON keys, one-sentence errors, nothing half-written.

Needs the target model in the cache (scripts/fetch-model.sh) and the shipped drafter. Uses only Python's standard library.
"""

import json
import os
import pathlib
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

AERIE = sys.argv[1]
REPO = pathlib.Path(__file__).resolve().parents[2]
DRAFTER = REPO / "models" / "smollm2-135m-eagle3"


def model_path():
    root = os.environ.get("AERIE_MODELS") or pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "aerie"
    return pathlib.Path(root) / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"


def limit_file_size():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit then fails as on a full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


def aerie(*arguments, full_disk=False, stdin=None):
    return subprocess.run([AERIE, *map(str, arguments)], capture_output=True, text=True, input=stdin, cwd=REPO,
                          preexec_fn=limit_file_size if full_disk else None, timeout=600)


def read_safetensors(path):
    """name -> (shape, flat list of numbers); F32, BF16 and I64 only."""
    data = pathlib.Path(path).read_bytes()
    start = 8 + struct.unpack_from("<Q", data)[0]
    tensors = {}
    for name, entry in json.loads(data[8:start]).items():
        if name == "__metadata__":
            continue
        raw = data[start + entry["data_offsets"][0]:start + entry["data_offsets"][1]]
        if entry["dtype"] == "BF16":
            raw = b"".join(b"\0\0" + raw[i:i + 2] for i in range(0, len(raw), 2))
        form = {"F32": "f", "BF16": "f", "I64": "q"}[entry["dtype"]]
        tensors[name] = (entry["shape"], list(struct.unpack(f"<{len(raw) // struct.calcsize(form)}{form}", raw)))
    return tensors


def write_safetensors(path, tensors):
    """tensors: name -> (shape, numbers); integers become I64, floats F32."""
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        integers = all(isinstance(value, int) for value in values)
        raw = struct.pack(f"<{len(values)}{'q' if integers else 'f'}", *values)
        header[name] = {"dtype": "I64" if integers else "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


class Contract(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def write(self, name, content):
        path = self.folder / name
        path.write_text(content, encoding="utf-8")
        return path

    def done(self, *arguments, **keywords):
        result = aerie(*arguments, **keywords)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def refused(self, code, *arguments, says, **keywords):
        result = aerie(*arguments, **keywords)
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        for words in says:
            self.assertIn(words, result.stderr)
        return result

    def one_sentence(self, result):
        self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
        self.assertEqual(result.stdout, "")

    def test_run_json(self):
        arguments = ["run", "-m", "smollm2", "-d", "smollm2", "-p", "Name three colours.", "-n", "24", "--json"]
        reply = json.loads(self.done(*arguments, "-k", "3").stdout)
        for key in ("text", "token_ids", "prompt_tokens", "generated_tokens", "finish_reason", "prefill_seconds", "decode_seconds",
                    "decode_tokens_per_second", "draft", "peak_rss_bytes"):
            self.assertIn(key, reply)
        draft = reply["draft"]
        self.assertEqual(draft["k"], 3)
        self.assertEqual(len(draft["accepted_per_position"]), 3)
        self.assertEqual(len(draft["accepted_per_cycle"]), draft["cycles"])
        self.assertAlmostEqual(draft["acceptance_length"], 1 + draft["accepted"] / draft["cycles"])
        self.assertEqual(reply["generated_tokens"], len(reply["token_ids"]))
        plain = json.loads(self.done(*arguments, "-k", "0").stdout)
        self.assertEqual(plain["token_ids"], reply["token_ids"])
        self.assertEqual(plain["text"], reply["text"])

    def test_run_streams_text_and_writes_stats(self):
        stats = self.folder / "stats.json"
        result = self.done("run", "-m", model_path(), "-p", "Say hello.", "-n", "8", "--stats", stats)
        self.assertEqual(result.stdout.rstrip("\n"), json.loads(stats.read_text())["text"].rstrip("\n"))
        self.assertIn("tokens/s", result.stderr)

    def test_messages_equal_prompt(self):
        messages = self.write("m.json", json.dumps([{"role": "user", "content": "Hi there"}]))
        by_file = json.loads(self.done("run", "-m", "smollm2", "--messages", messages, "-n", "6", "--json").stdout)
        by_flag = json.loads(self.done("run", "-m", "smollm2", "-p", "Hi there", "-n", "6", "--json").stdout)
        self.assertEqual(by_file["token_ids"], by_flag["token_ids"])
        raw = json.loads(self.done("run", "-m", "smollm2", "-p", "Hi there", "--raw", "-n", "6", "--json").stdout)
        self.assertEqual(raw["prompt_tokens"], 2)

    def test_capture_eval_and_resume(self):
        prompts = self.write("p.jsonl", "\n".join(json.dumps({"prompt": f"Count to {n}."}) for n in (3, 4, 5)))
        traces = self.folder / "traces"
        capture = ["capture", "-m", "smollm2", "--prompts", prompts, "--out", traces, "-n", "12"]
        self.done(*capture, "--limit", "2")
        self.assertEqual(len(list(traces.glob("hs_*.safetensors"))), 2)
        self.done(*capture)
        self.assertEqual(len(list(traces.glob("hs_*.safetensors"))), 3)
        manifest = json.loads((traces / "manifest.json").read_text())
        self.assertEqual(manifest["taps"], [2, 15, 27])
        reply = json.loads(self.done("eval", "-m", "smollm2", "-d", "smollm2", "--traces", traces, "-k", "3", "--json").stdout)
        self.assertGreaterEqual(reply["walk_acceptance_length"], 1)
        self.assertEqual(len(reply["steps"]), 3)
        for step in reply["steps"]:
            self.assertTrue(0 <= step["unconditional"] <= 1 and 0 <= step["conditional"] <= 1)
        self.assertTrue(0 < reply["coverage"] <= 1)
        self.refused(2, *capture, "--taps", "1,2,3", says=["taps"])
        self.refused(2, *capture, "--temperature", "0,1", says=["generation differs", "sampled"])
        self.refused(2, *capture, "--seed", "2", says=["--temperature"])
        self.one_sentence(self.refused(2, "eval", "-d", "smollm2", "--traces", traces, says=["embedding", "-m"]))
        # Other taps than the drafter's own are looked for among the captured ones.
        self.one_sentence(self.refused(2, "eval", "-m", "smollm2", "-d", "smollm2", "--taps", "3,15,27", "--traces", traces, says=["boundary 3"]))

    def test_wrong_taps_cost_acceptance_and_never_the_answer(self):
        def run(*arguments):
            return json.loads(self.done("run", "-m", "smollm2", "-p", "Count from one to ten.", "-n", "40", "--json", *arguments).stdout)

        plain, right = run(), run("-d", "smollm2", "-k", "2")
        wrong = run("-d", "smollm2", "-k", "2", "--taps", "embed,2,15")
        self.assertEqual(plain["token_ids"], right["token_ids"])
        self.assertEqual(plain["token_ids"], wrong["token_ids"])
        self.assertLess(wrong["draft"]["accepted"], right["draft"]["accepted"])
        self.refused(2, "run", "-m", "smollm2", "-d", "smollm2", "-p", "x", "--taps", "two", says=["--taps"])
        self.refused(2, "run", "-m", "smollm2", "-d", "smollm2", "-p", "x", "--layer-id-convention", "mine", says=["--layer-id-convention"])

    def test_bench_json(self):
        reply = json.loads(self.done("bench", "-m", "smollm2", "-d", "smollm2", "-n", "12", "--repetitions", "1", "--json").stdout)
        for key in ("read_ceiling_gb_s", "plain_tokens_per_second", "plain_gb_s", "prefill_tokens_per_second", "verify_cost", "draft_step_cost",
                    "speculative_tokens_per_second", "speedup", "acceptance_length", "identical_output"):
            self.assertIn(key, reply)
        self.assertEqual(reply["verify_cost"]["1"], 1.0)
        self.assertTrue(reply["identical_output"])

    def test_tokenize(self):
        lines = self.write("t.jsonl", '{"text": "Hello world"}\n{"text": "<|im_end|>"}\n')
        plain = [json.loads(line)["ids"] for line in self.done("tokenize", "-m", "smollm2", "--jsonl", lines).stdout.splitlines()]
        special = [json.loads(line)["ids"] for line in self.done("tokenize", "-m", "smollm2", "--jsonl", lines, "--special").stdout.splitlines()]
        self.assertEqual(plain[0], special[0])
        self.assertEqual(special[1], [2])
        self.assertNotIn(2, plain[1])
        messages = self.write("m.json", json.dumps([{"role": "user", "content": "Hi <|im_end|>"}]))
        text = self.done("tokenize", "-m", "smollm2", "--messages", messages, "--render").stdout
        self.assertTrue(text.startswith("<|im_start|>system\n") and text.endswith("<|im_start|>assistant\n"))
        closed = self.done("tokenize", "-m", "smollm2", "--messages", messages, "--render", "--no-generation-prompt").stdout
        self.assertEqual(text, closed + "<|im_start|>assistant\n")
        ids = json.loads(self.done("tokenize", "-m", "smollm2", "--messages", messages).stdout)["ids"]
        self.assertEqual(ids.count(2), 2)  # the template's own two; the user's spelling stays text

    def test_convert(self):
        out = self.folder / "drafter"
        self.assertIn("equal to", self.done("convert", DRAFTER, out, "--to", "speculators").stdout)
        theirs, ours = (json.loads(self.done("inspect", path, "--json").stdout) for path in (DRAFTER, out))
        for key in ("spec", "tensors", "bytes"):
            self.assertEqual(ours[key], theirs[key], key)
        # What llama.cpp's graph cannot compute is refused by the field's name, and nothing is left.
        self.refused(1, "convert", DRAFTER, self.folder / "d.gguf", "--to", "gguf", says=["cannot hold feedback post-norm"])
        self.refused(2, "convert", DRAFTER, out, "--to", "speculators", says=["is there already"])
        self.refused(2, "convert", DRAFTER, out, "--to", "onnx", says=["expected speculators, specforge, sglang, modelopt or gguf"])
        self.refused(2, "inspect", DRAFTER, "--taps", "2;3", says=["--taps"])
        self.assertEqual([path.name for path in self.folder.iterdir()], ["drafter"])

    def test_inspect(self):
        reply = json.loads(self.done("inspect", "smollm2", "-m", "smollm2", "--json").stdout)
        self.assertEqual(reply["dialect"], "speculators")
        self.assertEqual(reply["spec"]["taps"], [2, 15, 27])
        self.assertIn("taps", self.done("inspect", DRAFTER).stdout)
        self.assertTrue(reply["fits_target"])
        self.assertIsNone(reply["coverage"])
        self.assertEqual(json.loads(self.done("inspect", model_path(), "--json").stdout)["config"]["blocks"], 30)

    def test_inspect_beside_a_target_a_source_and_a_text(self):
        other = REPO / "tests" / "eagle3" / "data" / "raw_concat_pre"
        reply = json.loads(self.done("inspect", other, "-m", "smollm2", "--json").stdout)
        self.assertEqual((reply["fits_target"], reply["findings"][0]["severity"], reply["findings"][0]["code"]), (False, "error", "another-target"))
        self.assertIn("error: the drafter was made for a target of hidden width 16", self.done("inspect", other, "-m", "smollm2").stdout)
        self.assertEqual(json.loads(self.done("inspect", other, "--source", other, "--json").stdout)["findings"], [])
        self.assertIn("[differs-from-source]", self.done("inspect", other, "--source", other.with_name("raw_concat_post")).stdout)
        counts = self.write("counts", "".join(f"{token} 1\n" for token in range(40)))
        reply = json.loads(self.done("inspect", other, "--token-frequencies", counts, "--json").stdout)
        self.assertEqual(reply["findings"][0]["code"], "coverage-low")
        for key in ("share", "best"):
            self.assertAlmostEqual(reply["coverage"][key], 0.6)
        self.assertIn("60.00 %", self.done("inspect", other, "--token-frequencies", counts).stdout)
        self.one_sentence(self.refused(2, "inspect", other, "--token-frequencies", self.write("text", "many words"), says=["expected a token id and a count"]))
        self.refused(2, "inspect", model_path(), "--token-frequencies", counts, says=["is for a drafter"])

    def test_inspect_served_by(self):
        served = json.loads(self.done("inspect", "smollm2", "--served-by", "vllm:0.33", "--target-arch", "LlamaForCausalLM", "--target-blocks", "30", "--json").stdout)["served_by"]
        self.assertEqual(len(served), 1)
        self.assertEqual((served[0]["refuses"], served[0]["differences"], served[0]["spec"]["taps"]), (False, [], [2, 15, 27]))
        sglang = json.loads(self.done("inspect", DRAFTER, "--served-by", "sglang:0.5.23", "--json").stdout)["served_by"][0]
        self.assertTrue(sglang["refuses"])
        self.assertIn("llama.cpp", self.done("inspect", DRAFTER, "--served-by", "all").stdout)
        # What is known of the drafter and its target holds for the comparison too.
        served = json.loads(self.done("inspect", DRAFTER, "--served-by", "vllm:0.33", "-m", "smollm2", "--taps", "1,2,3", "--json").stdout)["served_by"][0]
        self.assertEqual([(d["field"], d["trained"], d["served"]) for d in served["differences"]], [("taps", "1,2,3", "2,15,27")])
        self.one_sentence(self.refused(2, "inspect", DRAFTER, "--served-by", "nonsense", says=["nonsense"]))

    def test_doctor(self):
        command = "serve --speculative-algorithm EAGLE3 --speculative-draft-model-path D --speculative-num-steps 1 --speculative-eagle-topk 1 --speculative-num-draft-tokens 16"
        log = self.write("log", "Decode batch, #running-req: 1, accept len: 1.62, accept rate: 0.62\n" * 5)
        reply = json.loads(self.done("doctor", "--engine", "sglang:0.5.23", "--command-line", command, "--log", log, "--verify-ms", "1:10,2:18", "--json").stdout)
        self.assertEqual(reply["findings"][0]["code"], "drafts-fewer-than-asked")
        self.assertEqual(reply["flags"][0]["draft_tokens"], 1)
        self.assertAlmostEqual(reply["metrics"][0]["acceptance_rate"], 0.62)
        self.assertIn("slower-than-plain", [finding["code"] for finding in reply["findings"]])
        self.assertIn("drafts-fewer-than-asked", self.done("doctor", "--engine", "sglang:0.5.23", "--command-line", command).stdout)
        self.one_sentence(self.refused(2, "doctor", "--engine", "sglang", says=["--command-line"]))
        self.one_sentence(self.refused(2, "doctor", "--engine", "nonsense", "--log", log, says=["nonsense"]))
        self.one_sentence(self.refused(1, "doctor", "--engine", "vllm", "--log", log, says=["vLLM"]))
        self.one_sentence(self.refused(1, "doctor", "--engine", "vllm", "--log", "/nonexistent", says=["/nonexistent"]))
        self.one_sentence(self.refused(2, "doctor", "--log", log, says=["--engine"]))

    def test_doctor_replays_stored_states(self):
        prompts = self.write("prompts.jsonl", "".join(json.dumps({"prompt": text}) + "\n" for text in ("Why is the sky blue?", "Name a colour.")))
        traces = self.folder / "traces"
        self.done("capture", "-m", "smollm2", "--prompts", prompts, "--out", traces, "-n", "12", "--taps", "1,2,15,27")
        doctor = ["doctor", "-d", "smollm2", "--traces", traces]
        reply = json.loads(self.done(*doctor, "-m", "smollm2", "--json").stdout)
        self.assertEqual([f["code"] for f in reply["findings"]], ["too-little"])
        self.assertEqual(reply["hypotheses"][0]["states"], ["boundary 1", "boundary 2", "boundary 15", "boundary 27", "boundary 30"])
        self.assertEqual(reply["final_state"][0][0]["state"], "boundary 30 through the final norm")
        self.assertGreater(reply["final_state"][0][0]["agreement"], 0.9)
        self.one_sentence(self.refused(2, *doctor, says=["-m"]))  # the shipped drafter shares the target's embedding
        # A tap that was not captured stops nothing: its neighbour stands for it.
        reply = json.loads(self.done(*doctor, "-m", "smollm2", "--taps", "2,16,27", "--json").stdout)
        self.assertEqual([f["code"] for f in reply["findings"]], ["tap-not-stored", "too-little"])
        self.assertIn("boundary 15 stands for boundary 16", reply["findings"][0]["text"])
        self.one_sentence(self.refused(2, *doctor, "-m", "smollm2", "--slots", "1,2", says=["--slots", "5"]))
        reply = json.loads(self.done(*doctor, "-m", "smollm2", "--teacher", "20", "--json").stdout)
        self.assertIn("teacher-not-stored", [f["code"] for f in reply["findings"]])
        self.refused(2, "doctor", "-d", "smollm2", says=["--traces"])

        # Two conversations name no fault, so that nothing is written; the page and the domains need none.
        page, fixed = self.folder / "report.html", self.folder / "fixed"
        domains = self.write("domains.jsonl", '{"category": "science"}\n{"category": "colours"}\n')
        more = ["-m", "smollm2", "--html", page, "--fix", fixed, "--domains", domains, "--validated", "0.7,0.5"]
        reply = json.loads(self.done(*doctor, *more, "--json").stdout)
        self.assertEqual([f["code"] for f in reply["findings"]], ["too-little", "nothing-written"])
        self.assertFalse(fixed.exists())
        self.assertIn("too few to tell a fault from chance", page.read_text())
        self.one_sentence(self.refused(2, *doctor, "-m", "smollm2", "--domains", self.write("short.jsonl", "{}\n"), says=["short.jsonl", "category"]))
        # What cannot be written takes nothing from the diagnosis.
        refused = self.refused(1, *doctor, "-m", "smollm2", "--html", "/nonexistent/page.html", says=["/nonexistent/page.html"])
        self.assertIn("too few to tell a fault from chance", refused.stdout)
        self.one_sentence(self.refused(2, *doctor, "-m", "smollm2", "--fix", traces, says=["--fix", "is there already"]))
        self.refused(2, *doctor, "-m", "smollm2", "--validated", "74.7", says=["--validated"])

        # What the engine did is what the replay does.
        served = self.folder / "served"
        self.done("run", "-m", "smollm2", "-d", "smollm2", "-k", "3", "-n", "12", "-p", "Why is the sky blue?", "--trace", served)
        reply = json.loads(self.done(*doctor, "-m", "smollm2", "--engine-trace", served, "--json").stdout)
        self.assertIn("engine-as-replayed", [f["code"] for f in reply["findings"]])
        self.assertEqual(reply["engine_trace"][0]["requests_with_states"], 1)
        self.assertEqual([stage["agreed"] for stage in reply["engine_trace"][0]["stages"]], [stage["compared"] for stage in reply["engine_trace"][0]["stages"]])
        self.one_sentence(self.refused(2, "run", "-m", "smollm2", "-n", "2", "-p", "x", "--trace", served, says=["drafter"]))

    def test_data_check(self):
        prompts = self.write("prompts.jsonl", "".join(json.dumps({"prompt": text}) + "\n" for text in ("Why is the sky blue?", "Name a colour.")))
        traces = self.folder / "traces"
        self.done("capture", "-m", "smollm2", "--prompts", prompts, "--out", traces, "-n", "24")
        reply = json.loads(self.done("data", "check", traces, "-m", "smollm2", "--json").stdout)
        self.assertEqual(reply["findings"], [])
        self.assertEqual(reply["data"][0]["conversations"], 2)
        self.assertEqual(reply["data"][0]["unreadable"], 0)
        states = traces / "hs_0.safetensors"
        states.write_bytes(states.read_bytes()[:-100])
        refused = self.refused(1, "data", "check", traces, "-m", "smollm2", says=["not fit"])
        self.assertIn("1 of 2 conversations cannot be read", refused.stdout)
        self.refused(1, "data", "check", "/nonexistent", says=["/nonexistent"])
        self.refused(2, "data", says=["subcommand"])

    def forward(self, drafter, tensors, *arguments):
        output = self.folder / "out.safetensors"
        self.done("forward", "-d", drafter, "--input", write_safetensors(self.folder / "in.safetensors", tensors), "--output", output, *arguments)
        return read_safetensors(output)

    def assert_close(self, found, expected, tolerance):
        self.assertEqual(len(found), len(expected))
        self.assertLess(max(abs(a - b) for a, b in zip(found, expected)), tolerance)

    def test_forward_agrees_with_the_numpy_reference(self):
        drafter = REPO / "tests" / "eagle3" / "data" / "normed_none_pre"
        case = read_safetensors(drafter / "case.safetensors")
        (length, width), features = case["features"]
        tensors = {"features": ([length - 1, width], features[:(length - 1) * width]), "token_ids": ([length - 1], case["tokens"][1][1:])}
        rows, (steps, _, vocab) = case["rows"][1], case["logits"][0]
        # Eight bits leave much less of drafters as small and steep as this one; tests/eagle3 holds what they compute.
        for precision, tolerance in ([], 1.0), (["--float32"], 1e-4):
            out = self.forward(drafter, tensors, "--steps", steps, *precision)
            self.assertEqual(sorted(out), [f"logits_{s}" for s in range(steps)])
            for s in range(steps):
                shape, logits = out[f"logits_{s}"]
                self.assertEqual(shape, [length - 1, vocab])
                known = [value for row in rows for value in logits[row * vocab:(row + 1) * vocab]]
                self.assert_close(known, case["logits"][1][s * len(known):(s + 1) * len(known)], tolerance)

    def test_forward_agrees_with_speculators(self):
        drafter = REPO / "tests" / "eagle3" / "speculators_data" / "normed_fc_norm_post"
        case = read_safetensors(drafter / "case.safetensors")
        out = self.forward(drafter, {name: case[name] for name in ("features", "token_ids")}, "--steps", 3, "--first-position", 1, "--float32")
        for name, (shape, logits) in out.items():
            self.assertEqual(shape, case[name][0])
            self.assert_close(logits, case[name][1], 1e-4)

    def test_forward_refuses_bad_input(self):
        drafter = REPO / "tests" / "eagle3" / "data" / "normed_none_pre"
        output = self.folder / "out.safetensors"

        def refused(code, tensors, *arguments, says, drafter=drafter):
            path = write_safetensors(self.folder / "in.safetensors", tensors)
            result = self.refused(code, "forward", "-d", drafter, "--input", path, "--output", output, *arguments, says=says)
            self.assertFalse(output.exists())
            return result

        features, ids = ([2, 48], [0.5] * 96), ([2], [3, 4])
        good = {"features": features, "token_ids": ids}
        self.one_sentence(refused(1, {"features": features}, says=["token_ids"]))
        self.one_sentence(refused(1, {"token_ids": ids}, says=["features"]))
        self.one_sentence(refused(2, {**good, "features": ([2, 47], [0.5] * 94)}, says=["[2, 47]", "[L, 48]", "3 states of width 16"]))
        self.one_sentence(refused(2, {**good, "features": ([96], [0.5] * 96)}, says=["[96]"]))
        self.one_sentence(refused(2, {**good, "token_ids": ([3], [3, 4, 5])}, says=["[3]", "[2]"]))
        self.one_sentence(refused(2, {**good, "token_ids": ([2], [3, 40])}, says=["token_ids[1] is 40", "40"]))
        self.one_sentence(refused(1, {**good, "token_ids": ([2], [3.0, 4.0])}, says=["token_ids", "F32"]))
        self.one_sentence(refused(1, {**good, "features": ([2, 48], [1] * 96)}, says=["features", "I64"]))
        self.one_sentence(refused(2, {**good, "features": ([2, 48], [0.5] * 50 + [float("nan")] + [0.5] * 45)}, says=["features[1, 2] is nan"]))
        self.one_sentence(refused(1, {"features": ([0, 48], []), "token_ids": ([0], [])}, says=["dimension of 0"]))
        self.one_sentence(refused(2, good, says=["embedding", "-m"], drafter=DRAFTER.parents[1] / "tests" / "eagle3" / "data" / "raw_concat_pre"))
        refused(2, good, "--steps", "0", says=["--steps"])
        refused(2, good, "--first-position", "2", says=["--first-position"])
        self.one_sentence(refused(1, good, says=["/nonexistent"], drafter="/nonexistent"))
        self.one_sentence(self.refused(1, "forward", "-d", drafter, "--input", "/nonexistent", "--output", output, says=["/nonexistent"]))

    def test_forward_with_a_shared_embedding(self):
        count = 3
        tensors = {"features": ([count, 3 * 576], [0.01 * (i % 97) for i in range(count * 3 * 576)]), "token_ids": ([count], [1, 2, 3])}
        out = self.forward("smollm2", tensors, "-m", "smollm2", "--steps", 2)
        self.assertEqual(out["logits_1"][0][0], count)

    def test_chat(self):
        result = self.done("chat", "-m", "smollm2", "-d", "smollm2", "-n", "12", stdin="Say one word.\nAnd another.\n\n")
        self.assertEqual(result.stderr.count("tokens/s"), 2)

    def test_bad_usage(self):
        self.refused(2, says=[])
        self.refused(2, "nonsense", says=[])
        self.refused(2, "run", says=["--model"])
        self.refused(2, "run", "-m", "smollm2", says=["-p"])
        self.refused(2, "run", "-m", "smollm2", "-p", "x", "-k", "17", says=["--draft-tokens"])
        self.refused(2, "run", "-m", "smollm2", "-p", "x", "-k", "2", says=["no drafter"])
        self.refused(2, "run", "-m", "smollm2", "-p", "x", "--threads", "100000", says=["--threads"])
        self.refused(2, "run", "-m", "smollm2", "-p", "x", "--isa", "mmx", says=["mmx"])

    def test_missing_and_damaged_files(self):
        self.one_sentence(self.refused(1, "run", "-m", "/nonexistent.gguf", "-p", "x", says=["/nonexistent.gguf"]))
        self.one_sentence(self.refused(1, "run", "-m", "smollm2", "-d", "/nonexistent", "-p", "x", says=["/nonexistent"]))
        cut = self.folder / "cut.gguf"
        with open(model_path(), "rb") as source:
            cut.write_bytes(source.read(5_000_000))
        self.one_sentence(self.refused(1, "run", "-m", cut, "-p", "x", says=["cut.gguf"]))
        cut.write_bytes(b"not a model at all")
        self.one_sentence(self.refused(1, "run", "-m", cut, "-p", "x", says=["cut.gguf"]))
        self.one_sentence(self.refused(1, "eval", "-m", "smollm2", "-d", "smollm2", "--traces", self.folder, says=["manifest.json"]))

    def test_a_drafter_of_another_target_names_both_sizes(self):
        other = self.folder / "other"
        shutil.copytree(DRAFTER, other)
        config = json.loads((other / "config.json").read_text())
        config["transformer_layer_config"]["vocab_size"] = 50000
        (other / "config.json").write_text(json.dumps(config))
        result = aerie("run", "-m", "smollm2", "-d", other, "-p", "x")
        self.assertNotEqual(result.returncode, 0)
        self.one_sentence(result)
        self.assertRegex(result.stderr, r"50000[\s\S]*49152|49152[\s\S]*50000")

    def test_over_long_prompt(self):
        messages = self.write("long.json", json.dumps([{"role": "user", "content": "word " * 9000}]))
        result = self.refused(1, "run", "-m", "smollm2", "--messages", messages, says=["8192"])
        self.one_sentence(result)

    def test_full_disk_leaves_nothing(self):
        prompts = self.write("p.jsonl", '{"prompt": "Count to 5."}')
        traces = self.folder / "traces"
        result = self.refused(1, "capture", "-m", "smollm2", "--prompts", prompts, "--out", traces, "-n", "8", full_disk=True, says=["hs_0"])
        self.assertEqual([p.name for p in traces.iterdir() if p.name != "manifest.json"], [], result.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
