// The pickle inside what torch.save writes, read as data: an interpreter of the few opcodes that tensors and plain values need.
// Opcodes: Lib/pickletools.py of CPython; the calls that stand for tensors: torch/_utils.py and torch/serialization.py.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "formats/tensor.h"

namespace aerie {

enum class PickleKind : uint8_t { kNone, kBool, kInt, kFloat, kString, kTensor, kList, kTuple, kDict, kStorage, kGlobal };

/// "a list", for errors.
const char* pickle_kind_name(PickleKind kind);

/// A value; strings, tensors and containers are an index into PickleGraph's vectors, so that one that is referred to from
/// many places (a "billion laughs") takes its memory once.
struct PickleItem {
  PickleKind kind = PickleKind::kNone;
  union {
    int64_t integer = 0;  // kInt, and 0 or 1 for kBool
    double real;
    uint64_t index;
  };
};

/// Bytes that lie beside the pickle, under `key`.
struct PickleStorage {
  std::string_view key;
  DType type;
  uint64_t count;  // elements
};

struct PickleTensor {
  uint64_t storage;               // index into PickleGraph::storages
  uint64_t offset;                // of its first element in the storage, in elements
  std::vector<uint64_t> shape;    // no dimension is 0
  std::vector<uint64_t> strides;  // in elements, one per dimension
};

struct PickleDict {
  std::vector<std::pair<PickleItem, PickleItem>> items;  // keys are strings or integers
  std::vector<uint32_t> sorted;                          // indices of items, by key: integers first
};

/// What a pickle holds. Strings point into its bytes. Under `root` there are only values that PickleKind names up to kDict,
/// no cycles, at most 64 levels, and no key twice in one dict.
struct PickleGraph {
  PickleItem root;
  std::vector<std::string_view> strings;
  std::vector<std::vector<PickleItem>> sequences;  // lists and tuples
  std::vector<PickleDict> dicts;
  std::vector<PickleTensor> tensors;
  std::vector<PickleStorage> storages;  // each key once

  std::string_view string(PickleItem item) const { return strings[item.index]; }
};

/// Reads the pickle of protocol 2 that torch.save writes. Nothing is ever called: a global that is not on the list of those
/// that stand for tensors, storages, OrderedDict and torch.Size is refused by its name, another opcode by its name and offset
/// (kUnsupported). Every tensor's elements lie inside its storage. kResource: over 64 MiB or a million values.
Expected<PickleGraph> read_torch_pickle(std::span<const uint8_t> bytes);

}  // namespace aerie
