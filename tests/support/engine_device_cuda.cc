#include "tests/support/test_environment.h"

namespace firesteel {

DeviceKind TestDeviceKind() { return DeviceKind::kCuda; }

}  // namespace firesteel
