#include "client/tandemctl/views.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "client/tandemctl/table.h"
#include "common/op_tables.h"
#include "daemon/topology/topology_file.h"
#include "tandem/op_request.h"

namespace tandem::ctl {
namespace {

std::string Rate(double gb_per_second) {
  return gb_per_second > 0 ? Number(gb_per_second, gb_per_second < 100 ? "%.3g GB/s" : "%.0f GB/s") : "-";
}

// After a listing that one reply did not hold.
template <typename Reply>
std::string CutNote(const Reply& reply) {
  return reply.truncated() ? "(cut: one reply does not hold all of them)\n" : "";
}

// After a listing without what other users have.
template <typename Reply>
std::string HiddenNote(const Reply& reply, const std::string& what) {
  return reply.hidden() == 0 ? ""
                             : "(and " + std::to_string(reply.hidden()) + " " + what + " of other users)\n";
}

// The rates at which plans' ranks send, beside their links' rates.
std::string SentText(const admin::v1::GetStatsReply& reply) {
  Table table({">plan", "group", "operation", ">rank", "gpu", ">sent", ">sends at", ">link", ">of the link"});
  for (const auto& s : reply.sent()) {
    table.Add({std::to_string(s.plan_id()), s.group_name(), s.summary(), std::to_string(s.rank()),
               s.gpu_uuid(), Bytes(s.bytes()), Rate(s.gb_per_second()), Rate(s.link_gb_per_second()),
               s.link_gb_per_second() > 0 ? Number(100 * s.link_fraction(), "%.1f %%") : "-"});
  }
  return table.empty() ? "" : "\n" + table.Text() + CutNote(reply);
}

// The measured links: a row for each GPU that sends, a column for each that is sent to.
std::string LinksText(const admin::v1::GetStatsReply& reply) {
  if (reply.links_size() == 0) return "";
  std::vector<std::string> headings{"links measured"};
  for (int to = 0; to < reply.engines_size(); ++to) headings.push_back(">to GPU" + std::to_string(to));
  Table table(headings);
  for (int from = 0; from < reply.engines_size(); ++from) {
    std::vector<std::string> row{"from GPU" + std::to_string(from)};
    for (const auto& to : reply.engines()) {
      double rate = 0;
      for (const auto& link : reply.links()) {
        const bool is_it =
            link.from_gpu_uuid() == reply.engines(from).gpu_uuid() && link.to_gpu_uuid() == to.gpu_uuid();
        if (is_it) rate = link.gb_per_second();
      }
      row.push_back(Rate(rate));
    }
    table.Add(row);
  }
  return "\n" + table.Text();
}

std::string OrNone(const Table& table, const std::string& none) {
  return table.empty() ? none + "\n" : table.Text();
}

}  // namespace

std::string NameOfAlgorithm(uint32_t algorithm) {
  return std::string(AlgorithmName(static_cast<Algorithm>(algorithm)));
}

Result<std::string> TopologyText(const admin::v1::GetTopologyReply& reply) {
  TANDEM_ASSIGN_OR_RETURN(Topology topology, ParseTopology(reply.topology_toml(), "topology"));
  std::string text = std::to_string(topology.size()) + " GPUs, " + reply.topology_class() + "\n\n";
  std::vector<std::string> headings{""};
  for (int i = 0; i < topology.size(); ++i) headings.push_back("GPU" + std::to_string(i));
  for (const char* heading : {"NUMA", ">memory", "model", "uuid"}) headings.emplace_back(heading);
  Table table(headings);
  for (int i = 0; i < topology.size(); ++i) {
    std::vector<std::string> row{"GPU" + std::to_string(i)};
    for (int j = 0; j < topology.size(); ++j) {
      int links = i == j ? 0 : topology.LinkCount(i, j);
      row.push_back(i == j      ? "X"
                    : links > 0 ? "NV" + std::to_string(links)
                                : std::string(PcieDistanceName(topology.pcie[i][j])));
    }
    const GpuInfo& gpu = topology.gpus[i];
    row.push_back(gpu.numa_node < 0 ? "-" : std::to_string(gpu.numa_node));
    row.push_back(gpu.memory_bytes == 0 ? "-" : Bytes(gpu.memory_bytes));
    row.push_back(gpu.model);
    row.push_back(gpu.uuid);
    table.Add(row);
  }
  return text + table.Text();
}

std::string PredictedText(double us, const std::string& prediction_model) {
  return Micros(us) + (us > 0 && !prediction_model.empty() ? " (" + prediction_model + ")" : "");
}

std::string HealthText(const admin::v1::GetHealthReply& reply) {
  std::string text =
      std::string(reply.live() ? "live" : "not live") + ", " + (reply.ready() ? "ready" : "not ready") + "\n";
  for (const std::string& reason : reply.reasons()) text += "  " + reason + "\n";
  return text;
}

std::string DoctorText(const admin::v1::DoctorReply& reply) {
  static constexpr const char* kMarks[] = {"?", "ok", "note", "WARNING", "FAILURE"};
  std::string text;
  for (const auto& finding : reply.findings()) {
    std::string mark = kMarks[std::clamp<int>(finding.severity(), 0, 4)];
    text += mark + std::string(9 - std::min<size_t>(mark.size(), 8), ' ') + finding.message() + "\n";
    if (!finding.advice().empty()) text += "         -> " + finding.advice() + "\n";
  }
  return text;
}

std::string SessionsText(const admin::v1::ListSessionsReply& reply) {
  Table table({">id", ">pid", ">uid", "name", "command", ">age", ">groups", ">tensors", ">regs", ">channels",
               ">memory", "suspends", "owner"});
  for (const auto& s : reply.sessions()) {
    table.Add({std::to_string(s.id()), std::to_string(s.pid()), std::to_string(s.uid()), s.name(),
               s.command(), Age(s.age_seconds()), std::to_string(s.groups()), std::to_string(s.tensors()),
               std::to_string(s.registrations()), std::to_string(s.channels()), Bytes(s.bytes()),
               s.checkpointed_seconds() > 0 ? "checkpointed"
               : s.suspends()               ? "yes"
                                            : "-",
               s.owner()});
  }
  return OrNone(table, "no sessions") + HiddenNote(reply, "sessions") + CutNote(reply);
}

std::string GroupsText(const admin::v1::ListGroupsReply& reply) {
  Table table({">id", "name", "state", ">ranks", "class", ">plans", ">launches", ">by clients", ">workspace",
               ">unshared", "pids"});
  std::string notes;
  for (const auto& g : reply.groups()) {
    std::string pids;
    for (const auto& member : g.members()) {
      const std::string pid = std::to_string(member.pid());
      pids.append(pids.empty() ? "" : " ").append(member.left() ? "(" + pid + ")" : pid);
    }
    table.Add({std::to_string(g.id()), g.name(), g.state(), std::to_string(g.world_size()),
               g.topology_class(), std::to_string(g.plans()), std::to_string(g.launches()),
               std::to_string(g.client_launches()), Bytes(g.workspace_bytes()),
               Bytes(g.unshared_workspace_bytes()), pids});
    if (!g.state_reason().empty())
      notes += "group " + std::to_string(g.id()) + ": " + g.state_reason() +
               (g.asleep_seconds() > 0 ? ", " + Age(g.asleep_seconds()) + " ago" : "") + "\n";
  }
  return OrNone(table, "no groups") + notes + HiddenNote(reply, "groups") + CutNote(reply);
}

std::string PoolsText(const admin::v1::ListPoolsReply& reply, bool segments) {
  Table table({"gpu", ">memory", ">segments", ">in segments", ">used", ">registered"});
  Table detail({"gpu", ">segment", ">bytes", ">used", ">group", "purpose"});
  for (const auto& p : reply.pools()) {
    table.Add({p.gpu_uuid(), Bytes(p.memory_bytes()), std::to_string(p.segments_size()),
               Bytes(p.segment_bytes()), Bytes(p.used_bytes()), Bytes(p.registered_bytes())});
    for (const auto& s : p.segments()) {
      detail.Add({p.gpu_uuid(), std::to_string(s.id()), Bytes(s.bytes()), Bytes(s.used_bytes()),
                  std::to_string(s.group_id()), s.purpose()});
    }
  }
  return table.Text() + (segments && !detail.empty() ? "\n" + detail.Text() : "") +
         HiddenNote(reply, "segments") + CutNote(reply);
}

std::string PlansText(const admin::v1::ListPlansReply& reply) {
  Table table({">id", "group", "key", "plan", "algorithm", ">launches", ">failed", ">mean", ">p99",
               ">predicted", ">moved"});
  for (const auto& p : reply.plans()) {
    const auto& info = p.info();
    table.Add({std::to_string(info.plan_id()), p.group_name(), info.key(), info.summary(),
               NameOfAlgorithm(info.algorithm()) + (info.fused() ? "" : " (not fused)"),
               std::to_string(p.stats().launches()), std::to_string(p.stats().failures()),
               Micros(p.stats().mean_us()), Micros(p.stats().p99_us()), Micros(info.predicted_us()),
               Bytes(p.stats().bytes_moved())});
  }
  const std::string model = table.empty() || reply.prediction_model().empty()
                                ? ""
                                : "predicted: " + reply.prediction_model() + "\n";
  return OrNone(table, "no plans") + model + HiddenNote(reply, "plans") + MorePlansText(reply);
}

std::string MorePlansText(const admin::v1::ListPlansReply& reply) {
  return reply.next_page_token().empty()
             ? ""
             : "(cut: there are more plans; go on with --page " + reply.next_page_token() + ")\n";
}

std::string PlanText(const admin::v1::PlanEntry& plan, const std::string& prediction_model) {
  const auto& info = plan.info();
  std::string text = "plan " + std::to_string(info.plan_id()) + " '" + info.key() + "' of group " +
                     plan.group_name() + ": " + info.summary() + "\n";
  auto line = [&](const std::string& name, const std::string& value) {
    if (!value.empty())
      text += "  " + name + std::string(name.size() < 14 ? 14 - name.size() : 1, ' ') + value + "\n";
  };
  line("algorithm", NameOfAlgorithm(info.algorithm()) + (info.fused() ? "" : " (not fused)"));
  line("why", info.reason());
  if (info.steps() != 0)
    line("steps x lanes", std::to_string(info.steps()) + " x " + std::to_string(info.lanes()));
  line("placement", info.placement());
  line("scales", info.scale_mode());
  line("wire type", info.wire_type());
  line("reduction", info.reduction_order());
  line("deterministic", info.deterministic() ? "yes" : "no");
  line("determinism", std::string(NameOf(static_cast<Determinism>(info.determinism()))));
  line("rounding", info.rounding());
  line("norm", info.norm());
  line("workspace", Bytes(info.workspace_bytes()) + " a half; the group's plans share " +
                        Bytes(info.group_workspace_bytes()) + " instead of " +
                        Bytes(info.unshared_workspace_bytes()));
  line("moved", Bytes(info.bytes_moved()) + " a rank and launch");
  line("predicted", PredictedText(info.predicted_us(), prediction_model));
  line("measured", "mean " + Micros(plan.stats().mean_us()) + ", p50 " + Micros(plan.stats().p50_us()) +
                       ", p99 " + Micros(plan.stats().p99_us()) + " of " +
                       std::to_string(plan.stats().launches()) + " launches");
  for (const auto& warning : info.warnings()) line("warning", warning);
  if (info.refused_size() != 0) {
    Table table({"not chosen", ">predicted", "why not"});
    for (const auto& r : info.refused())
      table.Add({NameOfAlgorithm(r.algorithm()), Micros(r.predicted_us()), r.reason()});
    text += "\n" + table.Text();
  }
  if (plan.stats().steps_size() != 0) {
    Table table({">rank", ">step", ">lane", "name", ">mean", ">max", ">samples"});
    for (const auto& s : plan.stats().steps()) {
      table.Add({std::to_string(s.rank()), std::to_string(s.step()), std::to_string(s.lane()), s.name(),
                 Micros(s.mean_us()), Micros(s.max_us()), std::to_string(s.samples())});
    }
    text += "\n" + table.Text();
  }
  for (int rank = 0; rank < plan.programs_size(); ++rank) {
    text += "\nprogram of rank " + std::to_string(rank) + "\n" + plan.programs(rank);
  }
  if (plan.truncated()) text += "(cut: one reply does not hold all programs and steps of this plan)\n";
  return text;
}

std::string QueueText(const admin::v1::GetQueueReply& reply) {
  Table table({"gpu", "state", ">since", "group", ">plan", ">launch", "operation", ">session", "waits for"});
  for (const auto& e : reply.entries()) {
    table.Add({e.gpu_uuid(), e.state(), Micros(e.since_seconds() * 1e6), e.group_name(),
               std::to_string(e.plan_id()), std::to_string(e.launch()), e.summary(),
               std::to_string(e.session_id()),
               e.late_ranks().empty() ? e.awaits() : "rank " + Join(e.late_ranks())});
  }
  std::string silent;
  for (const auto& engine : reply.silent()) silent += "no queue: " + engine.reason() + "\n";
  const bool none = table.empty() && !silent.empty();  // then nobody knows what is in flight
  return (none ? "" : OrNone(table, "nothing in flight")) + silent + HiddenNote(reply, "launches") +
         CutNote(reply);
}

std::string StatsText(const admin::v1::GetStatsReply& reply) {
  std::string text =
      "tandemd " + reply.version() + ", " + reply.backend() + " backend, up " + Age(reply.uptime_seconds()) +
      (reply.draining()   ? ", DRAINING"
       : reply.cordoned() ? ", CORDONED"
                          : "") +
      "\n" + std::to_string(reply.sessions()) + " sessions, " + std::to_string(reply.groups()) + " groups, " +
      std::to_string(reply.plans()) + " plans, " + Bytes(reply.segment_bytes()) + " in segments, " +
      std::to_string(reply.descriptors()) + " descriptors, " + Bytes(reply.rss_bytes()) + " resident\n\n";
  Table table({"gpu", "engine", ">pid", ">generation", ">restarts", ">channels", ">launches", ">ahead",
               ">cancelled", ">failed", ">busy", "last end"});
  for (const auto& e : reply.engines()) {
    table.Add({e.gpu_uuid(), e.state(), std::to_string(e.pid()), std::to_string(e.generation()),
               std::to_string(e.restarts()), std::to_string(e.channels()), std::to_string(e.launches()),
               std::to_string(e.speculated()), std::to_string(e.cancelled()), std::to_string(e.failures()),
               Micros(e.busy_seconds() * 1e6), e.last_exit()});
  }
  return text + table.Text() + SentText(reply) + LinksText(reply);
}

}  // namespace tandem::ctl
