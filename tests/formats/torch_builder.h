// Builds small files as torch.save does, valid unless a test makes them otherwise: a pickle and a zip archive of stored entries.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace aerie {

/// A little-endian number of any width.
inline std::string little(uint64_t value, size_t bytes) {
  std::string out(std::max(bytes, sizeof value), '\0');
  std::memcpy(out.data(), &value, sizeof value);
  out.resize(bytes);
  return out;
}

/// Opcodes of protocol 2, written by hand.
class PickleBytes {
 public:
  PickleBytes() : out_("\x80\x02", 2) {}
  PickleBytes& raw(std::string_view bytes) {
    out_ += bytes;
    return *this;
  }
  PickleBytes& text(std::string_view value) { return raw("X" + little(value.size(), 4)).raw(value); }
  PickleBytes& integer(int32_t value) { return raw("J" + little(static_cast<uint32_t>(value), 4)); }
  PickleBytes& global(const std::string& module, const std::string& name) { return raw("c" + module + "\n" + name + "\n"); }
  PickleBytes& tuple(const std::vector<int32_t>& values) {
    raw("(");
    for (const int32_t value : values) integer(value);
    return raw("t");
  }
  PickleBytes& storage(const std::string& type, const std::string& key, int32_t count) {
    return raw("(").text("storage").global("torch", type).text(key).text("cpu").integer(count).raw("tQ");
  }
  /// A tensor of storage `key`.
  PickleBytes& tensor(const std::string& type, const std::string& key, int32_t count, int32_t offset, const std::vector<int32_t>& shape,
                      const std::vector<int32_t>& strides) {
    global("torch._utils", "_rebuild_tensor_v2").raw("(").storage(type, key, count).integer(offset).tuple(shape).tuple(strides);
    return raw("\x89").global("collections", "OrderedDict").raw(")RtR");
  }
  std::string stop() const { return out_ + "."; }

 private:
  std::string out_;
};

struct ZipBuilder {
  struct Entry {
    std::string name;
    std::string data;
    uint16_t method = 0;
    uint16_t flags = 0;
    std::string local_name = {};  // what stands before the data, if not `name`
    int64_t size_error = 0;       // added to the size that the directory names
    int64_t offset_error = 0;     // added to the place that the directory names
    bool zip64 = false;           // its size and place stand in a zip64 extra field
  };
  std::vector<Entry> entries;
  bool zip64_end = false;
  std::string comment;
  int entry_count_error = 0;

  ZipBuilder& add(const std::string& name, const std::string& data) {
    entries.push_back({name, data});
    return *this;
  }

  std::string build() const {
    std::string body, directory;
    for (const Entry& entry : entries) {
      const uint64_t offset = body.size() + static_cast<uint64_t>(entry.offset_error);
      const uint64_t size = entry.data.size() + static_cast<uint64_t>(entry.size_error);
      const std::string local_name = entry.local_name.empty() ? entry.name : entry.local_name;
      body += little(0x04034b50, 4) + little(0, 22) + little(local_name.size(), 2) + little(0, 2) + local_name + entry.data;
      const uint64_t short_size = entry.zip64 ? 0xffffffff : size, short_offset = entry.zip64 ? 0xffffffff : offset;
      const std::string extra = entry.zip64 ? little(1, 2) + little(24, 2) + little(size, 8) + little(size, 8) + little(offset, 8) : "";
      directory += little(0x02014b50, 4) + little(0, 4) + little(entry.flags, 2) + little(entry.method, 2) + little(0, 8);
      directory += little(short_size, 4) + little(short_size, 4) + little(entry.name.size(), 2) + little(extra.size(), 2);
      directory += little(0, 10) + little(short_offset, 4) + entry.name + extra;
    }
    const uint64_t count = entries.size() + static_cast<uint64_t>(entry_count_error);
    std::string end;
    if (zip64_end) {
      end += little(0x06064b50, 4) + little(44, 8) + little(0, 4) + little(0, 8) + little(count, 8) + little(count, 8);
      end += little(directory.size(), 8) + little(body.size(), 8);
      end += little(0x07064b50, 4) + little(0, 4) + little(body.size() + directory.size(), 8) + little(1, 4);
    }
    end += little(0x06054b50, 4) + little(0, 4) + little(zip64_end ? 0xffff : count, 2) + little(zip64_end ? 0xffff : count, 2);
    end += little(zip64_end ? 0xffffffff : directory.size(), 4) + little(zip64_end ? 0xffffffff : body.size(), 4);
    return body + directory + end + little(comment.size(), 2) + comment;
  }
};

/// A file of `pickle` and one storage "0" of `data`.
inline ZipBuilder torch_archive(const std::string& pickle, const std::string& data = std::string(24, '\x01')) {
  ZipBuilder zip;
  zip.add("archive/data.pkl", pickle).add("archive/byteorder", "little").add("archive/data/0", data).add("archive/version", "3\n");
  return zip;
}

/// {"a": a float tensor [2, 3]}
inline std::string small_pickle() {
  return PickleBytes().raw("}").text("a").tensor("FloatStorage", "0", 6, 0, {2, 3}, {3, 1}).raw("s").stop();
}

/// A tensor of a dict that was saved.
struct TorchField {
  std::string key;
  std::string type;  // "LongStorage"
  size_t width;      // bytes of a value
  std::vector<int32_t> shape;
  std::string data = {};  // empty: zeros
};

/// A file of torch.save with a dict of tensors.
inline std::string torch_dict(const std::vector<TorchField>& fields) {
  PickleBytes pickle;
  pickle.raw("}(");
  ZipBuilder zip;
  zip.add("t/data.pkl", "");
  for (const TorchField& field : fields) {
    std::vector<int32_t> strides(field.shape.size(), 1);
    int32_t count = 1;
    for (size_t i = field.shape.size(); i-- > 0; count *= field.shape[i]) strides[i] = count;
    pickle.text(field.key).tensor(field.type, field.key, count, 0, field.shape, strides);
    zip.add("t/data/" + field.key, field.data.empty() ? std::string(static_cast<size_t>(count) * field.width, '\0') : field.data);
  }
  zip.entries[0].data = pickle.raw("u").stop();
  return zip.build();
}

}  // namespace aerie
