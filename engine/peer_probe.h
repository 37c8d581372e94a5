// File: peer_probe.h
//
// Probes memory that this engine has mapped with data: writes a pattern into a segment (a peer's, over the
// link), or reads a segment and compares. P2P that is reported and corrupts under an IOMMU exists in the
// field. And measures how fast the link is.
#pragma once

#include <memory>

#include "engine/memory/deferred_release.h"
#include "engine/memory/memory_table.h"
#include "kernels/backend.h"
#include "tandem/engine/v1/engine.pb.h"
#include "tandem/status.h"

namespace tandem::engine {

// Executes a probe on its own lane and waits for each of the probe's copies, at most 5 s (DEADLINE_EXCEEDED).
// DATA_LOSS names the first word that differs; the detail's field is the target's index. Meant for an engine
// that does nothing else. `dead` takes what may still be in use after a time-out.
Status RunProbe(const v1::Probe& probe, Backend* backend, const MemoryTable& memory, DeferredRelease* dead);

// Bytes per second of copies from staging to the segment, by the lane's events: the best of some rounds. A
// round has several copies in a row, so that a copy's fixed cost does not count. Waits and `dead` as
// above.
Result<uint64_t> MeasureLink(const v1::MeasureLink& link, Backend* backend, const MemoryTable& memory,
                             DeferredRelease* dead);

// Word `index` of the pattern of `seed`.
uint64_t ProbeWord(uint64_t seed, uint64_t index);

}  // namespace tandem::engine
