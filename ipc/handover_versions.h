// File: handover_versions.h
//
// The versions by which a tandemd and the engines of another build know that they understand each other
// (docs/restart.md, "Versions"). Builds whose versions are the same take each other's engines over, in both
// directions. tests/source/test_handover_versions.py names the version that a changed file belongs to.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace tandem {

// By name. "state": the journal. "commands": messages of tandemd and engines. "program": rank programs, and
// memory that engines write for each other. "records": memory that engines write and tandemd reads.
// "protocol": clients' messages. "channel": clients' rings.
std::map<std::string, uint32_t> HandoverVersions();

// The differences that keep `ours` from taking over an engine of `theirs`: "state is 1, tandemd's is 2".
// Empty if there are none. A name that one side lacks is a difference, too.
std::string HandoverDifferences(const std::map<std::string, uint32_t>& theirs,
                                const std::map<std::string, uint32_t>& ours);

}  // namespace tandem
