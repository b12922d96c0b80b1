"""Makes tests/formats/data/gguf_writer.gguf: a small drafter-like file by the `gguf` package, which write_gguf must equal byte by byte.

Made with gguf 0.19.0:  pip install gguf==0.19.0 && python tools/goldens/make_gguf_writer_golden.py
There is nothing random in it.
"""

import pathlib

import numpy as np
from gguf import GGUFWriter

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests/formats/data/gguf_writer.gguf"


def main() -> None:
    writer = GGUFWriter(OUT, "eagle3")  # writes general.architecture first
    writer.add_name("golden")
    writer.add_uint32("eagle3.embedding_length", 16)
    writer.add_int32("a.signed", -5)
    writer.add_uint64("a.wide", 1 << 40)
    writer.add_float32("eagle3.rope.freq_base", 10000.0)
    writer.add_bool("eagle3.norm_before_fc", True)
    writer.add_array("eagle3.target_layers", [2, 15, 27])
    writer.add_array("a.floats", [0.5, -1.25])
    writer.add_array("a.texts", ["x", "", "caf\u00e9"])
    writer.add_tensor("fc.weight", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("half.weight", np.arange(5, dtype=np.float16))
    writer.add_tensor("d2t", np.array([0, 2, 3], dtype=np.int64))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(OUT, OUT.stat().st_size)


if __name__ == "__main__":
    main()
