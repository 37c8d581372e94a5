#include "kernels/host/copy.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/host/random_delay.h"

namespace tandem::host {
namespace {

template <typename T>
void CopyElements(const std::byte* source, int64_t source_stride, std::byte* destination,
                  int64_t destination_stride, int64_t count) {
  const T* from = reinterpret_cast<const T*>(source);
  T* to = reinterpret_cast<T*>(destination);
  for (int64_t i = 0; i < count; ++i) to[i * destination_stride] = from[i * source_stride];
}

// Copies `count` elements of a row.
void CopyRow(const BoxCopy& copy, const std::byte* source, std::byte* destination, int64_t count) {
  int64_t source_stride = copy.box.inner_stride(0);
  int64_t destination_stride = copy.box.inner_stride(1);
  if (source_stride == 1 && destination_stride == 1) {
    // A client may bind slots that overlap: the result is then its own affair, but it must not be undefined
    // here.
    if (source != destination)
      std::memmove(destination, source, static_cast<size_t>(count * copy.element_bytes));
    return;
  }
  switch (copy.element_bytes) {
    case 1: CopyElements<uint8_t>(source, source_stride, destination, destination_stride, count); break;
    case 2: CopyElements<uint16_t>(source, source_stride, destination, destination_stride, count); break;
    case 4: CopyElements<uint32_t>(source, source_stride, destination, destination_stride, count); break;
    default: CopyElements<uint64_t>(source, source_stride, destination, destination_stride, count); break;
  }
}

// The most pauses of one copy in the visibility-delay mode.
constexpr int kMaxPieces = 4;

}  // namespace

Result<BoxCopy> PrepareCopy(const CopyArgs& args) {
  TANDEM_RETURN_IF_ERROR(CheckView(args.src, "copy source"));
  TANDEM_RETURN_IF_ERROR(CheckView(args.dst, "copy destination"));
  if (args.src.dtype != args.dst.dtype) {
    return InvalidArgument("copy from " + std::string(DTypeName(args.src.dtype)) + " to " +
                           std::string(DTypeName(args.dst.dtype)));
  }
  BoxCopy copy;
  const std::array<const DeviceView*, 2> views = {&args.src, &args.dst};
  TANDEM_ASSIGN_OR_RETURN(copy.box, MakeStridedBox(views));
  copy.source = args.src.data;
  copy.destination = args.dst.data;
  copy.element_bytes = static_cast<int64_t>(DTypeBytes(args.src.dtype));
  return copy;
}

void RunCopy(const BoxCopy& copy, const TaskContext& context) {
  int64_t row_elements = copy.box.inner_extent();
  int64_t source_step = copy.box.inner_stride(0) * copy.element_bytes;
  int64_t destination_step = copy.box.inner_stride(1) * copy.element_bytes;
  int pauses_left = context.delay != nullptr ? kMaxPieces : 0;
  ForEachRow(copy.box, [&](const auto& offsets) {
    const std::byte* source = copy.source + offsets[0] * copy.element_bytes;
    std::byte* destination = copy.destination + offsets[1] * copy.element_bytes;
    int64_t done = 0;
    while (pauses_left > 0 && done < row_elements) {
      int64_t piece = context.delay->Piece(row_elements - done);
      CopyRow(copy, source + done * source_step, destination + done * destination_step, piece);
      done += piece;
      --pauses_left;
      context.delay->Pause();
    }
    if (done < row_elements) {
      CopyRow(copy, source + done * source_step, destination + done * destination_step, row_elements - done);
    }
  });
}

}  // namespace tandem::host
