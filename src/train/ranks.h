// The processes of one training run on several machines: each works on its share of every optimiser step, and gradients are summed.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace aerie::train {

/// Exchanges values over torch's c10d key-value store (TCPStore), which rank 0 serves. Sums are made slice by slice: rank r adds up the
/// r-th part of everything, in order of rank, and hands it out, so that every rank ends with the same bytes. (LibTorch's wheels carry
/// gloo's code but not its headers.) Every rank must make the same calls in the same order. Every error of a rank that is lost names it;
/// after one the others of that rank fail too. Not thread-safe; movable.
class Ranks {
 public:
  /// One process by itself: every call is done at once.
  Ranks();
  /// What RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say, as torchrun sets them; alone where WORLD_SIZE is not set or 1. Waits for
  /// the others. kInvalidArgument names the variable that is missing or wrong; kIoError: the others did not come. A rank that shows no
  /// sign of life for `timeout` is lost.
  static Expected<Ranks> from_environment(std::chrono::seconds timeout);
  Ranks(Ranks&&) noexcept;
  Ranks& operator=(Ranks&&) noexcept;
  ~Ranks();

  int rank() const;
  int size() const;
  bool first() const { return rank() == 0; }
  bool alone() const { return size() == 1; }
  /// A call has failed because of another rank.
  bool lost() const;

  /// Replaces each value by its sum over the ranks.
  Status sum(std::vector<double>& values);
  /// The same of float32 tensors, in place; their shapes are the same everywhere.
  Status sum(const std::vector<at::Tensor>& tensors);
  /// Replaces `text` by rank 0's.
  Status share(std::string& text);
  /// Tells the others why this rank stops, so that they stop at once and say it too.
  void give_up(const std::string& why);
  /// Waits until every rank has come here: rank 0 serves the store and must leave last.
  Status finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace aerie::train
