#!/usr/bin/env python3
"""Makes tests/eagle3/dialect_data: small random drafters as their makers' programs write them, and what the numpy reference computes.

For dialects whose makers' code cannot be installed and asked: the files are written from their published layouts (configs and
names of checkpoints, not Aerie's source), and what they mean is stated beside them. Needs numpy and torch 2 (for pytorch_model.bin).
The versions and the seed are in manifest.json, with what a reader has to say about each. Each case is a folder:
  drafter/           config.json with model.safetensors or pytorch_model.bin; or drafter.gguf
  spec.json          what it means: the fields of Aerie's DraftSpec
  case.safetensors   inputs and expected values, as make_eagle3_goldens.py writes them
"""

import json
import pathlib
import platform
import struct

import numpy as np
import torch

import make_eagle3_goldens as goldens
from make_eagle3_goldens import H, MLA, ROOT, VOCAB, to_bf16_bits

SEED = 20250312
BLOCKS = 12  # of the target
NAMES = {**goldens.PROJECTIONS, "q_a": "self_attn.q_a_proj", "q_a_norm": "self_attn.q_a_layernorm", "q_b": "self_attn.q_b_proj",
         "kv_a": "self_attn.kv_a_proj_with_mqa", "kv_a_norm": "self_attn.kv_a_layernorm", "kv_b": "self_attn.kv_b_proj",
         "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"}


def yarn_mscale(factor, m):
    return 0.1 * m * np.log(factor) + 1.0


def layer(**keys):
    """A config's keys of a Llama layer."""
    return {"hidden_act": "silu", "hidden_size": H, "intermediate_size": goldens.INTER, "max_position_embeddings": 512, "num_attention_heads": goldens.HEADS,
            "num_key_value_heads": goldens.KV_HEADS, "num_hidden_layers": 1, "rms_norm_eps": goldens.EPS, "tie_word_embeddings": False,
            "torch_dtype": "bfloat16", "transformers_version": "4.52.0", "use_cache": True, "vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2,
            "attention_bias": False, "attention_dropout": 0.0, "initializer_range": 0.02, "pretraining_tp": 1, **keys}


DEEPSEEK_YARN = {"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 32, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
                 "mscale_all_dim": 1.0}
MODELOPT_YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 2048, "beta_fast": 32.0, "beta_slow": 1.0}
MODELOPT_CONFIG = {"eagle_aux_hidden_state_layer_ids": [1, 5, 8], "use_aux_hidden_state": True, "use_input_layernorm_in_first_layer": True,
                   "use_last_layernorm": True, "use_mtp_layernorm": False, "next_layer_regular": True, "parallel_draft_step": 1,
                   "parallel_draft_heads_num_layers": 1}
TWO_SCHEMAS = {"rope_theta": 500000.0, "rope_scaling": None, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
EAGLE3 = ["LlamaForCausalLMEagle3"]

# name: the dialect, the codes of what reading it brings up with the target's N known, the spec's fields that differ from the goldens'
# SPEC, the config, and of the files: what the first layer and every name begin with, whether t2d is stored, the draft vocabulary if not
# ascending, torch.save; or the keys of a GGUF file
CASES = {
    # yuhuili/EAGLE3-*: no architecture of its own, the target's number of layers, ids known to its code alone
    "safeailab": dict(
        dialect="safeailab", findings=["layers-overstated", "taps-defaulted"], spec={"taps": [2, 6, 9], "own_embedding": False},
        config=layer(architectures=["LlamaForCausalLM"], model_type="llama", num_hidden_layers=40, draft_vocab_size=24, head_dim=8, rope_theta=10000.0),
        first="midlayer.", torch=True),
    # that of the 70B target, which is wider than the drafter: an embedding of its own
    "safeailab_wide": dict(
        dialect="safeailab", findings=["taps-defaulted"], spec={"taps": [2, 6, 9], "target_hidden": 24},
        config=layer(architectures=["LlamaForCausalLM"], model_type="llama", draft_vocab_size=24, head_dim=8, target_hidden_size=24, rope_theta=10000.0),
        first="midlayer.", torch=True),
    # lmsys, SpecBundle, AQ-MedAI: ids as SGLang counts, both schemas of RoPE
    "specforge": dict(
        dialect="specforge", findings=[], spec={"taps": [2, 6, 9], "own_embedding": False, "rope_theta": 500000.0},
        config=layer(architectures=EAGLE3, model_type="llama", draft_vocab_size=24, head_dim=8, **TWO_SCHEMAS,
                     eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 5, 8], "use_aux_hidden_state": True}),
        first="midlayer."),
    # EAGLE-3.1: a norm for each tap, the normed state fed back; four taps, one of them the embedding
    "specforge_31": dict(
        dialect="specforge", findings=["norm-output-meaning"],
        spec={"taps": [0, 2, 6, 9], "own_embedding": False, "feature_norm": "per_tap", "feedback": "post_norm"},
        config=layer(architectures=EAGLE3, model_type="llama", draft_vocab_size=24, head_dim=8, rope_theta=10000.0, fc_norm=True, norm_output=True,
                     num_aux_hidden_states=4, eagle_config={"eagle_aux_hidden_state_layer_ids": [-1, 1, 5, 8], "use_aux_hidden_state": True}),
        first="midlayer."),
    # gpt-oss: one norm over the concat, by a flag in eagle_config; wide heads
    "specforge_gpt_oss": dict(
        dialect="specforge", findings=[],
        spec={"taps": [2, 6, 9], "own_embedding": False, "feature_norm": "concat", "head_dim": 12, "rope_dim": 12},
        config=layer(architectures=EAGLE3, model_type="llama", draft_vocab_size=24, head_dim=12, rope_theta=10000.0,
                     eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 5, 8], "use_aux_hidden_state": True, "norm_before_fc": True}),
        first="midlayer."),
    # without taps: the target's last state, no fc
    "specforge_no_aux": dict(
        dialect="specforge", findings=[], spec={"taps": [-1], "has_fc": False, "own_embedding": False},
        config=layer(architectures=EAGLE3, model_type="llama", draft_vocab_size=24, head_dim=8, rope_theta=10000.0,
                     eagle_config={"use_aux_hidden_state": False}),
        first="midlayer."),
    # several layers as SGLang runs them: the later ones have hidden_norm alone
    "specforge_layers": dict(
        dialect="specforge", findings=[], spec={"taps": [2, 6, 9], "own_embedding": False, "layers": 3, "layout": "hidden_norm"},
        config=layer(architectures=EAGLE3, model_type="llama", draft_vocab_size=24, head_dim=8, rope_theta=10000.0, num_hidden_layers=3,
                     eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 5, 8], "use_aux_hidden_state": True})),
    "qwen3": dict(
        dialect="specforge", findings=[], spec={"taps": [2, 6, 9], "own_embedding": False, "qk_norm": True, "rope_theta": 1000000.0},
        config=layer(architectures=["Eagle3Qwen3ForCausalLM"], model_type="qwen3", draft_vocab_size=24, head_dim=8, rope_theta=1000000.0,
                     eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 5, 8], "use_aux_hidden_state": True}),
        first="midlayer."),
    "angelslim": dict(
        dialect="angelslim", findings=[], spec={"taps": [2, 6, 9], "own_embedding": False, "rope_theta": 1000000.0},
        config=layer(architectures=EAGLE3, model_type="llama", draft_vocab_size=24, head_dim=8, rope_theta=1000000.0,
                     aux_hidden_states_layer_ids=[1, 5, 8]),
        first="midlayer."),
    # nvidia/*-Eagle3: the feature normed twice, no t2d, an unsorted d2t
    "modelopt": dict(
        dialect="modelopt", findings=["d2t-unsorted", "feature-normed-twice"],
        spec={"taps": [2, 6, 9], "own_embedding": False, "feature_normed_twice": True},
        config=layer(architectures=EAGLE3, model_type="llama", draft_vocab_size=24, head_dim=8, rope_theta=10000.0, eagle_config=MODELOPT_CONFIG),
        t2d=False, shuffled=True),
    # its exporter's YaRN, the target's head, and the final state as a tap
    "modelopt_final": dict(
        dialect="modelopt", findings=["feature-normed-twice", "target-head", "yarn-added-at-export"],
        spec={"taps": [2, 6, -1], "own_embedding": False, "feature_normed_twice": True, "draft_vocab": VOCAB, "own_head": False,
              "rope_scaling": {"kind": "yarn", "factor": 32.0, "original_max_positions": 2048, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": True,
                               "magnitude": float(np.float32(yarn_mscale(32.0, 1.0)))}},
        config=layer(architectures=EAGLE3, model_type="llama", draft_vocab_size=VOCAB, head_dim=8, rope_theta=10000.0, rope_scaling=MODELOPT_YARN,
                     eagle_config={**MODELOPT_CONFIG, "eagle_aux_hidden_state_layer_ids": [-1, 1, 5]})),
    "nemo": dict(
        dialect="nemo", findings=[], spec={"taps": [2, 6, 9], "own_embedding": False},
        config=layer(architectures=["LlamaEagle3DraftModel"], model_type="llama", draft_vocab_size=24, head_dim=8, rope_theta=10000.0,
                     eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 5, 8], "use_aux_hidden_state": True}),
        prefix="model."),
    # Kimi-K2.5's: latent attention, DeepSeek's YaRN, boundaries as ids, the whole vocabulary
    "kimi_mla": dict(
        dialect="specforge", findings=[],
        spec={**MLA, "taps": [2, 30, 58], "own_embedding": False, "draft_vocab": VOCAB, "rope_theta": 50000.0,
              "attention_scale": float(np.float32(yarn_mscale(64.0, 1.0) ** 2)),
              "rope_scaling": {"kind": "yarn", "factor": 64.0, "original_max_positions": 32, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": True,
                               "magnitude": 1.0}},
        config=layer(architectures=["Eagle3DeepseekV2ForCausalLM"], model_type="kimi_k2", draft_vocab_size=VOCAB, num_key_value_heads=4, rope_theta=50000.0,
                     rope_scaling=DEEPSEEK_YARN, q_lora_rank=MLA["q_rank"], kv_lora_rank=MLA["kv_rank"], qk_nope_head_dim=MLA["nope_dim"],
                     qk_rope_head_dim=MLA["rope_dim"], v_head_dim=MLA["v_dim"], n_routed_experts=384, first_k_dense_replace=1,
                     eagle_config={"eagle_aux_hidden_state_layer_ids": [2, 30, 58], "use_aux_hidden_state": True}),
        blocks=61),
    # llama.cpp's converter: boundaries in an order of their own, target ids in d2t, rows of q and k as its RoPE pairs them
    "gguf": dict(
        dialect="gguf", findings=[],
        spec={"taps": [9, 2, 6], "own_embedding": False, "norm_before_residual": True, "feature_norm": "concat"},
        gguf={"embedding_length": H, "block_count": 1, "feed_forward_length": goldens.INTER, "attention.head_count": goldens.HEADS,
              "attention.head_count_kv": goldens.KV_HEADS, "attention.key_length": 8, "attention.value_length": 8, "rope.dimension_count": 8,
              "context_length": 512, "vocab_size": VOCAB, "attention.layer_norm_rms_epsilon": goldens.EPS, "rope.freq_base": 10000.0,
              "target_layers": [9, 2, 6], "target_hidden_size": H, "norm_before_residual": True, "norm_before_fc": True}),
}
GGUF_NAMES = {"input_norm": "enc.output_norm", "fc": "fc", "norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm", "hidden_norm": "attn_norm_2",
              "q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output", "post_attention_layernorm": "ffn_norm", "gate": "ffn_gate", "up": "ffn_up",
              "down": "ffn_down"}


def gguf_text(text):
    return struct.pack("<Q", len(text)) + text.encode()


def gguf_value(value):
    """A value with its type (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md)."""
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + gguf_text(value)
    return struct.pack("<IIQ", 9, 4, len(value)) + struct.pack(f"<{len(value)}I", *value)


def permuted(weight, heads):
    """The two halves of each head's rows interleaved, as llama.cpp's converter leaves them."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_gguf(path, fields, tensors):
    keys = {"general.architecture": "eagle3", "general.alignment": 32, **{"eagle3." + key: value for key, value in fields.items()}}
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(gguf_text(key) + gguf_value(value) for key, value in keys.items())
    data = b""
    for name, array in tensors.items():
        kind, array = (27, array.astype(np.int64)) if name == "d2t" else (0, array.astype(np.float32))
        shape = array.shape[::-1]  # innermost first
        out += gguf_text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", kind, len(data))
        data += np.ascontiguousarray(array).tobytes()
        data += b"\0" * (-len(data) % 32)
    path.write_bytes(out + b"\0" * (-len(out) % 32) + data)


def make_gguf(path, case, spec, drafter):
    tensors = {}
    for name, value in goldens.stored_weights(spec, drafter).items():
        part = name.removeprefix("layers.0.")
        if part in ("q", "k"):
            value = permuted(value, spec["heads"] if part == "q" else spec["kv_heads"])
        tensors[("blk.0." if part != name else "") + GGUF_NAMES[part] + ".weight"] = value
    write_gguf(path, case["gguf"], {**tensors, "d2t": drafter.draft_to_target})


def file_name(canonical, first, prefix):
    """The name in a checkpoint."""
    bias = canonical.endswith("_bias")
    name = canonical.removesuffix("_bias")
    if name.startswith("layers."):
        _, index, part = name.split(".")
        name = (first if index == "0" else f"layers.{index}.") + NAMES.get(part, part)
    return ("" if name == "lm_head" else prefix) + name + (".bias" if bias else ".weight")


def make_case(folder, rng, case):
    ids = None
    vd = case["spec"].get("draft_vocab", goldens.SPEC["draft_vocab"])
    if case.get("shuffled"):
        ids = rng.permutation(VOCAB)[:vd].tolist()
    spec, drafter, tokens, features = goldens.spec_drafter(rng, case["spec"], ids)
    first, prefix = case.get("first", "layers.0."), case.get("prefix", "")
    weights = {file_name(name, first, prefix): value for name, value in goldens.stored_weights(spec, drafter).items()}
    maps = {}
    if vd < VOCAB:
        maps[prefix + "d2t"] = (drafter.draft_to_target - np.arange(vd)).astype(np.int64)
        if case.get("t2d", True):
            maps[prefix + "t2d"] = np.isin(np.arange(VOCAB), drafter.draft_to_target)
    folder.mkdir(parents=True, exist_ok=True)
    files = folder / "drafter"
    if "config" in case:
        files.mkdir(exist_ok=True)
        (files / "config.json").write_text(json.dumps(case["config"], indent=1) + "\n")
    if "gguf" in case:
        make_gguf(folder / "drafter.gguf", case, spec, drafter)
    elif case.get("torch"):
        state = {name: torch.from_numpy(value.astype(np.float32)).to(torch.bfloat16) for name, value in weights.items()}
        torch.save({**state, **{name: torch.from_numpy(value) for name, value in maps.items()}}, files / "pytorch_model.bin")
    else:
        stored = {name: ("BF16", to_bf16_bits(value)) for name, value in weights.items()}
        stored.update({name: ("I64" if value.dtype == np.int64 else "BOOL", value) for name, value in maps.items()})
        goldens.write_safetensors(files / "model.safetensors", stored)
    (folder / "spec.json").write_text(json.dumps(spec) + "\n")
    goldens.write_expected(folder, drafter, tokens, features, goldens.known_rows(len(tokens)), not spec["own_embedding"], not spec["own_head"])


def main():
    out = ROOT / "tests" / "eagle3" / "dialect_data"
    for index, (name, case) in enumerate(CASES.items()):
        make_case(out / name, np.random.default_rng([SEED, index]), case)
    cases = {name: {"dialect": case["dialect"], "blocks": case.get("blocks", BLOCKS), "findings": case["findings"]} for name, case in CASES.items()}
    manifest = {"script": "tools/goldens/make_dialect_goldens.py", "seed": SEED, "python": platform.python_version(), "numpy": np.__version__,
                "torch": torch.__version__, "cases": cases}
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    main()
