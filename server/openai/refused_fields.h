// Options that would change the output and that this server does not honour: refused by name, unless they carry the
// value that changes nothing. Ignoring one silently would answer a different question than the client asked.
#pragma once

#include "server/openai/json_fields.h"

namespace firesteel {

enum class Route { kCompletions, kChat, kOfflineLine };

// Fails the reader at the first such field.
void CheckRefusedFields(Route route, FieldReader* reader);

}  // namespace firesteel
