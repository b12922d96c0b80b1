#!/usr/bin/env python3
"""Makes tests/eagle3/speculators_data: tiny random drafters of the package speculators itself and what its model computes with them.

Needs speculators 0.9.0 with torch 2.13.0 and transformers 5.19.0; versions and seed are written to manifest.json. Each case is a
folder with what the package saves (config.json, model.safetensors in F32) and
  spec.json         what these files mean, as the fields of Aerie's DraftSpec
  case.safetensors  features BF16 [L, k*H], token_ids I64 [L], logits_0 .. logits_2 F32 [L, Vd] of three training-time-test steps

What the package does that a reader of these files must know (speculators 0.9.0):
 * position ids begin with 1 and grow by 1 with each step;
 * at step s row i reads token_ids[i+s], zero past the end, whatever the drafter predicted;
 * its sliding window hides step-0 keys by the row alone: at step s a row sees the last W step-0 keys and its own s later ones, where
   a server whose cache has a window of W sees W keys in all. The cases with a window therefore agree at every step only for the
   rows whose window has not moved yet; the others at step 0.
"""

import json
import os
import pathlib
import platform
import shutil

os.environ["TORCHDYNAMO_DISABLE"] = "1"

import torch  # noqa: E402
import transformers  # noqa: E402
from importlib.metadata import version  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from speculators import SpeculatorsConfig, VerifierConfig  # noqa: E402
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig  # noqa: E402
from speculators.proposals.greedy import GreedyTokenProposalConfig  # noqa: E402
from transformers import LlamaConfig, Qwen3Config  # noqa: E402

from make_transformers_draft_goldens import scaling_fields  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
SEED, STEPS, LENGTH = 20251101, 3, 7
H, HEADS, KV_HEADS, HEAD_DIM, INTER, VOCAB = 16, 4, 2, 8, 20, 40
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 512}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0, "original_max_position_embeddings": 32}


def flag_cases():
    for residual in (False, True):
        for norm in ("none", "norm_before_fc", "fc_norm"):
            for output in (False, True):
                name = f"{'normed' if residual else 'raw'}_{norm}_{'post' if output else 'pre'}"
                yield name, {"norm_before_residual": residual, "norm_output": output, norm: True}, {}


CASES = [
    *flag_cases(),
    ("small_vocab", {"norm_before_residual": True, "draft_vocab_size": 24}, {}),
    ("window", {"norm_before_residual": True}, {"sliding_window": 4, "layer_types": ["sliding_attention"]}),
    ("two_layers", {"norm_before_residual": True, "norm_output": True}, {"num_hidden_layers": 2}),
    ("two_layers_window", {"fc_norm": True},
     {"num_hidden_layers": 2, "sliding_window": 4, "layer_types": ["sliding_attention"] * 2}),
    ("qwen3", {"norm_before_residual": True, "norm_output": True}, {"model_type": "qwen3"}),
    ("qwen3_two_layers", {"norm_before_fc": True, "draft_vocab_size": 24}, {"model_type": "qwen3", "num_hidden_layers": 2}),
    ("attention_bias", {"norm_before_residual": True}, {"attention_bias": True}),
    ("llama3_rope", {"norm_before_residual": True}, {"rope_parameters": LLAMA3}),
    ("yarn_rope", {"norm_before_residual": True}, {"rope_parameters": YARN}),
    ("four_taps", {"eagle_aux_hidden_state_layer_ids": [0, 3, 6, 12]}, {}),
]


def make_case(folder, index, flags, layer):
    torch.manual_seed(SEED + index)
    layer = {"model_type": "llama", "num_hidden_layers": 1, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, **layer}
    config_class = Qwen3Config if layer.pop("model_type") == "qwen3" else LlamaConfig
    config = config_class(
        hidden_size=H, intermediate_size=INTER, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM,
        vocab_size=VOCAB, rms_norm_eps=1e-5, max_position_embeddings=512, hidden_act="silu", **layer)
    config._attn_implementation = "eager"
    flags = {"draft_vocab_size": VOCAB, "eagle_aux_hidden_state_layer_ids": [2, 6, 9], **flags}
    flags.pop("none", None)
    model = Eagle3DraftModel(Eagle3SpeculatorConfig(
        transformer_layer_config=config, **flags,
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3", proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=STEPS)], default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]))))
    model = model.float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.copy_(1.0 + 0.3 * torch.randn_like(parameter))
            else:
                parameter.copy_(torch.randn_like(parameter) * 1.5 / parameter.shape[1] ** 0.5)
        for name, parameter in model.named_parameters():
            if name.endswith(".bias"):
                parameter.copy_(0.5 * torch.randn_like(parameter))
        model.embed_tokens.weight.copy_(torch.randn(VOCAB, H))
    spec = {"taps": flags["eagle_aux_hidden_state_layer_ids"], "target_hidden": H, "hidden": H, "layers": config.num_hidden_layers,
            "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "rope_dim": HEAD_DIM, "intermediate": INTER, "vocab": VOCAB,
            "draft_vocab": flags["draft_vocab_size"], "rope_theta": layer["rope_parameters"]["rope_theta"], "rms_eps": 1e-5,
            "max_positions": 512, "own_embedding": True, "own_head": True, **scaling_fields(layer["rope_parameters"])[0],
            "feature_norm": "concat" if flags.get("norm_before_fc") else "per_tap" if flags.get("fc_norm") else "none",
            "norm_before_residual": flags.get("norm_before_residual", False), "qk_norm": config_class is Qwen3Config,
            "feedback": "post_norm" if flags.get("norm_output") else "pre_norm", "sliding_window": layer.get("sliding_window", 0),
            "qkv_bias": layer.get("attention_bias", False), "o_bias": layer.get("attention_bias", False)}
    if flags["draft_vocab_size"] < VOCAB:
        ids = torch.randperm(VOCAB)[: flags["draft_vocab_size"]].sort().values
        mask = torch.zeros(VOCAB, dtype=torch.bool)
        mask[ids] = True
        model.load_vocab_mappings(mask, ids - torch.arange(len(ids)))
        spec["d2t"] = ids.tolist()
    features = torch.randn(LENGTH, len(flags["eagle_aux_hidden_state_layer_ids"]) * H).mul(2).bfloat16()
    tokens = torch.randint(0, VOCAB, (LENGTH,))
    logits = []
    hook = model.lm_head.register_forward_hook(lambda _module, _input, output: logits.append(output[0].clone()))
    with torch.no_grad():
        model(features.float().unsqueeze(0), tokens.unsqueeze(0), torch.zeros(1, LENGTH, dtype=torch.long), ttt_steps=STEPS)
    hook.remove()

    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    for path in folder.iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            path.unlink()
    (folder / "spec.json").write_text(json.dumps(spec) + "\n")
    save_file({"features": features, "token_ids": tokens, **{f"logits_{s}": value.contiguous() for s, value in enumerate(logits)}},
              folder / "case.safetensors")


def main():
    out = ROOT / "tests" / "eagle3" / "speculators_data"
    for index, (name, flags, layer) in enumerate(CASES):
        make_case(out / name, index, flags, layer)
    manifest = {"script": "tools/goldens/make_speculators_goldens.py", "seed": SEED, "python": platform.python_version(),
                "torch": torch.__version__, "transformers": transformers.__version__, "speculators": version("speculators"),
                "cases": [name for name, _, _ in CASES]}
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    main()
