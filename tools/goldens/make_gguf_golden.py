#!/usr/bin/env python3
"""Makes tests/formats/data/writer.gguf: a small file by the PyPI package `gguf`, with metadata of every type.

Usage: make_gguf_golden.py [OUTPUT]      (pip install gguf numpy)
Run with gguf 0.19.0, numpy 2.4.6. No random numbers. tests/formats/gguf_test.cpp states what the file must hold.
"""

import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType as V

DEFAULT_OUTPUT = "tests/formats/data/writer.gguf"
SCALARS = [("u8", 255, V.UINT8), ("i8", -128, V.INT8), ("u16", 65535, V.UINT16), ("i16", -32768, V.INT16),
           ("u32", 4294967295, V.UINT32), ("i32", -2147483648, V.INT32), ("u64", 18446744073709551615, V.UINT64),
           ("i64", -9223372036854775808, V.INT64), ("f32", 1.5, V.FLOAT32), ("f64", 0.1, V.FLOAT64), ("bool", True, V.BOOL),
           ("string", "naïve ☃", V.STRING)]


def main():
    writer = gguf.GGUFWriter(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_OUTPUT, "test")
    writer.add_custom_alignment(64)
    for name, value, kind in SCALARS:
        writer.add_key_value(f"scalar.{name}", value, kind)
        writer.add_key_value(f"array.{name}", [value, value, value], V.ARRAY, kind)
    writer.add_key_value("array.mixed_bool", [True, False, True], V.ARRAY, V.BOOL)

    counts = np.arange(60)
    writer.add_tensor("f32", (counts[:6] / 4).reshape(2, 3).astype(np.float32))
    writer.add_tensor("f16", (counts[:24] / 8).reshape(2, 3, 4).astype(np.float16))
    writer.add_tensor("i32", (counts[:5] - 2).astype(np.int32))
    q8 = gguf.quantize((np.arange(64).reshape(2, 32) - 31.75).astype(np.float32), GGMLQuantizationType.Q8_0)
    writer.add_tensor("q8_0", q8, raw_dtype=GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
