#!/usr/bin/env python3
"""Makes tests/eagle3/transformers_data: drafters put together from the modules of transformers, and their first step's logits.

Needs transformers 5.19.0 with torch 2.13.0; versions and seed are written to manifest.json. The attention, its RoPE with every kind
of scaling, the MLP and the norms are transformers' own (Llama's and DeepSeek-V3's); only the input projections are replaced by ones
that read 2H. Each case is a folder:
  spec.json, model.safetensors  the fields of Aerie's DraftSpec, and the tensors by their canonical names, in F32
  case.safetensors              features BF16 [L, k*H], token_ids I64 [L], logits_0 F32 [L, V]
"""

import json
import math
import pathlib
import platform

import torch
import transformers
from safetensors.torch import save_file
from transformers import DeepseekV3Config, LlamaConfig
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek
from transformers.models.llama import modeling_llama as llama

ROOT = pathlib.Path(__file__).resolve().parents[2]
SEED, LENGTH = 20251102, 24
H, HEADS, INTER, VOCAB, TAPS = 16, 4, 20, 40, [2, 5, 9]
EPS = 1e-3  # unlike the 1e-6 of the latent norms, so that one taken for the other is seen

DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 100}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0, "original_max_position_embeddings": 64, "beta_fast": 8.0,
        "beta_slow": 1.0}
DEEPSEEK = {**YARN, "rope_theta": 50000.0, "factor": 64.0, "mscale": 1.0, "mscale_all_dim": 1.0}

# name: rope parameters, fields of the config
CASES = {
    "llama_linear": (LINEAR, {}),
    "llama_llama3": (LLAMA3, {}),
    "llama_yarn": (YARN, {}),
    "llama_yarn_untruncated": ({**YARN, "truncate": False}, {}),
    "llama_yarn_factor": ({**YARN, "attention_factor": 0.75}, {}),
    "mla": (DEFAULT, {"q_lora_rank": 12, "rope_interleave": True}),
    "mla_yarn": (DEEPSEEK, {"q_lora_rank": 12, "rope_interleave": True}),
    "mla_yarn_mscales": ({**DEEPSEEK, "mscale": 0.7}, {"q_lora_rank": 12, "rope_interleave": True}),
    "mla_direct_halves": (DEEPSEEK, {"q_lora_rank": None, "rope_interleave": False}),
}
SCALING_NAMES = {"rope_type": "kind", "original_max_position_embeddings": "original_max_positions"}


def mscale(factor, scale):
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def scaling_fields(rope):
    """DraftSpec's rope_scaling of a config's rope parameters, and the factor on the softmax scale."""
    if rope["rope_type"] == "default":
        return {}, 1.0
    out = {SCALING_NAMES.get(key, key): value for key, value in rope.items()
           if key in ("rope_type", "factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow",
                      "truncate")}
    scale = 1.0
    if rope["rope_type"] == "yarn":
        factor, all_dim = rope["factor"], rope.get("mscale_all_dim")
        if "attention_factor" in rope:
            out["magnitude"] = rope["attention_factor"]
        else:
            out["magnitude"] = mscale(factor, rope["mscale"]) / mscale(factor, all_dim) if all_dim else mscale(factor, 1.0)
        scale = mscale(factor, all_dim) ** 2 if all_dim else 1.0
    return {"rope_scaling": out}, scale


def wide(linear):
    """The same projection reading 2H."""
    return torch.nn.Linear(2 * H, linear.out_features, bias=False)


def make_case(folder, index, rope, fields):
    torch.manual_seed(SEED + index)
    scaling, attention_scale = scaling_fields(rope)
    common = dict(hidden_size=H, intermediate_size=INTER, num_attention_heads=HEADS, vocab_size=VOCAB, rms_norm_eps=EPS,
                  max_position_embeddings=int(rope.get("original_max_position_embeddings", 64) * rope.get("factor", 16)),
                  rope_parameters=dict(rope), attn_implementation="eager")
    spec = {"taps": TAPS, "target_hidden": H, "hidden": H, "heads": HEADS, "intermediate": INTER, "vocab": VOCAB, "draft_vocab": VOCAB,
            "rope_theta": rope["rope_theta"], "rms_eps": EPS, "max_positions": 1024, "own_embedding": True, "own_head": True, **scaling}
    is_mla = "q_lora_rank" in fields
    if is_mla:
        config = DeepseekV3Config(num_key_value_heads=HEADS, kv_lora_rank=20, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=12,
                                  **common, **fields)
        module, names = deepseek, {"o_proj": "o", "kv_a_proj_with_mqa": "kv_a", "kv_a_layernorm": "kv_a_norm", "kv_b_proj": "kv_b"}
        attention = deepseek.DeepseekV3Attention(config, 0)
        attention.kv_a_proj_with_mqa = wide(attention.kv_a_proj_with_mqa)
        if fields["q_lora_rank"]:
            attention.q_a_proj = wide(attention.q_a_proj)
            names |= {"q_a_proj": "q_a", "q_a_layernorm": "q_a_norm", "q_b_proj": "q_b"}
        else:
            attention.q_proj = wide(attention.q_proj)
            names |= {"q_proj": "q"}
        rotary, mlp, norm = module.DeepseekV3RotaryEmbedding(config), module.DeepseekV3MLP(config), module.DeepseekV3RMSNorm
        spec |= {"attention": "mla", "kv_heads": HEADS, "head_dim": 16, "rope_dim": 8, "q_rank": fields["q_lora_rank"] or 0, "kv_rank": 20,
                 "nope_dim": 8, "v_dim": 12, "rope_interleaved": fields["rope_interleave"], "attention_scale": attention_scale}
    else:
        config = LlamaConfig(num_key_value_heads=2, head_dim=16, **common, **fields)
        names = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "o"}
        attention = llama.LlamaAttention(config, 0)
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(attention, name, wide(getattr(attention, name)))
        rotary, mlp, norm = llama.LlamaRotaryEmbedding(config), llama.LlamaMLP(config), llama.LlamaRMSNorm
        spec |= {"kv_heads": 2, "head_dim": 16, "rope_dim": 16}

    fc, embedding, head = torch.nn.Linear(len(TAPS) * H, H, bias=False), torch.nn.Embedding(VOCAB, H), torch.nn.Linear(H, VOCAB, bias=False)
    norms = {name: norm(H, eps=EPS) for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm", "norm")}
    modules = {"fc": fc, "lm_head": head, "norm": norms["norm"],
               **{f"layers.0.{name}": norms[name] for name in norms if name != "norm"},
               **{f"layers.0.{canonical}": getattr(attention, name) for name, canonical in names.items()},
               **{f"layers.0.{name}": getattr(mlp, f"{name}_proj") for name in ("gate", "up", "down")}}
    with torch.no_grad():
        for one in modules.values():
            if one.weight.dim() == 1:
                one.weight.copy_(1.0 + 0.3 * torch.randn_like(one.weight))
            else:
                one.weight.copy_(torch.randn_like(one.weight) * 1.5 / one.weight.shape[1] ** 0.5)
        features, tokens = torch.randn(LENGTH, len(TAPS) * H).mul(2).bfloat16(), torch.randint(0, VOCAB, (LENGTH,))
        h, e = fc(features.float()).unsqueeze(0), embedding(tokens).unsqueeze(0)
        x = torch.cat([norms["input_layernorm"](e), norms["hidden_norm"](h)], -1)
        mask = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)[None, None]
        attended, _ = attention(x, position_embeddings=rotary(x, torch.arange(LENGTH).unsqueeze(0)), attention_mask=mask)
        y = h + attended
        z = y + mlp(norms["post_attention_layernorm"](y))
        logits = head(norms["norm"](z))[0]

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spec.json").write_text(json.dumps(spec) + "\n")
    weights = {name: one.weight.detach().contiguous() for name, one in modules.items()}
    save_file({**weights, "embed_tokens": embedding.weight.detach()}, folder / "model.safetensors")
    save_file({"features": features, "token_ids": tokens, "logits_0": logits.contiguous()}, folder / "case.safetensors")


def main():
    out = ROOT / "tests" / "eagle3" / "transformers_data"
    for index, (name, (rope, fields)) in enumerate(CASES.items()):
        make_case(out / name, index, rope, fields)
    manifest = {"script": "tools/goldens/make_transformers_draft_goldens.py", "seed": SEED, "python": platform.python_version(),
                "torch": torch.__version__, "transformers": transformers.__version__, "cases": list(CASES)}
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    main()
