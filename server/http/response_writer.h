// The answer of one request, written by a handler from any thread: whole (Send) or piece by piece (a stream).
//
// Threads: any; calls of one writer are made by one thread at a time or are ordered by their callers.
// Invariants:
//  1. Nothing blocks. Writes are queued in a bounded buffer, one write to the socket is in flight, and what queues up
//     behind it goes out as one piece.
//  2. Write() before StartStream() only queues; Send() drops what was queued so. A refusal that comes late is thus
//     still a proper status line.
//  3. The disconnect callback runs at most once, never after Send() or End() returned to the connection.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "server/http/message.h"

namespace firesteel {

struct StreamStart {
  std::string content_type;
  HttpHeaders headers;
  std::string
      keep_alive;  // sent whenever the stream was silent for the server's keep-alive interval; may be empty
};

class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;

  // The whole answer. REQUIRES: neither Send() nor StartStream() was called before.
  virtual void Send(HttpResponse response) = 0;

  // Sends the header of a 200 answer; pieces follow.
  virtual void StartStream(StreamStart start) = 0;

  // Queues one piece. False when the client is gone or the buffer is full; the caller then gives the request up.
  virtual bool Write(std::string_view piece) = 0;

  // Ends the stream after what is queued.
  virtual void End() = 0;

  // The client left before the answer was complete.
  virtual bool gone() const { return false; }

  // `callback` runs when the client goes away before the answer is complete; at once if it already has. It runs on an
  // io thread and must not block.
  virtual void OnDisconnect(std::function<void()> callback) = 0;
};

}  // namespace firesteel
