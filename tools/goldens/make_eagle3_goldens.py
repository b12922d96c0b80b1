#!/usr/bin/env python3
"""Makes tests/eagle3/data: small random drafters and what the numpy reference computes with them.

Needs numpy only. The versions and the seed are written to manifest.json beside the cases. Each case is a folder:
  config.json, model.safetensors  the drafter in the speculators dialect, weights exactly representable in bf16; or, for what this
                                  dialect has no words for,
  spec.json, model.safetensors    the fields of Aerie's DraftSpec, and the tensors by their canonical names
  case.safetensors                tokens I64 [T], features BF16 [T, k*Ht], rows I64 [R], target_embedding BF16 [V, H] and
                                  target_head BF16 [V, H] where the drafter uses its target's, and the expected values of three
                                  steps: head_input and feedback F32 [3, R, H], logits F32 [3, R, Vd], predictions I64 [3, R]
"""

import json
import pathlib
import platform
import struct
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "reference"))
import eagle3_numpy as reference  # noqa: E402

SEED = 20250301
STEPS = 3
# name: residual normed, feature norm, post-norm feedback, own embedding, Ht, Vd (V = 40), taps, tokens, own head
CASES = {
    "raw_none_pre": (False, "none", False, True, 24, 24, [2, 5, 9], 8, True),
    "raw_none_post": (False, "none", True, False, 16, 40, [2, 5, 9], 8, True),
    "raw_concat_pre": (False, "concat", False, False, 16, 24, [2, 5, 9], 8, True),
    "raw_concat_post": (False, "concat", True, True, 24, 40, [0, 4], 8, True),
    "raw_pertap_pre": (False, "per_tap", False, True, 16, 40, [2, 5, 9], 8, True),
    "raw_pertap_post": (False, "per_tap", True, True, 24, 24, [1, 2, 3, 4], 8, True),
    "normed_none_pre": (True, "none", False, True, 16, 40, [9, 5, 2], 8, True),
    "normed_none_post": (True, "none", True, True, 24, 24, [2, 5, 9], 8, True),
    "normed_concat_pre": (True, "concat", False, True, 24, 24, [2, 5, 9], 8, True),
    "normed_concat_post": (True, "concat", True, False, 16, 24, [2, 5, 9], 8, True),
    "normed_pertap_pre": (True, "per_tap", False, False, 16, 40, [2, 5, 9], 8, True),
    "normed_pertap_post": (True, "per_tap", True, False, 16, 24, [2, 5, 9], 8, True),
    "target_head": (True, "concat", True, False, 16, 40, [2, 5, 9], 8, False),
    "long": (True, "concat", True, False, 16, 24, [2], 270, True),  # attention over three chunks
}
H, HEADS, KV_HEADS, HEAD_DIM, INTER, VOCAB = 16, 4, 2, 8, 20, 40
THETA, EPS = 10000.0, 1e-5

BIASES = {"qkv_bias": True, "o_bias": True, "mlp_bias": True}
LINEAR = {"kind": "linear", "factor": 4.0}
LLAMA3 = {"kind": "llama3", "factor": 8.0, "original_max_positions": 100, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"kind": "yarn", "factor": 32.0, "original_max_positions": 64, "beta_fast": 4.0, "beta_slow": 1.0, "truncate": True,
        "magnitude": 1.25}
MLA = {"attention": "mla", "kv_heads": 4, "q_rank": 12, "kv_rank": 20, "nope_dim": 8, "rope_dim": 4, "head_dim": 12, "v_dim": 8,
       "rope_interleaved": True}
# name: the fields of DraftSpec that differ from SPEC below; "length" is the number of tokens
SPEC = {"taps": [2, 5, 9], "target_hidden": 16, "hidden": H, "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM,
        "rope_dim": HEAD_DIM, "intermediate": INTER, "vocab": VOCAB, "draft_vocab": 24, "rope_theta": THETA, "rms_eps": EPS,
        "max_positions": 512, "own_embedding": True, "own_head": True}
SPEC_CASES = {
    "spec_biases": {**BIASES, "fc_bias": True},
    "spec_qk_norm": {"qk_norm": True, "qkv_bias": True, "head_dim": 12, "rope_dim": 12},
    "spec_layers_a": {"layers": 3, "layout": "hidden_norm", "norm_before_residual": True, "feedback": "post_norm"},
    "spec_layers_b": {"layers": 3, "layout": "input_norm", **BIASES},
    "spec_layers_c": {"layers": 2, "layout": "concat", "qk_norm": True},
    "spec_no_fc": {"taps": [-1], "has_fc": False, "own_embedding": False},
    "spec_normed_twice": {"feature_normed_twice": True, "norm_before_residual": True},
    "spec_no_head_norm": {"head_norm": False},
    "spec_scaled_logits": {"head_norm": False, "feedback": "post_norm", "logit_scale": 0.25, "own_head": False, "draft_vocab": VOCAB},
    "spec_rope_linear": {"rope_scaling": LINEAR, "attention_scale": 1.5},
    "spec_rope_llama3": {"rope_scaling": LLAMA3, "rope_theta": 500000.0, "head_dim": 16, "rope_dim": 16},
    "spec_rope_yarn": {"rope_scaling": YARN, "head_dim": 32, "rope_dim": 32, "heads": 2, "kv_heads": 1},
    "spec_rope_yarn_partial": {"rope_scaling": {**YARN, "truncate": False}, "head_dim": 32, "rope_dim": 24, "heads": 2, "kv_heads": 1,
                               "rope_interleaved": True},
    "spec_rope_partial": {"rope_dim": 4},
    "spec_window": {"sliding_window": 3, "layers": 2, "length": 12},
    "spec_window_narrow": {"sliding_window": 1},
    "spec_window_long": {"sliding_window": 130, "length": 270, "taps": [2]},  # over three chunks of keys
    "spec_mla": {**MLA, "rope_scaling": YARN, "attention_scale": 1.9},
    "spec_mla_direct": {**MLA, "q_rank": 0, "nope_dim": 4, "head_dim": 8, "v_dim": 16, "o_bias": True, "rope_interleaved": False},
    "spec_mla_layers": {**MLA, "layers": 2, "sliding_window": 4, "feature_norm": "per_tap", "feedback": "post_norm", "mlp_bias": True},
    "spec_all": {**BIASES, "fc_bias": True, "layers": 2, "layout": "concat", "qk_norm": True, "rope_dim": 4, "rope_scaling": LLAMA3,
                 "sliding_window": 5, "norm_before_residual": True, "feature_norm": "per_tap", "feedback": "post_norm",
                 "logit_scale": 0.5, "attention_scale": 0.75, "rope_interleaved": True, "own_embedding": False, "length": 10},
}

def to_bf16_bits(x):
    """Round to nearest even, as uint16."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16_bits(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def round_bf16(x):
    return from_bf16_bits(to_bf16_bits(x)).astype(np.float64)


def write_safetensors(path, tensors):
    """tensors: name -> (dtype, array of the stored bits)."""
    header, data = {}, b""
    for name, (dtype, array) in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def random_matrix(rng, rows, cols):
    return round_bf16(rng.standard_normal((rows, cols)) / np.sqrt(cols) * 1.5)


def random_norm(rng, width):
    return round_bf16(1.0 + 0.3 * rng.standard_normal(width))


# canonical names -> those of the speculators dialect
PROJECTIONS = {**{name: f"self_attn.{name}_proj" for name in "qkvo"}, **{name: f"mlp.{name}_proj" for name in ("gate", "up", "down")}}


def speculators_name(name):
    head, _, last = name.rpartition(".")
    return f"{head}.{PROJECTIONS[last]}" if last in PROJECTIONS else name


def known_rows(length):
    return list(range(length - STEPS)) if length < 16 else [0, 100, 126, 127, 128, 129, 254, 255, 256, 257, length - STEPS - 1]


def make_case(folder, rng, case):
    normed, feature_norm, post, own_embedding, ht, vd, taps, length, own_head = case
    k = len(taps)

    def matrix(rows, cols):
        return random_matrix(rng, rows, cols)

    def norm(width):
        return random_norm(rng, width)

    weights = {"fc": matrix(H, k * ht)}
    if feature_norm == "concat":
        weights["input_norm"] = norm(k * ht)
    if feature_norm == "per_tap":
        for i in range(k):
            weights[f"fc_norm.{i}"] = norm(ht)
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        weights[f"layers.0.{name}"] = norm(H)
    weights["layers.0.q"] = matrix(HEADS * HEAD_DIM, 2 * H)
    weights["layers.0.k"] = matrix(KV_HEADS * HEAD_DIM, 2 * H)
    weights["layers.0.v"] = matrix(KV_HEADS * HEAD_DIM, 2 * H)
    weights["layers.0.o"] = matrix(H, HEADS * HEAD_DIM)
    weights["layers.0.gate"] = matrix(INTER, H)
    weights["layers.0.up"] = matrix(INTER, H)
    weights["layers.0.down"] = matrix(H, INTER)
    weights["norm"] = norm(H)
    embedding = round_bf16(rng.standard_normal((VOCAB, H)))
    head = matrix(vd, H)
    ids = np.sort(rng.permutation(VOCAB)[:vd]) if vd < VOCAB else np.arange(VOCAB)

    tokens = rng.integers(0, VOCAB, length)
    features = round_bf16(rng.standard_normal((length, k * ht)) * rng.uniform(0.5, 4.0, k).repeat(ht))
    rows = known_rows(length)
    drafter = reference.Drafter(H, HEADS, KV_HEADS, HEAD_DIM, THETA, EPS, feature_norm, normed, post, weights, embedding, head, ids)

    folder.mkdir(parents=True, exist_ok=True)
    stored = {speculators_name(name) + ".weight": ("BF16", to_bf16_bits(value)) for name, value in weights.items()}
    if own_head:
        stored["lm_head.weight"] = ("BF16", to_bf16_bits(head))
    if own_embedding:
        stored["embed_tokens.weight"] = ("BF16", to_bf16_bits(embedding))
    if vd < VOCAB:
        mask = np.zeros(VOCAB, np.uint8)
        mask[ids] = 1
        stored["d2t"] = ("I64", (ids - np.arange(vd)).astype(np.int64))
        stored["t2d"] = ("BOOL", mask)
    write_safetensors(folder / "model.safetensors", stored)
    config = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.5.0",
        "draft_vocab_size": vd,
        "norm_before_residual": normed,
        "norm_before_fc": feature_norm == "concat",
        "fc_norm": feature_norm == "per_tap",
        "norm_output": post,
        "target_hidden_size": ht,
        "eagle_aux_hidden_state_layer_ids": taps,
        "transformer_layer_config": {
            "model_type": "llama",
            "hidden_size": H,
            "intermediate_size": INTER,
            "num_hidden_layers": 1,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD_DIM,
            "hidden_act": "silu",
            "rms_norm_eps": EPS,
            "rope_theta": THETA,
            "max_position_embeddings": 512,
            "vocab_size": VOCAB,
            "attention_bias": False,
        },
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "none", "architectures": []}},
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")

    write_expected(folder, drafter, tokens, features, rows, not own_embedding, not own_head)


def write_expected(folder, drafter, tokens, features, rows, target_embedding, target_head):
    head_input, feedback, logits, predictions = reference.unroll(drafter, tokens, features, rows, STEPS)
    expected = {
        "tokens": ("I64", tokens.astype(np.int64)),
        "features": ("BF16", to_bf16_bits(features)),
        "rows": ("I64", np.array(rows, np.int64)),
        "head_input": ("F32", head_input.astype(np.float32)),
        "feedback": ("F32", feedback.astype(np.float32)),
        "logits": ("F32", logits.astype(np.float32)),
        "predictions": ("I64", predictions.astype(np.int64)),
    }
    if target_embedding:
        expected["target_embedding"] = ("BF16", to_bf16_bits(drafter.embedding))
    if target_head:
        expected["target_head"] = ("BF16", to_bf16_bits(drafter.head))
    write_safetensors(folder / "case.safetensors", expected)


def spec_weights(spec, rng):
    """Every tensor that a spec calls for, by its canonical name."""
    get = spec.get
    h, inter, k, feature = spec["hidden"], spec["intermediate"], len(spec["taps"]), len(spec["taps"]) * spec["target_hidden"]
    query, heads, mla = spec["heads"] * spec["head_dim"], spec["heads"], get("attention") == "mla"
    shapes = {}

    def linear(name, rows, cols, bias):
        shapes[name] = (rows, cols)
        if bias:
            shapes[name + "_bias"] = (rows,)

    if get("feature_norm") == "concat":
        shapes["input_norm"] = (feature,)
    if get("feature_norm") == "per_tap":
        shapes.update({f"fc_norm.{i}": (spec["target_hidden"],) for i in range(k)})
    if get("has_fc", True):
        linear("fc", h, feature, get("fc_bias"))
    for j in range(get("layers", 1)):
        at, layout = f"layers.{j}.", get("layout", "input_norm")
        width = 2 * h if j == 0 or layout == "concat" else h
        if j == 0 or layout != "hidden_norm":
            shapes[at + "input_layernorm"] = (h,)
        if j == 0 or layout != "input_norm":
            shapes[at + "hidden_norm"] = (h,)
        if not mla:
            linear(at + "q", query, width, get("qkv_bias"))
            linear(at + "k", spec["kv_heads"] * spec["head_dim"], width, get("qkv_bias"))
            linear(at + "v", spec["kv_heads"] * spec["head_dim"], width, get("qkv_bias"))
        elif spec["q_rank"]:
            linear(at + "q_a", spec["q_rank"], width, False)
            shapes[at + "q_a_norm"] = (spec["q_rank"],)
            linear(at + "q_b", query, spec["q_rank"], False)
        else:
            linear(at + "q", query, width, False)
        if mla:
            linear(at + "kv_a", spec["kv_rank"] + spec["rope_dim"], width, False)
            shapes[at + "kv_a_norm"] = (spec["kv_rank"],)
            linear(at + "kv_b", heads * (spec["nope_dim"] + spec["v_dim"]), spec["kv_rank"], False)
        if get("qk_norm"):
            shapes[at + "q_norm"] = shapes[at + "k_norm"] = (spec["head_dim"],)
        linear(at + "o", h, heads * (spec["v_dim"] if mla else spec["head_dim"]), get("o_bias"))
        shapes[at + "post_attention_layernorm"] = (h,)
        linear(at + "gate", inter, h, get("mlp_bias"))
        linear(at + "up", inter, h, get("mlp_bias"))
        linear(at + "down", h, inter, get("mlp_bias"))
    if get("head_norm", True) or get("feedback") == "post_norm":
        shapes["norm"] = (h,)

    def values(name, shape):
        if name.endswith("_bias"):
            return round_bf16(0.5 * rng.standard_normal(shape))
        return random_norm(rng, *shape) if len(shape) == 1 else random_matrix(rng, *shape)

    return {name: values(name, shape) for name, shape in shapes.items()}


def hugging_face_scaling(scaling):
    names = {"kind": "rope_type", "original_max_positions": "original_max_position_embeddings", "magnitude": "attention_factor"}
    return {names.get(key, key): value for key, value in scaling.items()} if scaling else None


def spec_drafter(rng, case, ids=None):
    """A random drafter of the spec's fields: (spec, its reference forward, tokens, features). `ids`: its draft vocabulary."""
    spec = {**SPEC, **case}
    length, vd, get = spec.pop("length", 8), spec["draft_vocab"], spec.get
    weights = spec_weights(spec, rng)
    embedding, head = round_bf16(rng.standard_normal((VOCAB, H))), random_matrix(rng, vd, H)
    drawn = np.sort(rng.permutation(VOCAB)[:vd])
    ids = drawn if ids is None else np.array(ids)
    if vd < VOCAB:
        spec["d2t"] = ids.tolist()
    drafter = reference.Drafter(
        H, spec["heads"], spec["kv_heads"], spec["head_dim"], spec["rope_theta"], spec["rms_eps"], get("feature_norm", "none"),
        get("norm_before_residual", False), get("feedback") == "post_norm", weights, embedding, head, ids, get("layers", 1),
        get("layout", "input_norm"), get("has_fc", True), get("feature_normed_twice", False), get("head_norm", True),
        get("logit_scale", 1.0), spec["rope_dim"], get("rope_interleaved", False), hugging_face_scaling(get("rope_scaling")),
        get("attention_scale", 1.0), get("sliding_window", 0), spec if get("attention") == "mla" else None)
    tokens = rng.integers(0, VOCAB, length)
    features = round_bf16(rng.standard_normal((length, len(spec["taps"]) * spec["target_hidden"])) * 2.0)
    return spec, drafter, tokens, features


def stored_weights(spec, drafter):
    """What the drafter's files hold, by canonical name."""
    out = dict(drafter.weights)
    if spec["own_embedding"]:
        out["embed_tokens"] = drafter.embedding
    if spec["own_head"]:
        out["lm_head"] = drafter.head
    return out


def make_spec_case(folder, rng, case):
    spec, drafter, tokens, features = spec_drafter(rng, case)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spec.json").write_text(json.dumps(spec) + "\n")
    write_safetensors(folder / "model.safetensors", {name: ("BF16", to_bf16_bits(value)) for name, value in stored_weights(spec, drafter).items()})
    write_expected(folder, drafter, tokens, features, known_rows(len(tokens)), not spec["own_embedding"], not spec["own_head"])


def main():
    out = ROOT / "tests" / "eagle3" / "data"
    for index, (name, case) in enumerate(CASES.items()):
        make_case(out / name, np.random.default_rng([SEED, index]), case)
    for index, (name, case) in enumerate(SPEC_CASES.items()):
        make_spec_case(out / name, np.random.default_rng([SEED, 1000 + index]), case)
    manifest = {"script": "tools/goldens/make_eagle3_goldens.py", "seed": SEED, "python": platform.python_version(),
                "numpy": np.__version__, "cases": [*CASES, *SPEC_CASES]}
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    main()
