// safetensors reader and writer (https://huggingface.co/docs/safetensors): 8-byte header length, JSON header, data.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"
#include "formats/tensor_file.h"

namespace aerie {

/// One safetensors file, or all shards of a `*.safetensors.index.json`.
/// Refused: a header over 100 MB, with more than 200,000 tensors or beyond the file, offsets that overlap, leave gaps, are out
/// of order of the data's end or differ from shape x dtype, duplicate names, a shard path that leaves the folder, a tensor of
/// the index that its shard lacks.
class SafetensorsFile : public TensorFile {
 public:
  /// `path` is a .safetensors file or an .index.json.
  static Expected<SafetensorsFile> open(const std::string& path);
  /// A single file whose bytes are mapped or in memory already.
  static Expected<SafetensorsFile> read(MappedFile file);

  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  Status add_part(MappedFile part, const std::set<std::string>* named);

  std::map<std::string, std::string> metadata_;
};

/// The shards of an .index.json, plain names of files beside it, each with the tensors that it says are there. Nothing but the index is
/// read.
Expected<std::map<std::string, std::set<std::string>>> read_shard_index(const std::string& path);

/// Writes `tensors` (in the given order; plain types only) atomically. Data is 8-byte aligned by padding the header.
Status write_safetensors(const std::string& path, const std::vector<TensorView>& tensors,
                         const std::map<std::string, std::string>& metadata = {});

}  // namespace aerie
