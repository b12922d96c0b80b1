// The confusion table: what the doctor says where it is known what is wrong. The rows are those of the public reports that Aerie keeps
// a taxonomy of; a fault is injected in a small drafter, its trace, an emulated engine, a command line or a log.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "eagle3/finding.h"

namespace aerie {

struct TableRow {
  std::vector<int> rows;           // of the taxonomy, 1 to 63
  std::string fault;               // for people
  std::vector<std::string> codes;  // any of these, first, is the right answer
  std::function<std::vector<Finding>()> doctor;
};

std::vector<TableRow> file_faults();
std::vector<TableRow> replay_faults();
std::vector<TableRow> engine_faults();
std::vector<TableRow> figure_faults();

/// Rows that no file, trace, flag or log can show, and why.
struct NotShown {
  std::vector<int> rows;
  std::string why;
};
std::vector<NotShown> not_shown();

}  // namespace aerie
