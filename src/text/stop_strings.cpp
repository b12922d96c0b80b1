#include "text/stop_strings.h"

#include <algorithm>

namespace aerie {
namespace {

std::vector<size_t> borders(const std::string& text) {
  std::vector<size_t> fallback(text.size(), 0);
  for (size_t i = 1, k = 0; i < text.size(); ++i) {
    while (k > 0 && text[i] != text[k]) k = fallback[k - 1];
    if (text[i] == text[k]) ++k;
    fallback[i] = k;
  }
  return fallback;
}

}  // namespace

Expected<StopMatcher> StopMatcher::create(std::vector<std::string> stops) {
  StopMatcher matcher;
  for (std::string& stop : stops) {
    if (stop.empty())
      return invalid_argument("a stop string is empty: it would stop every answer before its first character; leave it out");
    Needle needle;
    needle.fallback = borders(stop);
    needle.text = std::move(stop);
    matcher.needles_.push_back(std::move(needle));
  }
  return matcher;
}

std::string StopMatcher::push(std::string_view piece) {
  if (stopped()) return {};
  size_t withheld = 0;
  for (const char c : piece) {
    pending_ += c;
    withheld = 0;
    for (size_t i = 0; i < needles_.size(); ++i) {
      Needle& needle = needles_[i];
      while (needle.matched > 0 && needle.text[needle.matched] != c) needle.matched = needle.fallback[needle.matched - 1];
      if (needle.text[needle.matched] == c) ++needle.matched;
      withheld = std::max(withheld, needle.matched);
      const bool complete = needle.matched == needle.text.size();
      if (complete && (!stopped() || needle.text.size() > needles_[stopped_by_].text.size())) stopped_by_ = i;
    }
    if (stopped()) {
      pending_.resize(pending_.size() - needles_[stopped_by_].text.size());
      std::string out;
      out.swap(pending_);
      return out;
    }
  }
  if (piece.empty()) return {};
  std::string out = pending_.substr(0, pending_.size() - withheld);
  pending_.erase(0, out.size());
  return out;
}

std::string StopMatcher::flush() {
  std::string out;
  out.swap(pending_);
  for (Needle& needle : needles_) needle.matched = 0;
  return out;
}

}  // namespace aerie
