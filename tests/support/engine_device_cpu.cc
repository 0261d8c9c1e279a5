#include "tests/support/test_environment.h"

namespace firesteel {

DeviceKind TestDeviceKind() { return DeviceKind::kCpu; }

std::vector<DraftTie> DraftTies() { return {}; }

}  // namespace firesteel
