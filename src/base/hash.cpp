#include <openssl/evp.h>

#include <memory>

#include "base/file_io.h"
#include "base/mapped_file.h"

namespace aerie {

std::string sha256_hex(std::span<const uint8_t> bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  EVP_Digest(bytes.data(), bytes.size(), digest, &length, EVP_sha256(), nullptr);
  std::string hex;
  for (unsigned int i = 0; i < length; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

Expected<std::string> sha256_file(const std::string& path) {
  AERIE_ASSIGN(MappedFile file, MappedFile::open(path));
  return sha256_hex(file.bytes());
}

}  // namespace aerie
