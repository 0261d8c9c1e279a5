// The methods of firesteel.v1.Engine. Threads: gRPC's, in parallel.
#pragma once

#include <firesteel/v1/generate.grpc.pb.h>

#include <atomic>
#include <cstdint>

#include "server/grpc/parse_request.h"
#include "server/stream/output_thread.h"

namespace firesteel {

class EngineService final : public v1::Engine::CallbackService {
 public:
  // `output` and what `model` points to outlive the service.
  EngineService(GrpcModel model, OutputThread* output);

  // Generate calls that have not ended yet.
  int64_t active_calls() const { return active_.load(); }

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const v1::GetModelInfoRequest* request,
                                         v1::GetModelInfoResponse* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;

 private:
  const GrpcModel model_;
  OutputThread* const output_;
  std::atomic<int64_t> active_{0};
};

}  // namespace firesteel
