"""Logits of transformers' LlamaForCausalLM in float32 on the dequantised weights of the SmolLM2 target.

Usage: make_llama_goldens.py TARGET.gguf OUT.safetensors
Made with transformers 5.19.0, torch 2.13.0, gguf 0.19.0, numpy 2.4.6, safetensors 0.8.0; seed 5.

Writes, for one templated conversation of T tokens: token_ids I32 [T]; logits of 256 vocabulary entries drawn per position
(sample_ids I32 [T, 256], sample_logits F32 [T, 256]); argmax I32 [T]; logsumexp F32 [T]; and all logits of the last position
(last_logits F32 [V]). Also boundary states: hidden_{b} F32 [ceil(T/8), 576] for b = 0, 1, 15, 29 , every eighth position.
"""

import sys

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

TEXT = [
    ("<|im_start|>", True), ("system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face", False), ("<|im_end|>", True),
    ("\n", False), ("<|im_start|>", True),
    ("user\nWrite a Python function that adds two numbers, then explain it in one sentence.", False), ("<|im_end|>", True), ("\n", False),
    ("<|im_start|>", True),
    ("assistant\n```python\ndef add(a, b):\n    return a + b\n```\n\nThis function takes two numbers, `a` and `b`, and returns their sum. "
     "For example, add(2, 40) is 42, and 3.14 is not an integer.", False),
]


def value(reader, key):
    return reader.fields[key].contents()


def load_tokenizer(reader):
    tokens = value(reader, "tokenizer.ggml.tokens")
    merges = [tuple(m.split(" ")) for m in value(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, tokens


def unpermute(weight, heads):
    """GGUF keeps the two halves of a rotary pair side by side; transformers keeps them half a head apart."""
    rows, cols = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, cols).swapaxes(1, 2).reshape(rows, cols)


def load_model(reader):
    heads, kv_heads = value(reader, "llama.attention.head_count"), value(reader, "llama.attention.head_count_kv")
    config = LlamaConfig(
        vocab_size=49152, hidden_size=value(reader, "llama.embedding_length"), intermediate_size=value(reader, "llama.feed_forward_length"),
        num_hidden_layers=value(reader, "llama.block_count"), num_attention_heads=heads, num_key_value_heads=kv_heads,
        max_position_embeddings=value(reader, "llama.context_length"), rms_norm_eps=value(reader, "llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": value(reader, "llama.rope.freq_base")}, tie_word_embeddings=True,
        attn_implementation="eager")
    model = LlamaForCausalLM(config).float().eval()
    names = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
             "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
             "ffn_down": "mlp.down_proj"}
    state = {}
    for tensor in reader.tensors:
        data = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        part = tensor.name.split(".")
        if part[0] == "blk":
            if part[2] == "attn_q":
                data = unpermute(data, heads)
            if part[2] == "attn_k":
                data = unpermute(data, kv_heads)
            name = f"model.layers.{part[1]}.{names[part[2]]}.weight"
        else:
            name = {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}[part[0]]
        state[name] = torch.from_numpy(np.ascontiguousarray(data))
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    return model


def main():
    reader = GGUFReader(sys.argv[1])
    tokenizer, tokens = load_tokenizer(reader)
    ids = []
    for text, special in TEXT:
        ids += [tokens.index(text)] if special else tokenizer.encode(text).ids
    model = load_model(reader)
    captured = {}
    for boundary in (0, 1, 15, 29):
        model.model.layers[boundary].register_forward_pre_hook(
            lambda module, args, kwargs, b=boundary: captured.__setitem__(b, (args[0] if args else kwargs["hidden_states"])[0].clone()), with_kwargs=True)
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0]
    rng = np.random.default_rng(5)
    sample = np.sort(rng.choice(logits.shape[1], size=(len(ids), 256)), axis=1).astype(np.int32)
    out = {
        "token_ids": np.array(ids, np.int32),
        "sample_ids": sample,
        "sample_logits": np.take_along_axis(logits.numpy(), sample, axis=1),
        "argmax": logits.argmax(1).numpy().astype(np.int32),
        "logsumexp": torch.logsumexp(logits.double(), 1).float().numpy(),
        "last_logits": logits[-1].numpy().copy(),
    }
    for boundary, state in captured.items():
        out[f"hidden_{boundary}"] = state.numpy()[:: 8].copy()
    save_file(out, sys.argv[2])


if __name__ == "__main__":
    main()
