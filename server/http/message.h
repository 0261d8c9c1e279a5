// HTTP messages as handlers see them: no sockets, no Boost.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace firesteel {

struct HttpRequest {
  std::string method;      // "GET", "POST", ...
  std::string path;        // without the query
  std::string query;       // without '?'; may be empty
  std::string request_id;  // the client's X-Request-Id when usable, else one drawn for this request
  std::string body;
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  HttpHeaders headers;  // besides Content-Type, Content-Length, Connection and X-Request-Id
  std::string body;
};

}  // namespace firesteel
