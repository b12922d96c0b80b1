#!/usr/bin/env python3
"""Makes tests/eagle3/data: small random drafters in the speculators dialect and what the numpy reference computes with them.

Needs numpy only. The versions and the seed are written to manifest.json beside the cases. Each case is a folder:
  config.json, model.safetensors  the drafter, weights exactly representable in bf16
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


def make_case(folder, rng, case):
    normed, feature_norm, post, own_embedding, ht, vd, taps, length, own_head = case
    k = len(taps)

    def matrix(rows, cols):
        return round_bf16(rng.standard_normal((rows, cols)) / np.sqrt(cols) * 1.5)

    def norm(width):
        return round_bf16(1.0 + 0.3 * rng.standard_normal(width))

    weights = {"fc": matrix(H, k * ht)}
    if feature_norm == "concat":
        weights["input_norm"] = norm(k * ht)
    if feature_norm == "per_tap":
        for i in range(k):
            weights[f"fc_norm.{i}"] = norm(ht)
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        weights[f"layers.0.{name}"] = norm(H)
    weights["layers.0.self_attn.q_proj"] = matrix(HEADS * HEAD_DIM, 2 * H)
    weights["layers.0.self_attn.k_proj"] = matrix(KV_HEADS * HEAD_DIM, 2 * H)
    weights["layers.0.self_attn.v_proj"] = matrix(KV_HEADS * HEAD_DIM, 2 * H)
    weights["layers.0.self_attn.o_proj"] = matrix(H, HEADS * HEAD_DIM)
    weights["layers.0.mlp.gate_proj"] = matrix(INTER, H)
    weights["layers.0.mlp.up_proj"] = matrix(INTER, H)
    weights["layers.0.mlp.down_proj"] = matrix(H, INTER)
    weights["norm"] = norm(H)
    embedding = round_bf16(rng.standard_normal((VOCAB, H)))
    head = matrix(vd, H)
    ids = np.sort(rng.permutation(VOCAB)[:vd]) if vd < VOCAB else np.arange(VOCAB)

    tokens = rng.integers(0, VOCAB, length)
    features = round_bf16(rng.standard_normal((length, k * ht)) * rng.uniform(0.5, 4.0, k).repeat(ht))
    rows = list(range(length - STEPS)) if length < 16 else [0, 100, 126, 127, 128, 129, 254, 255, 256, 257, length - STEPS - 1]
    drafter = reference.Drafter(H, HEADS, KV_HEADS, HEAD_DIM, THETA, EPS, feature_norm, normed, post, weights, embedding, head, ids)
    head_input, feedback, logits, predictions = reference.unroll(drafter, tokens, features, rows, STEPS)

    folder.mkdir(parents=True, exist_ok=True)
    stored = {name + ".weight": ("BF16", to_bf16_bits(value)) for name, value in weights.items()}
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

    expected = {
        "tokens": ("I64", tokens.astype(np.int64)),
        "features": ("BF16", to_bf16_bits(features)),
        "rows": ("I64", np.array(rows, np.int64)),
        "head_input": ("F32", head_input.astype(np.float32)),
        "feedback": ("F32", feedback.astype(np.float32)),
        "logits": ("F32", logits.astype(np.float32)),
        "predictions": ("I64", predictions.astype(np.int64)),
    }
    if not own_embedding:
        expected["target_embedding"] = ("BF16", to_bf16_bits(embedding))
    if not own_head:
        expected["target_head"] = ("BF16", to_bf16_bits(head))
    write_safetensors(folder / "case.safetensors", expected)


def main():
    out = ROOT / "tests" / "eagle3" / "data"
    for index, (name, case) in enumerate(CASES.items()):
        make_case(out / name, np.random.default_rng([SEED, index]), case)
    manifest = {"script": "tools/goldens/make_eagle3_goldens.py", "seed": SEED, "python": platform.python_version(),
                "numpy": np.__version__, "cases": list(CASES)}
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    main()
