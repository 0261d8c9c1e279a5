# Compile options of Firesteel's own targets, in one interface library: warnings, sanitizers, floating-point rules.
add_library(firesteel_compile INTERFACE)
target_include_directories(firesteel_compile INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_features(firesteel_compile INTERFACE cxx_std_20)
target_compile_options(firesteel_compile INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Werror -Wno-missing-field-initializers>
  # One result per expression: a compiler must not fuse a * b + c in one caller and not in another.
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
target_link_libraries(firesteel_compile INTERFACE firesteel_sanitize)

# The sanitizer alone, for generated code too: Protobuf's maps have another layout under TSan, so every file that includes
# its headers must be compiled alike.
add_library(firesteel_sanitize INTERFACE)
if(FIRESTEEL_SANITIZE STREQUAL "address")
  target_compile_options(firesteel_sanitize INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=all
                         -fno-omit-frame-pointer
                         # g++ 12's flow warnings (maybe-uninitialized, restrict) are wrong about instrumented code;
                         # the builds without a sanitizer keep every warning an error.
                         -Wno-error)
  target_link_options(firesteel_sanitize INTERFACE -fsanitize=address,undefined)
elseif(FIRESTEEL_SANITIZE STREQUAL "thread")
  # Asio uses fences that TSan does not model; g++ warns about each of them.
  target_compile_options(firesteel_sanitize INTERFACE -fsanitize=thread -Wno-tsan -Wno-error)
  target_link_options(firesteel_sanitize INTERFACE -fsanitize=thread)
elseif(NOT FIRESTEEL_SANITIZE STREQUAL "")
  message(FATAL_ERROR "FIRESTEEL_SANITIZE is '${FIRESTEEL_SANITIZE}', needs '', 'address' or 'thread'")
endif()
