// File: topology_fixture.h
//
// The topology files of tests/fixtures, loaded.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "daemon/topology/topology_file.h"

namespace tandem {

// The topology of tests/fixtures/topology/`name`; fails the test where it cannot be loaded.
inline Topology Fixture(const std::string& name) {
  Result<Topology> topology = LoadTopology(TANDEM_SOURCE_DIR "/tests/fixtures/topology/" + name);
  EXPECT_TRUE(topology.ok()) << topology.status().ToString();
  return topology.ok() ? *topology : Topology();
}

}  // namespace tandem
