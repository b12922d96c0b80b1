#!/usr/bin/env python3
"""Makes tests/formats/data/dequant.safetensors: random blocks of each GGML type and what the PyPI package `gguf` reads in them.

Usage: make_dequant_goldens.py [OUTPUT]      (pip install gguf numpy safetensors)
Run with gguf 0.19.0, numpy 2.4.6, safetensors 0.8.0.

Tensors: TYPE.blocks U8 [n, bytes of a block] and TYPE.values F32 [n, values of a block]; plus what numpy makes of float32 to
float16: F16.inputs F32 [m] and F16.rounded U8 [2 m] (little-endian halves). All bits of a block are random; the first blocks
have scales at the ends of float16's range. Scales are finite: infinity times zero would compare NaN with NaN.
"""

import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T
from safetensors.numpy import save_file

SEED = 20240719
DEFAULT_OUTPUT = "tests/formats/data/dequant.safetensors"

# Type: (blocks, byte offsets of the float16 scales in a block)
QUANTS = {T.Q4_0: (32, [0]), T.Q4_1: (32, [0, 2]), T.Q5_0: (32, [0]), T.Q5_1: (32, [0, 2]), T.Q8_0: (32, [0]),
          T.Q4_K: (14, [0, 2]), T.Q5_K: (14, [0, 2]), T.Q6_K: (14, [208])}
EXTREME = [0.0, -0.0, 65504.0, -65504.0, 2.0 ** -24, -(2.0 ** -24), 2.0 ** -14, 1023 * 2.0 ** -24, 1.0, -1.0]


def blocks_of(rng, kind, count, scale_offsets):
    size = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for which, offset in enumerate(scale_offsets):
        scales = np.exp2(rng.uniform(-16, 4, count)) * rng.choice([-1, 1], count)
        extremes = EXTREME if which == 0 else EXTREME[::-1]
        scales[: len(extremes)] = extremes
        blocks[:, offset : offset + 2] = scales.astype("<f2").view(np.uint8).reshape(count, 2)
    return blocks


def float_blocks(bits):
    return np.ascontiguousarray(bits).view(np.uint8).reshape(len(bits), -1)


def main():
    rng = np.random.default_rng(SEED)
    out = {}
    for kind, (count, scale_offsets) in QUANTS.items():
        blocks = blocks_of(rng, kind, count, scale_offsets)
        out[f"{kind.name}.blocks"] = blocks
        out[f"{kind.name}.values"] = gguf.dequantize(blocks, kind).astype(np.float32)

    halves = rng.integers(0, 1 << 16, 2048, dtype=np.uint16)
    halves[:6] = [0x0000, 0x8000, 0x0001, 0x03FF, 0x7C00, 0xFC00]
    halves = halves[~np.isnan(halves.view(np.float16))]
    out["F16.blocks"] = float_blocks(halves)
    out["F16.values"] = halves.view(np.float16).astype(np.float32).reshape(-1, 1)

    brain = rng.integers(0, 1 << 16, 2048, dtype=np.uint16)
    brain = brain[(brain & 0x7F80) != 0x7F80]
    out["BF16.blocks"] = float_blocks(brain)
    out["BF16.values"] = gguf.dequantize(float_blocks(brain), T.BF16).astype(np.float32).reshape(-1, 1)

    floats = rng.standard_normal(512).astype(np.float32)
    out["F32.blocks"] = float_blocks(floats)
    out["F32.values"] = floats.reshape(-1, 1)

    # Everything that rounding can meet: normal, subnormal, overflowing, and ties halfway between two halves.
    wide = np.exp2(rng.uniform(-28, 18, 1024)) * rng.choice([-1, 1], 1024)
    low = rng.integers(0, 0x7BFF, 512, dtype=np.uint16)
    ties = (low.view(np.float16).astype(np.float64) + (low + 1).astype(np.uint16).view(np.float16).astype(np.float64)) / 2
    edges = [65504.0, 65519.996, 65520.0, 65536.0, 2.0 ** -24, 2.0 ** -25, 2.0 ** -25 * 1.0001, 2.0 ** -14, 0.0, np.inf]
    inputs = np.concatenate([wide, ties, edges]).astype(np.float32)
    out["F16.inputs"] = inputs
    with np.errstate(over="ignore"):
        out["F16.rounded"] = inputs.astype("<f2").view(np.uint8)
    save_file(out, sys.argv[1] if len(sys.argv) > 1 else DEFAULT_OUTPUT)


if __name__ == "__main__":
    main()
