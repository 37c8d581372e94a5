#include "client/tandemctl/json.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/util/json_util.h>

#include <cerrno>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "tandem/op_request.h"

namespace tandem::ctl {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using nlohmann::ordered_json;

// Doubles, which JSON's readers often have for numbers, hold integers exactly up to this.
constexpr int64_t kLargestExact = int64_t{1} << 53;

void ToNumber(ordered_json& value) {
  if (!value.is_string()) return;
  const std::string text = value;
  errno = 0;
  char* end = nullptr;
  const int64_t number = std::strtoll(text.c_str(), &end, 10);
  if (errno != 0 || end == text.c_str() || *end != 0) return;
  if (number >= -kLargestExact && number <= kLargestExact) value = number;
}

// Fields that hold values of an enumeration of tandem/op_request.h or tandem/dtype.h, by their names in the
// .proto files.
void ToName(const FieldDescriptor& field, ordered_json& value) {
  if (field.cpp_type() != FieldDescriptor::CPPTYPE_UINT32 || !value.is_number_unsigned()) return;
  const auto number = value.get<uint32_t>();
  std::string_view name;
  if (number <= 255) {
    if (field.name() == "op") name = OpName(static_cast<Op>(number));
    if (field.name() == "algorithm") name = AlgorithmName(static_cast<Algorithm>(number));
    if (field.name() == "role") name = RoleName(static_cast<Role>(number));
    if (field.name() == "dtype") name = DTypeName(static_cast<DType>(number));
  }
  if (!name.empty()) value = std::string(name);
}

void NumbersOf(const Descriptor& type, ordered_json& object);

// One value of `field`: an entry of an array or of a map, or the field itself.
void NumbersIn(const FieldDescriptor& field, ordered_json& value) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64:
    case FieldDescriptor::CPPTYPE_UINT64: ToNumber(value); break;
    case FieldDescriptor::CPPTYPE_UINT32: ToName(field, value); break;
    case FieldDescriptor::CPPTYPE_MESSAGE: NumbersOf(*field.message_type(), value); break;
    default: break;
  }
}

void NumbersOf(const Descriptor& type, ordered_json& object) {
  if (!object.is_object()) return;
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const auto entry = object.find(field.name());
    if (entry == object.end()) continue;
    if (field.is_map()) {
      for (auto& [key, value] : entry->items()) NumbersIn(*field.message_type()->map_value(), value);
    } else if (field.is_repeated()) {
      for (ordered_json& value : *entry) NumbersIn(field, value);
    } else {
      NumbersIn(field, *entry);
    }
  }
}

}  // namespace

Result<std::string> MessageJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  if (auto status = google::protobuf::util::MessageToJsonString(message, &text, options); !status.ok()) {
    return Internal("the reply cannot be written as JSON: " + std::string(status.message()));
  }
  ordered_json json = ordered_json::parse(text, nullptr, false);
  if (json.is_discarded()) return Internal("the reply's JSON cannot be read back");
  NumbersOf(*message.GetDescriptor(), json);
  return json.dump(1, ' ', true, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace tandem::ctl
