#include "formats/torch_pickle.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <optional>
#include <string>

#include "base/checked.h"
#include "formats/printable.h"

namespace aerie {
namespace {

constexpr size_t kMaxPickleBytes = 64u << 20;
constexpr size_t kMaxValues = 1'000'000;  // a state dict has some thousands, a table of token counts some 300,000
constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxDims = 8;
constexpr size_t kMaxGlobalBytes = 512;
constexpr uint8_t kProtocol = 2;

// clang-format off
enum class Op : uint8_t {
  kMark = '(', kStop = '.', kBinFloat = 'G', kBinInt = 'J', kBinInt1 = 'K', kBinInt2 = 'M', kNone = 'N', kBinPersId = 'Q',
  kReduce = 'R', kBinUnicode = 'X', kAppend = 'a', kBuild = 'b', kGlobal = 'c', kAppends = 'e', kBinGet = 'h', kLongBinGet = 'j',
  kEmptyList = ']', kBinPut = 'q', kLongBinPut = 'r', kSetItem = 's', kTuple = 't', kEmptyTuple = ')', kSetItems = 'u',
  kEmptyDict = '}', kProto = 0x80, kTuple1 = 0x85, kTuple2 = 0x86, kTuple3 = 0x87, kNewTrue = 0x88, kNewFalse = 0x89, kLong1 = 0x8a,
};

// The opcodes that are refused, by name.
struct OpName {
  uint8_t code;
  const char* name;
};
constexpr OpName kRefused[] = {
    {'0', "POP"}, {'1', "POP_MARK"}, {'2', "DUP"}, {'F', "FLOAT"}, {'I', "INT"}, {'L', "LONG"}, {'P', "PERSID"}, {'S', "STRING"},
    {'T', "BINSTRING"}, {'U', "SHORT_BINSTRING"}, {'V', "UNICODE"}, {'d', "DICT"}, {'g', "GET"}, {'i', "INST"}, {'l', "LIST"},
    {'o', "OBJ"}, {'p', "PUT"}, {'B', "BINBYTES"}, {'C', "SHORT_BINBYTES"}, {0x81, "NEWOBJ"}, {0x82, "EXT1"}, {0x83, "EXT2"},
    {0x84, "EXT4"}, {0x8b, "LONG4"}, {0x8c, "SHORT_BINUNICODE"}, {0x8d, "BINUNICODE8"}, {0x8e, "BINBYTES8"}, {0x8f, "EMPTY_SET"},
    {0x90, "ADDITEMS"}, {0x91, "FROZENSET"}, {0x92, "NEWOBJ_EX"}, {0x93, "STACK_GLOBAL"}, {0x94, "MEMOIZE"}, {0x95, "FRAME"},
    {0x96, "BYTEARRAY8"}, {0x97, "NEXT_BUFFER"}, {0x98, "READONLY_BUFFER"}};
// clang-format on

std::string refused_name(uint8_t code) {
  for (const OpName& each : kRefused) {
    if (each.code == code) return each.name;
  }
  return fmt::format("{:#04x}", code);
}

// What a global may be; it is only ever a mark on the stack that REDUCE or BINPERSID understands.
enum class Global : uint64_t { kOrderedDict, kSize, kTensor, kParameter, kStorageType };
struct KnownGlobal {
  const char* module;
  const char* name;
  Global meaning;
  DType type = DType::kF32;  // of a storage type
};
constexpr KnownGlobal kGlobals[] = {{"collections", "OrderedDict", Global::kOrderedDict},
                                    {"torch", "Size", Global::kSize},
                                    {"torch._utils", "_rebuild_tensor_v2", Global::kTensor},
                                    {"torch._utils", "_rebuild_parameter", Global::kParameter},
                                    {"torch", "FloatStorage", Global::kStorageType, DType::kF32},
                                    {"torch", "HalfStorage", Global::kStorageType, DType::kF16},
                                    {"torch", "BFloat16Storage", Global::kStorageType, DType::kBF16},
                                    {"torch", "DoubleStorage", Global::kStorageType, DType::kF64},
                                    {"torch", "CharStorage", Global::kStorageType, DType::kI8},
                                    {"torch", "ByteStorage", Global::kStorageType, DType::kU8},
                                    {"torch", "ShortStorage", Global::kStorageType, DType::kI16},
                                    {"torch", "IntStorage", Global::kStorageType, DType::kI32},
                                    {"torch", "LongStorage", Global::kStorageType, DType::kI64},
                                    {"torch", "BoolStorage", Global::kStorageType, DType::kBool}};

PickleItem item_at(PickleKind kind, uint64_t index) {
  PickleItem item;
  item.kind = kind;
  item.index = index;
  return item;
}

PickleItem integer_item(PickleKind kind, int64_t value) {
  PickleItem item;
  item.kind = kind;
  item.integer = value;
  return item;
}

class Interpreter {
 public:
  explicit Interpreter(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  Expected<PickleGraph> run() {
    if (bytes_.size() > kMaxPickleBytes) {
      return resource_error("it has {} bytes; the limit is {}", bytes_.size(), kMaxPickleBytes);
    }
    while (!stopped_) {
      op_begin_ = at_;
      AERIE_TRY(step().with_context(fmt::format("byte {}", op_begin_)));
    }
    if (at_ != bytes_.size()) return corrupt("{} bytes follow its end", bytes_.size() - at_);
    return std::move(graph_);
  }

 private:
  // ---- bytes
  Expected<std::span<const uint8_t>> take(size_t count) {
    if (count > bytes_.size() - at_) return corrupt("{} bytes were expected but only {} remain", count, bytes_.size() - at_);
    at_ += count;
    return bytes_.subspan(at_ - count, count);
  }

  template <class T>
  Expected<T> number() {
    AERIE_ASSIGN(const auto bytes, take(sizeof(T)));
    T value;
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }

  Expected<std::string_view> line() {
    const size_t most = std::min(kMaxGlobalBytes, bytes_.size() - at_);
    const void* end = most == 0 ? nullptr : std::memchr(bytes_.data() + at_, '\n', most);
    if (end == nullptr) return corrupt("a line of at most {} bytes was expected", kMaxGlobalBytes);
    const char* begin = reinterpret_cast<const char*>(bytes_.data()) + at_;
    const std::string_view text(begin, static_cast<size_t>(static_cast<const char*>(end) - begin));
    at_ += text.size() + 1;
    return text;
  }

  // ---- the stack
  Status count_value() {
    if (++values_ > kMaxValues) return resource_error("it makes more than {} values", kMaxValues);
    return Status();
  }

  Status push(PickleItem item) {
    AERIE_TRY(count_value());
    stack_.push_back(item);
    return Status();
  }
  Status push_integer(PickleKind kind, int64_t value) { return push(integer_item(kind, value)); }

  Status push_sequence(PickleKind kind, std::vector<PickleItem> items) {
    graph_.sequences.push_back(std::move(items));
    return push(item_at(kind, graph_.sequences.size() - 1));
  }

  Status push_dict() {
    graph_.dicts.emplace_back();
    return push(item_at(PickleKind::kDict, graph_.dicts.size() - 1));
  }

  // How many values lie above the last mark.
  size_t above_mark() const { return stack_.size() - (marks_.empty() ? 0 : marks_.back()); }

  Status need(size_t count) const {
    if (above_mark() < count) return corrupt("{} values are needed but {} are there", count, above_mark());
    return Status();
  }

  std::vector<PickleItem> pop(size_t count) {
    std::vector<PickleItem> items(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return items;
  }

  Expected<std::vector<PickleItem>> pop_to_mark() {
    if (marks_.empty()) return corrupt("there is no mark");
    std::vector<PickleItem> items = pop(above_mark());
    marks_.pop_back();
    return items;
  }

  // ---- opcodes
  Status step() {
    AERIE_ASSIGN(const auto code, number<uint8_t>());
    switch (static_cast<Op>(code)) {
      case Op::kProto: return protocol();
      case Op::kStop: return stop();
      case Op::kMark: marks_.push_back(stack_.size()); return count_value();
      case Op::kNone: return push({});
      case Op::kNewTrue: return push_integer(PickleKind::kBool, 1);
      case Op::kNewFalse: return push_integer(PickleKind::kBool, 0);
      case Op::kBinInt: return binary_integer<int32_t>();
      case Op::kBinInt1: return binary_integer<uint8_t>();
      case Op::kBinInt2: return binary_integer<uint16_t>();
      case Op::kLong1: return long_integer();
      case Op::kBinFloat: return real();
      case Op::kBinUnicode: return string();
      case Op::kEmptyList: return push_sequence(PickleKind::kList, {});
      case Op::kEmptyTuple: return push_sequence(PickleKind::kTuple, {});
      case Op::kEmptyDict: return push_dict();
      case Op::kTuple1: return tuple(1);
      case Op::kTuple2: return tuple(2);
      case Op::kTuple3: return tuple(3);
      case Op::kTuple: {
        AERIE_ASSIGN(auto items, pop_to_mark());
        return push_sequence(PickleKind::kTuple, std::move(items));
      }
      case Op::kAppend: {
        AERIE_TRY(need(2));
        return append(pop(1));
      }
      case Op::kAppends: {
        AERIE_ASSIGN(const auto items, pop_to_mark());
        return append(items);
      }
      case Op::kSetItem: {
        AERIE_TRY(need(3));
        return set_items(pop(2));
      }
      case Op::kSetItems: {
        AERIE_ASSIGN(const auto items, pop_to_mark());
        return set_items(items);
      }
      case Op::kBinPut: return put<uint8_t>();
      case Op::kLongBinPut: return put<uint32_t>();
      case Op::kBinGet: return get<uint8_t>();
      case Op::kLongBinGet: return get<uint32_t>();
      case Op::kGlobal: return global();
      case Op::kBinPersId: return persistent();
      case Op::kReduce: return reduce();
      case Op::kBuild: return build();
    }
    return unsupported("the opcode {} is not read: plain values and tensors need none such; save a plain dict of tensors with torch.save",
                       refused_name(code));
  }

  Status protocol() {
    AERIE_ASSIGN(const auto version, number<uint8_t>());
    if (op_begin_ != 0) return corrupt("the protocol is named in the middle");
    if (version == kProtocol) return Status();
    return unsupported("pickle protocol {} is not read; expected {}, the default of torch.save", version, kProtocol);
  }

  Status stop() {
    if (stack_.size() != 1 || !marks_.empty()) {
      return corrupt("it ends with {} values and {} marks on its stack; expected one value", stack_.size(), marks_.size());
    }
    graph_.root = stack_.back();
    stopped_ = true;
    return Status();
  }

  template <class T>
  Status binary_integer() {
    AERIE_ASSIGN(const auto value, number<T>());
    return push_integer(PickleKind::kInt, value);
  }

  Status long_integer() {
    AERIE_ASSIGN(const auto length, number<uint8_t>());
    if (length > sizeof(int64_t)) return unsupported("an integer of {} bytes is not read; the limit is 8", length);
    AERIE_ASSIGN(const auto bytes, take(length));
    const bool negative = length > 0 && (bytes.back() & 0x80) != 0;
    int64_t value = negative ? -1 : 0;
    std::memcpy(&value, bytes.data(), length);  // little-endian two's complement
    return push_integer(PickleKind::kInt, value);
  }

  Status real() {
    AERIE_ASSIGN(const auto bits, number<uint64_t>());
    PickleItem item;
    item.kind = PickleKind::kFloat;
    item.real = std::bit_cast<double>(__builtin_bswap64(bits));  // the one big-endian number of the format
    return push(item);
  }

  Status string() {
    AERIE_ASSIGN(const auto length, number<uint32_t>());
    AERIE_ASSIGN(const auto text, take(length));
    graph_.strings.emplace_back(reinterpret_cast<const char*>(text.data()), text.size());
    return push(item_at(PickleKind::kString, graph_.strings.size() - 1));
  }

  Status tuple(size_t count) {
    AERIE_TRY(need(count));
    return push_sequence(PickleKind::kTuple, pop(count));
  }

  Status append(const std::vector<PickleItem>& items) {
    AERIE_TRY(need(1));
    const PickleItem to = stack_.back();
    if (to.kind != PickleKind::kList) return corrupt("values are appended to {}; expected a list", pickle_kind_name(to.kind));
    auto& list = graph_.sequences[to.index];
    list.insert(list.end(), items.begin(), items.end());
    return Status();
  }

  Status set_items(const std::vector<PickleItem>& items) {
    AERIE_TRY(need(1));
    const PickleItem to = stack_.back();
    if (to.kind != PickleKind::kDict) return corrupt("keys are set in {}; expected a dict", pickle_kind_name(to.kind));
    if (items.size() % 2 != 0) return corrupt("{} values are no pairs of keys and values", items.size());
    for (size_t i = 0; i < items.size(); i += 2) {
      if (items[i].kind != PickleKind::kString && items[i].kind != PickleKind::kInt) {
        return unsupported("a key of a dict is {}; strings and integers are read", pickle_kind_name(items[i].kind));
      }
      graph_.dicts[to.index].items.emplace_back(items[i], items[i + 1]);
    }
    return Status();
  }

  template <class T>
  Status put() {
    AERIE_ASSIGN(const auto slot, number<T>());
    AERIE_TRY(need(1));
    AERIE_TRY(count_value());
    // Python numbers the values that it remembers in order; a table with holes would let four bytes ask for gigabytes.
    if (slot > memo_.size()) return corrupt("memo slot {} is filled before slot {}", slot, memo_.size());
    if (slot == memo_.size()) memo_.emplace_back();
    memo_[slot] = stack_.back();
    return Status();
  }

  template <class T>
  Status get() {
    AERIE_ASSIGN(const auto slot, number<T>());
    if (slot >= memo_.size()) return corrupt("memo slot {} is read before it is filled", slot);
    return push(memo_[slot]);
  }

  Status global() {
    AERIE_ASSIGN(const std::string_view module, line());
    AERIE_ASSIGN(const std::string_view name, line());
    for (size_t i = 0; i < std::size(kGlobals); ++i) {
      if (kGlobals[i].module == module && kGlobals[i].name == name) return push(item_at(PickleKind::kGlobal, i));
    }
    return unsupported(
        "the global {} is not read: nothing in a file is called, and only tensors of plain types, OrderedDict and "
        "torch.Size stand for data; save a plain dict of tensors with torch.save",
        printable(std::string(module) + "." + std::string(name)));
  }

  // ("storage", type, key, device, elements): the bytes lie beside the pickle.
  Status persistent() {
    AERIE_TRY(need(1));
    const PickleItem id = pop(1).front();
    const auto* parts = id.kind == PickleKind::kTuple ? &graph_.sequences[id.index] : nullptr;
    if (parts == nullptr || parts->size() != 5 || (*parts)[0].kind != PickleKind::kString || graph_.string((*parts)[0]) != "storage" ||
        (*parts)[1].kind != PickleKind::kGlobal || kGlobals[(*parts)[1].index].meaning != Global::kStorageType ||
        (*parts)[2].kind != PickleKind::kString || (*parts)[3].kind != PickleKind::kString || (*parts)[4].kind != PickleKind::kInt) {
      return corrupt("a reference to a storage is not of the form ('storage', type, key, device, elements)");
    }
    const PickleStorage storage{graph_.string((*parts)[2]), kGlobals[(*parts)[1].index].type, static_cast<uint64_t>((*parts)[4].integer)};
    if ((*parts)[4].integer < 0) return corrupt("storage {} has {} elements", printable(storage.key), (*parts)[4].integer);
    const auto [at, added] = storage_index_.try_emplace(storage.key, graph_.storages.size());
    if (added) graph_.storages.push_back(storage);
    const PickleStorage& first = graph_.storages[at->second];
    if (first.type != storage.type || first.count != storage.count) {
      return corrupt("storage {} is named as {} x {} and as {} x {}", printable(storage.key), dtype_name(first.type), first.count,
                     dtype_name(storage.type), storage.count);
    }
    return push(item_at(PickleKind::kStorage, at->second));
  }

  Status reduce() {
    AERIE_TRY(need(2));
    const std::vector<PickleItem> call = pop(2);
    if (call[0].kind != PickleKind::kGlobal || call[1].kind != PickleKind::kTuple) {
      return corrupt("{} is called with {}; expected a global and a tuple", pickle_kind_name(call[0].kind), pickle_kind_name(call[1].kind));
    }
    const KnownGlobal& callee = kGlobals[call[0].index];
    const std::vector<PickleItem>& arguments = graph_.sequences[call[1].index];
    const auto wrong = [&callee] { return unsupported("{}.{} is called with arguments that are not read", callee.module, callee.name); };
    switch (callee.meaning) {
      case Global::kOrderedDict: return arguments.empty() ? push_dict() : wrong();
      case Global::kSize: return arguments.size() == 1 && arguments[0].kind == PickleKind::kTuple ? push(arguments[0]) : wrong();
      case Global::kParameter:  // (data, requires_grad, backward_hooks)
        if (arguments.size() != 3 || arguments[0].kind != PickleKind::kTensor || !is_empty(arguments[2])) return wrong();
        return push(arguments[0]);
      case Global::kTensor: return tensor(arguments).with_context("a tensor");
      case Global::kStorageType: return wrong();
    }
    return wrong();
  }

  // The attributes of an OrderedDict (state dicts have `_metadata`), which are not read.
  Status build() {
    AERIE_TRY(need(2));
    const PickleItem state = pop(1).front();
    if (state.kind == PickleKind::kDict && stack_.back().kind == PickleKind::kDict) return Status();
    return unsupported("attributes are set on {}; only those of an OrderedDict are passed over", pickle_kind_name(stack_.back().kind));
  }

  // ---- tensors
  bool is_empty(PickleItem item) const {
    return item.kind == PickleKind::kNone || (item.kind == PickleKind::kDict && graph_.dicts[item.index].items.empty());
  }

  Expected<std::vector<uint64_t>> sizes(PickleItem item, const char* what) const {
    if (item.kind != PickleKind::kTuple) return corrupt("its {} is {}; expected a tuple", what, pickle_kind_name(item.kind));
    std::vector<uint64_t> out;
    for (const PickleItem& each : graph_.sequences[item.index]) {
      if (each.kind != PickleKind::kInt) return corrupt("its {} holds {}; expected integers", what, pickle_kind_name(each.kind));
      if (each.integer < 0) return corrupt("its {} holds {}; expected no negative number", what, each.integer);
      if (out.size() == kMaxDims) return unsupported("its {} has more than {} numbers", what, kMaxDims);
      out.push_back(static_cast<uint64_t>(each.integer));
    }
    return out;
  }

  // (storage, offset, shape, strides, requires_grad, backward_hooks[, metadata])
  Status tensor(const std::vector<PickleItem>& arguments) {
    if (arguments.size() != 6 && arguments.size() != 7)
      return unsupported("it is made from {} arguments; expected 6 or 7", arguments.size());
    if (arguments[0].kind != PickleKind::kStorage)
      return corrupt("it is made of {}; expected a storage", pickle_kind_name(arguments[0].kind));
    if (arguments[1].kind != PickleKind::kInt || arguments[1].integer < 0) return corrupt("its offset is no number from 0");
    if (!is_empty(arguments[5]) || (arguments.size() == 7 && !is_empty(arguments[6]))) {
      return unsupported("it has hooks or marks (such as a pending conjugation or negation); save a clone of it");
    }
    AERIE_ASSIGN(auto shape, sizes(arguments[2], "shape"));
    AERIE_ASSIGN(auto strides, sizes(arguments[3], "strides"));
    PickleTensor out{arguments[0].index, static_cast<uint64_t>(arguments[1].integer), std::move(shape), std::move(strides)};
    if (out.shape.size() != out.strides.size()) {
      return corrupt("it has {} dimensions but {} strides", out.shape.size(), out.strides.size());
    }
    AERIE_TRY(check_extent(out));
    graph_.tensors.push_back(std::move(out));
    return push(item_at(PickleKind::kTensor, graph_.tensors.size() - 1));
  }

  // Its last element must lie in the storage, and no two of its elements may be one: a tensor that is expanded from a few
  // bytes would be gigabytes once it is written out.
  Status check_extent(const PickleTensor& tensor) const {
    const PickleStorage& storage = graph_.storages[tensor.storage];
    std::vector<std::pair<uint64_t, uint64_t>> dims;  // stride, size
    std::optional<uint64_t> last = tensor.offset;
    for (size_t i = 0; i < tensor.shape.size(); ++i) {
      const uint64_t size = tensor.shape[i], stride = tensor.strides[i];
      if (size == 0) return corrupt("its shape [{}] has a dimension of 0", fmt::join(tensor.shape, ", "));
      const std::optional<uint64_t> reach = checked_mul(size - 1, stride);
      last = last && reach ? checked_add(*last, *reach) : std::nullopt;
      if (size > 1) dims.emplace_back(stride, size);
    }
    if (!last || *last >= storage.count) {
      return corrupt("shape [{}] with strides [{}] from element {} on leaves its storage {} of {} elements", fmt::join(tensor.shape, ", "),
                     fmt::join(tensor.strides, ", "), tensor.offset, printable(storage.key), storage.count);
    }
    std::sort(dims.begin(), dims.end());
    uint64_t reach = 0;  // the furthest element that the smaller strides lead to; below storage.count, so nothing overflows
    for (const auto& [stride, size] : dims) {
      if (stride <= reach) {
        return unsupported("shape [{}] with strides [{}] names elements more than once; save tensor.contiguous()",
                           fmt::join(tensor.shape, ", "), fmt::join(tensor.strides, ", "));
      }
      reach += stride * (size - 1);
    }
    return Status();
  }

  std::span<const uint8_t> bytes_;
  size_t at_ = 0;
  size_t op_begin_ = 0;
  bool stopped_ = false;
  size_t values_ = 0;
  std::vector<PickleItem> stack_;
  std::vector<size_t> marks_;  // heights of the stack
  std::vector<PickleItem> memo_;
  std::map<std::string_view, uint64_t> storage_index_;
  PickleGraph graph_;
};

// Walks from the root over containers: what a consumer can reach must be data, finite, and no deeper than kMaxDepth.
class Checker {
 public:
  explicit Checker(PickleGraph& graph) : graph_(graph), sequence_depth_(graph.sequences.size()), dict_depth_(graph.dicts.size()) {}

  Status run() {
    AERIE_TRY(enter(graph_.root));
    while (!path_.empty()) {
      Visit& top = path_.back();
      if (top.next < child_count(top.item)) {
        const PickleItem child = child_at(top.item, top.next++);
        AERIE_TRY(enter(child));
        continue;
      }
      const uint32_t depth = top.depth + 1;
      depth_of(top.item) = depth;
      if (top.item.kind == PickleKind::kDict) AERIE_TRY(sort_keys(graph_.dicts[top.item.index]));
      path_.pop_back();
      if (!path_.empty()) path_.back().depth = std::max(path_.back().depth, depth);
    }
    return Status();
  }

 private:
  static constexpr uint32_t kOpen = UINT32_MAX;
  struct Visit {
    PickleItem item;
    size_t next = 0;
    uint32_t depth = 0;  // levels below it that are known so far
  };

  // Levels of a container, itself included; 0 before the first visit.
  uint32_t& depth_of(PickleItem item) { return item.kind == PickleKind::kDict ? dict_depth_[item.index] : sequence_depth_[item.index]; }

  size_t child_count(PickleItem item) const {
    return item.kind == PickleKind::kDict ? graph_.dicts[item.index].items.size() : graph_.sequences[item.index].size();
  }
  PickleItem child_at(PickleItem item, size_t i) const {
    return item.kind == PickleKind::kDict ? graph_.dicts[item.index].items[i].second : graph_.sequences[item.index][i];
  }

  Status enter(PickleItem item) {
    if (item.kind == PickleKind::kStorage || item.kind == PickleKind::kGlobal) {
      return unsupported("a value is {}; expected tensors and plain values", pickle_kind_name(item.kind));
    }
    if (item.kind != PickleKind::kList && item.kind != PickleKind::kTuple && item.kind != PickleKind::kDict) return Status();
    const uint32_t known = depth_of(item);
    if (known == kOpen) return corrupt("{} holds itself", pickle_kind_name(item.kind));
    if (path_.size() + std::max(known, 1u) > kMaxDepth) return corrupt("values nest deeper than {} levels", kMaxDepth);
    if (known != 0) {
      path_.back().depth = std::max(path_.back().depth, known);
      return Status();
    }
    depth_of(item) = kOpen;
    path_.push_back({item});
    return Status();
  }

  // -1, 0 or 1; integers come first.
  int compare(PickleItem a, PickleItem b) const {
    if (a.kind != b.kind) return a.kind == PickleKind::kInt ? -1 : 1;
    if (a.kind == PickleKind::kInt) return a.integer < b.integer ? -1 : a.integer > b.integer ? 1 : 0;
    const int order = graph_.string(a).compare(graph_.string(b));
    return order < 0 ? -1 : order > 0 ? 1 : 0;
  }

  Status sort_keys(PickleDict& dict) const {
    dict.sorted.resize(dict.items.size());
    for (uint32_t i = 0; i < dict.sorted.size(); ++i) dict.sorted[i] = i;
    std::sort(dict.sorted.begin(), dict.sorted.end(),
              [&](uint32_t a, uint32_t b) { return compare(dict.items[a].first, dict.items[b].first) < 0; });
    for (size_t i = 1; i < dict.sorted.size(); ++i) {
      const PickleItem key = dict.items[dict.sorted[i]].first;
      if (compare(dict.items[dict.sorted[i - 1]].first, key) != 0) continue;
      return corrupt("a dict has the key {} twice",
                     key.kind == PickleKind::kInt ? std::to_string(key.integer) : printable(graph_.string(key)));
    }
    return Status();
  }

  PickleGraph& graph_;
  std::vector<uint32_t> sequence_depth_;
  std::vector<uint32_t> dict_depth_;
  std::vector<Visit> path_;
};

}  // namespace

const char* pickle_kind_name(PickleKind kind) {
  switch (kind) {
    case PickleKind::kNone: return "None";
    case PickleKind::kBool: return "a boolean";
    case PickleKind::kInt: return "an integer";
    case PickleKind::kFloat: return "a float";
    case PickleKind::kString: return "a string";
    case PickleKind::kTensor: return "a tensor";
    case PickleKind::kList: return "a list";
    case PickleKind::kTuple: return "a tuple";
    case PickleKind::kDict: return "a dict";
    case PickleKind::kStorage: return "a bare storage";
    case PickleKind::kGlobal: return "a global";
  }
  return "unknown";
}

Expected<PickleGraph> read_torch_pickle(std::span<const uint8_t> bytes) {
  AERIE_ASSIGN(PickleGraph graph, Interpreter(bytes).run());
  AERIE_TRY(Checker(graph).run());
  return graph;
}

}  // namespace aerie
