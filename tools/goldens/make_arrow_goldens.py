#!/usr/bin/env python3
"""Makes tests/formats/data/arrow/: small Arrow files by the packages datasets and pyarrow, read or refused by name.

Usage: make_arrow_goldens.py [FOLDER]      (pip install datasets==5.2.0 pyarrow==26.0.1 flatbuffers==25.12.19)
Run with these versions. No random numbers; only the fingerprint in state.json differs from run to run.
tests/formats/arrow_test.cpp states what the files must hold: rows() below, or some of them.

  dataset/                 what datasets' save_to_disk writes: two shards, of two record batches and of one
  streams/*.arrow          streams and one file of pyarrow
  streams/hand_*.arrow     streams that pyarrow does not write, by the package flatbuffers
"""

import decimal
import shutil
import sys
import tempfile
from pathlib import Path

import datasets
import flatbuffers
import pyarrow as pa

DEFAULT_OUTPUT = "tests/formats/data/arrow"


def rows():
    """Token ids and masks of five rows, one of them empty."""
    ids = [[4, 5, 6], [7, 8], [], [1, 2, 3, 128255, 0, 17, 18, 19, 20, 21, 22], [9]]
    return ids, [[(i * 5 + j) % 3 % 2 for j in range(len(row))] for i, row in enumerate(ids)]


def write_dataset(folder):
    ids, masks = rows()
    features = datasets.Features({"input_ids": datasets.List(datasets.Value("int64")), "text": datasets.Value("string"),
                                  "loss_mask": datasets.List(datasets.Value("int8")), "seq_len": datasets.Value("int64")})
    columns = {"input_ids": ids, "text": [f"row {i}" for i in range(5)], "loss_mask": masks, "seq_len": [len(row) for row in ids]}
    data = datasets.Dataset.from_dict(columns, features=features)
    datasets.config.DEFAULT_MAX_BATCH_SIZE = 2  # rows of a record batch
    data.save_to_disk(folder, num_shards=2)


def arrays(id_type, mask_type, large=False):
    kind = pa.large_list if large else pa.list_
    ids, masks = rows()
    return {"input_ids": pa.array(ids, kind(id_type)), "loss_mask": pa.array(masks, kind(pa.int8())).cast(kind(mask_type))}


def integers():
    """A column of three lists for each type of integer: its least and its most, none, and eleven small ones."""
    out = {}
    for type_ in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()):
        signed = not str(type_).startswith("u")
        least, most = (-(2 ** (type_.bit_width - 1)), 2 ** (type_.bit_width - 1) - 1) if signed else (0, 2**type_.bit_width - 1)
        out[str(type_)] = pa.array([[least, most], [], list(range(11))], pa.list_(type_))
    out["bool"] = pa.array([[False, True], [], [i % 3 == 0 for i in range(11)]])
    return out


def other_columns():
    """One column of five rows of every type that is stepped over, some of them nested."""
    texts = ["a", None, "a text of more than twelve bytes", "", "d"]
    small = pa.array([1, 2, 3, 4, 5], pa.int32())
    kinds = pa.array([0, 1, 0, 1, 0], pa.int8())
    return {
        "null": pa.nulls(5), "int": small, "half": pa.array([1, 2, None, 4, 5], pa.float16()),
        "bool": pa.array([True, None, False, True, True]), "text": pa.array(texts), "large_text": pa.array(texts, pa.large_utf8()),
        "bytes": pa.array([b"x"] * 5), "large_bytes": pa.array([b"y"] * 5, pa.large_binary()),
        "fixed": pa.array([b"zz"] * 5, pa.binary(2)), "decimal": pa.array([decimal.Decimal(1)] * 5, pa.decimal128(5, 2)),
        "date": pa.array([0] * 5, pa.date32()), "time": pa.array([0] * 5, pa.time64("us")),
        "stamp": pa.array([0] * 5, pa.timestamp("s", "UTC")), "span": pa.array([0] * 5, pa.duration("ms")),
        "interval": pa.array([(1, 2, 3)] * 5, pa.month_day_nano_interval()),
        "messages": pa.array([[{"role": "user", "content": "hi", "tags": ["x", "y"]}], [], None, [], []]),
        "pair": pa.array([[1, 2]] * 5, pa.list_(pa.int8(), 2)), "map": pa.array([[("k", 1)]] * 5, pa.map_(pa.string(), pa.int8())),
        "sparse": pa.UnionArray.from_sparse(kinds, [small, pa.array(texts)]),
        "dense": pa.UnionArray.from_dense(kinds, pa.array([0, 0, 1, 1, 2], pa.int32()), [small, pa.array(texts)]),
        "runs": pa.RunEndEncodedArray.from_arrays(pa.array([2, 5], pa.int32()), pa.array(["p", "q"])),
        "views": pa.array(texts, pa.string_view()), "view_lists": pa.array([texts] * 5, pa.list_(pa.string_view())),
        "list_view": pa.array([[1], [], [2], [3], [4]], pa.list_view(pa.int16())),
    }


def write(path, columns, options=None, batch_rows=2, file=False):
    table = pa.table(columns)
    opened = pa.ipc.new_file if file else pa.ipc.new_stream
    with opened(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=batch_rows)


def write_pyarrow(folder):
    plain = arrays(pa.int64(), pa.int8())
    others = list(other_columns().items())
    wide = arrays(pa.uint32(), pa.bool_(), large=True)
    write(folder / "types.arrow", dict([*others[:12], ("loss_mask", wide["loss_mask"]), *others[12:], ("input_ids", wide["input_ids"])]))
    write(folder / "integers.arrow", integers(), batch_rows=1)
    # Slices of longer arrays, as a data set that was cut in two holds them.
    longer = {name: pa.concat_arrays([column, column]) for name, column in plain.items()}
    write(folder / "sliced.arrow", {name: column.slice(3, 5) for name, column in longer.items()}, batch_rows=3)
    write(folder / "file.arrow", plain, file=True)
    write(folder / "empty.arrow", {name: column.slice(0, 0) for name, column in plain.items()})

    # Refused.
    ids, masks = rows()
    write(folder / "null_list.arrow", {**plain, "loss_mask": pa.array([*masks[:4], None], pa.list_(pa.int8()))})
    write(folder / "null_value.arrow", {**plain, "input_ids": pa.array([*ids[:4], [None]], pa.list_(pa.int64()))})
    write(folder / "lz4.arrow", plain, pa.ipc.IpcWriteOptions(compression="lz4"))
    write(folder / "zstd.arrow", plain, pa.ipc.IpcWriteOptions(compression="zstd"))
    write(folder / "dictionary.arrow", {**plain, "source": pa.array(["a", "b", "a", "a", "b"]).dictionary_encode()})
    write(folder / "version4.arrow", plain, pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4))
    write(folder / "u64.arrow", {**plain, "input_ids": pa.array(ids, pa.list_(pa.uint64()))})
    write(folder / "float.arrow", arrays(pa.int64(), pa.float32()))
    write(folder / "not_a_list.arrow", {**plain, "loss_mask": pa.array([1] * 5)})
    write(folder / "fixed_list.arrow", {**plain, "loss_mask": pa.array([[0, 1]] * 5, pa.list_(pa.int8(), 2))})
    write(folder / "no_mask.arrow", {"input_ids": plain["input_ids"], "prompt": pa.array(["p"] * 5)})
    table = pa.Table.from_arrays([*plain.values(), plain["loss_mask"]], names=["input_ids", "loss_mask", "loss_mask"])
    with pa.ipc.new_stream(str(folder / "twice.arrow"), table.schema) as writer:
        writer.write_table(table)


# ---- by hand: schemas that pyarrow does not write (format/Message.fbs and Schema.fbs of Apache Arrow)

SCHEMA, VERSION_5, TYPE_INT, TYPE_STRUCT, BIG_ENDIAN = 1, 4, 2, 13, 1


def vector(builder, tables):
    builder.StartVector(4, len(tables), 4)
    for each in reversed(tables):
        builder.PrependUOffsetTRelative(each)
    return builder.EndVector()


def hand_field(builder, name, kind, children):
    text = builder.CreateString(name)
    below = vector(builder, children)
    builder.StartObject(0)
    type_ = builder.EndObject()
    builder.StartObject(7)
    builder.PrependUOffsetTRelativeSlot(0, text, 0)
    builder.PrependUint8Slot(2, kind, 0)
    builder.PrependUOffsetTRelativeSlot(3, type_, 0)
    builder.PrependUOffsetTRelativeSlot(5, below, 0)
    return builder.EndObject()


def write_schema(path, builder, fields, endianness=0):
    below = vector(builder, fields)
    builder.StartObject(4)
    builder.PrependInt16Slot(0, endianness, 0)
    builder.PrependUOffsetTRelativeSlot(1, below, 0)
    schema = builder.EndObject()
    builder.StartObject(5)
    builder.PrependInt16Slot(0, VERSION_5, 0)
    builder.PrependUint8Slot(1, SCHEMA, 0)
    builder.PrependUOffsetTRelativeSlot(2, schema, 0)
    builder.Finish(builder.EndObject())
    metadata = bytes(builder.Output())
    metadata += bytes(-len(metadata) % 8)
    path.write_bytes(b"\xff" * 4 + len(metadata).to_bytes(4, "little") + metadata + b"\xff" * 4 + bytes(4))


def write_by_hand(folder):
    builder = flatbuffers.Builder(64)
    write_schema(folder / "hand_big_endian.arrow", builder, [hand_field(builder, "n", TYPE_INT, [])], BIG_ENDIAN)
    # Ten structs, each of which holds the one below it twenty times: few bytes, 20^10 columns.
    builder = flatbuffers.Builder(64)
    field = hand_field(builder, "leaf", TYPE_STRUCT, [])
    for _ in range(10):
        field = hand_field(builder, "s", TYPE_STRUCT, [field] * 20)
    write_schema(folder / "hand_laughs.arrow", builder, [field])
    builder = flatbuffers.Builder(64)
    field = hand_field(builder, "leaf", TYPE_STRUCT, [])
    for _ in range(80):  # pyarrow goes 64 deep
        field = hand_field(builder, "s", TYPE_STRUCT, [field])
    write_schema(folder / "hand_deep.arrow", builder, [field])


def main():
    out = Path(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_OUTPUT)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:  # no trace of this folder may reach the files
        write_dataset(Path(folder) / "dataset")
        shutil.copytree(Path(folder) / "dataset", out / "dataset")
    (out / "streams").mkdir()
    write_pyarrow(out / "streams")
    write_by_hand(out / "streams")


if __name__ == "__main__":
    main()
