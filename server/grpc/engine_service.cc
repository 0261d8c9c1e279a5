#include "server/grpc/engine_service.h"

#include <utility>
#include <vector>

#include "server/grpc/generate_reactor.h"
#include "server/grpc/status_mapping.h"

namespace firesteel {

namespace {

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

}  // namespace

EngineService::EngineService(GrpcModel model, OutputThread* output)
    : model_(std::move(model)), output_(output) {}

grpc::ServerWriteReactor<v1::GenerateResponse>* EngineService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  auto* reactor = new GenerateReactor(context, output_, &active_);  // deletes itself
  Result<GrpcGeneration> generation = ParseGenerate(*request, model_);
  if (generation.ok()) {
    reactor->Start(std::move(generation).value());
  } else {
    reactor->Refuse(generation.status());
  }
  return reactor;
}

grpc::ServerUnaryReactor* EngineService::GetModelInfo(grpc::CallbackServerContext* context,
                                                      const v1::GetModelInfoRequest*,
                                                      v1::GetModelInfoResponse* response) {
  const ModelInfo& info = *model_.info;
  response->set_model(model_.name);
  response->set_architecture(info.architecture);
  response->set_vocab_size(info.vocab_size);
  response->set_max_model_len(info.max_model_len);
  response->mutable_eos_token_ids()->Add(info.eos_tokens.begin(), info.eos_tokens.end());
  response->set_drafter(info.drafter);
  response->set_draft_length(info.draft_length);
  response->set_device(info.device);
  response->set_version(model_.version);
  response->set_chat(model_.chat_template != nullptr);
  return Answer(context, Status::Ok());
}

grpc::ServerUnaryReactor* EngineService::Tokenize(grpc::CallbackServerContext* context,
                                                  const v1::TokenizeRequest* request,
                                                  v1::TokenizeResponse* response) {
  const Result<std::vector<int32_t>> ids =
      request->parse_special() ? model_.tokenizer->EncodeWithSpecials(request->text())
                               : model_.tokenizer->EncodePlain(request->text());
  if (!ids.ok()) return Answer(context, ids.status());
  response->mutable_ids()->Add(ids->begin(), ids->end());
  return Answer(context, Status::Ok());
}

grpc::ServerUnaryReactor* EngineService::Detokenize(grpc::CallbackServerContext* context,
                                                    const v1::DetokenizeRequest* request,
                                                    v1::DetokenizeResponse* response) {
  // The tokenizer's own vocabulary: a checkpoint may have more rows than tokens.
  const Status valid = CheckTokenIds("ids", request->ids(), model_.tokenizer->vocab_size());
  if (!valid.ok()) return Answer(context, valid);
  const std::vector<int32_t> ids(request->ids().begin(), request->ids().end());
  response->set_text(model_.tokenizer->Decode(ids, request->with_special()));
  return Answer(context, Status::Ok());
}

}  // namespace firesteel
