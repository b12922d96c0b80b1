#!/usr/bin/env python3
"""Makes tests/formats/data/torch/: small files by torch.save, of each kind that the torch reader reads or refuses by name.

Usage: make_torch_goldens.py [FOLDER]      (pip install torch==2.13.0 numpy)
Run with torch 2.13.0, numpy 2.4.6. No random numbers. tests/formats/torch_file_test.cpp states what the files must hold.
The trace rows have the keys and shapes of SpecForge, Model-Optimizer and SafeAILab/EAGLE, with T 5, H 4.
"""

import collections
import gzip
import io
import sys
from pathlib import Path

import torch

DEFAULT_OUTPUT = "tests/formats/data/torch"
T, H = 5, 4


def counted(*shape, dtype=torch.float32, scale=1.0, start=0):
    size = torch.Size(shape).numel()
    return ((torch.arange(size) + start) * scale).reshape(shape).to(dtype)


def values():
    """Every kind of value."""
    ordered = collections.OrderedDict([("z", 1), ("a", 2)])
    return {"none": None, "true": True, "false": False, "small": 7, "word": 300, "negative": -3, "long": 2**40,
            "most": 2**63 - 1, "least": -2**63, "zero_long": -2**31 - 1, "float": -0.375, "string": "naïve ☃",
            "list": [1, [2.5, "x"], None], "tuple": (1, 2, 3, 4), "empty": [(), {}, []], "ordered": ordered,
            "size": torch.Size([2, 3]), "ints": {5: "five", -1: "minus one", 128256: "big"}, "shared": [ordered, ordered]}


def dtypes():
    kinds = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64, "I8": torch.int8,
             "U8": torch.uint8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64}
    out = {name: counted(2, 3, dtype=kind) for name, kind in kinds.items()}
    out["BOOL"] = torch.tensor([True, False, True])
    return out


def views():
    """Tensors that share a storage, are no whole storage, or are not contiguous."""
    base = counted(4, 6)
    return {"base": base, "again": base, "row": base[2], "rows": base[1:3], "column": base[:, 1], "transposed": base.t(),
            "permuted": counted(2, 3, 4).permute(2, 0, 1), "scalar": torch.tensor(1.5), "one": counted(1, 6).t().t(),
            "parameter": torch.nn.Parameter(counted(3))}


def state_dict():
    """A module's state_dict: an OrderedDict with `_metadata`, which names one tensor twice (tied weights)."""
    module = torch.nn.Module()
    module.embed_tokens = torch.nn.Embedding(6, 4)
    module.lm_head = torch.nn.Linear(4, 6, bias=False)
    module.embed_tokens.weight = torch.nn.Parameter(counted(6, 4, dtype=torch.bfloat16))
    module.lm_head.weight = module.embed_tokens.weight
    module.register_buffer("d2t", torch.tensor([0, 1, 1, 3]))
    return module.state_dict()


def save_big_endian(path):
    buffer = io.BytesIO()
    torch.save({"a": counted(2)}, buffer)
    content = buffer.getvalue()
    path.write_bytes(content.replace(b"little", b"bigend", 1))  # the same length: the directory stays true


def main():
    out = Path(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_OUTPUT)
    out.mkdir(parents=True, exist_ok=True)
    torch.save(values(), out / "values.pt")
    torch.save(dtypes(), out / "dtypes.pt")
    torch.save(views(), out / "views.pt")
    torch.save(state_dict(), out / "state_dict.bin")
    torch.save({"epoch": 3, "model": {"a": counted(2)}}, out / "run.pt")
    torch.save(counted(3, dtype=torch.int64), out / "bare.pt")

    ids = torch.tensor([1, 5, 2, 7, 3])
    mask = torch.tensor([0, 0, 1, 1, 1])
    torch.save({"input_ids": ids, "loss_mask": mask, "hidden_state": counted(1, T, H, dtype=torch.bfloat16, start=100),
                "aux_hidden_state": counted(1, T, 3 * H, dtype=torch.bfloat16)}, out / "specforge.ckpt")
    (out / "specforge.ckpt.gz").write_bytes(gzip.compress((out / "specforge.ckpt").read_bytes(), mtime=0))
    torch.save({"input_ids": ids, "hidden_states": counted(T, H, dtype=torch.bfloat16, start=100),
                "aux_hidden_states": counted(T, 3 * H, dtype=torch.bfloat16), "loss_mask": mask,
                "conversation_id": "conversation-7"}, out / "modelopt.pt")
    torch.save({"input_ids": ids, "hidden_state": counted(T, H, dtype=torch.float16, start=100), "loss_mask": mask},
               out / "safeailab.ckpt")

    # Refused by name.
    torch.save({"a": counted(2)}, out / "legacy.bin", _use_new_zipfile_serialization=False)
    torch.save(torch.nn.Linear(2, 2), out / "module.pt")
    torch.save({"a": counted(2).to(torch.float8_e4m3fn)}, out / "float8.pt")
    torch.save({"a": counted(1).expand(4, 3)}, out / "expanded.pt")
    torch.save({"a": torch.empty(0, 3)}, out / "empty_tensor.pt")
    torch.save({"a": 2**64}, out / "huge_int.pt")
    torch.save({"a": counted(2)}, out / "protocol4.pt", pickle_protocol=4)
    torch.save({"a": {1, 2}}, out / "set.pt")
    torch.save({"a": b"bytes"}, out / "bytes.pt")
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), out / "script.pt")
    save_big_endian(out / "big_endian.pt")


if __name__ == "__main__":
    main()
