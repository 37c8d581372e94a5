#include "daemon/topology/topology_file.h"

#include <cstdio>
#include <optional>

#include "common/toml/toml_parse.h"
#include "common/toml/toml_text.h"

namespace tandem {
namespace {

constexpr int64_t kMaxLinks = 64;  // far above any GPU; keeps sums small
constexpr int64_t kMaxMemoryBytes = int64_t{1} << 50;

// Walks one parsed file into a Topology. Every method returns the first error, with the line.
class Reader {
 public:
  Reader(std::string_view file, const toml::table& root) : file_(file), root_(root) {}

  Result<Topology> Read() {
    topology_.source = file_;
    TANDEM_RETURN_IF_ERROR(CheckKeys(root_, {"gpu_defaults", "gpus", "nvlinks", "pcie", "p2p_failures"}, ""));
    TANDEM_RETURN_IF_ERROR(ReadGpus());
    TANDEM_RETURN_IF_ERROR(ReadNvLinks());
    TANDEM_RETURN_IF_ERROR(ReadPcie());
    TANDEM_RETURN_IF_ERROR(ReadP2p());
    return topology_;
  }

 private:
  Status ErrorAt(const toml::node& node, const std::string& message) const {
    return InvalidArgument(file_ + ":" + std::to_string(node.source().begin.line) + ": " + message);
  }

  // The only keys allowed in `table`; `prefix` is its name with a dot, for messages.
  Status CheckKeys(const toml::table& table, std::initializer_list<std::string_view> known,
                   const std::string& prefix) const {
    for (const auto& [key, node] : table) {
      bool found = false;
      std::string names;
      for (std::string_view name : known) {
        found |= name == key.str();
        names += (names.empty() ? "" : ", ") + std::string(name);
      }
      if (!found) {
        return ErrorAt(node,
                       "unknown key '" + prefix + std::string(key.str()) + "'; known here are " + names);
      }
    }
    return Status::Ok();
  }

  Result<int64_t> Integer(const toml::node& node, std::string_view name, int64_t min, int64_t max) const {
    const auto* number = node.as_integer();
    if (number == nullptr) return ErrorAt(node, std::string(name) + " must be an integer");
    if (number->get() < min || number->get() > max) {
      return OutOfRange(file_ + ":" + std::to_string(node.source().begin.line) + ": " + std::string(name) +
                        " = " + std::to_string(number->get()) + " is out of range; the limits are " +
                        std::to_string(min) + " to " + std::to_string(max));
    }
    return number->get();
  }

  Result<std::string> Text(const toml::node& node, std::string_view name) const {
    const auto* text = node.as_string();
    if (text == nullptr) return ErrorAt(node, std::string(name) + " must be a string");
    if (text->get().empty()) return ErrorAt(node, std::string(name) + " must not be empty");
    if (text->get().find('\0') != std::string::npos)
      return ErrorAt(node, std::string(name) + " must not hold NUL");
    return text->get();
  }

  Status ReadGpu(const toml::table& table, const std::string& prefix, GpuInfo& gpu) const {
    TANDEM_RETURN_IF_ERROR(CheckKeys(table,
                                     {"uuid", "model", "pci_bus_id", "numa_node", "memory_bytes",
                                      "mig_enabled", "compute_mode", "fabric_state", "switch_links"},
                                     prefix));
    struct TextKey {
      std::string_view name;
      std::string* member;
    };
    for (const TextKey& key :
         {TextKey{"uuid", &gpu.uuid}, TextKey{"model", &gpu.model}, TextKey{"pci_bus_id", &gpu.pci_bus_id},
          TextKey{"fabric_state", &gpu.fabric_state}}) {
      const toml::node* node = table.get(key.name);
      if (node == nullptr) continue;
      TANDEM_ASSIGN_OR_RETURN(*key.member, Text(*node, prefix + std::string(key.name)));
    }
    if (const toml::node* node = table.get("numa_node")) {
      TANDEM_ASSIGN_OR_RETURN(int64_t numa_node, Integer(*node, prefix + "numa_node", -1, 1023));
      gpu.numa_node = static_cast<int>(numa_node);
    }
    if (const toml::node* node = table.get("memory_bytes")) {
      TANDEM_ASSIGN_OR_RETURN(int64_t bytes, Integer(*node, prefix + "memory_bytes", 1, kMaxMemoryBytes));
      gpu.memory_bytes = static_cast<uint64_t>(bytes);
    }
    if (const toml::node* node = table.get("switch_links")) {
      TANDEM_ASSIGN_OR_RETURN(int64_t links, Integer(*node, prefix + "switch_links", 0, kMaxLinks));
      gpu.switch_links = static_cast<int>(links);
    }
    if (const toml::node* node = table.get("mig_enabled")) {
      if (node->as_boolean() == nullptr) return ErrorAt(*node, prefix + "mig_enabled must be true or false");
      gpu.mig_enabled = node->as_boolean()->get();
    }
    if (const toml::node* node = table.get("compute_mode")) {
      TANDEM_ASSIGN_OR_RETURN(std::string mode, Text(*node, prefix + "compute_mode"));
      std::optional<ComputeMode> parsed;
      for (int i = 0; i <= static_cast<int>(ComputeMode::kProhibited); ++i) {
        if (ComputeModeName(static_cast<ComputeMode>(i)) == mode) parsed = static_cast<ComputeMode>(i);
      }
      if (!parsed.has_value()) {
        return ErrorAt(*node, prefix + "compute_mode = '" + mode +
                                  "' is none of default, exclusive_process, prohibited");
      }
      gpu.compute_mode = *parsed;
    }
    return Status::Ok();
  }

  Status ReadGpus() {
    GpuInfo defaults;
    defaults.model = "unknown GPU";
    defaults.fabric_state = "none";
    if (const toml::node* node = root_.get("gpu_defaults")) {
      if (!node->is_table()) return ErrorAt(*node, "gpu_defaults must be a table");
      for (const char* own : {"uuid", "pci_bus_id"}) {
        const toml::node* key = node->as_table()->get(own);
        if (key != nullptr) return ErrorAt(*key, std::string("gpu_defaults.") + own + " belongs to each GPU");
      }
      TANDEM_RETURN_IF_ERROR(ReadGpu(*node->as_table(), "gpu_defaults.", defaults));
    }
    const toml::node* gpus = root_.get("gpus");
    if (gpus == nullptr) return InvalidArgument(file_ + ": there is no 'gpus' array");
    if (!gpus->is_array()) return ErrorAt(*gpus, "gpus must be an array of tables ([[gpus]])");
    const toml::array& array = *gpus->as_array();
    if (array.empty() || array.size() > kMaxGpus) {
      return ErrorAt(*gpus, "there are " + std::to_string(array.size()) + " gpus; the limits are 1 to " +
                                std::to_string(kMaxGpus) + " (describe one baseboard of a larger node)");
    }
    for (size_t i = 0; i < array.size(); ++i) {
      std::string prefix = "gpus[" + std::to_string(i) + "].";
      if (!array[i].is_table()) return ErrorAt(array[i], "gpus[" + std::to_string(i) + "] must be a table");
      GpuInfo gpu = defaults;
      char text[32];
      std::snprintf(text, sizeof(text), "EMU-0000-%04zu", i);
      gpu.uuid = text;
      std::snprintf(text, sizeof(text), "ffff:%02zx:00.0", i + 1);
      gpu.pci_bus_id = text;
      TANDEM_RETURN_IF_ERROR(ReadGpu(*array[i].as_table(), prefix, gpu));
      if (topology_.Find(gpu.uuid).ok())
        return ErrorAt(array[i], prefix + "uuid '" + gpu.uuid + "' is not unique");
      topology_.gpus.push_back(gpu);
    }
    return Status::Ok();
  }

  // Two different GPUs' positions: [0, 1].
  Result<std::pair<int, int>> Pair(const toml::node& node, std::string_view name) const {
    const toml::array* pair = node.as_array();
    if (pair == nullptr || pair->size() != 2) {
      return ErrorAt(node, std::string(name) + " must be two positions, for example [0, 1]");
    }
    TANDEM_ASSIGN_OR_RETURN(int64_t i, Integer((*pair)[0], name, 0, topology_.size() - 1));
    TANDEM_ASSIGN_OR_RETURN(int64_t j, Integer((*pair)[1], name, 0, topology_.size() - 1));
    if (i == j) return ErrorAt(node, std::string(name) + " must name two different GPUs");
    return std::pair(static_cast<int>(i), static_cast<int>(j));
  }

  // Calls `cell(node, i, j)` for each element of an n x n matrix.
  template <typename Cell>
  Status Matrix(const toml::array& matrix, std::string_view name, Cell cell) const {
    size_t size = topology_.gpus.size();
    std::string expected = " must have " + std::to_string(size);
    if (matrix.size() != size)
      return ErrorAt(matrix, std::string(name) + expected + " rows, one for each GPU");
    for (size_t i = 0; i < size; ++i) {
      const toml::array* row = matrix[i].as_array();
      if (row == nullptr || row->size() != size) {
        return ErrorAt(matrix[i], std::string(name) + "[" + std::to_string(i) + "]" + expected + " elements");
      }
      for (size_t j = 0; j < size; ++j) {
        TANDEM_RETURN_IF_ERROR(cell((*row)[j], static_cast<int>(i), static_cast<int>(j)));
      }
    }
    return Status::Ok();
  }

  static std::string Cell(std::string_view name, int i, int j) {
    return std::string(name) + "[" + std::to_string(i) + "][" + std::to_string(j) + "]";
  }

  Status ReadNvLinks() {
    const toml::node* node = root_.get("nvlinks");
    if (node == nullptr) return Status::Ok();
    const toml::array* array = node->as_array();
    if (array == nullptr) return ErrorAt(*node, "nvlinks must be a matrix or a list of {gpus, links}");
    if (array->empty()) return Status::Ok();
    if ((*array)[0].is_table()) return ReadNvLinkList(*array);
    return Matrix(*array, "nvlinks", [this](const toml::node& cell, int i, int j) -> Status {
      TANDEM_ASSIGN_OR_RETURN(int64_t links, Integer(cell, Cell("nvlinks", i, j), 0, kMaxLinks));
      if (i == j && links != 0)
        return ErrorAt(cell, Cell("nvlinks", i, j) + " is on the diagonal and must be 0");
      topology_.nvlinks[i][j] = static_cast<int>(links);
      if (j < i && topology_.nvlinks[j][i] != links) {
        return ErrorAt(cell, Cell("nvlinks", i, j) + " = " + std::to_string(links) + " contradicts " +
                                 Cell("nvlinks", j, i) + " = " + std::to_string(topology_.nvlinks[j][i]));
      }
      return Status::Ok();
    });
  }

  Status ReadNvLinkList(const toml::array& list) {
    for (size_t k = 0; k < list.size(); ++k) {
      std::string name = "nvlinks[" + std::to_string(k) + "]";
      const toml::table* entry = list[k].as_table();
      if (entry == nullptr) return ErrorAt(list[k], name + " must be a table {gpus, links} like the first");
      TANDEM_RETURN_IF_ERROR(CheckKeys(*entry, {"gpus", "links"}, name + "."));
      const toml::node* gpus = entry->get("gpus");
      const toml::node* links = entry->get("links");
      if (gpus == nullptr || links == nullptr)
        return ErrorAt(list[k], name + " must have both gpus and links");
      TANDEM_ASSIGN_OR_RETURN(auto pair, Pair(*gpus, name + ".gpus"));
      TANDEM_ASSIGN_OR_RETURN(int64_t count, Integer(*links, name + ".links", 1, kMaxLinks));
      if (topology_.nvlinks[pair.first][pair.second] != 0)
        return ErrorAt(list[k], name + " names a pair again");
      topology_.nvlinks[pair.first][pair.second] = static_cast<int>(count);
      topology_.nvlinks[pair.second][pair.first] = static_cast<int>(count);
    }
    return Status::Ok();
  }

  Result<PcieDistance> Distance(const toml::node& node, const std::string& name) const {
    TANDEM_ASSIGN_OR_RETURN(std::string text, Text(node, name));
    for (int i = 0; i <= static_cast<int>(PcieDistance::kSys); ++i) {
      if (PcieDistanceName(static_cast<PcieDistance>(i)) == text) return static_cast<PcieDistance>(i);
    }
    return ErrorAt(node, name + " = '" + text + "' is none of X, PIX, PXB, PHB, NODE, SYS");
  }

  Status ReadPcie() {
    int size = topology_.size();
    const toml::node* node = root_.get("pcie");
    std::optional<PcieDistance> everywhere;
    if (node != nullptr && node->is_string()) {
      TANDEM_ASSIGN_OR_RETURN(everywhere, Distance(*node, "pcie"));
      if (*everywhere == PcieDistance::kSame) return ErrorAt(*node, "pcie = 'X' is only for the diagonal");
    } else if (node != nullptr && !node->is_array()) {
      return ErrorAt(*node, "pcie must be one distance for all pairs, or a matrix");
    }
    if (node != nullptr && node->is_array()) {
      return Matrix(*node->as_array(), "pcie", [this](const toml::node& cell, int i, int j) -> Status {
        std::string name = Cell("pcie", i, j);
        TANDEM_ASSIGN_OR_RETURN(PcieDistance distance, Distance(cell, name));
        if ((i == j) != (distance == PcieDistance::kSame)) {
          return ErrorAt(cell,
                         name + " must " + (i == j ? "" : "not ") + "be 'X': X stands on the diagonal only");
        }
        topology_.pcie[i][j] = distance;
        if (j < i && topology_.pcie[j][i] != distance) {
          return ErrorAt(cell, name + " contradicts " + Cell("pcie", j, i));
        }
        return Status::Ok();
      });
    }
    for (int i = 0; i < size; ++i) {
      for (int j = 0; j < size; ++j) {
        if (i == j) continue;
        bool same_node = topology_.gpus[i].numa_node == topology_.gpus[j].numa_node;
        topology_.pcie[i][j] = everywhere.value_or(same_node ? PcieDistance::kNode : PcieDistance::kSys);
      }
    }
    return Status::Ok();
  }

  Status ReadP2p() {
    for (int i = 0; i < topology_.size(); ++i) {
      for (int j = 0; j < topology_.size(); ++j) {
        // A GPU that is cut into instances has no peer access.
        topology_.p2p[i][j] = i != j && !topology_.gpus[i].mig_enabled && !topology_.gpus[j].mig_enabled;
      }
    }
    const toml::node* node = root_.get("p2p_failures");
    if (node == nullptr) return Status::Ok();
    if (!node->is_array())
      return ErrorAt(*node, "p2p_failures must be a list of pairs, for example [[0, 1]]");
    for (const toml::node& entry : *node->as_array()) {
      TANDEM_ASSIGN_OR_RETURN(auto pair, Pair(entry, "p2p_failures"));
      topology_.p2p[pair.first][pair.second] = false;
      topology_.p2p[pair.second][pair.first] = false;
    }
    return Status::Ok();
  }

  std::string file_;
  const toml::table& root_;
  Topology topology_;
};

}  // namespace

Result<Topology> ParseTopology(std::string_view text, std::string_view file) {
  TANDEM_ASSIGN_OR_RETURN(toml::table root, ParseToml(text, file));
  return Reader(file, root).Read();
}

Result<Topology> LoadTopology(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(std::string text, ReadTextFile(path));
  return ParseTopology(text, path);
}

}  // namespace tandem
