#include "base/gzip.h"

#include <zlib.h>

#include <filesystem>
#include <memory>

namespace aerie {

Expected<std::string> read_maybe_gzip(const std::string& path, uint64_t max_bytes) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return not_found("{}: no such file", path);
  if (std::filesystem::is_directory(path, ignored)) return invalid_argument("{}: is a folder, not a file", path);
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (file == nullptr) return io_error("{}: cannot be opened", path);
  std::string content;
  char buffer[1 << 16];
  for (;;) {
    const int got = gzread(file.get(), buffer, sizeof buffer);
    int code = Z_OK;
    const char* what = gzerror(file.get(), &code);
    // A file that ends in the middle of a gzip stream reads as a short file; only the code tells.
    if (got < 0 || (code != Z_OK && code != Z_STREAM_END)) return corrupt("{}: cannot be unpacked: {}", path, what);
    if (got == 0) return content;
    content.append(buffer, static_cast<size_t>(got));
    if (content.size() > max_bytes) return resource_error("{}: unpacks to more than {} bytes", path, max_bytes);
  }
}

}  // namespace aerie
