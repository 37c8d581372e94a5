// File: sweep.h
//
// All-reduces of growing size, across both thresholds of the algorithm's choice, each checked element by
// element.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/device/rank_device.h"
#include "tandem/client.h"

namespace tandem::digits {

struct SweepRow {
  size_t bytes = 0;
  Algorithm algorithm = Algorithm::kAuto;
  std::string reason;
  double median_us = 0;
  size_t wrong = 0;  // elements
};

// fp32 sums of small integers, so that the right answer is exact whatever the order.
Result<std::vector<SweepRow>> SweepAllReduce(const std::shared_ptr<Client>& client,
                                             const std::shared_ptr<Group>& group,
                                             const std::shared_ptr<RankDevice>& device);

}  // namespace tandem::digits
