// SamplingOptions to the options of a GenerationCall. Pure, callable from any thread.
#pragma once

#include <firesteel/v1/generate.pb.h>

#include <cstdint>

#include "kernels/core/status.h"
#include "server/stream/generation_call.h"
#include "server/text/tokenizer.h"

namespace firesteel {

// Everything but n, echo and the prompt's part of a call. max_tokens 0 in `call` means as many as possible. The error is
// InvalidArgument and names the field, the value found and the value needed.
Status ReadSampling(const v1::SamplingOptions& options, const Tokenizer& tokenizer,
                    int32_t vocab_size, GenerationCall* call);

}  // namespace firesteel
