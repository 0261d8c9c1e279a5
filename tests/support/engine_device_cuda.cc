#include "tests/support/test_environment.h"

namespace firesteel {

DeviceKind TestDeviceKind() { return DeviceKind::kCuda; }

// Case 14, position 544, layer 1: the router's second and third scores are 0.564467 and 4.2e-7 apart, 7 units in the last
// place. Up to there every activation is within 2e-5 of the CPU's; the other expert moves the draft logits by 0.06.
std::vector<DraftTie> DraftTies() { return {{"greedy_long.json", 14}}; }

}  // namespace firesteel
