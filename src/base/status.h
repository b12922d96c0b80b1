// Errors as values: every function that reads a file, a flag or a request returns a Status or an Expected<T>.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace aerie {

enum class StatusCode {
  kOk,
  kInvalidArgument,  // the caller asked for something that has no meaning; exit code 2 in the programs
  kNotFound,         // a file, tensor or key is not there
  kCorrupt,          // a file contradicts itself or its format
  kUnsupported,      // well formed, but not something this program can do
  kResource,         // memory, disk or context is too small for what was asked
  kIo,               // the operating system refused
  kCancelled,        // the user interrupted the work
  kInternal,         // a bug of ours
};

/// The outcome of an operation: ok, or a code with one sentence that says what was expected, what was found and what to do.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status ok_status() { return {}; }
  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  /// The same error with `prefix` in front of its sentence ("FILE: ...").
  Status with_context(const std::string& prefix) const { return ok() ? *this : Status(code_, prefix + ": " + message_); }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

template <class... Args>
Status make_error(StatusCode code, fmt::format_string<Args...> format, Args&&... args) {
  return {code, fmt::format(format, std::forward<Args>(args)...)};
}
#define AERIE_DEFINE_ERROR(name, code)                                           \
  template <class... Args>                                                       \
  Status name(fmt::format_string<Args...> format, Args&&... args) {              \
    return {StatusCode::code, fmt::format(format, std::forward<Args>(args)...)}; \
  }
AERIE_DEFINE_ERROR(invalid_argument, kInvalidArgument)
AERIE_DEFINE_ERROR(not_found, kNotFound)
AERIE_DEFINE_ERROR(corrupt, kCorrupt)
AERIE_DEFINE_ERROR(unsupported, kUnsupported)
AERIE_DEFINE_ERROR(resource_error, kResource)
AERIE_DEFINE_ERROR(io_error, kIo)
AERIE_DEFINE_ERROR(cancelled, kCancelled)
AERIE_DEFINE_ERROR(internal_error, kInternal)
#undef AERIE_DEFINE_ERROR

/// A T, or the Status that says why there is none. Reading the value of an error is a bug of the caller (it throws
/// std::bad_variant_access, so that it cannot go unnoticed).
template <class T>
class [[nodiscard]] Expected {
 public:
  Expected(T value) : state_(std::move(value)) {}
  Expected(Status status) : state_(std::move(status)) {}

  bool ok() const { return std::holds_alternative<T>(state_); }
  explicit operator bool() const { return ok(); }
  Status status() const { return ok() ? Status() : std::get<Status>(state_); }

  T& value() & { return std::get<T>(state_); }
  const T& value() const& { return std::get<T>(state_); }
  T&& value() && { return std::get<T>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::get<T>(std::move(state_)); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace aerie

#define AERIE_CONCAT_INNER(a, b) a##b
#define AERIE_CONCAT(a, b) AERIE_CONCAT_INNER(a, b)

/// Returns from the calling function if `expression` (a Status) is an error.
#define AERIE_TRY(expression)                                                                    \
  do {                                                                                           \
    if (::aerie::Status aerie_status_ = (expression); !aerie_status_.ok()) return aerie_status_; \
  } while (false)

/// `AERIE_ASSIGN(auto x, f());` declares x from an Expected, or returns its error.
#define AERIE_ASSIGN(target, expression) AERIE_ASSIGN_IMPL(AERIE_CONCAT(aerie_expected_, __LINE__), target, expression)
#define AERIE_ASSIGN_IMPL(temporary, target, expression) \
  auto temporary = (expression);                         \
  if (!temporary.ok()) return temporary.status();        \
  target = std::move(temporary).value()
