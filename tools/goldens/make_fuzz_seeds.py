#!/usr/bin/env python3
"""Writes fuzz/corpus/: valid inputs of every fuzz target and the shapes that have broken other readers.

Usage: make_fuzz_seeds.py [FOLDER]      (standard library only; no random numbers)
The hostile shapes follow public reports on llama.cpp, llama-cpp-python, fastllm, mlx, stable-diffusion.cpp, LiteRT, ollama and
vLLM: sizes that wrap, dimensions of 0, empty keys, offsets out of order, templates that never end, pickles that call.
Files that are there already and not written by this script (findings) stay.
"""

import io
import json
import struct
import sys
import zipfile
from pathlib import Path

DEFAULT_OUTPUT = "fuzz/corpus"
U8, U32, I32, F32, BOOL, STRING, ARRAY, U64 = 0, 4, 5, 6, 7, 8, 9, 10
FORMATS = {U8: "B", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q"}
MOST = 2**64 - 1


def text(value):
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def scalar(kind, value):
    return text(value) if kind == STRING else struct.pack("<" + FORMATS[kind], value)


def key(name, kind, value):
    return text(name) + struct.pack("<I", kind) + scalar(kind, value)


def array(name, kind, values, count=None):
    head = struct.pack("<IIQ", ARRAY, kind, len(values) if count is None else count)
    return text(name) + head + b"".join(scalar(kind, value) for value in values)


def tensor(name, dims, kind=0, offset=0, n_dims=None):
    head = struct.pack("<I", len(dims) if n_dims is None else n_dims)
    return text(name) + head + b"".join(struct.pack("<Q", dim) for dim in dims) + struct.pack("<IQ", kind, offset)


def gguf(keys, tensors=(), data=b"", version=3, tensor_count=None, key_count=None):
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors) if tensor_count is None else tensor_count,
                                len(keys) if key_count is None else key_count)
    out += b"".join(keys) + b"".join(tensors)
    return out + b"\0" * (-len(out) % 32 if data else 0) + data


def gguf_seeds():
    keys = [key("general.architecture", STRING, "llama"), key("llama.block_count", U32, 2), key("eps", F32, 1e-5),
            key("flag", BOOL, True), array("words", STRING, ["one", "two"]), array("ids", I32, [-1, 5])]
    block = bytes(range(32))
    return {
        "valid": gguf(keys, [tensor("a", [4, 2]), tensor("b", [32], 2, 32)], block + block[:18]),
        "no_tensors": gguf(keys),
        "dims_wrap": gguf(keys, [tensor("a", [2**62, 2**62])], block),
        "dims_wrap_to_small": gguf(keys, [tensor("a", [2**33, 2**33, 4])], block),
        "dims_negative": gguf(keys, [tensor("a", [MOST, 2])], block),
        "dim_zero": gguf(keys, [tensor("a", [0, 2])], block),
        "dims_many": gguf(keys, [tensor("a", [1], n_dims=2**31)], block),
        "offset_wraps": gguf(keys, [tensor("a", [4], offset=MOST - 31)], block),
        "offset_beyond": gguf(keys, [tensor("a", [4], offset=2**40)], block),
        "half_a_block": gguf(keys, [tensor("a", [31], 2)], block),
        "type_unknown": gguf(keys, [tensor("a", [4], 4000)], block),
        "key_empty": gguf([key("", U32, 1)]),
        "key_twice": gguf([key("a", U32, 1), key("a", U32, 2)]),
        "key_long": gguf([struct.pack("<Q", MOST)]),
        "string_long": gguf([text("a") + struct.pack("<IQ", STRING, MOST - 7)]),
        "array_long": gguf([array("a", STRING, [], 2**61)]),
        "array_of_arrays": gguf([text("a") + struct.pack("<IIQIQ", ARRAY, ARRAY, 1, ARRAY, 2**60)]),
        "alignment_zero": gguf([key("general.alignment", U32, 0)], [tensor("a", [4])], block),
        "alignment_odd": gguf([key("general.alignment", U32, 2**32 - 1)], [tensor("a", [4])], block),
        "alignment_text": gguf([key("general.alignment", STRING, "32")], [tensor("a", [4])], block),
        "counts_most": gguf([], tensor_count=MOST, key_count=MOST),
        "tensors_most": gguf([], tensor_count=2**58),
        "version_1": gguf(keys, version=1),
        "big_endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 1),
        "name_twice": gguf(keys, [tensor("a", [4]), tensor("a", [4], offset=32)], block + block),
    }


def tokenizer_seeds():
    def vocabulary(tokens, merges, pre="gpt2", types=None, more=()):
        return gguf([key("tokenizer.ggml.model", STRING, "gpt2"), key("tokenizer.ggml.pre", STRING, pre),
                     array("tokenizer.ggml.tokens", STRING, tokens),
                     array("tokenizer.ggml.token_type", I32, types or [1] * len(tokens)),
                     array("tokenizer.ggml.merges", STRING, merges), *more])

    printable = [chr(c) for c in range(33, 127)] + ["Ġ", "Ċ", "ĉ", "Ã", "¯", "â", "ĺ", "ĥ"]
    pairs = ["h e", "l l", "he ll", "Ġ w", "o r", "1 2"]
    joined = [pair.replace(" ", "") for pair in pairs]
    special = ["<|im_end|>", "<|im_start|>", "<s>", "</s>"]
    tokens = printable + joined + special
    types = [1] * (len(printable) + len(joined)) + [3] * len(special)
    ids = [key("tokenizer.ggml.bos_token_id", U32, len(tokens) - 2), key("tokenizer.ggml.eos_token_id", U32, len(tokens) - 1),
           key("tokenizer.ggml.add_bos_token", BOOL, True)]
    seeds = {f"valid_{pre}": vocabulary(tokens, pairs, pre, types, ids) for pre in ("gpt2", "smollm", "llama-bpe", "qwen2")}
    seeds |= {
        "no_tokens": vocabulary([], []),
        "token_twice": vocabulary(["a", "a"], []),
        "token_empty": vocabulary(["", "a"], []),
        "byte_tokens": vocabulary(["<0x-1>", "<0xFFFF>", "<0x41>", "<0x"], [], types=[6] * 4),
        "types_short": vocabulary(["a", "b"], [], types=[1]),
        "types_wild": vocabulary(["a", "b"], [], types=[-2**31, 99]),
        "merge_unknown": vocabulary(["a", "b"], ["a c", "x y"]),
        "merge_odd": vocabulary(["a", "b", "ab"], ["ab", "a b c", " ", ""]),
        "bos_beyond": vocabulary(["a"], [], more=[key("tokenizer.ggml.bos_token_id", U32, 2**32 - 1)]),
        "invalid_utf8": vocabulary([b"\xff\xfe", b"\xc3", "a"], [b"\xff \xfe"]),
        "long_token": vocabulary(["a" * 5000, "a"], ["a a"]),
    }
    return seeds


def safetensors(header, data=b"", length=None):
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(head) if length is None else length) + head + data


def entry(shape, begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors_seeds():
    eight = bytes(range(8))
    return {
        "valid": safetensors({"a": entry([2], 0, 8), "__metadata__": {"format": "pt"}}, eight),
        "length_wraps": safetensors(b"{}", length=MOST - 4),
        "length_most": safetensors(b"{}", length=100_000_001),
        "inverted": safetensors({"a": entry([2], 8, 0)}, eight),
        "overlap": safetensors({"a": entry([2], 0, 8), "b": entry([1], 4, 8)}, eight),
        "gap": safetensors({"a": entry([1], 4, 8)}, eight),
        "beyond": safetensors({"a": entry([2**40], 0, 2**42)}, eight),
        "shape_wraps": safetensors({"a": entry([2**62, 2**62], 0, 8)}, eight),
        "shape_zero": safetensors({"a": entry([0], 0, 0)}),
        "dtype_unknown": safetensors({"a": entry([2], 0, 8, "F8_E4M3")}, eight),
        "deep": safetensors(b'{"a":' * 2000),
        "name_twice": safetensors(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],'
                                  b'"data_offsets":[1,2]}}', b"\0\0"),
    }


def index_seeds():
    def index(weight_map):
        return json.dumps({"metadata": {"total_size": 2}, "weight_map": weight_map}).encode()

    return {
        "valid": index({"x": "a", "y": "b"}),
        "one_of_two": index({"x": "a"}),
        "other_shard": index({"x": "b", "y": "a"}),
        "outside": index({"x": "../a"}),
        "absolute": index({"x": "/etc/passwd"}),
        "itself": index({"x": "model.safetensors.index.json"}),
        "folder": index({"x": "."}),
        "missing": index({"x": "c"}),
        "number": index({"x": 1}),
        "empty": index({}),
        "no_map": b"{}",
        "deep": b"[" * 3000,
    }


def torch_archive(pickle, name="archive", data=b"\1" * 24, method=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for entry_name, content in (("data.pkl", pickle), ("byteorder", b"little"), ("data/0", data), ("version", b"3\n")):
            archive.writestr(zipfile.ZipInfo(f"{name}/{entry_name}"), content, method)
    return buffer.getvalue()


def torch_seeds():
    tensor_bytes = (b"ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0" b"0X\3\0\0\0cpuK\6tQK\0K\2K\3\x86"
                    b"K\3K\1\x86\x89ccollections\nOrderedDict\n)RtR")
    return {
        "valid": torch_archive(b"\x80\2}X\1\0\0\0a" + tensor_bytes + b"s."),
        "values": torch_archive(b"\x80\2}q\0(X\1\0\0\0aK\1X\1\0\0\0bM\1\1X\1\0\0\0cJ\xff\xff\xff\xffX\1\0\0\0d]q\1(NK\2e"
                                b"X\1\0\0\0e\x8a\x05\0\0\0\0\1X\1\0\0\0fG\x3f\xf8\0\0\0\0\0\0X\1\0\0\0gh\1u."),
        "system": torch_archive(b"\x80\2cos\nsystem\nX\4\0\0\0echo\x85R."),
        "expanded": torch_archive(b"\x80\2" + tensor_bytes.replace(b"K\3K\1\x86", b"K\0K\0\x86") + b"."),
        "laughs": torch_archive(b"\x80\2(]q\0" + b"".join(b"](h%ch%ceq%c" % (i, i, i + 1) for i in range(40)) + b"t."),
        "itself": torch_archive(b"\x80\2]q\0h\0a."),
        "memo_hole": torch_archive(b"\x80\2Nr\xff\xff\xff\xff."),
        "string_long": torch_archive(b"\x80\2X\xff\xff\xff\xff."),
        "marks": torch_archive(b"\x80\2" + b"(" * 5000 + b"."),
        "deflated": torch_archive(b"\x80\2N.", method=zipfile.ZIP_DEFLATED),
    }


def trace_seeds():
    def rows(*lines):
        return b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)

    row = {"input_ids": [0, 0], "loss_mask": [0, 1], "seq_len": 2}
    return {
        "rows": rows(row, row),
        "one_row": rows(row),
        "other_tokens": rows({**row, "input_ids": [2**63 - 1, -(2**63)]}, row),
        "wild_mask": rows({**row, "loss_mask": [2, 2**64]}, {**row, "loss_mask": "01"}),
        "cut_off": rows(row, b'{"input_ids": [0'),
        "blank_lines": b"{}" + b"\n" * 3000,
        "deep": b'{"a":' * 3000,
    }


def engine_trace_seeds():
    def lines(*objects):
        return b"".join(json.dumps(line).encode() + b"\n" for line in objects)

    def tensors(**changed):
        columns = {"rows.token": [2, 3], "rows.position": [0, 1], "rows.cycle": [0, 0], "steps.cycle": [0, 0], "steps.step": [0, 1],
                   "steps.token": [3, 4], "steps.position": [1, 2], "steps.top_tokens": [4, 5]}
        header, data = {}, b""
        for name, values in {**columns, **changed}.items():
            blob = struct.pack(f"<{len(values)}q", *values)
            shape = [len(values), 1] if name == "steps.top_tokens" else [len(values)]
            header[name] = entry(shape, len(data), len(data) + len(blob), "I64")
            data += blob
        for name, shape, dtype, blob in (("steps.top_logits", [2, 1], "F32", struct.pack("<2f", 1, float("nan"))),
                                         ("rows.feature", [2, 3], "BF16", b"\x80\x3f" * 6)):
            header[name] = entry(shape, len(data), len(data) + len(blob), dtype)
            data += blob
        return safetensors(header, data)

    first, cycle = {"token_ids": [1, 2, 3, 4], "prompt_tokens": 2, "cached_tokens": 0}, {"newest": 2, "drafts": [4, 5], "accepted": 1}
    return {
        "lines": lines(first, cycle),
        "prompt_beyond": lines({**first, "prompt_tokens": 5}, cycle),
        "newest_beyond": lines(first, {**cycle, "newest": 2**31 - 1}),
        "cycles_backwards": lines(first, cycle, cycle),
        "accepted_beyond": lines(first, {**cycle, "accepted": 3}),
        "no_cycles": lines(first),
        "cut_off": lines(first, cycle)[:-1],
        "many_ids": lines({**first, "token_ids": [0] * 20000}, cycle),
        "tensors": tensors(),
        "cycle_not_there": tensors(**{"rows.cycle": [0, 1]}),
        "negative": tensors(**{"rows.position": [-1, 2**40]}),
        "counts_differ": tensors(**{"rows.token": [2]}),
        "widths_wrap": safetensors({"rows.feature": entry([0, 2**63], 0, 0, "BF16"), "rows.token": entry([0], 0, 0, "I64"),
                                    "rows.position": entry([0], 0, 0, "I64"), "rows.cycle": entry([0], 0, 0, "I64")}),
    }


def arrow_seeds():
    def state(*names, **more):
        return json.dumps({"_data_files": [{"filename": name} for name in names], **more}).encode()

    first, second = "data-00000-of-00002.arrow", "data-00001-of-00002.arrow"
    prefix = struct.pack("<I", 2**32 - 1)
    # A message whose root, vtable and vectors lead astray.
    astray = struct.pack("<IiHHI", 8, -4, 12, 12, 2**32 - 1) + bytes(8)
    return {
        "state": state(first, second),
        "state_outside": state("../" + first, "/etc/passwd"),
        "state_many": state(*[first] * 1000),
        "state_indices": state(first, _indices_data_files=[{"filename": second}]),
        "end_only": prefix + bytes(4),
        "metadata_long": prefix + struct.pack("<i", 2**31 - 1) + bytes(16),
        "metadata_negative": prefix + struct.pack("<i", -8) + bytes(16),
        "astray": prefix + struct.pack("<i", len(astray)) + astray,
        "file_mark": b"ARROW1\0\0" + prefix + bytes(4) + b"ARROW1",
    }


def drafter_seeds():
    layer = {"model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
             "head_dim": 4, "num_hidden_layers": 1, "vocab_size": 64, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
             "rope_theta": 10000.0, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
    speculators = {"architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3", "speculators_version": "0.9.0",
                   "draft_vocab_size": 32, "norm_before_residual": True, "norm_before_fc": False,
                   "eagle_aux_hidden_state_layer_ids": [2, 3, 5], "transformer_layer_config": layer}
    midlayer = {**layer, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 32, "tie_word_embeddings": False}
    mla = {**midlayer, "architectures": ["Eagle3DeepseekV2ForCausalLM"], "kv_lora_rank": 8, "q_lora_rank": 8,
           "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 4}
    configs = {
        "speculators": speculators,
        "speculators_flags": {**speculators, "norm_before_residual": False, "fc_norm": True, "norm_output": True},
        "midlayer": midlayer,
        "midlayer_ids": {**midlayer, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 4], "use_aux_hidden_state": True},
                         "fc_norm": True, "norm_output": True, "target_hidden_size": 16},
        "qwen3": {**midlayer, "architectures": ["Eagle3Qwen3ForCausalLM"]},
        "mla": mla,
        "yarn": {**midlayer, "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 2048}},
        "llama3": {**midlayer, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                                "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}},
        "sizes": {**speculators, "transformer_layer_config": {**layer, "hidden_size": 2**31 - 1, "num_attention_heads": 1}},
        "heads_zero": {**speculators, "transformer_layer_config": {**layer, "num_attention_heads": 0, "head_dim": 0}},
        "numbers": {**speculators, "draft_vocab_size": 1e300, "eagle_aux_hidden_state_layer_ids": [-1, 2**40, 3]},
        "many_taps": {**speculators, "eagle_aux_hidden_state_layer_ids": list(range(3000))},
        "dflash": {**midlayer, "dflash_config": {}},
        "unknown": {"architectures": ["GPT2LMHeadModel"]},
        "types": {**speculators, "architectures": "Eagle3DraftModel", "transformer_layer_config": []},
        "remote_code": {**speculators, "auto_map": {"AutoModel": "evil.Model"}},
    }
    seeds = {name: json.dumps(config).encode() for name, config in configs.items()}
    weights = safetensors({"fc.weight": entry([16, 48], 0, 3072), "lm_head.weight": entry([32, 16], 3072, 5120),
                           "d2t": entry([32], 5120, 5376, "I64"), "t2d": entry([64], 5376, 5440, "BOOL")}, bytes(5440))
    seeds["own_weights"] = seeds["speculators"] + b"\0" + weights
    seeds["deep"] = b'{"a":' * 3000
    seeds["not_json"] = b"{'architectures': None}"
    return seeds


def template_seeds():
    sources = {
        "ranges": "{% for a in range(100000) %}{% for b in range(100000) %}{% for c in range(100000) %}{% endfor %}{% endfor %}{% endfor %}",
        "doubling": "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
        "repeat": "{{ 'abc' * 1000000000 }}{{ [1] * 1000000000 }}",
        "macro_recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "nested": "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
        "unary": "{{ " + "not " * 3000 + "1 }}",
        "ifs": "{% if 1 %}" * 2000,
        "brackets": "{{ [" * 1000,
        "raise": "{{ raise_exception('no') }}",
        "attributes": "{{ messages.__class__.__mro__ }}{{ ''.format.__globals__ }}{{ self }}",
        "formats": "{{ '%s %d %100000000s' % (1, 2, 3) }}{{ '{:>100000000}'.format(1) }}",
        "filters": "{{ messages | map(attribute='content') | list | join(', ') | upper | trim | length }}",
        "json": "{{ messages | tojson(indent=100000) }}",
        "slices": "{{ messages[::-1][-99:99:2] }}{{ 'abc'[5:1:-1] }}{{ messages[::0] }}",
        "numbers": "{{ 9223372036854775807 + 1 }}{{ 1 / 0 }}{{ 1 // 0 }}{{ 1 % 0 }}{{ 2 ** 100000 }}{{ -9223372036854775807 - 2 }}",
        "comment": "{# no end",
        "strings": "{{ 'a' 'b' \"\\x\" '\\u12' }}",
        "replace": "{{ ('a' * 10000) | replace('', 'bbbbbbbbbb' * 1000) }}{{ ('a' * 10000).split('') }}",
        "loop_control": "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ loop.previtem }}{% break %}{% endfor %}",
    }
    return {name: source.encode() for name, source in sources.items()}


def main():
    out = Path(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_OUTPUT)
    seeds = {"gguf": gguf_seeds(), "tokenizer": tokenizer_seeds(), "safetensors": safetensors_seeds(), "torch": torch_seeds(),
             "trace": trace_seeds(), "engine_trace": engine_trace_seeds(), "arrow": arrow_seeds(),
             "safetensors_index": index_seeds(), "drafter": drafter_seeds(), "chat_template": template_seeds()}
    for target, inputs in seeds.items():
        (out / target).mkdir(parents=True, exist_ok=True)
        for name, content in inputs.items():
            (out / target / name).write_bytes(content)


if __name__ == "__main__":
    main()
