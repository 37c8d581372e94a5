#include "client/tandemctl/top.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "client/tandemctl/table.h"
#include "client/tandemctl/views.h"
#include "tandem/op_request.h"

namespace tandem::ctl {
namespace {

// Plans on a screen.
constexpr size_t kMaxPlans = 15;

struct EngineRates {
  const admin::v1::EngineStats* engine = nullptr;
  double busy = 0, launches = 0, failures = 0;  // busy: of the time; the others a second
};

struct PlanRates {
  const admin::v1::PlanEntry* plan = nullptr;
  double launches = 0, bytes = 0;  // a second
};

struct Rates {
  double seconds = 0;
  std::vector<EngineRates> engines;
  std::vector<PlanRates> plans;  // the busiest first
};

Rates RatesOf(const TopSample& before, const TopSample& now) {
  Rates rates;
  rates.seconds = std::max(std::chrono::duration<double>(now.at - before.at).count(), 1e-3);
  const bool same = before.stats.instance_id() == now.stats.instance_id();
  const auto rate = [&](double value, double earlier) {
    return std::max(0.0, value - (same && earlier <= value ? earlier : 0)) / rates.seconds;
  };
  std::map<std::string, const admin::v1::EngineStats*> engines_before;
  for (const auto& engine : before.stats.engines()) engines_before[engine.gpu_uuid()] = &engine;
  for (const auto& engine : now.stats.engines()) {
    const auto found = engines_before.find(engine.gpu_uuid());
    const auto& earlier =
        found == engines_before.end() ? admin::v1::EngineStats::default_instance() : *found->second;
    rates.engines.push_back(
        {&engine, rate(engine.busy_seconds(), earlier.busy_seconds()),
         rate(static_cast<double>(engine.launches()), static_cast<double>(earlier.launches())),
         rate(static_cast<double>(engine.failures()), static_cast<double>(earlier.failures()))});
  }
  std::map<uint64_t, const admin::v1::PlanStats*> plans_before;
  for (const auto& plan : before.plans.plans()) plans_before[plan.info().plan_id()] = &plan.stats();
  for (const auto& plan : now.plans.plans()) {
    const auto found = plans_before.find(plan.info().plan_id());
    const auto& earlier =
        found == plans_before.end() ? admin::v1::PlanStats::default_instance() : *found->second;
    rates.plans.push_back(
        {&plan, rate(static_cast<double>(plan.stats().launches()), static_cast<double>(earlier.launches())),
         rate(static_cast<double>(plan.stats().bytes_moved()), static_cast<double>(earlier.bytes_moved()))});
  }
  // By the time that they take now, then by what they have taken in all.
  std::stable_sort(rates.plans.begin(), rates.plans.end(), [](const PlanRates& a, const PlanRates& b) {
    const auto key = [](const PlanRates& one) {
      const double mean_us = one.plan->stats().mean_us();
      return std::pair(one.launches * mean_us, mean_us * static_cast<double>(one.plan->stats().launches()));
    };
    return key(a) > key(b);
  });
  return rates;
}

}  // namespace

std::string TopText(const TopSample& before, const TopSample& now) {
  const Rates rates = RatesOf(before, now);
  const auto& stats = now.stats;
  std::string text = "tandemd " + stats.version() + ", " + stats.backend() + ", up " +
                     Age(stats.uptime_seconds()) + ", " + std::to_string(stats.sessions()) + " sessions, " +
                     std::to_string(stats.groups()) + " groups, " + std::to_string(stats.plans()) + " plans" +
                     (stats.draining()   ? ", DRAINING"
                      : stats.cordoned() ? ", CORDONED"
                                         : "") +
                     "; rates over " + Number(rates.seconds, "%.1f s") + "\n\n";
  Table engines({"gpu", "engine", ">busy", ">launches/s", ">failed/s", ">launches"});
  for (const EngineRates& e : rates.engines) {
    engines.Add({e.engine->gpu_uuid(), e.engine->state(), Number(100 * e.busy, "%.0f %%"),
                 Number(e.launches, "%.1f"), Number(e.failures, "%.1f"),
                 std::to_string(e.engine->launches())});
  }
  text += engines.Text();
  Table table(
      {">plan", "group", "operation", "algorithm", ">launches/s", ">launches", ">mean", ">p99", ">moved/s"});
  for (size_t i = 0; i < std::min(rates.plans.size(), kMaxPlans); ++i) {
    const admin::v1::PlanEntry& plan = *rates.plans[i].plan;
    table.Add({std::to_string(plan.info().plan_id()), plan.group_name(), plan.info().summary(),
               NameOfAlgorithm(plan.info().algorithm()), Number(rates.plans[i].launches, "%.1f"),
               std::to_string(plan.stats().launches()), Micros(plan.stats().mean_us()),
               Micros(plan.stats().p99_us()), Bytes(static_cast<uint64_t>(rates.plans[i].bytes))});
  }
  return text + (table.empty() ? "" : "\n" + table.Text());
}

std::string TopJson(const TopSample& before, const TopSample& now) {
  const Rates rates = RatesOf(before, now);
  nlohmann::ordered_json json{{"seconds", rates.seconds},
                              {"version", now.stats.version()},
                              {"backend", now.stats.backend()},
                              {"uptime_seconds", now.stats.uptime_seconds()},
                              {"draining", now.stats.draining()},
                              {"cordoned", now.stats.cordoned()},
                              {"sessions", now.stats.sessions()},
                              {"groups", now.stats.groups()},
                              {"engines", nlohmann::ordered_json::array()},
                              {"plans", nlohmann::ordered_json::array()}};
  for (const EngineRates& e : rates.engines) {
    json["engines"].push_back({{"gpu_uuid", e.engine->gpu_uuid()},
                               {"state", e.engine->state()},
                               {"busy", e.busy},
                               {"launches_per_second", e.launches},
                               {"failures_per_second", e.failures},
                               {"launches", e.engine->launches()}});
  }
  for (const PlanRates& p : rates.plans) {
    json["plans"].push_back({{"plan_id", p.plan->info().plan_id()},
                             {"group_name", p.plan->group_name()},
                             {"summary", p.plan->info().summary()},
                             {"op", std::string(OpName(static_cast<Op>(p.plan->info().op())))},
                             {"algorithm", NameOfAlgorithm(p.plan->info().algorithm())},
                             {"launches_per_second", p.launches},
                             {"bytes_per_second", p.bytes},
                             {"launches", p.plan->stats().launches()},
                             {"mean_us", p.plan->stats().mean_us()},
                             {"p99_us", p.plan->stats().p99_us()}});
  }
  return json.dump(1, ' ', true, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace tandem::ctl
