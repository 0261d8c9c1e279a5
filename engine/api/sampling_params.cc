#include "engine/api/sampling_params.h"

#include <cmath>
#include <string>

namespace firesteel {

Status SamplingParams::Validate() const {
  // Negated comparisons so that NaN is refused too.
  if (!(temperature >= 0.0F && temperature <= 2.0F)) {
    return InvalidArgument("temperature is " + std::to_string(temperature) + ", needs 0..2");
  }
  if (!(top_p > 0.0F && top_p <= 1.0F)) {
    return InvalidArgument("top_p is " + std::to_string(top_p) + ", needs a value in (0, 1]");
  }
  if (max_tokens < 1) {
    return InvalidArgument("max_tokens is " + std::to_string(max_tokens) + ", needs at least 1");
  }
  return Status::Ok();
}

}  // namespace firesteel
