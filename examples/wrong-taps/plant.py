"""Plants the faults of this example in a drafter that `aerie convert --to sglang` wrote, and nothing else: standard library only.

    plant.py IN OUT [--absolute-d2t] [--no-layer-ids]

--absolute-d2t  d2t holds target ids where the dialect stores offsets (target id = d + d2t[d])
--no-layer-ids  config.json says nothing of the layers whose states the drafter reads, so that an engine takes its default
"""

import argparse
import json
import pathlib
import shutil
import struct


def absolute_d2t(path):
    data = bytearray(path.read_bytes())
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    entry = header["d2t"]
    assert entry["dtype"] == "I64", entry
    begin, end = (8 + length + offset for offset in entry["data_offsets"])
    offsets = struct.unpack(f"<{(end - begin) // 8}q", data[begin:end])
    data[begin:end] = struct.pack(f"<{len(offsets)}q", *(d + offset for d, offset in enumerate(offsets)))
    path.write_bytes(data)


def no_layer_ids(path):
    config = json.loads(path.read_text(encoding="utf-8"))
    for key in ("eagle_config", "layer_id_convention", "num_aux_hidden_states"):
        config.pop(key, None)
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--absolute-d2t", action="store_true")
    parser.add_argument("--no-layer-ids", action="store_true")
    flags = parser.parse_args()
    if flags.out.exists():
        shutil.rmtree(flags.out)
    shutil.copytree(flags.source, flags.out)
    if flags.absolute_d2t:
        absolute_d2t(flags.out / "model.safetensors")
    if flags.no_layer_ids:
        no_layer_ids(flags.out / "config.json")


if __name__ == "__main__":
    main()
