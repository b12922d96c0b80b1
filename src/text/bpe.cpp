#include "text/bpe.h"

#include <queue>
#include <tuple>

namespace aerie {

void BpeMerges::merge(std::vector<int32_t>& symbols) const {
  if (symbols.size() < 2) return;
  struct Node {
    int32_t id;  // -1 once merged into its left neighbour
    int32_t previous;
    int32_t next;
  };
  struct Candidate {
    uint32_t rank;
    int32_t position;
    int32_t left, right, merged;
    bool operator<(const Candidate& other) const { return std::tie(rank, position) > std::tie(other.rank, other.position); }
  };
  const auto count = static_cast<int32_t>(symbols.size());
  std::vector<Node> nodes(symbols.size());
  for (int32_t i = 0; i < count; ++i) nodes[i] = {symbols[i], i - 1, i + 1 < count ? i + 1 : -1};

  std::vector<Candidate> initial;
  const auto candidate_at = [&](int32_t i, auto&& use) {
    const int32_t next = nodes[i].next;
    if (next < 0) return;
    const auto found = table_.find(key(nodes[i].id, nodes[next].id));
    if (found != table_.end()) use(Candidate{found->second.rank, i, nodes[i].id, nodes[next].id, found->second.merged});
  };
  for (int32_t i = 0; i < count; ++i) candidate_at(i, [&](Candidate c) { initial.push_back(c); });
  std::priority_queue<Candidate> queue(std::less<Candidate>{}, std::move(initial));
  const auto push = [&](Candidate c) { queue.push(c); };

  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Node& left = nodes[best.position];
    // A candidate is stale when one of its two symbols has been merged since.
    if (left.id != best.left || left.next < 0 || nodes[left.next].id != best.right) continue;
    Node& right = nodes[left.next];
    left.id = best.merged;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) nodes[left.next].previous = best.position;
    candidate_at(best.position, push);
    if (left.previous >= 0) candidate_at(left.previous, push);
  }
  symbols.clear();
  for (int32_t i = 0; i >= 0; i = nodes[i].next) symbols.push_back(nodes[i].id);
}

}  // namespace aerie
