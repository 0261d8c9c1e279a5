// A GenerateRequest to validated GenerationCalls. Pure, callable from any thread.
#pragma once

#include <firesteel/v1/generate.pb.h>

#include <string>
#include <vector>

#include "engine/api/engine.h"
#include "kernels/core/status.h"
#include "server/stream/generation_call.h"
#include "server/text/chat_template.h"
#include "server/text/tokenizer.h"

namespace firesteel {

// What the gRPC front end needs of the model. The pointers outlive it.
struct GrpcModel {
  std::string name;
  std::string version;  // the server's
  const ModelInfo* info = nullptr;
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplate* chat_template = nullptr;  // null: the model has none
};

struct GrpcGeneration {
  std::vector<GenerationCall> calls;  // one per choice; the first one asks for prompt_logprobs
  std::string echo;                   // goes in front of each choice's text
  bool drop_output =
      false;  // the client wants no output token; the calls make one, the engine's least
};

// NotFound for another model's name; else InvalidArgument that names the field, the value found and the value needed.
Result<GrpcGeneration> ParseGenerate(const v1::GenerateRequest& request, const GrpcModel& model);

// Ok when every id is in the vocabulary; `name` is the field in the error.
Status CheckTokenIds(const std::string& name, const google::protobuf::RepeatedField<int32_t>& ids,
                     int32_t vocab_size);

}  // namespace firesteel
