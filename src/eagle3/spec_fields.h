// The fields of a DraftSpec as a table: what inspect prints, what programs read, and what a comparison of two specs names.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "eagle3/draft_spec.h"

namespace aerie {

struct SpecField {
  std::string name;      // the member's name
  nlohmann::json value;  // a number, a boolean, a word ("per-tap"), or the list of taps, of which those that nobody knows are null

  std::string text() const;  // "10000", "true", "per-tap", "2,15,final", "?,?,?"
};

/// Every field of the forward but d2t, in a fixed order; those that have no meaning for the spec (MLA's widths) are left out.
std::vector<SpecField> spec_fields(const DraftSpec& spec);

/// A field that two specs state differently, as people read it; "" where one of them has no such field.
struct FieldDifference {
  std::string field, a, b;
};
/// Of spec_fields(), in their order.
std::vector<FieldDifference> compare_fields(const DraftSpec& a, const DraftSpec& b);

/// compare_fields() and d2t, as "name: A against B"; where a spec came from (dialect, path, provenance) is not a
/// field of it. Empty means that both describe the same forward.
std::vector<std::string> differing_fields(const DraftSpec& a, const DraftSpec& b);

}  // namespace aerie
