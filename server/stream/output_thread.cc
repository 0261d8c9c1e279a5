#include "server/stream/output_thread.h"

#include <utility>
#include <vector>

namespace firesteel {

namespace {

constexpr int64_t kWaitUs = 50'000;  // how late Stop() may be noticed while the engine is silent

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

OutputThread::OutputThread(Engine* engine, const Tokenizer* tokenizer, GenerationObserver* observer)
    : engine_(engine), tokenizer_(tokenizer), observer_(observer), thread_([this] { Run(); }) {}

OutputThread::~OutputThread() { Stop(); }

Result<RequestId> OutputThread::Submit(GenerationCall call,
                                       std::unique_ptr<ResponseStream> stream) {
  Request request;
  request.id = RequestId{next_id_.fetch_add(1)};
  request.stop_tokens = std::move(call.stop_token_ids);
  request.sampling = call.sampling;
  if (!call.sampling.ignore_eos) {
    const std::vector<int32_t>& eos = engine_->info().eos_tokens;
    request.stop_tokens.insert(request.stop_tokens.end(), eos.begin(), eos.end());
  }
  // To the engine all stop tokens are alike; what is ignored is left out of them here.
  if (!request.stop_tokens.empty()) request.sampling.ignore_eos = false;
  auto live = std::make_unique<Live>(Live{
      TextAssembler(tokenizer_, std::move(call.stop), static_cast<int32_t>(call.prompt_ids.size())),
      std::move(stream), std::chrono::steady_clock::now(), GenerationTimes{}});
  request.prompt = std::move(call.prompt_ids);
  const RequestId id = request.id;
  // One lock around both: the request's first event may come before the engine's Submit returns, and a refused request
  // must not be seen by Stop().
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = live_.emplace(id, std::move(live)).first;
  Status status = stopping_.load() ? Unavailable("the server is shutting down")
                                   : engine_->Submit(std::move(request));
  if (!status.ok()) {
    live_.erase(it);
    if (observer_ != nullptr) observer_->OnRefused(status.code());
    return status;
  }
  live_count_.fetch_add(1);
  return id;
}

void OutputThread::Cancel(RequestId id) { engine_->Abort(id); }

void OutputThread::Stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_.store(true);
  }
  if (thread_.joinable()) thread_.join();
}

void OutputThread::Run() {
  std::vector<TokenEvent> events;
  bool engine_alive = true;
  while (engine_alive && !stopping_.load()) {
    events.clear();
    engine_alive = engine_->WaitEvents(kWaitUs, &events);
    for (const TokenEvent& event : events) Deliver(event);
  }
  std::vector<RequestId> left;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_.store(true);
    for (const auto& entry : live_) left.push_back(entry.first);
  }
  for (const RequestId id : left) {
    engine_->Abort(id);
    GenerationResult result = Find(id)->assembler.TakeResult();
    result.finish = FinishReason::kAborted;
    result.error = Unavailable("the server is shutting down");
    Finish(id, std::move(result));
  }
}

OutputThread::Live* OutputThread::Find(RequestId id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = live_.find(id);
  return it == live_.end() ? nullptr : it->second.get();
}

void OutputThread::Deliver(const TokenEvent& event) {
  Live* live = Find(event.id);
  if (live == nullptr) return;  // ended here before: by a stop string or by a stalled consumer
  const std::string text = live->assembler.Consume(event);
  const GenerationResult& so_far = live->assembler.result();
  ObserveTokens(live, static_cast<int64_t>(so_far.output_ids.size()));
  const bool taken = text.empty() || live->stream->OnText(text, so_far);
  if (live->assembler.done()) {
    if (live->assembler.stopped_by_string() && event.finish == FinishReason::kNone) {
      engine_->Abort(event.id);
    }
    Finish(event.id, live->assembler.TakeResult());
  } else if (!taken) {
    engine_->Abort(event.id);
    GenerationResult result = live->assembler.TakeResult();
    result.finish = FinishReason::kAborted;
    result.error = Unavailable("the client does not take its data");
    Finish(event.id, std::move(result));
  }
}

void OutputThread::ObserveTokens(Live* live, int64_t tokens) {
  GenerationTimes& times = live->times;
  const int64_t fresh = tokens - times.output_tokens;
  if (fresh == 0) return;
  const double now_s = SecondsSince(live->submitted);
  const bool first = times.output_tokens == 0;
  if (observer_ != nullptr && first) observer_->OnFirstToken(now_s);
  if (observer_ != nullptr && !first) observer_->OnTokens(now_s - times.last_token_s, fresh);
  if (first) times.first_token_s = now_s;
  times.last_token_s = now_s;
  times.output_tokens = tokens;
}

void OutputThread::Finish(RequestId id, GenerationResult result) {
  std::unique_ptr<Live> live;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = live_.find(id);
    live = std::move(it->second);
    live_.erase(it);
  }
  live->times.end_s = SecondsSince(live->submitted);
  live->times.prompt_tokens = result.prompt_tokens;
  if (observer_ != nullptr) observer_->OnFinish(result.finish, live->times);
  live->stream->OnFinish(std::move(result));
  live.reset();
  live_count_.fetch_sub(1);
}

}  // namespace firesteel
